"""What a run assumes where its scenario leaves it open, and whether assuming otherwise would change the first place.

The exchanges of a scenario are timed in a sample of iterations, as it is and with one assumption changed. The sample is
that of `simnet.studies.choosing.whole_job`: it is spread over the job, and bounded by a count of messages and entries,
so that the same scenario has the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simnet.base.errors import SimnetError
from simnet.costs import models
from simnet.job import Overlap, overlap_of
from simnet.parallel.ddp import BUCKET_MIB, FIRST_BUCKET_MIB
from simnet.policies import Candidate
from simnet.report import overlap
from simnet.report.overlap import OverlapSummary
from simnet.report.paired import TIE
from simnet.scenario import Run, Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.forecast import WholeJob

EFFORT = 0.25
"""About how many seconds of one processor a sample of a job takes."""

MOST_WORKERS, MOST_ENTRIES = 64, 2**24
"""The most workers, and entries of gradients of all of them, of a job of which a sample is timed."""


def notes(loaded: Scenario, built: Run) -> list[str]:
    """Return what a run assumes, a line each, for what prints no summary of it; parameters are as of the others."""
    found = overlap_assumed(loaded, built)
    return [] if found is None else [overlap.told(found)]


def overlap_assumed(
    loaded: Scenario, built: Run, among: Sequence[Candidate] | None = None, *, sample: bool = True
) -> OverlapSummary | None:
    """Return what a run assumes of overlap, with the first place under the other assumption.

    None where nothing could overlap: under a strategy, of sharded steps, or of a gradient whose layers are not known.

    Parameters
    ----------
    loaded, built : Scenario, Run
        The run.
    among : sequence of Candidate, optional
        The exchanges that the answer is about; those of the scenario when omitted.
    sample : bool
        Whether to look for that place.
    """
    job = built.job
    if job.strategy is not None or job.steps is not None or len(job.source.layers) < 2:
        return None
    if among is None:
        among = [candidate(label, one) for label, one in loaded.config.exchanges.items()]
    during = [one.label for one in among if overlap_of(job, [one]) is not None]
    found: OverlapSummary = {
        "during": during,
        "after": [one.label for one in among if one.label not in during],
        "default": job.overlap is not None and job.overlap.exchanges == "able",
        "first": None,
        "otherwise": None,
        "lead": None,
        "undecided": False,
    }
    if not sample:
        return found
    other = None if during else _ddp(loaded)
    first = ranked(loaded, built, among)
    changed = first and ranked(loaded, replace(built, job=replace(job, overlap=other)), among)
    if not first or not changed:
        return found
    if any(_undecided(one) for one in (first, changed)) and _leaders(first) & _leaders(changed):
        found["undecided"] = True
        return found
    found["first"] = found["otherwise"] = first.best.label
    lead = next((row.seconds / changed.best.seconds for row in changed.rows if row.label == first.best.label), 1.0)
    if lead > 1 + TIE:
        found["otherwise"], found["lead"] = changed.best.label, lead
    return found


def _leaders(found: WholeJob) -> set[str]:
    return {found.best.label, *found.tied_with}


def _undecided(found: WholeJob) -> bool:
    """Return whether another exchange may be first, for all that a sample tells."""
    margin = TIE * found.best.seconds
    return any(found.tied(row) and row.seconds - found.best.seconds > margin for row in found.rows)


def ranked(loaded: Scenario, built: Run, among: Sequence[Candidate]) -> WholeJob | None:
    """Return the exchanges of a run, each by itself, the fastest first, by a sample; None where a sample takes long.

    Parameters
    ----------
    loaded, built, among
        As of `overlap_assumed`.
    """
    from simnet.studies.choosing.whole_job import candidates_of, decide_job

    job = built.job
    large = job.source.workers > MOST_WORKERS or job.source.workers * job.source.parameters > MOST_ENTRIES
    if len(among) < 2 or large or loaded.elsewhere or built.colocated:
        return None
    try:
        found = decide_job(built, candidates_of(loaded, named=among), effort=EFFORT, policies=False)
    except SimnetError:
        return None
    return None if found.refused else found


def _ddp(loaded: Scenario) -> Overlap:
    """Return what PyTorch's DistributedDataParallel does, of exchanges whose implementation can."""
    model = loaded.config.job.model
    share = Overlap.backward if model is None else models.model(model).backward_fraction
    first, bucket = FIRST_BUCKET_MIB * 2**20, BUCKET_MIB * 2**20
    return Overlap(bucket, first=first, exchanges="able", backward=share)
