"""Figures, tables and claims of papers, reproduced by simulation (``simnet reproduce``).

A module per paper says what it reproduces, and what not and why. Published numbers are inputs of simnet's values only
if the note of a reproduction says so.

>>> reproduction("artopk-fig-4").rows()[0].ours
0.125
"""

from importlib import import_module

from simnet.base.errors import InputError, suggest_names
from simnet.validate.published import read_published
from simnet.validate.reproduction.table import Missing, Reproduction

_MODULES = ("artopk", "oktopk", "exdyna", "spardl", "lowcomm", "published_runs", "gains", "gains_sharded")

REPRODUCTIONS: dict[str, Reproduction] = {
    one.name: one
    for name in _MODULES
    for one in vars(import_module(f"{__name__}.{name}")).values()
    if isinstance(one, Reproduction)
}
"""The reproductions by name, in the order of the functions in their modules."""

MISSING: tuple[Missing, ...] = tuple(map(Missing._make, read_published("missing.csv").itertuples(index=False)))
"""The published results that are not reproduced, with reasons."""


def reproduction(name: str) -> Reproduction:
    """Return the reproduction called `name`."""
    if name not in REPRODUCTIONS:
        raise InputError(f"there is no reproduction {name!r}; {suggest_names(name, REPRODUCTIONS)}")
    return REPRODUCTIONS[name]
