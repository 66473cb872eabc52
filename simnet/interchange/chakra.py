"""Chakra execution traces, the workloads of ASTRA-sim: a file per rank, whose nodes send, receive and compute.

A file is a sequence of protocol buffers, each after its length: ``GlobalMetadata``, then a ``Node`` per operation.
Schedules are written as pairs of sends and receives, as Chakra's collectives have no variable sizes.

References
----------
S. Sridharan et al., "Chakra: Advancing Performance Benchmarking and Co-design using Standardized Execution Traces",
arXiv 2305.14516; ``schema/protobuf/et_def.proto`` of mlcommons/chakra; protobuf.dev, "Encoding".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from simnet.base.errors import InputError
from simnet.base.file_io import explain_write_errors, read_bytes
from simnet.base.quantities import MOST_BYTES
from simnet.interchange.operations import Operation, RankOperations, rounds_of_program
from simnet.interchange.rank_operations import CALC, SEND, RankOperation, operations_of
from simnet.schedule import Round, Schedule

NodeKind: TypeAlias = Literal["send", "recv", "collective", "other"]

MAX_BYTES = 256 * 2**20
"""The largest trace of one rank that is read, unpacked, unless another limit is given."""

MAX_RANKS = 65_536
"""The most ranks that are read."""

COLLECTIVE_TYPES = (
    *("ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER"),
    *("REDUCE_SCATTER_BLOCK", "BARRIER"),
)
"""Kinds of collectives, by their number in ``comm_type``."""

_VERSION = "1.0.0"
_COMP, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29
# Fields of AttributeProto that hold whole numbers as they are: int32, int64, uint32, uint64, bool.
_WHOLE = (_INT32, _INT64, 11, 13, _BOOL)
_LARGEST = 2**63
# Bytes of fields of a fixed length, by wire type.
_FIXED = {1: 8, 5: 4}
_KINDS: dict[int, NodeKind] = {_SEND: "send", _RECV: "recv", _COLLECTIVE: "collective"}
_OTHER = {"send": "dst", "recv": "src"}


def write_chakra(schedule: Schedule, prefix: str | Path) -> list[Path]:
    """Write a schedule as Chakra execution traces ``PREFIX.0.et``, ``PREFIX.1.et``, ...; return the paths.

    A message is a ``COMM_SEND_NODE`` and a ``COMM_RECV_NODE``, tagged with its number in the schedule; the compute of a
    round is a ``COMP_NODE`` in whole microseconds. A node depends on all nodes of its rank's round before. Bytes are
    rounded. InputError if a file cannot be written, ValueError if a rank computes for more than 1e12 seconds.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.collectives import allreduce_ring
    >>> ring = allreduce_ring(4, 1 << 20).in_phase("")
    >>> with TemporaryDirectory() as folder:
    ...     paths = write_chakra(ring, Path(folder, "ring"))
    ...     read_chakra(Path(folder, "ring")) == ring
    True
    """
    metadata = _encode_packet(_encode_text(1, _VERSION))
    paths = [Path(f"{prefix}.{rank}.et") for rank in range(schedule.n_ranks)]
    for rank, ops in enumerate(operations_of(schedule, 1e6, every_round=False, most=int(MOST_BYTES))):
        with explain_write_errors(paths[rank], advice=""):
            paths[rank].write_bytes(metadata + b"".join(_rank_nodes(rank, ops, schedule.rounds)))
    return paths


def _rank_nodes(rank: int, ops: Sequence[RankOperation], rounds: Sequence[Round]) -> Iterator[bytes]:
    for number, one in enumerate(ops):
        fields = _encode_attribute("is_cpu_op", _BOOL, 0)
        if one.kind == CALC:
            yield _encode_node(number, f"compute {one.round}", _COMP, one.needs, _varint_field(7, one.size) + fields)
            continue
        ends, does, what = ((rank, one.peer), _SEND, "send") if one.kind == SEND else ((one.peer, rank), _RECV, "recv")
        for key, value in zip(("src", "dst", "tag"), (*ends, one.tag), strict=True):
            fields += _encode_attribute(f"comm_{key}", _INT32, value)
        fields += _encode_attribute("comm_size", _INT64, one.size)
        yield _encode_node(number, f"{rounds[one.round].phase} {what} {one.tag}".strip(), does, one.needs, fields)


def read_chakra(
    prefix: str | Path,
    *,
    strict: bool = True,
    largest: int = MAX_BYTES,
    eager_limit: float = math.inf,
    notes: list[str] | None = None,
) -> Schedule:
    """Read Chakra execution traces ``PREFIX.0.et``, ``PREFIX.1.et``, ... of sends, receives and computation.

    Traces of `write_chakra` give the schedule that was written. In others, a message is in the earliest round in which
    ranks wait for all that they wait for in the trace; with ``strict=False`` they may wait for more. Sends of more than
    `eager_limit` bytes wait for their receives. Other nodes count with their duration. A trace has at most `largest`
    bytes, unpacked; it may be packed with gzip. `notes` gets a text on dependencies that were passed over.

    Raises InputError if a file is no such trace, a node is a collective, the partner of a message is missing, ranks
    wait for each other in a circle, or, with `strict`, rounds cannot express the trace.
    """
    ranks = {
        rank: _rank_operations(nodes, rank, path)
        for rank, (path, nodes) in enumerate(read_traces(prefix, largest, notes))
    }
    return rounds_of_program(RankOperations(str(prefix), len(ranks), ranks, eager_limit), strict, 1e6)


class TraceNode(NamedTuple):
    """A node of one rank's execution trace: a send, receive, collective, or other operation."""

    number: int
    name: str
    # All that is no communication is other.
    kind: NodeKind
    # Its duration [us], of a collective with what the rank waits for others.
    micros: int
    # The nodes that it depends on.
    needs: list[int]
    # One of `COLLECTIVE_TYPES`; empty if the trace does not say.
    collective: str
    # Bytes of a message, or of a rank's input to a collective, and the message's peer; -1 if the trace does not say.
    nbytes: int
    peer: int
    tag: int
    # Name of the group of ranks; empty if the trace does not say.
    group: str


