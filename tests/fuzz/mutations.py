"""Changes of values, texts, arrays and bytes that keep what they are part of whole."""

import copy
import re
from typing import Any

import numpy as np

NUMBERS = [
    0,
    -1,
    1,
    2,
    7,
    2**31,
    2**63,
    -(2**63),
    10**18,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    1e999,
    -1e999,
    float("nan"),
]
TEXTS = [
    "",
    " ",
    "x",
    "=1+1",
    "9" * 400,
    "k" * 5_000,
    "ü\u202e",
    "a\x00b",
    "../../x",
    "/dev/zero",
    "~",
    "1e400",
    "0x1p3",
]
TEXTS += ["1 ms", "1 Gbit/s", "-3 s", "inf", "NaN", "[[[", "{", "true", "\ud800", "\n", "a: b", "dense", "topk", "ring"]
JUNK = [None, True, False, [], {}, [[]], [1, "x"], {"x": 1}, [0] * 300, *NUMBERS, *TEXTS]
WORDS = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\w+|[^\w\s]")


def value(random, found, times=3):
    """Return a value as of JSON with one to so many of its parts dropped, doubled, renamed, moved, or made junk."""
    found = copy.deepcopy(found)
    for _ in range(random.randint(1, times)):
        places = list(_places(found))
        if not places:
            return found
        holder, key = random.choice(places)
        how = random.choice(["junk", "junk", "number", "drop", "rename", "double", "move"])
        if how == "junk":
            holder[key] = copy.deepcopy(random.choice(JUNK))
        elif how == "number" and isinstance(holder[key], int | float):
            holder[key] = random.choice([-holder[key], holder[key] + 1, holder[key] * 10**6, random.choice(NUMBERS)])
        elif how == "drop":
            del holder[key]
        elif how == "rename" and isinstance(holder, dict):
            holder[random.choice([*map(str, holder), *TEXTS])] = holder.pop(key)
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other, at = random.choice(places)
            if at in other if isinstance(other, dict) else at < len(other):
                holder[key] = copy.deepcopy(other[at])
    return found


def text(random, found, times=3):
    """Return a text with words or lines dropped, doubled, swapped, or made junk."""
    for _ in range(random.randint(1, times)):
        how = random.choice(["word", "word", "number", "line", "double", "swap", "cut", "character"])
        if how in ("word", "number"):
            words = [one.span() for one in WORDS.finditer(found) if how == "word" or one[0][-1].isdigit()]
            if words:
                begin, end = random.choice(words)
                other = random.choice([*map(str, NUMBERS), *TEXTS, "", found[slice(*random.choice(words))]])
                found = found[:begin] + other + found[end:]
        elif how == "character":
            place = random.randint(0, len(found))
            found = (
                found[:place]
                + random.choice(["\x00", "\t", "'", '"', "{", "]", "&a ", "*a", "\r", "#", "é"])
                + found[place:]
            )
        elif how == "cut":
            found = found[: random.randint(0, len(found))]
        else:
            lines = found.splitlines(keepends=True) or [""]
            one, other = random.randrange(len(lines)), random.randrange(len(lines))
            if how == "line":
                del lines[one]
            elif how == "double":
                lines.insert(other, lines[one] * random.choice([1, 1, 2, 50]))
            else:
                lines[one], lines[other] = lines[other], lines[one]
            found = "".join(lines)
    return found


def content(random, found, times=3):
    """Return bytes with bits turned, pieces dropped, doubled, or made junk."""
    found = bytearray(found)
    for _ in range(random.randint(1, times)):
        place = random.randrange(len(found) + 1)
        how = random.choice(["bit", "byte", "drop", "double", "cut", "number"])
        if how in ("bit", "byte") and place < len(found):
            found[place] ^= 1 << random.randrange(8) if how == "bit" else random.randrange(256)
        elif how == "drop":
            del found[place : place + random.choice([1, 4, 8, 64])]
        elif how == "double":
            found[place:place] = found[place : place + random.choice([1, 4, 8, 64])]
        elif how == "cut":
            del found[place:]
        else:
            size = random.choice([1, 2, 4, 8])
            found[place : place + size] = random.choice([b"\x00", b"\xff", b"\x7f", b"\x80"]) * size
    return bytes(found)


def array(random, found):
    """Return an array of another type, shape or order, or with other values."""
    how = random.choice(["type", "shape", "value", "value", "fewer", "more", "order"])
    with np.errstate(all="ignore"):
        if how == "type":
            return found.astype(random.choice(["f2", "f4", "f8", "i1", "i8", "u8", "?"]))
        if how == "shape":
            return found.reshape(random.choice([(-1,), (1, -1), (-1, 1), found.shape[::-1], (*found.shape, 1)]))
        if how == "value" and found.size:
            changed = found.copy()
            place = np.unravel_index(random.randrange(found.size), found.shape)
            number = random.choice([0, 1, -1, 127, float("nan"), float("inf"), -1e30, 2.0**40])
            if found.dtype.kind in "f" or (np.isfinite(number) and found.dtype.kind == "i" and abs(number) < 128):
                changed[place] = number
            return changed
        if how == "fewer":
            return found[:-1] if found.ndim else found
        if how == "more":
            return np.concatenate([found, found]) if found.ndim else np.stack([found, found])
    return np.asarray(found, order="F")


def _places(found):
    """Yield the holder and the key of each value inside another."""
    if isinstance(found, dict | list):
        for key in list(found) if isinstance(found, dict) else range(len(found)):
            yield found, key
            yield from _places(found[key])


def any_of(random, *changes) -> Any:
    """Return the result of one of several calls."""
    return random.choice(changes)()
