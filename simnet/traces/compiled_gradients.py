"""Compiled loops that draw the standard normals of a numpy generator, and make synthetic gradients of them in cache.

The normals are those of ``Generator.standard_normal(dtype=float32)`` on PCG64, bit for bit: the ziggurat of 256 strips
on 23 bits of every 32 (Doornik, "An improved ziggurat method to generate normal random samples", 2005). They are faster
for three reasons: four independent lanes of the congruential generator, a vectorised pass that treats all draws as
inside their strips, with a second visit to the 1.5 % that are not, and signs without branches. `simnet.traces.normals`
checks that the installed numpy draws the same.

A stream is five arrays. `state`, int64 of shape (6,), has the generator's state and increment, high word first, the
number of used draws, and the next index of `outside`. `bits`, uint32 of shape (`ROOM`,), are draws; `normals`, float32,
their values inside strips; `flags`, uint8, mark draws outside; `outside`, int32 of shape (`ROOM` + 1,), has their
places, and ends with `ROOM`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import boolean, float32, float64, int32, int64, njit, types, uint8, uint32, uint64
from numba.extending import intrinsic

from simnet.base import compiled_sums
from simnet.base.compiled_sums import BLOCK as SUMMED
from simnet.base.compiled_sums import LEAF, add_block
from simnet.base.compiling import UNCOUNTED, Function, compile_function

ROOM, BLOCK = 4096, 4096
LANES = 4
SUMS = SUMMED // LEAF
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_WORD = 1 << 64
_STRIPS, _TAIL = 256, 3.6541528853610087963519472518
_SCALE = float(1 << 23)


def _ziggurat_tables() -> tuple[Any, Any, Any]:
    """Return width, inner bound and height of each strip; strips have equal area."""
    area = _TAIL * math.exp(-(_TAIL**2) / 2) + math.sqrt(math.pi / 2) * math.erfc(_TAIL / math.sqrt(2))
    edges = [area / math.exp(-(_TAIL**2) / 2), _TAIL]
    while len(edges) < _STRIPS:
        edges.append(math.sqrt(-2 * math.log(area / edges[-1] + math.exp(-(edges[-1] ** 2) / 2))))
    ends = np.array([edges[0], *reversed(edges[1:])])
    inside = np.round([_TAIL / ends[0] * _SCALE, 0.0, *(ends[1:-1] / ends[2:] * _SCALE)])
    heights = np.exp(-np.square(ends) / 2)
    heights[0] = 1.0
    return (ends / _SCALE).astype(np.float32), inside.astype(np.int32), heights.astype(np.float32)


_WIDTH, _INSIDE, _HEIGHT = _ziggurat_tables()
_R, _OVER_R = np.float32(_TAIL), np.float32(1 / _TAIL)
# The multiplier of as many steps as there are lanes, and what the increment is multiplied by in them.
_LEAP = pow(_MULTIPLIER, LANES, 1 << 128)
_SUM = sum(pow(_MULTIPLIER, step, 1 << 128) for step in range(LANES)) % (1 << 128)
_A_HIGH, _A_LOW = np.uint64(_MULTIPLIER // _WORD), np.uint64(_MULTIPLIER % _WORD)
_L_HIGH, _L_LOW = np.uint64(_LEAP // _WORD), np.uint64(_LEAP % _WORD)
_S_HIGH, _S_LOW = np.uint64(_SUM // _WORD), np.uint64(_SUM % _WORD)


def _array_type(of: Any, *, readonly: bool = False) -> Any:
    return types.Array(of, 1, "C", readonly=readonly)


_STREAM = (_array_type(int64), _array_type(uint32), _array_type(float32), _array_type(uint8), _array_type(int32))
_ROW, _GIVEN = _array_type(float32), _array_type(float32, readonly=True)


def _multiplied_type(
    context: Any, high: Any, low: Any, by_high: Any, by_low: Any, more_high: Any, more_low: Any
) -> Any:
    wide, word = ir.IntType(128), ir.IntType(64)
    pair = types.UniTuple(uint64, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def joined(high: Any, low: Any) -> Any:
            above = builder.shl(builder.zext(high, wide), ir.Constant(wide, 64))
            return builder.or_(above, builder.zext(low, wide))

        high, low, by_high, by_low, more_high, more_low = arguments
        made = builder.add(builder.mul(joined(high, low), joined(by_high, by_low)), joined(more_high, more_low))
        words = builder.trunc(builder.lshr(made, ir.Constant(wide, 64)), word), builder.trunc(made, word)
        return context.make_tuple(builder, pair, words)

    return pair(*[uint64] * 6), generate


_multiplied: Any = intrinsic(_multiplied_type)
"""High and low word of a number of 128 bits times another, plus a third."""


def _compile_inlined(function: Function) -> Function:
    """Compile a function into those that call it."""
    inlined: Function = njit(forceinline=True, **UNCOUNTED)(function)
    return inlined


@_compile_inlined
def _generator_output(high: Any, low: Any) -> Any:
    """Output of PCG64 for a state: the halves' difference, rotated (XSL-RR)."""
    turn, mixed = high >> uint64(58), high ^ low
    return (mixed >> turn) | (mixed << ((uint64(64) - turn) & uint64(63)))


