"""Which exchange next: fixed, flexible (arg-min of the closed forms on monitored links), clairvoyant.

Before each iteration the job asks its policy for a shortlist of exchanges. One entry means that the decision is taken.
With several, the job simulates each on the true weather and keeps the fastest, which is what a clairvoyant would do.
An adaptive policy, such as `simnet.policies.moo.Moo`, also says the density, may have exchanges tried beside the
training, and is told what came of every exchange.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

import sparsifier_models
from simnet import costs
from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.network import Network
from sparsifier_models.artopk import ARTopk
from sparsifier_models.dense import Dense
from sparsifier_models.fp16 import FP16
from sparsifier_models.mstopk import MSTopk
from sparsifier_models.options import Options, option_values
from sparsifier_models.randomk import Randomk
from sparsifier_models.topk import LayerwiseTopk, Topk
from sparsifier_models.topka import TopkA

Cost: TypeAlias = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike], Floats]
"""Closed form: alpha [s], beta [s/byte], dense message M [byte], density c, workers N -> seconds; all may be arrays."""

Aggregate: TypeAlias = Literal["worst", "mean", "median"]


@dataclass(frozen=True)
class Candidate:
    """One way of exchanging gradients: a scheme with its options, under the name that reports use.

    Parameters
    ----------
    label : str
        Name in tables and figures, e.g. ``"ART-ring"``.
    scheme : str
        Name of the sparsifier, see `sparsifier_models.names`.
    options : mapping
        Its options, see `sparsifier_models.create`.
    """

    label: str
    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)


def closed_form(candidate: Candidate) -> Cost:
    """Return the closed form of an exchange, as Eqns 4 and 5 of the AR-Topk paper use them.

    The widths of values and indices are taken into account; with 4 bytes each the formulas are those of the paper.
    Arguments broadcast against each other.

    Raises
    ------
    ValueError
        If there is no such scheme or option, or no closed form is known for the scheme with these options.

    Examples
    --------
    >>> cost = closed_form(Candidate("AG", "topk"))
    >>> f"{cost(1e-3, 8 / 10e9, 46_758_048, 0.1, 8):.6f}"  # Table VI, ResNet-18, 10 Gbit/s
    '0.055369'
    """
    scheme = sparsifier_models.scheme(candidate.scheme)
    options: Any = option_values(scheme.option_type, candidate.options)
    # In M, the dense message of the formulas, a value has 4 bytes, and an index as many.
    value, index = (options.value_bytes or 4) / 4, (options.index_bytes or 4) / 4
    if options.wire == "paper":
        if scheme in (Dense, FP16) and options.algorithm in _ALLREDUCE:
            dense = _ALLREDUCE[options.algorithm]
            width = 0.5 if scheme is FP16 and options.value_bytes is None else value
            return lambda alpha, beta, M, c, N: dense(alpha, beta, width * np.asarray(M), N)
        if scheme is ARTopk and not options.monitored:
            reduce, votes = _ALLREDUCE[options.collective], options.selection == "var"

            def art(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
                kept = np.multiply(M, c)
                vote = costs.var_overhead(alpha, beta, N) if votes else 0.0
                return vote + costs.broadcast(alpha, beta, index * kept, N) + reduce(alpha, beta, value * kept, N)

            return art
        if scheme is Randomk and options.shared:
            shared = _ALLREDUCE[options.collective]
            return lambda alpha, beta, M, c, N: shared(alpha, beta, value * np.multiply(M, c), N)
        fused = scheme is not LayerwiseTopk or options.fused
        if scheme in _GATHERED and fused and options.allgather == "recursive_doubling":
            pair = (value + index) / 2
            return lambda alpha, beta, M, c, N: costs.topk_allgather(alpha, beta, pair * np.asarray(M), c, N)
        if scheme not in (Dense, FP16, ARTopk, *_GATHERED) and _sends_as_by_default(options):
            own = _first_cost(scheme)
            if own is not None:
                return own
    given = ", ".join(f"{name}={value}" for name, value in candidate.options.items())
    raise ValueError(
        f"no closed form is known for {candidate.label!r} ({candidate.scheme}{', ' if given else ''}{given}), so a "
        "flexible policy cannot weigh it; it can weigh dense and fp16 over ring, tree or parameter_server, top-k "
        "schemes that gather over recursive_doubling, and artopk, each on the wire 'paper', and other schemes that "
        "have a closed form with their default options"
    )


def _sends_as_by_default(options: Options) -> bool:
    """Whether all options that messages depend on have their defaults."""
    silent = ("error_feedback", "compat", "seed", "layers", "scale")
    fields = (one for one in dataclasses.fields(options) if one.name not in silent)
    return all(getattr(options, one.name) == one.default for one in fields)


def _first_cost(scheme: type[sparsifier_models.Sparsifier]) -> Cost | None:
    """Return the first of a scheme's closed forms, with k entries selected; of a bound, the bound.

    None if there is none, or it asks for more than all schemes know.
    """
    if not scheme.costs:
        return None
    cost = scheme.costs[0]
    names = signature(cost).parameters
    if {name for name, one in names.items() if one.default is Parameter.empty} - {"alpha", "beta", "M", "c", "N"}:
        return None
    widths = {"index_bytes": 4.0} if "index_bytes" in names else {}

    def closed(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
        density = {"c": c} if "c" in names else {}
        found: Floats = cost(alpha=alpha, beta=beta, M=M, N=N, **density, **widths)
        return found

    return closed


_GATHERED = (Topk, TopkA, LayerwiseTopk, MSTopk, Randomk)
_ALLREDUCE: dict[str, Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], Floats]] = {
    "ring": costs.ring_allreduce,
    "tree": costs.tree_allreduce,
    "parameter_server": costs.parameter_server,
}


@dataclass(frozen=True)
class Moment:
    """What a policy may look at before an iteration.

    Parameters
    ----------
    iteration : int
        From 0.
    now : float
        Simulated time [s].
    network : Network
        The network as it is; a policy that only monitors asks it for `Network.path` at times that have passed.
    placement : sequence of int
        Host of each worker.
    message : float
        M, bytes of the dense gradient.
    density : float
        c, target fraction kept.
    """

    iteration: int
    now: float
    network: Network
    placement: Sequence[int]
    message: float
    density: float


class Policy(Protocol):
    """Decides before each iteration which exchanges to consider."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Every exchange that the policy may ever ask for."""

    def start(self) -> None:
        """Forget everything: a job begins."""

    def shortlist(self, moment: Moment) -> Sequence[Candidate]:
        """Return the exchanges to consider now, at least one; of several the job takes the fastest."""


