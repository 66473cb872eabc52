"""Network cards of a node: which are up, and how many a communication library uses.

The number is reported only where ports, rates and settings leave no doubt. Cards slower than the fastest are for
management or storage, unless a setting names them.

References
----------
NVIDIA, NCCL documentation, "Environment Variables": NCCL_IB_HCA, NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE, NCCL_NET.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SYSTEM = Path("/sys/class")
"""The Linux folder that describes network cards."""


class Port(NamedTuple):
    """A port of a network card that is up: name, number, rate, kind and card."""

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
    """Return the active InfiniBand and RoCE ports."""
    return [
        Port(
            port.parents[1].name,
            int(port.name),
            read_system_text(port / "rate").partition("(")[0].strip(),
            read_system_text(port / "link_layer"),
            _card_address(port.parents[1]),
        )
        for port in sorted(root.glob("infiniband/*/ports/*"))
        if "ACTIVE" in read_system_text(port / "state") and port.name.isdecimal()
    ]


def ethernet_ports(root: Path = SYSTEM) -> list[Port]:
    """Return the network interfaces that are up and have hardware; virtual ones are left out."""
    found = []
    for one in sorted(root.glob("net/*")):
        if (one / "device").exists() and read_system_text(one / "operstate") == "up":
            speed = read_system_text(one / "speed")
            rate = f"{speed} Mbit/s" if speed.isdecimal() else ""
            found.append(Port(one.name, 1, rate, "Ethernet", _card_address(one), (one / "master").exists()))
    return found


def describe_cards(root: Path = SYSTEM) -> list[str]:
    """Return name, rate and kind of the ports that are up as texts; Ethernet only if there is nothing else."""
    ports = infiniband_ports(root)
    named = [(f"{one.name}:{one.number}", one) for one in ports] or [(one.name, one) for one in ethernet_ports(root)]
    return [" ".join(f"{name} {one.rate} {one.kind}".split()) for name, one in named]


def count_cards(library: str, environment: Mapping[str, str], root: Path = SYSTEM) -> int:
    """Return the number of this node's cards that a library uses for messages; 0 if unclear.

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
        return _only_cards(_count_cards(ethernet_ports(root), f"={named}" if named else ""))
    # Each library of MPI chooses in its own way, from what its own settings leave it.
    chosen = environment.get("UCX_NET_DEVICES") or environment.get("OMPI_MCA_btl_tcp_if_include")
    return 0 if chosen else _only_cards(_count_cards(ports or ethernet_ports(root), ""))


def _only_cards(count: int) -> int:
    return count if count == 1 else 0


def _count_cards(ports: Sequence[Port], setting: str) -> int:
    """Return the number of cards that an NCCL setting ``[^][=]name[:port],...`` allows; 0 if unclear."""
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
    """Return the PCI address of a device without the function number, which identifies its card."""
    address = (device / "device").resolve().name
    return address.rpartition(".")[0] if address.count(":") == 2 else str(device)


def read_system_text(path: Path) -> str:
    """Return the stripped text of a system file; empty if it is unreadable."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip()
    return ""
