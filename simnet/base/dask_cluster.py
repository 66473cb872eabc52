"""Connection to a Dask cluster."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from simnet.base.errors import InputError, import_extra

_TIMEOUT = "10 s"


@contextmanager
def connect_dask(scheduler: str, option: str) -> Iterator[Any]:
    """Connect to a Dask scheduler such as ``tls://10.0.0.1:8786``, and provide its ``distributed.Client`` in a block.

    Certificates come from Dask's configuration. Errors name the command-line `option`: InputError if Dask is not
    installed or the scheduler does not answer. A remote connection without encryption is warned of.
    """
    if _in_the_open(scheduler):
        warnings.warn(
            f"{option}: whoever is on the network may read and change what is sent, and run code on the workers; "
            "tls://HOST:PORT encrypts it, see docs/comparing.md",
            stacklevel=3,
        )
    distributed = import_extra("distributed", "dask", "needs Dask", option)
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


def _in_the_open(scheduler: str) -> bool:
    """Return whether the address of a Dask scheduler is remote and unencrypted.

    Examples
    --------
    >>> _in_the_open("tcp://127.0.0.1:8786"), _in_the_open("tls://192.0.2.1:8786"), _in_the_open("192.0.2.1:8786")
    (False, False, True)
    """
    try:
        address = urlsplit(scheduler if "://" in scheduler else f"tcp://{scheduler}")
        if address.scheme in ("tls", "wss", "inproc") or not address.hostname:
            return False
        family, _, _, _, place = socket.getaddrinfo(address.hostname, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as here:
            here.bind(place)
    except (OSError, ValueError):
        # Only an address of this machine can be bound.
        return True
    return False