@compile_function(types.void(*_STREAM), **UNCOUNTED)
def refill(state: Any, bits: Any, normals: Any, flags: Any, outside: Any) -> None:
    """Draw the next `ROOM` times 32 bits, and make normals of them as if each were inside its strip."""
    high, low, c_high, c_low = uint64(state[0]), uint64(state[1]), uint64(state[2]), uint64(state[3])
    h0, l0 = _multiplied(high, low, _A_HIGH, _A_LOW, c_high, c_low)
    h1, l1 = _multiplied(h0, l0, _A_HIGH, _A_LOW, c_high, c_low)
    h2, l2 = _multiplied(h1, l1, _A_HIGH, _A_LOW, c_high, c_low)
    h3, l3 = _multiplied(h2, l2, _A_HIGH, _A_LOW, c_high, c_low)
    more_high, more_low = _multiplied(c_high, c_low, _S_HIGH, _S_LOW, uint64(0), uint64(0))
    drawn = bits.view(np.uint64)
    for i in range(0, ROOM // 2, LANES):
        high, low = h3, l3
        drawn[i] = _generator_output(h0, l0)
        h0, l0 = _multiplied(h0, l0, _L_HIGH, _L_LOW, more_high, more_low)
        drawn[i + 1] = _generator_output(h1, l1)
        h1, l1 = _multiplied(h1, l1, _L_HIGH, _L_LOW, more_high, more_low)
        drawn[i + 2] = _generator_output(h2, l2)
        h2, l2 = _multiplied(h2, l2, _L_HIGH, _L_LOW, more_high, more_low)
        drawn[i + 3] = _generator_output(h3, l3)
        h3, l3 = _multiplied(h3, l3, _L_HIGH, _L_LOW, more_high, more_low)
    for i in range(ROOM):
        strip, magnitude = int32(bits[i] & uint32(255)), int32((bits[i] >> uint32(9)) & uint32(0x7FFFFF))
        sign = float32(int32(1) - int32((bits[i] >> uint32(7)) & uint32(2)))
        normals[i] = sign * (float32(magnitude) * _WIDTH[strip])
        flags[i] = magnitude >= _INSIDE[strip]
    words = flags.view(np.uint64)
    found = 0
    for i in range(words.size):
        if words[i]:
            for place in range(8 * i, 8 * i + 8):
                outside[found] = place
                found += flags[place]
    outside[found] = ROOM
    state[0], state[1], state[4], state[5] = int64(high), int64(low), 0, 0


@_compile_inlined
def _next_draw(state: Any, bits: Any, normals: Any, flags: Any, outside: Any) -> Any:
    if state[4] == ROOM:
        refill(state, bits, normals, flags, outside)
    drawn = bits[state[4]]
    state[4] += 1
    return drawn


@_compile_inlined
def _uniform_draw(state: Any, bits: Any, normals: Any, flags: Any, outside: Any) -> Any:
    return float32(_next_draw(state, bits, normals, flags, outside) >> uint32(8)) * float32(1.0 / 16777216.0)


@_compile_inlined
def _outside_strip(drawn: Any, state: Any, bits: Any, normals: Any, flags: Any, outside: Any) -> Any:
    """Return the normal of a draw that is not inside its strip, and 1; or 0 and 0 if it is rejected."""
    strip, magnitude = drawn & uint32(255), (drawn >> uint32(9)) & uint32(0x7FFFFF)
    if strip == 0:
        while True:
            x = -_OVER_R * float32(math.log1p(-_uniform_draw(state, bits, normals, flags, outside)))
            y = -float32(math.log1p(-_uniform_draw(state, bits, normals, flags, outside)))
            if y + y > x * x:
                beyond = _R + x
                return (-beyond if (magnitude >> uint32(8)) & uint32(1) else beyond), 1
    x = float32(magnitude) * _WIDTH[strip]
    height = (_HEIGHT[strip - 1] - _HEIGHT[strip]) * _uniform_draw(state, bits, normals, flags, outside) + _HEIGHT[
        strip
    ]
    if height < math.exp(-0.5 * x * x):
        return (-x if (drawn >> uint32(8)) & uint32(1) else x), 1
    return float32(0), 0


@compile_function(types.void(*_STREAM, _ROW), **UNCOUNTED)
def fill(state: Any, bits: Any, normals: Any, flags: Any, outside: Any, out: Any) -> None:
    """Fill an array with the next normals."""
    done = 0
    while done < out.size:
        if state[4] == ROOM:
            refill(state, bits, normals, flags, outside)
        place, which = state[4], state[5]
        while outside[which] < place:
            which += 1
        state[5] = which
        inside = min(outside[which] - place, out.size - done)
        for i in range(inside):
            out[done + i] = normals[place + i]
        done += inside
        state[4] += inside
        if done < out.size and state[4] < ROOM:
            x, kept = _outside_strip(
                _next_draw(state, bits, normals, flags, outside), state, bits, normals, flags, outside
            )
            out[done] = x
            done += kept


@compile_function(
    float64(
        *_STREAM,
        _ROW,
        _GIVEN,
        _GIVEN,
        _array_type(int64),
        *[_GIVEN] * 4,
        _array_type(boolean),
        float32,
        boolean,
        _ROW,
        _array_type(float64),
    ),
    sources=[compiled_sums.__file__],
    **UNCOUNTED,
)
def mixture(
    state: Any,
    bits: Any,
    normals: Any,
    flags: Any,
    outside: Any,
    row: Any,
    common: Any,
    scales: Any,
    ends: Any,
    own: Any,
    joint: Any,
    linear: Any,
    square: Any,
    ordered: Any,
    factor: Any,
    adds: Any,
    drawn: Any,
    sums: Any,
) -> float:
    """Put a worker's gradient into its row, or add it; in ordered layers put x into it.

    `drawn`, of shape (`BLOCK`,), and `sums`, float64 of shape (`SUMS`,), are scratch. Return, if it is added,
    `compiled_sums.sum_of_squares` of the row.
    """
    layer, total = 0, 0.0
    for first in range(0, row.size, BLOCK):
        size = min(BLOCK, row.size - first)
        fill(state, bits, normals, flags, outside, drawn[:size])
        done = 0
        while done < size:
            while ends[layer] <= first + done:
                layer += 1
            last = min(size, ends[layer] - first)
            # Of slices it is known that no index counts from their end.
            into, shared = row[first + done : first + last], common[first + done : first + last]
            noise, scaled = drawn[done:last], scales[first + done : first + last]
            a, b, c, d = own[layer], joint[layer], linear[layer], square[layer]
            if ordered[layer]:
                for i in range(into.size):
                    into[i] = noise[i] * a + b * shared[i]
            elif adds:
                for i in range(into.size):
                    x = noise[i] * a + b * shared[i]
                    into[i] += x * (abs(x) * d + c) * scaled[i] * factor
            else:
                for i in range(into.size):
                    x = noise[i] * a + b * shared[i]
                    into[i] = x * (abs(x) * d + c) * scaled[i] * factor
            done = last
        # What has just been made is still in the cache.
        if adds and (first + size) % SUMMED == 0:
            total += add_block(row, first + size - SUMMED, sums)
    return total
