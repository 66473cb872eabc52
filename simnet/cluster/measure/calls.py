"""The timed calls: buffers, one rank's part in a call, and verification of results.

The root of a broadcast moves to the rank before the last root. Trees and chains reach it last, so no call begins before
the previous one is over; with one root, calls would be pipelined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.cluster.measure.communicators import Communicator
from simnet.cluster.measure.plan import ELEMENT, Group

Numbers = NDArray[np.float32]

WINDOW = 64
"""Maximum messages per call of ``p2p_bw`` before the receiver answers; at most 4 MiB, at least four messages."""

_IN_WINDOW, _FEWEST = 4 * 2**20, 4

# After how many ranks, and after how many elements, contents repeat. A sum over P ranks is at most 133 P, which single
# precision has exactly up to 126,000 ranks.
_RANKS, _WAVE = 127, 7


class PreparedCall(NamedTuple):
    """A collective call at one rank: a function of the call number, and its send and receive buffers."""

    call: Callable[[int], None]
    out: Any
    into: Any


def operations_per_call(collective: str, nbytes: int) -> int:
    """Return the number of operations in a call: 2 for a round trip, the window of ``p2p_bw``, else 1."""
    if collective == "p2p_bw":
        return max(_FEWEST, min(WINDOW, _IN_WINDOW // nbytes))
    return 2 if collective == "p2p_latency" else 1


def prepare_call(communicator: Communicator, collective: str, group: Group, handle: Any, nbytes: int) -> PreparedCall:
    """Return a collective call with zeroed buffers of a size; all members of the group call this."""
    length, ranks = nbytes // ELEMENT, len(group.ranks)
    gathers, scatters = collective == "all_gather", collective == "reduce_scatter"
    out = communicator.vector(length // ranks if gathers else length)
    in_place = collective in ("all_reduce", "broadcast")
    into = out if in_place else communicator.vector(length // ranks if scatters else length)
    if collective in ("sendrecv", "p2p_latency", "p2p_bw"):
        return _group_messages(communicator, collective, group, out, into, nbytes)

    def call(number: int) -> None:
        communicator.collective(collective, out, into, handle, -number % ranks)

    return PreparedCall(call, out, into)


def _group_messages(
    communicator: Communicator, collective: str, group: Group, out: Any, into: Any, nbytes: int
) -> PreparedCall:
    place, ranks = group.ranks.index(communicator.rank), len(group.ranks)
    following, before = group.ranks[(place + 1) % ranks], group.ranks[place - 1]
    send, receive = [(following, out)], [(before, into)]
    if collective == "sendrecv":
        return PreparedCall(lambda number: communicator.exchange(send, receive), out, into)
    if collective == "p2p_latency":

        def there_and_back(number: int) -> None:
            for outward in (place == 0, place != 0):
                communicator.exchange(send if outward else [], [] if outward else receive)

        return PreparedCall(there_and_back, out, into)
    window, answer = operations_per_call(collective, nbytes), communicator.vector(1)

    def one_way(number: int) -> None:
        communicator.exchange(send * window if place == 0 else [], receive * window if place else [])
        communicator.exchange([(before, answer)] if place else [], [] if place else [(following, answer)])

    return PreparedCall(one_way, out, into)


def wrong_elements(communicator: Communicator, collective: str, group: Group, handle: Any, nbytes: int) -> int:
    """Run a collective on known content, and return the number of wrong elements at this rank."""
    made = prepare_call(communicator, collective, group, handle, nbytes)
    place, ranks = group.ranks.index(communicator.rank), len(group.ranks)
    communicator.put(made.out, rank_content(place, len(made.out)))
    made.call(0)
    communicator.finish()
    due = expected_result(collective, place, ranks, nbytes // ELEMENT)
    return 0 if due is None else int((communicator.get(made.into) != due).sum())


def rank_content(place: int, length: int) -> Numbers:
    """Return the test input of a group's rank: small integers as float32, whose sums are exact."""
    return _wave_elements(place % _RANKS + 1, 1, 0, length)


def _wave_elements(first: float, step: float, start: int, length: int) -> Numbers:
    """Return `length` elements ``first + step * (i % 7)`` with i from `start` on, as float32."""
    once = (first + step * ((start + np.arange(_WAVE)) % _WAVE)).astype(np.float32)
    return np.tile(once, -(-length // _WAVE))[:length]


def expected_result(collective: str, place: int, ranks: int, length: int) -> Numbers | None:
    """Return a rank's result when all ranks send their `rank_content`; None if it receives nothing.

    `length` is the number of elements of the full vector over all ranks.
    """
    part = length // ranks
    if collective in ("all_gather", "alltoall"):
        begins = (np.arange(ranks) % _RANKS + 1).astype(np.float32)
        return np.add.outer(
            begins, _wave_elements(0, 1, 0 if collective == "all_gather" else place * part, part)
        ).ravel()
    if collective == "broadcast":
        return rank_content(0, length)
    if collective in ("all_reduce", "reduce_scatter"):
        rounds, rest = divmod(ranks, _RANKS)
        begins_sum = (rounds * _RANKS * (_RANKS + 1) + rest * (rest + 1)) // 2
        whole = collective == "all_reduce"
        return _wave_elements(begins_sum, ranks, 0 if whole else place * part, length if whole else part)
    if collective == "p2p_bw" and place == 0:
        return None
    return rank_content((place - 1) % ranks, length)