def trace_paths(prefix: str | Path) -> list[Path]:
    """Return the paths of existing traces ``PREFIX.0.et``, ``PREFIX.1.et``, ...; InputError for none or too many."""
    found: list[Path] = []
    while (path := Path(f"{prefix}.{len(found)}.et")).exists():
        if len(found) == MAX_RANKS:
            raise InputError(f"are more than {MAX_RANKS:,} traces", file=f"{prefix}.*.et")
        found.append(path)
    if not found:
        raise InputError("there is no such file", file=str(path))
    return found


def read_traces(
    prefix: str | Path, largest: int = MAX_BYTES, notes: list[str] | None = None
) -> list[tuple[Path, dict[int, TraceNode]]]:
    """Return for each rank the path of its trace, and a dict of the trace's nodes by number.

    Dependencies on nodes outside of the trace are passed over, and `notes` gets a text on them: converters leave out
    the process that all nodes depend on.
    """
    found, missing = [], []
    for path in trace_paths(prefix):
        nodes: dict[int, TraceNode] = {}
        for node in read_nodes(path, largest):
            if nodes.setdefault(node.number, node) is not node:
                raise InputError("stands twice", file=str(path), field=f"node {node.number}")
        for node in nodes.values():
            missing += [f"node {node.number} of {path.name} on node {need}" for need in node.needs if need not in nodes]
            node.needs[:] = [need for need in node.needs if need in nodes]
        found.append((path, nodes))
    if missing and notes is not None:
        notes.append(f"passed over {len(missing):,} dependencies on nodes outside of the trace, as {missing[0]}")
    return found


def read_nodes(path: Path, largest: int = MAX_BYTES) -> Iterator[TraceNode]:
    """Yield the nodes of one rank's trace file, plain or gzipped, including collectives.

    Raises InputError if it cannot be read, is larger than `largest` bytes unpacked, or is no such trace.
    """
    packets = _read_packets(read_bytes(path, largest), path)
    if next(packets, None) is None:
        raise InputError("is empty; a trace begins with its metadata", file=str(path))
    for packet in packets:
        yield _node_of(packet, path)


def _rank_operations(nodes: dict[int, TraceNode], rank: int, path: Path) -> list[Operation]:
    found = {number: _operation_of(node, rank, path) for number, node in nodes.items()}
    for number, node in nodes.items():
        found[number].requires += [found[need] for need in node.needs]
    return list(found.values())


