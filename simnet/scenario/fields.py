"""The fields of a scenario: quantities with their units, fractions, names, and the two kinds of mappings.

Times, sizes and rates are texts with a unit and arrive as seconds, bytes and bytes per second. Written out again, they
read back as exactly the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from simnet.base import units

MAX_ITERATIONS = 10_000_000
"""The longest job."""

TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
SIZES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
RATES = (("B/s", 1.0), ("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5), ("kbit/s", 125.0), ("Tbit/s", 1.25e11))


def written(value: float, read: Callable[[units.Quantity], float], scales: Sequence[tuple[str, float]]) -> str:
    """Return a quantity as text that reads back as exactly the same number."""
    if value == 0:
        return f"0 {scales[0][0]}"
    for unit, scale in scales:
        text = f"{value / scale:.12g} {unit}"
        if 1 <= value / scale < 1000 and read(text) == value:
            return text
    return f"{value!r} {scales[0][0]}"


def described(description: str, *examples: str, **more: float | str) -> WithJsonSchema:
    """Describe a quantity: a text or 0, or with bounds (``minimum``, ...) a text or any number within them."""
    number = {"type": "number", **more} if more else {"const": 0}
    return WithJsonSchema(
        {"anyOf": [{"type": "string"}, number], "description": description, "examples": list(examples)}
    )


def _fraction(value: object) -> object:
    """Read ``10 %`` as 0.1; leave numbers alone."""
    if not isinstance(value, str):
        return value
    if "%" in value:
        return units.fraction(value)
    raise ValueError(f"must be a number or a percentage such as '10 %', got {value!r}")


def _density(value: float) -> float:
    # A ramp from 1 to less would end at 0 for rounding.
    if value < 1e-12:
        raise ValueError(f"must be at least 1e-12, got {value:g}")
    return value


def _file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be the name of a file")
    return value


def _label(value: str) -> str:
    if not 0 < len(value) <= 40 or not value.isprintable() or value != value.strip():
        raise ValueError(f"must be a name of 1 to 40 characters, got {value[:45]!r}")
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9 ._+-]{0,39}", value) or value != value.strip():
        raise ValueError(f"must be 1 to 40 letters, digits, blanks or ._+-, got {value[:45]!r}")
    return value


def _iterations(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})? epochs?", value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ITERATIONS:
        return value
    raise ValueError(
        f"must be a whole number from 1 to {MAX_ITERATIONS:,}, or epochs such as '2 epochs', got {value!r:.60}"
    )


Seconds: TypeAlias = Annotated[
    float,
    BeforeValidator(units.seconds),
    Field(le=1e12),
    PlainSerializer(lambda value: written(value, units.seconds, TIMES)),
    described("time with unit", "10 ms", "50 us", "1.5 h"),
]
Size: TypeAlias = Annotated[
    float,
    BeforeValidator(units.size),
    Field(le=1e18),
    PlainSerializer(lambda value: written(value, units.size, SIZES)),
    described("amount of data with unit", "64 MiB", "1500 B"),
]
Rate: TypeAlias = Annotated[
    float,
    BeforeValidator(units.bandwidth),
    Field(le=1e18),
    PlainSerializer(lambda value: written(value, units.bandwidth, RATES)),
    described("bandwidth with unit", "25 Gbit/s", "100 MB/s"),
]
Factor: TypeAlias = Annotated[
    float, BeforeValidator(_fraction), Field(ge=0, le=1e6), described("factor", "50 %", minimum=0, maximum=1e6)
]
Spread: TypeAlias = Annotated[
    float,
    BeforeValidator(_fraction),
    Field(ge=0, le=5),
    described("standard deviation of a logarithm: 0.1 is about 10 %", "10 %", minimum=0, maximum=5),
]
Share: TypeAlias = Annotated[
    float, BeforeValidator(_fraction), Field(ge=0, le=1), described("probability or share", "2 %", minimum=0, maximum=1)
]
Density: TypeAlias = Annotated[
    float,
    BeforeValidator(_fraction),
    Field(gt=0, le=1),
    AfterValidator(_density),
    described("fraction of the entries kept", "1 %", exclusiveMinimum=0, maximum=1),
]
Slowdown: TypeAlias = Annotated[float, Field(gt=0, le=1e6)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Iterations: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_iterations),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "examples": [300, "2 epochs"]}),
]
"""A number, or a text such as ``2 epochs``, which a resolved scenario does not have any more."""
Host: TypeAlias = Annotated[int, Field(ge=0)]
Label: TypeAlias = Annotated[str, AfterValidator(_label)]
FileName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
File: TypeAlias = Annotated[str, AfterValidator(_file)]

POSITIVE = Field(gt=0)


class Part(BaseModel):
    """A mapping with fixed fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True)


class OneOf(Part):
    """A mapping with exactly one of its fields: the key says of what kind the part is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        """Let a kind without parameters stand alone, as in ``gradients: {synthetic: }``."""
        return {key: {} if one is None else one for key, one in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        exactly_one(self, field_names(type(self)))
        return self

    @property
    def choice(self) -> tuple[str, Any]:
        """The kind and its parameters."""
        return next((kind, part) for kind, part in self if part is not None)


def field_names(part: type[BaseModel]) -> list[str]:
    """Return the fields of a part as people write them."""
    return [field.alias or name for name, field in part.model_fields.items()]


def either(**kinds: str) -> Discriminator:
    """Choose between kinds of values by the type of what is given: `scalar`, `list` or `mapping` to a tag.

    Tags are written in angle brackets, so that no error takes them for fields.
    """

    def tag(value: object) -> str:
        kind = "list" if isinstance(value, list) else "mapping" if isinstance(value, dict | BaseModel) else "scalar"
        return kinds.get(kind) or next(iter(kinds.values()))

    return Discriminator(tag)


def exactly_one(part: BaseModel, names: Sequence[str]) -> None:
    """Raise ValueError unless exactly one of some fields is given."""
    found = [name for name in names if getattr(part, name) is not None]
    if not found:
        raise ValueError(f"needs one of {', '.join(names)}")
    if len(found) > 1:
        raise ValueError(f"takes only one of {', '.join(names)}, got {' and '.join(found)}")
