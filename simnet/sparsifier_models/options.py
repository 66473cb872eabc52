"""Options of schemes: names, defaults, allowed values, and checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

from simnet.base.errors import check_choice, check_int
from simnet.base.quantities import check_value
from simnet.collectives import registry
from simnet.cost_models.costs.encodings import IndexCode, ValueCode

T = TypeVar("T", bound="Options")
Layers: TypeAlias = Sequence[int] | Sequence[tuple[str, int | Sequence[int]]]


@dataclass(frozen=True)
class AlgorithmOf:
    """Constraint on an option, whose value must name an algorithm of a collective in `simnet.collectives.registry`.

    Parameters
    ----------
    operation : str
        Whose algorithms. Of all-gathers, those that take contributions of unequal size.
    options : tuple of str
        Parameters that the scheme can set; algorithms that need others are not allowed.
    """

    operation: registry.Operation
    options: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """Return the names of the allowed algorithms, built-in ones first."""
        return [one.algorithm for one in registry.all_collectives(self.operation) if not self._lacks(one)]

    def check(self, option: str, name: object) -> None:
        """Raise ValueError, with the reason, if `option` may not have the value `name`."""
        found = registry.find_collective(self.operation, name) if isinstance(name, str) else None
        if found is None:
            raise registry.unknown_collective(option, name, self.names())
        if lacks := self._lacks(found):
            raise ValueError(f"{option} {name!r} cannot be used by schemes: {found.name} {lacks}")

    def _lacks(self, one: registry.Collective) -> str:
        if one.varying is None and self.operation == "all_gather":
            return "has no `varying`, a schedule for contributions of unequal size"
        needs = [name for name in one.needs if name not in self.options]
        return f"needs {', '.join(needs)}" if needs else ""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Return the JSON schema with the allowed algorithm names as its enum."""
        return {**handler(core), "enum": self.names()}


Allreduce: TypeAlias = Annotated[str, AlgorithmOf("all_reduce")]
"""Type of an option: the name of an all-reduce algorithm."""

Allgather: TypeAlias = Annotated[str, AlgorithmOf("all_gather")]
"""Type of an option: the name of an all-gather algorithm."""

Positive: TypeAlias = Annotated[float, Gt(0), Le(3.4028234663852886e38)]
"""Type of an option: a number > 0 of float32."""

Width: TypeAlias = Annotated[float, Gt(0), Le(1000)]
"""Type of an option: the number of bytes of a value or an index."""


Decay: TypeAlias = Annotated[float, Gt(0), Le(1)]
"""Type of an option: a factor in (0, 1]."""

Beta: TypeAlias = Annotated[float, Ge(0), Lt(1)]
"""Type of an option: a factor in [0, 1)."""


class _Frozen:
    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")


