"""Commands that are killed when they put a file in its place: at a moment of the work, not of the clock.

A test that waits a while and then kills races the command, which may have ended by then on a busy machine. Here the
processes of the command count the files that they put into a folder, and kill at the one that was asked for.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 300
"""Seconds after which something that ends by itself has failed to; far more than it takes anywhere."""


def run_killed(command, folder, number, *, when="after", whom="all", eager=False):
    """Run a command of simnet until it is killed, and wait until none of its processes is left.

    It is killed before or after (`when`) the file of that number, from 1, has its name in the folder; `whom` is "one"
    where only the process is killed that writes it, and the others have to end by themselves. Fails if it was not
    killed, or processes are left.
    """
    path = [str(Path(__file__).with_name("killed")), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"PYTHONPATH": os.pathsep.join(path), "SIMNET_TESTS_KILL": f"{folder} {number} {when} {whom}"}
    process = start(command, eager=eager, env=os.environ | more)
    assert process.wait(PATIENCE) == -signal.SIGKILL, "it was not killed"
    await_end(process.pid)


EAGER = "from simnet.studies import runs; runs.EVERY = 0; from simnet.cli import main; main()"
"""A program that is simnet, but keeps a run after every iteration."""


def start(command, *, eager=False, **options):
    """Start a command of simnet in a session of its own; an eager one keeps a run after every iteration."""
    program = ["-c", EAGER] if eager else ["-m", "simnet.cli"]
    arguments = [sys.executable, *program, *map(str, command)]
    # A shell starts tests in the background deaf to Ctrl-C, and so would be what they start.
    hearing = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(arguments, start_new_session=True, preexec_fn=hearing, **options)


def await_that(it, process):
    """Wait until something holds, and fail if the process has ended before."""
    deadline = time.monotonic() + PATIENCE
    while not it():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid):
    """Wait until a process is gone, or has ended and nobody has taken notice of it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if not done.stdout.strip() or done.stdout.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def await_end(session):
    """Wait until no process of a session is left, and fail if some are there for long."""
    deadline = time.monotonic() + PATIENCE
    while any(_session(one) == session for one in Path("/proc").iterdir() if one.name.isdigit()):
        assert time.monotonic() < deadline, "processes were left behind"
        time.sleep(0.02)


def _session(process):
    """Return the session of a process that runs, None if it has ended, be it that nobody took notice yet."""
    try:
        state, _, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(session)
