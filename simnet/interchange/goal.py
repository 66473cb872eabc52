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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks
from simnet.base.checks import positive
from simnet.base.errors import InputError, nearest
from simnet.base.numbered_lines import Matched, read_lines, write_lines
from simnet.base.reading import beginning, decoded, reading
from simnet.base.writing import explained
from simnet.interchange.operations import read_rounds
from simnet.interchange.told_rounds import CALC, RECV, SEND, Operations, operations_of, work_before
from simnet.schedule import Schedule

MAX_BYTES = 2**30
"""The largest GOAL file that is read, unless another limit is given."""

MAX_RANKS = 1_000_000
"""The most ranks that are read."""

_BLOCK = 2**20
# A comment that is not closed reaches to the end; looking for its end again at each further one would take for ever.
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?(?:\*/|(\Z))", re.DOTALL)
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
_TOLD = re.compile(r"([cm])([0-9]{1,18})")
_INK = re.compile(rb"[^\n]")
_EXPECTED = (
    "'num_ranks N', 'rank R {', '}', '[label:] send Nb to R [tag T]', '[label:] recv Nb from R [tag T]', "
    "'[label:] calc N', 'label requires label' or 'label irequires label'"
)

# How lines look in files that programs write. What an operation has: the places of its numbers.
_FRAME = ("num_ranks #", "rank # {", "}", "", "?# requires ?#", "?# irequires ?#")
_OPERATIONS = {
    "?#: calc #": (CALC, {"label": 0, "size": 1}),
    "?#: calc # cpu #": (CALC, {"label": 0, "size": 1, "cpu": 2}),
    "calc #": (CALC, {"size": 0}),
    **{
        f"{label}{verb} #b {way} #{tag}{cpu}": (
            kind,
            {name: place for place, name in enumerate([*own, "size", "peer", *(["tag"] if tag else [])])},
        )
        for verb, way, kind in (("send", "to", SEND), ("recv", "from", RECV))
        for label, own in (("?#: ", ["label"]), ("", []))
        for tag in (" tag #", "")
        for cpu in ("", " cpu #", " cpu # nic #")
    },
}
_TEMPLATES = (*_FRAME, *_OPERATIONS)
_MOST_LABEL = 2**31


_WRITTEN = (
    "rank # {\n",
    "}\n",
    "m#: send #b to # tag #\n",
    "m#: recv #b from # tag #\n",
    "c#: calc #\n",
    "m# requires c#\n",
    "c# requires m#\n",
    "c# requires c#\n",
)