class Turn(NamedTuple):
    """What an adaptive policy wants next.

    Parameters
    ----------
    shortlist : sequence of Candidate
        The exchanges to consider, as `Policy.shortlist`; of an attempt the only one.
    density : float or None
        Target fraction kept; that of the job if None.
    attempt : int or None
        None for the iteration itself. Else it is exploration: the workers compute, select, exchange and update as in an
        iteration, which takes its time, and then everything is as it was before. Attempt 0 begins with the state of the
        training, attempt j goes on from attempt j - 1 with the gradients of the iteration j later, or of the last one.
        The first attempt after a death begins with the state of the training, too.
    fresh : bool
        Whether attempt 0 begins with a residual of zero instead of the one in force.
    """

    shortlist: Sequence[Candidate]
    density: float | None = None
    attempt: int | None = None
    fresh: bool = False


class Seen(NamedTuple):
    """What came of a turn.

    Parameters
    ----------
    turn : Turn
        What was asked for.
    candidate : Candidate
        The exchange that took place.
    gain : float
        Compression gain, mean of ||g_c||^2 over mean of ||g_e||^2.
    released_gain : float
        The same as released code measures it: the ratio of the norms, of the broadcasting worker alone, or the mean
        over the workers if there is none.
    compression : float
        Seconds that the slowest worker took to select, pack and unpack.
    """

    turn: Turn
    candidate: Candidate
    gain: float
    released_gain: float
    compression: float


@runtime_checkable
class Adaptive(Policy, Protocol):
    """A policy that chooses the density, too, and learns from what it sees.

    The job asks for turns until it gets an iteration, and tells what came of each. If workers die in a turn, it asks
    once more without having told anything; the attempt must then be the same.
    """

    def turn(self, moment: Moment) -> Turn:
        """Return what to do next."""

    def told(self, moment: Moment, seen: Seen) -> None:
        """Learn what came of the turn that was asked for at `moment`."""


