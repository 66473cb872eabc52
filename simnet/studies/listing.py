"""Lists of what simnet ships: schemes, scenarios, models, devices, networks and other data.

Each list loads what it lists, as most people ask for one of them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, getdoc
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_type_hints

from simnet.base import plugins, terms
from simnet.base.errors import InputError
from simnet.base.file_io import read_shipped_rows, read_text
from simnet.base.units import format_bandwidth, format_bytes, format_seconds
from simnet.report.columns import COLUMNS

if TYPE_CHECKING:
    from simnet import sparsifier_models
    from simnet.scenario.parts import Part

Listing: TypeAlias = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]
"""Column names and rows of a table."""


def schemes() -> Listing:
    """List schemes by which workers exchange gradients."""
    from simnet import sparsifier_models

    common = {field.name for field in dataclasses.fields(sparsifier_models.Options)}
    shared = _option_texts(sparsifier_models.Options, common)
    rows = [("any", "Options that every scheme has.", "", shared, terms.meaning("symbols"))]
    for name, scheme in sparsifier_models.usable().items():
        own = set(sparsifier_models.own_options(name)) - common
        costs = "; ".join(_cost_formula(cost, len(scheme.traits.costs) > 1) for cost in scheme.traits.costs)
        rows.append((name, _first_line(scheme), scheme.paper, _option_texts(scheme.option_type, own), costs))
    return ("scheme", "what it is", "after", "options", "closed-form cost"), rows


def scheme_notes(name: str) -> list[tuple[str, str]]:
    """Return (field, text) pairs: a scheme's kernels, checks against released code, and when it loses gradients."""

    def rows(table: str) -> list[dict[str, str]]:
        return [row for row in read_shipped_rows(f"data/{table}.csv") if name in row["schemes"].split()]

    worked = [
        "; ".join(f"{when}: {row[when]}" for when in ("before", "between", "after") if row[when] != "-")
        for row in rows("scheme_work")
    ]
    released = [f"{row['run']}: {row['options']} ({row['checked']} compared)" for row in rows("released_runs")]
    lost = [f"{row['when']}; remedy: {row['remedy']}" for row in rows("lost_mass")]
    titles = ("work around messages", "as released", "loses mass")
    return [
        (title, text.replace("`", ""))
        for title, texts in zip(titles, (worked, released, lost), strict=True)
        for text in texts
    ]


def scenarios() -> Listing:
    """List scenarios that come with simnet."""
    from simnet.scenario.finding import shipped
    from simnet.scenario.loader import read_scenario

    rows = []
    for name, path in shipped().items():
        try:
            description = str(read_scenario(path).data.get("description", ""))
        except InputError as error:
            description = str(error)
        rows.append((name, " ".join(description.split())))
    return ("scenario", "what it is"), rows


def scenario_text(name: str) -> str:
    """Return the YAML text of a shipped scenario. InputError: the name is unknown."""
    from simnet.scenario.finding import find
    from simnet.scenario.loader import MAX_BYTES

    return read_text(find(name), MAX_BYTES)


def models_() -> Listing:
    """List neural networks whose layers and compute time are known."""
    from simnet.cost_models.costs import models

    found = [models.load_model(name) for name in models.model_names()]
    rows = [
        (one.name, f"{one.parameters:,}", format_bytes(4 * one.parameters), format_seconds(one.compute), one.source)
        for one in found
    ]
    return ("model", "parameters", "gradient", "iteration", "source of the time"), rows


def devices_() -> Listing:
    """List GPUs and CPUs with known costs of selection, and the vendor's peak FLOP/s, which scales compute times."""
    from simnet.cost_models.costs import devices
    from simnet.cost_models.costs.computing import known_chips
    from simnet.cost_models.costs.encodings import CODE_METHODS

    rows = []
    for name, one in devices.usable_devices().items():
        others = [method for method in one.methods if method not in CODE_METHODS]
        codes = [f"{len(one.methods) - len(others)} of codes"] if len(others) < len(one.methods) else []
        chip = known_chips().get(one.chip)
        peak = "" if chip is None else f"{chip.precision}, {chip.peaks[chip.precision] / 1e12:.3g} TFLOP/s"
        rows.append((name, one.device, peak, ", ".join([*others, *codes])))
    return ("device", "what it is", "vendor's peak", "kernels"), rows


def strategies_() -> Listing:
    """List training strategies."""
    from simnet import strategies

    rows = []
    for name, one in strategies.usable().items():
        own = [
            _option_text(option, given) for option, given in strategies.options(one).items() if option != "averaging"
        ]
        rows.append((name, _first_line(one), one.paper, ", ".join(own)))
    return ("strategy", "what it does", "after", "options"), rows


def _option_text(name: str, given: Parameter) -> str:
    return f"{name}={given.default}" if isinstance(given.default, bool | int | float | str) else name


