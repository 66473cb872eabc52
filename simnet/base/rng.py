"""Named random streams: each stochastic component draws from its own generator, derived from one seed."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return the random generator that belongs to a seed (>= 0) and the name of a stream, such as ``"jitter", 3``.

    The same seed and name give the same numbers everywhere; different names give independent streams.

    Examples
    --------
    >>> float(stream(7, "jitter", 3).random()) == float(stream(7, "jitter", 3).random())
    True
    >>> float(stream(7, "jitter", 3).random()) == float(stream(7, "jitter", 4).random())
    False
    """
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    # repr keeps 3 and "3" apart, and the separator keeps ("a", "b") and ("ab",) apart.
    digest = blake2b("\x1f".join(map(repr, name)).encode(), digest_size=16).digest()
    # The words into which numpy would take apart a list of these numbers, which takes it three times as long.
    number = int(seed)
    words = number.to_bytes(4 * max(1, -(-number.bit_length() // 32)), "little") + digest
    return np.random.default_rng(np.random.SeedSequence(np.frombuffer(words, dtype="<u4")))
