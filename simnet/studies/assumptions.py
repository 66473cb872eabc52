"""Assumptions behind predicted times: defaults, whether they decide the fastest exchange, samples, cost sources.

The exchanges of a scenario are timed in a sample of iterations, as it is and with one assumption changed. The sample is
that of `simnet.studies.choosing.whole_job`: it is spread over the job, and bounded by a count of messages and entries,
so that the same scenario has the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from simnet.base.arrays import Columns
from simnet.base.errors import SimnetError
from simnet.base.units import format_bandwidth, format_seconds
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, DeviceOp, DeviceProfile
from simnet.cost_models.evidence.relative_iterations import relative_iterations
from simnet.network.slow_start import BUFFER, LEAST_TIMEOUT, window_after_silence
from simnet.policies import Candidate, Policy, density_at
from simnet.policies.moo import Moo
from simnet.report import run_setup, wording
from simnet.report.columns import Fields
from simnet.report.paired import TIE
from simnet.report.summary import common_unit, three_digits
from simnet.scenario import Run, Scenario, load
from simnet.scenario.computing import model_profile, sending_stack
from simnet.scenario.job import trial_exchange
from simnet.scenario.resolve import candidate
from simnet.scenario.schema import Exchange
from simnet.sparsifier_models import Sparsifier, scheme
from simnet.sparsifier_models.samples import density_warning
from simnet.sparsifier_models.two_level import without_network
from simnet.studies.choosing.forecast import WholeJob, error_between
from simnet.studies.choosing.whole_job import decide_job
from simnet.studies.local_costs import local_costs_text
from simnet.traces.source import Trainable
from simnet.training.job.exchange import collective_slowdown
from simnet.training.job.job import Job, create_sparsifier, gradient_buckets, job_buckets, job_overlap
from simnet.training.job.local_costs import scheme_hook
from simnet.training.job.local_steps import start_strategy
from simnet.training.job.steady import MOVED

FORMATS: dict[str, Callable[[float], str]] = {
    "latency": format_seconds,
    "bandwidth": format_bandwidth,
    "density": lambda value: f"{100 * value:.3g} %",
}
"""Formatter of each quantity's values."""

EFFORT = 0.25
"""Approximate CPU seconds spent on a sample of a job."""

OTHER_DEVICE = "h100-torch2.6"
OTHER_GRADIENTS = {"digits": "transformer", "convolutional": "transformer", "transformer": "convolutional"}
"""Alternatives to the default device, and to each family of synthetic gradients."""

NEAR = 2.0
"""Maximum time relative to the fastest at which an exchange is tried under other defaults; the second always is."""

MOST_WORKERS, MOST_ENTRIES = 64, 2**24
"""Maximum workers, and maximum gradient entries over all workers, of a job that is sampled."""

_MET = "latency_s", "bandwidth_Bps", "start_s", "iteration_s"

# Options of how messages are sent, which leave the update as it is.
_SENDING = ("algorithm", "allgather", "allreduce", "collective", "group_size", "monitored", "wire")

MOST_BUCKETS = 512
"""Maximum buckets over all workers of a job that is sampled."""


def overlap_of(built: Run, among: Iterable[Candidate]) -> Fields | None:
    """Return which exchanges run `during` and `after` the backward pass, and whether that rests on a default.

    If any of those after it are third-party schemes that say nothing about overlap, `undeclared` lists these. None if
    nothing can overlap: under a strategy, with sharded steps, or without known layers.
    """
    job, found = built.job, dict[str, list[str]](during=[], after=[])
    if job.strategy is not None or job.steps is not None or len(job.source.layers) < 2:
        return None
    for one in among:
        hook = scheme_hook(job.device, one.scheme)
        waits = hook is not None and hook.overlap == "blocking"
        found["after" if waits or job_overlap(job, [one]) is None else "during"].append(one.label)
        if hook is None and found["after"][-1:] == [one.label] and scheme(one.scheme).traits.is_third_party:
            found.setdefault("undeclared", []).append(one.label)
    return {**found, "default": job.overlap is not None and job.overlap.exchanges == "able"}


