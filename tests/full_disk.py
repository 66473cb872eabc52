"""Commands whose output cannot be written: each in a process of its own, all forked from one that has imported simnet.

    python full_disk.py stdout|files|pipe   # commands as JSON on standard input, as lists of words

Prints as JSON a list of exit status and what stood on standard error, by command.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import sys
from typing import NoReturn

from simnet import cli


def run(words: list[str], kind: str, errors: int) -> NoReturn:
    """Run a command with standard output that takes nothing, or where no file takes a byte, and end."""
    if kind == "stdout":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif kind == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    else:
        os.dup2(errors, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.dup2(errors, 2)
    sys.argv = ["simnet", *words]
    status = 0
    try:
        cli.main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def main() -> None:
    """Run all commands."""
    found = {}
    for words in json.load(sys.stdin):
        reading, writing = os.pipe()
        if not (child := os.fork()):
            run(words, sys.argv[1], writing)
        os.close(writing)
        with os.fdopen(reading) as stream:
            said = stream.read()
        found[shlex.join(words)] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
    json.dump(found, sys.stdout)


# Processes that a command starts import this module.
if __name__ == "__main__":
    main()