FROM_JOB = ("layers", "scale", "seed", "shapes", "true_shapes")
"""Options that the job or the shapes of its layers decide, not the user."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Options(_Frozen):
    """Options common to all schemes; the options of a scheme derive from this class.

    A field annotated with a `Literal` takes the values listed there, one annotated with `Allreduce` or `Allgather` the
    collectives that there are, one annotated with bool, int, str or a sequence such values; with float it takes what
    float32 can hold, as a float. Marks such as those of `simnet.base.quantities.Count` and `Positive` bound a number.

    Parameters
    ----------
    error_feedback : bool
        Whether a worker keeps what it did not send and adds it to its next gradient.
    wire : {"paper", "released"}
        Which messages travel. ``paper``: float32 values and int32 indices, nothing else. ``released``: as the released
        code sends them, with int64 indices, values and indices apart, and messages about messages.
    value_bytes, index_bytes : float
        Width of a value and of an index, > 0 and at most 1000. If not given, 4 each, and on the wire ``released`` those
        of the reference implementation, in most an index of 8.
    indices, values : str, optional
        How indices and values are encoded, on the wire ``paper`` of schemes that send both, or one of them: see
        `simnet.cost_models.costs.encodings` and `simnet.sparsifier_models.codes.read_back`. If one is given, the other
        is ``int32`` or ``float32``, which have the bytes of the default. Not together with `value_bytes` or
        `index_bytes`, which say widths and change no number.
    compat : {"paper", "released"}
        Which numbers result: those of the paper, or those of the reference implementation where that differs, bugs
        included.
    seed : int
        Seed of whatever the scheme draws, >= 0.
    layers : sequence of int, of (str, int) or of (str, (int, int))
        Sizes, or names and sizes, of the layers in the order of the gradient; of a matrix, rows and columns in place of
        its size. Needed by schemes that work on layers; for others they make an error name the layer.
    true_shapes : sequence of int or of (int, int)
        Shapes of the tensors of the model that the layers are samples of, in the order of the gradient, at a ``scale``
        other than 1. Needed by schemes that cut tensors into blocks; others do without.
    scale : float
        Entries of the model that each entry stands for, > 0: the logic runs on a sample of the gradient, while the
        bytes of values and indices, and the entries that kernels go through, count for all of it. Messages of fixed
        size, such as a norm or a count, do not grow.

    Examples
    --------
    >>> Options(wire="relesed")
    Traceback (most recent call last):
    ValueError: there is no wire 'relesed': did you mean 'released'? Allowed: paper, released
    """

    error_feedback: bool = True
    wire: Literal["paper", "released"] = "paper"
    value_bytes: Width | None = None
    index_bytes: Width | None = None
    indices: IndexCode | None = None
    values: ValueCode | None = None
    compat: Literal["paper", "released"] = "paper"
    seed: Annotated[int, Ge(0)] = 0
    layers: Layers = ()
    true_shapes: Sequence[int | Sequence[int]] = ()
    scale: Positive = 1.0

    def __init_subclass__(cls) -> None:
        """Turn each subclass into a frozen dataclass with keyword-only fields, whether decorated or not."""
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        for name in ("__setattr__", "__delattr__"):
            delattr(cls, name)

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, hint in _option_hints(own).items():
            object.__setattr__(self, name, check_value(getattr(self, name), hint, name))
        for name in ("indices", "values"):
            if getattr(self, name) is None:
                continue
            if self.wire == "released":
                raise ValueError(f"{name} must not be given on the wire 'released', which is what released codes send")
            for width in ("value_bytes", "index_bytes"):
                if getattr(self, width) is not None:
                    raise ValueError(f"{name} and {width} must not both be given, as both say how wide entries are")


class BufferOptions(Options):
    """Options of schemes that weight the error buffer and the gradient when they add them.

    Parameters
    ----------
    decay : float
        What the residual counts for when a gradient is added to it, in (0, 1].
    gain : float
        What the gradient counts for, > 0. Released codes have their learning rate here.
    """

    decay: Decay = 1.0
    gain: Positive = 1.0


@cache
def _option_hints(option_type: type) -> dict[str, Any]:
    return get_type_hints(option_type, include_extras=True)


def option_words(hint: Any) -> Sequence[str]:
    """Return the words that an option allows by its annotation; empty if the option is not a choice of words."""
    if get_origin(hint) is Annotated:
        return [name for mark in get_args(hint) if isinstance(mark, AlgorithmOf) for name in mark.names()]
    return get_args(hint) if get_origin(hint) is Literal else ()


def option_values(option_type: type[T], given: Mapping[str, Any]) -> T:
    """Return a scheme's options with the given values; raise ValueError for unknown names and for invalid values."""
    known = [one.name for one in dataclasses.fields(option_type)]
    for name in given:
        check_choice(name, "option", known)
    return option_type(**given)


def named_shapes(layers: Layers, parameters: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each layer's name and shape; unnamed layers are ``layer 0``, ``layer 1``, ...

    A layer with only a size is a vector. ValueError: a length is not a whole number >= 1, a shape has not one or two
    lengths, or the sizes do not add up to `parameters`.
    """
    if not isinstance(layers, list | tuple):
        raise ValueError(f"layers must be a list of sizes, got {layers!r}")
    named = []
    for index, one in enumerate(layers):
        named_pair = isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], str)
        name, given = one if named_pair else (f"layer {index}", one)
        named.append((name, _read_shape(given if named_pair else check_int(given, f"size of {name}", 1), name)))
    total = sum(math.prod(shape) for _, shape in named)
    if named and total != parameters:
        raise ValueError(f"layers add up to {total} parameters, but there are {parameters}")
    return tuple(named)


def _read_shape(given: int | Sequence[int], name: str) -> tuple[int, ...]:
    """Return a shape of one or two axes as given in options; raise ValueError for any other."""
    if not isinstance(given, tuple | list):
        return (check_int(given, f"size of {name}", 1),)
    if len(given) not in (1, 2):
        raise ValueError(f"shape of {name} must be one or two lengths, rows and columns, got {given!r:.100}")
    return tuple(check_int(length, f"a length of {name}", 1) for length in given)


def checked_shapes(true_shapes: Sequence[int | Sequence[int]], layers: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the full tensors that the layers are samples of; empty if none are given.

    Raises ValueError if there are not as many as `layers`, or a shape has not one or two lengths >= 1.
    """
    if not true_shapes:
        return ()
    if len(true_shapes) != layers:
        raise ValueError(f"true_shapes must be one for each of {layers} layers, got {len(true_shapes)}")
    return tuple(_read_shape(one, f"tensor {index}") for index, one in enumerate(true_shapes))


def named_layers(layers: Layers, parameters: int) -> tuple[tuple[str, int], ...]:
    """Return each layer's name and number of entries; unnamed layers are ``layer 0``, ``layer 1``, ..."""
    return tuple((name, math.prod(shape)) for name, shape in named_shapes(layers, parameters))
