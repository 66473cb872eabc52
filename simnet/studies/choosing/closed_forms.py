"""Closed-form times of exchanges on a star of equal links, and the values at which the ranking changes.

They agree with the simulated network for any N to 1e-9, except exchanges with votes and trees whose N is no power of
two (a few per cent), and AR-Topk over a tree, which saves up to log N latencies.

References
----------
S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, arXiv 2312.02493.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.network.stack import name_of
from simnet.policies import Candidate, closed_form
from simnet.scenario import Run, Scenario
from simnet.studies.assumptions import is_large
from simnet.studies.choosing.forecast import WholeJob, exchange_kind, same_exchange, usual_exchanges
from simnet.studies.choosing.whole_job import decide_job
from simnet.training.job.job import Job, job_buckets, job_overlap

Number: TypeAlias = float | Floats
"""A scalar or an array."""

QUANTITIES = ("latency", "bandwidth", "density", "workers")
"""Quantities that are varied one at a time to find where the decision changes."""

AGREE = 0.02
"""Maximum relative error of closed-form iteration times of the two fastest exchanges."""


@dataclass(frozen=True)
class OperatingPoint:
    """Job on links of equal latency [s] and bandwidth [byte/s]. Fields may be arrays that broadcast.

    Examples
    --------
    >>> [float(OperatingPoint(8, 25_557_032, density, 1e-3, 1.25e9).kept) for density in (0.01, 1e-9)]
    [255571.0, 1.0]
    """

    workers: Number
    parameters: Number
    density: Number
    latency: Number
    bandwidth: Number

    @cached_property
    def kept(self) -> Floats:
        """Number of entries that each worker selects, at least 1."""
        # What binary fractions add to a product that is a whole number in decimal is less than that.
        exact = np.multiply(np.asarray(self.parameters, dtype=np.float64), self.density)
        return np.asarray(np.maximum(np.ceil(exact * (1 - 1e-12)), 1.0))

    def at(self, quantity: str, values: Number) -> OperatingPoint:
        """Return a copy of the point with one field replaced."""
        changed: dict[str, Any] = {quantity: values}
        return replace(self, **changed)


class FormEstimate(NamedTuple):
    """Estimated communication time, and estimated time of selection and merge, of an exchange [s], as arrays."""

    communicate: Floats
    select: Floats

    @property
    def seconds(self) -> Floats:
        """Sum of communication, selection and merge [s]."""
        return np.asarray(self.communicate + self.select)


CostModel: TypeAlias = Callable[[Candidate, OperatingPoint], FormEstimate]
"""Function that estimates an exchange's time from the exchange and the job's parameters."""


class ClosedForms(NamedTuple):
    """Exchanges of a job, fastest first, inputs such as link latency, and a function that estimates times from both."""

    among: Sequence[Candidate]
    point: OperatingPoint
    model: CostModel


def closed_forms(loaded: Scenario, run: Run, found: WholeJob) -> ClosedForms | None:
    """Return the closed forms for a job; None if closed forms do not apply to the job.

    They apply to the usual exchanges on a star of constant links with the ideal stack.
    """
    job, network = run.job, loaded.config.network
    kind, topology = network.topology.choice
    if kind != "star" or network.weather or run.colocated or job.has_ramps or len(job.stages) > 1 or is_large(run):
        return None
    if name_of(job.network(0).stack) != "ideal" or job.strategy is not None or job.device.implementation is not None:
        return None
    among, links = [row.candidate for row in found.rows], topology.arguments()
    if not {same_exchange(one) for one in among} <= _usual():
        return None
    if not all(isinstance(links.get(name), int | float) for name in ("latency", "bandwidth")):
        return None
    point = OperatingPoint(
        job.source.workers, job.source.true_parameters, job.density[0].end, links["latency"], links["bandwidth"]
    )
    return ClosedForms(among, point, iteration_model(job))


@cache
def _usual() -> frozenset[tuple[str, str]]:
    return frozenset(map(same_exchange, usual_exchanges()))


def by_closed_form(device: DeviceProfile) -> CostModel:
    """Return the function that estimates the time of a single exchange on a device.

    Examples
    --------
    >>> from simnet.cost_models.costs.devices import load_device
    >>> point = OperatingPoint(8, 11_689_512, 0.1, 1e-3, 1.25e9)
    >>> estimate = by_closed_form(load_device("v100"))(usual_exchanges()[2], point)
    >>> f"{estimate.seconds:.4f} s"
    '0.0469 s'
    """

    def cost_model(one: Candidate, point: OperatingPoint) -> FormEstimate:
        select = sum((device.once(call) for call in _kernel_calls(one, point)), np.zeros(()))
        nbytes = 4.0 * np.asarray(point.parameters, dtype=np.float64)
        # A bucket may have a part of an entry, of which all is kept.
        share = np.minimum(4.0 * point.kept / nbytes, 1.0) if exchange_kind(one) == "sparse" else 1.0
        beta = 1.0 / np.asarray(point.bandwidth, dtype=np.float64)
        send = closed_form(one)(point.latency, beta, nbytes, share, point.workers)
        return FormEstimate(send, np.asarray(select))

    return cost_model


def _kernel_calls(one: Candidate, point: OperatingPoint) -> list[DeviceOp]:
    """Return the kernels by which a worker selects and merges entries in Top-k, AR-Topk, fp16 or dense exchanges."""
    kept, entries = point.kept, point.parameters
    if one.scheme == "topk":
        calls = [DeviceOp("gather", kept), DeviceOp("scatter", kept), DeviceOp("pack", kept)]
        return [DeviceOp("topk", entries), *calls, DeviceOp("scatter", point.workers * kept)]
    if one.scheme == "artopk":
        norm = [DeviceOp("norm", kept)] if one.options.get("selection") == "var" else []
        return [DeviceOp("topk", entries), *norm, DeviceOp("gather", kept), DeviceOp("scatter", kept, 2)]
    return [DeviceOp("cast", entries, 2)] if one.scheme == "fp16" else []


def iteration_model(job: Job) -> CostModel:
    """Return the function that estimates the time of a whole iteration of a job.

    Buckets use the links in sequence. All kernels of a bucket run before its messages and delay the rest of the
    backward pass, as in `simnet.training.job.exchange.exposed_after_backward`.
    """
    exchange = by_closed_form(job.device)

    def model(one: Candidate, point: OperatingPoint) -> FormEstimate:
        overlap = job_overlap(job, [one])
        backward = 0.0 if overlap is None else overlap.backward * job.compute.mean
        buckets = job_buckets(job, [one])
        shares = [(each.entries.stop - each.entries.start) / job.source.parameters for each in buckets]
        # All buckets of a size take the same; the first axis goes over sizes.
        sizes, which = np.unique(shares, return_inverse=True)
        cells = np.broadcast_shapes(*(np.shape(getattr(point, name)) for name in ("parameters", *QUANTITIES)))
        each = np.multiply.outer(sizes, np.broadcast_to(point.parameters, cells))
        own = exchange(one, point.at("parameters", each))
        select, send = (np.broadcast_to(part, each.shape) for part in (own.select, own.communicate))
        computed: Floats = np.asarray(job.compute.mean - backward)
        sent, before = np.zeros(()), 0.0
        for bucket, size in zip(buckets, which.tolist(), strict=True):
            computed = computed + backward * (bucket.ready - before) + select[size]
            sent, before = np.maximum(sent, computed) + send[size], bucket.ready
        seconds = np.asarray(np.maximum(sent, computed) + job.update)
        return FormEstimate(seconds, np.zeros(()))

    return model


def fastest_by_form(
    among: Sequence[Candidate], point: OperatingPoint, model: CostModel
) -> tuple[NDArray[np.intp], Floats]:
    """Return the index of the fastest exchange and its time [s] at each point; ties go to the lower index."""
    times = np.stack(np.broadcast_arrays(*(model(one, point).seconds for one in among)))
    return times.argmin(axis=0), times.min(axis=0)


AWAY = 1.03
"""Factor by which simulations that confirm a predicted crossover lie above and below it."""


def override_of(quantity: str, value: float) -> str:
    """Return the scenario override that sets one of `QUANTITIES` to a value in SI units."""
    unit = {"latency": " s", "bandwidth": " B/s"}.get(quantity, "")
    return f"{quantity}={value:.0f}" if quantity == "workers" else f"{quantity}={float(value)!r}{unit}"


# Values looked at on each side, over how many decades, and those between two where the decision changes.
_STEPS, _DECADES, _FINER = 241, 4.0, 4097
_MOST_WORKERS = 4096
_SIDE = 21


class Flip(NamedTuple):
    """Nearest higher or lower value of a quantity, such as latency, at which another exchange is fastest."""

    quantity: str
    value: float
    direction: Literal["up", "down"]
    exchange: str


class Misjudged(NamedTuple):
    """Time lost by choosing an exchange for a latency and bandwidth that are wrong by up to a `factor`.

    At worst the chosen exchange is slower than the fastest one, `exchange`, by the fraction `worst_regret`; the choice
    is right in the share `holds` of a logarithmic grid over the range.
    """

    factor: float
    worst_regret: float
    latency_s: float
    bandwidth_Bps: float  # noqa: N815
    exchange: str
    holds: float


def _agree(forms: ClosedForms, found: WholeJob) -> bool:
    """Return whether closed forms agree with the simulated times of the two fastest exchanges."""
    pairs = zip(forms.among, found.rows[:2], strict=False)
    took = [(float(forms.model(one, forms.point).seconds), row.seconds / row.iterations) for one, row in pairs]
    return all(abs(said - seconds) <= AGREE * seconds for said, seconds in took)


def first_place_flips(
    load: Callable[[Sequence[str]], Scenario], loaded: Scenario, run: Run, found: WholeJob, factor: float
) -> tuple[tuple[Flip, ...] | None, Misjudged | None]:
    """Return inputs at which another exchange becomes fastest, and the time lost if link inputs are off by `factor`.

    None if closed forms do not apply, disagree with the simulated times of the two fastest exchanges, or are not
    confirmed by simulations at a factor `AWAY` on both sides of a flip.
    """
    forms = closed_forms(loaded, run, found)
    if forms is None or not _agree(forms, found):
        return None, None
    told = tuple(flip for quantity in QUANTITIES for flip in _nearest_flips(forms, quantity))
    if not all(_is_confirmed(load, one, found) for one in told):
        return None, None
    return told, _misjudged_links(forms, factor)


def _is_confirmed(load: Callable[[Sequence[str]], Scenario], flip: Flip, found: WholeJob) -> bool:
    """Return whether simulations on both sides of a predicted crossover confirm which exchange is the fastest."""
    rivals = [row.candidate for row in found.rows if row.label in (found.best.label, flip.exchange)]
    up = flip.direction == "up"
    step = AWAY if up else 1 / AWAY
    sides = {found.best.label: flip.value / step, flip.exchange: flip.value * step}
    if flip.quantity == "workers":
        sides = {found.best.label: flip.value - 1 if up else flip.value + 1, flip.exchange: flip.value}
    for first, value in sides.items():
        try:
            run = load([override_of(flip.quantity, value)]).build()
            if is_large(run) or decide_job(run, rivals, policies=False).best.label != first:
                return False
        except SimnetError:
            return False
    return True


def _nearest_flips(forms: ClosedForms, quantity: str) -> Iterator[Flip]:
    """Yield the next lower and higher values of a quantity, such as latency, at which another exchange is fastest."""
    choices, point, model = forms

    def fastest(values: Floats) -> NDArray[np.intp]:
        return fastest_by_form(choices, point.at(quantity, values), model)[0]

    for up in (False, True):
        values = _quantity_values(point, quantity, up)
        others = np.flatnonzero(fastest(values[1:]))
        if not len(others):
            continue
        # From the last value where the decision holds to the first where it does not.
        near = values[others[0] : others[0] + 2]
        near = near if quantity == "workers" else np.geomspace(near[0], near[1], _FINER)
        at = 1 + int(np.flatnonzero(which := fastest(near[1:]))[0])
        yield Flip(quantity, float(near[at]), "up" if up else "down", choices[int(which[at - 1])].label)


def _quantity_values(point: OperatingPoint, quantity: str, up: bool) -> Floats:
    """Return the job's latency, density or other quantity, then trial values above or below it, nearest first."""
    own = float(getattr(point, quantity))
    if quantity == "workers":
        return np.arange(own, _MOST_WORKERS + 1) if up else np.arange(own, 1, -1)
    values = own * 10 ** np.linspace(0, _DECADES if up else -_DECADES, _STEPS)
    if quantity == "density":
        values = np.minimum(values, 1.0)[point.at("density", values).kept > 1]
    return values[values > 0]


def _misjudged_links(forms: ClosedForms, factor: float) -> Misjudged:
    choices, point, model = forms
    factors = np.geomspace(1 / factor, factor, _SIDE)
    latency, bandwidth = point.latency * factors, point.bandwidth * factors
    where = replace(point, latency=latency[:, np.newaxis], bandwidth=bandwidth)
    which, least = fastest_by_form(choices, where, model)
    lost = (model(choices[0], where).seconds - least) / np.maximum(least, 1e-300)
    row, column = at = np.unravel_index(int(lost.argmax()), lost.shape)
    label, holds = choices[int(which[at])].label, float((lost <= 0).mean())
    return Misjudged(factor, float(lost[at]), float(latency[row]), float(bandwidth[column]), label, holds)