def default_effects(
    load: Callable[[Sequence[str]], Scenario],
    loaded: Scenario,
    built: Run,
    among: Sequence[Candidate] | None = None,
    found: WholeJob | None = None,
) -> list[Fields]:
    """Return the defaults of a scenario, and whether an alternative to each default changes the fastest exchange.

    With the value `other` of `field` the exchange `first` is fastest, by the factor `lead` over the one that is fastest
    by default; both are None without a change, or if a sample leaves the order open, which `undecided` says.
    """
    among = exchanges_of(loaded) if among is None else among
    here = ranked_by_sample(built, among) if found is None else found
    if here is None or is_large(built):
        return []
    near = {row.label for place, row in enumerate(here.rows) if place < 2 or row.seconds <= NEAR * here.best.seconds}
    defaults, overlap = _deciding_defaults(loaded), overlap_of(built, among)
    if overlap is not None and overlap["default"] and overlap["during"]:
        defaults["job.overlap"] = "as in DDP", "none"
    effects: list[Fields] = []
    for field, (value, other) in defaults.items():
        try:
            changed = load([f"{field}={other}"]).build()
            then = ranked_by_sample(changed, [one for one in among if one.label in near])
        except SimnetError:
            continue
        if then is not None:
            effects.append({"field": field, "value": value, "other": other, **_first_place_change(here, then)})
    return effects


def assumed_text(
    loaded: Scenario,
    run: Run | None = None,
    varied: Collection[str] = (),
    *,
    written: bool = False,
    met: Mapping[str, Columns] = {},
) -> str:
    """Return a text on values that the user has not set, such as the density, except the fields that a table varies.

    Defaults that the scenario contains are left out, unless `written` is true, as for a lock, which contains all. Only
    then the number of iterations is named, but not for `base`, whose iterations are all equal. `met` has the iterations
    of each row of a table, as `weather_met` takes them.
    """
    config, base = loaded.config, loaded.name == "base"
    job, (kind, topology) = config.job, config.network.topology.choice
    usual, taken = load("base").config if base else config, loaded.takes_over
    known = {"workers": f"{config.workers:,} workers"} if taken("workers") else {}
    if base and kind == usual.network.topology.choice[0] == "star":
        links, own = usual.network.topology.choice[1].arguments(), topology.arguments()
        alike = [name for name in ("latency", "bandwidth") if own[name] == links[name] and name not in varied]
        known |= {name: f"{name} " * (len(alike) < 2) + FORMATS[name](own[name]) for name in alike}
    unasked = taken("job", "density") or (base and job.density == 1.0)
    if unasked and isinstance(job.density, float) and not job.shardings:
        known["density"] = f"density {FORMATS['density'](job.density)}"
    if written and not base and taken("job", "iterations"):
        known["iterations"] = f"{job.iterations:,} iterations"
    if job.gradients.recorded is not None and taken("job", "gradients"):
        known["gradients"] = f"gradients of {Path(job.gradients.recorded.trace).name}"
    said = [weather_met(met), *(text for name, text in known.items() if name not in varied)]
    said.append(_computing_assumed(loaded, base and job.model == usual.job.model, written))
    if run is not None:
        said += [_slowdown_assumed(run.job), _silence_assumed(run.job), _empty_sites(loaded, run.job)]
        said += run.job.network(0).graph.graph.get("remarks", [])
    default = written or loaded.document.found(("network", "stack")) is None
    if default and (run is not None or kind not in ("file", "platform")):
        name = run_setup.stack_name(run.job.network(0)) if run else sending_stack(config.network)
        said.append(f"stack {(name or 'ideal').removeprefix('ideal ')}")
    if not job.shardings:
        changes = job.strategy is not None or any(one.scheme != "dense" for one in exchanges_of(loaded))
        local = "" if run is None else local_costs_text(run.job, exchanges_of(loaded))
        ignored = "accuracy ignored" if changes and not job.gradients.train else ""
        said += [ignored, local, logic_text(loaded)]
    return ", ".join(filter(None, said))


