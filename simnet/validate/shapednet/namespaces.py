"""Real star network on one machine: hosts are network namespaces, links have a set rate and latency.

Every host is a network namespace with one device, whose packets `switch.c` carries to the others. It is compiled when
it is needed. Nothing outside of the namespaces is touched: they have no way out, and their addresses are their own.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

from simnet.base.errors import InputError, check_int
from simnet.base.processes import exit_on_signal
from simnet.validate.shapednet.links import Change
from simnet.validate.shapednet.rank import end_with_parent

MAX_HOSTS = 32
"""Maximum number of hosts of a star."""

BUFFER = 256 * 2**20
"""Default and maximum buffer of a link [byte]."""

IDLE = (0.0, 125e6)
"""Latency [s] and bandwidth [byte/s] of links that do not limit traffic."""

_NAMESPACES = Path("/var/run/netns")
_PREFIX = "shapednet"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SETTINGS = {
    # A connection that has been used keeps its window, and no buffer is in its way.
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    "tcp_congestion_control": "reno",
    "tcp_rmem": "4096 4194304 268435456",
    "tcp_wmem": "4096 4194304 268435456",
}


class ShapedTraffic(NamedTuple):
    """Traffic through a star network's switch since the last query: packets, drops, and how late packets were [s]."""

    packets: int
    drops: int
    mean_lateness: float
    largest_lateness: float


def unavailable() -> str | None:
    """Return why this machine cannot run a shaped network; None if it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a matter of Linux"
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    for tool in ("ip", "cc"):
        if shutil.which(tool) is None:
            return f"there is no {tool!r}"
    return _is_permitted()


@cache
def _is_permitted() -> str | None:
    name = f"{_PREFIX}-{os.getpid()}-0"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    if made.returncode:
        return f"network namespaces are not permitted: {made.stderr.strip()[:200]}"
    return None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun cannot be opened"


def check_shaped_link(latency: float, bandwidth: float) -> None:
    """Raise ValueError if a link's latency [s] or bandwidth [byte/s] is out of range."""
    if not (0 <= latency <= 10 and 1e3 <= bandwidth <= 1e12):
        raise ValueError(f"latency must be 0..10 s, bandwidth 1e3..1e12 byte/s, got {latency} and {bandwidth}")


class Star:
    """Running star network of hosts in network namespaces, as `shaped_star` creates it."""

    def __init__(self, namespaces: Sequence[str], switch: subprocess.Popen[str]) -> None:
        self.namespaces = tuple(namespaces)
        self.addresses = tuple(f"10.9.0.{host + 1}" for host in range(len(namespaces)))
        self._switch = switch

    def set(self, latency: float, bandwidth: float, host: int | None = None, buffer: int = BUFFER) -> None:
        """Set latency [s], bandwidth [byte/s] and buffer [byte] of one host's link or of all, even under traffic."""
        check_shaped_link(latency, bandwidth)
        if not 1500 <= buffer <= BUFFER:
            raise ValueError(f"buffer must be 1500..{BUFFER} byte, got {buffer}")
        who = 0 if host is None else 1 + host
        if (answer := self._ask(f"set {who} {1e9 / bandwidth:.9f} {round(latency / 2 * 1e9)} {buffer}")) != "done":
            raise ValueError(f"there is no host {host} ({answer})")

    def change(self, links: Change) -> None:
        """Apply link settings to all hosts, even under traffic."""
        for host, (latency, bandwidth) in enumerate(links.of_hosts(len(self.addresses))):
            self.set(latency, bandwidth, host)

    def traffic(self) -> ShapedTraffic:
        """Return the statistics of the switch since the last query."""
        packets, drops, mean, largest = map(int, self._ask("stats").split())
        return ShapedTraffic(packets, drops, mean * 1e-9, largest * 1e-9)

    def start(
        self, host: int, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host; it is killed when the process of this program ends."""
        inside = ["ip", "netns", "exec", self.namespaces[host], *command]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(inside, env=environment, stdin=quiet, stdout=quiet, preexec_fn=end_with_parent)

    def _ask(self, command: str) -> str:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        try:
            self._switch.stdin.write(f"{command}\n")
            self._switch.stdin.flush()
        except BrokenPipeError:
            raise InputError("the switch has ended; what it said is above", file="shaped network") from None
        return self._switch.stdout.readline().strip()


@contextmanager
def shaped_star(hosts: int, latency: float, bandwidth: float) -> Iterator[Star]:
    """Create a star network for the ``with`` block, and delete it afterwards, even on errors."""
    check_int(hosts, "hosts", 2)
    if hosts > MAX_HOSTS:
        raise InputError(f"must be at most {MAX_HOSTS}, got {hosts}", file="hosts")
    if (reason := unavailable()) is not None:
        raise InputError(reason, file="shaped network")
    _sweep_namespaces()
    with ExitStack() as stack:
        stack.enter_context(exit_on_signal())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        program = _compile_helper(folder)
        names = [f"{_PREFIX}-{os.getpid()}-{host + 1}" for host in range(hosts)]
        for name in names:
            stack.callback(_delete_namespace, name)
            _run_shell("ip", "netns", "add", name)
        switch = subprocess.Popen(
            [str(program), *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        stack.callback(_end_switch, switch)
        made = Star(names, switch)
        assert switch.stdout is not None
        if switch.stdout.readline().strip() != "ready":
            raise InputError("the switch could not make its devices; what it said is above", file="shaped network")
        for name, address in zip(names, made.addresses, strict=True):
            inside = ("ip", "-n", name)
            _run_shell(*inside, "address", "add", f"{address}/24", "dev", "lnk0")
            _run_shell(*inside, "link", "set", "lnk0", "mtu", "1500", "txqueuelen", "100000", "up")
            _run_shell(*inside, "link", "set", "lo", "up")
            script = "; ".join(f"echo '{value}' > /proc/sys/net/ipv4/{key}" for key, value in _SETTINGS.items())
            _run_shell("ip", "netns", "exec", name, "sh", "-c", f"set -e; {script}")
        made.set(latency, bandwidth)
        yield made


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run the ``with`` block, and threads started inside, in a network namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own, (_NAMESPACES / namespace).open() as other:
        if library.setns(other.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
        try:
            yield
        finally:
            library.setns(own.fileno(), _NEW_NETWORK)


def _compile_helper(folder: Path) -> Path:
    program = folder / "switch"
    with as_file(files("simnet.validate.shapednet") / "switch.c") as source:
        _run_shell("cc", "-O2", "-o", str(program), str(source))
    return program


def _run_shell(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        message = f"{' '.join(command[:4])} failed: {done.stderr.strip()[:300]}"
        raise InputError(message, file="shaped network")


def _end_switch(switch: subprocess.Popen[str]) -> None:
    for stream in (switch.stdin, switch.stdout):
        assert stream is not None
        stream.close()
    try:
        switch.wait(timeout=5)
    except subprocess.TimeoutExpired:
        switch.kill()
        switch.wait()


def _delete_namespace(name: str) -> None:
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=60)


def _sweep_namespaces() -> None:
    """Delete network namespaces that killed processes left behind."""
    for path in _NAMESPACES.glob(f"{_PREFIX}-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _delete_namespace(path.name)
