"""What a scenario may say: one class per part, in the order in which people read it.

Times, sizes and rates are texts with a unit and arrive here in seconds, bytes and bytes per second. Where there is a
choice of kinds, the kind is the key: ``topology: {star: {...}}``. Written out again, every default is spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from simnet import units
from simnet.policies import Aggregate


def _written(value: float, read: Callable[[units.Quantity], float], scales: Iterable[tuple[str, float]]) -> str:
    """Return a quantity as text that reads back as exactly the same number."""
    for unit, scale in scales:
        text = f"{value / scale:.12g} {unit}"
        if 1 <= value / scale < 1000 and "e" not in text and read(text) == value:
            return text
    return f"{value!r} {next(iter(scales))[0]}"


_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_SIZES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
_RATES = (("B/s", 1.0), ("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5), ("kbit/s", 125.0), ("Tbit/s", 1.25e11))


def _schema(description: str, *examples: str, number: bool = False) -> WithJsonSchema:
    kind: str | list[str] = ["string", "number"] if number else "string"
    return WithJsonSchema({"type": kind, "description": description, "examples": list(examples)})


def _positive(value: float) -> float:
    if not value > 0:
        raise ValueError("must be > 0, got 0")
    return value


def _fraction(value: object) -> object:
    """Read ``10 %`` as 0.1; leave numbers alone."""
    if not isinstance(value, str):
        return value
    number, percent, rest = value.partition("%")
    try:
        if percent and not rest.strip():
            # Division, unlike multiplication by 0.01, gives the float nearest to the decimal number meant.
            return float(number) / 100
    except ValueError:
        pass
    raise ValueError(f"must be a number or a percentage such as '10 %', got {value!r}")


def _file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be the name of a file")
    return value


Seconds: TypeAlias = Annotated[
    float,
    BeforeValidator(units.seconds),
    PlainSerializer(lambda value: _written(value, units.seconds, _TIMES)),
    _schema("time with unit", "10 ms", "50 us", "1.5 h"),
]
Size: TypeAlias = Annotated[
    float,
    BeforeValidator(units.size),
    PlainSerializer(lambda value: _written(value, units.size, _SIZES)),
    _schema("amount of data with unit", "64 MiB", "1500 B"),
]
Rate: TypeAlias = Annotated[
    float,
    BeforeValidator(units.bandwidth),
    PlainSerializer(lambda value: _written(value, units.bandwidth, _RATES)),
    _schema("bandwidth with unit", "25 Gbit/s", "100 MB/s"),
]
Positive = AfterValidator(_positive)
Percent = BeforeValidator(_fraction)

Factor: TypeAlias = Annotated[float, Percent, Field(ge=0), _schema("factor", "0.5", "50 %", number=True)]
Probability: TypeAlias = Annotated[
    float, Percent, Field(ge=0, le=1), _schema("probability or share, 0 to 1", "2 %", number=True)
]
Density: TypeAlias = Annotated[
    float, Percent, Field(gt=0, le=1), _schema("fraction of the entries kept, above 0, at most 1", "1 %", number=True)
]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Host: TypeAlias = Annotated[int, Field(ge=0)]
Label: TypeAlias = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[^\s\x00-\x1f](?:[^\x00-\x1f]*[^\s\x00-\x1f])?$")]
File: TypeAlias = Annotated[str, AfterValidator(_file)]

Q = TypeVar("Q", bound=float)


class Part(BaseModel):
    """A mapping with fixed fields."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        validate_default=False,
        hide_input_in_errors=True,
    )


class OneOf(Part):
    """A mapping with exactly one of its fields: the key says of what kind the part is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        """Let a kind without parameters stand alone, as in ``gradients: {synthetic: }``."""
        return {key: {} if one is None else one for key, one in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> OneOf:
        allowed = ", ".join(_names(type(self)))
        if not self.model_fields_set:
            raise ValueError(f"needs one of {allowed}")
        if len(self.model_fields_set) > 1:
            found = " and ".join(name for name in _names(type(self)) if name in self.model_fields_set)
            raise ValueError(f"takes exactly one of {allowed}, got {found}")
        return self


def _names(part: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in part.model_fields.items()]
