"""What a run assumes where its scenario leaves it open, and whether assuming otherwise would change the first place.

The exchanges of a scenario are timed in a sample of iterations, as it is and with one assumption changed. The sample is
that of `simnet.studies.choosing.whole_job`: it is spread over the job, and bounded by a count of messages and entries,
so that the same scenario has the same answer on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from typing_extensions import TypedDict

from simnet.base.errors import SimnetError
from simnet.costs import models
from simnet.costs.devices import DEFAULT
from simnet.job import Overlap, overlap_of
from simnet.parallel.ddp import BUCKET_MIB, FIRST_BUCKET_MIB
from simnet.policies import Candidate
from simnet.report import learning, overlap
from simnet.report.overlap import OverlapSummary
from simnet.report.paired import TIE
from simnet.scenario import Run, Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.forecast import WholeJob

EFFORT = 0.25
"""About how many seconds of one processor a sample of a job takes."""

OTHER_DEVICE = "h100-torch2.6"
OTHER_GRADIENTS = {"digits": "transformer", "convolutional": "transformer", "transformer": "convolutional"}
"""What is tried in place of the default device, and of gradients of a family."""

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
    if len(among) < 2 or large or built.colocated:
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


class Dependence(TypedDict):
    """A default of a scenario, and whether another value of it would change the first place of its exchanges.

    `field` and `value` are what was assumed, `other` what was tried. `first` is the exchange that is then first, and
    `lead` by which factor it is ahead of the one that is first as assumed; both are None if that one stays first.
    """

    field: str
    value: str
    other: str
    first: str | None
    lead: float | None


class Assumed(NamedTuple):
    """What an answer rests on besides its scenario; see `overlap_assumed` and `depends_on`."""

    overlap: OverlapSummary | None
    depends: Sequence[Dependence]

    def sentences(self) -> list[str]:
        """Return it in words, a line each."""
        return [*([] if self.overlap is None else [overlap.told(self.overlap)]), *depends_told(self.depends)]


def assumed(
    load: Callable[[Sequence[str]], Scenario],
    loaded: Scenario,
    built: Run,
    among: Sequence[Candidate] | None = None,
) -> Assumed:
    """Return what an answer rests on; parameters are as of `depends_on`."""
    return Assumed(overlap_assumed(loaded, built, among), depends_on(load, loaded, built, among))


def depends_on(
    load: Callable[[Sequence[str]], Scenario],
    loaded: Scenario,
    built: Run,
    among: Sequence[Candidate] | None = None,
) -> list[Dependence]:
    """Return the defaults that a scenario goes by, each with what another value would do to the first place.

    Of overlap `overlap_assumed` says the same. Empty where exchanges cannot be sampled.

    Parameters
    ----------
    load : callable
        Reads the scenario with further fields set, as ``["network.stack=tcp"]``.
    loaded, built : Scenario, Run
        The scenario as it is.
    among : sequence of Candidate, optional
        As of `overlap_assumed`.
    """
    if among is None:
        among = [candidate(label, one) for label, one in loaded.config.exchanges.items()]
    first = ranked(loaded, built, among)
    if first is None or built.job.strategy is not None or built.job.steps is not None:
        return []
    found: list[Dependence] = []
    for field, (value, other) in _defaults(loaded).items():
        try:
            changed = load([f"{field}={other}"])
            then = ranked(changed, changed.build(), among)
        except SimnetError:
            continue
        if then is None:
            continue
        own = next((row.seconds for row in then.rows if row.label == first.best.label), math.nan)
        lead = own / then.best.seconds
        changes = lead > 1 + TIE
        found.append(
            {
                "field": field,
                "value": value,
                "other": other,
                "first": then.best.label if changes else None,
                "lead": lead if changes else None,
            }
        )
    return found


def depends_told(found: Sequence[Dependence]) -> list[str]:
    """Return the line that names the defaults which would change the first place, and those that would not.

    Examples
    --------
    >>> one = {"field": "network.stack", "value": "ideal", "other": "tcp", "first": "ART-ring", "lead": 1.12}
    >>> same = {"field": "job.barrier", "value": "true", "other": "false", "first": None, "lead": None}
    >>> depends_told([one, same])
    ['Depends on: network.stack=tcp (not ideal): ART-ring first, 12 % ahead; not on job.barrier=false.']
    """
    if not found:
        return []
    changing = [
        f"{one['field']}={one['other']} (not {one['value']}): {one['first']} first, {learning.ahead(one['lead'])} ahead"
        for one in found
        if one["lead"] is not None
    ]
    same = [f"{one['field']}={one['other']}" for one in found if one["lead"] is None]
    kept = [f"not on {', '.join(same)}"] if same else []
    return [f"Depends on: {'; '.join([*changing, *kept])}."]


def _defaults(loaded: Scenario) -> dict[str, tuple[str, str]]:
    """Return the fields of a scenario that have their default and may decide, with that and another value."""
    config = loaded.config
    drawn, found = config.job.gradients.synthetic, dict[str, tuple[str, str]]()
    if config.network.stack in (None, "ideal"):
        found["network.stack"] = "ideal", "tcp"
    if config.job.device in (None, DEFAULT):
        found["job.device"] = DEFAULT, OTHER_DEVICE
    if config.job.barrier:
        found["job.barrier"] = "true", "false"
    if drawn is not None and str(drawn.like) in OTHER_GRADIENTS:
        found["job.gradients.synthetic.like"] = str(drawn.like), OTHER_GRADIENTS[str(drawn.like)]
    return found
