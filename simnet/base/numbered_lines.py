"""Lines of text that differ in their numbers alone, read and written as columns.

A template is a line in which ``#`` stands for a whole number >= 0 and, for reading, ``?`` for one letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks

MAX_DIGITS = 18
"""The longest number that is read."""

_DIGITS = b"0123456789"
# Digits, and then pairs and fours of them, become one number each: by what to multiply, how far to the next one.
_PAIRS = tuple(
    (np.uint64(scale), np.uint64(apart), np.uint64(mask))
    for scale, apart, mask in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10_000, 32, 0xFFFFFFFF))
)
_TENS = 10 ** np.arange(1, MAX_DIGITS + 1, dtype=np.int64)


class Matched(NamedTuple):
    """The lines that follow a template."""

    lines: Ranks
    """Which of the text they are, from 0, in increasing order; shape (n,)."""

    numbers: Ranks
    """What stands for ``#`` in each; shape (n, number of ``#``)."""

    letters: NDArray[np.uint8]
    """What stands for ``?`` in each; shape (n, number of ``?``)."""


def read_lines(text: bytes, templates: Sequence[str]) -> list[Matched] | None:
    r"""Read a text of which every line follows one of some templates.

    Parameters
    ----------
    text : bytes
        Whole lines, each closed by a line feed.
    templates : sequence of str
        What lines may be, without the line feed. A line belongs to the first one that it follows.

    Returns
    -------
    list of Matched or None
        The lines of each template; None if there is another line, or a number that is not written as `write_lines`
        does: with zeros before it, or with more than `MAX_DIGITS` digits.

    Examples
    --------
    >>> send, needs = read_lines(b"a7: send 80\na7 needs b2\na8: send 9\n", ["?#: send #", "?# needs ?#"])
    >>> send.lines.tolist(), send.numbers.tolist(), send.letters.tolist()
    ([0, 2], [[7, 80], [8, 9]], [[97], [97]])
    >>> needs.numbers.tolist(), needs.letters.tobytes()
    ([[7, 2]], b'ab')
    >>> read_lines(b"a7: send 080\n", ["?#: send #"])
    """
    content = np.frombuffer(text, dtype=np.uint8)
    bounds = _runs_of_digits(content)
    starts, lengths = bounds[0::2], bounds[1::2] - bounds[0::2]
    if len(starts) and (lengths.max() > MAX_DIGITS or ((content[starts] == ord("0")) & (lengths > 1)).any()):
        return None
    # Without its digits a line is its template; where a number stands, is where it stands in what is left.
    left = np.frombuffer(text.translate(None, _DIGITS), dtype=np.uint8)
    places = starts - (np.cumsum(lengths) - lengths)
    ends = np.flatnonzero(left == ord("\n")) + 1
    begins = np.concatenate([[0], ends[:-1]])
    if not len(ends) or ends[-1] != len(left):
        return None if len(left) or len(content) else [_matched(one, 0) for one in templates]
    shape = ends - begins
    kinds = np.full(len(ends), -1)
    expected = [template.replace("#", "").encode() + b"\n" for template in templates]
    longest = max(map(len, expected))
    lengths_used = np.bincount(np.minimum(shape, longest + 1), minlength=longest + 1)
    for kind, (template, line) in enumerate(zip(templates, expected, strict=True)):
        if lengths_used[len(line)]:
            rows = np.flatnonzero((shape == len(line)) & (kinds < 0))
            found = _pieces(left, f"S{len(line)}")[begins[rows]]
            letters = found.view(np.uint8).reshape(-1, len(line))
            follows = np.ones(len(rows), dtype=np.bool_)
            for at in _places(template, "?"):
                follows &= _is_letter(letters[:, at])
                letters[:, at] = ord("?")
            kinds[rows[follows & (found == line)]] = kind
    if (kinds < 0).any():
        return None
    counts = np.array([one.count("#") for one in templates])[kinds]
    firsts = np.cumsum(counts) - counts
    if counts.sum() != len(starts):
        return None
    values = _values(content, bounds[1::2], lengths)
    result = []
    for kind, template in enumerate(templates):
        rows = np.flatnonzero(kinds == kind)
        one = _matched(template, len(rows))
        one.lines[:] = rows
        for column, at in enumerate(_places(template, "#")):
            if not np.array_equal(places[firsts[rows] + column], begins[rows] + at):
                return None
            one.numbers[:, column] = values[firsts[rows] + column]
        for column, at in enumerate(_places(template, "?")):
            one.letters[:, column] = left[begins[rows] + at]
        result.append(one)
    return result


