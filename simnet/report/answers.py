"""Answers to which policy is fastest, as `Summary` objects, from the runs of one seed or of several seeds.

All is told from ``summary.json``, so that a page that is drawn again says the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from simnet.base.units import format_bandwidth, format_bytes, format_seconds
from simnet.cost_models.evidence.conditions import Evidence
from simnet.cost_models.evidence.relative_iterations import accuracy_text
from simnet.report import cost_summary, learning, run_setup, seeds, wording
from simnet.report.columns import Fields
from simnet.report.paired import TIE, start_ranges
from simnet.report.results import joined, round_iterations
from simnet.report.run_summary import RunSummary, known_of, learning_columns, policy_columns, ranked, with_exploration
from simnet.report.summary import Column, Plot, Row, Summary, common_unit, interval_text, table_columns, three_digits
from simnet.training.job.record import MAIN, PolicyResult
from simnet.training.job.steady import MOVED

NEXT = "--seeds 10   how far that depends on the seed"
"""The suggested next command after a run with one seed."""

# A change smaller than this is not offered as what a switch coincided with.
_NOTABLE = 0.05
_NAMED = 4
_EACH = ("iteration_prediction_low_s", "iteration_prediction_high_s")


@dataclass(frozen=True, kw_only=True, repr=False)
class RunAnswer(Summary):
    """Answer of a run. `results` has the result of each policy by name, and is empty for several seeds."""

    results: Mapping[str, PolicyResult] = field(default_factory=dict)

    @property
    def iterations(self) -> pd.DataFrame:
        """Return the table of iterations.csv: a row per policy and iteration."""
        return round_iterations(joined(self.results, lambda one: one.iterations))

    @property
    def workers(self) -> pd.DataFrame:
        """Return the table of workers.parquet: a row per policy, iteration and worker."""
        return joined(self.results, lambda one: one.workers)


def run_answer(summary: RunSummary, results: Mapping[str, PolicyResult] | None = None) -> RunAnswer:
    """Return the answer of a run with one seed, given the content of its summary.json; `results` are for figures."""
    rows = [_row(summary, name) for name in ranking(summary)]
    details = {name: one for name, one in summary.items() if name not in ("assumed", "depends_on")}
    known = evidence(summary)
    return RunAnswer(
        answer=sentence(summary),
        columns=_filled(rows, _columns(summary)),
        rows=rows,
        evidence=" ".join([*(f"Warning: {one}" for one in _other_densities(summary, leaders(summary), 1.0)), known]),
        assumed=summary.get("assumed", ""),
        to_accuracy=_to_accuracy(summary, leaders(summary)),
        depends_on=_depends_on(summary),
        next=NEXT if len(rows) > 1 else "",
        details=details,
        plots=_plots(summary, results) if results else {},
        notes=run_notes(summary),
        results=results or {},
    )


def seeds_answer(summary: Fields, table: pd.DataFrame | None = None) -> RunAnswer:
    """Return the answer of a run over several seeds, from what `summarize_seeds` returns; `table` is for its figure."""
    run = summary["run"]
    rows = [seeds.row(summary, name) for name in seeds.ranking_over_seeds(summary["policies"])]
    method = f"Paired intervals at {100 * summary['interval']['level']:.0f} %: {summary['interval']['method']}."
    trained, won = any("reached_with" in one for one in summary["policies"].values()), summary["winner"]
    columns = [*table_columns("run seeds")]
    if trained:
        columns[1:1] = table_columns("run seeds learning")
    return RunAnswer(
        answer=seeds.sentence_over_seeds(summary),
        columns=_filled(rows, columns),
        rows=rows,
        evidence=evidence(run),
        assumed=run.get("assumed", ""),
        to_accuracy=_to_accuracy(run, [] if won is None else [won["policy"], *won["tied_with"]]),
        depends_on=run_setup.mixed_overlap(run.get("overlap")),
        details=summary,
        plots={} if table is None or won is None or len(rows) < 2 else {"seeds": partial(_draw_seeds, summary, table)},
        notes=[*ran_on(run), method],
    )


def _draw_seeds(summary: Fields, table: pd.DataFrame) -> Plot:
    from simnet.report import figures

    return figures.seed_comparison(summary, table)[0]


def _to_accuracy(run: Mapping[str, Any], first: Sequence[str]) -> str:
    """Return text on how many iterations leading policies need for the accuracy of dense training; "" if unknown."""
    known = run.get("iterations_to_accuracy", {})
    return accuracy_text({name: known[name] for name in first[:_NAMED] if name in known})


def sentence(summary: RunSummary) -> str:
    """Return a run's answer as text: the fastest policy, its time, ties, and policies without a steady state.

    If a model was trained, the text starts with the policy that reached the target first.

    Examples
    --------
    >>> import pandas as pd
    >>> from simnet.report.run_summary import summarize
    >>> fast = pd.DataFrame({"iteration": [0, 1], "start_s": [0.0, 1.0], "iteration_s": 1.0, "compute_s": 0.5,
    ...     "select_s": 0.0, "communicate_s": 0.5, "wait_s": 0.0, "bytes_sent_B": 1e6, "choice": ["AG", "ART-Ring"],
    ...     "density": 0.01, "latency_s": 0.01, "bandwidth_Bps": [1.25e9, 1.25e8]})
    >>> slow = fast.assign(start_s=[0.0, 1.25], iteration_s=1.25, choice="AG")
    >>> sentence(summarize({"flexible": fast, "AG": slow}))
    'flexible: 2.00 s for 2 iterations, 25 % faster than AG (2.50 s).'
    """
    trained = known_of(summary, "learning")
    first = learning.learning_headline(trained, summary["bound"])
    said = [first, learning.ONE_SEED] if first and first != learning.NOT_EVALUATED else [first] if first else []
    said = [*said, _outcome(summary), *_unsettled(summary), *_too_large(summary)]
    early = {name: one["iterations"] for name, one in summary["policies"].items() if one["ended"]}
    if early:
        ends = (f"{name} after {count} complete iteration{'s' * (count != 1)}" for name, count in early.items())
        said.append(f"Workers died, and these ended early: {', '.join(ends)}.")
    before = f"Incomplete, without {', '.join(summary['missing'])}: " if summary["missing"] else ""
    return before + " ".join(said)


def leaders(summary: RunSummary) -> list[str]:
    """Return the fastest policy or, if a model is trained, the first to reach the target accuracy, then its ties.

    A policy is tied if its time is equal, or if it is faster than the first with a probability of `wording.TIED`.
    """
    first = summary.get("first_to_target")
    if known_of(summary, "learning") and first is not None:
        return [first["policy"], *first["tied_with"]]
    return _tied_by_time(summary, _ranked_names(summary))


def _ranked_names(summary: RunSummary) -> list[str]:
    return [name for name in ranking(summary) if ranked(summary["policies"][name]) and name != summary["bound"]]


def ranking(summary: RunSummary) -> list[str]:
    """Return all policies, fastest first, then those that never reached a steady state, then the one-step oracle."""
    policies, trained = summary["policies"], known_of(summary, "learning")

    def place(name: str) -> tuple[Any, ...]:
        one, target = policies[name], trained.get(name, {}).get("time_to_target_s")
        late = (target is None, target) if target is not None else (True, 0.0)
        aside = one["ended"], not (ranked(one) or target is not None)
        return name == summary["bound"], *aside, *(late if trained else ()), _seconds(summary, name), name

    return sorted(policies, key=place)


def compares_exchanges(summary: RunSummary) -> bool:
    """Return whether all policies are fixed exchanges, which are ranked by mean iteration time, not by total time."""
    return any("chance_of_fastest_iteration" in one for one in known_of(summary, "judgement").values())


def evidence(summary: Mapping[str, Any]) -> str:
    """Return text on what a run's times rest on (measured, extrapolated or assumed), and the run's warnings."""
    known = Evidence(summary["evidence"], summary["because"]) if "evidence" in summary else None
    return run_setup.describe_evidence(known, summary.get("warnings", ()))


def ran_on(summary: Mapping[str, Any]) -> list[str]:
    """Return lines on the setting of a run, such as transport stack, device, link sharing and strategy."""
    return [
        f"Stack: {run_setup.describe_stack(summary['stack'])}",
        *([f"Device: {run_setup.describe_device(summary['device'])}"] if "device" in summary else []),
        *([f"Computing: {summary['computing']}"] if "computing" in summary else []),
        *([run_setup.describe_overlap(summary["overlap"])] if "overlap" in summary else []),
        *([f"Links are shared {run_setup.describe_sharing(summary['sharing'])}."] if "sharing" in summary else []),
        *([run_setup.describe_barrier(summary["barrier"])] if "barrier" in summary else []),
        *([run_setup.describe_strategy(**summary["strategy"])] if "strategy" in summary else []),
    ]


def run_notes(summary: RunSummary) -> list[str]:
    """Return notes below a run's answer, such as on policies without steady times, failures and memory use."""
    policies, winners = summary["policies"], leaders(summary)
    rates = {name: one for name, one in policies.items() if name != summary["bound"] and "throughput" in one}
    calibration = summary.get("calibration") or {"calls": []}
    apart = (
        wording.entering_apart(start_ranges(policies), winners, summary.get("starts_not_sampled")) if winners else []
    )
    return [
        *(f"{name} is not settled: {one['unsettled']}." for name, one in policies.items() if one["unsettled"]),
        *_other_densities(summary, policies),
        *apart,
        *what_happened(summary),
        *_exploration(summary),
        *cost_summary.throughput_sentences(rates),
        *(_local_stages(label, each) for label, each in summary.get("local_stages", {}).items() if each),
        *cost_summary.describe_memory(known_of(summary, "memory"), summary.get("memory")),
        *ran_on(summary),
        *(f"Call {', '.join(row)}" for row in run_setup.call_rows(calibration["calls"])),
        *run_setup.share_lines({name: one["shares"] for name, one in policies.items()}),
    ]


