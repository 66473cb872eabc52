"""Estimates the number of network cards per node from measured rates, if neither logs nor the user state it.

NCCL sends rings over all cards of a node at once, so bytes count per card. If all curves have the same number of ranks
per node, they do not determine the number of cards: then a number is likelier the more shipped platforms with that many
cards reach the measured bandwidth. Otherwise the number that fits the curves best is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, PlainSerializer

from simnet.cost_models.calibration.curves import FILE_PART, Curve
from simnet.cost_models.calibration.platform import Platform, load_platform, platform_names
from simnet.cost_models.calibration.step_model import CARD_PER_RANK, count_like_nccl

LEAST_CHANCE = 0.05
"""The least chance of a number of cards that counts: below, it would be outside a 90 % interval."""

# What a platform reaches is known to about a factor of two (docs/calibration.md): half of that, as a logarithm.
_SPREAD = 0.35
# byte/s: the most that one card reaches, of 400 Gbit/s.
_ONE_CARD = 50e9


@dataclass(frozen=True)
class CardCount:
    """A possible number of network cards per node, and its probability; `CARD_PER_RANK` means a card for each rank."""

    __pydantic_config__ = FILE_PART

    number: Annotated[
        Annotated[float, Ge(1)],
        BeforeValidator(lambda read: CARD_PER_RANK if read is None else read),
        PlainSerializer(lambda number: None if number == CARD_PER_RANK else number),
    ]
    chance: Annotated[float, Gt(0), Le(1)]


RAIL_CARDS: tuple[CardCount, ...] = (CardCount(CARD_PER_RANK, 1.0),)
"""Card counts if inter-node bytes were not measured, or are not counted per card."""


def likely_card_counts(curves: Sequence[Curve], least: float = LEAST_CHANCE) -> tuple[CardCount, ...]:
    """Return possible numbers of network cards per node, with probabilities that sum to 1, given measured times.

    Numbers with a probability below `least` are left out.
    """
    rate, each = node_rate(curves)
    if not rate:
        return RAIL_CARDS
    if known := max(one.cards for one in curves):
        most = max(one.setting.ranks / one.setting.nodes for one in curves if one.setting.nodes)
        return (CardCount(CARD_PER_RANK if known >= most else float(known), 1.0),)
    chances = {1.0: _rate_likelihood(max(rate / _ONE_CARD, 1.0))}
    for one in _known_platforms():
        if one.outer is None:
            continue
        count = float(one.outer.nics) if one.outer.nics < one.devices_per_node else CARD_PER_RANK
        reached = one.outer_rate(min(each, one.devices_per_node))
        chances[count] = chances.get(count, 0.0) + _rate_likelihood(rate / reached)
    return normalise_chances(chances, least)


def normalise_chances(chances: dict[float, float], least: float = LEAST_CHANCE) -> tuple[CardCount, ...]:
    """Return the card counts with a probability of at least `least`, most likely first, rescaled to sum 1."""
    total = sum(chances.values())
    kept = {count: chance for count, chance in chances.items() if chance >= least * total}
    found = [CardCount(count, chance / sum(kept.values())) for count, chance in kept.items()]
    return tuple(sorted(found, key=lambda one: (-one.chance, one.number)))


def node_rate(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the highest rate measured out of a node [byte/s], 0 if unknown, and the ranks per node at that rate."""
    found = (0.0, 1.0)
    for curve in curves:
        one = curve.setting
        if 1 < one.nodes <= one.ranks:
            # Over one card all bytes of a node are counted.
            (ring,) = count_like_nccl(one.collective, "ring", one.ranks, one.nodes, cards=1)
            found = max(found, (float((ring.outer_bytes * curve.sizes / curve.seconds).max()), one.ranks / one.nodes))
    return found


def describe_card_counts(cards: Sequence[CardCount], each: float) -> str:
    """Return a sentence with the possible card counts and a benchmark that decides between them; "" for one count."""
    if len(cards) < 2:
        return ""
    names = {1.0: "one", CARD_PER_RANK: "one for each rank"}
    words = [f"{names.get(one.number, f'{one.number:g}')} ({100 * one.chance:.0f} %)" for one in cards]
    asked = "one rank on each node" if each > 1 else "all ranks of each node"
    listed = f"{', '.join(words[:-1])} or {words[-1]}"
    return f"network cards of a node: {listed}; to find out, run nccl-tests with {asked}, up to 1 GB"


def _rate_likelihood(ratio: float) -> float:
    """Return the likelihood of a ratio of measured to expected rate, from a heavy-tailed distribution."""
    return 1 / (1 + (math.log(ratio) / _SPREAD) ** 2)


@cache
def _known_platforms() -> tuple[Platform, ...]:
    return tuple(load_platform(name) for name in platform_names())
