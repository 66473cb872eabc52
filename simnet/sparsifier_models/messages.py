"""Messages of indices and values in bytes, as a wire with an `Encoding` has them.

Schemes work with what `read_back` makes of values, and with the bytes that `Wire.entries` counts; here are the messages
themselves: the indices, and behind them the values.
"""

from __future__ import annotations

import numpy as np

from simnet.costs.encodings import INDEX_CODES, TAG_BYTES, VALUE_BITS, IndexCode, table_bytes
from simnet.sparsifier_models.index_codes import decode_indices, encode_indices
from simnet.sparsifier_models.packing import Bytes
from simnet.sparsifier_models.selection import Indices, Values
from simnet.sparsifier_models.value_codes import decode_values, encode_values
from simnet.sparsifier_models.wire import Encoding


def encode(indices: Indices, values: Values, n: int, encoding: Encoding) -> Bytes:
    """Return a message of ascending, distinct indices below `n` and their finite values.

    Raises ValueError if indices do not ascend or exceed `n`, or there are more or fewer of them than values.

    Examples
    --------
    >>> encode(np.array([3, 200]), np.array([1, -3], dtype=np.float32), 300, Encoding("delta", "1bit"))
    array([  2,   0,   0,   0,   3, 197,   1,   0,   0,   0,  64,   2],
          dtype=uint8)
    """
    if indices.shape != values.shape:
        raise ValueError(f"there must be a value for each index, got {values.size} for {indices.size}")
    if indices.size and (indices[0] < 0 or indices[-1] >= n or (np.diff(indices) <= 0).any()):
        raise ValueError(f"indices must ascend within 0..{n - 1}")
    return np.concatenate([encode_indices(indices, n, encoding.indices), encode_values(values, encoding.values)])


def decode(message: Bytes, n: int, encoding: Encoding) -> tuple[Indices, Values]:
    """Return the indices of a message, and the values that everybody reads. ValueError: the message has a wrong length.

    Examples
    --------
    >>> encoding = Encoding("delta", "1bit")
    >>> decode(encode(np.array([3, 200]), np.array([1, -3], dtype=np.float32), 300, encoding), 300, encoding)
    (array([  3, 200]), array([ 2., -2.], dtype=float32))
    """
    found: IndexCode = encoding.indices
    tag = 0
    if found == "auto":
        found, tag = INDEX_CODES[message[0]], TAG_BYTES
    k = None
    if found in ("int32", "int64"):
        bits = (64 if found == "int64" else 32) + VALUE_BITS[encoding.values]
        table = table_bytes(encoding.values) if message.size > tag else 0
        k = (message.size - tag - table) * 8 // bits
    indices, nbytes = decode_indices(message[tag:], n, found, k)
    return indices, decode_values(message[tag + nbytes :], indices.size, encoding.values)