def list_policies() -> Listing:
    """List kinds of policies, which choose the exchange of each iteration."""
    shipped = {row["policy"]: (row["does"], row["fields"]) for row in read_shipped_rows("data/policies.csv")}
    if plugins.plugin_names("policies"):
        from simnet.scenario import schema

        every = schema.Policy.parts().items()
        shipped = {kind: (_first_line(part), ", ".join(part.names())) for kind, part in every} | shipped
    return ("policy", "what it does", "fields"), [(kind, *texts) for kind, texts in shipped.items()]


def weather() -> Listing:
    """List the ways in which bandwidth and latency of links vary over time, and published schedules of them."""
    from simnet.network.weather import PROFILES
    from simnet.scenario import weather_parts

    parts: dict[str, type[Part]] = {
        **weather_parts.BandwidthSignal.parts(),
        "trace": weather_parts.Trace,
        "profile": weather_parts.Profile,
    }
    rows = [
        ("constant", "One value in place of the link's own.", "a quantity"),
        ("factor", "A factor on the link's own value.", "a number"),
        *(
            (kind, _first_line(part if part.__doc__ else part.__base__), ", ".join(part.names()))
            for kind, part in parts.items()
        ),
        *(
            (f"profile {name}", f"{one.epochs} epochs of latency and bandwidth, from the AR-Topk paper.", one.source)
            for name, one in PROFILES.items()
        ),
    ]
    return ("weather", "what it is", "fields, or source"), rows


def traces_() -> Listing:
    """List recorded gradients of real trainings that come with simnet."""
    from simnet import traces

    found = [(name, traces.recorded(name)) for name in traces.trace_names()]
    rows = [
        (name, f"{one.workers} workers, {one.parameters:,} entries, {len(one.layers)} layers") for name, one in found
    ]
    return ("trace", "what it holds"), rows


def measured_() -> Listing:
    """List data sets of measured collective times that come with simnet."""
    from simnet.cost_models.calibration import measured

    rows = []
    for name, one in measured.datasets().items():
        what = f"{one.title}. {one.rows} rows: {', '.join(one.collectives)}; ranks {', '.join(map(str, one.ranks))}"
        rows.append((name, what, f"{one.hardware}; {one.interconnect}", f"{one.source} ({one.date}; {one.licence})"))
    return ("measurements", "what they are", "hardware", "source (date; licence)"), rows


def collectives_() -> Listing:
    """List collectives with their names in NCCL and MPI, and the cases in which their closed forms are exact."""
    from simnet.collectives import registry

    rows: list[tuple[str, ...]] = []
    for one in registry.all_collectives():
        options = [_option_text(name, given) for name, given in one.options.items()]
        cost = "" if one.cost is None else f"{_cost_formula(one.cost)}; exact for {one.exact.words}"
        rows.append((one.name, one.operation, one.summary, ", ".join(options), one.nccl, ", ".join(one.mpi), cost))
    return ("collective", "operation", "what it is", "options", "in NCCL", "in MPI", "closed form"), rows


def networks() -> Listing:
    """List families of topologies, and platforms that are predicted from their specification alone."""
    from simnet.cost_models.calibration.platform import load_platform, platform_names
    from simnet.scenario import topology_parts

    rows = [
        (name, _first_line(part), ", ".join(part.names()), "", "", "")
        for name, part in topology_parts.Topology.parts().items()
    ]
    for name in platform_names():
        one = load_platform(name)
        out = one.outer
        cards = "" if out is None else f"{out.nics} x {format_bandwidth(out.rate)} {out.transport}"
        inside = f"{one.devices_per_node} x {format_bandwidth(one.inner.rate)} {one.inner.link}"
        joined = one.inner.joined
        inside += f", {joined.replace('_', ' ') if isinstance(joined, str) else 'pairs'}" if joined != "switch" else ""
        rows.append((name, one.description, "", inside, cards, " ".join(one.sources)))
    return ("network", "what it is", "parameters", "inside a node", "out of a node", "source"), rows


def readers() -> Listing:
    """List log formats of benchmarks and profilers that simnet reads."""
    from simnet.cost_models.calibration.readers import kinds

    found = {**plugins.usable_plugins("log_readers", kinds.registered_format), **kinds.LOG_FORMATS}
    return ("format", "what it is"), [(name, _first_line(one.read)) for name, one in found.items()]


def stacks_() -> Listing:
    """List transport stacks, with the properties in which each differs from the stack ``ideal``."""
    from simnet.network import STACKS
    from simnet.report import run_setup

    found = [run_setup.stack_summary(one) for one in STACKS.values()]
    return ("stack", "properties that ideal has not", "software"), [
        (one["name"], run_setup.distinct_properties(one), one["measured"]) for one in found
    ]


def columns_() -> Listing:
    """List the columns of tables and JSON."""
    rows = [(name, one.meaning, one.unit, one.commands) for name, one in COLUMNS.items()]
    return ("column", "meaning", "unit", "written by"), rows


