"""The name under which simnet is installed, which is not the one that is imported: an index has a simnet of others."""

from __future__ import annotations

NAME = "simnet-sparse"
"""The name of the distribution, as in ``pyproject.toml``."""


def to_install(extra: str) -> str:
    """Return the command that installs simnet with an extra.

    Parameters
    ----------
    extra : str
        One of the extras in ``pyproject.toml``.

    Examples
    --------
    >>> to_install("train")
    "pip install 'simnet-sparse[train]'"
    """
    return f"pip install '{NAME}[{extra}]'"