def weather_met(iterations: Mapping[str, Columns]) -> str:
    """Return a note that the given runs met different network conditions; empty if mean link speeds are alike.

    The rows that end first and last are named. Links are alike if no mean latency or mean time of a byte is more than
    10 % above another.

    Examples
    --------
    >>> fast = {"start_s": [0, 2, 4], "iteration_s": [2, 2, 2], "latency_s": [0.1] * 3, "bandwidth_Bps": [8, 8, 4]}
    >>> slow = {"start_s": [0, 3, 8], "iteration_s": [3, 5, 7], "latency_s": [0.1] * 3, "bandwidth_Bps": [8, 4, 2]}
    >>> weather_met({"topk": fast, "dense": slow})
    'weather of 0-6.00 s for topk, 0-15.0 s for dense (--set network.weather=[] has none)'
    >>> weather_met({"topk": fast, "dense": {**slow, "bandwidth_Bps": [8, 8, 4]}, "gtopk": dict.fromkeys(fast, [])})
    ''
    """
    links, times = [], []
    for name, one in ((name, one) for name, one in iterations.items() if len(one["start_s"])):
        latency, rate, start, took = (np.asarray(one[column], dtype=np.float64) for column in _MET)
        links.append([np.average(each, weights=one.get("stands_for")) for each in (latency, 1 / np.maximum(rate, 1.0))])
        end = float(start[-1] + took[-1])
        unit, scale = common_unit("time", [end])
        times.append((end, f"{three_digits(start[0] / scale)}-{three_digits(end / scale)} {unit} for {name}"))
    if not links or (np.max(links, axis=0) <= (1 + MOVED) * np.min(links, axis=0)).all():
        return ""
    return f"weather of {min(times)[1]}, {max(times)[1]} (--set network.weather=[] has none)"


def iterations_to_accuracy(job: Job, among: Mapping[str, Candidate]) -> dict[str, str]:
    """Return texts on how many iterations exchanges need for the accuracy of dense training, where that is known.

    Empty if a model is trained, as its accuracy is then measured, under training strategies, and with sharding.
    """
    found: dict[str, str] = {}
    if isinstance(job.source, Trainable) or job.strategy is not None or job.steps is not None:
        return found
    for label, one in among.items():
        defaults = {option.name: option.default for option in fields(scheme(one.scheme).option_type)}
        changed = [name for name in one.options if one.options[name] != defaults[name] and name not in _SENDING]
        own = ",".join(f"{name}={one.options[name]}" for name in changed)
        estimate = relative_iterations(":".join(filter(None, [one.scheme, own])), job.density[-1].end)
        if estimate is not None and one.scheme != "dense":
            found[label] = str(estimate)
    return found


def _slowdown_assumed(job: Job) -> str:
    """Return a text on how much dense collectives slow the backward pass that they overlap; empty for no overlap."""
    slowdown = 1.0 if job.overlap is None or job.steps else collective_slowdown(job.device, job.network(0).stack)
    return f"computing {slowdown:.3g}x beside dense collectives" if slowdown != 1.0 else ""


def _silence_assumed(job: Job) -> str:
    """Return a text on pauses between messages if they make TCP restart with a small window, which costs time."""
    network, hosts = job.network(0), job.hosts.tolist()
    steps = 1 if job.strategy is None else job.strategy.steps
    silence = job.compute.mean * (steps - (0.0 if job.overlap is None else job.overlap.backward))
    if job.steps is not None or not network.stack.initial_window or silence <= LEAST_TIMEOUT:
        return ""
    for host in dict.fromkeys(hosts[1:]):
        (there, rate), (back, _) = network.path(hosts[0], host), network.path(host, hosts[0])
        holds = (there + back) * rate
        if window_after_silence((1 + BUFFER) * holds, silence, there + back, network.stack.initial_window) < holds:
            return f"TCP starts slowly after {format_seconds(silence)} without messages"
    return ""


def setting(loaded: Scenario, job: Job) -> dict[str, str]:
    """Return the model, number of workers and density of a job as texts for the report."""
    entries, model = f"{job.source.true_parameters:,} parameters", loaded.config.job.model
    if job.steps is not None:
        ways = [one.way or f"trace {one.trace}" for one in loaded.config.job.shardings.values()]
        trained = {} if model is None else {"model": f"{Path(model).name}, {entries}"}
        return {**trained, "workers": str(job.source.workers), "sharding": ", ".join(dict.fromkeys(ways))}
    first, last = (f"{100 * density_at(job.density, at):.3g} %" for at in (0, job.iterations - 1))
    parts = gradient_buckets(job.source, job.overlap)
    whole = job.source.scale * sum(one.entries.stop - one.entries.start for one in parts if one.dense)
    share = f"{100 * whole / job.source.true_parameters:.2g} %"
    dense = f"{sum(one.dense for one in parts)} of {len(parts)} buckets, {share} of the gradient"
    return {
        "model": entries if model is None else f"{Path(model).name}, {entries}",
        "workers": str(job.source.workers),
        "density": first if first == last else f"{first} to {last}",
        **({"stays dense": dense} if whole else {}),
    }


