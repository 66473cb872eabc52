"""Phrases for reports: which policies are fastest, how far they lead, and lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simnet.base.units import format_seconds
from simnet.report.paired import TIE
from simnet.report.summary import percent, three_digits

TIED = 0.1
"""Minimum probability of being fastest at which a policy is tied with the leader."""


def lead_text(ratio: float) -> str:
    """Return the ratio of a longer time to a shorter one as text: "2.54x" from 2 on, otherwise the excess in per cent.

    Examples
    --------
    >>> lead_text(2.14), lead_text(1.084), lead_text(1.001)
    ('2.14x', '8 %', '<1 %')
    """
    if ratio >= 2:
        return f"{three_digits(ratio)}x"
    return f"{100 * (ratio - 1):.0f} %" if ratio >= 1.005 else "<1 %"


def to_best(name: str, winners: Sequence[str], seconds: float | None, best: float | None) -> str:
    """Return a table cell that compares a time with the best: "best", "tied", or the excess, such as "+10 %".

    Examples
    --------
    >>> [to_best(name, ["AG", "ring"], seconds, 2.0) for name, seconds in (("AG", 2.0), ("ring", 2.1), ("tree", 2.2))]
    ['best', 'tied', '+10 %']
    >>> to_best("AG", ["AG"], 2.0, 2.0), to_best("oracle", ["AG"], 1.98, 2.0), to_best("dense", ["AG"], 5.0, 2.0)
    ('best', '-1 %', '2.50x')
    """
    if name in winners:
        return "best" if name == winners[0] else "tied"
    if seconds is None or not best:
        return "-"
    return lead_text(seconds / best) if seconds >= 2 * best else percent(seconds / best - 1, "+")


def alternatives_text(names: Sequence[str], most: int = 4) -> str:
    """Return names joined by "or"; after the first `most` names, only the number of further names is given.

    Examples
    --------
    >>> alternatives_text(["a", "b", "c"]), alternatives_text(["a", "b", "c"], 2)
    ('a, b or c', 'a, b or 1 more')
    """
    shown = [*names] if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return " or ".join(one for one in (", ".join(shown[:-1]), *shown[-1:]) if one)


def entering_apart(
    ranges: Mapping[str, tuple[float, float]], winners: Sequence[str], not_sampled: Mapping[str, str] | None = None
) -> list[str]:
    """Return sentences on how leaders' times and ties change if workers start slightly apart.

    Ranges not wider than `TIE` are not mentioned.

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


def listed(names: Sequence[str]) -> str:
    """Return names joined as in ``a, b and c``."""
    return " and ".join([one for one in (", ".join(names[:-1]), *names[-1:]) if one])
