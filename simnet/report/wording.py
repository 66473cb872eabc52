"""Words that several answers share: who leads, by how much, and enumerations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simnet.base.units import format_seconds
from simnet.cost_models.evidence.chances import SURE
from simnet.report.paired import TIE


def standing(seconds: Mapping[str, float], winners: Sequence[str], alone: str, tied: str, each: str = "") -> str:
    """Say who takes the least time, or who are tied, and how far ahead of the next.

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


def entering_apart(
    ranges: Mapping[str, tuple[float, float]], winners: Sequence[str], not_sampled: Mapping[str, str] | None = None
) -> list[str]:
    """Say how long leaders take as workers enter a little apart, whether that makes a tie, and of whom it is not known.

    Where no range is wider than `TIE` there is nothing to say of it.

    Examples
    --------
    >>> entering_apart({"AG": (1.0, 1.2), "ring": (1.1, 1.3), "tree": (1.3, 1.4)}, ["AG", "ring"])
    ['If workers enter a little apart, AG takes 1 s to 1.2 s and ring takes 1.1 s to 1.3 s: these are tied.']
    >>> entering_apart({"AG": (1.0, 1.2), "tree": (1.3, 1.4)}, ["AG"])
    ['If workers enter a little apart, AG takes 1 s to 1.2 s and tree takes 1.3 s to 1.4 s: AG stays first.']
    >>> entering_apart({}, ["AG"], {"AG": "more than 10,000 messages", "ring": "more than 10,000 messages"})
    ['Spread not sampled of AG and ring (more than 10,000 messages): times may depend on microseconds.']
    """
    said, tied = [], [name for name in winners if name in ranges]
    if any(high - low > TIE * high for low, high in ranges.values()):
        shown = tied if len(tied) > 1 else sorted(ranges, key=lambda name: (name != winners[0], ranges[name]))
        each = [f"{name} takes {' to '.join(map(format_seconds, ranges[name]))}" for name in shown]
        end = "these are tied" if len(tied) > 1 else f"{winners[0]} stays first"
        said.append(f"If workers enter a little apart, {listed(each)}: {end}.")
    why = not_sampled or {}
    for reason in dict.fromkeys(why.values()):
        names = listed([name for name, one in why.items() if one == reason])
        said.append(f"Spread not sampled of {names} ({reason}): times may depend on microseconds.")
    return said


def within_error(name: str, chances: Mapping[str, float]) -> str:
    """Return the names that are tied within the prediction error, in words; empty if there are none.

    Examples
    --------
    >>> within_error("AG", {"AG": 0.7, "ring": 0.28, "tree": 0.02}), within_error("AG", {"AG": 0.99, "ring": 0.01})
    (', tied with ring within the error (70 % likely)', '')
    """
    near = [one for one, chance in chances.items() if one != name and chance >= 1 - SURE]
    return f", tied with {listed(near)} within the error ({100 * chances[name]:.2g} % likely)" if near else ""


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration: ``a, b and c``."""
    return " and ".join([one for one in (", ".join(names[:-1]), *names[-1:]) if one])
