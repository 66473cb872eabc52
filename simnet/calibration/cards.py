"""Network cards of a node, where nobody says how many there are.

NCCL sends rings over all cards of a node at once, so that bytes count over the cards that its ranks use: *rails*, if
each rank has one of its own, a single card that all share, or something between. Curves of one number of ranks a node
do not tell which. What is likely then follows from the bandwidth that a node was seen to reach: the more a shipped
platform of so many cards would reach as much, the likelier that number is, and one card alone reaches what a card of
400 Gbit/s does. Curves of several numbers of ranks a node tell: the number that fits them best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from simnet.calibration.curves import Curve
from simnet.calibration.platform import Platform, load_platform, platform_names
from simnet.calibration.step_counts import like_nccl

OWN = math.inf
"""In place of a number of cards: each rank has its own."""

LEAST = 0.05
"""The least chance of a number of cards that counts: below, it would be outside a 90 % interval."""

# What a platform reaches is known to about a factor of two (docs/calibration.md): half of that, as a logarithm.
_SPREAD = 0.35
# byte/s: the most that one card reaches, of 400 Gbit/s.
_ONE_CARD = 50e9


class Cards(NamedTuple):
    """A number of network cards of a node, and its chance.

    Parameters
    ----------
    number : float
        Of cards, >= 1; `OWN` for rails.
    chance : float
        Within 0..1.
    """

    number: float
    chance: float


RAILS: tuple[Cards, ...] = (Cards(OWN, 1.0),)
"""What is taken where bytes between nodes were not measured, or are not counted by cards."""


def likely(curves: Sequence[Curve], least: float = LEAST) -> tuple[Cards, ...]:
    """Return how many cards a node may have, the likeliest first, with chances that add up to 1; one if it is known.

    Parameters
    ----------
    curves : sequence of Curve
        Of one system.
    least : float
        The least chance that counts.

    Examples
    --------
    Four ranks a node that reach 3 GB/s together share a card; those of 160 GB/s do not.

    >>> import numpy as np
    >>> from simnet.calibration.curves import Setting
    >>> def reached(rate):
    ...     return [Curve(Setting("all_reduce", 32, 8), np.array([1e9]), np.array([2 * 31 / 32 * 1e9 / rate]))]
    >>> [likely(reached(rate))[0].number for rate in (3e9, 160e9)]
    [1.0, inf]
    """
    rate, each = node_rate(curves)
    if not rate:
        return RAILS
    if told := max(one.cards for one in curves):
        return (Cards(OWN if told >= _most_on_a_node(curves) else float(told), 1.0),)
    chances = {1.0: _likeliness(max(rate / _ONE_CARD, 1.0))}
    for one in _platforms():
        if one.outer is None:
            continue
        count = float(one.outer.nics) if one.outer.nics < one.devices_per_node else OWN
        reached = one.outer_rate(min(each, one.devices_per_node))
        chances[count] = chances.get(count, 0.0) + _likeliness(rate / reached)
    return normalised(chances, least)


def normalised(chances: dict[float, float], least: float = LEAST) -> tuple[Cards, ...]:
    """Return numbers of cards whose chance is not below the least, the likeliest first, with chances that add to 1.

    Parameters
    ----------
    chances : dict of float to float
        By number of cards, in any unit.
    least : float
        As of `likely`.

    Examples
    --------
    >>> [one.number for one in normalised({OWN: 1.0, 1.0: 1.0, 2.0: 0.01})]
    [1.0, inf]
    """
    total = sum(chances.values())
    kept = {count: chance for count, chance in chances.items() if chance >= least * total}
    found = [Cards(count, chance / sum(kept.values())) for count, chance in kept.items()]
    return tuple(sorted(found, key=lambda one: (-one.chance, one.number)))


def _most_on_a_node(curves: Sequence[Curve]) -> float:
    return max(one.setting.ranks / one.setting.nodes for one in curves if one.setting.nodes)


def node_rate(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the most bytes per second that were seen to leave a node, and of how many ranks on it; 0 if none left it.

    Parameters
    ----------
    curves : sequence of Curve
        Of one system.
    """
    found = (0.0, 1.0)
    for curve in curves:
        one = curve.setting
        if 1 < one.nodes <= one.ranks:
            # Over one card all bytes of a node are counted.
            (ring,) = like_nccl(one.collective, "ring", one.ranks, one.nodes, cards=1)
            found = max(found, (float((ring.outer_bytes * curve.sizes / curve.seconds).max()), one.ranks / one.nodes))
    return found


def said(cards: Sequence[Cards], each: float) -> str:
    """Return how many cards a node may have, in words, and what measurement would tell.

    Parameters
    ----------
    cards : sequence of Cards
        As `likely` returns them.
    each : float
        Ranks on a node, of the measurements.

    Examples
    --------
    >>> said(likely([]), 1)
    ''
    >>> said([Cards(1.0, 0.8), Cards(OWN, 0.2)], 4).partition(", which")[0]
    'network cards of a node: one (80 %) or one for each rank (20 %)'
    """
    if len(cards) < 2:
        return ""
    words = [
        f"{'one' if one.number == 1 else 'one for each rank' if one.number == OWN else f'{one.number:g}'} "
        f"({100 * one.chance:.0f} %)"
        for one in cards
    ]
    asked = "1 rank on each of several nodes" if each > 1 else "all ranks of several nodes"
    listed = f"{', '.join(words[:-1])} or {words[-1]}"
    return f"network cards of a node: {listed}, which these data do not tell; large messages of {asked} would"


def _likeliness(ratio: float) -> float:
    """Return how likely it is to be off by so much: with heavy tails, as no two clusters are alike."""
    return 1 / (1 + (math.log(ratio) / _SPREAD) ** 2)


@cache
def _platforms() -> tuple[Platform, ...]:
    return tuple(load_platform(name) for name in platform_names())
