"""Grid of a sweep: its axes, the scenario fields that they set, and its cells.

A parameter is ``FIELD=VALUES``: values in YAML with commas between, or ranges ``lo:hi:n`` and ``lo:hi:n:log``. A number
without a unit takes that of the next value that has one, so ``1,5,10 Gbit/s`` are three bandwidths.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from simnet.base import units
from simnet.base.errors import InputError
from simnet.scenario import Scenario, load
from simnet.scenario.finding import Source
from simnet.scenario.marked_fields import overrides_of
from simnet.scenario.settings import full_key

MAX_CELLS = 1_000
"""Maximum cells of a grid that runs without ``--force``."""

MOST_CELLS = 1_000_000
"""Maximum cells of any grid."""

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_UNIT = r"(?:%|[A-Za-z\u00b5\u03bc]+(?: ?/ ?[A-Za-z\u00b5\u03bc]+)?)"
_VALUE = re.compile(rf"({_NUMBER})\s*({_UNIT})?")
_RANGE = re.compile(
    rf"({_NUMBER})\s*({_UNIT})?\s*:\s*({_NUMBER})\s*({_UNIT})?\s*:\s*([0-9]{{1,9}})\s*(?::\s*(lin|log)(?:\s+({_UNIT}))?)?"
)
_QUOTED, _QUOTE = re.compile(r"""((?:^|[\[{,:])\s*)(?:'[^']*'|"[^"]*")"""), re.compile(r"""(?:^|[\[{,:])\s*['"]""")
# Marked fields that set several fields, or in words of their own.
_MARKED = ("network", "schemes", "strategy", "sharding", "gradients")
_KINDS: Mapping[str, tuple[str, Callable[[units.Quantity], float], Callable[[float], str]]] = {
    "s": ("s", units.seconds, units.format_seconds),
    "B": ("B", units.size, units.format_bytes),
    "Bps": ("B/s", units.bandwidth, units.format_bandwidth),
}
_DIGITS = 12
_MOST_CHECKED = 100


class GridAxis(NamedTuple):
    """Axis of a sweep: a scenario field, by the name that the user gave, and its values as YAML texts."""

    name: str
    values: tuple[str, ...]


class GridCell(NamedTuple):
    """Cell of a grid: its index, its value on each axis, and the overrides of the scenario."""

    number: int
    values: tuple[str, ...]
    overrides: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.overrides)


class AxisColumn(NamedTuple):
    """Values of an axis in each cell: texts, or numbers in SI units (names end in ``_s``, ``_B``, ``_Bps``)."""

    name: str
    values: list[int | float] | list[str]
    # In place of what the name says.
    label: str = ""

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers rather than texts."""
        return not isinstance(self.values[0], str)

    @property
    def is_seed(self) -> bool:
        """Whether the axis varies the seed."""
        return self.name.rpartition(".")[2] == "seed"

    @property
    def is_density(self) -> bool:
        """Whether the values are densities, which answers show in percent."""
        return self.numeric and self.heading == "density"

    @property
    def unit(self) -> str:
        """Unit at the end of the name, ``s``, ``B`` or ``Bps``; empty if the values have no unit."""
        end = self.name.rpartition("_")[2]
        return end if self.numeric and end in _KINDS else ""

    @property
    def heading(self) -> str:
        """Last part of the field's name, without its unit."""
        return self.label or self.name.removesuffix(f"_{self.unit}").rpartition(".")[2].replace("_", " ")

    def text(self, value: Any) -> str:
        """Return a value as text with its unit.

        Examples
        --------
        >>> AxisColumn("density", [0.001, 0.01]).text(0.001), AxisColumn("bandwidth_Bps", [125e6]).text(125e6)
        ('0.1 %', '1 Gbit/s')
        """
        if isinstance(value, str) or self.unit:
            return value if isinstance(value, str) else _KINDS[self.unit][2](value)
        if self.is_density:
            return f"{100 * value:.3g} %"
        return f"{value:.3g}" if value < 1000 else f"{value:g}"


def moving_together(text: str) -> list[GridAxis]:
    """Return the axes in a ``--grid`` text: one field, or several fields that vary together.

    Examples
    --------
    >>> [one.values for one in moving_together("workers=4,8; bandwidth=1,2Gbit/s")]
    [('4', '8'), ('1 Gbit/s', '2Gbit/s')]
    """
    found = [axis(one) for one in _split_pieces(text, _option(text), ";")]
    if len({len(one.values) for one in found}) > 1:
        listed = ", ".join(f"{one.name} has {len(one.values)}" for one in found)
        raise InputError(f"needs fields with equally many values; {listed}", file=_option(text))
    return found


