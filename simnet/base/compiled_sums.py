"""Compiled sums of squares of float32 numbers, in double precision and numpy's order of addition.

Blocks are summed pairwise down to leaves of eight running sums, so that results do not depend on the processor.
Importing this module compiles what is not cached.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, njit, types
from numba.extending import intrinsic

from simnet.base.compiling import compile_function

BLOCK, LEAF = 8192, 128
"""Entries summed pairwise, and entries of a leaf."""


def _leaf_type(context: Any, values: Any, start: Any) -> Any:
    singles, doubles = ir.VectorType(ir.FloatType(), 8), ir.VectorType(ir.DoubleType(), 8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, start = arguments
        data = context.make_array(signature.args[0])(context, builder, values).data

        def squares(first: int) -> Any:
            place = builder.gep(data, [builder.add(start, ir.Constant(ir.IntType(64), first))])
            entries = builder.fpext(builder.load(builder.bitcast(place, singles.as_pointer()), align=4), doubles)
            # A square of a float32 is exact in double precision: only the additions round.
            return builder.fmul(entries, entries)

        total = squares(0)
        for first in range(8, LEAF, 8):
            total = builder.fadd(total, squares(first))
        sums = [builder.extract_element(total, ir.Constant(ir.IntType(32), i)) for i in range(8)]
        while len(sums) > 1:
            sums = [builder.fadd(*sums[i : i + 2]) for i in range(0, len(sums), 2)]
        return sums[0]

    return float64(values, int64), generate


_leaf: Any = intrinsic(_leaf_type)
"""Sum of squares of `LEAF` entries, in eight running sums."""


@njit(forceinline=True)  # type: ignore[untyped-decorator]
def add_block(values: Any, first: int, sums: Any) -> Any:
    """Return the sum of squares of `BLOCK` entries from `first` on; `sums`, (`BLOCK` / `LEAF`,), is scratch."""
    for leaf in range(sums.size):
        sums[leaf] = _leaf(values, first + leaf * LEAF)
    left = sums.size
    while left > 1:
        left //= 2
        for i in range(left):
            sums[i] = sums[2 * i] + sums[2 * i + 1]
    return sums[0]


@compile_function(float64(types.Array(float32, 1, "C", readonly=True)))
def sum_of_squares(values: Any) -> float:
    """Return the sum of squares of all full blocks."""
    total = 0.0
    sums = np.empty(BLOCK // LEAF)
    for first in range(0, values.size - BLOCK + 1, BLOCK):
        total += add_block(values, first, sums)
    return total
