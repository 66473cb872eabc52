"""GOAL text, the schedules of LogGOPSim, read as rounds.

A rank of a GOAL file runs a graph of operations: ``send``, ``recv`` and ``calc``, which wait for the completion
(``requires``) or the start (``irequires``) of others. A `Schedule` knows less: a rank waits for all of its messages of
one round, computes, and enters the next. So its messages are grouped by how many messages must be done one after the
other before them, and the file has the same timing as the schedule if every message waits for all that its rank did
before, and all that is in between is computation. What waits for less is refused, unless an approximation is asked for.

References
----------
T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language", ICPP 2009; grammar: ``txt2bin`` of LogGOPSim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from simnet.base.checks import positive
from simnet.base.errors import nearest
from simnet.base.reading import read_text
from simnet.interchange.operations import Messages, Operation, Placed, Program, read_rounds
from simnet.schedule import Schedule

MAX_BYTES = 256 * 2**20
"""The largest GOAL file that is read."""

MAX_RANKS = 1_000_000
"""The most ranks that are read."""

# A comment that is not closed reaches to the end; looking for its end again at each further one would take for ever.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|(\Z))", re.DOTALL)
_LABEL = r"[a-zA-Z][a-zA-Z0-9_]*"
_NUMBER = r"[0-9]{1,18}"
_HEAD = re.compile(rf"num_ranks\s+({_NUMBER})$")
_OPEN = re.compile(rf"rank\s+({_NUMBER})\s*\{{")
_CALC = re.compile(rf"(?:({_LABEL})\s*:\s*)?calc\s+({_NUMBER})(?:\s+cpu\s+({_NUMBER}))?$")
_MESSAGE = re.compile(
    rf"(?:({_LABEL})\s*:\s*)?(?:(send)\s+({_NUMBER})b\s+to|(recv)\s+({_NUMBER})b\s+from)\s+({_NUMBER}|-1)"
    rf"(?:\s+tag\s+({_NUMBER}|-1))?(?:\s+cpu\s+{_NUMBER})?(?:\s+nic\s+{_NUMBER})?$"
)
_NEEDS = re.compile(rf"({_LABEL})\s+(i?)requires\s+({_LABEL})$")
_EXPECTED = (
    "'num_ranks N', 'rank R {', '}', '[label:] send Nb to R [tag T]', '[label:] recv Nb from R [tag T]', "
    "'[label:] calc N', 'label requires label' or 'label irequires label'"
)


def read_goal(path: str | Path, *, strict: bool = True, nanoseconds_per_calc: float = 1.0) -> Schedule:
    r"""Read GOAL text.

    Files of `Schedule.to_goal` come back as they were: rounds, messages in their order, whole bytes, compute in
    nanoseconds; GOAL has no phases, and no empty rounds at the end. In other files the round of a message is the least
    that lets all waiting be expressed. Sends and receives match by ranks and tag, in their order. The attributes
    ``cpu`` and ``nic`` of a message say nothing about a network and are ignored.

    Parameters
    ----------
    path : str or Path
        The file, at most `MAX_BYTES` bytes and `MAX_RANKS` ranks.
    strict : bool
        Refuse what rounds cannot express. If False, a rank may wait for more than the file asks for: for all messages
        of its round before. The timing is then an upper bound, as when nothing else is on the network.
    nanoseconds_per_calc : float
        Unit of ``calc``; the format leaves it open, and files of LogGOPSim mean nanoseconds.

    Raises
    ------
    InputError
        If the file cannot be read or is not GOAL text; if a label, rank or partner is unknown, sizes differ, operations
        wait for each other in a circle; if a receive leaves its source or tag open, as who sends then depends on time;
        or, with `strict`, if rounds cannot express it. With file and line.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.collectives import allreduce_ring
    >>> ring = allreduce_ring(4, 1 << 20).in_phase("")
    >>> with TemporaryDirectory() as folder:
    ...     ring.to_goal(Path(folder, "ring.goal"))
    ...     read_goal(Path(folder, "ring.goal")) == ring
    True
    """
    per_second = 1e9 / positive(nanoseconds_per_calc, "nanoseconds_per_calc")
    file = _parse(read_text(Path(path), MAX_BYTES), str(path))
    return read_rounds(file, _rounds_of_labels, strict, per_second)


def _parse(text: str, name: str) -> Program:
    def blank(comment: re.Match[str]) -> str:
        if comment[1] is not None:
            file.refuse(text.count("\n", 0, comment.start()) + 1, "the comment that begins here is not closed by '*/'")
        return "\n" * comment.group().count("\n") or " "

    file = Program(name, 0, {})
    rank, opened = -1, 0
    labels: dict[str, Operation] = {}
    needs: list[tuple[int, str, str, str]] = []
    for line, raw in enumerate(_COMMENT.sub(blank, text).split("\n"), start=1):
        rest = raw.strip()
        if not rest:
            continue
        if match := _HEAD.match(rest):
            if file.n_ranks:
                file.refuse(line, "num_ranks stands twice")
            file.n_ranks = int(match[1])
            if not 1 <= file.n_ranks <= MAX_RANKS:
                file.refuse(line, f"num_ranks must be in 1..{MAX_RANKS:,}, got {match[1]}")
            continue
        if match := _OPEN.match(rest):
            if not file.n_ranks:
                file.refuse(line, "num_ranks must stand before the first rank")
            if rank >= 0:
                file.refuse(line, f"rank {rank} of line {opened} is not closed by '}}'")
            rank, opened = int(match[1]), line
            _known_rank(file, line, rank)
            if rank in file.ranks:
                file.refuse(line, f"rank {rank} stands twice")
            file.ranks[rank], labels, needs = [], {}, []
            rest = rest[match.end() :].strip()
            if not rest:
                continue
        closing = rest.endswith("}")
        rest = rest.removesuffix("}").strip()
        if rank < 0:
            file.refuse(line, f"stands outside of a rank: {raw.strip()[:60]!r}; expected num_ranks or rank")
        if match := _NEEDS.match(rest):
            needs.append((line, match[1], match[2], match[3]))
        elif rest:
            op = _operation(file, rank, line, rest)
            file.ranks[rank].append(op)
            if op.label in labels:
                file.refuse(line, f"label {op.label!r} stands twice, first in line {labels[op.label].line}")
            if op.label:
                labels[op.label] = op
        if closing:
            _connect(file, labels, needs)
            rank = -1
    if rank >= 0:
        file.refuse(opened, f"rank {rank} is not closed by '}}'")
    if not file.n_ranks:
        file.refuse(1, "has no num_ranks; is it GOAL text?")
    return file


def _operation(file: Program, rank: int, line: int, text: str) -> Operation:
    if match := _CALC.match(text):
        return Operation(rank, line, "calc", match[1] or "", int(match[2]), cpu=int(match[3] or 0))
    match = _MESSAGE.match(text)
    if match is None:
        file.refuse(line, f"cannot be read: {text[:60]!r}; expected {_EXPECTED}")
    label, send, sent, _, received, peer, tag = match.groups()
    kind = "send" if send else "recv"
    if "-1" in (peer, tag):
        what = "source" if peer == "-1" else "tag"
        file.refuse(line, f"a {kind} must name its {what}: which message comes first would depend on the network")
    other = int(peer)
    _known_rank(file, line, other)
    if other == rank:
        file.refuse(line, f"rank {rank} cannot {kind} to or from itself")
    return Operation(rank, line, kind, label or "", int(sent or received), other, int(tag or 0))


def _known_rank(file: Program, line: int, rank: int) -> None:
    if rank >= file.n_ranks:
        file.refuse(line, f"there is no rank {rank}; ranks are 0..{file.n_ranks - 1}")


def _connect(file: Program, labels: dict[str, Operation], needs: Iterable[tuple[int, str, str, str]]) -> None:
    for line, waiting, kind, before in needs:
        for label in (waiting, before):
            if label not in labels:
                close = nearest(label, labels).partition("Allowed:")[0]
                file.refuse(line, f"there is no label {label!r} in this rank; {close}".rstrip("; "))
        op = labels[waiting]
        (op.starts_after if kind else op.requires).append(labels[before])


def _rounds_of_labels(file: Program, messages: Messages) -> Placed | None:
    """Return the rounds of a file written by `Schedule.to_goal`, whose labels tell them; None for another file."""
    placed: Placed = {}
    for ops in file.ranks.values():
        pending: list[Operation] = []
        index = -1
        for op in sorted(ops, key=lambda op: op.line):
            if op.starts_after or not re.fullmatch(r"[cm][0-9]{1,7}", op.label):
                return None
            number = int(op.label[1:])
            if op.kind == "calc":
                if op.label[0] != "c" or number <= index or op.requires != pending:
                    return None
                index, pending, calc = number, [op], op
            else:
                if op.label[0] != "m" or index < 0 or op.tag != number or op.requires != [calc]:
                    return None
                pending.append(op)
            placed[op] = index
    tags = sorted(send.tag for send, _ in messages)
    by_round = sorted((placed[send], send.tag) for send, _ in messages)
    if tags != list(range(len(tags))) or [tag for _, tag in by_round] != tags:
        return None
    if any(placed[send] != placed[recv] for send, recv in messages):
        return None
    messages.sort(key=lambda pair: pair[0].tag)
    return placed