def _empty_sites(loaded: Scenario, job: Job) -> str:
    """Return a text on sites that the default placement leaves without workers; empty if there are none."""
    graph, hosts = job.stages[0][1].graph, {*job.hosts.tolist()}
    if loaded.document.found(("network", "placement")) is not None or len(hosts) == graph.graph["hosts"]:
        return ""
    sites = [graph.nodes[host].get("site") for host in range(graph.graph["hosts"])]
    used = {sites[host] for host in hosts}
    return "" if used == {*sites} else f"workers on {len(used)} of {len({*sites})} sites (network.placement)"


def logic_text(loaded: Scenario) -> str:
    """Return a text on the share of gradient entries that are simulated; empty if all are."""
    scale = loaded.config.job.scale
    return f"1 entry in {scale:,.10g} simulated" if scale > 1 else ""


def _computing_assumed(loaded: Scenario, base_model: bool, written: bool) -> str:
    """Return a text on where a model's compute time comes from, with its chip, precision and batch size."""
    job, known, device = loaded.config.job, loaded.compute_time, loaded.device
    unsaid = (written or loaded.document.found(("job", *one)) is None for one in (["device"], ["compute", "mean"]))
    default, computes = unsaid
    name = "" if device is None else device.chip or device.name
    if known is None or job.traced or not computes:
        idle = "no computing (--compute)" if job.compute.mean == 0 else ""
        dense = job.strategy is not None and all(one.scheme == "dense" for one in exchanges_of(loaded))
        return ", ".join(filter(None, [idle, "" if not default or job.shardings or dense else name]))
    profile = model_profile(job)
    tokens = 0 if profile is None or job.tokens else profile.tokens
    said = known.text(name, precision=job.precision is None, batch=job.batch is None, tokens=tokens)
    return f"{job.model} in " * base_model + said


def exchanges_of(loaded: Scenario) -> list[Candidate]:
    """Return the exchanges of a scenario as candidates, in its order."""
    return [candidate(label, one) for label, one in loaded.config.exchanges.items()]


def _first_place_change(here: WholeJob, then: WholeJob) -> Fields:
    """Return which other exchange leads under another assumption, and its lead; both are None if there is no other."""
    first = {here.best.label, *here.tied_with}
    rows = [row for row in then.rows if {row.label, *then.alike.get(row.label, ())} & first]
    stays = first & {then.best.label, *then.tied_with}
    # Who has no row there has not settled.
    if not rows or (stays and (_leaves_open(here) or _leaves_open(then))):
        return {"first": None, "lead": None, "undecided": True}
    lead = rows[0].seconds / then.best.seconds
    known = (then.best.label, lead) if lead > 1 + TIE else (None, None)
    return {**dict(zip(("first", "lead"), known, strict=True)), "undecided": False}


def _leaves_open(found: WholeJob) -> bool:
    """Return whether a sample of iterations is too small to tell which exchanges are as fast as the fastest."""
    # What is within `TIE` in a sample may be further apart in the job, as far as the sample leaves open.
    margin = TIE * found.best.seconds
    return any(found.tied(row) and 2 * error_between(row, found.best) > margin for row in found.rows)


def is_large(built: Run) -> bool:
    """Return whether a job is too large to be simulated again under other assumptions."""
    source = built.job.source
    parts = source.workers * len(job_buckets(built.job, []))
    return source.workers > MOST_WORKERS or source.workers * source.parameters > MOST_ENTRIES or parts > MOST_BUCKETS


def ranked_by_sample(built: Run, among: Sequence[Candidate]) -> WholeJob | None:
    """Return a run's exchanges, ranked by a sample of iterations; None if the job is too large or exchanges fail."""
    if len(among) < 2 or is_large(built) or built.colocated:
        return None
    try:
        found = decide_job(built, among, effort=EFFORT, policies=False)
    except SimnetError:
        return None
    return None if found.refused else found


