"""The page of the columns, made of their definitions."""

from __future__ import annotations

from cells import cell
from simnet.report.columns import COLUMNS

HEAD = """# Columns

Every column of the tables and every value of the JSON that commands write. A name means the same wherever it
is written. In JSON it is the name in a row, or the path to the value; NAME is that of a policy and the like.
In rows for several iterations, columns of an iteration are means over those from `steady_from` on; what is of all
iterations is `total_`, and the mean over all of them `mean_`.

| Column | Unit | Meaning | Written by |
|---|---|---|---|
"""


def page() -> str:
    """Return the page: a table of all columns."""
    return HEAD + "".join(
        f"| `{name}` | {one.unit} | {cell(one.meaning)} | {one.commands} |\n" for name, one in COLUMNS.items()
    )
