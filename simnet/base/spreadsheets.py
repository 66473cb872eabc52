"""Tables for people who open them in a spreadsheet, which takes a text that begins with ``=`` for a formula.

Texts come from scenarios, logs and packages of strangers. A text cell that a spreadsheet might compute gets an
apostrophe in front, as OWASP recommends; numbers and all other texts stay as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

# Signs of full width count for the others. With apostrophes in front, too, so that one can be taken off again.
_FORMULA = re.compile("'*[=+\\-@\t\n\uff1d\uff0b\uff0d\uff20]")


def guarded(cell: T) -> T | str:
    """Return a cell of a table, a text that may be a formula with an apostrophe in front; line breaks are line feeds.

    Parameters
    ----------
    cell : object
        A text, or a number, which stays.

    Examples
    --------
    >>> [guarded(one) for one in ("=1+1", "topk", -1.5, "'-")]
    ["'=1+1", 'topk', -1.5, "''-"]
    """
    if not isinstance(cell, str) or not ("\r" in cell or _FORMULA.match(cell)):
        return cell
    # Writers of CSV put a text with a line feed in quotes, but not all of them one with a carriage return.
    text = cell.replace("\r", "\n")
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """Return the text of which `guarded` made a cell.

    Parameters
    ----------
    cell : str
        The cell.

    Examples
    --------
    >>> [unguarded(one) for one in ("'=1+1", "topk", "'tis", "''-")]
    ['=1+1', 'topk', "'tis", "'-"]
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def guarded_table(table: pd.DataFrame) -> pd.DataFrame:
    r"""Return a table with `guarded` texts, its headings among them.

    Parameters
    ----------
    table : DataFrame
        The table; it stays as it is.

    Examples
    --------
    >>> import pandas as pd
    >>> guarded_table(pd.DataFrame({"policy": ["@a", "b"], "loss": [-1.0, 2.0]})).to_csv(index=False)
    "policy,loss\n'@a,-1.0\nb,2.0\n"
    """
    found = table.copy(deep=False)
    for place, name in enumerate(table.columns):
        # A column has few texts, many times; numbers of columns of numbers are not looked at.
        column = table.iloc[:, place]
        if column.dtype.kind not in "biufcmM" and any(guarded(one) is not one for one in column.unique()):
            found.isetitem(place, column.astype(object).map(guarded).to_numpy())
        if guarded(name) is not name:
            found.columns = found.columns.map(guarded)
    return found