def words() -> Listing:
    """List terms in answers with their meanings, and labels of exchanges with the options to type for them."""
    return ("word", "meaning", "to type"), [(one.term, one.meaning, one.type) for one in terms.all_terms()]


_REGISTERED = {"schemes": "sparsifiers", "networks": "topologies"}


def open_questions() -> Listing:
    """List open questions, each with a grid that answers it."""
    from simnet.studies.questions.question_file import questions, read_question

    rows = [(name, found.question, found.source) for name, folder in questions().items()
            for found in [read_question(folder)]]  # fmt: skip
    return ("question", "what it asks", "why it is open"), rows


def listing(kind: str) -> Listing:
    """Return the headings and rows of the list with name `kind`, such as ``schemes``; unusable plug-ins come last."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", plugins.PluginWarning)
        columns, rows = LISTS[kind].make()
    unusable = {}
    for one in told:
        if isinstance(one.message, plugins.PluginWarning) and one.message.kind.removeprefix("log_") in (
            kind,
            _REGISTERED.get(kind),
        ):
            unusable[one.message.name] = str(one.message)
        else:
            warnings.warn(one.message, one.category, stacklevel=1)
    rest = [""] * (len(columns) - 2)
    return columns, [*rows, *((name, why, *rest) for name, why in unusable.items())]


def describe(name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a sentence that explains a listed name or a term, and its fields as texts; empty for an unknown name."""
    from simnet.scenario.named_choices import option_meanings

    found = [
        (kind, headings[1:], row[1:])
        for kind, (headings, listed) in ((kind, listing(kind)) for kind in LISTS)
        for row in listed
        if row[0] == name
    ]
    kinds = [kind for kind, *_ in found]
    if set(kinds) <= {"columns", "words"} and (sentence := terms.explain(name)):
        return sentence, []
    texts = [field for _, *both in found for field in zip(*both, strict=True) if field[1]]
    if "schemes" in kinds:
        texts += [*option_meanings(name), *scheme_notes(name)]
    if any(field.startswith("closed") and text for field, text in texts):
        texts.append(("symbols", terms.meaning("symbols")))
    titles = [row for row in read_shipped_rows("data/papers.csv") if any(row["id"] in text for _, text in texts)]
    texts += [("paper" if len(titles) == 1 else f"paper, {row['id']}", row["title"]) for row in titles]
    singular = " and ".join(f"a {_SINGULAR.get(kind, kind.removesuffix('s'))}" for kind in kinds)
    return singular and f"{name}: {singular}.", texts


_SINGULAR = {"policies": "policy", "strategies": "strategy", "weather": "kind of weather", "measured": "measurement"}


class Lists(NamedTuple):
    """Kind of list: a description of its items, and the function that returns the table."""

    lists: str
    make: Callable[[], Listing]


LISTS: Mapping[str, Lists] = {
    "schemes": Lists("gradient exchanges, with options and closed forms", schemes),
    "collectives": Lists("collectives, and where their closed forms are exact", collectives_),
    "networks": Lists("topologies, and platforms by their specification", networks),
    "scenarios": Lists("scenarios to run, and to start from", scenarios),
    "models": Lists("models to train, with known layers and compute times", models_),
    "devices": Lists("GPUs and CPUs with known compression costs", devices_),
    "strategies": Lists("training strategies, from local SGD to DiLoCo", strategies_),
    "policies": Lists("policies, which choose the exchange of an iteration", list_policies),
    "weather": Lists("ways in which links change over time", weather),
    "traces": Lists("recorded gradients", traces_),
    "measured": Lists("measurements of real clusters", measured_),
    "stacks": Lists("models of communication libraries", stacks_),
    "readers": Lists("log formats that calibrate reads", readers),
    "questions": Lists("open questions, which simnet reproduce answers", open_questions),
    "columns": Lists("columns of tables and JSON, with units", columns_),
    "words": Lists("words of answers, and what to type for labels of exchanges", words),
}
"""All lists by name."""


def _option_texts(option_type: type[sparsifier_models.Options], names: Collection[str]) -> str:
    """Return options with their defaults as text. Choices start with the default."""
    from simnet.sparsifier_models.options import FROM_JOB, option_words

    hints = get_type_hints(option_type, include_extras=True)
    shown = []
    for one in dataclasses.fields(option_type):
        if one.name not in names or one.name in FROM_JOB:
            continue
        default = str(one.default).lower()
        others = [word for word in option_words(hints[one.name]) if word != default]
        value = "|".join([default, *others]) if others else "" if one.default in (None, ()) else default
        shown.append(f"{one.name}={value}" if value else one.name)
    return ", ".join(shown)


def _cost_formula(cost: Callable[..., object], labelled: bool = False) -> str:
    """Return the formula in a closed form's docstring; `labelled` keeps the label before the formula."""
    text = _first_line(cost).partition(";")[0].removesuffix(".")
    return text if labelled else text.rpartition(": ")[2]


def _first_line(documented: object) -> str:
    return (getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