def _option(text: str) -> str:
    return f"--grid {text}" if len(text) <= 100 else f"--grid {text[:97]}..."


def axis(text: str, limit: int = MOST_CELLS) -> GridAxis:
    """Return the axis that the text ``NAME=VALUES`` describes.

    Examples
    --------
    >>> axis("network.bandwidth=1,5,10Gbit/s").values, axis("density=0.001:0.1:3:log, 0.5").values
    (('1 Gbit/s', '5 Gbit/s', '10Gbit/s'), ('0.001', '0.01', '0.1', '0.5'))
    """
    option = _option(text)
    name, equals, given = text.partition("=")
    name = name.strip()
    pieces = [piece.strip() for piece in _split_pieces(given, option)]
    if not equals or not name or not all(pieces):
        raise InputError("must be KEY=VALUES, e.g. --grid bandwidth=1,5,10Gbit/s", file=option)
    values: list[str] = []
    for piece in _with_units(pieces, option):
        found = _RANGE.fullmatch(piece)
        more = [piece] if found is None else _range_values(found, limit, option)
        if len(values) + len(more) > limit:
            raise InputError(f"has more than {limit:,} values", file=option)
        values += more
    return GridAxis(name, tuple(values))


def grid_cells(source: Source, base: Scenario, groups: Sequence[Sequence[GridAxis]]) -> list[GridCell]:
    """Return the cells for all combinations of the groups of axes. The last group varies fastest."""
    axes = [one for group in groups for one in group]
    # A value that is a mapping, or a network, may make the fields that other parameters are about.
    makes = [one.name in _MARKED or any(value.startswith("{") for value in one.values) for one in axes]
    first = sorted(range(len(axes)), key=lambda one: not makes[one])

    @lru_cache(maxsize=256)
    def meant(name: str, before: tuple[str, ...]) -> str:
        if not before:
            return full_key(name, base, "--grid")
        try:
            loaded = load(source.path, [*source.overrides, *before])
        except InputError:
            # The cell itself will say what is wrong with it.
            loaded = base
        return full_key(name, loaded, "--grid")

    found: dict[tuple[str, ...], GridCell] = {}
    together = (list(zip(*(one.values for one in group), strict=True)) for group in groups)
    for values in (tuple(itertools.chain(*each)) for each in itertools.product(*together)):
        if values in found:
            continue
        assigned, made = list[str](), list[str]()
        for number in first:
            name, value = axes[number].name, values[number]
            if name in _MARKED:
                made += overrides_of(source.path, {name: value.strip("'\"")}, [*source.overrides, *made, *assigned])
                continue
            parts = tuple(one for one in assigned if one.partition("=")[2].startswith("{"))
            assigned.append(f"{meant(name, (*made, *parts))}={value}")
        fields = [one.partition("=")[0] for one in assigned]
        if len(set(fields)) < len(fields):
            twice = next(one for one in fields if fields.count(one) > 1)
            raise InputError(f"{twice} is a parameter twice", file="--grid")
        assigned = [*(one for one in made if one.partition("=")[0] not in fields), *assigned]
        found[values] = GridCell(len(found), values, tuple(assigned))
    return list(found.values())


def refuse_wrong_values(cells: Sequence[Sequence[str]], load_cell: Callable[[int], object]) -> None:
    """Raise InputError for a value of an axis if no cell with this value can be loaded."""
    for values in map(list, zip(*cells, strict=True)):
        for value in [*dict.fromkeys(values)][:_MOST_CHECKED]:
            errors = []
            for number in (place for place, one in enumerate(values) if one == value):
                try:
                    load_cell(number)
                except InputError as error:
                    errors.append(error)
                else:
                    break
            else:
                raise InputError(errors[0].message, file="--grid", field=errors[0].field)


def axis_columns(axes: Sequence[GridAxis], listed: Sequence[GridCell], taken: Collection[str]) -> list[AxisColumn]:
    """Return axes as table columns. Names in `taken` get a prefix.

    Examples
    --------
    >>> rates = axis("bandwidth=800 Mbit/s, 1 Gbit/s")
    >>> axis_columns([rates], [GridCell(n, (value,), ()) for n, value in enumerate(rates.values)], {})
    [AxisColumn(name='bandwidth_Bps', values=[100000000.0, 125000000.0], label='')]
    """
    found: list[AxisColumn] = []
    for number, one in enumerate(axes):
        texts = [cell.values[number] for cell in listed]
        unit, values = numbers(texts)
        name = one.name if unit is None else f"{one.name}_{unit}"
        found.append(AxisColumn(f"param_{name}" if name in taken else name, values))
    return found


