"""Base class of sparsification schemes: error feedback, wire format, statistics, saved state.

A scheme in which workers select for themselves derives from `simnet.sparsifier_models.gathered.Gathered` and has two
methods; any other derives from `Sparsifier`. What jobs and reports ask of it: `simnet.sparsifier_models.traits.Traits`.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from simnet.base import plugins
from simnet.base.arrays import Adds, Floats, check_float32
from simnet.base.errors import check_int, is_number
from simnet.base.rows import Rows, map_rows
from simnet.cost_models.costs.devices import DeviceOp
from simnet.cost_models.costs.encodings import VARYING_CODES
from simnet.schedule import Schedule
from simnet.sparsifier_models import selection
from simnet.sparsifier_models.exchange import (
    Exchange,
    State,
    Stats,
    checked_part,
    exchange_statistics,
    frozen,
    is_reusable,
    state_size,
    threshold_error,
)
from simnet.sparsifier_models.options import Options, checked_shapes, named_shapes, option_values
from simnet.sparsifier_models.selection import Values
from simnet.sparsifier_models.traits import Cost, Traits
from simnet.sparsifier_models.wire import Step, Wire, in_order

__all__ = ["Cost", "Exchange", "Sparsifier", "State", "Stats", "Step", "Traits"]

T = TypeVar("T")

# As many schedules are kept as there may be workers that take turns.
_RECURRING = 64


def _checked_density(value: float) -> float:
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"density must be > 0 and <= 1, got {value!r}")
    return float(value)


class Sparsifier(ABC):
    """Base class of schemes that exchange gradients of n entries among P workers.

    Parameters
    ----------
    workers, parameters, density, **options
        As of `simnet.sparsifier_models.create`.

    Attributes
    ----------
    name, paper : str
        What the scheme is called, and where it is published.
    option_type : type of Options
        Its options, with defaults.
    traits : Traits
        Properties that jobs and reports query; for an instance they take its options into account.
    options : Options
        The options in force.
    layers : tuple of (str, int)
        Names and sizes of the layers, if given.
    shapes, true_shapes : tuple of tuple of int
        Their shapes, rows and columns or one length, and those of the tensors that they are samples of, if given.

    Raises
    ------
    ValueError
        If a parameter is out of range, there is no option of a name, or it does not allow the value.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    option_type: ClassVar[type[Options]] = Options
    traits: Traits = Traits()

    def __init_subclass__(cls, **traits: Any) -> None:
        """Set a subclass's `traits` from keywords such as ``separable=True``, and `option_type` from its annotation."""
        super().__init_subclass__()
        if stray := sorted(set(vars(cls)) & set(Traits.__dataclass_fields__)):
            raise TypeError(f"traits of {cls.__name__} are keywords of its class: {', '.join(stray)}")
        traits |= {name: getattr(cls.traits, name) + traits.get(name, ()) for name in ("state", "history")}
        traits = {"separable": False, "is_third_party": not cls.__module__.startswith("simnet."), **traits}
        cls.traits = replace(cls.traits, **traits)
        hint = vars(cls).get("__annotations__", {}).get("options", cls.option_type)
        cls.option_type = getattr(sys.modules[cls.__module__], hint) if isinstance(hint, str) else hint
        if not (isinstance(cls.option_type, type) and issubclass(cls.option_type, Options)):
            raise TypeError(f"{cls.__name__} has an option_type that is no Options class")

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        self.workers = check_int(workers, "workers", 1)
        self.parameters = check_int(parameters, "parameters", 1)
        self.density = density
        self.options = option_values(self.option_type, options)
        self._set_traits(**self._option_traits())
        self.traits.codes.check(self.options)
        if self.options.indices in VARYING_CODES:
            self._set_traits(fixed_volume=False)
        shapes = named_shapes(self.options.layers, self.parameters)
        self.layers = tuple((name, math.prod(shape)) for name, shape in shapes)
        self.shapes = tuple(shape for _, shape in shapes)
        self.true_shapes = checked_shapes(self.options.true_shapes, len(self.layers))
        self.iteration = 0
        self._residual: Any = None
        self._is_lent = False
        self._spare: Any = None
        self._orders: dict[Hashable, tuple[Schedule, tuple[DeviceOp, ...]]] = {}
        self._set_up()

    def _set_up(self) -> None:  # noqa: B027 - most schemes have nothing of their own
        """Initialise the state that is specific to the scheme, after options, layers and traits are set."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workers} workers, {self.parameters} parameters, density {self.density:g})"

    def __copy__(self) -> Self:
        """Return a shallow copy that shares the residual; neither copy may then overwrite it."""
        twin = object.__new__(type(self))
        self._is_lent = True
        vars(twin).update(vars(self), _spare=None)
        return twin

    def _option_traits(self) -> dict[str, Any]:
        """Return the fields of `traits` whose values depend on the options, by name."""
        return {}

    def _set_traits(self, **traits: Any) -> None:
        self.traits = replace(self.traits, **traits)

    @property
    def density(self) -> float:
        """Target fraction of the entries to send, in (0, 1]; settable between exchanges."""
        return self._density

    @density.setter
    def density(self, value: float) -> None:
        self._density = _checked_density(value)

    @property
    def iteration(self) -> int:
        """Number of exchanges so far; settable between exchanges."""
        return self._iteration

    @iteration.setter
    def iteration(self, value: int) -> None:
        self._iteration = check_int(value, "iteration", 0)

    @property
    def true_parameters(self) -> int:
        """Number of entries of the whole model, of which the gradient may be a sample."""
        return max(1, round(self.parameters * self.options.scale))

    @property
    def k_of_model(self) -> int:
        """Number of entries that each worker selects of the whole model, of which the gradient may be a sample."""
        return self.true_parameters if self.traits.sends_all else self._entries(self.true_parameters)

    @property
    def unit(self) -> int:
        """Number of entries that are selected together, such as the entries of a block."""
        return 1

    @property
    def k(self) -> int:
        """Number of entries that a worker selects of this gradient, which may be a sample of the model's gradient."""
        whole, scale, unit = self.k_of_model, self.options.scale, self.unit
        if scale == 1.0:
            return whole
        return min(self.parameters, unit * max(min(1, whole), round(whole / scale / unit)))

    @property
    def true_sizes(self) -> list[int]:
        """Number of entries of each layer of the model; the layers of the gradient may be samples of them."""
        if self.true_shapes:
            return [math.prod(shape) for shape in self.true_shapes]
        return [max(1, round(self.options.scale * size)) for _, size in self.layers]

    @property
    def selected_share(self) -> float:
        """Density selected in the gradient sample, divided by that in the full model; 1 but for rounding."""
        return self.k * self.options.scale / self.k_of_model

    @property
    def enough(self) -> float:
        """Minimum number of selected entries for a representative gradient sample; 0 if any number is enough."""
        return 10.0 if self.traits.searches_threshold else 0.0

    @property
    def max_selected(self) -> int:
        """Largest number of entries a worker may select: k, or all entries if it searches for a threshold."""
        return self.parameters if self.traits.searches_threshold else self.k

    @property
    def wire(self) -> Wire:
        """Byte sizes of counts in messages, and of values and indices, scaled up if the gradient is only a sample."""
        return Wire.of(self.options, self.traits.released_widths)

    def _entries(self, size: int) -> int:
        """Return how many of `size` entries to select: density times size, rounded up, or down as in released code."""
        if self.traits.rounds_down or self.options.compat == "released":
            return max(1, math.floor(self.density * size))
        return selection.entries_kept(self.density, size)

    @property
    def keeps(self) -> bool:
        """Whether workers keep the entries that they do not send as their residual."""
        return self.traits.keeps_residual and self.options.error_feedback

    @property
    def residual(self) -> Values:
        """Residual of each worker: float32, shape (P, n), read-only.

        No exchange changes an array that was read or set here. It is settable: one scheme can continue with the
        residual of another.
        """
        if self._residual is None:
            self._residual = frozen(np.zeros((self.workers, self.parameters), dtype=np.float32))
        self._is_lent = True
        kept: Values = self._residual
        return kept

    @residual.setter
    def residual(self, value: Values) -> None:
        self._residual, self._is_lent = self._checked_residual(value), True

    def _checked_residual(self, value: Values) -> Values | None:
        """Return a read-only copy of a finite residual; None without error feedback, where it must be all 0."""
        given: Values = self._checked(value, "residual")
        for worker, norm in enumerate(selection.squared_norms(given)):
            if not math.isfinite(norm):
                raise ValueError(f"residual of {self._place(given, worker)}")
            if norm and not self.options.error_feedback:
                raise ValueError(f"{self.name} without error feedback keeps no residual, but was given one")
        if not self.options.error_feedback:
            return None
        # What another scheme has frozen cannot change any more and need not be copied.
        shared = given.base is None and not given.flags.writeable
        return given if shared else frozen(given.copy(order="C"))

    def exchange(self, gradients: Values | Adds, *, overwrite: bool = False) -> Exchange:
        """Exchange one gradient per worker with error feedback; return their mean, messages, kernels and statistics.

        Parameters
        ----------
        gradients : ndarray of float32, shape (P, n), or callable
            Fresh gradients without the residual, or a function that adds them in place to an array of that shape.
        overwrite : bool
            If false, no array of the caller is modified. If true, the exchange may overwrite `gradients` and arrays
            that `save` returned: it stores gradient plus residual in the array of the residual or, if the caller has
            read that one, in `gradients`; `spare` then returns the array that is no longer needed. If such an exchange
            is refused, the residual is lost.

        Raises
        ------
        ValueError
            If `gradients` has another shape or dtype, or an entry that is NaN or infinite, or becomes so when the
            residual is added or the workers are summed. The state is then as before, unless `overwrite` is true.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            fresh, corrected, given = self._add_residual(gradients, overwrite)
            measures_loss = self.options.error_feedback and not self.traits.conserves
            total = corrected.sum(axis=0, dtype=np.float64) if measures_loss else None
            exact = np.zeros(0)
            if self.traits.searches_threshold:
                kth = partial(selection.kth_magnitude, k=self.k)
                exact = np.array(list(map_rows(kth, corrected))) if self.k else np.full(self.workers, np.inf)
            exchange = self._communicate_or_undo(corrected, fresh)
        exchange.period = self.traits.period
        exchange.recurs = any(exchange.schedule is schedule for schedule, _ in self._orders.values())
        exchange.kernels = tuple(one.scaled(self.options.scale) for one in exchange.kernels)
        kept = selection.squared_norms(corrected) if self.keeps else np.zeros(self.workers)
        if exact.size:
            exchange.stats |= threshold_error(exchange.stats["threshold"], exact)
        if total is not None:
            total -= np.multiply(exchange.update, self.workers, dtype=np.float64)
            for row in corrected if self.keeps else ():
                total -= row
            exchange.stats["lost"] = math.sqrt(selection.squared_norm(total))
        exchange.stats |= self._statistics(exchange, given, kept)
        if overwrite:
            left = fresh if self.keeps and fresh is not corrected else None if self.keeps else corrected
            is_free = left is not None and is_reusable(left, exchange.update) and exchange.replicas is None
            self._spare = left if is_free else None
        self._residual, self._is_lent = frozen(corrected) if self.keeps else None, False
        self.iteration += 1
        return exchange

    def _add_residual(self, gradients: Values | Adds, overwrite: bool) -> tuple[Any, Any, Floats]:
        """Return each worker's gradient, its sum with the residual, and the squared norm of that sum, shape (P,)."""
        fresh = None if callable(gradients) and not self.traits.reads_gradients else self._given(gradients)
        corrected = self._sums(fresh, overwrite)
        if fresh is None:
            assert callable(gradients)
            if self._residual is not None and self._residual is not corrected:
                corrected[:] = self._residual
            if self.traits.weights[0] != 1.0:
                corrected *= np.float32(self.traits.weights[0])
            try:
                gradients(corrected)
            except BaseException:
                # It has some of the gradients, and nobody knows which.
                if overwrite:
                    self._residual = None
                raise
            given = selection.squared_norms(corrected)
        else:
            given = selection.add_rows(fresh, self._residual, corrected, *self.traits.weights)
        refused = ""
        for worker in np.flatnonzero(~np.isfinite(given)).tolist()[:1]:
            refused = self._place(corrected if fresh is None else fresh, worker, corrected)
        if overwrite:
            self._residual = None
        if refused:
            raise ValueError(f"gradient of {refused}")
        return corrected if fresh is None else fresh, corrected, given

    def _communicate_or_undo(self, corrected: Any, fresh: Any) -> Exchange:
        """Carry out `_communicate` and return its exchange; restore the scheme's state if it raises."""
        own = self._own_state()
        try:
            exchange = self._communicate(corrected, fresh)
            if not isinstance(exchange, Exchange) or not isinstance(exchange.schedule, Schedule):
                raise plugins.return_error(self._communicate, exchange, "an Exchange with a Schedule")
            if not (math.isfinite(selection.squared_norm(exchange.update)) or np.isfinite(exchange.update).all()):
                index = int(np.argmin(np.isfinite(exchange.update)))
                raise ValueError(
                    f"the sum over the workers overflows float32 at index {index}, where the update is "
                    f"{exchange.update[index]:g}"
                )
        except BaseException:
            self._restore_own(own)
            raise
        return exchange

    def _given(self, gradients: Values | Adds) -> Any:
        """Return the gradients as an array, shape (P, n); a function `gradients` adds them to an array of zeros."""
        if not callable(gradients):
            return self._checked(gradients, "gradients")
        made = np.zeros((self.workers, self.parameters), dtype=np.float32)
        gradients(made)
        return made

    def _sums(self, fresh: Any, overwrite: bool) -> Any:
        """Return an array to hold gradients plus residuals: one of the two if it may be overwritten, else a new one."""
        alike = fresh is None or isinstance(self._residual, type(fresh))
        if overwrite and alike and self._residual is not None and not self._is_lent:
            self._residual.flags.writeable = True
            return self._residual
        if overwrite and fresh is not None and not self.traits.reads_gradients and is_reusable(fresh):
            return fresh
        elsewhere = isinstance(fresh, Rows)
        return fresh.zeros() if elsewhere else np.zeros((self.workers, self.parameters), dtype=np.float32)

    def _make_exchange(
        self, update: Values, steps: Iterable[Step], sent: Floats, *, key: Hashable = None, **fields: Any
    ) -> Exchange:
        """Return an exchange with the messages and kernels of `steps`, cached by `key`, and with the given `fields`."""
        # `steps` is what workers do, in order, see `simnet.sparsifier_models.wire.in_order`. If it follows from a
        # `key` and the density alone, it is run through once, so that the schedule stays the same object.
        key = (key, self.density)
        found = self._orders.get(key) or in_order(self.workers, *steps)
        if key[0] is not None and self.workers <= _RECURRING:
            if len(self._orders) == _RECURRING and key not in self._orders:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = found
        fields.setdefault("union", self.parameters)
        fields.setdefault("selected", np.full(self.workers, fields["union"]))
        return Exchange(update=update, schedule=found[0], kernels=found[1], sent=sent, **fields)

    def _each(self, work: Callable[..., T], corrected: Any) -> Iterator[T]:
        """Yield ``work(row, worker)`` for each worker's row of `corrected`."""
        if not isinstance(corrected, Rows):
            return map(work, corrected, range(self.workers))
        there = object.__new__(type(self))
        vars(there).update(vars(self), _residual=None, _spare=None, _orders={})
        return corrected.each(MethodType(work.__func__, there), range(self.workers))  # type: ignore[attr-defined]

    def spare(self) -> Any:
        """Return an array, shape (P, n), that the last exchange no longer needs, for re-use; None if there is none."""
        spare, self._spare = self._spare, None
        return spare

    @abstractmethod
    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        """Carry out one exchange; the caller then adds the statistics that all schemes have in common.

        `corrected` (P, n), gradients plus residuals, all finite, becomes the new residuals. `gradients` stay unchanged.
        """

    def _statistics(self, exchange: Exchange, given: Floats, kept: Floats) -> Stats:
        """Return an exchange's statistics, given squared norms of workers' vectors before it and residuals after it."""
        return exchange_statistics(exchange, self.density, self.k, given, kept, self._density_ratio(exchange))

    def _density_ratio(self, exchange: Exchange) -> float | None:
        """Return the ratio of selected entries to k, the number to select; None if the scheme selects exactly k."""
        if not (self.traits.searches_threshold or self.traits.is_third_party):
            return None
        together = exchange.union if self.traits.disjoint else float(exchange.selected.mean())
        return together / self.k if self.k else 1.0

    def save(self) -> State:
        """Return the state that the next exchange depends on, as arrays for ``numpy.savez``.

        The arrays are the scheme's own: copy what has to outlast an exchange that may overwrite.
        """
        state: State = {
            "scheme": np.array(self.name),
            "shape": np.array([self.workers, self.parameters]),
            "density": np.array(self.density),
            "iteration": np.array(self.iteration),
            "has_residual": np.array(self._residual is not None),
            **self._own_state(),
        }
        return state if self._residual is None else {**state, "residual": self._residual}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a state that `save` returned.

        Raises ValueError if it does not fit this scheme and these sizes; the state in force then stays.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"a state must be a mapping of names to arrays, got {type(state).__name__}")
        if "scheme" in state and str(state["scheme"]) != self.name:
            raise ValueError(f"this is a state of {state['scheme']!s:.100}, not of {self.name}")
        needed = {"scheme", "shape", "density", "iteration", "has_residual", *self._own_state()}
        if "has_residual" in state and checked_part(state, "has_residual", np.bool_, ()):
            needed.add("residual")
        missing = [f"no {one}" for one in sorted(needed - set(state))]
        if wrong := missing + [f"an unknown {one}" for one in sorted(set(state) - needed)]:
            raise ValueError(f"this is no state of {self.name}: there is {', '.join(wrong)}")
        shape = tuple(checked_part(state, "shape", np.int64, (2,)).tolist())
        if shape != (self.workers, self.parameters):
            raise ValueError(
                f"the state is of shape {shape}, but there are {self.workers} workers and {self.parameters} parameters"
            )
        density = _checked_density(checked_part(state, "density", np.float64, ()).item())
        iteration = check_int(checked_part(state, "iteration", np.int64, ()).item(), "iteration", 0)
        residual = self._checked_residual(state["residual"]) if "residual" in needed else None
        self._restore_own({name: state[name] for name in self._own_state()})
        self._density, self._iteration, self._residual, self._is_lent = density, iteration, residual, True

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a worker stores between exchanges, by name, for the whole model."""
        return state_size(self.save(), self.workers, self.parameters, self.options.scale)

    def _own_state(self) -> State:
        """Return the state arrays specific to the scheme by name, without density, iteration and residual."""
        return {name: np.asarray(getattr(self, name)) for name in (*self.traits.state, *self.traits.history)}

    def _restore_own(self, state: State) -> None:
        """Set the state specific to the scheme; ValueError, without any change, if an array does not fit."""
        found: dict[str, Any] = {}
        for name, now in self._own_state().items():
            first = (None,) if name in self.traits.history else now.shape[:1]
            part = checked_part(state, name, now.dtype.type, (*first, *now.shape[1:]))
            found[name] = part if isinstance(getattr(self, name), np.ndarray) else part.item()
        vars(self).update(found)

    def _checked(self, value: Any, name: str) -> Any:
        if isinstance(value, Rows) and not self.traits.separable:
            raise ValueError(f"{self.name} takes gradients that are here together, not those of shards")
        check_float32(value, (self.workers, self.parameters), name)
        return value

    def _place(self, rows: Values, worker: int, summed: Values | None = None) -> str:
        """Return an error message that locates the first non-finite entry of a worker's row."""
        row = rows[worker] if summed is None else summed[worker]
        index = int(np.argmin(np.isfinite(row)))
        what = f"{row[index]:g}" if not np.isfinite(rows[worker][index]) else "too large with its residual"
        if rows is summed and np.isinf(row[index]) and self._residual is not None:
            what = "infinite, or too large with its residual,"
        layer, end = "", 0
        for name, size in self.layers:
            begin, end = end, end + size
            layer = f" (entry {index - begin} of {name})" if begin <= index < end else layer
        return f"worker {worker} is {what} at index {index}{layer}; it must be finite"
