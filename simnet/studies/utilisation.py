"""How much bandwidth a training needs for a utilisation, and how rarely workers must exchange for it.

The model is that of a page by an author of streaming DiLoCo (A. Douillard, ``diloco/index.html``), which explains the
tables of compute utilisation in arXiv 2501.18512. A step computes for a time T, a part of it the backward pass. What is
exchanged, every H / F steps a fragment of n / F values, leaves in buckets, one after the other through one link, each
when the backward pass has made its entries. Data parallelism has the buckets of `simnet.training.parallel.pytorch.cut`;
other strategies exchange a fragment as a whole, as in `simnet.strategies`; the page has 128 equal ones. A bucket is an
all-reduce round a ring. Workers wait for the last one `delay` steps after that step. The utilisation is the share of
computing in the time of H steps, once every round takes as long as the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simnet.base import units
from simnet.base.arrays import Floats
from simnet.base.checks import check_choice, check_int, check_positive, is_number
from simnet.base.errors import InputError
from simnet.cost_models.costs.collectives import ring_allreduce
from simnet.cost_models.costs.computing import PassTime, pass_time
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, load_device
from simnet.cost_models.costs.layers import Layer
from simnet.cost_models.evidence.conditions import NEVER_COMPARED
from simnet.report import learning
from simnet.strategies import options as options_of
from simnet.strategies import strategy as class_of
from simnet.studies import options
from simnet.studies.codes import computing_told
from simnet.training.parallel.pytorch import BUCKET_MIB, FIRST_BUCKET_MIB, cut

STRATEGIES = ("dataparallel", "localsgd", "diloco", "streaming", "delayed", "eager")
"""Strategies of `simnet.strategies` that are known here: those that exchange all n values, or fragments of them."""

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Utilisations of the published tables."""

GRID: tuple[float, ...] = tuple((np.logspace(-1, 3, 50) * 1e9 / 8).tolist())
"""Bandwidths of the published tables [byte/s]: 50 from 0.1 to 1000 Gbit/s, each 1.207 times the one before."""

_NAMES = {"compute": "passes_s", "latency": "latency_s", "period": "steps_between_exchanges"}


