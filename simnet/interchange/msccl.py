"""Reads MSCCL algorithms, which are XML programs for MSCCL's runtime, as schedules.

A GPU runs several thread blocks. Each takes its steps in order: it sends chunks to one peer and receives from one, on
one channel, and may wait for a step of another thread block. A message takes the first round after all that its sender
waits for. Thread blocks of the runtime run ahead of each other; the schedule is the algorithm in lockstep, with its
messages, bytes and longest chain.

References
----------
M. Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023; ``msccl/language/ir.py`` of
msccl-tools.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

from simnet.base.errors import suggest_names
from simnet.base.quantities import Size, bounds_error, check_bounds
from simnet.interchange.operations import match_in_order
from simnet.interchange.xmlfile import Element, read_xml
from simnet.schedule import Round, Schedule

MAX_GPUS = 65_536
"""The most GPUs of an algorithm that is read."""

# Step type: whether it (receives, sends).
_STEPS = {
    "nop": (False, False),
    "cpy": (False, False),
    "re": (False, False),
    "s": (False, True),
    "r": (True, False),
    "rrc": (True, False),
    "rcs": (True, True),
    "rrs": (True, True),
    "rrcs": (True, True),
}
_MOST = 1_000_000
_LONGEST_NAME = 60


def read_msccl(path: str | Path, nbytes: float) -> Schedule:
    """Read an MSCCL algorithm as the schedule of a collective of a given size.

    `nbytes` is that of the larger of the input and output buffer of a GPU, which the algorithm cuts into
    ``nchunksperloop`` chunks: the vector of an all-reduce, the result of an all-gather.

    Raises InputError, with file and line, if the file is no such algorithm, a step is unknown or waits for a missing
    one, a send has no receive of as many chunks, or steps wait in a circle; ValueError if `nbytes` is negative or not
    finite.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.xml")
    ...     _ = file.write_text('''<algo name="pair" nchunksperloop="4" ngpus="2" coll="allgather">
    ...       <gpu id="0"><tb id="0" send="1" recv="-1" chan="0"><step s="0" type="s" cnt="2"/></tb></gpu>
    ...       <gpu id="1"><tb id="0" send="-1" recv="0" chan="0"><step s="0" type="r" cnt="2"/></tb></gpu>
    ...     </algo>''')
    ...     read_msccl(file, nbytes=1000).rounds
    (Round(1 messages, 500 bytes, phase='allgather'),)
    """
    check_bounds(nbytes, Size, "nbytes")
    top = read_xml(path, ["algo"])
    n_ranks = top.whole("ngpus", 1, MAX_GPUS)
    chunk = nbytes / top.whole("nchunksperloop", 1, _MOST)
    steps = _read_steps(top, n_ranks)
    senders = _match_messages(steps)
    level = _chain_lengths(steps, senders)
    rounds: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for recv, send in senders.items():
        size = send.count * chunk
        if wrong := bounds_error(size, Size):
            send.at.refuse(f"its bytes {wrong}", "cnt")
        rounds[level[send,]].append((send.gpu, recv.gpu, size))
    phase = top.attributes.get("coll", "")[:_LONGEST_NAME]
    columns = (zip(*rounds[index], strict=True) for index in sorted(rounds))
    return Schedule(n_ranks, [Round(src, dst, sizes, phase=phase) for src, dst, sizes in columns])


@dataclass(eq=False)
class _BlockStep:
    """A step of a thread block; it `waits` for the previous step, and perhaps for a step of another thread block."""

    at: Element
    gpu: int
    to: int
    source: int
    channel: int
    count: int
    receives: bool
    sends: bool
    waits: list[_BlockStep]


# The end of a step, or the message that it sends.
_Node: TypeAlias = _BlockStep | tuple[_BlockStep]


def _read_steps(top: Element, n_ranks: int) -> list[_BlockStep]:
    gpus: set[int] = set()
    steps: list[_BlockStep] = []
    for gpu in top.each("gpu"):
        rank = gpu.whole("id", 0, n_ranks - 1)
        if rank in gpus:
            gpu.refuse(f"GPU {rank} stands twice", "id")
        gpus.add(rank)
        blocks: dict[int, list[_BlockStep]] = {}
        for block in gpu.each("tb"):
            number = block.whole("id", 0, _MOST)
            if number in blocks:
                block.refuse(f"thread block {number} of GPU {rank} stands twice", "id")
            blocks[number] = _read_block(block, rank, n_ranks)
            steps += blocks[number]
        for step in (step for block in blocks.values() for step in block):
            other = step.at.whole("depid", -1, _MOST, default=-1)
            if other >= 0:
                place = step.at.whole("deps", 0, _MOST)
                if place >= len(blocks.get(other, ())):
                    step.at.refuse(f"waits for step {place} of thread block {other}, which GPU {rank} has not", "deps")
                step.waits.append(blocks[other][place])
    if len(gpus) != n_ranks:
        top.refuse(f"has {len(gpus)} GPUs, but ngpus is {n_ranks}")
    return steps


def _read_block(block: Element, rank: int, n_ranks: int) -> list[_BlockStep]:
    to, source = (block.whole(name, -1, n_ranks - 1) for name in ("send", "recv"))
    if rank in (to, source):
        block.refuse(f"GPU {rank} is its own peer")
    channel = block.whole("chan", -1, _MOST)
    steps: list[_BlockStep] = []
    for one in block.children:
        if one.tag not in ("step", "op"):
            one.refuse(f"is not read inside of a thread block; {suggest_names(one.tag, ('step', 'op'))}")
        if one.whole("s" if one.tag == "step" else "step", 0, _MOST) != len(steps):
            one.refuse(f"steps must be numbered 0, 1, ...; expected {len(steps)}")
        kind = one.get("type")
        if kind not in _STEPS:
            one.refuse(f"{kind[:40]!r} is no step; {suggest_names(kind, _STEPS)}", "type")
        receives, sends = _STEPS[kind]
        if (sends and to < 0) or (receives and source < 0):
            one.refuse(f"a step {kind!r} needs a peer, but its thread block has send={to} and recv={source}")
        count = one.whole("cnt", 1 if sends or receives else 0, _MOST, default=1)
        steps.append(_BlockStep(one, rank, to, source, channel, count, receives, sends, steps[-1:]))
    return steps


def _match_messages(steps: list[_BlockStep]) -> dict[_BlockStep, _BlockStep]:
    """Return a dict from receiving step to sending step, matched in order on each connection."""
    sends = (((step.gpu, step.to, step.channel), step) for step in steps if step.sends)
    receives = (((step.source, step.gpu, step.channel), step) for step in steps if step.receives)
    senders, unreceived, unsent = match_in_order(sends, receives)
    for step in unreceived:
        step.at.refuse(f"GPU {step.to} has no receive for this send of GPU {step.gpu} on channel {step.channel}")
    for step in unsent:
        step.at.refuse(f"GPU {step.source} has no send for this receive of GPU {step.gpu}")
    for recv, send in senders.items():
        if recv.count != send.count:
            recv.at.refuse(f"receives {recv.count} chunks, but line {send.at.line} sends {send.count}", "cnt")
    return senders


def _chain_lengths(steps: list[_BlockStep], senders: dict[_BlockStep, _BlockStep]) -> dict[_Node, int]:
    """Return the number of messages in the longest chain before each message, and before the end of each step."""
    waits: dict[_Node, list[_Node]] = {}
    for step in steps:
        ready: list[_Node] = [*step.waits, *([(senders[step],)] if step.receives else [])]
        waits[step] = ready
        if step.sends:
            waits[(step,)], waits[step] = ready, [*ready, (step,)]
    level: dict[_Node, int] = {}
    try:
        for node in TopologicalSorter(waits).static_order():
            level[node] = max((level[one] + isinstance(one, tuple) for one in waits[node]), default=0)
    except CycleError as error:
        circle = [one for one in error.args[1] if isinstance(one, _BlockStep)] or [error.args[1][0][0]]
        circle[0].at.refuse(
            f"steps wait for each other in a circle, lines {sorted({one.at.line for one in circle})[:10]}"
        )
    return level
