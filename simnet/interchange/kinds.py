"""Recognition of file formats by content, and readers for schedules and networks of any format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import open_reading
from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.interchange.calibrated_network import read_fabric_network
from simnet.interchange.chakra import read_chakra
from simnet.interchange.goal import read_goal
from simnet.interchange.messages_csv import NEEDED, read_messages
from simnet.interchange.msccl import read_msccl
from simnet.interchange.nccl import read_nccl_topology
from simnet.interchange.networkx_graphs import read_graphml, read_nodelink
from simnet.interchange.simgrid import profile_names, read_platform
from simnet.network.weather import Weather
from simnet.schedule import Schedule
from simnet.topologies.graphs import Graph, Link

ScheduleKind: TypeAlias = Literal["goal", "chakra", "msccl", "csv"]
NetworkKind: TypeAlias = Literal["simgrid", "nccl", "nodelink", "graphml", "fabric"]
K = TypeVar("K", bound=str)

_SCHEDULES: tuple[ScheduleKind, ...] = get_args(ScheduleKind)
_NETWORKS: tuple[NetworkKind, ...] = get_args(NetworkKind)

FORMATS = {
    "goal": "GOAL text",
    "chakra": "Chakra execution traces",
    "msccl": "an MSCCL algorithm",
    "csv": "a table of messages",
    "simgrid": "a SimGrid platform",
    "nccl": "an NCCL topology",
    "nodelink": "node-link JSON",
    "graphml": "a graph in GraphML or GML",
    "fabric": "a fabric file",
}
"""Formats in words."""
WITHOUT_LATENCIES = ("nccl", "graphml")
"""Formats whose links have no latencies of their own."""
_ROOTS = {"algo": "msccl", "platform": "simgrid", "system": "nccl", "graphml": "graphml"}
_NETWORK_READERS: Mapping[NetworkKind, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "simgrid": (read_platform, ()),
    "nccl": (read_nccl_topology, ("nodes", "latency", "network_latency")),
    "nodelink": (read_nodelink, ()),
    "graphml": (read_graphml, ("latency", "bandwidth")),
    "fabric": (read_fabric_network, ("nodes",)),
}
_HEAD = 2**16
_XML_PROLOGUE = re.compile(r"\s*(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*>)", re.DOTALL)
_OWN_TYPE = re.compile(r"\s*<!DOCTYPE[^>\[]*\[")
_ROOT = re.compile(r"\s*<([A-Za-z_][A-Za-z0-9_.-]{0,40})")
_BEGINNINGS = {
    "nodelink": re.compile(r"\s*\{[\s\S]*\"(?:nodes|links|edges|directed|multigraph)\"\s*:"),
    "graphml": re.compile(r"(?:#[^\n]*\n|\s|\w+\s+(?:\"[^\"]*\"|[\d.+-]+)\s)*+graph\s*\["),
    "goal": re.compile(r"(?:\s|//[^\n]*\n|(?>/\*.*?\*/))*+num_ranks\b", re.DOTALL),
    "fabric": re.compile(r"(?:#[^\n]*\n|[ \t]*\n)*+version:"),
}


class NetworkRead(NamedTuple):
    """A network read from a file: the topology, its links' changes over time (weather), and the format of the file."""

    graph: Graph
    weather: dict[Link, Weather]
    kind: NetworkKind | None = None


def kind_of(path: str | Path) -> str | None:
    r"""Return the format of a file or folder, recognised by content rather than by name; None if unknown.

    Raises InputError if it cannot be read, or is XML that declares a document type of its own.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "some.xml")
    ...     _ = file.write_text("// a ring\nnum_ranks 4\n")
    ...     kind_of(file)
    'goal'
    """
    path = Path(path)
    if _is_folder(path):
        return "chakra" if any(path.glob("*.et")) else None
    with open_reading(path, path.stat().st_size if path.is_file() else 0, unpack=False) as more:
        head = more(_HEAD).decode("utf-8", "replace").removeprefix("\ufeff")
    if head.lstrip().startswith("<"):
        at = 0
        while match := _XML_PROLOGUE.match(head, at):
            at = match.end()
        if _OWN_TYPE.match(head, at):
            message = "declares its own document type; only a reference to an external one is accepted"
            raise InputError(message, file=str(path), line=head.count("\n", 0, at) + 1)
        root = _ROOT.match(head, at)
        return None if root is None else _ROOTS.get(root[1])
    if kind := next((kind for kind, beginning in _BEGINNINGS.items() if beginning.match(head)), None):
        return kind
    first = {name.strip() for name in head.lstrip().partition("\n")[0].split(",")}
    return "csv" if len(first & set(NEEDED)) >= 2 else None


