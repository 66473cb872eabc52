"""Errors for people: the value found, where, what is allowed, and the nearest valid name."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MOST_LISTED = 50
"""Maximum number of names that an error lists."""

MOST_SAID = 1500
"""Maximum bytes of an error line; the middle of a longer one is left out."""

_MOST_FIELD, _MOST_GUESSED = 200, 200

DISTRIBUTION = "simnet-sparse"
"""Name of the distribution, as in ``pyproject.toml``."""


class SimnetError(Exception):
    """An error the user can fix. The command line prints its message without a traceback and exits with 2."""


def plain_warnings() -> None:
    """Make this process print warnings as one line, without their position in the code."""
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"


class InputError(SimnetError):
    """An error in the user's input. It states the value found, the values allowed, and the file, line and field.

    Examples
    --------
    >>> str(InputError("must be > 0, got -1", file="a.yaml", line=3, field="workers"))
    'a.yaml:3: workers: must be > 0, got -1'
    """

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        message = "\n".join(shorten_text(one, MOST_SAID) for one in message.split("\n"))
        field = None if field is None else shorten_text(field, _MOST_FIELD)
        self.message, self.file, self.line, self.field = message, file, line, field
        where = "" if file is None else file if line is None else f"{file}:{line}"
        super().__init__(": ".join(part for part in (where, field or "", message) if part))


def to_install(extra: str) -> str:
    """Return the command that installs simnet with an optional dependency group (extra) of ``pyproject.toml``.

    Examples
    --------
    >>> to_install("train")
    "pip install 'simnet-sparse[train]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class DivergedError(SimnetError):
    """The loss or the gradients of a training are no longer finite."""


class Waits(NamedTuple):
    """A deadlocked rank: its number, the index and phase of its current round, and the ranks that it waits for."""

    rank: int
    round: int
    phase: str
    peers: tuple[int, ...]


class StalledError(SimnetError):
    """The error of a deadlocked simulation, in which ranks or transfers wait for ever.

    It has a message, a line per waiting rank or transfer, when everything had stopped (`elapsed` [s] since `origin`,
    or `at` [s]; None if unknown), ranks that failed and when [s], and `stuck`, the ranks that wait because of them.
    """

    def __init__(
        self,
        message: str,
        waiting: Sequence[str],
        elapsed: float | None = None,
        failed: Mapping[int, float] | None = None,
        stuck: Sequence[Waits] = (),
        origin: float = 0.0,
    ) -> None:
        # All stay in args: SimPy and multiprocessing make copies of exceptions from these.
        super().__init__(message, waiting, elapsed, failed, stuck, origin)
        self.waiting = list(waiting)
        self.elapsed, self.origin = elapsed, origin
        self.at = None if elapsed is None else origin + elapsed
        self.failed = dict(failed or {})
        self.stuck = list(stuck)

    def __str__(self) -> str:
        more = [f"... and {len(self.waiting) - 20} more"] if len(self.waiting) > 20 else []
        return "\n  ".join([self.args[0], *self.waiting[:20], *more])


def shorten_text(text: str, most: int) -> str:
    """Return a text with its middle left out if it has more than `most` bytes.

    Examples
    --------
    >>> shorten_text("some words", 10), shorten_text("a" * 100, 10)
    ('some words', 'aaaaa...aa')
    """
    if len(text) <= most // 4 or len(code := text.encode(errors="surrogatepass")) <= most:
        return text
    begins, ends = code[: most // 2], code[-(most - most // 2 - 3) :]
    return f"{begins.decode(errors='ignore')}...{ends.decode(errors='ignore')}"


def suggest_names(name: str, allowed: Iterable[str], most: int = MOST_LISTED) -> str:
    """Return a hint for an error message: the closest allowed name, if any, and up to `most` allowed names.

    Examples
    --------
    >>> suggest_names("artpok", ["dense", "topk", "artopk"])
    "did you mean 'artopk'? Allowed: artopk, dense, topk"
    """
    names = sorted(set(allowed))
    return f"{did_you_mean(name, names)}Allowed: {join_names(names, most) or 'none'}"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``did you mean 'NAME'? `` with the closest allowed name; "" if no allowed name is similar.

    Examples
    --------
    >>> did_you_mean("fattree", ["star", "fat_tree"]), did_you_mean("onehop", ["allreduce_ring", "allgather_onehop"])
    ("did you mean 'fat_tree'? ", "did you mean 'allgather_onehop'? ")
    """
    if len(name) > _MOST_GUESSED:  # to compare them takes a time that grows with its square
        return ""
    folded = {one.lstrip("-").casefold(): one for one in sorted(allowed)}
    given = name.lstrip("-").casefold()
    part = [one for one in sorted(folded, key=len) if len(given) > 2 and given in one]
    close = difflib.get_close_matches(given, folded, n=1) or part
    return f"did you mean '{folded[close[0]]}'? " if close else ""


def join_names(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return `names` as a comma-separated list of at most `most` names.

    Examples
    --------
    >>> join_names(["a", "b", "c", "d"], most=2)
    'a, b, ... (4 in all)'
    """
    return ", ".join(names if len(names) <= most else [*names[:most], f"... ({len(names)} in all)"])
