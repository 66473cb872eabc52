"""The columns of all tables and JSON that commands write: a name means one quantity, wherever it is written.

They stand in ``simnet/data/columns.csv``. Names end in their units. In JSON a name is that in a row, or the path to the
value in an object, as ``memory.peak_B``; NAME stands for what a user named, such as a policy, or for one of several
options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from simnet.base.reading import read_shipped_rows
from simnet.base.units import format_bytes, format_seconds

Fields: TypeAlias = dict[str, Any]
"""An object of JSON; `COLUMNS` has what its values are."""


class Column(NamedTuple):
    """What a column holds, and how tables for people show it.

    `heading` has marks where it may break, and is empty where no table has it; `format` is a key of `FORMATS`, or as of
    `str.format`, and by the unit when empty; `commands` are those that write it, ``hooks`` the logs of
    `simnet.cluster.hooks`.
    """

    unit: str
    heading: str
    format: str
    commands: str
    meaning: str


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "s": format_seconds,
    "B": format_bytes,
    "percent": lambda share: f"{100 * share:.3g} %",
    "tenths of a percent": lambda share: f"{100 * share:.1f} %",
    "count": lambda count: f"{count:,}" if isinstance(count, int) else f"{count:.3g}",
}
"""How values of some units and formats are written."""


COLUMNS = {row.pop("name"): Column(**row) for row in read_shipped_rows("data/columns.csv")}
"""The columns by their names, in the order in which they are explained."""


def write_cells(values: Mapping[Any, Any], names: Iterable[str], prefix: str = "") -> list[str]:
    """Return values of a row by their names as tables for people have them, those that are missing as a dash.

    Examples
    --------
    >>> write_cells({"step_s": 0.02, "utilisation": 0.5, "loss": None}, ["step_s", "utilisation", "loss"])
    ['20 ms', '50 %', '-']
    """
    return [_write_value(COLUMNS[prefix + name], values[name]) for name in names]


def _write_value(column: Column, value: Any) -> str:
    if pd.isna(value):
        return "-"
    write = FORMATS.get(column.format or column.unit)
    return (column.format or "{}").format(value) if write is None else write(value)


def headings(names: Iterable[str], prefix: str = "", *, broken: bool = False) -> tuple[str, ...]:
    """Return what stands above columns in tables for people, on one line or broken into two."""
    found = (COLUMNS[prefix + name].heading for name in names)
    return tuple(one.replace("|", "\n") if broken else one.replace("-|", "").replace("|", " ") for one in found)
