"""Columns of all tables and JSON that commands write. A column's name means the same quantity everywhere.

They stand in ``simnet/data/columns.csv``. Names end in their units. In JSON a name is that in a row, or the path to the
value in an object, as ``memory.peak_B``; NAME stands for a name that a user chose, such as a policy, or an option.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from simnet.base.file_io import read_shipped_rows

Fields: TypeAlias = dict[str, Any]
"""A JSON object; `COLUMNS` explains its values."""


class ColumnDefinition(NamedTuple):
    """Unit, heading and meaning of a column, and which commands write it; ``hooks`` stands for logs of PyTorch hooks.

    `heading` is the column's name in texts, empty if no text names it.
    """

    unit: str
    heading: str
    commands: str
    meaning: str


COLUMNS = {row.pop("name"): ColumnDefinition(**row) for row in read_shipped_rows("data/columns.csv")}
"""The columns by name, in the order of the documentation."""
