"""Settings of a rank's process on a shaped network: real-time priority, and termination with the parent process.

Ranks run with real-time priority where that is allowed, and some poll. One that outlived the experiment it belongs to
would hold the machine: so each dies with the process that started it, and has a limit to the processor time it takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

PRIORITY = 5
"""Real-time priority of ranks, below that of the switch."""


def begin(owner: int, limit: float) -> None:
    """Make this process a rank, with real-time priority and a CPU time limit [s], that ends with its parent `owner`."""
    import resource  # Systems without shaped networks lack it.

    end_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = math.ceil(limit) if most == resource.RLIM_INFINITY else min(math.ceil(limit), most)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    # The signal is not sent for a parent that was gone before it was asked for.
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        raise SystemExit("the experiment that this rank belongs to has ended") from None
    # The machine's other work is no part of the network. Ranks mostly wait, and the switch comes before them.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))


def meet_at(address: str) -> None:
    """Set environment variables so that ranks of torch.distributed meet at an address of the network."""
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "lnk0"}


def end_with_parent() -> None:
    """Make Linux kill this process, or the program it executes, when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
