"""Reader and writer of GOAL text, the schedules of LogGOPSim; the reader arranges operations in rounds.

A rank runs a graph of ``send``, ``recv`` and ``calc`` operations that wait for the completion (``requires``) or the
start (``irequires``) of others. A `Schedule` has the same timing only if every send waits for all that its rank did in
earlier rounds; anything else is refused unless an approximation is asked for.

References
----------
T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language", ICPP 2009; grammar: ``txt2bin`` of LogGOPSim.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simnet.base.errors import suggest_names
from simnet.base.file_io import explain_write_errors, read_text
from simnet.interchange.operations import Operation, RankOperations, rounds_of_program
from simnet.interchange.rank_operations import CALC, RECV, SEND, RankOperation, operations_of
from simnet.schedule import Schedule

MAX_BYTES = 2**30
"""The largest GOAL file that is read, unless another limit is given."""

MAX_RANKS = 1_000_000
"""The most ranks that are read."""

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
_VERBS = {SEND: ("send", "to"), RECV: ("recv", "from")}


def write_goal(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as GOAL text, the input of LogGOPSim's ``txt2bin``.

    Each rank's round is a ``calc`` (its compute, in nanoseconds) that requires the ``calc`` and the messages of its
    round before, followed by the sends and receives of this round. Bytes are rounded. The tag of a message is its
    number in the schedule, from 0, so that a receive matches no other message of its pair. InputError if the file
    cannot be written, ValueError if a message has 1e18 bytes or a rank computes for 1e9 seconds, the limits of the
    format.
    """
    with explain_write_errors(Path(path), advice=""), Path(path).open("w", encoding="ascii", newline="\n") as out:
        out.write(f"num_ranks {schedule.n_ranks}\n")
        for rank, ops in enumerate(operations_of(schedule, 1e9, every_round=True)):
            out.write(f"rank {rank} {{\n{''.join(_rank_lines(ops))}}}\n")


def _rank_lines(ops: Sequence[RankOperation]) -> Iterator[str]:
    labels = [f"c{one.round}" if one.kind == CALC else f"m{one.tag}" for one in ops]
    for label, one in zip(labels, ops, strict=True):
        if one.kind == CALC:
            yield f"{label}: calc {one.size}\n"
        else:
            verb, way = _VERBS[one.kind]
            yield f"{label}: {verb} {one.size}b {way} {one.peer} tag {one.tag}\n"
        yield from (f"{label} requires {labels[need]}\n" for need in one.needs)


