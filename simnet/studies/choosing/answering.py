"""Summary of a ranking of exchanges, which is the answer of `simnet choose`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simnet.base.errors import InputError
from simnet.base.units import finite, format_bandwidth, format_seconds
from simnet.cost_models.evidence.relative_iterations import accuracy_text
from simnet.policies import Fixed, density_at
from simnet.report import run_setup, wording
from simnet.report.cost_summary import throughput
from simnet.report.paired import START_COLUMNS
from simnet.report.summary import Column, Row, Summary, interval_text, percent, table_columns
from simnet.scenario.settings import link_key
from simnet.studies import assumptions
from simnet.studies.choosing.closed_forms import Flip
from simnet.studies.choosing.forecast import Gain, JobForecast
from simnet.studies.choosing.ranking import Ranking
from simnet.studies.job_totals import interval_ends

COLUMNS = table_columns("choose")
"""Columns of the table."""

_PARTS = ("compute_s", "select_s", "select_low_s", "select_high_s")

# Characters of an answer.
_TWO_LINES = 154
# Rivals that it names.
_NAMED = 2
# Where another exchange is the fastest, by the direction of a flip.
_BEYOND = {"down": "below", "up": "above"}


class RankingSummary(Summary):
    """Summary of a ranking. Exchanges that take exactly the same times share a row of its table."""

    def shown(self) -> tuple[Sequence[Column], Sequence[Row]]:
        """Return the table, in which exchanges that take exactly the same times share a row."""
        alike = self.details["alike"]
        return self.columns, [{**row, "exchange": _with_alike(row["exchange"], alike)} for row in self.rows]


def _with_alike(label: str, alike: Mapping[str, Sequence[str]]) -> str:
    """Return a label followed by the labels of exchanges that take exactly the same times."""
    same = alike.get(label, ())
    more = [f"{len(same) - _NAMED} more"] * (len(same) > _NAMED)
    return f"{label} (= {', '.join([*same[:_NAMED], *more])})" if same else label


def ranking_summary(found: Ranking) -> Summary:
    """Return the summary of a ranking of exchanges and policies."""
    mixed, asked = run_setup.mixed_overlap(found.overlap), _misjudged_text(found) if found.asked_off else ()
    met = {row.label: row.sample for row in found.rows}
    names = {found.best.label, *[*found.tied][:_NAMED]}
    first = {row.label: row.candidate for row in found.rows if row.label in names and row.candidate.scheme}
    return RankingSummary(
        answer=_answer(found),
        columns=COLUMNS,
        rows=list(_rows(found)),
        evidence=run_setup.describe_evidence(found.evidence, [*found.loaded.warnings, *found.run.warnings]),
        assumed=f"{assumptions.assumed_text(found.loaded, found.run, met=met)}.",
        to_accuracy=accuracy_text(assumptions.iterations_to_accuracy(found.run.job, first)),
        depends_on=" ".join(filter(None, [mixed, *asked, _depends_text(found)])),
        next=_next_text(found),
        details=_details(found),
        notes=[
            *_notes(found),
            *([] if mixed or found.overlap is None else [run_setup.describe_overlap(found.overlap)]),
            *assumptions.dependence_lines(found.defaults or ()),
        ],
    )


def _answer(found: Ranking) -> str:
    """Return a text on the fastest exchange, its probability, and its lead over the best dense exchange."""
    best, chance = found.best, dict(zip((row.label for row in found.rows), found.likely.fastest.tolist(), strict=True))
    tied = [row.label for row in found.rows if row.label in found.tied][:_NAMED]
    alike = [*found.found.alike.get(best.label, ())]
    each = best.seconds / best.iterations, *interval_ends(found.likely, 0, best.iterations)
    time = f"{interval_text(*each)} an iteration"
    if len(found.rows) == 1:
        if alike:
            return f"{' or '.join([best.label, *alike])}: tied, {time}."
        return f"{best.label}: {time}{'; no other exchange has settled' * bool(found.found.aside)}."
    if tied:
        more = len(found.tied) - len(tied)
        odds = wording.listed([percent(chance[one]) for one in (best.label, *tied) if one in chance])
        names = " or ".join([", ".join([best.label, *tied, *alike][:-1]), [best.label, *tied, *alike][-1]])
        names += f" (and {more} more)" if more else ""
        said = f"{names}: tied ({odds} to be fastest). {best.label}: {time}"
    else:
        second = found.rows[1]
        lead = wording.lead_text(second.seconds / best.seconds) if best.seconds else "all"
        said = f"{' or '.join([best.label, *alike])}: {time}, {lead} before {second.label}; "
        said += f"fastest with {percent(chance[best.label])}"
    whole = f"{said}{_against_dense(found)}."
    return whole if len(whole) <= _TWO_LINES else f"{said}."


def _against_dense(found: Ranking) -> str:
    """Return a text on the lead of the best compressed exchange over the best dense exchange."""
    dense, sparse = found.dense, next((row for row in found.rows if row.kind == "sparse"), None)
    if dense is None or sparse is None:
        return ""
    ratio = dense.seconds / sparse.seconds
    each = format_seconds(dense.seconds / dense.iterations)
    if sparse is found.best:
        return f", {wording.lead_text(ratio)} faster than the best dense exchange ({dense.label}, {each})"
    return f"; compression does not pay: {sparse.label} takes {wording.lead_text(1 / ratio)} longer"


def _rows(found: Ranking) -> Iterator[dict[str, Any]]:
    """Yield table rows, the fastest exchange first, and last the exchanges that never reach a steady state."""
    first = [found.best.label, *found.tied]
    for place, row in enumerate(found.rows):
        low, high = interval_ends(found.likely, place)
        least, most = interval_ends(found.likely, place, row.iterations)
        yield {
            **_row(found, row),
            "low_s": low,
            "high_s": high,
            "iteration_low_s": least,
            "iteration_high_s": most,
            "to_best": wording.to_best(row.label, first, row.seconds, found.best.seconds),
            "chance_to_be_fastest": float(found.likely.fastest[place]),
            "regret_of_job": finite(float(found.likely.regret[place])),
        }
    for row in found.found.aside:
        yield {**_row(found, row), "to_best": "not settled", "unsettled": row.unsettled}


def _row(found: Ranking, row: JobForecast) -> dict[str, Any]:
    low, high = row.spread()
    starts = found.found.starts.around({row.label: row.seconds}).get(row.label, ())
    memory = found.held.each.get(row.label)
    seconds, compute, select = map(row.column, ("iteration_s", "compute_s", "select_s"))
    exposed = np.maximum(seconds - compute - select, 0.0) * row.column("stands_for")
    return {
        "exchange": row.label,
        "scheme": row.candidate.scheme or None,
        "options": dict(row.candidate.options),
        "kind": row.kind if row.candidate.scheme else "policy",
        "job_s": row.seconds,
        **dict(zip(START_COLUMNS, starts, strict=False)),
        "sampling_error_s": finite(row.error),
        "iterations_simulated": row.simulated,
        "over_the_fastest": found.over(row),
        "mean_iteration_s": row.seconds / row.iterations,
        "iteration_5_percent_s": low,
        "iteration_95_percent_s": high,
        **{f"mean_{name}": row.mean(name) for name in _PARTS},
        "mean_communicate_and_wait_s": float(exposed.sum()) / row.iterations,
        "mean_bytes_sent_per_worker_B": row.sent,
        "memory_B": None if memory is None else memory.peak,
        **throughput(found.loaded.samples, row.seconds / row.iterations),
        **found.held.of(row.label),
        **({} if row.candidate.scheme else {"shares_of_iterations": row.shares()}),
    }  # fmt: skip


def _depends_text(found: Ranking) -> str:
    """Return a text on values of latency, density and the like beyond which another exchange is fastest."""
    if found.flips is None:
        return ""
    if not found.flips:
        return "nothing near: no link, density or number of workers changes the first place."
    sides: dict[str, dict[str, list[str]]] = {}
    for one in found.flips:
        own = sides.setdefault(one.exchange, {"down": [], "up": []})
        own[one.direction].append(_flip_text(one))
    parts = []
    for label, own in sides.items():
        texts = [f"{_BEYOND[way]} {' or '.join(values)}" for way, values in own.items() if values]
        parts.append(f"{label} {', '.join(texts)}")
    return f"{'; '.join(parts)}."


def _flip_text(one: Flip) -> str:
    """Return the last value, such as a latency, at which the decision holds."""
    if one.quantity == "workers":
        return f"{one.value + (-1 if one.direction == 'up' else 1):.0f} workers"
    return "a density of " * (one.quantity == "density") + assumptions.FORMATS[one.quantity](one.value)


def _next_text(found: Ranking) -> str:
    kind, topology = found.loaded.config.network.topology.choice
    rate = found.best.column("bandwidth_Bps")[0]
    below, here, above = (format_bandwidth(factor * rate).replace(" ", "") for factor in (0.1, 1.0, 10.0))
    if rate == math.inf:
        return "--grid workers=2,4,8"
    if kind == "star" and found.flips is not None:
        return f"--grid bandwidth={below}:{above}:9:log   where the answer flips"
    if any(not row.complete for row in found.rows):
        return "--exact   simulates all iterations"
    try:
        link_key(kind, topology.arguments(), "bandwidth", "--grid")
    except InputError:
        return "--grid density=0.1%,1%,10%"
    return f"--grid bandwidth={below},{here},{above}"


def _notes(found: Ranking) -> list[str]:
    """Return notes on a ranking as text lines: ties, refused exchanges, sampling, memory, and sources of costs."""
    decision, run = found.found, found.run
    seconds = {row.label: row.seconds for row in found.rows}
    among = [row.candidate for row in (*decision.rows, *decision.aside)]
    said = wording.entering_apart(
        decision.starts.around(seconds),
        [found.best.label, *(label for label in seconds if label in found.tied)],
        decision.starts.not_sampled,
    )
    for label, alike in decision.alike.items():
        said.append(f"{wording.listed([label, *alike])} are tied: their iterations take the same times.")
    if decision.per_stretch is not None:
        shares = ", ".join(f"{label} {percent(share)}" for label, share in decision.per_stretch.policy.shares().items())
        said.append(
            f"The fastest exchange of each iteration would save {percent(decision.per_stretch.saved)}; in this share "
            f"of the iterations it would be: {shares}."
        )
    if decision.usual:
        said += [f"A flexible policy would save {percent(one.saved)}." for one in decision.flexible]
    said += [f"{label} cannot do the job: {why}" for label, why in decision.refused.items()]
    if sampled := [row.label for row in found.rows if not row.complete]:
        said.append(
            f"Of {len(sampled)} rows a sample of iterations was simulated, spread over the job; --exact has all."
        )
    if not found.asked_off:
        said += _misjudged_text(found)
    said += [f"Warning: {one}" for one in assumptions.sample_warnings(run.job, map(Fixed, among))]
    said += assumptions.code_cost_lines(run.job.device, among, run.job.source.workers)
    unsettled = [f"{row.label} has not settled, and has no rank: {row.unsettled}." for row in decision.aside]
    return [*said, *assumptions.compute_time_lines([found.loaded.computing]), *unsettled, *found.held.sentences()]


def _misjudged_text(found: Ranking) -> list[str]:
    """Return a text on the time lost by the chosen exchange if latency and bandwidth are other than assumed."""
    one = found.misjudged
    if one is None:
        return ["--link-uncertainty has no effect: no closed form holds for the first two."] * found.asked_off
    if one.factor <= 1:
        return []
    said = f"With links up to {one.factor:g}x off, {found.found.best.label} stays first"
    if one.worst_regret <= 0:
        return [f"{said}."]
    where = f"at {format_seconds(one.latency_s)} and {format_bandwidth(one.bandwidth_Bps)}"
    worst = f"at worst it takes {percent(one.worst_regret)} longer than {one.exchange}, {where}"
    return [f"{said} in {percent(one.holds)} of the range; {worst}."]


def _details(found: Ranking) -> dict[str, Any]:
    """Return the JSON fields of a ranking, except its rows. Names end in units."""
    job, decision, off = found.run.job, found.found, found.misjudged
    compute_time = found.loaded.compute_time
    return {
        "question": {
            "scenario": found.loaded.name,
            "workers": job.source.workers,
            "parameters": int(job.source.true_parameters),
            "density": density_at(job.density, job.iterations - 1),
            "iterations": job.iterations,
            "seed": found.loaded.config.seed,
            "stack": run_setup.stack_name(job.network(0)),
            "device": job.device.name,
            "barrier": job.barrier,
            "passes_s": job.compute.mean,
            "compute_time": None if compute_time is None else compute_time.figures(),
        },
        "decision": found.best.label,
        "sure": bool(found.likely.sure[0]),
        "tied_with": found.tied_with,
        "alike": {label: list(alike) for label, alike in decision.alike.items()},
        "gain_over_dense": finite(decision.gain_over_dense()),
        "evidence_level": found.evidence.level,
        "best_of_each_iteration": None if decision.per_stretch is None else _gain(decision.per_stretch),
        "flexible": {one.policy.label: _gain(one) for one in decision.flexible},
        **({"starts_not_sampled": dict(decision.starts.not_sampled)} if decision.starts.not_sampled else {}),
        "refused": dict(decision.refused),
        "overlap": found.overlap,
        "defaults": found.defaults,
        "flips": None if found.flips is None else [one._asdict() for one in found.flips],
        "misjudged": None if off is None else off._asdict(),
        "memory": found.held.figures() | {"unsettled": {row.label: row.unsettled for row in decision.aside}},
    }  # fmt: skip


def _gain(one: Gain) -> dict[str, Any]:
    return {
        "job_s": one.policy.seconds,
        "fixed_job_s": one.fixed.seconds,
        "saved": one.saved,
        "iterations_simulated": one.policy.simulated,
        "shares_of_iterations": one.policy.shares(),
    }
