"""Rows that come one by one, kept as columns: eight bytes a number, and eight for a text that was there before."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks


class Columns:
    """Rows with equal keys, whose values are whole numbers, numbers or texts, each the same in all rows.

    Examples
    --------
    >>> rows = Columns()
    >>> rows.append({"worker": 1, "seconds": 0.5, "purpose": "train"})
    >>> rows.append({"worker": 2, "seconds": 0.25, "purpose": "train"})
    >>> rows["seconds"], rows.texts("purpose"), len(rows)
    (array([0.5 , 0.25]), ['train', 'train'], 2)
    """

    def __init__(self) -> None:
        self._columns: dict[str, array[Any]] = {}
        # Each text of a column, and its number.
        self._texts: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, name: str) -> Ranks | Floats:
        """Return a copy of a column of numbers, int64 or float64."""
        return np.array(self._columns[name])

    def texts(self, name: str) -> list[str]:
        """Return a column of texts."""
        known = list(self._texts[name])
        return [known[number] for number in self._columns[name]]

    def append(self, row: Mapping[str, int | float | str]) -> None:
        """Add a row.

        Parameters
        ----------
        row : mapping of str to int, float or str
            Of which the first decides on keys and types.

        Raises
        ------
        KeyError, TypeError
            If a key of the first is missing, or its value is a text where that is a number, or the other way round, or
            is no whole number where that is one.
        """
        if not self._columns:
            self._columns = {name: array("d" if isinstance(one, float) else "q") for name, one in row.items()}
            self._texts = {name: {} for name, one in row.items() if isinstance(one, str)}
        for name, column in self._columns.items():
            value, known = row[name], self._texts.get(name)
            if isinstance(value, str) != (known is not None):
                raise TypeError(f"{name} was {'a number' if known is None else 'a text'} before, got {value!r}")
            if known is not None:
                value = known.setdefault(str(value), len(known))
            column.append(value)

    def all(self) -> dict[str, Ranks | Floats | list[str]]:
        """Return all columns, in the order of the keys of the first row."""
        return {name: self.texts(name) if name in self._texts else self[name] for name in self._columns}

    def save(self) -> dict[str, Any]:
        """Return the rows as a checkpoint holds them."""
        texts = {name: list(known) for name, known in self._texts.items()}
        return {"columns": {name: np.array(one) for name, one in self._columns.items()}, "texts": texts}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Columns:
        """Return what was saved.

        Raises
        ------
        LookupError, TypeError, ValueError
            If it is not.
        """
        found = cls()
        for name, column in saved["columns"].items():
            found._columns[name] = arrayed(column)
        found._texts = {
            name: {text: number for number, text in enumerate(known)} for name, known in saved["texts"].items()
        }
        if len({len(one) for one in found._columns.values()}) > 1:
            raise ValueError("columns differ in length")
        for name in found._texts:
            found.texts(name)
        return found


def arrayed(numbers: NDArray[Any]) -> array[Any]:
    """Return numbers, whole or not, as an array of eight bytes each that grows at its end."""
    kind = {"i": "q", "f": "d"}[numbers.dtype.kind]
    return array(kind, numbers.ravel().astype(kind).tobytes())
