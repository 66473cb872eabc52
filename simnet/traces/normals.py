"""Standard normals in single precision, as a numpy generator draws them, by compiled loops for many draws."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

from simnet.base.rng import stream
from simnet.traces.source import Values

# The compiled loops save 6 ns a draw, and take a third of a second to load.
_WORTH = 1 << 26


@cache
def compiled_loops() -> ModuleType | None:
    """Return the compiled loops; None where numba is missing or switched off, or numpy draws other numbers."""
    try:
        from simnet.traces import compiled_gradients as found
    except (ImportError, OSError):
        return None
    compiled: ModuleType = found
    drawn = np.empty(10_000, dtype=np.float32)
    compiled.fill(*_begin_stream(compiled, stream(0, "normals")), drawn)
    expected = stream(0, "normals").standard_normal(drawn.size, dtype=np.float32)
    return compiled if np.array_equal(drawn.view(np.uint32), expected.view(np.uint32)) else None


def compiled_loops_for(draws: float) -> ModuleType | None:
    """Return the compiled loops if so many draws are worth it."""
    return compiled_loops() if draws >= _WORTH else None


class Normals:
    """The normals of a random stream, from the first on."""

    def __init__(self, generator: np.random.Generator, compiled: ModuleType | None) -> None:
        self._generator, self._compiled = generator, compiled
        self.state = () if compiled is None else _begin_stream(compiled, generator)
        """The arrays that the compiled loops take."""

    def fill(self, out: Values) -> None:
        """Fill a contiguous array of float32 with the next normals."""
        if self._compiled is None:
            self._generator.standard_normal(dtype=np.float32, out=out)
        else:
            self._compiled.fill(*self.state, out.reshape(-1))

    def skip(self, count: int, room: Values) -> None:
        """Skip so many normals; `room`, of shape (size,), is scratch."""
        for first in range(0, count, room.size):
            self.fill(room[: count - first])


def _begin_stream(compiled: ModuleType, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return the arrays of a fresh stream, as the compiled loops take them."""
    given = generator.bit_generator.state["state"]
    words = [word for number in (given["state"], given["inc"]) for word in divmod(number, 1 << 64)]
    state = np.array([*words, compiled.ROOM, 0], dtype=np.uint64).view(np.int64)
    room = [np.empty(compiled.ROOM, dtype=one) for one in (np.uint32, np.float32, np.uint8)]
    return state, *room, np.empty(compiled.ROOM + 1, dtype=np.int32)
