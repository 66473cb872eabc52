"""What workers do beside an exchange: the rules of `simnet.network.compute_stream`, for the kernels of a device.

A bucket is selected when its slice of the backward pass is done, on the worker's compute stream, and the next slice
waits for that, as in PyTorch's DistributedDataParallel. Merges and cuts between messages, and what unpacks a bucket,
queue on that stream as well. A device profile may allow a side stream, or say what dense collectives of NCCL cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.costs.devices import DeviceOp, DeviceProfile
from simnet.network import STACKS, Stack
from simnet.network.compute_stream import Computing
from simnet.schedule import Schedule


class BucketExchange(NamedTuple):
    """What the exchange of a bucket sends and runs, and when its gradient would be there if nothing else ran.

    Parameters
    ----------
    schedule : Schedule
        Its messages.
    kernels : sequence of DeviceOp
        What workers run before, between and after them.
    ready : ndarray, shape (P,)
        When the slice of the backward pass would be done [s].
    dense : bool
        Whether all of the gradient is sent.
    work : KernelTimes, optional
        What the kernels take on the device; looked up when omitted.
    """

    schedule: Schedule
    kernels: Sequence[DeviceOp]
    ready: Floats
    dense: bool
    work: KernelTimes | None = None


class KernelTimes(NamedTuple):
    """Seconds that each worker selects before an exchange, shape (P,), and the schedule with the work in its rounds."""

    selecting: Floats
    schedule: Schedule


def kernel_times(schedule: Schedule, kernels: Sequence[DeviceOp], device: DeviceProfile) -> KernelTimes:
    """Return what the kernels of an exchange take on a device.

    Parameters
    ----------
    schedule : Schedule
        The messages.
    kernels : sequence of DeviceOp
        What workers run before, between and after them.
    device : DeviceProfile
        What each takes.
    """
    selecting, between = device.work(kernels, schedule.n_ranks)
    return KernelTimes(selecting, schedule.with_work(between))


def queue_buckets(
    buckets: Sequence[BucketExchange], device: DeviceProfile, stack: Stack
) -> tuple[list[tuple[Schedule, Floats]], Computing]:
    """Return the parts of an exchange, and what is computed beside them, as `Network.time` takes both.

    Parameters
    ----------
    buckets : sequence of BucketExchange
        In the order in which they become ready.
    device : DeviceProfile
        What kernels cost.
    stack : Stack
        How messages are sent.
    """
    parts, select = [], []
    for one in buckets:
        work = one.work or kernel_times(one.schedule, one.kernels, device)
        parts.append((work.schedule, one.ready))
        select.append(work.selecting)
    side, collectives = device.side_stream, device.beside_collectives
    shares = collectives is not None and stack == STACKS["nccl"]
    factors = [collectives.compute if collectives is not None and shares and one.dense else 1.0 for one in buckets]
    computing = Computing(np.stack(select), None if side is None else (side.compute, side.kernels), factors)
    return parts, computing


def slows_backward(computing: Computing) -> bool:
    """Return whether what runs beside it makes a backward pass slower."""
    beside = computing.beside
    # Without numpy, whose overhead for a few numbers is more than all else.
    factors = beside if isinstance(beside, (list, tuple)) else np.ravel(beside).tolist()
    return computing.side_stream is not None or any(one != 1.0 for one in factors)


def exposed_after_backward(backward: float, select: ArrayLike, communicate: ArrayLike, buckets: int) -> Floats:
    """Return the seconds of exchanges that are left after the backward pass, which they go beside in equal buckets.

    Parameters
    ----------
    backward : float
        Seconds of the backward pass.
    select : array_like of float
        Seconds of the kernels of a bucket, which delay the slices of the backward pass to come; all come before its
        first message.
    communicate : array_like of float
        Seconds that a bucket is under way; the next one waits for that.
    buckets : int
        How many there are, >= 1.

    Examples
    --------
    >>> exposed_after_backward(0.5, [0.0], 0.25, 4), exposed_after_backward(9.0, [0.0, 0.5], 0.25, 4)
    (array([0.625]), array([0.25, 2.25]))
    """
    select, communicate = np.asarray(select), np.asarray(communicate)
    # Either all are under way one after another from the first on, or the last bucket finds the others gone.
    first, last = backward / buckets + select + buckets * communicate, backward + buckets * select + communicate
    return np.asarray(np.maximum(first, last) - backward)


def total_communication(left: float, backward: float, select: float, buckets: int) -> float:
    """Return the seconds that all buckets are under way, given those that are left when all computing is done.

    Parameters
    ----------
    left : float
        Seconds from the end of the backward pass, with the kernels that delayed it, to that of the exchange.
    backward : float
        Seconds of the backward pass, of which each bucket has an equal slice.
    select : float
        Seconds of the kernels of all buckets.
    buckets : int
        How many there are, >= 1.

    Examples
    --------
    >>> [total_communication(*one) for one in ((0.25, 9.0, 0.0, 4), (0.625, 0.5, 0.0, 4), (0.25, 0.0, 0.0, 1))]
    [1.0, 1.0, 0.25]
    """
    # Either the last bucket finds the others gone, or all are under way one after another from the first on.
    return min(buckets * left, left + (backward + select) * (buckets - 1) / buckets)