def _other_densities(summary: RunSummary, names: Iterable[str], most: float = math.inf) -> list[str]:
    """Return a sentence on each policy whose density differs from the one asked, but is at most `most` times it."""
    each = ((name, summary["policies"][name]) for name in names)
    return [
        f"{name} selects {100 * one['density'] * off:.3g} % of the entries, {100 * one['density']:.3g} % asked."
        for name, one in each
        if not one["unsettled"]
        and (off := one.get("means", {}).get("density_ratio"))
        and abs(off - 1) > MOVED
        and off <= most
    ]


def _local_stages(label: str, stages: Mapping[str, float]) -> str:
    each = sorted(stages.items(), key=lambda one: -one[1])
    return f"Local time of {label}: {', '.join(f'{stage} {format_seconds(seconds)}' for stage, seconds in each)}."


def what_happened(summary: RunSummary) -> list[str]:
    """Return sentences on initial iterations excluded from means, and on each interruption by failed workers."""
    said = []
    if first := summary["steady_from"]:
        settled = [name for name, one in summary["policies"].items() if one["settled_after"] == first]
        until = f", until {settled[0]} had settled" if settled else ""
        said.append(
            f"Means, percentiles and densities leave out the first {first} iteration{'s' * (first != 1)}{until}; "
            "whole jobs do not."
        )
    stops = ((name, stop) for name, one in summary["policies"].items() for stop in one["stops"])
    return said + [run_setup.describe_stop(name, stop, MAIN) for name, stop in stops]


