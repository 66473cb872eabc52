"""Rows that come one by one, given as columns: eight bytes a number, and eight for a text that was there before."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import InputError
from simnet.job.row_file import RowFile


class ColumnRows:
    """Rows with equal keys: integers, floats or texts, one type a column.

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
        self._kinds: dict[str, str] = {}
        self._restored = False
        # Each text of a column, and its number.
        self._texts: dict[str, dict[str, int]] = {}
        self._rows = RowFile(1)
        self._packed = struct.Struct("")

    def _begun(self, kinds: dict[str, str], texts: dict[str, dict[str, int]], rows: RowFile) -> None:
        self._kinds, self._texts, self._rows = kinds, texts, rows
        self._packed = struct.Struct("=" + "".join(kinds.values()))

    def __len__(self) -> int:
        return len(self._rows) if self._kinds else 0

    def __getitem__(self, name: str) -> Ranks | Floats:
        """Return a copy of a column of numbers, int64 or float64."""
        return self._all([name])[name]

    def texts(self, name: str) -> list[str]:
        """Return a column of texts."""
        known = list(self._texts[name])
        return [known[number] for number in self[name]]

    def append(self, row: Mapping[str, int | float | str]) -> None:
        """Add a row; the first row decides keys and types.

        Raises KeyError or TypeError if a key or type differs; InputError if the first row was restored.
        """
        if not self._kinds:
            kinds = {name: "d" if isinstance(one, float) else "q" for name, one in row.items()}
            texts: dict[str, dict[str, int]] = {name: {} for name, one in row.items() if isinstance(one, str)}
            self._begun(kinds, texts, RowFile(len(kinds), self._path))
        try:
            numbers = self._numbers(row)
        except (KeyError, TypeError) as error:
            if not self._restored:
                raise
            file = None if self._path is None else str(self._path)
            raise InputError(f"has rows of another job, {error}; --force begins anew", file=file) from error
        self._rows.append(self._packed.pack(*numbers))

    def _numbers(self, row: Mapping[str, int | float | str]) -> list[float]:
        """Return a row as numbers, in the order of the columns."""
        if row.keys() != self._kinds.keys():
            raise KeyError(*(row.keys() ^ self._kinds.keys()))
        numbers: list[float] = []
        for name, kind in self._kinds.items():
            value, known = row[name], self._texts.get(name)
            if isinstance(value, str) != (known is not None):
                raise TypeError(f"{name} was {'a number' if known is None else 'a text'} before, got {value!r}")
            if known is not None:
                value = known.setdefault(str(value), len(known))
            elif kind == "q" and not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} was a whole number before, got {value!r}")
            numbers.append(value)  # type: ignore[arg-type]
        return numbers

    def all(self) -> dict[str, Ranks | Floats | list[str]]:
        """Return all columns, in the order of the keys of the first row."""
        numbers = self._all(list(self._kinds))
        known = {name: list(texts) for name, texts in self._texts.items()}
        return {
            name: [known[name][number] for number in column.tolist()] if name in known else column
            for name, column in numbers.items()
        }

    def _all(self, names: Sequence[str]) -> dict[str, Ranks | Floats]:
        """Return columns as numbers."""
        places = list(self._kinds)
        found: dict[str, Ranks | Floats] = {}
        for name in names:
            found[name] = np.empty(len(self)) if self._kinds[name] == "d" else np.empty(len(self), dtype=np.int64)
        for first, rows in self._rows.kept().pieces() if self._kinds else ():
            for name, column in found.items():
                column[first : first + len(rows)] = rows[:, places.index(name)].view(column.dtype)
        return found

    def save(self) -> dict[str, Any]:
        """Return the rows as a checkpoint holds them."""
        texts = {name: list(known) for name, known in self._texts.items()}
        return {"kinds": self._kinds, "texts": texts, "rows": self._rows.save()}

    @classmethod
    def restored(cls, saved: Mapping[str, Any], path: Path | None = None) -> ColumnRows:
        """Return the rows that `save` returned.

        Raises LookupError, TypeError or ValueError if it did not return them.
        """
        found = cls(path)
        if not saved["kinds"]:
            return found
        texts = {name: {text: number for number, text in enumerate(known)} for name, known in saved["texts"].items()}
        rows = RowFile.restored(saved["rows"], path)
        if rows.kept().width != len(saved["kinds"]) or not set(saved["kinds"].values()) <= {"q", "d"}:
            raise ValueError("rows and columns differ")
        if any(saved["kinds"].get(name) != "q" for name in texts):
            raise ValueError("texts are of no column, or of one of fractions")
        found._begun(dict(saved["kinds"]), texts, rows)
        found._restored = True
        for name, known in texts.items():
            if len(known) != len(saved["texts"][name]) or not set(found[name].tolist()) <= set(known.values()):
                raise ValueError(f"texts of {name} stand twice, or are missing")
        return found
