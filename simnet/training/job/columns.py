"""Rows that come one by one, given as columns: eight bytes a number, and eight for a text that was there before."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.training.job.row_file import RowFile


class ColumnRows:
    """Rows with equal keys: integers, floats or texts, one type a column, as the first row has them.

    With a `path`, long tables have a file, as in `RowFile`.

    Examples
    --------
    >>> rows = ColumnRows()
    >>> rows.append({"worker": 1, "seconds": 0.5, "purpose": "train"})
    >>> rows.append({"worker": 2, "seconds": 0.25, "purpose": "train"})
    >>> rows["seconds"], rows.texts("purpose"), len(rows)
    (array([0.5 , 0.25]), ['train', 'train'], 2)
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._begin({}, {})

    def _begin(self, kinds: dict[str, str], texts: dict[str, dict[str, int]]) -> None:
        # Each text of a column, and its number.
        self._kinds, self._texts = kinds, texts
        self._rows = RowFile(max(len(kinds), 1), self._path)
        self._packed = struct.Struct("=" + "".join(kinds.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> Ranks | Floats:
        """Return a copy of a column of numbers, int64 or float64."""
        return self._numbers([name])[name]

    def texts(self, name: str) -> list[str]:
        """Return a column of texts."""
        known = list(self._texts[name])
        return [known[number] for number in self[name]]

    def append(self, row: Mapping[str, int | float | str]) -> None:
        """Add a row; raise KeyError or struct.error if a key or type is not that of the first."""
        if not self._kinds:
            kinds = {name: "d" if isinstance(one, float) else "q" for name, one in row.items()}
            self._begin(kinds, {name: {} for name, one in row.items() if isinstance(one, str)})
        numbers = [row[name] for name in self._kinds]
        for place, name in enumerate(self._kinds):
            if (known := self._texts.get(name)) is not None:
                numbers[place] = known.setdefault(str(row[name]), len(known))
        self._rows.append(self._packed.pack(*numbers))

    def all(self) -> dict[str, Ranks | Floats | list[str]]:
        """Return all columns, in the order of the keys of the first row."""
        numbers = self._numbers(list(self._kinds))
        known = {name: list(texts) for name, texts in self._texts.items()}
        return {
            name: [known[name][number] for number in column.tolist()] if name in known else column
            for name, column in numbers.items()
        }

    def _numbers(self, names: Sequence[str]) -> dict[str, Ranks | Floats]:
        """Return columns as numbers."""
        places = list(self._kinds)
        found: dict[str, Ranks | Floats] = {}
        for name in names:
            found[name] = np.empty(len(self)) if self._kinds[name] == "d" else np.empty(len(self), dtype=np.int64)
        for first, rows in self._rows.kept().pieces():
            for name, column in found.items():
                column[first : first + len(rows)] = rows[:, places.index(name)].view(column.dtype)
        return found

    def save(self) -> dict[str, Any]:
        """Return the rows as a checkpoint holds them."""
        texts = {name: list(known) for name, known in self._texts.items()}
        return {"kinds": self._kinds, "texts": texts, "rows": self._rows.save()}

    @classmethod
    def restored(cls, saved: Mapping[str, Any], path: Path | None = None) -> ColumnRows:
        """Return the rows that `save` returned."""
        found = cls(path)
        texts = {name: {text: number for number, text in enumerate(known)} for name, known in saved["texts"].items()}
        found._begin(dict(saved["kinds"]), texts)
        found._rows = RowFile.restored(saved["rows"], path)
        return found
