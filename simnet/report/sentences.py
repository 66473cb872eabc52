"""A summary for people: the sentence that says who won, and the cells of its tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from simnet.base.units import format_bandwidth, format_bytes, format_seconds, format_within
from simnet.cost_models.evidence.conditions import Evidence
from simnet.report import cost_summary, learning, run_events, wording
from simnet.report.columns import Fields
from simnet.report.paired import TIE, start_ranges
from simnet.report.run_summary import PHASES, PolicySummary, RunSummary, known_of, ranked
from simnet.report.wording import listed
from simnet.training.job.record import MAIN

Key: TypeAlias = str | float | None
"""By what a cell of a table is sorted; None comes last."""

HEADINGS = (
    *("policy", "simulated time", "vs best", "fastest with", "bytes sent"),
    *(*PHASES, "iteration p50, p90, p99", "exchange p50, p90, p99", "regret", "most used choice", "switches"),
)
"""Of the summary table; see `rows`."""

# A change smaller than this is not offered as what a switch coincided with.
_NOTABLE = 0.05


def sentence(summary: RunSummary) -> str:
    """Say who won, by how much over the runner-up, and when the winner changed its choice; and who explored.

    Where a model was trained, who reached the target first comes first; else that accuracy is ignored comes last.

    Examples
    --------
    >>> import pandas as pd
    >>> from simnet.report.run_summary import summarize
    >>> fast = pd.DataFrame({"iteration": [0, 1], "start_s": [0.0, 1.0], "iteration_s": 1.0, "compute_s": 0.5,
    ...     "select_s": 0.0, "communicate_s": 0.5, "wait_s": 0.0, "bytes_sent_B": 1e6, "choice": ["AG", "ART-Ring"],
    ...     "density": 0.01, "latency_s": 0.01, "bandwidth_Bps": [1.25e9, 1.25e8]})
    >>> slow = fast.assign(start_s=[0.0, 1.25], iteration_s=1.25, choice="AG")
    >>> summary = summarize({"flexible": fast, "AG": slow})
    >>> print(sentence(summary))  # doctest: +NORMALIZE_WHITESPACE
    flexible was fastest: 2 s for 2 iterations, 20 % less than AG, the runner-up; it switched once, from AG to
    ART-Ring at iteration 1 (1 s), when bandwidth fell to 1 Gbit/s. Accuracy is ignored.
    """
    trained = known_of(summary, "learning")
    first = learning.learning_headline(trained, summary["bound"])
    once = learning.ONE_SEED if first else ""
    winner, ranges = summary["winner"], start_ranges(summary["policies"])
    winners = [] if winner is None else [winner["policy"], *winner["tied_with"]]
    outcome = [_outcome_text(summary), *wording.entering_apart(ranges, winners, summary.get("starts_not_sampled"))]
    said = " ".join(
        one for one in (first, once, *outcome, *_unsettled_lines(summary), *_exploration_lines(summary)) if one
    )
    if not trained:
        said += f" {learning.IGNORED}"
    if summary["missing"]:
        said = f"Incomplete, without {', '.join(summary['missing'])}: {said}"
    early = [name for name, one in summary["policies"].items() if one["ended"]]
    if early:
        done = {name: summary["policies"][name]["iterations"] for name in early}
        ends = (f"{name} after {count} complete iteration{'s' * (count != 1)}" for name, count in done.items())
        said += f" Workers died, and these ended early: {', '.join(ends)}."
    return said


def what_happened(summary: RunSummary) -> list[str]:
    """Say which iterations are no part of means; and of every stop who died when, who waited, and how it went on."""
    said = []
    if first := summary["steady_from"]:
        settled = [name for name, one in summary["policies"].items() if one["settled_after"] == first]
        until = f", until {settled[0]} had settled" if settled else ""
        said.append(
            f"Percentiles and densities leave out the first {first} iteration{'s' * (first != 1)}{until}; "
            "times and bytes do not."
        )
    stops = ((name, stop) for name, one in summary["policies"].items() for stop in one["stops"])
    return said + [run_events.describe_stop(name, stop, MAIN) for name, stop in stops]


def evidence(summary: Mapping[str, Any]) -> str:
    """Say how well the times of a run are known; empty if it does not say."""
    return Evidence(summary["evidence"], summary["because"]).sentence() if "evidence" in summary else ""


def colocated_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """Return the cells of the table of the jobs that shared the network; empty for a job alone."""
    return run_events.share_rows({name: one["shares"] for name, one in summary["policies"].items()})


def cost_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """Return the inner-step costs of each policy, if known."""
    return cost_summary.cost_cells(known_of(summary, "spent"), summary.get("prices"))


def memory_of(summary: RunSummary) -> dict[str, Fields]:
    """Return the memory of a worker under each policy, if known."""
    return known_of(summary, "memory")


def learning_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """Return the cells of the table of how the training went; empty where nothing was trained."""
    return learning.learning_cells(known_of(summary, "learning"))


def rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """Return the cells of the summary table, the fastest policy first."""
    return [tuple(text for text, _ in row) for row in cells(summary)]


def cells(summary: RunSummary) -> list[list[tuple[str, Key]]]:
    """Return the same, each with what it is sorted by."""
    return [_cells(summary, name) for name in ranking(summary)]


def ranking(summary: RunSummary) -> list[str]:
    """Return the policies, the fastest first, then those that did not settle, then those that ended early.

    Among equals the bound comes first, then it goes by name.
    """
    policies, bound = summary["policies"], summary["bound"]

    def place(name: str) -> tuple[Any, ...]:
        one = policies[name]
        return one["ended"], not ranked(one), one["simulated_s"], name != bound, name

    return sorted(policies, key=place)


def percent(fraction: float, sign: str = "") -> str:
    """Return a fraction in percent with two or more significant digits; `sign` as in a format specification.

    Examples
    --------
    >>> percent(0.184), percent(0.0345, "+"), percent(-0.0001, "+"), percent(12.5, "+"), percent(0.0)
    ('18 %', '+3.5 %', '-0.01 %', '+1250 %', '0 %')
    """
    value = 100 * fraction
    if abs(value) >= 9.95:
        return f"{value:{sign}.0f} %"
    return f"{value:{sign}.2g} %" if abs(value) >= 0.005 else "0 %"


def switching(summary: RunSummary) -> str | None:
    """Return the policy whose changes of choice matter: the winner, or one tied with it; None if it made none."""
    winner, policies = summary["winner"], summary["policies"]
    if winner is None:
        return None
    return next((name for name in (winner["policy"], *winner["tied_with"]) if policies[name]["switch_count"]), None)


def _exploration_lines(summary: RunSummary) -> Iterator[str]:
    """Describe the cost of exploration, and the share of the gradient that exploring policies sent."""
    for name, one in summary["policies"].items():
        count, seconds = one["exploration"]["iterations"], one["exploration"]["seconds"]
        if count:
            yield (
                f"{name} spent {format_seconds(seconds)} of its time on {count} iterations of exploration; it trained "
                f"with a density of {one['density']:.2g} on average."
            )


def _unsettled_lines(summary: RunSummary) -> Iterator[str]:
    """Say of policies that did not settle why."""
    for name, one in summary["policies"].items():
        if one["unsettled"] is not None:
            yield f"{name} has not settled, and has no rank: {one['unsettled']}."


def _outcome_text(summary: RunSummary) -> str:
    winner, policies = summary["winner"], summary["policies"]
    if winner is None:
        bound = summary["bound"]
        name, one = next(iter(policies.items())) if bound is None else (bound, policies[bound])
        if not any(ranked(each) for each in policies.values()):
            return "No policy got to the end." if one["ended"] else "No policy has settled."
        return (
            f"{name} took {_duration_text(one)}; it is the bound, and no policy that can be run was compared with it."
        )
    name = winner["policy"]
    if winner["tied_with"]:
        tied = listed([name, *winner["tied_with"]])
        alike = policies[winner["tied_with"][-1]]["simulated_s"] <= (1 + TIE) * policies[name]["simulated_s"]
        took = _duration_text(policies[name], each=alike)
        result = f"{tied} are tied as fastest: {took if alike else f'{name} takes {took}'}"
        changed = switching(summary)
        story = "none of them changed its choice" if changed is None else f"{changed} {_change_text(policies[changed])}"
    else:
        chances = {one: known["chance_to_be_fastest"] for one, known in known_of(summary, "judgement").items()}
        first = "took" if winner["runner_up"] is None else f"was fastest{wording.within_error(name, chances)}:"
        result = f"{name} {first} {_duration_text(policies[name])}"
        story = f"it {_change_text(policies[name])}"
    if winner["runner_up"] is not None and winner["margin_fraction"] is not None:
        result += f", {percent(winner['margin_fraction'])} less than {winner['runner_up']}, the runner-up"
    return f"{result}; {story}."


def _cells(summary: RunSummary, name: str) -> list[tuple[str, Key]]:
    one = summary["policies"][name]
    regret, spread = one["regret"], one["spread"]
    lost = "-" if regret is None else f"{format_seconds(regret['seconds'])} ({percent(regret['fraction'], '+')})"
    if name == summary["bound"] and not one["ended"]:
        lost = "the bound"
    chance = one["judgement"]["chance_to_be_fastest"] if "judgement" in one else None
    choice, count = max(one["choices"].items(), key=lambda item: item[1], default=(None, one["iterations"]))
    part = "" if count == one["iterations"] else f" ({100 * count / one['iterations']:.0f} %)"
    return [
        (name, name),
        (_interval_text(one), one["simulated_s"]),
        (_versus(summary, name), one["simulated_s"]),
        ("-" if chance is None else percent(chance), chance),
        (format_bytes(one["total_bytes_sent_B"]), one["total_bytes_sent_B"]),
        *((_phase_text(one, phase), one["breakdown_s"][phase]) for phase in PHASES),
        *(_percentiles(None if spread is None else spread[what]) for what in ("iteration_s", "exchange_s")),
        (lost, None if regret is None else regret["seconds"]),
        (f"{choice or '-'}{part}", choice),
        (str(one["switch_count"]), one["switch_count"]),
    ]


def _percentiles(times: Mapping[str, float] | None) -> tuple[str, Key]:
    return ("-", None) if times is None else (", ".join(map(format_seconds, times.values())), times["p99"])


def _versus(summary: RunSummary, name: str) -> str:
    one, winner = summary["policies"][name], summary["winner"]
    if not ranked(one):
        return "ended early" if one["ended"] else "not settled"
    if winner is None:
        return "-"
    if name in (winner["policy"], *winner["tied_with"]):
        return "tied" if winner["tied_with"] else "best"
    best = summary["policies"][winner["policy"]]["simulated_s"]
    return percent(one["simulated_s"] / best - 1, "+") if best else "-"


def _phase_text(one: PolicySummary, phase: str) -> str:
    seconds = one["breakdown_s"][phase]
    if phase == "select":
        return format_within(seconds, one["total_select_low_s"], one["total_select_high_s"])
    return format_seconds(seconds)


def _interval_text(one: PolicySummary) -> str:
    """Return the time of a policy with its interval."""
    if "judgement" not in one:
        return format_seconds(one["simulated_s"])
    low, high = (math.nan if end is None else end for end in (one["judgement"]["low_s"], one["judgement"]["high_s"]))
    return format_within(one["simulated_s"], low, high)


def _duration_text(one: PolicySummary, each: bool = False) -> str:
    plural = "" if one["iterations"] == 1 else "s"
    return f"{_interval_text(one)} {'each ' if each else ''}for {one['iterations']} iteration{plural}"


def _change_text(one: PolicySummary) -> str:
    if not one["switch_count"]:
        return f"kept to {next(iter(one['choices']))} throughout"
    first, count = one["switches"][0], one["switch_count"]
    often = "once," if count == 1 else f"{count} times, first"
    when = f"at iteration {first['iteration']} ({format_seconds(first['at_s'])})"
    return f"switched {often} from {first['from']} to {first['to']} {when}{_switch_cause(first)}"


def _switch_cause(switch: Fields) -> str:
    """Name what had changed most, in proportion, since the choice now left had been made."""
    changes = [
        ("bandwidth", switch["bandwidth_before_Bps"], switch["bandwidth_Bps"], format_bandwidth),
        ("latency", switch["latency_before_s"], switch["latency_s"], format_seconds),
        ("density", switch["density_before"], switch["density"], lambda value: f"{value:.3g}"),
    ]
    found = [
        (math.inf if not before or not now else abs(math.log(now / before)), name, before, now, write)
        for name, before, now, write in changes
        if before is not None and now is not None and before != now
    ]
    size, name, before, now, write = max(found, key=lambda one: one[0], default=(0.0, "", 0.0, 0.0, str))
    if size < _NOTABLE:
        return ""
    return f", when {name} {'fell' if now < before else 'rose'} to {write(now)}"