def switching(summary: RunSummary) -> str | None:
    """Return the first of the leading policies that changed its exchange during the run; None if none did."""
    return next((name for name in leaders(summary) if summary["policies"][name]["switch_count"]), None)


def _seconds(summary: RunSummary, name: str) -> float:
    """Return the time that ranks a policy [s]: per iteration if every policy has one fixed exchange, else in total."""
    one = summary["policies"][name]
    mean = one.get("means", {}).get("iteration_s") if compares_exchanges(summary) else None
    return float(one["simulated_s"] if mean is None else mean)


def _outcome(summary: RunSummary) -> str:
    """Return a sentence on the fastest or tied policies, and on their lead over the next policy."""
    order = sorted(_ranked_names(summary), key=lambda name: _seconds(summary, name))
    if not order:
        return _nobody(summary)
    winners = _tied_by_time(summary, order)
    seconds = {name: _seconds(summary, name) for name in order}
    tied = f"{wording.alternatives_text(winners, _NAMED)}: tied" if len(winners) > 1 else ""
    if compares_exchanges(summary) and tied:
        ends = [seconds[name] for name in winners]
        unit, factor = common_unit("time", [min(ends)])
        between = "-".join(dict.fromkeys(three_digits(one / factor) for one in (min(ends), max(ends))))
        return f"{tied}, {between} {unit} an iteration."
    first, later = order[0], [name for name in order if name not in winners]
    took = _duration_text(summary, first)
    if tied:
        more = wording.lead_text(seconds[winners[1]] / seconds[first]) if seconds[first] else "<1 %"
        more += " as long" if more.endswith("x") else " more"
        same = seconds[winners[1]] <= (1 + TIE) * seconds[first]
        return f"{tied}. {first}: {took}" + (f", {winners[1]} the same." if same else f", {winners[1]} {more}.")
    if later and seconds[first]:
        took += f", {wording.lead_text(seconds[later[0]] / seconds[first])} faster than {later[0]}"
        took += f" ({interval_text(seconds[later[0]])})"
    return f"{first}: {took}."


