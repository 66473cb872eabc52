"""Sums of squares of single precision numbers, as numpy adds them up in double precision, in compiled loops.

Blocks are added up pairwise down to leaves, and these in eight running sums, as numpy does, so that no result depends
on the processor. Importing this module compiles what numba does not have in its cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, njit, types
from numba.extending import intrinsic

from simnet.base.compiling import compiled

BLOCK, LEAF = 8192, 128
"""Entries whose squares are added up pairwise, and those of them that eight running sums add up."""


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
"""Sum of the squares of the `LEAF` entries from somewhere on, in eight running sums."""


@njit(forceinline=True)  # type: ignore[untyped-decorator]
def block(values: Any, first: int, sums: Any) -> Any:
    """Add up the squares of a block.

    Parameters
    ----------
    values : ndarray of float32
        With `BLOCK` entries from `first` on.
    first : int
        Where the block starts.
    sums : ndarray of float64, shape (`BLOCK` / `LEAF`,)
        Is written to.
    """
    for leaf in range(sums.size):
        sums[leaf] = _leaf(values, first + leaf * LEAF)
    left = sums.size
    while left > 1:
        left //= 2
        for i in range(left):
            sums[i] = sums[2 * i] + sums[2 * i + 1]
    return sums[0]


@compiled(float64(types.Array(float32, 1, "C", readonly=True)))
def sum_of_squares(values: Any) -> float:
    """Add up the squares of the full blocks, block by block."""
    total = 0.0
    sums = np.empty(BLOCK // LEAF)
    for first in range(0, values.size - BLOCK + 1, BLOCK):
        total += block(values, first, sums)
    return total
