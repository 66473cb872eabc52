"""Compiled loops of the vectorised clock; the same additions, in the same order, as in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, float64, int64, types
from numpy.typing import NDArray

from simnet.base.compiling import compiled
from simnet.network import weathered

_RANKS = types.Array(int64, 1, "C", readonly=True)
_GIVEN = types.Array(float64, 1, "C", readonly=True)
_TIMES = types.Array(float64, 1, "C")
_LINKS = types.Array(int64, 2, "C")
_PLACES = types.Array(int64, 1, "C")

cross_weather = compiled(
    types.Tuple((int64, float64))(
        *(_RANKS, _RANKS, _GIVEN, _LINKS, _TIMES, int64),
        *(_TIMES, _TIMES, _TIMES, _TIMES, _LINKS, types.Array(float64, 2, "C"), _PLACES),
        *(_TIMES, _TIMES, _TIMES, _TIMES, float64, float64, _TIMES, _TIMES),
    )
)(weathered.cross_weather)


@compiled(
    boolean(
        _RANKS, _RANKS, _TIMES, _TIMES, _LINKS, _TIMES, _TIMES, _TIMES, float64, float64, _TIMES, _TIMES, _TIMES
    )
)  # fmt: skip
def cross(
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    latency: NDArray[np.float64],
    seconds: NDArray[np.float64],
    links: NDArray[np.int64],
    entered: NDArray[np.float64],
    busy: NDArray[np.float64],
    delays: NDArray[np.float64],
    send_overhead: float,
    receive_overhead: float,
    done: NDArray[np.float64],
    sent: NDArray[np.float64],
    arrived: NDArray[np.float64],
) -> Any:
    """Carry the messages of a round; return whether each found all its links free. See `simnet.network.vectorised`."""
    for rank in range(done.size):
        done[rank] = entered[rank]
    for message in range(src.size):
        leaves = entered[src[message]]
        wait = latency[message]
        if delays.size:
            wait = wait + delays[message]
        joins = (leaves + send_overhead) + wait
        ends = joins + seconds[message]
        for place in range(links.shape[1]):
            link = links[message, place]
            if link < 0:
                break
            if joins < busy[link]:
                return False
            busy[link] = ends
        if receive_overhead:
            ends = ends + receive_overhead
        done[src[message]] = max(done[src[message]], ends)
        done[dst[message]] = max(done[dst[message]], ends)
        if sent.size:
            sent[message], arrived[message] = leaves, ends
    return True
