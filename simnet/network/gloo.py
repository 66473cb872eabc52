"""Collectives in the form in which gloo sends them: gloo's order of ranks and messages, and its largest message size.

References
----------
``allreduce.cc``, ``broadcast.cc`` and ``kMaxSegmentSize`` of ``allreduce.h`` in https://github.com/facebookincubator/gloo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simnet.schedule import Call, Round, Schedule

LONGEST_SEGMENT = 1024 * 1024
"""Longest message of an all-reduce [byte]."""


def arrange_calls(schedule: Schedule, pieces: int) -> Schedule:
    """Return a schedule in which broadcasts and ring all-reduces send the messages that gloo sends.

    A broadcast goes from rank v < 2^i to rank v + 2^i in round i, counted from the root. In an all-reduce rank r sends
    to rank r - 1, messages of `LONGEST_SEGMENT` at most; Ring steps are later cut into `pieces` messages.

    Examples
    --------
    >>> from simnet.collectives import broadcast_binomial
    >>> [(one.src.tolist(), one.dst.tolist()) for one in arrange_calls(broadcast_binomial(4, 1.0), 2).rounds]
    [([0], [1]), ([0, 1], [2, 3])]
    """
    rounds: list[Round] = []
    calls = []
    done = 0
    for call in schedule.calls:
        own = schedule.rounds[call.first : call.first + call.rounds]
        rounds += schedule.rounds[done : call.first]
        sent = _arranged_call(call, own, schedule.n_ranks, pieces)
        calls.append(call._replace(first=len(rounds), rounds=len(sent)))
        rounds += sent
        done = call.first + call.rounds
    return Schedule(schedule.n_ranks, [*rounds, *schedule.rounds[done:]], calls) if calls else schedule


def _arranged_call(call: Call, own: Sequence[Round], n_ranks: int, pieces: int) -> Sequence[Round]:
    if (call.operation, call.algorithm) == ("all_reduce", "ring"):
        return _backwards(own, pieces)
    whole = sum(map(len, own)) == n_ranks - 1 and len(own) == (n_ranks - 1).bit_length()
    if (call.operation, call.algorithm) == ("broadcast", "binomial") and whole and own:
        return _lowest_bit_first(own, n_ranks)
    return own


def _backwards(own: Sequence[Round], pieces: int) -> list[Round]:
    made: dict[int, list[Round]] = {}
    for one in own:
        if id(one) not in made:
            count = math.ceil(one.nbytes.max(initial=1.0) / (pieces * LONGEST_SEGMENT))
            piece = Round(one.dst, one.src, one.nbytes / count, phase=one.phase)
            first = Round(one.dst, one.src, one.nbytes / count, one.compute, one.phase)
            made[id(one)] = [first, *[piece if np.any(one.compute) else first] * (count - 1)]
    return [each for one in own for each in made[id(one)]]


def _lowest_bit_first(own: Sequence[Round], n_ranks: int) -> list[Round]:
    root, nbytes = int(own[0].src[0]), own[0].nbytes[0]
    made = []
    for bit, one in enumerate(own):
        src = np.arange(min(1 << bit, n_ranks - (1 << bit)))
        made.append(Round((src + root) % n_ranks, (src + (1 << bit) + root) % n_ranks, nbytes, one.compute, one.phase))
    return made
