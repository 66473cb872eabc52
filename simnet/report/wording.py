"""Words that several answers share: who leads, by how much, and enumerations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simnet.base.units import format_seconds
from simnet.report.paired import TIE


def standing(seconds: Mapping[str, float], winners: Sequence[str], alone: str, tied: str, each: str = "") -> str:
    """Say who takes the least time, or who are tied, and how far ahead of the next.

    Parameters
    ----------
    seconds : mapping of str to float
        The time of each [s].
    winners : sequence of str
        The one with the least, and those that are tied with it.
    alone, tied : str
        What one winner does, and what several do.
    each : str
        What follows the time.

    Examples
    --------
    >>> standing({"AG": 0.02, "ring": 0.05}, ["AG"], "is fastest", "are tied as fastest", " an iteration")
    'AG is fastest: 20 ms an iteration, 2.5x before ring (50 ms).'
    >>> standing({"AG": 1.0, "ring": 1.2, "tree": 1.5}, ["AG", "ring"], "is fastest", "are tied as fastest")
    'AG and ring are tied as fastest: AG takes 1 s, 50 % before tree (1.5 s).'
    """
    least, most = seconds[winners[0]], max(seconds[name] for name in winners)
    said = f"{listed(winners)} {alone if len(winners) == 1 else tied}: "
    said += f"{winners[0]} takes " * (most > (1 + TIE) * least) + f"{format_seconds(least)}{each}"
    later = min(((time, name) for name, time in seconds.items() if name not in winners), default=None)
    if later is not None and least > 0:
        said += f", {ahead(later[0] / least)} before {later[1]} ({format_seconds(later[0])})"
    return f"{said}."


def ahead(ratio: float) -> str:
    """Return by how much something is ahead: a factor from 2 on, else in per cent.

    Examples
    --------
    >>> ahead(2.14), ahead(1.084), ahead(1.001)
    ('2.1x', '8 %', '<1 %')
    """
    if ratio >= 2:
        return f"{ratio:.2g}x"
    return f"{100 * (ratio - 1):.0f} %" if ratio >= 1.005 else "<1 %"


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration: ``a, b and c``."""
    return " and ".join([one for one in (", ".join(names[:-1]), *names[-1:]) if one])
