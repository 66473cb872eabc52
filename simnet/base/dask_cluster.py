"""A connection to a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from simnet.base.errors import InputError, to_install

_TIMEOUT = "10 s"


@contextmanager
def connected(scheduler: str, option: str) -> Iterator[Any]:
    """Return a ``distributed.Client``, which closes when a ``with`` block ends.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler, such as ``tcp://10.0.0.1:8786``.
    option : str
        Where it was given, for errors.

    Raises
    ------
    InputError
        If Dask is not installed, or there is no scheduler.
    """
    try:
        import distributed
    except ImportError:
        raise InputError(f"needs Dask: {to_install('dask')}", file=option) from None
    try:
        client = distributed.Client(scheduler, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as failure:
        raise InputError(f"there is no Dask scheduler that answers: {failure}", file=option) from None
    try:
        yield client
    finally:
        # Whatever has become of the scheduler meanwhile.
        with suppress(Exception):
            client.close()
