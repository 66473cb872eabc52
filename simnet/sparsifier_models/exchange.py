"""Result and statistics of an exchange of gradients, and checks of saved arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rows import Rows
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.selection import Values, count_above

Stats: TypeAlias = dict[str, float | Floats]
State: TypeAlias = dict[str, NDArray[Any]]


def threshold_error(threshold: float | Floats, exact: Floats) -> Stats:
    """Return two statistics by name: the exact thresholds, and the relative errors of the thresholds used."""
    ratio = np.full(exact.shape, np.inf)
    np.divide(threshold, exact, out=ratio, where=exact > 0)
    ratio[(exact == 0) & (np.broadcast_to(threshold, exact.shape) == 0)] = 1.0
    return {"threshold_exact": exact, "threshold_error": ratio - 1}


def checked_part(
    state: Mapping[str, Any], name: str, dtype: type[np.generic], shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Return a copy of the array `name` of a saved `state`, converted to `dtype` without loss.

    `shape` has the length of each axis, None for any. ValueError: it has another type or shape, or a number is not
    finite.

    Examples
    --------
    >>> checked_part({"gains": np.zeros((7, 3))}, "gains", np.float64, (None, 2))
    Traceback (most recent call last):
    ValueError: gains must be float64 of shape (any, 2), got float64 of shape (7, 3)
    """
    array = np.asarray(state[name])
    lengths = tuple(size if one is None else one for one, size in zip(shape, array.shape, strict=False))
    if array.shape != lengths or array.ndim != len(shape) or not np.can_cast(array.dtype, dtype):
        axes = ", ".join("any" if one is None else str(one) for one in shape)
        raise ValueError(f"{name} must be {dtype.__name__} of shape ({axes}), got {array.dtype} of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array.tolist()!r:.200}")
    return np.array(array, dtype=dtype)


@dataclass
class Exchange:
    r"""Result of one exchange of the workers' gradients: the mean update, messages, kernels and statistics.

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
        `simnet.sparsifier_models.wire.in_order`. `simnet.cost_models.costs.devices.DeviceProfile.work` says how long
        it takes.
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
        ``lost``            norm of the part of the sum of all g_e neither applied nor kept; schemes that lose mass
        ``broadcaster``     the worker whose indices all others take; schemes that have one
        ``criterion``       (P,) what the broadcaster was chosen by; AR-Topk with VAR
        ==================  =================================================================================

    period : int
        As of `Sparsifier`.
    recurs : bool
        Whether schedule and kernels repeat, so that later exchanges have the same schedule object.
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
    replicas: Values | None = None


def exchange_statistics(
    exchange: Exchange, density: float, k: int, given: Floats, kept: Floats, ratio: float | None
) -> Stats:
    """Return the statistics of an exchange that all schemes have, such as density and compression gain, by name.

    `density` and `k` are those asked for; `given` and `kept`, shape (P,), are sums of squares of what each worker had
    and keeps; `ratio` is the density ratio of schemes that have one.
    """
    workers, entries = len(given), exchange.update.size
    found, selected = exchange.union / entries, int(exchange.selected.sum())
    passed = np.zeros(workers)
    for one in [one for kernel in exchange.kernels for one in kernel.passes]:
        passed += one.launches * one.segments * np.asarray(one.entries, dtype=np.float64)
    return {
        "density": found,
        "density_error": abs(found - density),
        **({} if ratio is None else {"density_ratio": ratio}),
        "update_density": float(count_above(exchange.update, 0.0)) / entries,
        "worker_density": exchange.selected / entries,
        "build_up": exchange.union / k if k else 1.0,
        "duplicates": float(selected - exchange.union),
        "imbalance": workers * int(exchange.selected.max()) / selected if selected else 1.0,
        "gain": float(exchange.sent.sum() / given.sum()) if given.any() else 1.0,
        "worker_gain": np.divide(exchange.sent, given, out=np.ones(workers), where=given > 0),
        "given_norm": np.sqrt(given),
        "sent_norm": np.sqrt(exchange.sent),
        "residual_norm": np.sqrt(kept),
        "global_error": float(np.sqrt(kept).mean()),
        "bytes_sent": exchange.schedule.bytes_sent(),
        "bytes_received": exchange.schedule.bytes_received(),
        "entries": passed,
    }


def state_size(state: State, workers: int, parameters: int, scale: float) -> dict[str, float]:
    """Return the bytes per worker of each array of a saved state, by name, for the whole model.

    Of an array with a row for each worker it holds a row, of any other all. An array as long as the gradient stands for
    one as long as that of the model, in single precision.
    """
    found: dict[str, float] = {}
    for name, array in state.items():
        if name not in ("scheme", "shape", "density", "iteration", "has_residual") and array.ndim:
            rows = len(array) if array.ndim > 1 and 0 < len(array) <= workers else 1
            width = min(array.itemsize, 4) if array.dtype.kind == "f" else array.itemsize
            found[name] = width * array.size / rows * (scale if array.shape[-1] >= parameters else 1.0)
    return found


def is_reusable(array: Any, update: Values | None = None) -> bool:
    """Return whether an array may be overwritten: it is writable, contiguous, owns its data, and is not in `update`."""
    if array.base is not None or not array.flags.writeable:
        return False
    return isinstance(array, Rows) or (
        array.flags.c_contiguous and (update is None or not np.may_share_memory(array, update))
    )


def frozen(array: Any) -> Any:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array