class Within(NamedTuple):
    """A value, and its interval; infinite where nothing reaches it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Training:
    """How workers train, and what they exchange.

    Parameters
    ----------
    workers : int
        Workers or sites P, >= 2.
    parameters : int
        Values n, >= 1.
    compute : float
        Time of an inner step T [s], forward and backward, > 0.
    strategy : str
        One of `STRATEGIES`.
    period : int, optional
        Inner steps H from one exchange of a value to its next; default: as `simnet.strategies`. None for data
        parallelism, which exchanges after each.
    fragments : int, optional
        Fragments F of streaming DiLoCo, at most H.
    delay : int, optional
        Inner steps that a fragment of streaming DiLoCo has to arrive; default: as `simnet.strategies`. Delayed and
        eager DiLoCo give H.
    bits : float
        Of a value on the link, > 0.
    latency : float
        From worker to worker [s], >= 0.
    backward : float
        Share of the backward pass in a step, in (0, 1].
    buckets : int, optional
        Equal pieces in which an exchange leaves, >= 1; default: those of PyTorch's DistributedDataParallel for data
        parallelism, else one.
    layers : tuple of Layer
        Tensors of the model, in its order, by which those are cut; without them tensors are taken to be small.

    Raises
    ------
    ValueError
        If a value is out of range, or the strategy has no such option or no default for it.

    Examples
    --------
    >>> Training(2, 10**9, 0.1, "diloco").period
    500
    >>> Training(2, 10**9, 0.1, "dataparallel", period=50)
    Traceback (most recent call last):
    ValueError: period is not for dataparallel
    """

    workers: int
    parameters: int
    compute: float
    strategy: str
    period: int | None = None
    fragments: int | None = None
    delay: int | None = None
    bits: float = 32.0
    latency: float = 0.0
    backward: float = 2 / 3
    buckets: int | None = None
    layers: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        check_int(self.workers, "workers", 2)
        check_int(self.parameters, "parameters", 1)
        if self.buckets is not None:
            check_int(self.buckets, "buckets", 1)
        check_positive(self.compute, "compute")
        check_positive(self.bits, "bits")
        if not is_number(self.latency) or not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be a number >= 0 and finite, got {self.latency!r}")
        if not is_number(self.backward) or not 0 < self.backward <= 1:
            raise ValueError(f"backward must be a number > 0 and at most 1, got {self.backward!r}")
        check_choice(self.strategy, "strategy", STRATEGIES)
        known = options_of(class_of(self.strategy))
        for name, low in (("period", 1), ("fragments", 1), ("delay", 0)):
            given = getattr(self, name)
            if name not in known:
                if given is not None:
                    raise ValueError(f"{name} is not for {self.strategy}")
                continue
            if given is None:
                given = known[name].default
                if given is known[name].empty:
                    raise ValueError(f"{name} must be given, as {self.strategy} has no default for it")
            object.__setattr__(self, name, check_int(given, name, low))
        if self.pieces > self.steps:
            raise ValueError(f"period must be >= the {self.pieces} fragments, got {self.period}")

    @property
    def steps(self) -> int:
        """Inner steps H in which every value is exchanged once."""
        return self.period or 1

    @property
    def pieces(self) -> int:
        """Exchanges F of these steps."""
        return self.fragments or 1

    @property
    def shares(self) -> Floats:
        """Which part of an exchange each bucket is, in the order in which they leave."""
        return self._buckets[0]

    @property
    def ready(self) -> Floats:
        """Behind which share of the backward pass each of them is ready."""
        return self._buckets[1]

    @cached_property
    def _buckets(self) -> tuple[Floats, Floats]:
        if self.buckets is not None or self.strategy != "dataparallel":
            shares = np.full(self.buckets or 1, 1 / (self.buckets or 1))
        elif self.layers:
            sizes = [layer.size for layer in self.layers]
            cuts = cut(sizes, 4.0, FIRST_BUCKET_MIB * 2**20, BUCKET_MIB * 2**20)
            shares = np.array([sum(sizes[one]) for one in cuts]) / self.parameters
            return shares, np.array([1 - one.start / len(sizes) for one in cuts])
        else:
            first, later = FIRST_BUCKET_MIB * 2**18, BUCKET_MIB * 2**18
            shares = np.diff([0, *np.arange(first, self.parameters, later), self.parameters]) / self.parameters
        return shares, np.cumsum(shares)

    @property
    def arrives(self) -> int:
        """Inner steps after which an exchange must have arrived."""
        return self.steps if class_of(self.strategy).delays else self.delay or 0


def bucket_times(training: Training, bandwidth: float) -> Floats:
    """Return the time that each bucket of an exchange takes [s]."""
    nbytes = training.bits / 8 * training.parameters / training.pieces * training.shares
    return np.asarray(ring_allreduce(training.latency, 1 / bandwidth, nbytes, training.workers))


def stall(training: Training, bandwidth: float) -> float:
    """Return for how long workers wait for an exchange [s].

    Examples
    --------
    >>> round(stall(Training(2, 10**9, 0.1, "diloco", period=100, bits=16), 10e9 / 8), 4)
    1.6
    """
    takes = bucket_times(training, bandwidth)
    # From when a bucket is released on, it and those after it keep the link busy.
    to_come = training.backward * training.compute * (1 - training.ready)
    late = float((np.cumsum(takes[::-1])[::-1] - to_come).max())
    # The link sends one exchange after the other, so that none can take longer than it is to the next.
    behind = float(takes.sum()) - training.compute * training.steps / training.pieces
    return max(0.0, late - training.arrives * training.compute, behind)


def utilisation(training: Training, bandwidth: float) -> float:
    """Return the share of computing in the time of a training.

    Examples
    --------
    >>> round(utilisation(Training(2, 10**9, 0.1, "diloco", period=100, bits=16), 10e9 / 8), 3)
    0.862
    """
    if not is_number(bandwidth) or not bandwidth > 0:
        raise ValueError(f"bandwidth must be a number > 0, got {bandwidth!r}")
    computing = training.compute * training.steps
    return computing / (computing + training.pieces * stall(training, bandwidth))


def bandwidth_for(training: Training, target: float, *, grid: bool = False) -> float:
    """Return the least bandwidth that reaches a utilisation [byte/s]; infinite where latency alone forbids it.

    Examples
    --------
    >>> one = Training(2, 10**9, 0.1, "diloco", period=100, bits=16)
    >>> round(8e-9 * bandwidth_for(one, 0.95), 2), round(8e-9 * bandwidth_for(one, 0.95, grid=True), 2)
    (30.4, 33.93)
    """
    _refuse_target(target)
    if grid:
        return next((one for one in GRID if utilisation(training, one) >= target), math.inf)
    if utilisation(training, math.inf) < target:
        return math.inf
    low = high = 1.0
    while utilisation(training, high) < target:
        high *= 2
    while utilisation(training, low) >= target:
        low /= 2
    while high > low * (1 + 1e-13):
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (low, middle) if utilisation(training, middle) >= target else (middle, high)
    return high


def period_for(training: Training, target: float, bandwidth: float) -> int:
    """Return the least H that reaches a utilisation at a bandwidth.

    Examples
    --------
    >>> period_for(Training(2, 10**9, 0.1, "diloco", bits=16), 0.95, 10e9 / 8)
    304
    """
    _refuse_target(target)
    if training.period is None:
        raise ValueError(f"period is not for {training.strategy}")

    def reached(period: int) -> bool:
        return utilisation(replace(training, period=period), bandwidth) >= target

    low, high = training.pieces - 1, training.pieces
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def interval_by_error(
    found: Callable[[Training, float], float], training: Training, bandwidth: float = math.inf, off: float = 0.0
) -> Within:
    """Return what a function finds, and between what as the time of a step and the bandwidth are off.

    Examples
    --------
    >>> training = Training(2, 10**9, 0.1, "diloco", period=100)
    >>> interval_by_error(utilisation, training, 10e9 / 8, off=0.1)  # doctest: +ELLIPSIS
    Within(value=0.757..., low=0.716..., high=0.790...)
    """
    if not is_number(off) or not 0 <= off < 1:
        raise ValueError(f"off must be a number >= 0 and < 1, got {off!r}")
    value, *ends = (
        found(replace(training, compute=by * training.compute), by * bandwidth) for by in (1, 1 - off, 1 + off)
    )
    return Within(value, min(ends), max(ends))


def _refuse_target(target: float) -> None:
    if not is_number(target) or not 0 < target < 1:
        raise ValueError(f"target must be a number > 0 and < 1, got {target!r}")


@dataclass(frozen=True)
class Answer:
    """What a utilisation needs, as asked.

    Parameters
    ----------
    training : Training
        Who trains how.
    targets : sequence of float
        Utilisations that are to be reached.
    bandwidth : float, optional
        That of the links, if known [byte/s].
    off : float
        See `interval_by_error`.
    grid : bool
        See `bandwidth_for`.
    known : Computing, optional
        How long a step computes on a device, where nobody gave that.
    """

    training: Training
    targets: tuple[float, ...] = TARGETS
    bandwidth: float | None = None
    off: float = 0.0
    grid: bool = False
    known: PassTime | None = None

    def needed(self, target: float) -> Within:
        """Return the least bandwidth that reaches a target [byte/s]."""
        return interval_by_error(lambda one, _: bandwidth_for(one, target, grid=self.grid), self.training, off=self.off)

    def rarest(self, target: float) -> Within | None:
        """Return the least H that reaches a target at the bandwidth of the links; None without such, or without H."""
        if self.bandwidth is None or self.training.period is None:
            return None
        return interval_by_error(
            lambda one, rate: period_for(one, target, rate), self.training, self.bandwidth, self.off
        )

    def reached(self) -> Within | None:
        """Return the utilisation at the bandwidth of the links; None without such."""
        return (
            None if self.bandwidth is None else interval_by_error(utilisation, self.training, self.bandwidth, self.off)
        )

    def figures(self) -> dict[str, object]:
        """Return what ``simnet utilisation --json`` prints; null where nothing reaches a target."""
        targets = [
            {
                "utilisation": one,
                "bandwidth_Bps": _finite_or_reason(self.needed(one)),
                "steps_between_exchanges": _finite_or_reason(self.rarest(one)),
            }
            for one in self.targets
        ]
        asked = asdict(replace(self.training, layers=())) | {"buckets": len(self.training.shares)}
        del asked["layers"]
        at = {"bandwidth_Bps": self.bandwidth, "utilisation": _finite_or_reason(self.reached()), "off": self.off}
        said = {_NAMES.get(name, name): value for name, value in asked.items()}
        known = {} if self.known is None else {"compute_time": self.known.figures()}
        return {**said, **known, **at, "targets": targets, **NEVER_COMPARED.figures()}

    def headings(self) -> list[str]:
        """Return the headings of `rows`."""
        at = [] if self.rarest(self.targets[0]) is None else [f"H at {units.format_bandwidth(self.bandwidth or 0)}"]
        return ["utilisation", "bandwidth", *at]

    def rows(self) -> list[list[str]]:
        """Return a row of text for each target."""
        found = []
        for target in self.targets:
            rarest = self.rarest(target)
            often = [] if rarest is None else [_interval_text(rarest, lambda one: f"{one:,.0f}")]
            found.append([_percent_text(target), _interval_text(self.needed(target), units.format_bandwidth), *often])
        return found

    def sentences(self) -> list[str]:
        """Return the utilisation at the bandwidth of the links, or what targets need; who trains how, and on what."""
        one, reached = self.training, self.reached()
        if self.bandwidth is not None and reached is not None:
            share = _interval_text(reached, _percent_text)
            first = f"At {units.format_bandwidth(self.bandwidth)} the utilisation is {share}."
        else:
            ends = dict.fromkeys((self.targets[0], self.targets[-1]))
            needs = (
                f"of {_percent_text(end)}: {_interval_text(self.needed(end), units.format_bandwidth)}" for end in ends
            )
            first = f"Bandwidth for a utilisation {', '.join(needs)}."
        often = "" if one.period is None else f", H {one.period:,}"
        cut = "" if one.fragments is None else f", {one.fragments:,} fragments, delay {one.delay:,}"
        found = [
            f"{first} {learning.IGNORED}",
            f"{one.strategy}, {one.workers:,} workers, {one.parameters:,} values of {one.bits:g} bits, "
            f"steps of {units.format_seconds(one.compute)}{often}{cut}.",
        ]
        found += [NEVER_COMPARED.sentence(), *self.assumed()]
        return [*found, *computing_told([None if self.known is None else self.known.describe()])]

    def assumed(self) -> list[str]:
        """Return in how many pieces an exchange is taken to leave, and what tensors one by one would give."""
        one, count = self.training, len(self.training.shares)
        if one.buckets is not None:
            return [f"Given: an exchange leaves in {count:,} equal buckets."]
        if one.strategy == "dataparallel":
            small = "" if one.layers else "; tensors are taken to be small"
            return [f"Assumed: {count:,} buckets beside the backward pass, as in PyTorch's DDP{small}."]
        found = ["Assumed: each exchange is one all-reduce, after the last of its steps."]
        tensors = len(one.layers) // one.pieces
        if self.bandwidth is not None and tensors > 1:
            apart = _percent_text(utilisation(replace(one, buckets=tensors), self.bandwidth))
            found.append(f"Tensor by tensor, as torchft and EXO gym send it: {apart} (--buckets {tensors}).")
        return found


def answer(
    *,
    compute: str | None = None,
    device: str | None = None,
    batch: int | None = None,
    strategy: str = "diloco",
    workers: int = 2,
    model: str | None = None,
    parameters: int | str | None = None,
    latency: str | None = None,
    backward: str | None = None,
    bandwidth: str | None = None,
    target: str | None = None,
    off: str | None = None,
    grid: bool = False,
    period: int | None = None,
    fragments: int | None = None,
    delay: int | None = None,
    bits: float = 32.0,
    buckets: int | None = None,
) -> Answer:
    """Return the answer to what the options of ``simnet utilisation`` ask.

    Examples
    --------
    >>> asked = answer(compute="0.1 s", parameters=10**9, period=100, bandwidth="10 Gbit/s", target="90%")
    >>> asked.rows(), asked.sentences()[-1]
    ([['90 %', '28.8 Gbit/s', '288']], 'Assumed: each exchange is one all-reduce, after the last of its steps.')
    """
    if (model is None) == (parameters is None):
        raise InputError("needs either --model or --parameters", file="simnet utilisation")
    seconds, known = options.quantity(compute, "--compute", units.seconds), None
    options.only("what a model computes, not beside --compute", compute is None, {"--device": device, "--batch": batch})
    rate = options.quantity(bandwidth, "--bandwidth", units.bandwidth)
    late = options.quantity(latency, "--latency", units.seconds) or 0.0
    profile = None if model is None else options.model(model)
    usual = 2 / 3 if profile is None else profile.backward_fraction
    share = usual if backward is None else options.density(backward, "--backward")
    targets = tuple(options.density(one, "--target") for one in options.words(target) or ()) or TARGETS
    amiss = 0.0 if off is None else options.density(off, "--off")
    try:
        n = options.parameters(parameters) if profile is None else profile.parameters
        layers = () if profile is None else profile.layers
        if seconds is None:
            if profile is None:
                raise InputError("is missing: how long a step takes is known of a --model alone", file="--compute")
            known = pass_time(profile, load_device(device or DEFAULT_DEVICE), batch)
            seconds = known.seconds
        training = Training(
            workers, n or 0, seconds or 0.0, strategy, period, fragments, delay, bits, late, share, buckets, layers
        )
        found = Answer(training, targets, rate, amiss, grid, known)
        for one in targets:
            _refuse_target(one)
        found.reached(), found.needed(targets[0])
    except ValueError as error:
        raise InputError(str(error), file="simnet utilisation") from None
    return found


def _percent_text(share: float) -> str:
    return f"{100 * share:.3g} %"


def _interval_text(found: Within, form: Callable[[float], str]) -> str:
    """Return a value and its interval as text."""
    value, low, high = ("out of reach" if math.isinf(one) else form(one) for one in found)
    return value if found.low == found.high else f"{value} ({low} to {high})"


def _finite_or_reason(found: Within | None) -> dict[str, float | str | None] | None:
    """Return a value and its interval for JSON; null, and why, where nothing reaches it."""
    if found is None:
        return None
    ends: dict[str, float | str | None] = {
        name: None if math.isinf(one) else one for name, one in found._asdict().items()
    }
    return ends | ({"reason": "out of reach"} if None in ends.values() else {})
