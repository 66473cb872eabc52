"""What a transport stack makes of a schedule: bytes on wires, cut rings, and rounds under way at once.

It is part of the reference implementation, and written from the documentation of `simnet.network.stack` alone. Numbers
are of the type that the caller works in.
"""

import itertools
import math

import numpy as np

from simnet.schedule import Round


def framed(stack, nbytes, number):
    """Return what a payload takes on a wire: whole bytes, at least one, and what each segment has beside it."""
    if not stack.segment:
        return number(float(nbytes))
    payload = max(round(float(nbytes)), 1)
    return payload + number(stack.beside) * segments(stack, nbytes)


def segments(stack, nbytes):
    return math.ceil(max(round(float(nbytes)), 1) / stack.segment)


def on_wires(stack, one, number):
    """Return for each message of a round for how many bytes it keeps a link busy.

    The receiver sends an acknowledgement for every so many full segments. Those that a rank sends in the round are
    split evenly among its messages, which share its uplink with them; those that come to it among the messages that it
    receives. A message is longer by the larger of its sender's and its receiver's part, and at most twice as long.
    """
    sizes = [framed(stack, nbytes, number) for nbytes in one.nbytes]
    if not stack.segment or not stack.acknowledged:
        return sizes
    src, dst = one.src.tolist(), one.dst.tolist()
    every = max(1, math.floor(stack.acknowledged / stack.segment))
    answers = [number(stack.beside) * (segments(stack, nbytes) // every) for nbytes in one.nbytes]
    total = []
    for size, a, b in zip(sizes, src, dst, strict=True):
        up = sum(more for more, to in zip(answers, dst, strict=True) if to == a) / number(max(1, src.count(a)))
        down = sum(more for more, of in zip(answers, src, strict=True) if of == b) / number(max(1, dst.count(b)))
        total.append(size + min(size, max(up, down)))
    return total


def is_ring(rounds, index):
    """Whether a round has messages, and one beside it has messages between the same ranks."""

    def ends(at):
        return list(zip(rounds[at].src.tolist(), rounds[at].dst.tolist(), strict=True))

    beside = [at for at in (index - 1, index + 1) if 0 <= at < len(rounds)]
    return len(rounds[index]) > 0 and any(ends(at) == ends(index) for at in beside)


def goes_in_pieces(schedule, index):
    """Whether a round is one of a ring, or has the messages of a call of one."""
    called = any(call.algorithm == "ring" and call.first <= index < call.first + call.rounds for call in schedule.calls)
    return is_ring(schedule.rounds, index) or (called and len(schedule.rounds[index]) > 0)


def cut(stack, schedule):
    """Return rounds of which those of rings are `pieces` rounds each, of equal parts of their bytes."""
    rounds = schedule.rounds
    if stack.pieces == 1:
        return list(rounds)
    share = 1 / stack.pieces
    return list(
        itertools.chain.from_iterable(
            [
                Round(one.src, one.dst, one.nbytes * share, one.compute if first else 0.0, one.phase)
                for first in [True] + [False] * (stack.pieces - 1)
            ]
            if goes_in_pieces(schedule, index)
            else [one]
            for index, one in enumerate(rounds)
        )
    )


def sent_first(stack, schedule):
    """Return for each round, once cut, whether ranks send before they say that they are ready: in all-gathers."""
    gathers = set()
    for call in schedule.calls:
        if (call.operation, call.algorithm) == ("all_gather", "ring") and stack.gathers_send_first:
            gathers |= set(range(call.first, call.first + call.rounds))
    found = []
    for index in range(len(schedule.rounds)):
        found += [index in gathers] * (stack.pieces if goes_in_pieces(schedule, index) else 1)
    return found


def first_of_calls(stack, schedule):
    """Return the first round of each call, once rounds are cut."""
    cuts = [stack.pieces if goes_in_pieces(schedule, index) else 1 for index in range(len(schedule.rounds))]
    return {sum(cuts[: call.first]) for call in schedule.calls if call.rounds}


def ahead(stack, rounds):
    """Return how many rounds before each may be under way when a rank enters it.

    Only in a ring, whose ranks send to the same ranks again, within a phase, and where nobody computes before.
    """

    def goes_on(index):
        one, before = rounds[index], rounds[index - 1]
        same = list(zip(one.src, one.dst, strict=True)) == list(zip(before.src, before.dst, strict=True))
        return len(one) and same and one.phase == before.phase and not np.any(one.compute)

    return [stack.rounds - 1 if index and goes_on(index) else 0 for index in range(len(rounds))] + [0]
