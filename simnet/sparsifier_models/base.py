"""What every scheme has in common: error feedback, the wire, statistics, and a state to save.

To write a scheme, derive from `Sparsifier`, give it a `name`, the `paper` it follows and, if it has any, its options,
and write `Sparsifier._communicate`: it gets what the workers have to give, takes away what is sent, and returns what
everybody receives and the messages that carried it. `simnet.sparsifier_models.topk` and
`simnet.sparsifier_models.artopk` are examples to copy.

It is a long module, because all that a scheme inherits is one class, whose exchange, statistics and state rest on one
another.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from simnet.base import plugins
from simnet.base.arrays import Adds, Floats
from simnet.base.checks import check_int, is_number
from simnet.base.rows import Rows, map_rows
from simnet.costs.devices import DeviceOp
from simnet.costs.encodings import VARYING_CODES
from simnet.schedule import Schedule
from simnet.sparsifier_models.error_buffer import add_weighted
from simnet.sparsifier_models.held import held_of
from simnet.sparsifier_models.options import Options, checked_shapes, named_layers, named_shapes, option_values
from simnet.sparsifier_models.selection import (
    Values,
    add_rows,
    count_above,
    entries_kept,
    kth_magnitude,
    squared_norm,
    squared_norms,
)
from simnet.sparsifier_models.steps import Step, in_order
from simnet.sparsifier_models.wire import Codes, Wire

Stats: TypeAlias = dict[str, float | Floats]
State: TypeAlias = dict[str, NDArray[Any]]
Cost: TypeAlias = Callable[..., Any]
T = TypeVar("T")

# As many schedules are kept as there may be workers that take turns.
_RECURRING = 64


def _checked_density(value: float) -> float:
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"density must be > 0 and <= 1, got {value!r}")
    return float(value)


def _threshold_error(threshold: float | Floats, exact: Floats) -> Stats:
    """Compare the thresholds in force with the exact ones."""
    ratio = np.full(exact.shape, np.inf)
    np.divide(threshold, exact, out=ratio, where=exact > 0)
    ratio[(exact == 0) & (np.broadcast_to(threshold, exact.shape) == 0)] = 1.0
    return {"threshold_exact": exact, "threshold_error": ratio - 1}


def checked_part(
    state: Mapping[str, Any],
    name: str,
    dtype: type[np.generic],
    shape: tuple[int | range, ...],
    least: float = -math.inf,
    most: float = math.inf,
) -> NDArray[Any]:
    """Return a copy of the array `name` of a saved `state`, converted to `dtype` without loss.

    `shape` has the length of each axis, or the range that it may lie in. ValueError: it has another type or shape, or a
    number is not finite, below `least` or above `most`.

    Examples
    --------
    >>> checked_part({"gains": np.zeros((7, 2))}, "gains", np.float64, (range(7), 2))
    Traceback (most recent call last):
    ValueError: gains must be float64 of shape (0..6, 2), got float64 of shape (7, 2)
    """
    array = np.asarray(state[name])
    lengths = [one if isinstance(one, range) else range(one, one + 1) for one in shape]
    sized = array.ndim == len(shape) and all(size in axis for size, axis in zip(array.shape, lengths, strict=True))
    if not sized or not np.can_cast(array.dtype, dtype):
        axes = ", ".join(f"{one[0]}..{one[-1]}" if isinstance(one, range) else str(one) for one in shape)
        raise ValueError(f"{name} must be {dtype.__name__} of shape ({axes}), got {array.dtype} of shape {array.shape}")
    if not (np.isfinite(array) & (array >= least) & (array <= most)).all():
        within = "" if (least, most) == (-math.inf, math.inf) else f" and in {least:g}..{most:g}"
        raise ValueError(f"{name} must be finite{within}, got {array.tolist()!r:.200}")
    return np.array(array, dtype=dtype)


def _whole(array: Any) -> bool:
    """Return whether an array may be put to another use: it is no part of another, and not read-only."""
    own: bool = array.base is None and array.flags.writeable
    return own and (isinstance(array, Rows) or array.flags.c_contiguous)


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


@dataclass
class Exchange:
    r"""What came of one exchange of gradients.

    Below, g_e is a worker's gradient with its residual, as `Sparsifier.weights` count them, g_c what it sent of it
    (Eqn 2 of the AR-Topk paper), and U the union of the entries that were sent.

    Parameters
    ----------
    update : ndarray of float32, shape (n,)
        The mean gradient that every worker applies.
    schedule : Schedule
        The messages that carried it.
    selected : ndarray of int64, shape (P,)
        Entries each worker selected itself.
    kernels : tuple of DeviceOp
        What each worker ran to select, pack, merge and unpack, and before which rounds of the schedule; see
        `simnet.sparsifier_models.steps.in_order`. `simnet.costs.devices.DeviceProfile.work` says how long it takes.
    union : int
        Number of entries in U.
    sent : ndarray of float64, shape (P,)
        Sum of squares of each worker's g_c.
    stats : dict of str to float or ndarray of float64, shape (P,)
        Statistics; a scheme may add to them.

        ==================  =================================================================================
        ``density``         actual density d', entries of U over n
        ``density_error``   |d' - d|, d being the density asked for (a definition of ours)
        ``density_ratio``   entries that a worker selected in the mean, or all if `Sparsifier.disjoint`, over k;
                            schemes that search for a threshold
        ``update_density``  entries of the update other than zero, over n
        ``worker_density``  (P,) entries that each worker selected, over n
        ``build_up``        entries of U over k: 1 if all workers send the same entries (or none), P if no two do
        ``duplicates``      entries selected by all workers together, less those of U
        ``imbalance``       P times the most entries a worker selected, over those of all workers: what padding to
                            the longest costs; 1 if nothing was selected
        ``gain``            compression gain: mean of ||g_c||^2 over mean of ||g_e||^2; 1 if all is zero
        ``worker_gain``     (P,) the same ratio for each worker
        ``given_norm``      (P,) ||g_e||
        ``sent_norm``       (P,) ||g_c||
        ``residual_norm``   (P,) norm of what the worker kept
        ``global_error``    mean of ``residual_norm``
        ``bytes_sent``      (P,) bytes each worker sends; ``bytes_received`` likewise
        ``entries``         (P,) entries that each worker's kernels went through, launch by launch
        ``threshold``       (P,) smallest magnitude a worker selected, inf if none, or, in schemes that search for
                            a threshold, the one they found; schemes with a broadcaster: one number, that of the
                            entries it selected
        ``threshold_exact``  (P,) the k-th largest magnitude of g_e; schemes that search for a threshold
        ``threshold_error``  (P,) ``threshold`` over ``threshold_exact``, less 1; inf where only the latter is 0
        ``lost``            norm of what of the sum of all g_e is neither applied nor kept; schemes that lose mass
        ``broadcaster``     the worker whose indices all others take; schemes that have one
        ``criterion``       (P,) what the broadcaster was chosen by; AR-Topk with VAR
        ==================  =================================================================================

    period : int
        As of `Sparsifier`.
    recurs : bool
        Whether schedule and kernels follow from few things that recur, so that later exchanges have the same schedule.
    left : ndarray of float64, shape (P,), optional
        Sum of squares of what each worker keeps, if the scheme has it: else it is added up.
    replicas : ndarray of float32, shape (P, n), optional
        What each worker applies, in schemes where that differs; `update` is the mean then. May lie in the gradients, if
        these may be overwritten.
    """

    update: Values
    schedule: Schedule
    selected: NDArray[np.int64]
    kernels: tuple[DeviceOp, ...]
    union: int
    sent: Floats
    stats: Stats = field(default_factory=dict)
    period: int = 1
    recurs: bool = False
    left: Floats | None = None
    replicas: Values | None = None


class Sparsifier(ABC):
    """A way for P workers to exchange gradients of n entries.

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
    keeps_residual : bool
        Whether anything can stay behind in an exchange.
    searches_threshold : bool
        Whether entries are selected by a threshold that need not be the k-th magnitude.
    disjoint : bool
        Whether no two workers can select the same entry, so that all of them together select k.
    sends_all : bool
        Whether every entry is sent, whatever the density.
    rounds_down : bool
        Whether k is floor(c n), one at least, in every mode.
    period : int
        Exchanges after which a scheme begins anew to adapt what it sends, such as thresholds that it uses again.
    reads_gradients : bool
        Whether an exchange looks at the gradients without residuals, which then cannot make room for their sums.
    separable : bool
        Whether what is done to a worker's gradient takes no other's and changes nothing else, so that gradients may be
        `simnet.base.rows.Rows`. Each class says so for itself; it does not hold for those that derive from it.
    room : (float, float)
        Gradients of all workers and of one worker that memory holds in an exchange, at most, beside the gradients with
        their residuals, if few entries are sent; up to four times those of all workers more if all are.
    overlaps : bool
        Whether an implementation is known that exchanges each bucket of PyTorch's DistributedDataParallel as soon as
        the backward pass has made it, without holding up the backward pass for it; else what is published or released
        exchanges after the backward pass, or nothing is known.
    fixed_volume : bool
        Whether messages depend on the density, and on whose turn it is, alone: not on the gradients.
    restarts : bool
        Whether it may begin afresh, as among other workers: no exchange of it is of another kind for being the first.
    kept_beside : tuple of str
        Arrays with a row of each worker that hold what it keeps back beside the residual, and goes where that goes.
    by_tensors : bool
        Whether it works on the rows and columns of tensors, which a part of a gradient cuts through.
    moments : tuple of str
        Arrays of its state that are what an optimiser remembers, which then has no memory of its own.
    costs : tuple of function
        Its closed-form costs, functions of `simnet.costs`.
    codes : Codes
        How it can send indices and values, with its options; none unless a scheme says.
    released_widths : (int, int)
        Bytes of a value and of an index on the wire ``released``.
    options : Options
        The options in force.
    wire : Wire
        The widths that follow from them.
    layers : tuple of (str, int)
        Names and sizes of the layers, if given.
    shapes, true_shapes : tuple of tuple of int
        Their shapes, rows and columns or one length, and those of the tensors that they are samples of, if given.
    iteration : int
        Number of exchanges so far. Settable: which worker broadcasts, and what is drawn, depend on it.

    Raises
    ------
    ValueError
        If a parameter is out of range, there is no option of a name, or it does not allow the value.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    option_type: ClassVar[type[Options]] = Options
    keeps_residual: ClassVar[bool] = True
    searches_threshold: bool = False
    disjoint: ClassVar[bool] = False
    sends_all: ClassVar[bool] = False
    rounds_down: ClassVar[bool] = False
    reads_gradients: bool = True
    separable: ClassVar[bool] = False
    room: ClassVar[tuple[float, float]] = (0.7, 6.0)
    overlaps: ClassVar[bool] = False
    fixed_volume: bool = False
    period: int = 1
    restarts: ClassVar[bool] = True
    kept_beside: ClassVar[tuple[str, ...]] = ()
    by_tensors: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ()
    costs: ClassVar[tuple[Cost, ...]] = ()
    released_widths: ClassVar[tuple[int, int]] = (4, 8)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.separable = vars(cls).get("separable", False)

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        self.workers = check_int(workers, "workers", 1)
        self.parameters = check_int(parameters, "parameters", 1)
        self.density = density
        self.options = option_values(self.option_type, options)
        self.codes.check(self.options)
        if self.options.indices in VARYING_CODES:
            self.fixed_volume = False
        self.layers = named_layers(self.options.layers, self.parameters)
        self.shapes = tuple(shape for _, shape in named_shapes(self.options.layers, self.parameters))
        self.true_shapes = checked_shapes(self.options.true_shapes, len(self.layers))
        self.iteration = 0
        self._residual: Any = None
        self._spare: Any = None
        self._row: Values | None = None
        self._orders: dict[Hashable, tuple[Schedule, tuple[DeviceOp, ...]]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workers} workers, {self.parameters} parameters, density {self.density:g})"

    @property
    def density(self) -> float:
        """Fraction of the entries to keep, in (0, 1]; settable between exchanges."""
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
        """Number of entries of the whole model; the gradient may be a sample of them."""
        return max(1, round(self.parameters * self.options.scale))

    @property
    def k_of_model(self) -> int:
        """Entries that the rule of the scheme selects of the whole model."""
        return self.true_parameters if self.sends_all else self._entries(self.true_parameters)

    @property
    def unit(self) -> int:
        """Entries that are selected together, such as those of a block."""
        return 1

    @property
    def k(self) -> int:
        """Entries a worker is to select: as large a share of a sample as of the whole model, one unit at least."""
        whole, scale, unit = self.k_of_model, self.options.scale, self.unit
        if scale == 1.0:
            return whole
        return min(self.parameters, unit * max(min(1, whole), round(whole / scale / unit)))

    @property
    def true_sizes(self) -> list[int]:
        """Number of entries of each layer of the model; those of the gradient may be samples."""
        if self.true_shapes:
            return [math.prod(shape) for shape in self.true_shapes]
        return [max(1, round(self.options.scale * size)) for _, size in self.layers]

    @property
    def selected_share(self) -> float:
        """Selected entries of a worker times `scale`, over those of the rule: 1 but for the rounding of a sample.

        Messages that are those of whole tensors carry as many times the entries of these.
        """
        return self.k * self.options.scale / self.k_of_model

    @property
    def enough(self) -> float:
        """Selected entries of a sample from which on the scheme behaves as with the whole model, but for rounding.

        It is ten or more for a threshold; 0 if k selects nothing, or exactly k are selected.
        """
        return 10.0 if self.searches_threshold else 0.0

    @property
    def most(self) -> int:
        """Entries that a worker may select: k, or all where a threshold decides."""
        return self.parameters if self.searches_threshold else self.k

    @property
    def wire(self) -> Wire:
        """What an entry takes on the wire: each that is selected stands for `scale` entries of the model."""
        return Wire.of(self.options, self.released_widths)

    @property
    def codes(self) -> Codes:
        """How the scheme can send indices and values, with its options; none unless a scheme says."""
        return Codes()

    def _entries(self, size: int) -> int:
        """Entries to select out of `size`: ceil(c n), or max(1, floor(c n)) as reference implementations have it."""
        if self.rounds_down or self.options.compat == "released":
            return max(1, math.floor(self.density * size))
        return entries_kept(self.density, size)

    @property
    def keeps(self) -> bool:
        """Whether what an exchange does not send becomes the residual."""
        return self.keeps_residual and self.options.error_feedback

    @property
    def conserves(self) -> bool:
        """Whether error feedback keeps all that is not applied; else ``lost`` says how much is neither."""
        return True

    @property
    def weights(self) -> tuple[float, float]:
        """Decay and gain: g_e = decay * residual + gain * gradient, by default 1 and 1.

        Conserved, or lost, is what g_e holds: decay * residual before + gain * gradient = sent + residual after. What
        decay takes counts as neither. A scheme whose gain is not 1 has `reads_gradients`.
        """
        return 1.0, 1.0

    @property
    def transforms(self) -> bool:
        """Whether coefficients of a transform are sent, each of which changes several entries of the update."""
        return False

    @property
    def tracks(self) -> bool:
        """Whether the update has entries that were not sent now: of trackers, or of steps between exchanges."""
        return False

    @property
    def residual(self) -> Values:
        """Residual of each worker: float32, shape (P, n), read-only.

        An exchange replaces the array. It is settable: one scheme can continue with the residual of another.
        """
        if self._residual is None:
            self._residual = _frozen(np.zeros((self.workers, self.parameters), dtype=np.float32))
        kept: Values = self._residual
        return kept

    @residual.setter
    def residual(self, value: Values) -> None:
        self._residual = self._checked_residual(value)

    def _checked_residual(self, value: Values) -> Values | None:
        """Return what is to be kept of a residual given; None without error feedback."""
        given: Values = self._checked(value, "residual")
        for worker, norm in enumerate(squared_norms(given)):
            if not math.isfinite(norm):
                raise ValueError(f"residual of {self._place(given, worker)}")
            if norm and not self.options.error_feedback:
                raise ValueError(f"{self.name} without error feedback keeps no residual, but was given one")
        if not self.options.error_feedback:
            return None
        # What another scheme has frozen cannot change any more and need not be copied.
        shared = given.base is None and not given.flags.writeable
        kept: Values = given if shared else _frozen(given.copy(order="C"))
        return kept

    def exchange(self, gradients: Values | Adds, *, overwrite: bool = False) -> Exchange:
        """Exchange one gradient per worker.

        Beside the gradients, memory holds three arrays of their size at most: the residual of before, that of after,
        and, for P >= 8, as much again to select, gather and add up in. The first two are one, and may be the gradients,
        if they may be overwritten.

        Parameters
        ----------
        gradients : ndarray of float32, shape (P, n), or callable
            Fresh gradients, without residual. Not modified unless they may be. Or what adds them, in place, to such an
            array, so that they take no memory of their own.
        overwrite : bool
            Whether the sum with the gradients may take the place of the residual, or, where there is none that nobody
            else has, of the gradients: if the exchange is refused, there is no residual any more. Whichever of the two
            is left over `spare` returns then, and the update may lie in it.

        Returns
        -------
        Exchange

        Raises
        ------
        ValueError
            If `gradients` has another shape or dtype, or an entry that is NaN or infinite, or that becomes so when the
            residual is added or the workers are summed. The state is then what it was, but for `overwrite`.
        """
        fresh = None if callable(gradients) and not self.reads_gradients else self._given(gradients)
        corrected = self._sums(fresh, overwrite)
        with np.errstate(over="ignore", invalid="ignore"):
            if fresh is None:
                assert callable(gradients)
                if self._residual is not None and self._residual is not corrected:
                    corrected[:] = self._residual
                if self.weights[0] != 1.0:
                    corrected *= np.float32(self.weights[0])
                try:
                    norms = gradients(corrected)
                except BaseException:
                    # It has some of the gradients, and nobody knows which.
                    if overwrite:
                        self._residual = None
                    raise
                given = squared_norms(corrected) if norms is None else norms
            elif self.weights == (1.0, 1.0):
                given = add_rows(fresh, self._residual, corrected)
            else:
                given = add_weighted(fresh, self._residual, corrected, *self.weights)
            refused = ""
            for worker in np.flatnonzero(~np.isfinite(given)).tolist()[:1]:
                refused = self._place(corrected if fresh is None else fresh, worker, corrected)
            if overwrite:
                self._residual = None
            if refused:
                raise ValueError(f"gradient of {refused}")
            fresh = corrected if fresh is None else fresh
            own = self._own_state()
            measures_loss = self.options.error_feedback and not self.conserves
            total = corrected.sum(axis=0, dtype=np.float64) if measures_loss else None
            exact = np.zeros(0)
            if self.searches_threshold:
                kth = partial(kth_magnitude, k=self.k)
                exact = np.array(list(map_rows(kth, corrected))) if self.k else np.full(self.workers, np.inf)
            try:
                exchange = self._communicate(corrected, fresh)
                if not isinstance(exchange, Exchange) or not isinstance(exchange.schedule, Schedule):
                    raise plugins.return_error(self._communicate, exchange, "an Exchange with a Schedule")
                if not (math.isfinite(squared_norm(exchange.update)) or np.isfinite(exchange.update).all()):
                    index = int(np.argmin(np.isfinite(exchange.update)))
                    raise ValueError(
                        f"the sum over the workers overflows float32 at index {index}, where the update is "
                        f"{exchange.update[index]:g}"
                    )
            except BaseException:
                self._restore_own(own)
                raise

        exchange.period = self.period
        exchange.recurs = any(exchange.schedule is schedule for schedule, _ in self._orders.values())
        exchange.kernels = tuple(one.scaled(self.options.scale) for one in exchange.kernels)
        kept = np.zeros(self.workers)
        if self.keeps:
            kept = squared_norms(corrected) if exchange.left is None else exchange.left
        if exact.size:
            exchange.stats |= _threshold_error(exchange.stats["threshold"], exact)
        if total is not None:
            total -= np.multiply(exchange.update, self.workers, dtype=np.float64)
            for row in corrected if self.keeps else ():
                total -= row
            exchange.stats["lost"] = math.sqrt(squared_norm(total))
        exchange.stats |= self._statistics(exchange, given, kept)
        if overwrite:
            left = corrected if not self.keeps else fresh if fresh is not corrected else None
            self._spare = left if left is not None and _whole(left) else None
        self._residual = _frozen(corrected) if self.keeps else None
        self.iteration += 1
        return exchange

    def _given(self, gradients: Values | Adds) -> Any:
        """Return the gradients as an array."""
        if not callable(gradients):
            return self._checked(gradients, "gradients")
        made = np.zeros((self.workers, self.parameters), dtype=np.float32)
        gradients(made)
        return made

    def _sums(self, fresh: Any, overwrite: bool) -> Any:
        """Return the array that takes the gradients with their residuals: that of either, if it may, or a new one."""
        # If somebody else has the residual, too, it must not change: two references are those here.
        alike = fresh is None or isinstance(self._residual, type(fresh))
        if overwrite and alike and self._residual is not None and sys.getrefcount(self._residual) == 2:
            self._residual.flags.writeable = True
            return self._residual
        if overwrite and fresh is not None and not self.reads_gradients and _whole(fresh):
            return fresh
        elsewhere = isinstance(fresh, Rows)
        return fresh.zeros() if elsewhere else np.zeros((self.workers, self.parameters), dtype=np.float32)

    def _in_order(self, key: Hashable, steps: Callable[[], Iterable[Step]]) -> tuple[Schedule, tuple[DeviceOp, ...]]:
        """Return `in_order` of steps that follow from a key and the density, the same objects if they recur soon."""
        key = (key, self.density)
        if (found := self._orders.get(key)) is not None:
            return found
        found = in_order(self.workers, *steps())
        if self.workers <= _RECURRING:
            if len(self._orders) == _RECURRING:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = found
        return found

    def _exchanged(self, key: str, update: Values, steps: Callable[[], Iterable[Step]], **more: Any) -> Exchange:
        """Return an exchange by which everything was sent, with further fields of it."""
        schedule, kernels = self._in_order(key, steps)
        return Exchange(
            update=update,
            schedule=schedule,
            selected=np.full(self.workers, self.parameters),
            kernels=kernels,
            union=self.parameters,
            **more,
        )

    def _each(self, work: Callable[..., T], corrected: Any) -> Iterator[T]:
        """Yield what a method returns of each row and of its number; where rows are elsewhere, that of a copy."""
        if not isinstance(corrected, Rows):
            return map(work, corrected, range(self.workers))
        there = copy(self)
        there._residual, there._spare, there._row, there._orders = None, None, None, {}
        return corrected.each(MethodType(work.__func__, there), range(self.workers))  # type: ignore[attr-defined]

    def spare(self) -> Any:
        """Return the array, shape (P, n), that an exchange left for the next gradients; None if none."""
        left = self._spare is not None and sys.getrefcount(self._spare) == 2
        spare, self._spare = self._spare, None
        return spare if left else None

    def _row_of_zeros(self) -> Values:
        """Return zeros for the update, float32 of shape (n,); the array of the last exchange if it is free."""
        if self._row is None or sys.getrefcount(self._row) > 2:
            self._row = np.zeros(self.parameters, dtype=np.float32)
        else:
            self._row[:] = 0
        return self._row

    @abstractmethod
    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        """Carry out one exchange, without the statistics that all schemes have.

        `corrected` (P, n) is gradients plus residuals, all finite; it becomes the new residuals. `gradients` are not
        modified.
        """

    def _statistics(self, exchange: Exchange, given: Floats, kept: Floats) -> Stats:
        """Statistics that all schemes have, from the sums of squares before and after."""
        residual_norm = np.sqrt(kept)
        density, selected = exchange.union / self.parameters, int(exchange.selected.sum())
        entries = np.zeros(self.workers)
        for one in [one for kernel in exchange.kernels for one in kernel.passes]:
            entries += one.launches * one.segments * np.asarray(one.entries, dtype=np.float64)
        return {
            "density": density,
            "density_error": abs(density - self.density),
            **({"density_ratio": self._density_ratio(exchange)} if self.searches_threshold else {}),
            "update_density": float(count_above(exchange.update, 0.0)) / self.parameters,
            "worker_density": exchange.selected / self.parameters,
            "build_up": exchange.union / self.k if self.k else 1.0,
            "duplicates": float(selected - exchange.union),
            "imbalance": self.workers * int(exchange.selected.max()) / selected if selected else 1.0,
            "gain": float(exchange.sent.sum() / given.sum()) if given.any() else 1.0,
            "worker_gain": np.divide(exchange.sent, given, out=np.ones(self.workers), where=given > 0),
            "given_norm": np.sqrt(given),
            "sent_norm": np.sqrt(exchange.sent),
            "residual_norm": residual_norm,
            "global_error": float(residual_norm.mean()),
            "bytes_sent": exchange.schedule.bytes_sent(),
            "bytes_received": exchange.schedule.bytes_received(),
            "entries": entries,
        }

    def _density_ratio(self, exchange: Exchange) -> float:
        """Return how many entries were selected over how many were asked for: of all workers, or of each."""
        together = exchange.union if self.disjoint else float(exchange.selected.mean())
        return together / self.k if self.k else 1.0

    def save(self) -> State:
        """Return the state that the next exchange depends on, as arrays for ``numpy.savez``.

        Examples
        --------
        >>> from simnet.sparsifier_models import create
        >>> model = create("topk", workers=2, parameters=4, density=0.25)
        >>> _ = model.exchange(np.ones((2, 4), dtype=np.float32))
        >>> twin = create("topk", workers=2, parameters=4)
        >>> twin.restore(model.save())
        >>> twin.density, twin.iteration
        (0.25, 1)
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
        """Resume from a saved state.

        Raises ValueError if it does not fit this scheme and these sizes; the state in force then stays.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"a state must be a mapping of names to arrays, got {type(state).__name__}")
        if "scheme" in state and str(state["scheme"]) != self.name:
            raise ValueError(f"this is a state of {state['scheme']!s:.100}, not of {self.name}")
        needed = {"scheme", "shape", "density", "iteration", "has_residual", *self._own_state()}
        if "has_residual" in state and checked_part(state, "has_residual", np.bool_, ()):
            needed.add("residual")
        missing, foreign = needed - set(state), set(state) - needed
        if missing or foreign:
            wrong = ", ".join(
                [f"no {one}" for one in sorted(missing)] + [f"an unknown {one}" for one in sorted(foreign)]
            )
            raise ValueError(f"this is no state of {self.name}: there is {wrong}")
        shape = tuple(checked_part(state, "shape", np.int64, (2,)).tolist())
        if shape != (self.workers, self.parameters):
            raise ValueError(
                f"the state is of shape {shape}, but there are {self.workers} workers and {self.parameters} parameters"
            )
        density = _checked_density(checked_part(state, "density", np.float64, ()).item())
        iteration = checked_part(state, "iteration", np.int64, (), 0).item()
        residual = self._checked_residual(state["residual"]) if "residual" in needed else None
        self._restore_own({name: state[name] for name in self._own_state()})
        self._density, self._iteration, self._residual = density, iteration, residual

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes that a worker holds between exchanges, by the names of arrays, of the whole model."""
        return held_of(self)

    def _own_state(self) -> State:
        """State of the scheme besides density, iteration and residual; arrays that it replaces and does not change."""
        return {}

    def _restore_own(self, state: State) -> None:
        """Take back what `_own_state` returned; ValueError, with nothing taken, if it does not fit."""
        assert not state, "a scheme with a state of its own takes it back"

    def _checked(self, value: Any, name: str) -> Any:
        if isinstance(value, Rows) and not self.separable:
            raise ValueError(f"{self.name} takes gradients that are here together, not those of shards")
        if not isinstance(value, (np.ndarray, Rows)) or value.dtype != np.float32:
            found = value.dtype if hasattr(value, "dtype") else type(value).__name__
            raise ValueError(f"{name} must be an array of float32, got {found}")
        if value.shape != (self.workers, self.parameters):
            raise ValueError(f"{name} must have shape {(self.workers, self.parameters)}, got {value.shape}")
        return value

    def _place(self, rows: Values, worker: int, summed: Values | None = None) -> str:
        """Describe the first entry of a worker's row that is not finite."""
        row = rows[worker] if summed is None else summed[worker]
        index = int(np.argmin(np.isfinite(row)))
        what = f"{row[index]:g}" if not np.isfinite(rows[worker][index]) else "too large with its residual"
        if rows is summed and np.isinf(row[index]) and self._residual is not None:
            what = "infinite, or too large with its residual,"
        ends = np.cumsum([size for _, size in self.layers])
        layer = ""
        if self.layers:
            at = int(np.searchsorted(ends, index, side="right"))
            name, size = self.layers[at]
            layer = f" (entry {index - int(ends[at]) + size} of {name})"
        return f"worker {worker} is {what} at index {index}{layer}; it must be finite"
