"""What would change the first place of a job: found by closed forms of its iteration, and simulated on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, SimnetError
from simnet.network.stack import name_of
from simnet.scenario import Run, Scenario
from simnet.studies.assumptions import is_large
from simnet.studies.choosing.choices import Choice, named
from simnet.studies.choosing.cost_models import CostModel, Estimate, Selecting, by_closed_form
from simnet.studies.choosing.decision import QUANTITIES, Flip, flips
from simnet.studies.choosing.forecast import WholeJob
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.whole_job import decide_job
from simnet.training.job.job import Job, job_buckets, job_overlap

AGREE = 0.02
"""By which share of an iteration closed forms may be off for the first two exchanges."""

AWAY = 1.03
"""How far from a flip simulations have to confirm it, as a factor."""

_FIELDS = {
    "latency": "network.topology.star.latency={!r} s",
    "bandwidth": "network.topology.star.bandwidth={!r} B/s",
    "density": "job.density={!r}",
    "workers": "workers={:.0f}",
}
_NOTHING = Selecting(*[np.zeros(())] * 3)


def job_flips(
    load: Callable[[Sequence[str]], Scenario], loaded: Scenario, run: Run, found: WholeJob
) -> tuple[Flip, ...] | None:
    """Return the nearest value of each quantity with another first place; None where closed forms do not say it.

    They say it on a star of constant links without a stack, of exchanges that all have closed forms, where the first
    two take as long as simulated, within `AGREE`, and simulations `AWAY` on both sides of each value confirm it.
    """
    job, network = run.job, loaded.config.network
    kind, topology = network.topology.choice
    ramps = len(job.density) > 1 or job.density[0].start != job.density[0].end
    if kind != "star" or network.weather or run.colocated or ramps or len(job.stages) > 1 or is_large(run):
        return None
    if name_of(job.network(0).stack) != "ideal":
        return None
    try:
        among = named([row.candidate for row in found.rows])
    except InputError:
        return None
    if any(one.kernel_calls is None for one in among):
        return None
    links = topology.arguments()
    point = OperatingPoint(
        job.source.workers, job.source.true_parameters, job.density[0].end, links["latency"], links["bandwidth"]
    )
    model = iteration_model(job)
    for one, row in zip(among, found.rows[:2], strict=False):
        took = row.seconds / row.iterations
        if abs(float(model(one, point).seconds) - took) > AGREE * took:
            return None
    told = tuple(flip for quantity in QUANTITIES for flip in flips(among, point, model, quantity))
    return told if all(_is_confirmed(load, one, found, job.source.workers) for one in told) else None


def _is_confirmed(load: Callable[[Sequence[str]], Scenario], flip: Flip, found: WholeJob, workers: int) -> bool:
    """Return whether the first exchange is the faster one before a flip, and the other behind it, as simulated."""
    rivals = [(row.candidate, row.kind) for row in found.rows if row.label in (found.best.label, flip.label)]
    step = AWAY if flip.up else 1 / AWAY
    sides = {found.best.label: flip.value / step, flip.label: flip.value * step}
    if flip.quantity == "workers":
        before = flip.value - 1 if flip.up else flip.value + 1
        sides = {flip.label: flip.value} | ({} if before == workers else {found.best.label: before})
    for first, value in sides.items():
        try:
            run = load([_FIELDS[flip.quantity].format(value)]).build()
            if is_large(run) or decide_job(run, rivals, policies=False).best.label != first:
                return False
        except SimnetError:
            return False
    return True


def iteration_model(job: Job) -> CostModel:
    """Return the cost model of whole iterations of a job by closed forms, on links that are all alike.

    Buckets follow each other on the links, and kernels of a bucket, which all count before its messages, delay the
    slices of the backward pass to come, as of `simnet.training.job.exchange.exposed_after_backward`.
    """
    exchange = by_closed_form(job.device)

    def model(choice: Choice, point: OperatingPoint) -> Estimate:
        overlap = job_overlap(job, [choice.candidate])
        backward = 0.0 if overlap is None else overlap.backward * job.compute.mean
        buckets = job_buckets(job, [choice.candidate])
        shares = [(one.entries.stop - one.entries.start) / job.source.parameters for one in buckets]
        # All buckets of a size take the same; the first axis goes over sizes.
        sizes, which = np.unique(shares, return_inverse=True)
        cells = np.broadcast_shapes(*(np.shape(getattr(point, name)) for name in ("parameters", *QUANTITIES)))
        each = np.multiply.outer(sizes, np.broadcast_to(point.parameters, cells))
        own = exchange(choice, point.at("parameters", each))
        select, send = (np.broadcast_to(part, each.shape) for part in (own.select, own.communicate))
        computed: Floats = np.asarray(job.compute.mean - backward)
        sent, before = np.zeros(()), 0.0
        for bucket, size in zip(buckets, which.tolist(), strict=True):
            computed = computed + backward * (bucket.ready - before) + select[size]
            sent, before = np.maximum(sent, computed) + send[size], bucket.ready
        seconds = np.asarray(np.maximum(sent, computed) + job.update)
        return Estimate(seconds, _NOTHING, seconds, seconds, "")

    return model
