"""Network cards of a node: which are up, and between how many of them a library spreads messages to other nodes.

The number is taken as certain where it is written down, so that it is said only where ports, rates and settings leave
no doubt. Slower cards than the fastest are for management or storage, unless a setting names them.

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
"""Where Linux describes cards."""


class Port(NamedTuple):
    """A port of a network card that is up.

    Parameters
    ----------
    name : str
        Of the device, as settings name it.
    number : int
        Of the port on its device; 1 for Ethernet.
    rate : str
        As the system has it; empty where it does not say.
    kind : str
        Such as InfiniBand.
    card : str
        What tells the card from others: ports of one card share it.
    bonded : bool
        Whether another interface has taken it.
    """

    name: str
    number: int
    rate: str
    kind: str
    card: str
    bonded: bool = False


def infiniband(root: Path = SYSTEM) -> list[Port]:
    """Return the active ports of devices for InfiniBand and RoCE."""
    return [
        Port(
            port.parents[1].name,
            int(port.name),
            read_text(port / "rate").partition("(")[0].strip(),
            read_text(port / "link_layer"),
            _card(port.parents[1]),
        )
        for port in sorted(root.glob("infiniband/*/ports/*"))
        if "ACTIVE" in read_text(port / "state") and port.name.isdecimal()
    ]


def ethernet(root: Path = SYSTEM) -> list[Port]:
    """Return the network interfaces that are up and have a device, which those made of software have not."""
    found = []
    for one in sorted(root.glob("net/*")):
        if (one / "device").exists() and read_text(one / "operstate") == "up":
            speed = read_text(one / "speed")
            rate = f"{speed} Mbit/s" if speed.isdecimal() else ""
            found.append(Port(one.name, 1, rate, "Ethernet", _card(one), (one / "master").exists()))
    return found


def described(root: Path = SYSTEM) -> list[str]:
    """Return the cards that are up in words: name, rate and kind; of Ethernet alone if that is all."""
    ports = infiniband(root)
    named = [(f"{one.name}:{one.number}", one) for one in ports] or [(one.name, one) for one in ethernet(root)]
    return [" ".join(f"{name} {one.rate} {one.kind}".split()) for name, one in named]


def in_use(library: str, environment: Mapping[str, str], root: Path = SYSTEM) -> int:
    """Return between how many cards of this node a library spreads messages; 0 where that is not clear.

    Parameters
    ----------
    library : str
        Of a communicator.
    environment : mapping
        Settings of libraries.
    root : Path
        Where the system describes cards.
    """
    ports, setting = infiniband(root), "NCCL_IB_HCA"
    if library == "nccl":
        net = environment.get("NCCL_NET", "").casefold()
        if net not in ("", "ib", "socket"):
            return 0
        if net == "socket" or not ports or environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
            ports, setting = ethernet(root), "NCCL_SOCKET_IFNAME"
        return _counted(ports, environment.get(setting, ""))
    if library == "gloo":
        # It takes names as they are, and no more than one for a call.
        named = environment.get("GLOO_SOCKET_IFNAME", "")
        return _only(_counted(ethernet(root), f"={named}" if named else ""))
    # Each library of MPI chooses in its own way, from what its own settings leave it.
    chosen = environment.get("UCX_NET_DEVICES") or environment.get("OMPI_MCA_btl_tcp_if_include")
    return 0 if chosen else _only(_counted(ports or ethernet(root), ""))


def _only(count: int) -> int:
    return count if count == 1 else 0


def _counted(ports: Sequence[Port], setting: str) -> int:
    """Return how many cards a setting of NCCL leaves: ``[^][=]name[:port],...``; 0 where it is not clear."""
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
        fastest = max((_number(one.rate) for one in kept), default=0.0)
        kept = [one for one in kept if _number(one.rate) == fastest]
    # Two ports of a card may be as good as two cards, or share what its slot carries.
    clear = len({(one.rate, one.kind) for one in kept}) == 1 and len({one.card for one in kept}) == len(kept)
    return len(kept) if clear and not any(one.bonded for one in kept) else 0


def _number(rate: str) -> float:
    with suppress(ValueError, IndexError):
        return float(rate.split()[0])
    return 0.0


def _card(device: Path) -> str:
    """Return the address of a device on its bus without the function, of which each port of a card may have one."""
    address = (device / "device").resolve().name
    return address.rpartition(".")[0] if address.count(":") == 2 else str(device)


def read_text(path: Path) -> str:
    """Return what a file of the system says, without white space at its ends; empty if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip()
    return ""