def _node_of(packet: bytes, path: Path) -> TraceNode:
    fixed = {1: 0, 3: 0, 7: 0}
    name = ""
    needs: list[int] = []
    facts: dict[tuple[str, type], Any] = {}
    for field, value in _packet_fields(packet, path):
        if field in fixed and isinstance(value, int):
            fixed[field] = value
        elif field == 2 and isinstance(value, bytes):
            name = value.decode("utf-8", "replace")[:60]
        elif field in (4, 5):
            needs += [value] if isinstance(value, int) else _read_varints(value, path)
        elif field == 10 and isinstance(value, bytes):
            key, said = _read_attribute(value, path) if len(value) > _SHORT else _said_before(value, path)
            facts[key, type(said)] = said
    number, code, micros = fixed.values()
    if max(number, micros) >= _LARGEST:
        raise InputError("is no Chakra trace: a node has a number or a duration of 64 bits", file=str(path))
    kind, which = _KINDS.get(code, "other"), facts.get(("comm_type", int), -1)
    is_known = kind == "collective" and 0 <= which < len(COLLECTIVE_TYPES)
    nbytes, peer = (facts.get((f"comm_{key}", int), -1) for key in ("size", _OTHER.get(kind)))
    group, said = facts.get(("pg_name", str), ""), COLLECTIVE_TYPES[which] if is_known else ""
    return TraceNode(number, name, kind, micros, needs, said, nbytes, peer, facts.get(("comm_tag", int), 0), group)


def _operation_of(node: TraceNode, rank: int, path: Path) -> Operation:
    if node.kind == "collective":
        message = f"is a collective ({node.name}); only sends, receives and computation are read, simnet step takes all"
        raise InputError(message, file=str(path), field=f"node {node.number}")
    if node.kind == "other":
        return Operation(rank, node.number, "calc", node.name, node.micros, place="node")
    for attribute, value in (("size", node.nbytes), (_OTHER[node.kind], node.peer)):
        if value < 0:
            raise InputError(f"needs a comm_{attribute} >= 0", file=str(path), field=f"node {node.number}")
    return Operation(rank, node.number, node.kind, node.name, node.nbytes, node.peer, node.tag, place="node")


def _read_attribute(content: bytes, path: Path) -> tuple[str, int | str | None]:
    """Return the name and the value of a node's attribute; the value is None unless it is an integer or text."""
    parts = dict(_packet_fields(content, path))
    key, text = parts.get(1), parts.get(_STRING)
    whole = next((parts[one] for one in _WHOLE if one in parts), None)
    if not isinstance(key, bytes):
        return "", None
    name = key.decode("utf-8", "replace")
    if isinstance(whole, int):
        return name, whole if whole < _LARGEST else whole - 2**64
    return name, text[:120].decode("utf-8", "replace") if isinstance(text, bytes) else None


# Nodes of a rank have many attributes in common.
_SHORT, _said_before = 64, lru_cache(maxsize=2**14)(_read_attribute)


def _read_packets(content: bytes, path: Path) -> Iterator[bytes]:
    """Yield the length-prefixed protobuf messages of a file."""
    at = 0
    while at < len(content):
        length, at = _varint_at(content, at, path)
        if length > len(content) - at:
            raise InputError(f"ends inside of a message, at byte {len(content)}", file=str(path))
        yield content[at : at + length]
        at += length


def _packet_fields(packet: bytes, path: Path) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a protobuf message; values are integers or bytes."""
    at, end = 0, len(packet)
    while at < end:
        key, at = _varint_at(packet, at, path)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint_at(packet, at, path)
            yield field, value
            continue
        if kind == 2:
            length, at = _varint_at(packet, at, path)
        elif (length := _FIXED.get(kind, -1)) < 0:
            raise InputError(f"is no Chakra trace: a field has the wire type {kind}", file=str(path))
        if length > end - at:
            raise InputError("is no Chakra trace: a field is longer than its message", file=str(path))
        yield field, packet[at : at + length]
        at += length


def _varint_at(data: bytes, at: int, path: Path) -> tuple[int, int]:
    # Most numbers are of one byte.
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            raise InputError("is no Chakra trace: it ends inside of a number", file=str(path))
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise InputError("is no Chakra trace: a number is longer than 64 bits", file=str(path))


def _read_varints(data: bytes, path: Path) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _varint_at(data, at, path)
        values.append(value)
    return values


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_packet(content: bytes) -> bytes:
    return _encode_varint(len(content)) + content


def _varint_field(field: int, value: int) -> bytes:
    return _encode_varint(field << 3) + _encode_varint(value)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_packet(value)


def _encode_text(field: int, value: str) -> bytes:
    return _bytes_field(field, value.encode())


@lru_cache(maxsize=2**14)
def _encode_attribute(name: str, kind: int, value: int) -> bytes:
    """Return the bytes of a node's attribute (field 10), with its value in field `kind` of AttributeProto."""
    return _bytes_field(10, _encode_text(1, name) + _varint_field(kind, value))


def _encode_node(number: int, name: str, kind: int, needs: Sequence[int], fields: bytes) -> bytes:
    packed = b"".join(map(_encode_varint, needs))
    deps = _bytes_field(5, packed) if packed else b""
    return _encode_packet(_varint_field(1, number) + _encode_text(2, name) + _varint_field(3, kind) + deps + fields)