def write_lines(templates: Sequence[str], kinds: Ranks, numbers: Ranks) -> bytes:
    r"""Return lines that follow templates.

    Parameters
    ----------
    templates : sequence of str
        What lines may be, with the line feeds; a template may also be several lines, or none.
    kinds : ndarray of int, shape (n,)
        The template of each.
    numbers : ndarray of int, shape (most, n)
        What stands for its ``#``, >= 0 and of at most `MAX_DIGITS` digits; what it has not is ignored.

    Examples
    --------
    >>> write_lines(["a#: send #\n", "a# needs b#\n"], np.array([0, 1]), np.array([[7, 7], [80, 2]]))
    b'a7: send 80\na7 needs b2\n'
    """
    counts = np.array([one.count("#") for one in templates])
    fixed = np.array([len(one) - one.count("#") for one in templates])
    digits = np.ones(numbers.shape, dtype=np.int64)
    most = int(numbers.max(initial=0))
    for ten in _TENS[most >= _TENS]:
        digits += numbers >= ten
    digits[np.arange(len(numbers))[:, np.newaxis] >= counts[kinds]] = 0
    ends = np.cumsum(fixed[kinds] + digits.sum(axis=0))
    text = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for kind, template in enumerate(templates):
        rows = np.flatnonzero(kinds == kind)
        if not len(rows):
            continue
        at = ends[rows] - fixed[kind] - digits[:, rows].sum(axis=0)
        for column, part in enumerate(template.split("#")):
            if column:
                at += digits[column - 1, rows]
                _put(text, at, numbers[column - 1, rows])
            if part:
                _pieces(text, f"S{len(part)}")[at] = part.encode()
                at += len(part)
    return text.tobytes()


def _pieces(content: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Return what begins at each byte, as values of so many bytes that share them."""
    count = len(content) - np.dtype(dtype).itemsize + 1
    return np.ndarray(max(count, 0), dtype, buffer=content.data, strides=(1,))


def _runs_of_digits(content: NDArray[np.uint8]) -> Ranks:
    """Return where runs of digits begin and end, in turns."""
    inside = np.zeros(len(content) + 2, dtype=np.bool_)
    np.less(content - np.uint8(ord("0")), 10, out=inside[1:-1])
    return np.flatnonzero(inside[1:] != inside[:-1])


def _values(content: NDArray[np.uint8], ends: Ranks, lengths: Ranks) -> Ranks:
    """Return the numbers whose digits end at some places, eight digits at a time."""
    values = np.zeros(len(ends), dtype=np.int64)
    eights = _pieces(np.concatenate([np.zeros(8, dtype=np.uint8), content]), "<u8")
    for done in range(0, int(lengths.max(initial=0)), 8):
        rows = np.flatnonzero(lengths > done) if done else slice(None)
        # The first of eight digits is the lowest byte; what stands before the number becomes 0.
        eight = eights[ends[rows] - done] & np.uint64(0x0F0F0F0F0F0F0F0F)
        other = (64 - 8 * np.minimum(lengths[rows] - done, 8)).astype(np.uint64)
        eight = eight >> other << other
        for scale, apart, mask in _PAIRS:
            eight = (eight * scale + (eight >> apart)) & mask
        values[rows] += eight.astype(np.int64) * 10**done
    return values


def _put(text: NDArray[np.uint8], ends: Ranks, values: Ranks) -> None:
    """Write numbers so that they end at some places."""
    while len(values):
        ends = ends - 1
        tens = values // 10
        text[ends] = values - 10 * tens + ord("0")
        more = np.flatnonzero(tens)
        ends, values = (ends, tens) if len(more) == len(tens) else (ends[more], tens[more])


def _is_letter(found: NDArray[np.uint8]) -> NDArray[np.bool_]:
    small: NDArray[np.bool_] = ((found | 32) - np.uint8(ord("a"))) < 26
    return small


def _places(template: str, mark: str) -> list[int]:
    """Return where the marks of a kind stand in what is left of a template without its numbers."""
    return [at - template.count("#", 0, at) for at, letter in enumerate(template) if letter == mark]


def _matched(template: str, count: int) -> Matched:
    return Matched(
        np.zeros(count, dtype=np.int64),
        np.zeros((count, template.count("#")), dtype=np.int64),
        np.zeros((count, template.count("?")), dtype=np.uint8),
    )
