"""Errors whose messages state the value found, its place, what is allowed and the nearest name; checks of arguments."""

from __future__ import annotations

import dataclasses
import difflib
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeGuard, TypeVar

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


@contextmanager
def refuse_values(file: str | None = None, field: str | None = None, before: str = "") -> Iterator[None]:
    """Convert a ValueError inside the ``with`` block to an InputError, whose message begins with `before`."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{before}{error}", file=file, field=field) from None


def to_install(extra: str) -> str:
    """Return the command that installs simnet with an optional dependency group (extra) of ``pyproject.toml``.

    Examples
    --------
    >>> to_install("train")
    "pip install 'simnet-sparse[train]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def import_extra(module: str, extra: str, needs: str, file: str | None = None) -> Any:
    """Import and return a module of an optional dependency group; InputError with the install command if missing.

    Examples
    --------
    >>> import_extra("no_such_module", "train", "needs PyTorch")
    Traceback (most recent call last):
    simnet.base.errors.InputError: needs PyTorch: pip install 'simnet-sparse[train]'
    """
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{needs}: {to_install(extra)}", file=file) from None


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


T = TypeVar("T")


def check_int(value: object, name: str, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int; ValueError, which calls it `name`, if it is not an integer in `low` .. `high`.

    Examples
    --------
    >>> check_int(2.5, "n_ranks", 1)
    Traceback (most recent call last):
    ValueError: n_ranks must be a whole number >= 1, got 2.5
    """
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        allowed = "" if low is None else f" >= {low}" if high is None else f" in {low}..{high}"
        raise ValueError(f"{name} must be a whole number{allowed}, got {value!r}")
    return number


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a real number and not a bool.

    Examples
    --------
    >>> is_number(2), is_number(2.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def read_number(text: str) -> float:
    """Return the number that a text states; NaN if the text is too long or no number. ``1_000`` is no number.

    Examples
    --------
    >>> read_number(" 1e3"), read_number("1_000"), read_number("fast")
    (1000.0, nan, nan)
    """
    try:
        return float(text) if text.isascii() and "_" not in text and len(text) <= 60 else math.nan
    except ValueError:
        return math.nan


def check_positive(value: float, name: str) -> float:
    """Return `value` as a float; ValueError, which calls it `name`, if it is not a finite number > 0.

    Examples
    --------
    >>> check_positive(0, "period")
    Traceback (most recent call last):
    ValueError: period must be a number > 0 and finite, got 0
    """
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0 and finite, got {value!r}")
    return float(value)


def check_choice(
    value: object, name: str, allowed: Collection[str], *, file: str | None = None, field: str | None = None
) -> None:
    """Raise ValueError if `value` is not an allowed name; given `file` or `field`, raise InputError that states them.

    Examples
    --------
    >>> check_choice("hsah", "routing", ["hash", "single"])
    Traceback (most recent call last):
    ValueError: there is no routing 'hsah': did you mean 'hash'? Allowed: hash, single
    """
    if value not in allowed:
        said = f"there is no {name} {value!r:.200}: {suggest_names(str(value), allowed)}"
        raise InputError(said, file=file, field=field) if file or field else ValueError(said)


def make_dataclass(kind: Callable[..., T], given: Mapping[str, Any], called: str) -> T:
    """Return the dataclass `kind` with field values `given`; errors on unknown fields (ValueError) call it `called`."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise ValueError(f"{called} has no property {name!r}: {suggest_names(str(name), known)}")
    return kind(**given)
