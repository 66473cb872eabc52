"""Kernels of codes of indices and values, to be timed: numpy's, on the processor, as schemes run them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from simnet.base.rng import stream
from simnet.cost_models.costs.encodings import CODE_METHODS, INDEX_CODES, SORT_METHOD, VALUE_CODES
from simnet.sparsifier_models.codes import Bytes, decode_indices, decode_values, encode_indices, encode_values
from simnet.sparsifier_models.selection import Indices, Values

KernelCall: TypeAlias = Callable[[], object]

CODE_SOURCES = {
    one: "indices and values put in order by numpy's argsort"
    if one == SORT_METHOD
    else f"numpy code that {'makes' if one.startswith('encode') else 'reads'} a message's {one.partition('_')[2]} codes"
    for one in CODE_METHODS
}
"""What is called for each method."""


def encoding_calls(n: int, chosen: Indices, sent: Values) -> dict[str, tuple[int, KernelCall]]:
    """Return for each method of `CODE_METHODS` the entries that it processes, and the call.

    `chosen` are the indices sent of n entries, ascending int64, shape (k,); `sent` their float32 values.
    """
    k = chosen.size

    @cache
    def unsorted() -> tuple[Indices, Values]:
        order = stream(0, "device", "order", k).permutation(k)
        return chosen[order], sent[order]

    def sort() -> tuple[Indices, Values]:
        indices, values = unsorted()
        order = np.argsort(indices)
        return indices[order], values[order]

    found: dict[str, tuple[int, KernelCall]] = {SORT_METHOD: (k, sort)}
    for index in INDEX_CODES:
        entries, encode = n if index == "bitmap" else k, partial(encode_indices, chosen, n, index)
        found[f"encode_{index}"] = entries, encode
        found[f"decode_{index}"] = entries, _decoding_call(cache(encode), partial(decode_indices, n=n, code=index, k=k))
    for value in VALUE_CODES:
        make = partial(encode_values, sent, value)
        found[f"encode_{value}"] = k, make
        found[f"decode_{value}"] = k, _decoding_call(cache(make), partial(decode_values, k=k, code=value))
    return {name: found[name] for name in CODE_METHODS}


def _decoding_call(encoded: Callable[[], Bytes], decode: Callable[[Bytes], object]) -> KernelCall:
    return lambda: decode(encoded())
