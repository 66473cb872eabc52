"""Descriptions of the machines: versions, processors, network cards, settings of communication libraries.

Nodes are numbers; names and addresses of hosts are not written. Of the environment only settings of communication
libraries are written, without paths, hosts, addresses and possible secrets.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

import simnet
from simnet.cluster.measure import cards
from simnet.cluster.measure.communicators import Communicator
from simnet.cost_models.calibration.device_kernels import processor_name

SETTINGS = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "MPICH_", "MV2_", "I_MPI_", "HSA_"),
    *("OMPI_MCA_btl", "OMPI_MCA_coll", "OMPI_MCA_mtl", "OMPI_MCA_pml", "OMP_NUM_THREADS"),
)
"""Prefixes of the environment variables that are recorded."""

HIDDEN = "(set)"
"""The text in place of a hidden value."""

_NAMES = re.compile(r"FILE|PATH|DIR|HOST|NODE|MASTER|ADDR|COMM_ID|URI|KEY|TOKEN|SECRET|PASS|CRED|USER|AUTH", re.ASCII)
# The most characters that the name of a host has up to its first dot.
_LABEL = 63
_VALUES = re.compile(r"[\w.,:;=^+\- ]{0,100}", re.ASCII)
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F:]*:|\.[a-zA-Z]")


def library_settings(environment: Mapping[str, str], hosts: Collection[str] = ()) -> dict[str, str]:
    """Return environment variables of communication libraries by name; private values are hidden.

    `hosts` are short names of hosts, which no shown value contains.
    """
    return {
        name: _fact_text(name, environment[name], hosts) for name in sorted(environment) if name.startswith(SETTINGS)
    }


def _fact_text(name: str, value: str, hosts: Collection[str]) -> str:
    hidden = _NAMES.search(name.upper()) or not _VALUES.fullmatch(value) or _ADDRESS.search(value)
    return HIDDEN if hidden or any(one.casefold() in value.casefold() for one in hosts) else value


def node_of_ranks(communicator: Communicator) -> list[int]:
    """Return the node number of each rank, counted in order of appearance; every rank calls this."""
    own = f"{socket.gethostname()} {cards.read_system_text(Path('/proc/sys/kernel/random/boot_id'))}"
    seen = communicator.gather(np.array([float_digest(own.encode())]))[:, 0].tolist()
    numbers = {one: number for number, one in enumerate(dict.fromkeys(seen))}
    return [numbers[one] for one in seen]


def hosts_of_ranks(communicator: Communicator) -> set[str]:
    """Return the short host names of all ranks; every rank calls this."""
    name = socket.gethostname().partition(".")[0].encode()[:_LABEL]
    seen = communicator.gather(np.frombuffer(name.ljust(_LABEL, b"\0"), dtype=np.uint8).astype(float))
    names = {bytes(one.astype(np.uint8)).rstrip(b"\0").decode(errors="ignore") for one in seen}
    return names - {""}


def cards_in_use(communicator: Communicator) -> int:
    """Return the number of network cards in use per node; 0 unless all ranks agree. Every rank calls this."""
    seen = communicator.gather(np.array([float(cards.count_cards(communicator.library, os.environ))]))
    return int(seen.min()) if np.ptp(seen) == 0 else 0


def describe_job(communicator: Communicator, node_of: Sequence[int], backend: str) -> list[str]:
    """Return lines that describe the job and its machines, given each rank's node; every rank calls this."""
    hosts = hosts_of_ranks(communicator)
    machine = {
        "processor": f"{processor_name()}, {os.cpu_count()} of them",
        "network cards of a node": "; ".join(cards.describe_cards()) or "not known",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        **communicator.versions(),
        **{f"environment {name}": value for name, value in library_settings(os.environ, hosts).items()},
    }
    alike = np.unique(communicator.gather(np.array([float_digest(repr(machine).encode())]))).size == 1
    facts = {
        "measured by": f"simnet {simnet.__version__}, {datetime.datetime.now(tz=datetime.UTC).date()}",
        "backend": f"{backend}, {communicator.library}",
        "ranks": describe_placement(node_of),
        "machines": "as that of rank 0" if alike else "not all as that of rank 0, which is this:",
        **machine,
    }
    return [f"{name}: {' '.join(text.split())}" for name, text in facts.items()]


def describe_placement(node_of: Sequence[int]) -> str:
    """Return the placement of ranks on nodes as text: "16 on 2 nodes, 8 on each"."""
    counts = sorted(node_of.count(one) for one in set(node_of))
    if len(counts) == 1:
        return f"{counts[0]} on 1 node"
    each = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{len(node_of)} on {len(counts)} nodes, {each} on each"


def float_digest(content: bytes) -> float:
    """Return a 48-bit hash of content as a float, which holds it exactly."""
    return float(int.from_bytes(hashlib.sha256(content).digest()[:6], "big"))
