"""The network in a fabric file: a topology that `simnet calibrate --network` fitted to measured times.

The field ``network`` names a star or nodes of several GPUs, with latencies [s] and bandwidths [byte/s].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simnet import topologies
from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import read_text
from simnet.base.yaml_loader import load_yaml_mapping
from simnet.topologies.graphs import Graph

MAX_BYTES = 8 * 2**20
"""The largest file that is read."""

MAX_NETWORK = 10_000
"""The most characters of its network."""

FIELDS = {
    "star": ("hosts", "latency", "bandwidth"),
    "multi_gpu_nodes": ("nodes", "gpus_per_node", "intra_latency", "intra_bandwidth", "nic_latency", "nic_bandwidth"),
}
"""What a network has, by topology."""


def read_fabric_network(path: str | Path, nodes: int | None = None) -> Graph:
    r"""Read the network of a fabric file; `nodes` replaces the measured number of nodes (for a star, of hosts).

    Raises InputError if the file cannot be read, has no network, or a field of it is wrong.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "fabric.yaml")
    ...     _ = file.write_text("version: 1\nnetwork:\n  star: {hosts: 4, latency: 1e-5, bandwidth: 1e9}\n")
    ...     graph = read_fabric_network(file, nodes=8)
    >>> graph.graph["hosts"], graph.edges[0, "switch"]["latency"]
    (8, 5e-06)
    """
    file = str(path)
    text = _network_field(read_text(Path(path), MAX_BYTES)) or "network:"
    if len(text.lstrip("\n")) > MAX_NETWORK:
        raise InputError("is larger than any network in a fabric file", file=file, line=1, field="network")
    read = load_yaml_mapping(text, file, "a fabric file")
    network: Any = read.value.get("network")
    if network is None:
        collectives = "add --network multi_gpu_nodes:gpus_per_node=8, or star, to simnet calibrate LOGS --force"
        pairs = "of ping and iperf3 take --latency and --bandwidth, without this file"
        read.refuse(f"is missing: {collectives}; {pairs}", "network")
    if not isinstance(network, dict) or len(network) != 1:
        read.refuse(f"must be one topology with its parameters; {suggest_names('', FIELDS)}", "network")
    family, given = next(iter(network.items()))
    if family not in FIELDS:
        known = suggest_names(str(family)[:40], FIELDS)
        read.refuse(f"there is no {str(family)[:40]!r} in a fabric file; {known}", "network")
    if not isinstance(given, dict) or set(given) != set(FIELDS[family]):
        read.refuse(f"must have {', '.join(FIELDS[family])}, and nothing else", "network", family)
    if nodes is not None:
        given = given | {"hosts" if family == "star" else "nodes": nodes}
    try:
        return topologies.build(family, **given)
    except ValueError as error:
        read.refuse(str(error), "network", family)


def _network_field(text: str) -> str:
    """Return only the field ``network`` of a fabric file's text, on its original lines; the rest need not be parsed."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("network:")), len(lines))
    last = next((at for at in range(first + 1, len(lines)) if lines[at] and lines[at][0] not in " \t"), len(lines))
    return "\n" * first + "\n".join(lines[first:last]) if first < last else ""
