"""Descriptions of machines: versions, processors, network cards, and settings of communication libraries.

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
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

import simnet
from simnet.cluster.measure.communicators import Communicator
from simnet.cost_models.calibration.device import processor_name

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
    """Return the environment variables of communication libraries by name, with private values hidden.

    `hosts` are short names of hosts, which no shown value contains.
    """
    return {
        name: _fact_text(name, environment[name], hosts) for name in sorted(environment) if name.startswith(SETTINGS)
    }


def _fact_text(name: str, value: str, hosts: Collection[str]) -> str:
    hidden = _NAMES.search(name.upper()) or not _VALUES.fullmatch(value) or _ADDRESS.search(value)
    return HIDDEN if hidden or any(one.casefold() in value.casefold() for one in hosts) else value


def node_of_ranks(communicator: Communicator) -> list[int]:
    """Return the node number of each rank, in order of first appearance; every rank calls this."""
    own = f"{socket.gethostname()} {read_system_text(Path('/proc/sys/kernel/random/boot_id'))}"
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
    """Return the number of network cards that each node uses; 0 if ranks disagree. Every rank calls this."""
    seen = communicator.gather(np.array([float(count_cards(communicator.library, os.environ))]))
    return int(seen.min()) if np.ptp(seen) == 0 else 0


def describe_job(communicator: Communicator, node_of: Sequence[int], backend: str) -> list[str]:
    """Return lines of text on the job and its machines, given each rank's node; every rank calls this."""
    hosts = hosts_of_ranks(communicator)
    machine = {
        "processor": f"{processor_name()}, {os.cpu_count()} of them",
        "network cards of a node": "; ".join(describe_cards()) or "not known",
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
    """Return text on how ranks are placed on nodes, such as "16 on 2 nodes, 8 on each"."""
    counts = sorted(node_of.count(one) for one in set(node_of))
    if len(counts) == 1:
        return f"{counts[0]} on 1 node"
    each = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{len(node_of)} on {len(counts)} nodes, {each} on each"


def float_digest(content: bytes) -> float:
    """Return a 48-bit hash of `content` as a float, without rounding."""
    return float(int.from_bytes(hashlib.sha256(content).digest()[:6], "big"))


SYSTEM = Path("/sys/class")
"""The Linux folder that describes network cards."""


class Port(NamedTuple):
    """An active port of a network card: device name, port number, rate, link type, card, and whether it is bonded."""

    # Device, as settings name it, and port on it; 1 for Ethernet.
    name: str
    number: int
    # As the system writes them; the rate may be empty.
    rate: str
    kind: str
    # Identifies the card: ports of one card share it.
    card: str
    # If true, it belongs to a bond.
    bonded: bool = False


def infiniband_ports(root: Path = SYSTEM) -> list[Port]:
    """Return the InfiniBand and RoCE ports that are active."""
    found = []
    for port in sorted(root.glob("infiniband/*/ports/*")):
        if "ACTIVE" in read_system_text(port / "state") and port.name.isdecimal():
            rate, kind = (read_system_text(port / name) for name in ("rate", "link_layer"))
            device, rate = port.parents[1], rate.partition("(")[0].strip()
            found.append(Port(device.name, int(port.name), rate, kind, _card_address(device)))
    return found


def ethernet_ports(root: Path = SYSTEM) -> list[Port]:
    """Return the ports of network interfaces that are up; virtual interfaces are left out."""
    found = []
    for one in sorted(root.glob("net/*")):
        if (one / "device").exists() and read_system_text(one / "operstate") == "up":
            speed = read_system_text(one / "speed")
            rate = f"{speed} Mbit/s" if speed.isdecimal() else ""
            found.append(Port(one.name, 1, rate, "Ethernet", _card_address(one), (one / "master").exists()))
    return found


def describe_cards(root: Path = SYSTEM) -> list[str]:
    """Return name, rate and link type of active InfiniBand or RoCE ports; if there are none, of the Ethernet ports."""
    ports = infiniband_ports(root)
    named = [(f"{one.name}:{one.number}", one) for one in ports] or [(one.name, one) for one in ethernet_ports(root)]
    return [" ".join(f"{name} {one.rate} {one.kind}".split()) for name, one in named]


def count_cards(library: str, environment: Mapping[str, str], root: Path = SYSTEM) -> int:
    """Return how many of this node's network cards a library uses for messages; 0 if the number is uncertain.

    Cards slower than the fastest are for management or storage, unless a setting names them. See NCCL's documentation,
    "Environment Variables": NCCL_IB_HCA, NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE, NCCL_NET.

    `environment` holds the settings of libraries, `root` the description of cards by the system.
    """
    ports, setting = infiniband_ports(root), "NCCL_IB_HCA"
    if library == "nccl":
        net = environment.get("NCCL_NET", "").casefold()
        if net not in ("", "ib", "socket"):
            return 0
        if net == "socket" or not ports or environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
            ports, setting = ethernet_ports(root), "NCCL_SOCKET_IFNAME"
        return _count_cards(ports, environment.get(setting, ""))
    if library == "gloo":
        # It takes names as they are, and no more than one for a call.
        named = environment.get("GLOO_SOCKET_IFNAME", "")
        return int(_count_cards(ethernet_ports(root), f"={named}" if named else "") == 1)
    # Each library of MPI chooses in its own way, from what its own settings leave it.
    chosen = environment.get("UCX_NET_DEVICES") or environment.get("OMPI_MCA_btl_tcp_if_include")
    return int(not chosen and _count_cards(ports or ethernet_ports(root), "") == 1)


def _count_cards(ports: Sequence[Port], setting: str) -> int:
    """Return how many cards an NCCL setting ``[^][=]name[:port],...`` allows; 0 if the number is uncertain."""
    excluded = setting.startswith("^")
    exact = setting.removeprefix("^").startswith("=")
    words = [one for one in setting.removeprefix("^").removeprefix("=").split(",") if one]
    named: set[Port] = set()
    for word in words:
        name, _, number = word.partition(":")
        if number and not number.isdecimal():
            return 0
        found = {
            one
            for one in ports
            if (one.name == name if exact else one.name.startswith(name)) and int(number or one.number) == one.number
        }
        if not found and not excluded:
            return 0
        named |= found
    kept = [one for one in ports if not words or (one in named) != excluded]
    if len(kept) > 1 and not all(one.rate for one in kept):
        return 0
    if not words or excluded:
        fastest = max((_read_rate(one.rate) for one in kept), default=0.0)
        kept = [one for one in kept if _read_rate(one.rate) == fastest]
    # Two ports of a card may be as good as two cards, or share what its slot carries.
    clear = len({(one.rate, one.kind) for one in kept}) == 1 and len({one.card for one in kept}) == len(kept)
    return len(kept) if clear and not any(one.bonded for one in kept) else 0


def _read_rate(rate: str) -> float:
    with suppress(ValueError, IndexError):
        return float(rate.split()[0])
    return 0.0


def _card_address(device: Path) -> str:
    """Return the PCI address of a device without its function number; ports of the same card have the same address."""
    address = (device / "device").resolve().name
    return address.rpartition(".")[0] if address.count(":") == 2 else str(device)


def read_system_text(path: Path) -> str:
    """Return the stripped text of a system file; "" if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip()
    return ""
