"""Single-threaded linear algebra, so that sums do not depend on the number of processors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Environment variables of linear algebra libraries, read when they load."""


@contextmanager
def set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def one_thread() -> AbstractContextManager[None]:
    """Limit linear algebra to one thread in libraries that are loaded, and processes started, inside the block.

    Examples
    --------
    >>> with one_thread():
    ...     os.environ["OMP_NUM_THREADS"]
    '1'
    """
    return set_environment(dict.fromkeys(THREADS, "1"))
