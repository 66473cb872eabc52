"""Measured curves of time over size, the input of calibration.

A *curve* has the times of one collective for several sizes, with algorithm, protocol, ranks and nodes fixed. A *system*
is what one calibrated cost model describes: curves measured on the same hardware, with the same configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
from annotated_types import Ge, Le, MaxLen
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from simnet.base import units
from simnet.base.arrays import Floats
from simnet.base.checks import read_number
from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.calibration.readers import TABLE_COLUMNS, total_bytes

CONDITION_COLUMNS = ("variant", "platform", "link_latency", "link_bandwidth", "dtype", "tool")
"""Columns whose values tell one system from another; so do those of the links and contributions of single hosts."""

# Wider than any machine, and narrow enough that no product of some of them overflows.
Positive: TypeAlias = Annotated[float, Ge(1e-30), Le(1e30)]
NotNegative: TypeAlias = Annotated[float, Ge(0), Le(1e30)]
ShortText: TypeAlias = Annotated[str, MaxLen(200)]

FILE_PART: Any = {"extra": "forbid", "revalidate_instances": "always"}
"""How pydantic reads and writes a dataclass as a part of a fabric file."""

_OF_HOST = re.compile(r"(link_latency|link_bandwidth|contribution)_\d+")


@dataclass(frozen=True, order=True)
class Setting:
    """Conditions of a measured curve: collective (as in nccl-tests), ranks, nodes, pinned algorithm and protocol.

    0 `nodes` are not known.
    """

    collective: ShortText
    ranks: Annotated[int, Ge(1), Le(10**7)]
    nodes: Annotated[int, Ge(0), Le(10**7)] = 0
    algorithm: ShortText = ""
    protocol: ShortText = ""

    def __str__(self) -> str:
        what = ", ".join(part for part in (self.collective, self.algorithm, self.protocol) if part)
        nodes = f" on {self.nodes} node{'s' if self.nodes > 1 else ''}" if self.nodes else ""
        return f"{what}, {self.ranks} ranks{nodes}"

    @property
    def family(self) -> tuple[str, str, str]:
        """Collective, algorithm and protocol; curves of a family differ only in ranks and nodes."""
        return self.collective, self.algorithm, self.protocol


@dataclass(frozen=True, eq=False)
class Curve:
    """A measured curve of one setting: median times [s] at ascending total sizes [byte] as in nccl-tests, shape (n,).

    `cards` are the network cards of a node; 0 if not known.
    """

    setting: Setting
    sizes: Floats
    seconds: Floats
    cards: int = 0

    def at(self, chosen: NDArray[np.bool_]) -> Curve:
        """Return the curve restricted to the sizes at which the mask `chosen` is true."""
        return Curve(self.setting, self.sizes[chosen], self.seconds[chosen], self.cards)


def curves_of(rows: pd.DataFrame) -> list[Curve]:
    """Return the curves in the rows of one system, sorted by setting; times are medians over repetitions."""
    found = []
    for setting, part in setting_groups(rows_on_curves(rows)):
        medians = part.groupby("size")["seconds"].median()
        cards = int(part["network_cards"].fillna(0).max()) if "network_cards" in part else 0
        found.append(Curve(setting, medians.index.to_numpy(dtype=float), medians.to_numpy(dtype=float), cards))
    return found


def setting_groups(rows: pd.DataFrame) -> Iterator[tuple[Setting, pd.DataFrame]]:
    """Yield each setting, sorted, with its rows and their total sizes [byte] in the column ``size``."""
    keys = [rows["collective"].astype(str), *(rows[name].fillna(0).astype(int) for name in ("ranks", "nodes"))]
    keys += [rows[name].fillna("").astype(str) for name in ("algorithm", "protocol")]
    for key, part in rows.assign(size=total_bytes(rows)).groupby(keys, sort=True):
        collective, ranks, nodes, algorithm, protocol = map(str, key)
        yield Setting(collective, int(ranks), int(nodes), algorithm, protocol), part


def rows_on_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that curves can use: those with more than 0 bytes and more than one rank."""
    return rows[(total_bytes(rows) > 0) & (rows["ranks"].fillna(0) > 1)]


def split_systems(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows by system, named "column=value" by the columns that differ; "" for a single system."""
    sides = rows["in_place"].fillna(False).astype(str)
    keys = {name: one for name, one in (_condition_columns(rows) | {"in_place": sides}).items() if one.nunique() > 1}
    if not keys:
        return {"": rows}
    grouped = [
        (dict(zip(keys, found, strict=True)), one) for found, one in rows.groupby(list(keys.values()), sort=False)
    ]
    return {", ".join(f"{name}={value}" for name, value in found.items() if value): one for found, one in grouped}


def _condition_columns(rows: pd.DataFrame) -> dict[str, pd.Series[str]]:
    """Return the columns that distinguish systems, with values as text; "" for missing ones."""
    names = [name for name in CONDITION_COLUMNS if name in rows]
    names += sorted(name for name in map(str, rows) if _OF_HOST.fullmatch(name))
    return {name: rows[name].map(lambda value: "" if pd.isna(value) else str(value)) for name in names}


def chosen_rows(rows: pd.DataFrame, where: Mapping[str, str], in_place: bool = False) -> pd.DataFrame:
    """Return the rows with given column values, in place or out of place.

    Where only one side was measured, that side is taken. Values of columns of numbers are numbers or quantities with a
    unit. Raises InputError if there is no such column or value.
    """
    for name, value in where.items():
        if name not in rows:
            allowed = suggest_names(name, list(dict.fromkeys([*TABLE_COLUMNS, *rows.columns])))
            raise InputError(f"there is no column {name!r}; {allowed}", file="--where")
        column, number = rows[name], _read_quantity(value)
        texts = column.astype(str).where(column.notna(), "")
        if is_numeric_dtype(column) and not is_bool_dtype(column) and not math.isnan(number):
            taken = np.isclose(column.to_numpy(np.float64, na_value=math.nan), number, rtol=1e-9, atol=0.0)
        else:
            taken = (texts == value).to_numpy()
        if not taken.any():
            allowed = suggest_names(value, sorted(texts.unique())[:30])
            raise InputError(f"no row has {name} = {value!r}; {allowed}", file="--where")
        rows = rows[taken]
    side = rows["in_place"].fillna(False) == in_place
    return rows[side] if side.any() else rows


def _read_quantity(text: str) -> float:
    """Return a number or quantity as a number in SI units; NaN if the text is neither."""
    for read in (read_number, units.seconds, units.bandwidth, units.size):
        with suppress(ValueError):
            if not math.isnan(number := read(text)):
                return number
    return math.nan


def differing_columns(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns that distinguish systems and have several values in the rows, with their sorted values.

    A tool for each collective, as ping for latency and iperf3 for bandwidth, distinguishes none.
    """
    columns = _condition_columns(rows)
    if "tool" in columns and columns["tool"].groupby(rows["collective"]).nunique().max() == 1:
        del columns["tool"]
    values = {name: sorted(one.unique()) for name, one in columns.items()}
    return {name: found for name, found in values.items() if len(found) > 1}
