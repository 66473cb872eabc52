"""Dense: an all-reduce of the whole gradient, without selection or residual."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np

from simnet.base.quantities import Count
from simnet.collectives import registry
from simnet.cost_models.costs import fp16
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.codes import LARGEST, round_to_format
from simnet.sparsifier_models.options import AlgorithmOf, Options
from simnet.sparsifier_models.selection import Values, squared_norm, squared_norms
from simnet.sparsifier_models.wire import Wire


class DenseOptions(Options):
    """Options of `Dense`.

    Parameters
    ----------
    algorithm : str
        How the gradients are reduced: an all-reduce of `simnet.collectives.registry`.
    group_size : int
        Of ``hierarchical``: workers, consecutive, that reduce among themselves before their first ones do, >= 1.
    """

    algorithm: Annotated[str, AlgorithmOf("all_reduce", ("group_size",))] = "ring"
    group_size: Count = 8


class Dense(
    Sparsifier,
    fixed_volume=True,
    overlaps=True,
    sends_all=True,
    reads_gradients=False,
    keeps_residual=False,
    costs=tuple(one.cost for one in registry.built_in() if one.operation == "all_reduce" and one.cost is not None),
):
    """Dense all-reduce of all entries at any density; it also sends the residual that another scheme has left.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I.

    Examples
    --------
    >>> exchange = Dense(workers=2, parameters=3).exchange(np.array([[1, 2, 3], [3, 4, 5]], dtype=np.float32))
    >>> exchange.update, exchange.schedule.bytes_sent()
    (array([2., 3., 4.], dtype=float32), array([12., 12.]))
    """

    name = "dense"
    paper = "textbook all-reduce"
    options: DenseOptions

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        return self._make_exchange(
            np.add.reduce(corrected, axis=0) / np.float32(self.workers),
            [self._reduction(self.parameters * self.wire.value_bytes)],
            squared_norms(corrected),
        )

    def _reduction(self, nbytes: float) -> Schedule:
        """Return the all-reduce messages of a vector of `nbytes` bytes."""
        chosen = registry.collective_by_algorithm("all_reduce", self.options.algorithm)
        return chosen.schedule(self.workers, nbytes, **{name: getattr(self.options, name) for name in chosen.needs})


# Entries rounded at a time: they stay in the cache.
_BLOCK = 65536


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


class FP16(Dense, overlaps=True, keeps_residual=True, costs=(fp16,)):
    """Dense all-reduce in half precision. The density has no effect.

    A worker casts before its first message and back after the last one, which is assumed. With error feedback, the
    default, only rounding of sums in half precision is lost. Frameworks have no error feedback:
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
    paper = "Micikevicius et al., ICLR 2018, arXiv 1710.03740"
    options: FP16Options

    def _option_traits(self) -> dict[str, Any]:
        return {"conserves": self.options.accumulation == "single"}

    @property
    def wire(self) -> Wire:
        """Byte sizes of entries on the wire: two bytes per value unless an option sets another width."""
        wire = super().wire
        return wire if self.options.value_bytes else replace(wire, value_bytes=wire.value_bytes / 2)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        form, n = self.options.format, self.parameters
        P = np.float32(self.workers)
        update, sent = np.zeros(n, dtype=np.float32), np.zeros(self.workers)
        for start in range(0, n, _BLOCK):
            total, rows = update[start : start + _BLOCK], corrected[:, start : start + _BLOCK]
            for worker, row in enumerate(rows):
                if self.traits.conserves:
                    own = round_to_format(row, form)
                    total += own
                else:
                    share = round_to_format(np.clip(row, -LARGEST[form], LARGEST[form]) / P, form)
                    total[:] = round_to_format(total + share, form)
                    own = share * P
                sent[worker] += squared_norm(own)
                row -= own
        if self.traits.conserves:
            update /= P
        cast, values = DeviceOp("cast", n), self._reduction(n * self.wire.value_bytes).in_phase("values")
        return self._make_exchange(update, [cast, values, cast], sent)