def _tied_by_time(summary: RunSummary, order: Sequence[str]) -> list[str]:
    winner = summary["winner"]
    same = () if winner is None else (winner["policy"], *winner["tied_with"])
    return [name for name in order if name in (*order[:1], *same)]


def _nobody(summary: RunSummary) -> str:
    """Return the sentence for a run in which no policy could be ranked."""
    policies, bound = summary["policies"], summary["bound"]
    if bound is not None and set(policies) == {bound}:
        return f"({bound}): {_duration_text(summary, bound)}; nobody can run it, and nothing was compared with it."
    return "No policy got to its end." if any(one["ended"] for one in policies.values()) else "No policy has settled."


def _unsettled(summary: RunSummary) -> list[str]:
    found = {name: one["unsettled"] for name, one in summary["policies"].items() if one["unsettled"]}
    if len(found) == 1:
        return [f"{name} is not settled: {why}." for name, why in found.items()]
    return [f"Not settled: {wording.listed([*found])}."] if found else []


def _too_large(summary: RunSummary) -> list[str]:
    """Return a sentence on policies that need more memory than the device has; empty if all fit."""
    limit = (summary.get("memory") or {}).get("limit_B")
    peaks = {name: one["peak_B"] for name, one in known_of(summary, "memory").items() if not one.get("fits", True)}
    each = ", ".join(f"{name} needs {format_bytes(peak)}" for name, peak in peaks.items() if name != summary["bound"])
    return [f"Too large for the {format_bytes(limit)} of a device: {each}."] if each and limit else []


def _duration_text(summary: RunSummary, name: str) -> str:
    """Return a policy's time with confidence interval as text, per iteration or for the whole job."""
    one = summary["policies"][name]
    known: Mapping[str, Any] = one.get("judgement", {})
    if compares_exchanges(summary):
        return f"{interval_text(_seconds(summary, name), *(known.get(end) for end in _EACH))} an iteration"
    text = interval_text(one["simulated_s"], known.get("low_s"), known.get("high_s"))
    return f"{text} for {one['iterations']:,} iteration{'s' * (one['iterations'] != 1)}"


def _row(summary: RunSummary, name: str) -> Row:
    one, trained = summary["policies"][name], learning_columns(summary)
    known: Mapping[str, Any] = one.get("judgement", {})
    regret, spent = one["regret"], one.get("spent") or {}
    choice, count = max(one["choices"].items(), key=lambda item: item[1], default=(None, one["iterations"]))
    share = count / max(one["iterations"], 1)
    money = (spent.get("money") or {}).get("together")
    means = dict(one.get("means", {}))
    if means.get("actual_density") is None:
        # Nothing is selected, as of sharded steps.
        means.pop("build_up", None)
    return {
        "policy": f"({name})" if name == summary["bound"] else name,
        **policy_columns(one),
        **{end: known.get(end) for end in _EACH if end in known},
        "to_best": _to_best(summary, name),
        "chance": known.get("chance_of_fastest_iteration", known.get("chance_to_be_fastest")),
        "regret_share": None if regret is None or name == summary["bound"] else regret["fraction"],
        **means,
        "most_used": choice and (choice if share == 1 else f"{choice} {100 * share:.0f} %"),
        "memory_B": one.get("memory", {}).get("peak_B"),
        **{column: spent[column] for column in ("step_s", "utilisation") if spent},
        "money": None if money is None else cost_summary.format_amount(money, summary["prices"]["currency"]),
        **trained.get(name, {}),
    }