def dependence_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return text lines on the defaults that change the fastest exchange, and on those that do not change it.

    Examples
    --------
    >>> one = {"field": "network.stack", "value": "ideal", "other": "tcp", "first": "AG", "lead": 1.12}
    >>> one["undecided"] = False
    >>> same = {**one, "field": "job.barrier", "other": "false", "first": None, "lead": None}
    >>> dependence_lines([one, same])
    ['Depends on: network.stack=tcp (not ideal): AG first, 12 % ahead; not on job.barrier=false.']
    """
    if not found:
        return []
    changing = [
        f"{one['field']}={one['other']} (not {one['value']}): {one['first']} first, "
        f"{wording.lead_text(one['lead'])} ahead"
        for one in found
        if one["lead"] is not None
    ]
    rest = [(f"{one['field']}={one['other']}", one["undecided"]) for one in found if one["lead"] is None]
    open_, same = ([name for name, undecided in rest if undecided == which] for which in (True, False))
    parts = [*changing, *([f"a sample does not tell of {', '.join(open_)}"] if open_ else [])]
    parts += [f"not on {', '.join(same)}"] if same else []
    return [f"Depends on: {'; '.join(parts)}."]


def _deciding_defaults(loaded: Scenario) -> dict[str, tuple[str, str]]:
    """Return fields with default values that may change the ranking, each with its value and an alternative."""
    config = loaded.config
    drawn, found = config.job.gradients.synthetic, dict[str, tuple[str, str]]()
    if config.network.stack == "ideal":
        found["network.stack"] = "ideal", "tcp"
    if config.job.device == DEFAULT_DEVICE:
        found["job.device"] = DEFAULT_DEVICE, OTHER_DEVICE
    if config.job.barrier:
        found["job.barrier"] = "true", "false"
    if drawn is not None and str(drawn.like) in OTHER_GRADIENTS:
        found["job.gradients.synthetic.like"] = str(drawn.like), OTHER_GRADIENTS[str(drawn.like)]
    return {field: both for field, both in found.items() if loaded.document.found(field.split(".")) is None}


def sample_warnings(job: Job, policies: Iterable[Policy]) -> list[str]:
    """Return warnings that the gradient sample is too small: a line per reason, with the exchanges concerned.

    With several densities, of ramps or a search, the warning is for the lowest.
    """
    if job.steps is not None or job.source.scale <= 1:
        return []
    ramps = {end for one in job.density for end in (one.start, one.end)}
    asked: dict[str, tuple[Candidate, set[float]]] = {}
    for policy in policies:
        densities = set(policy.search.densities) if isinstance(policy, Moo) else ramps
        for exchange in policy.candidates:
            asked.setdefault(exchange.label, (exchange, set()))[1].update(densities)
    found: dict[str, list[str]] = {}
    for label, (exchange, densities) in asked.items():
        models = _bucket_schemes(job, exchange)
        for density in sorted(densities):
            for one in models:
                one.density = density
            if said := density_warning(models):
                found.setdefault(said, []).append(label)
                break
    return [f"{', '.join(among)}: {said}." for said, among in found.items()]


def _bucket_schemes(job: Job, candidate: Candidate) -> list[Sparsifier]:
    """Return the sparsifiers of an exchange in a job: one per gradient bucket, or per tensor group of the strategy."""
    if job.strategy is None:
        return [create_sparsifier(candidate, one, job) for one in job_buckets(job, [candidate]) if not one.dense]
    return list(start_strategy(job.source, job.strategy, candidate, job.seed).schemes)


_WORKERS = 64


def with_codes(device: DeviceProfile, exchanges: Iterable[Candidate | Exchange], workers: int) -> Fields:
    """Return the JSON summary of a device, including the kernels that encode and decode messages of `exchanges`."""
    return run_setup.device_summary(device, (kernel for one in exchanges for kernel in _code_kernels(one, workers)))


def code_cost_lines(device: DeviceProfile, exchanges: Iterable[Candidate | Exchange], workers: int) -> list[str]:
    """Return a text line on the evidence for the costs of encoding and decoding; an empty list without such costs."""
    codes = run_setup.describe_codes(with_codes(device, exchanges, workers))
    return [f"Costs of kernels on {device.name}{codes}."] if codes else []


def compute_time_lines(found: Iterable[str | None]) -> list[str]:
    """Return text lines on compute times and their sources, without duplicates."""
    return [f"Computing: {one}." for one in dict.fromkeys(found) if one]


def _code_kernels(exchange: Candidate | Exchange, workers: int) -> Iterator[DeviceOp]:
    """Yield the kernels that encode and decode the messages of an exchange."""
    if any(exchange.options.get(one) is not None for one in ("indices", "values")):
        _, ranks = without_network(exchange.scheme, exchange.options)
        # Which kernels run is the same among more.
        yield from trial_exchange(exchange, min(workers, max(1, _WORKERS // ranks) * ranks)).kernels
