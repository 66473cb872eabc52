"""Units of sharding (tensors gathered and reduced together), and models given as lists of units."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice, check_int
from simnet.base.quantities import check_fields
from simnet.cost_models.costs.models import ComputeTime, Layer, ModelProfile

# Names of blocks end at the first part that is a number: a dot or _ in a name would let it end too early.
UNIT_NAME = r"[A-Za-z][A-Za-z0-9-]{0,39}"
"""Regular expression of valid unit names."""


def unit_name(name: str) -> str:
    """Return the name of a unit; raise ValueError if the name is not allowed."""
    if not re.fullmatch(UNIT_NAME, name):
        raise ValueError(f"must be a letter and up to 39 letters, digits or - behind it, got {name!r}")
    return name


class ListedUnit(NamedTuple):
    """One block of a listed model: name, parameter count, work of a pass [s or operations], and repeat count."""

    name: str
    parameters: int
    work: float
    times: int = 1


def profile_of_units(units: Sequence[ListedUnit]) -> ModelProfile:
    """Return the profile of a model that is given as a list of units, in forward order."""
    found = [(number, one) for one in units for number in range(one.times)]
    layers = [Layer(f"{one.name}.{number}.weight", (one.parameters,)) for number, one in found]
    work = tuple(float(one.work) for _, one in found)
    if not sum(work) > 0:
        raise ValueError("no unit takes any time")
    times = (ComputeTime(math.fsum(work), 1, "its units", measured=False),)
    return ModelProfile("a model of units", tuple(check_layers(layers)), times, "a list of units", work=work)


class PassShares:
    """Time of a pass divided among tensors, given their `sizes` in entries and their `work`, in forward order."""

    def __init__(self, sizes: Sequence[int], work: Sequence[float]) -> None:
        self._ends: Floats = np.cumsum([0.0, *sizes])
        self._done: Floats = np.cumsum([0.0, *work]) / sum(work)

    def share(self, passed: int, elements: int, *, backward: bool) -> float:
        """Return the share of a pass's time for `elements` entries that follow the first `passed` entries."""
        ends = np.array([passed, passed + elements], dtype=np.float64)
        if backward:
            ends = self._ends[-1] - ends[::-1]
        first, last = np.interp(ends, self._ends, self._done)
        return float(last - first)


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "uint8": 1, "int8": 1}
"""Bytes per element of each dtype, by PyTorch's names."""

ParameterDtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
"""Dtypes of parameters and gradients."""

# A block's number is a word of its own, or stands behind an underscore: "h.0", "encoder_layer_0", "layer1.0".
_BLOCK = re.compile(r"(.*?[._]\d+)\.")


class Unit(NamedTuple):
    """Tensors whose parameters one call gathers, and whose gradients one call reduces."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        """Number of entries of all tensors in the unit."""
        return sum(layer.size for layer in self.layers)

    def shard(self, ranks: int) -> int:
        """Return the entries of one rank's shard. Each tensor is padded and split along its first dimension."""
        return sum(-(-layer.shape[0] // ranks) * (layer.size // layer.shape[0]) for layer in self.layers)


@dataclass(frozen=True)
class Units:
    """Units of a wrapped model: one unit per block, and a root unit whose first `before` entries precede the blocks."""

    blocks: tuple[Unit, ...]
    root: Unit
    before: int

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All tensors of the model, those of the root unit first."""
        return (*self.root.layers, *(layer for block in self.blocks for layer in block.layers))

    @property
    def size(self) -> int:
        """Number of entries of the whole model."""
        return sum(layer.size for layer in self.layers)


def wrap_units(layers: Iterable[Layer], *, behind: Collection[str] = ()) -> Units:
    """Return a model's tensors in units: a unit per block, and a root unit for all other tensors.

    A tensor belongs to the block named by the prefix of its name up to the first number, as in ``h.0.attn.weight``.
    Root tensors listed in `behind` are used after the blocks although they come first.
    """
    of_block: dict[str, list[Layer]] = {}
    root: list[Layer] = []
    before = 0
    for layer in check_layers(layers):
        found = _BLOCK.match(layer.name)
        if found is not None:
            of_block.setdefault(found[1], []).append(layer)
            continue
        root.append(layer)
        if not of_block and layer.name not in behind:
            before += layer.size
    names = [layer.name for layer in root]
    for name in behind:
        check_choice(name, "behind", names)
    return Units(tuple(Unit(name, tuple(of)) for name, of in of_block.items()), Unit("root", tuple(root)), before)


def wrap_modules(layers: Iterable[Layer]) -> tuple[Unit, ...]:
    """Return a model's tensors as a unit per module, in model order."""
    of: dict[str, list[Layer]] = {}
    for layer in check_layers(layers):
        of.setdefault(layer.name.rpartition(".")[0], []).append(layer)
    return tuple(Unit(name, tuple(found)) for name, found in of.items())


def check_layers(layers: Iterable[Layer]) -> Sequence[Layer]:
    """Return a model's tensors. ValueError: there are none, or a tensor is empty or named twice."""
    found = list(layers)
    if not found:
        raise ValueError("a model needs at least one tensor")
    seen: set[str] = set()
    for layer in found:
        if not layer.shape:
            raise ValueError(f"tensor {layer.name!r} has no dimension: a single number cannot be sharded")
        for length in layer.shape:
            check_int(length, f"a length of tensor {layer.name!r}", 1)
        if layer.name in seen:
            raise ValueError(f"there are two tensors {layer.name!r}")
        seen.add(layer.name)
    return found


@dataclass(frozen=True)
class CheckedOptions:
    """Base class of step options. ValueError: a value does not have the type that the field's annotation states."""

    def __post_init__(self) -> None:
        check_fields(self)