def write_goal(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as GOAL text, as LogGOPSim's ``txt2bin`` reads it.

    Each rank's round is a ``calc`` (its compute, in nanoseconds) that requires the ``calc``, the sends and the receives
    of its round before, followed by the sends and receives of this round. Bytes are rounded to whole bytes. The tag of
    a message is its number in the schedule, from 0, so that a receive matches no other message of its pair.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    path : str or Path
        The file.

    Raises
    ------
    InputError
        If it cannot be written.
    ValueError
        If a message has 1e18 bytes, or a rank works for 1e9 seconds: the numbers of the format are shorter.
    """
    written = 0
    with explained(Path(path), advice=""), Path(path).open("wb") as out:
        out.write(f"num_ranks {schedule.n_ranks}\n".encode())
        for ops in operations_of(schedule, 1e9, every_round=True):
            last = int(ops.rank[-1]) + 1
            out.write(_text_of(ops, written, last))
            written = last
        out.write(b"".join(b"rank %d {\n}\n" % rank for rank in range(written, schedule.n_ranks)))


def _text_of(ops: Operations, first: int, last: int) -> bytes:
    """Return the text of some ranks, up to before the last one; `ops` are theirs."""
    label = np.where(ops.kind == CALC, ops.hint, ops.tag)
    ranks = np.arange(first, last)
    awaited = np.bincount(ops.waiting, minlength=len(ops.rank))
    upto = np.cumsum(np.bincount(ops.rank - first, 1 + awaited, minlength=len(ranks)).astype(np.int64) + 2)
    lines = np.arange(len(ops.rank)) + np.cumsum(awaited) - awaited + 2 * (ops.rank - first) + 1
    kinds = np.zeros(upto[-1], dtype=np.int64)
    numbers = np.zeros((4, len(kinds)), dtype=np.int64)
    kinds[upto - 1] = 1
    numbers[0, np.concatenate([[0], upto[:-1]])] = ranks
    kinds[lines] = 2 + ops.kind
    for column, one in enumerate((label, ops.size, ops.peer, ops.tag)):
        numbers[column, lines] = one
    of = ops.waiting
    needs = lines[of] + 1 + np.arange(len(of)) - (np.cumsum(awaited) - awaited)[of]
    kinds[needs] = np.where(ops.kind[of] != CALC, 5, np.where(ops.kind[ops.before] != CALC, 6, 7))
    numbers[0, needs], numbers[1, needs] = label[of], label[ops.before]
    return write_lines(_WRITTEN, kinds, numbers)


def read_goal(
    path: str | Path, *, strict: bool = True, nanoseconds_per_calc: float = 1.0, largest: int = MAX_BYTES
) -> Schedule:
    r"""Read GOAL text.

    Files of `Schedule.to_goal` come back as they were: rounds, messages in their order, whole bytes, compute in
    nanoseconds; GOAL has no phases, and no empty rounds at the end. In other files the round of a message is the least
    that lets all waiting be expressed. Sends and receives match by ranks and tag, in their order. The attributes
    ``cpu`` and ``nic`` of a message say nothing about a network and are ignored.

    Parameters
    ----------
    path : str or Path
        The file, of at most `MAX_RANKS` ranks.
    strict : bool
        Refuse what rounds cannot express. If False, a rank may wait for more than the file asks for: for all messages
        of its round before. The timing is then an upper bound, as when nothing else is on the network.
    nanoseconds_per_calc : float
        Unit of ``calc``; the format leaves it open, and files of LogGOPSim mean nanoseconds.
    largest : int
        How many bytes it may have.

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
    return read_rounds(_GoalText(Path(path), largest), strict, per_second)


class _GoalText:
    """A GOAL file, read a few ranks at a time.

    Lines as programs write them are read as columns; where a block has another one, a line at a time.
    """

    def __init__(self, path: Path, largest: int) -> None:
        self.path, self.name, self.largest = path, str(path), largest
        self.n_ranks = 0
        self._seen: set[int] = set()

    def blocks(self) -> Iterator[Operations]:
        """Read the file, from its beginning."""
        self.n_ranks, self._seen = 0, set()
        for text, line in self._texts():
            found = read_lines(text, _TEMPLATES)
            yield (None if found is None else self._columns(found, line)) or self._by_line(text.decode(), line)
        if not self.n_ranks:
            self._refuse(1, "has no num_ranks; is it GOAL text?")

    def _texts(self) -> Iterator[tuple[bytes, int]]:
        """Yield pieces of the file that end where a rank does, with blanks for comments, and their first lines."""
        held, line, offset = b"", 1, 0
        with reading(self.path, self.largest, unpack=False) as more:
            while True:
                new = more(max(_BLOCK, len(held)))
                if not offset and not held:
                    mark = beginning(new, self.name)
                    new, offset = new[len(mark) :], len(mark)
                held += new
                text, opened = _without_comments(held)
                at = text.rfind(b"}") if new else len(text)
                cut = text.find(b"\n", at) + 1 if new and at >= 0 else 0 if new else len(text)
                if not new and opened >= 0:
                    where = line + held.count(b"\n", 0, opened)
                    self._refuse(where, "the comment that begins here is not closed by '*/'")
                if cut:
                    decoded(held[:cut], self.name, offset)
                    yield text[:cut].removesuffix(b"\n") + b"\n", line
                    line += held.count(b"\n", 0, cut)
                    held, offset = held[cut:], offset + cut
                if not new:
                    return

    def _columns(self, found: Sequence[Matched], line: int) -> Operations | None:
        """Return operations from their lines, of which the first has this number; None if something is wrong."""
        heads, opens, closes, _, *needs = found[: len(_FRAME)]
        begins, ends, ranks = opens.lines, closes.lines, opens.numbers[:, 0]
        n_ranks = int(heads.numbers[0, 0]) if len(heads.lines) else self.n_ranks
        if len(heads.lines) and (self.n_ranks or len(heads.lines) > 1 or (begins < heads.lines[0]).any()):
            return None
        if not 1 <= n_ranks <= MAX_RANKS or len(begins) != len(ends):
            return None
        if (begins > ends).any() or (begins[1:] < ends[:-1]).any() or (ranks >= n_ranks).any():
            return None
        if len(set(ranks.tolist())) != len(ranks) or not self._seen.isdisjoint(ranks.tolist()):
            return None

        def rank_of(lines: Ranks) -> Ranks:
            of = np.searchsorted(begins, lines) - 1
            inside = of >= 0
            inside[inside] = lines[inside] < ends[of[inside]]
            return np.where(inside, ranks[of] if len(ranks) else -1, -1)

        lines, kind, letter, label, size, peer, tag, cpu = _lines_of_operations(found[len(_FRAME) :])
        rank = rank_of(lines)
        wrong = (kind != CALC) & ((peer >= n_ranks) | (peer == rank))
        if wrong.any() or (rank < 0).any():
            return None
        keys = _key(rank, letter, label)
        named = np.flatnonzero(letter > 0)
        named = named[np.argsort(keys[named], kind="stable")]
        sorted_keys = keys[named]
        if (label >= _MOST_LABEL).any() or (sorted_keys[1:] == sorted_keys[:-1]).any():
            return None
        edges = []
        for one in needs:
            of = rank_of(one.lines)
            for place in (0, 1):
                wanted = _key(of, one.letters[:, place], one.numbers[:, place])
                at = np.searchsorted(sorted_keys, wanted)
                if (of < 0).any() or (one.numbers >= _MOST_LABEL).any() or (at == len(named)).any():
                    return None
                if (sorted_keys[at] != wanted).any():
                    return None
                edges.append(named[at])
        self.n_ranks = n_ranks
        self._seen.update(ranks.tolist())
        return Operations(
            *(rank, lines + line, kind, size, peer, tag, cpu, _rounds(rank, kind, letter, label, tag)),
            waiting=np.concatenate([edges[0], edges[2]]),
            before=np.concatenate([edges[1], edges[3]]),
            at_start=np.repeat([False, True], [len(edges[0]), len(edges[2])]),
            label=lambda index: f"{chr(letter[index])}{label[index]}" if letter[index] else "",
        )

    def _by_line(self, text: str, first: int) -> Operations:
        """Return operations from text in which any line may stand; the first has this number."""
        rank, opened = -1, 0
        ops: list[tuple[int, int, int, str, int, int, int, int]] = []
        labels: dict[str, int] = {}
        needs: list[tuple[int, str, str, str]] = []
        edges: list[tuple[int, int, bool]] = []
        for line, raw in enumerate(text.split("\n"), start=first):
            rest = raw.strip()
            if not rest:
                continue
            if match := _HEAD.match(rest):
                if self.n_ranks:
                    self._refuse(line, "num_ranks stands twice")
                if not 1 <= int(match[1]) <= MAX_RANKS:
                    self._refuse(line, f"num_ranks must be in 1..{MAX_RANKS:,}, got {match[1]}")
                self.n_ranks = int(match[1])
                continue
            if match := _OPEN.match(rest):
                if not self.n_ranks:
                    self._refuse(line, "num_ranks must stand before the first rank")
                if rank >= 0:
                    self._refuse(line, f"rank {rank} of line {opened} is not closed by '}}'")
                rank, opened = int(match[1]), line
                self._known_rank(line, rank)
                if rank in self._seen:
                    self._refuse(line, f"rank {rank} stands twice")
                self._seen.add(rank)
                labels, needs = {}, []
                rest = rest[match.end() :].strip()
                if not rest:
                    continue
            closing = rest.endswith("}")
            rest = rest.removesuffix("}").strip()
            if rank < 0:
                self._refuse(line, f"stands outside of a rank: {raw.strip()[:60]!r}; expected num_ranks or rank")
            if match := _NEEDS.match(rest):
                needs.append((line, match[1], match[2], match[3]))
            elif rest:
                one = self._operation(rank, line, rest)
                label = one[3]
                if label in labels:
                    self._refuse(line, f"label {label!r} stands twice, first in line {ops[labels[label]][1]}")
                if label:
                    labels[label] = len(ops)
                ops.append(one)
            if closing:
                edges += self._connected(labels, needs)
                rank = -1
        if rank >= 0:
            self._refuse(opened, f"rank {rank} is not closed by '}}'")
        names = [one[3] for one in ops]
        numbers_of = np.array([one[:3] + one[4:] for one in ops], dtype=np.int64).reshape(-1, 7)
        ranks, lines, kind, size, peer, tag, cpu = numbers_of.T
        marks = [_TOLD.fullmatch(name) for name in names]
        number = np.array([int(one[2]) if one else -1 for one in marks], dtype=np.int64)
        letter = np.array([ord(one[1]) if one else 0 for one in marks], dtype=np.int64)
        hint = _rounds(ranks, kind, letter, number, tag)
        waiting, before, starts = np.array(edges, dtype=np.int64).reshape(-1, 3).T
        return Operations(
            ranks, lines, kind, size, peer, tag, cpu, hint, waiting, before, starts > 0, names.__getitem__
        )

    def _operation(self, rank: int, line: int, text: str) -> tuple[int, int, int, str, int, int, int, int]:
        """Return rank, line, kind, label, size, peer, tag and cpu of an operation."""
        if match := _CALC.match(text):
            return rank, line, CALC, match[1] or "", int(match[2]), 0, 0, int(match[3] or 0)
        match = _MESSAGE.match(text)
        if match is None:
            self._refuse(line, f"cannot be read: {text[:60]!r}; expected {_EXPECTED}")
        label, send, sent, _, received, peer, tag = match.groups()
        verb = "send" if send else "recv"
        if "-1" in (peer, tag):
            what = "source" if peer == "-1" else "tag"
            self._refuse(line, f"a {verb} must name its {what}: which message comes first would depend on the network")
        other = int(peer)
        self._known_rank(line, other)
        if other == rank:
            self._refuse(line, f"rank {rank} cannot {verb} to or from itself")
        return rank, line, SEND if send else RECV, label or "", int(sent or received), other, int(tag or 0), 0

    def _known_rank(self, line: int, rank: int) -> None:
        if rank >= self.n_ranks:
            self._refuse(line, f"there is no rank {rank}; ranks are 0..{self.n_ranks - 1}")

    def _connected(
        self, labels: dict[str, int], needs: Iterable[tuple[int, str, str, str]]
    ) -> Iterator[tuple[int, int, bool]]:
        """Yield which operation waits for which one, and whether for its start."""
        for line, waiting, kind, before in needs:
            for label in (waiting, before):
                if label not in labels:
                    close = nearest(label, labels).partition("Allowed:")[0]
                    self._refuse(line, f"there is no label {label!r} in this rank; {close}".rstrip("; "))
            yield labels[waiting], labels[before], bool(kind)

    def _refuse(self, line: int, message: str) -> NoReturn:
        raise InputError(message, file=self.name, line=line)


def _lines_of_operations(found: Sequence[Matched]) -> tuple[Ranks, ...]:
    """Return line, kind, letter and number of the label, size, peer, tag and cpu of operations, in their order."""
    columns = []
    for one, (kind, places) in zip(found, _OPERATIONS.values(), strict=True):
        count = len(one.lines)
        numbers = [
            one.numbers[:, places[name]] if name in places else np.zeros(count, dtype=np.int64)
            for name in ("label", "size", "peer", "tag", "cpu")
        ]
        letter = one.letters[:, 0].astype(np.int64) if "label" in places else np.zeros(count, dtype=np.int64)
        if count:
            columns.append((one.lines, np.full(count, kind), letter, *numbers))
    if not columns:
        return (np.zeros(0, dtype=np.int64),) * 8
    whole = [np.concatenate(pieces) for pieces in zip(*columns, strict=True)]
    order = np.argsort(whole[0])
    return tuple(column[order] for column in whole)


def _key(rank: Ranks, letter: NDArray[Any], label: Ranks) -> Ranks:
    """Return a number that tells labels below `_MOST_LABEL` of all ranks apart."""
    key: Ranks = (rank * 128 + letter) * _MOST_LABEL + label
    return key


def _rounds(rank: Ranks, kind: Ranks, letter: Ranks, label: Ranks, tag: Ranks) -> Ranks:
    """Return the rounds that labels tell: c and the round, m and the tag."""
    told = np.where(kind == CALC, letter == ord("c"), (letter == ord("m")) & (label == tag))
    return work_before(rank, kind, label, told)


def _without_comments(text: bytes) -> tuple[bytes, int]:
    """Return a text with blanks for its comments, and where one begins that is not closed, or -1."""
    opened = -1

    def blank(comment: re.Match[bytes]) -> bytes:
        nonlocal opened
        if comment[1] is not None:
            opened = comment.start()
        return _INK.sub(b" ", comment.group())

    text = _COMMENT.sub(blank, text) if b"/" in text else text
    return text, opened
