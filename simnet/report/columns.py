"""The columns of all tables and JSON that commands write: a name means one quantity, wherever it is written.

They stand in ``simnet/data/columns.csv``. Names end in their units. In JSON a name is that in a row, or the path to the
value in an object, as ``memory.peak_B``; NAME stands for what a user named, such as a policy, or for one of several
options.
"""

from __future__ import annotations

import csv
import io
from importlib.resources import files
from typing import NamedTuple


class Column(NamedTuple):
    """What a column holds: its unit, empty for what has none, its meaning, and the commands that write it.

    Commands stand one after another; ``hooks`` are the logs of `simnet.hooks`.
    """

    unit: str
    commands: str
    meaning: str


def _read() -> dict[str, Column]:
    text = files("simnet").joinpath("data/columns.csv").read_text(encoding="utf-8")
    return {row.pop("name"): Column(**row) for row in csv.DictReader(io.StringIO(text))}


COLUMNS = _read()
"""The columns by their names, in the order in which they are explained."""
