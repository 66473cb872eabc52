"""LoCo: the two hops of qgZ, with a memory of what rounding took before each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from simnet.base.quantities import Count
from simnet.costs import two_hop_reduce
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import State, checked_part
from simnet.sparsifier_models.group_codes import SCALE_BYTES, GroupCodes, halves, nearest
from simnet.sparsifier_models.qgz import BITS, QGZ
from simnet.sparsifier_models.steps import Step
from simnet.sparsifier_models.two_hop import TwoHopOptions

_MEMORY_BITS = 8


@dataclass(frozen=True, kw_only=True)
class LoCoOptions(TwoHopOptions):
    """Options of `LoCo`.

    Parameters
    ----------
    err_beta : float
        Share of the memory that stays, in [0, 1].
    reset_T : int
        After how many exchanges the memories are cleared; see `LoCo` for what the released code makes of it.
    """

    err_beta: Annotated[float, Ge(0), Le(1)] = 0.8
    reset_T: Count = 1024  # noqa: N815

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.err_beta <= 1:
            raise ValueError(f"err_beta must be in 0..1, got {self.err_beta!r}")


class LoCo(QGZ):
    """LoCo of four bits. What is quantised, and how, is that of `QGZ`.

    A rank adds its memory e to what it sends, h = g + e, and keeps e <- beta e + (1 - beta) (h - what h became). The
    second hop has a memory of its own. Memories are codes of eight bits, in the groups of what is sent, and in its
    order: that of `simnet.sparsifier_models.two_hop.Nodes.swizzled`. They follow the error and do not make up for all
    of it, so that no mass is conserved. Without ``error_feedback`` this is qgZ.

    All memories are cleared every ``reset_T`` exchanges, as documented. With ``compat="released"`` a counter, one for
    all, goes up with every quantised tensor, and when it exceeds ``reset_T`` only the tensor at hand is cleared and the
    counter starts again; the update is L times the mean, as that of `QGZ`. That a loss scale changes memories is not
    modelled: nothing overflows here.

    References
    ----------
    X. Xie, Z. Lin, K.-C. Toh, P. Zhou, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024; code
    deepspeedai/DeepSpeed, commit edaa722, ``runtime/comm/coalesced_collectives.py``, ``csrc/quantization``.

    Examples
    --------
    Four bits lose some of the sum of ten gradients, and with memory less:

    >>> gradients = np.random.default_rng(0).standard_normal((4, 6144)).astype(np.float32)
    >>> for beta in (1.0, 0.8):
    ...     model = LoCo(workers=4, parameters=6144, layers=[("w", (64, 96))], ranks_per_node=2, err_beta=beta)
    ...     applied = sum(model.exchange(gradients).update for _ in range(10))
    ...     print(round(float(np.abs(applied - 10 * gradients.mean(0)).mean()), 2))
    0.57
    0.17
    """

    name = "loco"
    paper = "Xie et al., 2024, arXiv 2407.04480"
    costs = (two_hop_reduce,)
    option_type = LoCoOptions
    options: LoCoOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        kept = [one if one.groups else one._replace(entries=0) for one in self.tensors]
        # Where the memories of each tensor end: those of the first hop, and their groups.
        self._ends: list[int] = list(accumulate([0, *(one.entries for one in kept)]))
        self._group_ends: list[int] = list(accumulate([0, *(one.groups for one in kept)]))
        each = self.nodes.each
        self._memory: State = {
            "first": np.zeros((workers, self._ends[-1]), dtype=np.int8),
            "first_scales": np.ones((workers, self._group_ends[-1]), dtype=np.float32),
            "second": np.zeros((workers, self._ends[-1] // each), dtype=np.int8),
            "second_scales": np.ones((workers, self._group_ends[-1] // each), dtype=np.float32),
        }
        self.counter = 0
        # Which tensors have been exchanged: the first time, the counter starts with them.
        self._begun = False

    def memory(self, hop: int, number: int, rank: int) -> GroupCodes:
        """Return the memory of a rank for a quantised tensor, in the order in which it sends it in hop 1 or 2."""
        codes, inverses = (self._memory[name][rank, place] for name, place in self._places(hop, number))
        return GroupCodes(codes.reshape(inverses.size, -1), inverses)

    def _places(self, hop: int, number: int) -> list[tuple[str, slice]]:
        """Return where codes and scales of a memory lie."""
        name, each = ("first", 1) if hop == 1 else ("second", self.nodes.each)
        return [
            (key, slice(ends[number] // each, ends[number + 1] // each))
            for key, ends in ((name, self._ends), (f"{name}_scales", self._group_ends))
        ]

    def _begin(self) -> None:
        self._memory = {name: array.copy() for name, array in self._memory.items()}
        if self.options.compat == "released":
            for number, tensor in enumerate(self.tensors):
                if not tensor.groups:
                    continue
                if not self._begun or self.counter > self.options.reset_T:
                    self.counter = 0
                    self._clear(number)
                self.counter += 1
        else:
            if self.counter == self.options.reset_T:
                self.counter = 0
                for number in range(len(self.tensors)):
                    self._clear(number)
            self.counter += 1
        self._begun = True

    def _clear(self, number: int) -> None:
        for hop in (1, 2):
            codes, scales = self._places(hop, number)
            self._memory[codes[0]][:, codes[1]] = 0
            self._memory[scales[0]][:, scales[1]] = 1

    def _first(self, rank: int, number: int, groups: NDArray[np.float16]) -> GroupCodes:
        return self._remembering(1, rank, number, groups)

    def _second(self, rank: int, number: int, groups: NDArray[np.float16]) -> GroupCodes:
        return self._remembering(2, rank, number, groups)

    def _remembering(self, hop: int, rank: int, number: int, groups: NDArray[np.float16]) -> GroupCodes:
        """Return what is sent of groups and their memory, and remember what that lacks."""
        if not self.options.error_feedback:
            return nearest(groups, BITS)
        before = halves(self.memory(hop, number, rank).values())
        # Sums in single precision, rounded once, are those in half precision.
        h = halves(np.add(groups, before, dtype=np.float32))
        sent = nearest(h, BITS)
        error = halves(np.subtract(h, halves(sent.values()), dtype=np.float32))
        beta = np.float32(self.options.err_beta)
        after = beta * before.astype(np.float32) + (1 - beta) * error.astype(np.float32)
        kept = nearest(halves(after), _MEMORY_BITS)
        (codes, entries), (scales, some) = self._places(hop, number)
        self._memory[codes][rank, entries] = kept.codes.ravel()
        self._memory[scales][rank, some] = kept.inverses
        return sent

    def _quantise(self, entries: float) -> Iterator[Step]:
        """Yield what it takes to quantise so many entries, and to remember."""
        yield from (DeviceOp(one, entries) for one in ("sum", "cast", "sum", "cast"))

    # State

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes that a worker holds between exchanges; memories are those of the tensors of the model."""
        if not self.options.error_feedback:
            return {}
        quantised = [one for one in self._whole if one.groups]
        entries, scales = sum(one.entries for one in quantised), SCALE_BYTES * sum(one.groups for one in quantised)
        first = {"first": entries, "first_scales": scales}
        return first | {f"second{name[5:]}": nbytes / self.nodes.each for name, nbytes in first.items()}

    def _own_state(self) -> State:
        return {"counter": np.array(self.counter), "begun": np.array(self._begun), **self._memory}

    def _restore_own(self, state: State) -> None:
        counter = checked_part(state, "counter", np.int64, (), 0).item()
        begun = bool(checked_part(state, "begun", np.bool_, ()))
        memory: State = {}
        for name, array in self._memory.items():
            least = 0 if name.endswith("scales") else -np.inf
            memory[name] = checked_part(state, name, array.dtype.type, array.shape, least)
        self.counter, self._begun, self._memory = counter, begun, memory