def numbers(texts: Sequence[str]) -> tuple[str | None, list[int | float] | list[str]]:
    """Convert texts to numbers in SI units; return the unit's suffix and the numbers, or None and the texts.

    Examples
    --------
    >>> numbers(["1 ms", "0"]), numbers(["5 %", "0.1"]), numbers(["2", "4"]), numbers(["resnet18", "4"])
    (('s', [0.001, 0.0]), (None, [0.05, 0.1]), (None, [2, 4]), (None, ['resnet18', '4']))
    """
    for unit, (_, read, _) in _KINDS.items():
        try:
            found: list[int | float] = [read(0 if text == "0" else text) for text in texts]
        except ValueError:
            continue
        if any(text != "0" for text in texts):
            return unit, found
    plain: list[int | float] = []
    for text in texts:
        match = _VALUE.fullmatch(text)
        if match is None or match[2] not in (None, "%"):
            return None, list(texts)
        number = int(match[1]) if re.fullmatch(r"[+-]?[0-9]{1,15}", match[1]) else float(match[1])
        plain.append(number if match[2] is None else number / 100)
    if not all(math.isfinite(one) for one in plain):
        return None, list(texts)
    return None, plain if all(isinstance(one, int) for one in plain) else [float(one) for one in plain]


def _split_pieces(text: str, option: str, at: str = ",") -> list[str]:
    """Split a text at a separator, except inside brackets and quotes."""
    pieces = [""]
    for piece in text.split(at):
        if _is_open(pieces[-1]):
            pieces[-1] += at + piece
        else:
            pieces.append(piece)
    if _is_open(pieces[-1]):
        raise InputError("has brackets or quotes that do not match", file=option)
    return pieces[1:]


def _is_open(text: str) -> bool:
    """Return whether a text has an unclosed bracket, or a value that begins with an unclosed quote."""
    plain = _QUOTED.sub(r"\1", text)
    return bool(_QUOTE.search(plain)) or any(plain.count(one) != plain.count(other) for one, other in ("[]", "{}"))


def _with_units(pieces: Sequence[str], option: str) -> list[str]:
    """Return values with units; a value without unit gets the unit of the next value that has a unit."""
    found: list[str] = []
    unit = ""
    bare = [match[1] for match in map(_VALUE.fullmatch, pieces) if match is not None and match[2] is None]
    # A number above 1 is no fraction, so that the others beside it are none either.
    fractions = all(abs(float(one)) <= 1 for one in bare)
    for piece in reversed(pieces):
        value, span = _VALUE.fullmatch(piece), _RANGE.fullmatch(piece)
        if value is not None and value[2] is None and unit:
            if unit == "%" and fractions and 0 < abs(float(value[1])) < 1:
                raise InputError(
                    f"{piece} may mean {piece} % or {100 * float(value[1]):g} %; write % at each value", file=option
                )
            piece = piece if float(value[1]) == 0 and unit != "%" else f"{piece} {unit}"
        elif value is not None and value[2] is not None:
            unit = value[2]
        elif span is not None:
            own = span[7] or span[4]
            if own is None and unit:
                piece = f"{span[1]}{span[2] or ''}:{span[3]} {unit}:{span[5]}" + (f":{span[6]}" if span[6] else "")
            unit = own or span[2] or unit
        found.append(piece)
    return found[::-1]


def _range_values(found: re.Match[str], limit: int, option: str) -> list[str]:
    """Return the values of a range in text form, such as ``1:10:4``."""
    low, high, count, log = found[1], found[3], int(found[5]), found[6] == "log"
    last = found[4] or found[7]
    first = found[2] or last
    if not 2 <= count <= limit:
        raise InputError(f"a range lo:hi:n needs n from 2 to {limit:,}, got {count}", file=option)
    if first != last:
        both = f"{low} {first}", f"{high} {last or ''}".strip()
        unit, ends = numbers(both)
        if unit is None:
            raise InputError(f"a range needs ends with units of one kind, got {both[0]!r} and {both[1]!r}", file=option)
        (low, high), first = (f"{one:.{_DIGITS}g}" for one in ends), _KINDS[unit][0]
    begin, end = float(low), float(high)
    if begin == end:
        raise InputError(f"a range needs two different ends, got {found[0]!r}", file=option)
    if log and not (begin > 0 and end > 0):
        raise InputError(f"a logarithmic range needs ends > 0, got {found[0]!r}", file=option)
    shares = [step / (count - 1) for step in range(count)]
    values = [begin * (end / begin) ** share if log else begin + (end - begin) * share for share in shares]
    # Rounded, so that the last bits, which differ between machines, do not show.
    texts = [low, *(f"{value:.{_DIGITS}g}" for value in values[1:-1]), high]
    return [text if first is None else f"{text} {first}" for text in texts]
