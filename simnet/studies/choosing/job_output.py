"""A decision on a whole job for people and for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from simnet.base.units import finite, format_bytes, format_seconds, format_within, interval_figures
from simnet.cost_models.costs.computing import PassTime, SampleCount
from simnet.cost_models.evidence.chances import Chances
from simnet.cost_models.evidence.conditions import NEVER_COMPARED, Evidence
from simnet.report import learning, run_setup, wording
from simnet.report.columns import Fields
from simnet.report.cost_summary import throughput, throughput_sentences
from simnet.report.paired import START_COLUMNS, TIE
from simnet.report.tables import empty_table
from simnet.studies.assumptions import Dependence
from simnet.studies.choosing.decision import Flip
from simnet.studies.choosing.forecast import Forecast, Gain, WholeJob
from simnet.studies.choosing.memory_filter import HEADING, NOTHING, Held
from simnet.studies.choosing.output import advice, few_kept, flip_figures, flips_told, lead, share, sole_recommendation
from simnet.studies.choosing.sampled_exchanges import KEPT_EACH
from simnet.training.job.job import Job, job_buckets
from simnet.training.job.sampling import RecordedExchanges

_HEADINGS = (
    "exchange", "whole job", "over the\nfastest", "chance to\nbe fastest", "regret\nof job",
    "an iteration\n(5 % to 95 %)", "compute", "select", "communicate",
    "sent by\na worker", "iterations\nsimulated", HEADING,
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What the decision is about.

    Parameters
    ----------
    name : str
        The scenario.
    seed : int
        Its seed.
    job : Job
        Its job.
    density : float
        Its density in the end.
    notes : tuple of str
        What else is said of it.
    warnings : tuple of str
        For which exchanges its sample is too small.
    compute_time : Computing, optional
        How long its model computes on its device, where nobody gave that.
    samples : Samples, optional
        What all workers go through in an iteration.
    evidence : Evidence
        How well the times of the job are known.
    overlap : Fields, optional
        Which exchanges overlap the backward pass, and what that decides.
    depends : tuple of Dependence
        The defaults that it has, and what others would do to the first place.
    flips : tuple of Flip or None
        Links, densities and workers with another first place; None where closed forms do not say it.
    """

    name: str
    seed: int
    job: Job
    density: float
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    compute_time: PassTime | None = None
    samples: SampleCount | None = None
    evidence: Evidence = NEVER_COMPARED
    overlap: Fields | None = None
    depends: tuple[Dependence, ...] = ()
    flips: tuple[Flip, ...] | None = None

    def throughput(self, row: Forecast) -> Fields | None:
        """Return what all workers go through in a second with an exchange; None where it is not known."""
        return None if self.samples is None else throughput(self.samples, row.seconds / row.iterations)


def title(asked: Asked) -> str:
    """Return what is asked, on one line."""
    job = asked.job
    gradient = f"{format_bytes(4.0 * job.source.true_parameters)} gradient, density {100 * asked.density:.3g} %"
    stack = run_setup.stack_name(job.network(0))
    iterations = f"{job.iterations:,} iteration{'s' * (job.iterations > 1)}"
    return (
        f"{asked.name}, {job.source.workers} workers, {iterations}, {gradient}; simulated with seed "
        f"{asked.seed} by the stack {stack}; device {job.device.name}; {run_setup.barrier_note(job.barrier)}"
    )


def ranking(asked: Asked, found: WholeJob, likely: Chances, held: Held = NOTHING) -> Table:
    """Return the exchanges as a table, the fastest first, with what has not settled last; parts are means."""
    table = empty_table(title(asked), _HEADINGS, ["exchange"])
    ranked = len(found.rows)
    for place, row in enumerate([*found.rows, *found.aside]):
        low, high = row.spread()
        each = {name: row.part(name) / row.iterations for name in ("compute", "select", "communicate")}
        selects = (row.part(name) / row.iterations for name in ("select_low", "select_high"))
        cells = (
            row.label,
            _job_time(row),
            *(_row_standing(found, likely, place) if place < ranked else ("not settled", "", "")),
            format_within(row.seconds / row.iterations, low, high),
            format_seconds(each["compute"]),
            format_within(each["select"], *selects),
            format_seconds(each["communicate"]),
            format_bytes(row.sent),
            "all" if row.complete else f"{row.simulated:,}",
            held.cell(row.label),
        )
        tied = place < ranked and found.tied(row)
        table.add_row(*map(Text, cells), style="bold" if place == 0 or tied else "")
    return table


