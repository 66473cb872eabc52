"""The documentation in the sources of Python's standard library, as words."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import SimnetError

TOPICS = 10
"""In how many equal parts the text falls, in the order of the files; stretches of one part are of a kind."""

_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]+|\d|\n|[^\sA-Za-z_\d]")


@lru_cache(maxsize=2)
def read_prose(vocabulary: int, context: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return stretches of words, of shape (N, context + 1), and the topic of each: its place in the library.

    A stretch begins with the word that the one before ends with. The words are the most frequent ones; all others are
    0.
    """
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))
    texts = [path.read_text("utf-8", "replace") for path in files if not {"site-packages", "test"} & {*path.parts}]
    words = [word for text in texts for quoted in _QUOTED.findall(text) for word in _WORD.findall(quoted)]
    numbers = {word: number for number, (word, _) in enumerate(Counter(words).most_common(vocabulary - 1), start=1)}
    flat = np.array([numbers.get(word, 0) for word in words], dtype=np.intp)
    count = len(flat) // context - 1
    if count < TOPICS:
        raise SimnetError(f"only {len(flat)} words of documentation were found, too few to train on")
    stretches = np.lib.stride_tricks.sliding_window_view(flat, context + 1)[::context][:count]
    return stretches.copy(), np.arange(count) * TOPICS // count
