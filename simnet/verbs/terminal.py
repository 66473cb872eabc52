"""Terminal behaviour of commands: exit codes, verbosity, progress and interrupts."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

import simnet
from simnet.base import plugins
from simnet.base.errors import InputError, SimnetError
from simnet.base.progress import report_progress
from simnet.base.units import format_seconds

# Seconds to the first word on progress, and to the next one where it is a line of its own, as a share of what passed.
_FIRST, _NEXT = 2.0, 0.25
# Share of the whole, or seconds, from which on the time that is left is estimated.
_ESTIMATED = 0.05, 10.0
# What the system says against writing: a full disk or quota, a limit of size, a broken device or pipe.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def say(text: str) -> None:
    """Print a status message, such as the path of a file, to standard error, unless the command is quiet."""
    if not _quiet.get():
        print(printable(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning to standard error, even if the command is quiet."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    r"""Return text with control characters escaped, so that the text cannot control the terminal.

    Examples
    --------
    >>> print(printable("red\x1b[31m"))
    red\x1b[31m
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


@contextmanager
def verbosity(quiet: bool, verbose: bool) -> Iterator[None]:
    """Suppress status messages (`quiet`), or print versions, time and memory (`verbose`), inside the ``with`` block.

    Raises
    ------
    InputError
        If both are asked for.
    """
    if quiet and verbose:
        raise InputError("is either --quiet or --verbose", file="--quiet")
    token, begun = _quiet.set(quiet), time.perf_counter()
    kept = plugins.TRACEBACK in os.environ
    if verbose:
        os.environ[plugins.TRACEBACK] = "1"
        say(f"simnet {simnet.__version__}, Python {sys.version.split()[0]}, {sys.platform}")
    try:
        yield
    finally:
        _quiet.reset(token)
        if verbose:
            say(_resources_used(time.perf_counter() - begun))
            if not kept:
                del os.environ[plugins.TRACEBACK]


def _resources_used(seconds: float) -> str:
    """Return a text on wall time, CPU time including ended child processes, and peak memory."""
    said, used = f"took {seconds:.2f} s", os.times()
    said += f", {used.user + used.system + used.children_user + used.children_system:.2f} CPU s since the start"
    try:
        import resource
    except ImportError:
        return said
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return f"{said}, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.0f} MiB of memory at most"


@contextmanager
def progress_line(verb: str) -> Iterator[Callable[[float, str], None]]:
    """Show the progress of `simnet.base.progress.track_progress` loops in the ``with`` block, after two seconds.

    On a terminal the line is overwritten; elsewhere new lines become rarer with time. The share never falls.

    Yields
    ------
    callable
        To be called with the share that is done, in [0, 1], and what has been done in words, such as ``12/15 cells``.
    """
    begun, terminal = time.monotonic(), sys.stderr.isatty()
    due, most, shown = begun + _FIRST, 0.0, 0

    def show(share: float, done: str = "") -> None:
        nonlocal due, most, shown
        now, most = time.monotonic(), max(most, min(share, 1.0))
        if _quiet.get() or now < due or not 0 < most < 1:
            return
        due = now + (0.2 if terminal else max(_FIRST, _NEXT * (now - begun)))
        # What takes its time before the first steps says nothing of the others.
        known = most >= _ESTIMATED[0] or now - begun >= _ESTIMATED[1]
        left = [f"{format_seconds(max(round((now - begun) * (1 / most - 1)), 1))} left"] * known
        line = f"{verb}: {', '.join([*[done] * bool(done), f'{100 * most:.0f} %', *left])}"
        print(f"\r{line:{shown}}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        shown = len(line)

    try:
        with report_progress(show):
            yield show
    finally:
        if terminal and shown:
            print("\r" + " " * shown, end="\r", file=sys.stderr, flush=True)


@contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """After the ``with`` block, remove a folder and its parents if the block created them and left them empty."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    finally:
        for one in new:
            with suppress(OSError):
                one.rmdir()


@contextmanager
def sheltered() -> Iterator[None]:
    """Ignore Ctrl-C inside the ``with`` block, which writes results."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def output_errors() -> Iterator[None]:
    """Convert write errors in the ``with`` block to user errors; end by SIGPIPE if standard output is closed."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python looks for a folder of temporary files in which it can write, and names none if there is none.
        temporary = error.errno == errno.ENOENT and error.filename is None
        if (error.errno not in _OUTPUT_ERRORS and not temporary) or (error.errno == errno.EPIPE and _is_read()):
            raise
        _discard_output()
        if error.errno == errno.EPIPE:
            _end_by_broken_pipe()
        name = str(error.filename or ("temporary files" if temporary else "standard output"))
        raise SimnetError(f"{name}: cannot be written: {error.strerror}") from None


def _is_read() -> bool:
    """Return whether standard output still has a reader."""
    if not hasattr(select, "poll"):
        return False
    with suppress(OSError):
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        return not pipe.poll(0)
    return True


def _discard_output() -> None:
    """Redirect standard output to the null device, so that the final flush cannot fail."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _end_by_broken_pipe() -> NoReturn:
    """End the process by SIGPIPE, as Unix tools do when their output has no reader."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    raise SystemExit(1)