def read_goal(
    path: str | Path,
    *,
    strict: bool = True,
    largest: int = MAX_BYTES,
    eager_limit: float = math.inf,
) -> Schedule:
    """Read GOAL text as a schedule in rounds.

    Files of `Schedule.to_goal` come back equal: rounds, messages in their order, whole bytes, compute in nanoseconds;
    GOAL has no phases and no empty rounds at the end. In other files a message takes the earliest round that expresses
    all waiting. With ``strict=False`` a rank may wait for all messages of its round before, so the timing on an
    otherwise idle network is an upper bound. Sends and receives match by ranks and tag, in their order. A send of more
    than `eager_limit` bytes waits for its receive, others only until they have left. ``cpu`` and ``nic`` of messages
    are ignored. ``calc`` is in nanoseconds.

    Raises InputError if the file is no such text of `largest` bytes and `MAX_RANKS` ranks, a label, rank or partner is
    unknown, sizes differ, ranks wait for each other in a circle, a receive leaves its source or tag open, or, with
    `strict`, rounds cannot express it.

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
    program = _GoalText(str(path), 0, {}, eager_limit)
    program.read(read_text(Path(path), largest))
    return rounds_of_program(program, strict, 1e9)


class _GoalText(RankOperations):
    """The operations of a GOAL file, read from its text."""

    def read(self, text: str) -> None:
        """Read the operations of all ranks from the text."""
        rank, opened = -1, 0
        labels: dict[str, Operation] = {}
        needs: list[tuple[int, re.Match[str]]] = []
        for line, rest in self._lines(text):
            if match := _HEAD.match(rest):
                if self.n_ranks:
                    self.refuse(line, "num_ranks stands twice")
                self.n_ranks = int(match[1])
                if not 1 <= self.n_ranks <= MAX_RANKS:
                    self.refuse(line, f"num_ranks must be in 1..{MAX_RANKS:,}, got {self.n_ranks}")
                continue
            if match := _OPEN.match(rest):
                if not self.n_ranks:
                    self.refuse(line, "num_ranks must stand before the first rank")
                if rank >= 0:
                    self.refuse(line, f"rank {rank} of line {opened} is not closed by '}}'")
                rank, opened = self._rank(line, match[1]), line
                if rank in self.ranks:
                    self.refuse(line, f"rank {rank} stands twice")
                self.ranks[rank], labels, needs = [], {}, []
                rest = rest[match.end() :].strip()
                if not rest:
                    continue
            if rank < 0:
                self.refuse(line, f"stands outside of a rank: {rest[:60]!r}; expected num_ranks or rank")
            if content := rest.removesuffix("}").strip():
                if match := _NEEDS.match(content):
                    needs.append((line, match))
                else:
                    self._add(self._operation(rank, line, content), labels)
            if rest.endswith("}"):
                self._connect(labels, needs)
                rank = -1
        if rank >= 0:
            self.refuse(opened, f"rank {rank} is not closed by '}}'")
        if not self.n_ranks:
            self.refuse(1, "has no num_ranks; is it GOAL text?")

    def _lines(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each line, without comments and without lines that are then empty."""

        def blank(comment: re.Match[str]) -> str:
            if comment[1] is not None:
                line = text.count("\n", 0, comment.start()) + 1
                self.refuse(line, "the comment that begins here is not closed by '*/'")
            return " " + "\n" * comment.group().count("\n")

        for line, raw in enumerate((_COMMENT.sub(blank, text) if "/" in text else text).split("\n"), start=1):
            if rest := raw.strip():
                yield line, rest

    def _rank(self, line: int, text: str) -> int:
        if int(text) >= self.n_ranks:
            self.refuse(line, f"there is no rank {int(text)}; ranks are 0..{self.n_ranks - 1}")
        return int(text)

    def _add(self, one: Operation, labels: dict[str, Operation]) -> None:
        if one.label and labels.setdefault(one.label, one) is not one:
            first = labels[one.label].line
            self.refuse(one.line, f"label {one.label!r} stands twice, first in line {first}")
        self.ranks[one.rank].append(one)

    def _operation(self, rank: int, line: int, text: str) -> Operation:
        if match := _CALC.match(text):
            return Operation(rank, line, "calc", match[1] or "", int(match[2]), cpu=int(match[3] or 0))
        match = _MESSAGE.match(text)
        if match is None:
            self.refuse(line, f"cannot be read: {text[:60]!r}; expected {_EXPECTED}")
        label, send, sent, _, received, peer, tag = match.groups()
        verb = "send" if send else "recv"
        if "-1" in (peer, tag):
            what = "source" if peer == "-1" else "tag"
            self.refuse(line, f"a {verb} must name its {what}: which message comes first would depend on the network")
        if self._rank(line, peer) == rank:
            self.refuse(line, f"rank {rank} cannot {verb} to or from itself")
        return Operation(rank, line, verb, label or "", int(sent or received), int(peer), int(tag or 0))

    def _connect(self, labels: dict[str, Operation], needs: list[tuple[int, re.Match[str]]]) -> None:
        """Add the dependencies between the labelled operations of a rank."""
        for line, (waiting, kind, before) in ((line, match.groups()) for line, match in needs):
            for label in (waiting, before):
                if label not in labels:
                    close = suggest_names(label, labels).partition("Allowed:")[0]
                    self.refuse(line, f"there is no label {label!r} in this rank; {close}".rstrip("; "))
            (labels[waiting].starts_after if kind else labels[waiting].requires).append(labels[before])
