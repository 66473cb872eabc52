"""One thread for linear algebra, so that sums do not depend on how many processors a machine has.

Several threads add up in another order, and a model that is trained then differs in its last digits. Processes side
by side use the processors better, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""What libraries of linear algebra go by when they are loaded."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let libraries that are loaded meanwhile, here or in processes that start meanwhile, use one thread.

    Examples
    --------
    >>> with one_thread():
    ...     os.environ["OMP_NUM_THREADS"]
    '1'
    """
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
