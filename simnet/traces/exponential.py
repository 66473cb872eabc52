"""The exponential function in single precision, with the same bits on every machine.

numpy's result depends on the instructions of the processor: with AVX2 or AVX-512 it uses one formula, otherwise the
system's library, which differs in the last bit in 4 of 10 cases, so that top-k selects other entries among near-equal
ones. The formula here is that of numpy with AVX2 [1]_: range reduction by log 2 in two steps, and a rational function,
with fused multiplications.

References
----------
.. [1] ``simd_exp_FLOAT`` in ``numpy/_core/src/umath/loops_exponent_log.dispatch.c.src``, https://github.com/numpy/numpy.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from simnet.base.arrays import Floats, Values

_LOG2_E = np.float32(1.4426950408889634)
# Added and taken off again, it rounds to a whole number.
_ROUNDING = np.float32(1.5 * 2**23)
_LOG_2 = tuple(map(np.float32, (-6.93145752e-1, -1.42860677e-6)))
_NUMERATOR = tuple(map(np.float32, (5.082763e-04, 6.757897e-03, 5.114512e-02, 0.24736154, 0.7257665, 1.0)))
_DENOMINATOR = tuple(map(np.float32, (2.1595094e-02, -0.27423355, 1.0)))
_LARGEST, _SMALLEST = np.float32(88.72283935546875), np.float32(-103.97208404541015625)
# Of a number in double precision, the bits that single precision lacks, and those of the middle between two of these.
_LACKS, _MIDDLE = (1 << 29) - 1, 1 << 28


def exponentiate(values: Values, out: Values) -> None:
    """Write exp(values) to `out`, which may be the same array as `values`; values must not be NaN.

    Where the processor's own instructions give other bits, it takes some 30 times as long as `numpy.exp`.
    """
    if processor_agrees():
        np.exp(values, out=out)
    else:
        out[...] = by_formula(values)


@cache
def processor_agrees() -> bool:
    """Return whether `numpy.exp` gives the same bits as `by_formula` on this machine."""
    tried = np.linspace(-104.0, 88.7, 20_000, dtype=np.float32)
    with np.errstate(under="ignore"):
        return np.array_equal(np.exp(tried).view(np.int32), by_formula(tried).view(np.int32))


def by_formula(values: Values) -> Values:
    """Return exp(values) by a formula whose steps round identically on every machine."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        power = (values * _LOG2_E + _ROUNDING) - _ROUNDING
        rest = values
        for part in _LOG_2:
            rest = _fused_multiply(power, part, rest)
        made = _evaluate_polynomial(rest, _NUMERATOR) / _evaluate_polynomial(rest, _DENOMINATOR)
        scaled: Values = np.ldexp(made, np.clip(power, -1000, 1000).astype(np.int32))
    scaled[values > _LARGEST] = np.inf
    scaled[values < _SMALLEST] = 0.0
    return scaled


def _evaluate_polynomial(x: Values, coefficients: tuple[np.float32, ...]) -> Values:
    made = np.full_like(x, coefficients[0])
    for one in coefficients[1:]:
        made = _fused_multiply(made, x, one)
    return made


def _fused_multiply(a: Values, b: Values | np.float32, c: Values | np.float32) -> Values:
    """Return a b + c with a single rounding."""
    # The product is exact in double precision. Where the rounded sum is halfway between two single-precision numbers,
    # the rounding error decides.
    product = np.multiply(a, b, dtype=np.float64)
    added = np.asarray(c, dtype=np.float64)
    total: Floats = product + added
    shown = total - product
    error = (product - (total - shown)) + (added - shown)
    halfway = ((total.view(np.int64) & _LACKS) == _MIDDLE) & (error != 0)
    total[halfway] = np.nextafter(total[halfway], np.copysign(np.inf, error[halfway]))
    return total.astype(np.float32)