def _row_standing(found: WholeJob, likely: Chances, place: int) -> tuple[str, str, str]:
    """Return how far a row is behind the fastest, how likely it is the fastest, and what it costs if not."""
    row = found.rows[place]
    behind = "" if not place else "tied" if found.takes_as_long(row) else f"+{100 * found.over(row):.3g} %"
    return behind, share(float(likely.fastest[place])), share(float(likely.regret[place]))


def sentences(asked: Asked, found: WholeJob, likely: Chances, held: Held = NOTHING) -> list[str]:
    """Return the decision in words: what, by how much, whether compression pays, and what another policy gains."""
    best = found.best
    said = []
    # Chances are among exchanges; a policy of the scenario that beats them all is the first place.
    ahead = [one for one in found.flexible if not found.usual and one.saved > TIE]
    first = max(ahead, key=lambda one: one.saved, default=None)
    if len(found.rows) > 1:
        tied = [row.label for row in found.rows[1:] if found.takes_as_long(row)]
        margin = lead(tied, found.margin, found.rows[1].label)
        chances = [float(one) for one in likely.fastest]
        others = {row.label: chance for row, chance in zip(found.rows[1:], chances[1:], strict=True)}
        named = " or ".join([best.label, *found.alike.get(best.label, ())])
        policy = ""
        if first is not None:
            policy = f"The policy {first.policy.label} is fastest, {_saved_text(first)} before {best.label}. "
            named += " of the fixed exchanges"
        advised = advice(named, chances[0], float(likely.regret[0]), margin, others, sure=likely.sure[0])
        said.append(f"{policy}{advised}")
        ranges = found.starts.around({row.label: row.seconds for row in found.rows})
        said += wording.entering_apart(ranges, [best.label, *tied], found.starts.not_sampled)
        tied = [row.label for row in found.rows if found.tied(row)]
        if tied and not likely.sure[0]:
            said.append(f"What was simulated does not tell {best.label} from {' or '.join(tied)}.")
    elif found.aside:
        said.append(sole_recommendation(best.label))
    for label, alike in found.alike.items():
        said.append(f"{wording.listed([label, *alike])} are tied: their iterations take the same times.")
    gain = found.gain_over_dense()
    if not math.isnan(gain):
        sparse, whole = (
            next(row.label for row in found.rows if (row.kind == "sparse") == wanted) for wanted in (True, False)
        )
        said.append(
            f"Compression pays: with {sparse} the job is {gain:.3g} times as fast as with {whole}."
            if gain > 1
            else f"Compression does not pay: with {sparse} the job takes {1 / gain:.3g} times as long as with {whole}."
        )
    if found.per_stretch is not None:
        shares = ", ".join(f"{label} {100 * share:.0f} %" for label, share in found.per_stretch.policy.shares().items())
        said.append(
            f"The fastest exchange of each iteration would save {_saved_text(found.per_stretch)}; in this share of the "
            f"iterations it would be: {shares}."
        )
    said += [
        f"The policy {one.policy.label} {'saves' if one.saved >= 0 else 'loses'} {_saved_text(one)} "
        f"against {best.label}."
        for one in found.flexible
    ]
    said += [f"{label} cannot do the job: {why}" for label, why in found.refused.items()]
    sampled = [row for row in found.rows if not row.complete]
    if sampled:
        said.append(
            f"Of {len(sampled)} exchanges a sample of iterations was simulated, spread over the job; --simulate has "
            "all. After +- is what the sample leaves open, as a standard error."
        )
    if len(found.rows) > 1:
        grid = "What would change the first place is found by a grid, as --param bandwidth=1,10,100Gbit/s."
        said += [grid] if asked.flips is None else flips_told(asked.flips)
    warnings = [f"Warning: {one}" for one in asked.warnings]
    rates = throughput_sentences({row.label: asked.throughput(row) for row in found.rows})
    said += [learning.IGNORED, *rates, asked.evidence.sentence()]
    return [*said, *warnings, *asked.notes, *_few_kept(asked, found), *held.sentences()]