def distinct(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates, at least one and each with a label of its own.

    Raises
    ------
    ValueError
        If not.
    """
    labels = [candidate.label for candidate in candidates]
    if not labels:
        raise ValueError("a policy needs at least one candidate")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two candidates are called {label!r}; labels tell them apart")
    return tuple(candidates)


class Fixed:
    """Always the same exchange."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidates = (candidate,)

    def start(self) -> None:
        """Forget nothing: there is nothing to remember."""

    def shortlist(self, moment: Moment) -> Sequence[Candidate]:
        """Return the one candidate."""
        return self.candidates


class Clairvoyant:
    """The exchange that is fastest on the true weather, found by simulating all of them.

    No one could act so in a real cluster: it is the bound against which the regret of others is reported.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = distinct(candidates)

    def start(self) -> None:
        """Forget nothing: there is nothing to remember."""

    def shortlist(self, moment: Moment) -> Sequence[Candidate]:
        """Return all candidates."""
        return self.candidates


@dataclass(frozen=True)
class Monitor:
    """How a flexible policy watches the links.

    Probes run beside the job, as ping and iperf would, between each worker and the next; they cost nothing. Where the
    network changes by iteration (`simnet.job.Job.stages`), they see the one in force.

    Parameters
    ----------
    every : float
        Seconds between probes, the first at time 0; 0 probes before each iteration.
    noise : float
        Standard deviation of the logarithm of a probe's error, for latency and bandwidth alike.
    change : float
        Relative change of latency or bandwidth, against what the last decision was based on, beyond which the decision
        is taken anew (10 % in the paper's talk).
    aggregate : {"worst", "mean", "median"}
        What of all pairs the closed forms see as alpha and 1/beta: the highest latency and lowest bandwidth, or the
        mean or median of both.
    seed : int
        Seed of the noise.

    Raises
    ------
    ValueError
        If a figure is negative or not finite, or `aggregate` is unknown.
    """

    every: float = 10.0
    noise: float = 0.0
    change: float = 0.1
    aggregate: Aggregate = "worst"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("every", "noise", "change"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {value}")
        if self.aggregate not in get_args(Aggregate):
            raise ValueError(f"aggregate must be one of {', '.join(get_args(Aggregate))}, got {self.aggregate!r}")

    def probe(self, moment: Moment) -> tuple[float, float]:
        """Return latency [s] and bandwidth [byte/s] as the latest probe before `moment` found them."""
        if self.every > 0:
            number = math.floor(moment.now / self.every)
            time = number * self.every
        else:
            number, time = moment.iteration, moment.now
        latency, bandwidth = probe_pairs(moment.network, moment.placement, time)
        if self.noise:
            errors = stream(self.seed, "probe", number).normal(0.0, self.noise, size=(2, latency.size))
            latency, bandwidth = latency * np.exp(errors[0]), bandwidth * np.exp(errors[1])
        if self.aggregate == "worst":
            return float(latency.max()), float(bandwidth.min())
        of = np.mean if self.aggregate == "mean" else np.median
        return float(of(latency)), float(of(bandwidth))

    def departs(self, seen: tuple[float, float], basis: tuple[float, float]) -> bool:
        """Whether latency or bandwidth seen differs from that of `basis` by more than `change`.

        Examples
        --------
        >>> Monitor(change=0.1).departs((1e-3, 1.25e9), (1e-3, 1.3e9)), Monitor(change=0.0).departs((1, 2), (1, 3))
        (False, True)
        """
        return any(abs(now - before) > self.change * before for now, before in zip(seen, basis, strict=True))


def probe_pairs(
    network: Network, placement: Sequence[int], time: float
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return latency [s] and bandwidth [byte/s] from each worker to the next at `time`; shape (P,) each.

    With fewer than two workers there is nothing to probe: one pair of zero latency and infinite bandwidth.
    """
    workers = len(placement)
    if workers < 2:
        return np.zeros(1), np.full(1, math.inf)
    paths = [network.path(placement[rank], placement[(rank + 1) % workers], time) for rank in range(workers)]
    latency, bandwidth = np.array(paths, dtype=np.float64).T
    return latency, bandwidth


class Flexible:
    """The arg-min of the closed forms at the latency and bandwidth last probed (Eqn 5 of the AR-Topk paper).

    The decision is taken anew when a probe departs from what the last one was based on by more than the monitor's
    `change`, or when the density changes. Of equal costs the first candidate wins. While a probe finds a link down,
    the decision stands.

    Parameters
    ----------
    candidates : sequence of Candidate
        Each with a closed form.
    monitor : Monitor
        How the links are watched.

    Raises
    ------
    ValueError
        If there is no candidate, or one without a closed form.
    """

    def __init__(self, candidates: Sequence[Candidate], monitor: Monitor | None = None) -> None:
        self.candidates = distinct(candidates)
        self.monitor = monitor or Monitor()
        self._costs = [closed_form(candidate) for candidate in self.candidates]
        self.start()

    def start(self) -> None:
        """Forget the last decision."""
        self._basis: tuple[float, float, float] | None = None
        self._choice = self.candidates[0]

    def shortlist(self, moment: Moment) -> Sequence[Candidate]:
        """Return the choice in force, after a new decision where one is due."""
        latency, bandwidth = self.monitor.probe(moment)
        if bandwidth > 0 and self._is_due(latency, bandwidth, moment.density):
            self._basis = latency, bandwidth, moment.density
            workers = len(moment.placement)
            found = [cost(latency, 1.0 / bandwidth, moment.message, moment.density, workers) for cost in self._costs]
            self._choice = self.candidates[int(np.argmin(found))]
        return (self._choice,)

    def _is_due(self, latency: float, bandwidth: float, density: float) -> bool:
        if self._basis is None or density != self._basis[2]:
            return True
        return self.monitor.departs((latency, bandwidth), self._basis[:2])
