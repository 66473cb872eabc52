"""The kernels of an exchange on a worker's streams, by the rules of its network model.

A bucket is selected after its slice of the backward pass, on the worker's compute stream, and delays the next slice, as
in PyTorch's DistributedDataParallel. Merges between messages and unpacking queue there as well. A device profile may
have a side stream, and costs of dense collectives of NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.network import STACKS, Stack
from simnet.network.compute_stream import Computing
from simnet.schedule import Schedule


class BucketExchange(NamedTuple):
    """The messages and kernels of a bucket, and when each worker would have its gradient if nothing else ran [s].

    `ready` has shape (P,). `dense` says that all of the gradient is sent.
    """

    schedule: Schedule
    kernels: Sequence[DeviceOp]
    ready: Floats
    dense: bool


def queue_buckets(
    buckets: Sequence[BucketExchange], device: DeviceProfile, stack: Stack
) -> tuple[list[tuple[Schedule, Floats]], Computing]:
    """Return the parts of an exchange and what workers compute, as `Network.time` takes both."""
    parts, select = [], []
    for one in buckets:
        selecting, between = device.work(one.kernels, one.schedule.n_ranks)
        parts.append((one.schedule.with_work(between), one.ready))
        select.append(selecting)
    side, collectives = device.side_stream, device.beside_collectives
    shares = collectives is not None and stack == STACKS["nccl"]
    factors = [collectives.compute if collectives is not None and shares and one.dense else 1.0 for one in buckets]
    computing = Computing(np.stack(select), None if side is None else (side.compute, side.kernels), factors)
    return parts, computing


def slows_backward(computing: Computing) -> bool:
    """Return whether kernels or collectives make a backward pass slower."""
    beside = computing.beside
    # Without numpy, whose overhead for a few numbers is more than all else.
    factors = beside if isinstance(beside, (list, tuple)) else np.ravel(beside).tolist()
    return computing.side_stream is not None or any(one != 1.0 for one in factors)


def exposed_after_backward(backward: float, select: ArrayLike, communicate: ArrayLike, buckets: int) -> Floats:
    """Return the seconds of exchanges after a backward pass that they overlap in equal buckets.

    The kernels of a bucket take `select` seconds, before its first message, and delay the rest of the backward pass;
    its messages take `communicate` seconds, and the next bucket waits for them.

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
    """Return the seconds that all buckets travel, given the `left` seconds after the backward pass.

    `backward` and `select` are the seconds of the backward pass, in equal slices, and of the kernels of all buckets.

    Examples
    --------
    >>> [total_communication(*one) for one in ((0.25, 9.0, 0.0, 4), (0.625, 0.5, 0.0, 4), (0.25, 0.0, 0.0, 1))]
    [1.0, 1.0, 0.25]
    """
    # Either the last bucket finds the others gone, or all are under way one after another from the first on.
    return min(buckets * left, left + (backward + select) * (buckets - 1) / buckets)
