"""Readers run under limits: what they raise that is no answer to people, how long they take, and how much memory."""

import resource
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path

from simnet.base.errors import SimnetError

MOST_SECONDS = 5
"""CPU time that one input may take [s]."""

MOST_BYTES = 2**30
"""Memory that one input may take beyond what the process has when it begins [byte]."""

_RESERVED = 3 * 2**30
"""Addresses that one input may take in all [byte]: allocators reserve more than they use."""

MOST_SAID = 2500
"""The longest message [byte]: one of 2 kB, and a path."""


class HangError(BaseException):
    """An input took too long; no reader catches it by accident."""


def wrong(read):
    """Return what is wrong with how something is read, as ``TypeError: ...``; "" if it was read or refused."""
    before = _peak()
    fault = _fault(read)
    if not fault and (taken := _peak() - before) > MOST_BYTES:
        fault = f"takes {taken / 2**30:.1f} GiB"
    return fault


def _fault(read):
    try:
        with _timed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
    except SimnetError as error:
        chain, said = error, str(error)
        while chain is not None:
            if isinstance(chain, MemoryError):
                return f"MemoryError behind {said[:200]}"
            chain = chain.__cause__ or chain.__context__
        if len(said.encode(errors="replace")) > MOST_SAID:
            return f"says {len(said):,} characters: {said[:200]}"
        try:
            said.encode()
        except UnicodeEncodeError:
            return f"says what no terminal shows: {said[:200]!a}"
    except HangError:
        return f"takes more than {MOST_SECONDS} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:300]}{_place(error)}"
    return ""


def limit_memory():
    """Let what takes far more than `MOST_BYTES` fail before the machine does."""
    now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _RESERVED, resource.RLIM_INFINITY))


def _peak():
    """Return the most memory that this process has had [byte]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _timed():
    def hang(*_):
        raise HangError

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _place(error):
    """Return where in simnet something was raised."""
    found, at = "", error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if "/simnet/" in file:
            found = f" ({file.rpartition('/simnet/')[2]}:{at.tb_lineno})"
        at = at.tb_next
    return found
