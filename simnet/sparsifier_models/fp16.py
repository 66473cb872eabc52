"""Half precision: the whole gradient by an all-reduce, in two bytes an entry.

What is rounded off, and what is too large for the format, is kept back with everything else that is not sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simnet.costs import fp16
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.dense import Dense, DenseOptions
from simnet.sparsifier_models.selection import Values, squared_norm
from simnet.sparsifier_models.steps import in_order
from simnet.sparsifier_models.value_codes import LARGEST, rounded
from simnet.sparsifier_models.wire import Wire

# Entries rounded at a time: they stay in the cache.
_BLOCK = 65536


@dataclass(frozen=True, kw_only=True)
class FP16Options(DenseOptions):
    """Options of `FP16`.

    Parameters
    ----------
    format : {"fp16", "bf16"}
        Half precision, with 11 significant bits up to 65504, or bfloat16, with 8 and the range of float32.
    accumulation : {"single", "half"}
        Precision of the sums: single, or that of the format, rounded after each addition. In half precision every
        worker divides by P before it sends, so that no sum overflows.
    """

    format: Literal["fp16", "bf16"] = "fp16"
    accumulation: Literal["single", "half"] = "single"


class FP16(Dense):
    """Dense all-reduce in half precision. The density does not matter.

    A worker casts before its first message and back after the last one, which is assumed. With error feedback, which is
    on by default, nothing gets lost but what sums in half precision round off. Frameworks go without:
    ``error_feedback=False``, ``accumulation="half"`` is PyTorch's compression hook.

    References
    ----------
    P. Micikevicius et al., "Mixed Precision Training", ICLR 2018.

    Examples
    --------
    >>> model = FP16(workers=1, parameters=3)
    >>> model.exchange(np.array([[0.5, 65536, -2049]], dtype=np.float32)).update
    array([ 5.0000e-01,  6.5504e+04, -2.0480e+03], dtype=float32)
    >>> model.residual
    array([[ 0., 32., -1.]], dtype=float32)
    """

    name = "fp16"
    # PyTorch's ``fp16_compress_hook`` has no host synchronisation.
    overlaps = True
    paper = "Micikevicius et al., ICLR 2018, arXiv 1710.03740"
    costs = (fp16,)
    option_type = FP16Options
    options: FP16Options
    keeps_residual = True

    @property
    def conserves(self) -> bool:
        """Whether sums are not rounded."""
        return self.options.accumulation == "single"

    @property
    def wire(self) -> Wire:
        """What an entry takes on the wire: a value of two bytes, if no other width is given."""
        wire = super().wire
        return wire if self.options.value_bytes else replace(wire, value_bytes=wire.value_bytes / 2)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        form, n = self.options.format, self.parameters
        P = np.float32(self.workers)
        update, sent = np.zeros(n, dtype=np.float32), np.zeros(self.workers)
        for start in range(0, n, _BLOCK):
            total, rows = update[start : start + _BLOCK], corrected[:, start : start + _BLOCK]
            for worker, row in enumerate(rows):
                if self.conserves:
                    own = rounded(row, form)
                    total += own
                else:
                    share = rounded(np.clip(row, -LARGEST[form], LARGEST[form]) / P, form)
                    total[:] = rounded(total + share, form)
                    own = share * P
                sent[worker] += squared_norm(own)
                row -= own
        if self.conserves:
            update /= P
        cast, values = DeviceOp("cast", n), self._reduction(n * self.wire.value_bytes).in_phase("values")
        schedule, kernels = in_order(self.workers, cast, values, cast)
        return Exchange(
            update=update,
            schedule=schedule,
            selected=np.full(self.workers, n),
            kernels=kernels,
            union=n,
            sent=sent,
        )
