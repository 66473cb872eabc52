"""Text for cells of tables in generated pages."""

from __future__ import annotations

import re


def cell(text: str) -> str:
    r"""Return text in which nothing is markup but code in backticks.

    Examples
    --------
    >>> print(cell("a|b of `x|y`, see <file>"))
    a\|b of `x|y`, see &lt;file>
    """
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([*_\[|])", r"\\\1", one).replace("<", "&lt;") for one in parts[::2]]
    return "`".join(parts)