def _few_kept(asked: Asked, found: WholeJob) -> list[str]:
    """Return what follows if a job that is scaled down keeps few entries for each pair of workers."""
    source, job = asked.job.source, asked.job
    among = [row.candidate for row in found.rows]
    most = max(len(job_buckets(job, [one])) for one in among)
    each = source.parameters * asked.density / source.workers / most
    if source.scale <= 1 or each >= KEPT_EACH:
        return []
    recordings = RecordedExchanges(job, 1)
    return few_kept(each, [one for one in among if recordings.follows_gradients(one)], corrected=False)


def figures(asked: Asked, found: WholeJob, likely: Chances, held: Held = NOTHING) -> dict[str, Any]:
    """Return the decision for programs; names end in units."""
    job = asked.job
    gain = found.gain_over_dense()
    chances = [one.tolist() for one in (likely.fastest, likely.regret, likely.low, likely.high)]
    return {
        "question": {
            "title": f"{asked.name}, {job.source.workers} workers",
            "method": "simulated",
            "workers": job.source.workers,
            "parameters": int(job.source.true_parameters),
            "density": asked.density,
            "iterations": job.iterations,
            "seed": asked.seed,
            "stack": run_setup.stack_name(job.network(0)),
            "device": job.device.name,
            "barrier": job.barrier,
            "passes_s": job.compute.mean,
            "compute_time": None if asked.compute_time is None else asked.compute_time.figures(),
        },
        "ranking": [
            _ranking_row(row, found)
            | (asked.throughput(row) or {})
            | interval_figures(low, high, "_s")
            | {"chance_to_be_fastest": chance, "regret_of_job": finite(regret), **held.of(row.label)}
            for row, chance, regret, low, high in zip(found.rows, *chances, strict=True)
        ],
        "decision": found.best.label,
        "margin": finite(found.margin),
        "chance_to_be_fastest": float(likely.fastest[0]),
        "regret_of_job": finite(float(likely.regret[0])),
        "sure": likely.sure[0],
        "too_close_to_call": not likely.sure[0],
        "tied_with": found.tied_with,
        "gain_over_dense": finite(gain),
        "gain_over": next((row.label for row in found.rows if row.kind != "sparse"), None),
        **asked.evidence.figures(),
        "compression_pays": bool(gain > 1),
        "best_of_each_iteration": None if found.per_stretch is None else _gain_text(found.per_stretch),
        "flexible": {one.policy.label: _gain_text(one) for one in found.flexible},
        **({"starts_not_sampled": dict(found.starts.not_sampled)} if found.starts.not_sampled else {}),
        "refused": dict(found.refused),
        "warnings": list(asked.warnings),
        "overlap": asked.overlap,
        "depends_on": list(asked.depends),
        "flips": None if asked.flips is None else flip_figures(asked.flips),
        "memory": held.figures(),
    }


def _ranking_row(row: Forecast, found: WholeJob) -> dict[str, Any]:
    low, high = row.spread()
    return {
        "exchange": row.label,
        "scheme": row.candidate.scheme,
        "options": dict(row.candidate.options),
        "kind": row.kind,
        "job_s": row.seconds,
        **dict(zip(START_COLUMNS, found.starts.around({row.label: row.seconds}).get(row.label, ()), strict=False)),
        "sampling_error_s": finite(row.error),
        "iterations_simulated": row.simulated,
        "over_the_fastest": found.over(row),
        "mean_iteration_s": row.seconds / row.iterations,
        "iteration_5_percent_s": low,
        "iteration_95_percent_s": high,
        **{f"mean_{name}_s": row.part(name) / row.iterations
           for name in ("compute", "select", "select_low", "select_high")},
        "mean_communicate_and_wait_s": row.part("communicate") / row.iterations,
        "mean_bytes_sent_per_worker_B": row.sent,
    }  # fmt: skip


def _gain_text(one: Gain) -> dict[str, Any]:
    return {
        "job_s": one.policy.seconds,
        "fixed_job_s": one.fixed.seconds,
        "saved": one.saved,
        "iterations_simulated": one.policy.simulated,
        "shares_of_iterations": one.policy.shares(),
    }


def _job_time(row: Forecast) -> str:
    if row.complete or not math.isfinite(row.error):
        return format_seconds(row.seconds)
    return f"{format_seconds(row.seconds)} +- {100 * row.error / max(row.seconds, 1e-300):.2g} %"


def _saved_text(one: Gain) -> str:
    return f"{100 * abs(one.saved):.2g} %"
