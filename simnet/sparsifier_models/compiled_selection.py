"""Compiled loops over the bits of a gradient, each one pass over it, about as fast as memory delivers.

The bits of a float32 without its sign, read as an integer, are ordered as magnitudes are: zeros of either sign first,
then the numbers, infinity, and NaN last. So magnitudes are compared as integers here, `WORD` of them at once into the
bits of a mask, and then only the set bits are visited. No loop branches on a single entry: on random data that costs
more than to compare a whole word.

`simnet.sparsifier_models.selection` calls these for long arrays. Importing this module compiles what numba does not
have in its cache. All is integer arithmetic but for sums of squares, whose additions are in a fixed order, so that no
result depends on the processor.

The loops take the bits of the gradient, an ndarray of uint32 of shape (n,), bounds `low` and `high` that are magnitudes
as integers, and last the arrays that they fill: magnitudes and entries as uint32, places as int64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float32, int64, njit, types, uint32, uint64
from numba.extending import intrinsic

from simnet.base.compiled_sums import sum_of_squares
from simnet.base.compiling import Function, compile_function

__all__ = ["SLACK", "WORD", "band", "count", "sample", "select", "sum_of_squares"]

WORD = 64
SLACK = 8
"""Set bits of a mask that are visited at once, without asking whether there are as many. A visit to no bit also leaves
something behind, so that buffers must be longer by this than what they are to hold."""
MAGNITUDE = uint32(0x7FFFFFFF)


def _array_type(of: Any, *, readonly: bool = False) -> Any:
    return types.Array(of, 1, "C", readonly=readonly)


_BITS, _VALUES = _array_type(uint32, readonly=True), _array_type(float32, readonly=True)


def _compile_inlined(function: Function) -> Function:
    """Compile a function into those that call it."""
    inlined: Function = njit(forceinline=True)(function)
    return inlined


def _ones_type(context: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return uint64(uint64), generate


def _lowest_type(context: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.and_(zeros, ir.Constant(ir.IntType(64), WORD - 1))

    return uint64(uint64), generate


def _compared_type(context: Any, bits: Any, start: Any, low: Any, width: Any) -> Any:
    vector = ir.VectorType(ir.IntType(32), WORD)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def everywhere(scalar: Any) -> Any:
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(first, first, ir.Constant(vector, [0] * WORD))

        bits, start, low, width = arguments
        place = builder.gep(context.make_array(signature.args[0])(context, builder, bits).data, [start])
        entries = builder.load(builder.bitcast(place, vector.as_pointer()), align=4)
        magnitudes = builder.and_(entries, ir.Constant(vector, [int(MAGNITUDE)] * WORD))
        # Unsigned, what is below `low` is far above any width.
        reached = builder.icmp_unsigned("<=", builder.sub(magnitudes, everywhere(low)), everywhere(width))
        return builder.bitcast(reached, ir.IntType(64))

    return uint64(_BITS, int64, uint32, uint32), generate


_ones: Any = intrinsic(_ones_type)
"""Number of set bits."""
_lowest: Any = intrinsic(_lowest_type)
"""Place of the lowest set bit; 0 if there is none."""
_compared: Any = intrinsic(_compared_type)
"""Mask of which magnitudes of the word that starts somewhere are from `low` to `low` + `width`."""


@_compile_inlined
def _compare_word(bits: Any, start: int, low: int, width: int) -> Any:
    """As `_compared`, also of a word that the end of the array cuts short."""
    if start + WORD <= bits.size:
        return _compared(bits, start, low, width)
    mask = uint64(0)
    for i in range(bits.size - start):
        mask |= uint64(uint32((bits[start + i] & MAGNITUDE) - low) <= width) << uint64(i)
    return mask


@compile_function(types.void(_BITS, int64, _array_type(uint32)))
def sample(bits: Any, step: int, taken: Any) -> None:
    """Take one magnitude out of every `step`, at places that follow no period."""
    for i in range(taken.size):
        # Multiples of the golden ratio, modulo 1, are spread evenly.
        fraction = uint64(uint32(uint32(i) * uint32(2654435769)))
        taken[i] = bits[i * step + int64(fraction * uint64(step) >> uint64(32))] & MAGNITUDE


@compile_function(int64(_BITS, uint32, uint32))
def count(bits: Any, low: int, high: int) -> int:
    """Count the magnitudes from `low` to `high`, both included."""
    width = uint32(high - low)
    found = 0
    for i in range(bits.size):
        found += uint32((bits[i] & MAGNITUDE) - low) <= width
    return found


@compile_function(types.UniTuple(int64, 2)(_BITS, uint32, uint32, _array_type(uint32)))
def band(bits: Any, low: int, high: int, inside: Any) -> tuple[int, int]:
    """Collect the magnitudes from `low` to `high`, both included.

    Returns how many there are, or -1 if they may not fit, and how many larger ones there are.
    """
    found = reached = 0
    for start in range(0, bits.size, WORD):
        mask = _compare_word(bits, start, low, uint32(high - low))
        reached += int64(_ones(_compare_word(bits, start, low, uint32(MAGNITUDE - low))))
        end = found + int64(_ones(mask))
        if end + SLACK > inside.size:
            return -1, 0
        while True:
            for _ in range(SLACK):
                inside[found] = bits[start + int64(_lowest(mask))] & MAGNITUDE
                mask &= mask - uint64(1)
                found += 1
            if found >= end:
                break
        found = end
    return found, reached - found


@compile_function(int64(_BITS, uint32, uint32, int64, _array_type(int64)))
def select(bits: Any, low: int, high: int, ties: int, indices: Any) -> int:
    """Collect where magnitudes lie above `low` up to `high`, and the first `ties` that equal `low`.

    Returns how many there are, or -1 if they may not fit.
    """
    found = 0
    for start in range(0, bits.size, WORD):
        mask = _compare_word(bits, start, low, uint32(high - low))
        equal = _compare_word(bits, start, low, uint32(0))
        if equal:
            taken = min(ties, int64(_ones(equal)))
            ties -= taken
            for _ in range(taken):
                equal &= equal - uint64(1)
            mask &= ~equal
        end = found + int64(_ones(mask))
        if end + SLACK > indices.size:
            return -1
        while True:
            for _ in range(SLACK):
                indices[found] = start + int64(_lowest(mask))
                mask &= mask - uint64(1)
                found += 1
            if found >= end:
                break
        found = end
    return found
