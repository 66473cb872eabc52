"""Base class of training strategies: how P workers update their parameters, and what they exchange.

To write one, derive from `Strategy`, set `name` and `paper`, and write `Strategy._advance`, one inner step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base import plugins
from simnet.base.arrays import Floats, Values, check_float32
from simnet.base.errors import check_int
from simnet.sparsifier_models import Sparsifier
from simnet.sparsifier_models.base import State
from simnet.strategies.optimisers import ALL, Index, Optimiser
from simnet.strategies.replicas import NOBODY, Averager, Averaging, Fragment, Replicas, Sync, fragment_of

Stats: TypeAlias = dict[str, float | Floats]
T = TypeVar("T", bound=np.generic)


class StepResult(NamedTuple):
    """Exchanges that start after a training step of the workers, in order, and statistics of the step.

    These are ``payload`` and ``collectives`` (bytes and number), ``bytes_sent`` and ``bytes_received``, shape (P',),
    and ``drift``, the distance of each worker's parameters from the global ones.
    """

    syncs: tuple[Sync, ...]
    stats: Stats


class Strategy(ABC):
    """Base class of training strategies. P workers update `replicas` of a model with the optimiser `inner`.

    `alike`: the parameters of all workers are always equal. `takes_late`: the others may average without a late worker.
    `local` are the parameters, float32 of shape (P, n) or (1, n); `iteration` counts inner steps. `active` are the
    workers that take part in a step, a slice for all, and `late` those whose part misses the exchange.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    alike: ClassVar[bool] = False
    takes_late: bool = False
    delays: ClassVar[bool] = False
    """Whether exchanges after an iteration may arrive as late as the end of the next iteration."""
    steps: int = 1
    """Number of inner steps per iteration of a job; workers wait for exchanges only after the last inner step."""
    shares: tuple[float, ...] = (1.0,)
    """Fraction of the parameters that a job's iterations exchange, in turn."""

    def __init__(self, replicas: Replicas, inner: Optimiser) -> None:
        self.replicas = replicas
        self.inner = inner
        self.iteration = 0
        self.active: Index = ALL
        self.late = NOBODY
        self._kept: dict[str, NDArray[Any]] = {}
        self._averagers: dict[str, Averager] = {}
        self._stats: Stats = {}
        rows = 1 if self.alike else self.workers
        self.local = self.keep("local", np.tile(replicas.initial, (rows, 1)))
        self._inner_state = self.keep_state("inner", inner, rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workers} workers, {self.replicas.parameters} parameters)"

    @property
    def schemes(self) -> list[Sparsifier]:
        """The schemes by which workers average at present, each with its own residuals."""
        return [model for averager in self._averagers.values() for model in averager.in_force.models]

    @property
    def workers(self) -> int:
        """Number of workers P."""
        return self.replicas.workers

    @property
    def parameters(self) -> Values:
        """Parameters at which each worker evaluates its next gradient; float32 of shape (P, n), read-only."""
        shown = np.broadcast_to(self.local, (self.workers, self.replicas.parameters)).view()
        shown.flags.writeable = False
        return shown

    @property
    def global_parameters(self) -> Values:
        """Parameters to evaluate, float32 of shape (n,): the global ones if they exist, or the mean over workers."""
        there = self.local if self.alike else self.local[self.active]
        return np.asarray(self._kept.get("master", there).mean(axis=0))

    def step(self, gradients: Values, active: ArrayLike | None = None, late: NDArray[np.intp] = NOBODY) -> StepResult:
        """Apply the gradients of one inner step; return its statistics and the exchanges that start after it.

        Gradients are float32 of shape (P', n), at `parameters` of the `active` workers, ascending (all by default).
        Ranks of schedules are places among them, without the `late` workers; what these give goes into the residual of
        a scheme with error feedback. Raises ValueError, without changes, for invalid gradients or workers.
        """
        self.active = self._checked_active(active)
        self._check(gradients)
        if late.size and not (self.takes_late and late.size < len(gradients)):
            why = "all workers are" if self.takes_late else f"in {self.name} no worker may be"
            raise ValueError(f"{why} late: {late.tolist()!r:.200}")
        self.late = late
        self._stats = {}
        with np.errstate(over="ignore", invalid="ignore"):
            syncs = self._advance(gradients)
        if not isinstance(syncs, Sequence) or not all(isinstance(one, Sync) for one in syncs):
            raise plugins.return_error(self._advance, syncs, "a list of Sync")
        self.iteration += 1
        nothing = np.zeros(len(gradients) - late.size)
        own: Stats = {
            "payload": sum(one.payload for one in syncs),
            "collectives": float(sum(len(one.schedule.calls) for one in syncs)),
            "bytes_sent": sum((one.schedule.bytes_sent() for one in syncs), nothing),
            "bytes_received": sum((one.schedule.bytes_received() for one in syncs), nothing),
        }
        return StepResult(tuple(syncs), own | self._stats)

    def begins_exchange(self) -> bool | None:
        """Return whether an exchange starts after the next inner step; None if only that step can tell."""
        return None

    @abstractmethod
    def _advance(self, gradients: Values) -> Sequence[Sync]:
        """Apply finite gradients, float32 of shape (P', n), of P' workers, and return the exchanges that start."""

    def rejoin(self, joining: NDArray[np.intp], present: NDArray[np.intp]) -> None:
        """Set joining workers to the global parameters or, without these, to the mean over the `present` workers."""
        if self.alike:
            return
        master = self._kept.get("master")
        if master is None:
            self.local[joining] = self.local[present].mean(axis=0)
            return
        if len(master) > 1:
            master[joining] = master[present].mean(axis=0)
        self.local[joining] = master if len(master) == 1 else master[joining]

    def forget(self, leaving: NDArray[np.intp]) -> None:
        """Reset the inner optimiser state of leaving workers to zero."""
        for name, array in self._kept.items():
            if name.startswith("inner.") and not self.alike:
                array[leaving] = 0

    # What strategies are made of.

    def keep(self, name: str, array: NDArray[T]) -> NDArray[T]:
        """Add an array to the saved state, and return the array; callers may only change it in place."""
        assert name not in self._kept, f"two arrays are called {name}"
        self._kept[name] = array
        return array

    def keep_state(self, name: str, optimiser: Optimiser, rows: int) -> dict[str, NDArray[Any]]:
        """Add an optimiser's state for `rows` sets of parameters to the saved state, and return this state."""
        state = optimiser.state(rows, self.replicas.parameters)
        return {part: self.keep(f"{name}.{part}", array) for part, array in state.items()}

    def keep_master(self, outer: Optimiser, rows: int = 1) -> tuple[Values, dict[str, NDArray[Any]]]:
        """Return global parameters, float32 of shape (rows, n), and the state of `outer`; both are saved."""
        master = self.keep("master", np.tile(self.replicas.initial, (rows, 1)))
        return master, self.keep_state("outer", outer, rows)

    def averager(self, what: str, averaging: Averaging, fragment: Fragment | None = None, label: str = "") -> Averager:
        """Return an averager of `what` over a fragment or the whole model, and add its residuals to the saved state."""
        fragment = fragment or fragment_of(self.replicas, range(len(self.replicas.tensors)))
        made = self._averagers[label or what] = Averager(self.replicas, averaging, fragment, what)
        return made

    def offer(self, averaging: Averaging) -> None:
        """Add a configuration (scheme, options, bucket size) by which workers can average after a `switch`."""
        for averager in self._averagers.values():
            averager.offer(averaging)

    @property
    def ways(self) -> list[list[Sparsifier]]:
        """Schemes of each averaging configuration that `switch` accepts, in order of configuration numbers from 0."""
        every = zip(*(averager.offers for averager in self._averagers.values()), strict=True)
        return [[model for one in offers for model in one.models] for offers in every]

    def prefixes(self, number: int) -> tuple[str, ...]:
        """Return the prefixes of the names under which scheme states of averaging configuration `number` are saved."""
        return tuple(f"{label}{f':{number}' if number else ''}/" for label in self._averagers)

    def switch(self, number: int) -> None:
        """Switch to averaging configuration `number` (0: the initial one), and pass the residuals on to it."""
        for averager in self._averagers.values():
            averager.switch(number)

    def average(self, averager: Averager, rows: Values, delay: int = 0) -> tuple[Values, list[Sync]]:
        """Return the average of the `active` workers' vectors (rows), and the exchanges that compute it."""
        if self.late.size and not averager.keeps:
            behind = np.isin(np.arange(self.workers)[self.active], self.late)
            self.note("late_lost", float(np.linalg.norm(rows[behind].astype(np.float64))))
        return averager(rows, self.iteration, delay, self.active, self.late)

    def descend(self, gradients: Values) -> None:
        """Update the parameters of the `active` workers by one step of the inner optimiser."""
        self.inner.step(self.local, gradients, self._inner_state, ALL if self.alike else self.active)

    def due(self, period: int, late: bool = False) -> bool:
        """Return whether workers synchronise after this inner step; `late` delays each synchronisation by a step."""
        return self.iteration % period == 0 < self.iteration if late else (self.iteration + 1) % period == 0

    def note(self, name: str, value: float | Floats) -> None:
        """Record a statistic of this step: one number, or one for each participating worker."""
        self._stats[name] = value

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of a worker's state arrays, by name, for the whole model, without the state of schemes."""
        entries, scale = self.replicas.parameters, self.replicas.scale
        return {
            name: array.nbytes / len(array) * (scale if array.shape[-1] == entries else 1.0)
            for name, array in self._kept.items()
        }

    def save(self) -> State:
        """Return the state that later steps depend on, without options, as arrays for ``numpy.savez``."""
        state: State = {"strategy": np.array(self.name), "iteration": np.array(self.iteration)}
        if len(self.ways) > 1:
            state["in force"] = np.array(next(iter(self._averagers.values())).number)
        state |= {name: array.copy() for name, array in self._kept.items()}
        for prefix, model in self._models().items():
            state |= {f"{prefix}{name}": array for name, array in model.save().items()}
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state. ValueError: another strategy or other options have saved it."""
        if "strategy" in state and str(state["strategy"]) != self.name:
            raise ValueError(f"this is a state of {state['strategy']!s:.100}, not of {self.name}")
        models, own = self._models(), self.save()
        for name in sorted({*own, *state}):
            fits = name in own and name in state and np.shape(own[name]) == np.shape(state[name])
            if not fits and not name.startswith(tuple(models)):
                raise ValueError(f"this is no state of {self.name} with these options: {name} does not fit")
        for prefix, model in models.items():
            try:
                arrays = {name: array for name, array in state.items() if name.startswith(prefix)}
                model.restore({name.removeprefix(prefix): array for name, array in arrays.items()})
            except ValueError as error:
                raise ValueError(f"{prefix}: {error}") from None
        for name, kept in self._kept.items():
            kept[...] = state[name]
        for averager in self._averagers.values():
            averager.number = int(state.get("in force", np.zeros(())))
        self.iteration = int(state["iteration"])

    def _models(self) -> dict[str, Sparsifier]:
        """Return all schemes, used or not, by the prefix of the names of their state arrays."""
        return {
            f"{prefix}{place}/": model
            for number in range(len(self.ways))
            for prefix, averager in zip(self.prefixes(number), self._averagers.values(), strict=True)
            for place, model in enumerate(averager.offers[number].models)
        }

    def _checked_active(self, active: ArrayLike | None) -> Index:
        if active is None:
            return ALL
        given = np.asarray(active)
        within = given.ndim == 1 and given.size and np.issubdtype(given.dtype, np.integer)
        if not within or given[0] < 0 or given[-1] >= self.workers or (np.diff(given) <= 0).any():
            allowed = f"numbers of workers within 0..{self.workers - 1} that ascend"
            raise ValueError(f"active must be {allowed}, got {given.tolist()!r:.200}")
        return ALL if given.size == self.workers else given.astype(np.intp)

    def _check(self, gradients: Values) -> None:
        rows = self.workers if isinstance(self.active, slice) else self.active.size
        check_float32(gradients, (rows, self.replicas.parameters), "gradients")
        if not np.isfinite(gradients).all():
            row, index = np.argwhere(~np.isfinite(gradients))[0].tolist()
            worker = row if isinstance(self.active, slice) else int(self.active[row])
            raise ValueError(
                f"gradient of worker {worker} is {gradients[row, index]:g} at index {index}; it must be finite"
            )


class PeriodicStrategy(Strategy):
    """Base of strategies that synchronise workers every `period` inner steps; `one_late` delays this by one step."""

    def __init__(self, replicas: Replicas, inner: Optimiser, period: int, one_late: bool = False) -> None:
        super().__init__(replicas, inner)
        self.period, self.one_late = check_int(period, "period", 1), one_late
        self.steps = 1 if one_late else self.period

    def begins_exchange(self) -> bool | None:
        """Return whether workers synchronise after the next inner step."""
        return self.due(self.period, self.one_late)

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self.descend(gradients)
        return self._synchronise() if self.due(self.period, self.one_late) else []

    @abstractmethod
    def _synchronise(self) -> list[Sync]:
        """Synchronise the `active` workers, and return the exchanges that start."""


def row_distances(rows: Values, point: Values) -> Floats:
    """Return the Euclidean distance of each row, shape (P, n), from `point`, shape (n,) or (P, n); shape (P,)."""
    return np.asarray(np.linalg.norm((rows - point).astype(np.float64), axis=1))
