"""Kills a command when it puts a file in its place; see `killing`. A Python that finds this reads it at its start."""

import os
import signal
from pathlib import Path


def _watch(folder, number, when, whom):
    """Count what gets its name in folders of a name, and kill at that of a number, before or after it has it."""
    replace, count = Path.replace, 0

    def watched(self, target):
        nonlocal count
        there = Path(target).parent.name == folder
        count += there
        if there and count == int(number) and when == "before":
            _kill(whom)
        found = replace(self, target)
        if there and count == int(number):
            _kill(whom)
        return found

    Path.replace = watched


def _kill(whom):
    # The group is the whole command, which is started in a session of its own.
    (os.killpg if whom == "all" else os.kill)(0 if whom == "all" else os.getpid(), signal.SIGKILL)


if "SIMNET_TESTS_KILL" in os.environ:
    _watch(*os.environ["SIMNET_TESTS_KILL"].split())