def _to_best(summary: RunSummary, name: str) -> str | None:
    one, winners, trained = summary["policies"][name], leaders(summary), known_of(summary, "learning")
    target = {policy: own["time_to_target_s"] for policy, own in trained.items()}
    if trained and any(value is not None for value in target.values()):
        if target[name] is None:
            return "not reached"
        seconds, best = target[name], target[winners[0]] if winners else None
    elif not ranked(one):
        return "ended early" if one["ended"] else "not settled"
    else:
        seconds, best = _seconds(summary, name), _seconds(summary, winners[0]) if winners else None
    return wording.to_best(name, winners, seconds, best)


def _columns(summary: RunSummary) -> list[Column]:
    shown = [*table_columns("run exchanges" if compares_exchanges(summary) else "run jobs")]
    if known_of(summary, "learning"):
        moved = [one._replace(priority=one.priority + 2) for one in shown if one.name not in ("policy", "to_best")]
        target, accuracy, *others = table_columns("run learning")
        shown = [shown[0], target, shown[2], accuracy, *moved, *others]
    local = summary.get("strategy", {}).get("steps", 1) > 1 or "prices" in summary
    if all(len(one["choices"]) == 1 for one in summary["policies"].values()):
        shown = [one for one in shown if one.name != "most_used"]
    return [
        *shown,
        *(one for one in table_columns("run further") if local or one.name not in ("step_s", "utilisation", "money")),
    ]


def _filled(rows: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """Return the columns that have a value in at least one row."""
    return [one for one in columns if any(row.get(one.name) is not None for row in rows)]


def _depends_on(summary: RunSummary) -> str:
    """Return text on what may change the answer: a policy that switches, other settings, and partial overlap."""
    said = []
    if (changed := switching(summary)) is not None:
        first, count = summary["policies"][changed]["switches"][0], summary["policies"][changed]["switch_count"]
        often = "" if count == 1 else f" (the first of {count} changes)"
        said.append(f"{changed} changes to {first['to']} at {format_seconds(first['at_s'])}{_cause(first)}{often}")
    said += [
        f"{one['field']}={one['other']}: then {one['first']}, {wording.lead_text(one['lead'])} ahead"
        for one in summary.get("depends_on", ())
        if one["lead"] is not None
    ]
    return " ".join(filter(None, [run_setup.mixed_overlap(summary.get("overlap")), "; ".join(said)]))


def _cause(switch: Fields) -> str:
    """Return text on which of bandwidth, latency and density changed most when a policy switched exchanges."""
    found = [(0.0, "")]
    for name, end, write in (
        ("bandwidth", "_Bps", format_bandwidth), ("latency", "_s", format_seconds), ("density", "", "{:.3g}".format)
    ):  # fmt: skip
        before, now = switch[f"{name}_before{end}"], switch[name + end]
        if before is not None and now is not None and before != now:
            size = math.inf if not before or not now else abs(math.log(now / before))
            found.append((size, f", when {name} {'falls' if now < before else 'rises'} to {write(now)}"))
    size, text = max(found, key=lambda one: one[0])
    return text if size >= _NOTABLE else ""


def _exploration(summary: RunSummary) -> Iterator[str]:
    """Yield a sentence on each policy that explored: its time and iterations for exploring, and its mean density."""
    for name, one in summary["policies"].items():
        count, seconds = one["exploration"]["iterations"], one["exploration"]["seconds"]
        if count:
            yield (
                f"{name} spent {format_seconds(seconds)} of its time on {count} iterations of exploration; it trained "
                f"with a density of {one['density']:.2g} on average."
            )


def _plots(summary: RunSummary, results: Mapping[str, PolicyResult]) -> dict[str, Callable[[], Plot]]:
    """Return functions that draw the figures of the report, by name; empty if no iteration is complete."""
    iterations = joined(results, lambda one: one.iterations)
    if not len(with_exploration(iterations)):
        return {}

    def draw(name: str) -> Plot:
        from simnet.report import figures

        (found,) = figures.render(iterations, summary["bound"], [name])
        return found

    trained = ["learning"] if known_of(summary, "learning") else []
    names = [*trained, "iteration_time", "breakdown", "choices"]
    return {name: partial(draw, name) for name in names}