def read_schedule(
    path: str | Path,
    kind: ScheduleKind | None = None,
    *,
    nbytes: float | None = None,
    strict: bool = True,
    n_ranks: int | None = None,
    largest: int | None = None,
    eager_limit: float = math.inf,
    notes: list[str] | None = None,
) -> tuple[ScheduleKind, Schedule]:
    """Read a schedule from a file; return its format, by default recognised by content, and the schedule.

    It is GOAL text, a folder of Chakra execution traces ``PREFIX.RANK.et``, an MSCCL algorithm with the `nbytes` of its
    vector, or a table of messages, whose ranks are those up to the last that has a message unless `n_ranks` says
    otherwise. `strict` refuses what rounds cannot express; `largest` bounds a file [byte], but for MSCCL. Sends of more
    than `eager_limit` bytes wait for their receives, and `notes` gets what was passed over, in GOAL text and traces.

    Raises InputError if the format is unknown, an MSCCL algorithm has no size, or the reader refuses the file.
    """
    found = _settle_format(path, kind, _SCHEDULES, "a schedule")
    for value, takes, why in (
        (nbytes, ("msccl",), "has sizes of its own; a size is for MSCCL"),
        (n_ranks, ("csv",), "says itself how many ranks there are"),
        (largest, ("goal", "chakra", "csv"), "has a limit of its own"),
    ):
        if value is not None and found not in takes:
            raise InputError(f"is {FORMATS[found]}, which {why}", file=str(path))
    limit = {} if largest is None else {"largest": largest}
    if found == "goal":
        return found, read_goal(path, strict=strict, eager_limit=eager_limit, **limit)
    if found == "chakra":
        return found, read_chakra(trace_prefix(path), strict=strict, eager_limit=eager_limit, notes=notes, **limit)
    if found == "csv":
        return found, read_messages(path, n_ranks, **limit)
    if nbytes is None:
        raise InputError("is an MSCCL algorithm, which has no sizes: give the bytes of its vector", file=str(path))
    return found, read_msccl(path, nbytes)


def read_network(
    path: str | Path,
    kind: NetworkKind | None = None,
    *,
    nodes: Count | None = None,
    latency: Seconds | None = None,
    network_latency: Seconds | None = None,
    bandwidth: Bandwidth | None = None,
) -> NetworkRead:
    """Read a topology from a file of any format.

    Parameters
    ----------
    path : str or Path
        A SimGrid platform, an NCCL topology, node-link JSON, GraphML or GML, or a fabric file with a network.
    kind : {"simgrid", "nccl", "nodelink", "graphml", "fabric"}, optional
        The format; by default recognised by the content.
    nodes : int, optional
        Number of nodes like that of an NCCL topology (default 1), or instead of those measured for a fabric file.
    latency : float, optional
        Latency of each link inside a node of an NCCL topology, or of each link of a graph [s]; see
        `read_nccl_topology` and `read_graphml`.
    network_latency : float, optional
        Latency from card to card with an NCCL topology [s] (default 0).
    bandwidth : float, optional
        Bandwidth of links of a graph that have none [byte/s].

    Raises
    ------
    InputError
        If the format is another one, or the reader refuses the file.
    ValueError
        If an NCCL topology comes without a latency, or another format with an option of NCCL.
    """
    found = _settle_format(path, kind, _NETWORKS, "a network")
    own = {"nodes": nodes, "latency": latency, "network_latency": network_latency, "bandwidth": bandwidth}
    given = {name: value for name, value in own.items() if value is not None}
    reader, takes = _NETWORK_READERS[found]
    if others := [name for name in given if name not in takes]:
        for_which = " and ".join(FORMATS[one] for one, (_, known) in _NETWORK_READERS.items() if others[0] in known)
        said = f"{', '.join(others)} is only for {for_which}"
        raise ValueError(f"{said}; {path} is {FORMATS[found]}, which says itself what its links are")
    if found == "nccl" and latency is None:
        said = "give latency (--latency 1us), that of each link inside a node"
        raise ValueError(f"an NCCL topology has no latencies: {said}")
    read = reader(path, **given)
    graph, weather = (read.graph, read.weather) if found == "simgrid" else (read, {})
    return NetworkRead(graph, weather, found)


def companion_files(path: str | Path, kind: NetworkKind | None = None) -> list[str]:
    """Return the names of files that a network file refers to, which are link profiles of a SimGrid platform."""
    found = _settle_format(path, kind, _NETWORKS, "a network")
    return profile_names(path) if found == "simgrid" else []


def _settle_format(path: str | Path, kind: str | None, allowed: Sequence[K], what: str) -> K:
    """Return `kind`, or by default the recognised format of a file; raise an error unless it is one of `allowed`."""
    found = kind_of(path) if kind is None else kind
    for name in allowed:
        if name == found:
            return name
    if kind is not None:
        raise ValueError(f"there is no format {kind!r} of {what}; {suggest_names(kind, allowed)}")
    listed = ", ".join(FORMATS[name] for name in allowed)
    if found is not None:
        raise InputError(f"is {FORMATS[found]}, not {what}; allowed are {listed}", file=str(path))
    if Path(path).is_dir() and "chakra" not in allowed:
        raise InputError(f"is a folder, not {what}; allowed are {listed}", file=str(path))
    if Path(path).is_dir():
        raise InputError("is a folder without Chakra traces PREFIX.RANK.et", file=str(path))
    one = " (of one rank? name the folder with the traces of all)" if str(path).endswith(".et") else ""
    logs = "; simnet calibrate makes a fabric file of logs" if "fabric" in allowed else ""
    raise InputError(f"is not recognised as {what}{one}; allowed are {listed}{logs}", file=str(path))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None


def trace_prefix(path: str | Path) -> Path:
    """Return the path prefix of Chakra traces, given the prefix itself or a folder with the traces of one run.

    Raises InputError if a folder has none, or those of several runs.
    """
    path = Path(path)
    if not _is_folder(path):
        return path
    first = sorted(file.name.removesuffix(".0.et") for file in path.glob("*.0.et"))
    if len(first) != 1:
        found = f"those of {', '.join(first[:5])}" if first else "none of rank 0"
        raise InputError(f"must hold the traces PREFIX.RANK.et of one run, found {found}", file=str(path))
    return path / first[0]
