"""Tables that are safe to open in a spreadsheet, which evaluates text that starts with ``=`` as a formula.

Texts may come from untrusted sources. Text cells that might be evaluated get a leading apostrophe, as OWASP recommends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

# Signs of full width count for the others. With apostrophes in front, too, so that one can be taken off again.
_FORMULA = re.compile("'*[=+\\-@\t\n\uff1d\uff0b\uff0d\uff20]")


def guard_cell(cell: T) -> T | str:
    """Return a cell, with a leading apostrophe if it may be a formula; carriage returns become line feeds.

    Examples
    --------
    >>> [guard_cell(one) for one in ("=1+1", "topk", -1.5, "'-")]
    ["'=1+1", 'topk', -1.5, "''-"]
    """
    if not isinstance(cell, str) or not ("\r" in cell or _FORMULA.match(cell)):
        return cell
    # Writers of CSV put a text with a line feed in quotes, but not all of them one with a carriage return.
    text = cell.replace("\r", "\n")
    return f"'{text}" if _FORMULA.match(text) else text


def unguard_cell(cell: str) -> str:
    """Return a cell without the apostrophe that stops spreadsheets from running a formula; other cells are unchanged.

    Examples
    --------
    >>> [unguard_cell(one) for one in ("'=1+1", "topk", "'tis", "''-")]
    ['=1+1', 'topk', "'tis", "'-"]
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def guard_table(table: pd.DataFrame) -> pd.DataFrame:
    r"""Return a copy of a table with an apostrophe before texts and headings that a spreadsheet may run as formulas.

    Examples
    --------
    >>> import pandas as pd
    >>> guard_table(pd.DataFrame({"policy": ["@a", "b"], "loss": [-1.0, 2.0]})).to_csv(index=False)
    "policy,loss\n'@a,-1.0\nb,2.0\n"
    """
    found = table.copy(deep=False)
    for place, name in enumerate(table.columns):
        # A column has few texts, many times; numbers of columns of numbers are not looked at.
        column = table.iloc[:, place]
        if column.dtype.kind not in "biufcmM" and any(guard_cell(one) is not one for one in column.unique()):
            found.isetitem(place, column.astype(object).map(guard_cell).to_numpy())
        if guard_cell(name) is not name:
            found.columns = found.columns.map(guard_cell)
    return found
