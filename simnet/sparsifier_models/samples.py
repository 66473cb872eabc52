"""Samples of a gradient: entries to select in each layer or slice, and a warning if a sample is too small."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

from simnet.sparsifier_models.base import Sparsifier

TENTH = 0.1
"""Largest relative difference between a sample's density and the whole model's that needs no warning."""


def apportion(shares: Sequence[float], room: Sequence[int], units: Iterable[int] = repeat(1)) -> list[int]:
    """Return how many units (such as rows) to select in each part of a gradient to get about `shares[i]` entries.

    Part i has `room[i]` units of `units[i]` entries. Rounding errors carry over to the next parts; units for which
    these have no room go to the first parts that have room. If no part got a unit, the largest share gets one.

    Examples
    --------
    >>> apportion([2.4, 2.4, 2.2], [9, 9, 1])
    [3, 3, 1]
    """
    due, found, each = 0.0, [], [*zip(shares, room, units, strict=False)]
    for share, most, unit in each:
        due += share
        found.append(min(max(round(due / unit), 0), most))
        due -= found[-1] * unit
    for place, (_, most, unit) in enumerate(each):
        more = min(max(round(due / unit), -found[place]), most - found[place])
        found[place], due = found[place] + more, due - more * unit
    if not any(found) and any(shares):
        found[shares.index(max(shares))] = 1
    return found


def divisible_sample_size(entries: float, density: float) -> int:
    """Return a sample size near `entries` for which size times density is close to a whole number."""
    least = max(1, round(entries * density))
    near = (round(k / density) for k in range(least, least + 64))
    return min(near, key=lambda n: abs(round(n * density) / n - density))


def density_warning(models: Sequence[Sparsifier]) -> str | None:
    """Return a warning if a gradient sample is too small for the density, with the ``scale`` to use; None otherwise.

    It is too small if whole entries differ from the density by over a tenth, or if the scheme needs more:
    `Sparsifier.enough`. `models` has the scheme as each bucket of the gradient has it.
    """
    scale = max((one.options.scale for one in models), default=1.0)
    if scale <= 1:
        return None
    n, k, whole = (sum(getattr(one, name) for one in models) for name in ("parameters", "k", "k_of_model"))
    enough = sum(one.enough for one in models)
    asked = f"{100 * whole / (scale * n):.3g} %"
    if whole / scale < enough:
        said = f"keeps {whole / scale:.3g} of them ({asked}), and {enough:.0f} are needed"
    elif not all(one.traits.searches_threshold for one in models) and abs(k * scale / whole - 1) > TENTH:
        said, enough = (
            f"keeps {k:,} of them, {100 * k / n:.3g} % in place of {asked}",
            5.0 * sum(one.unit for one in models),
        )
    else:
        return None
    least = max(min(whole / enough, scale / 2), 1.0)
    digit = 10.0 ** (math.floor(math.log10(least)) - 1)
    return f"a sample of {n:,} entries {said}: lower job.scale to {math.floor(least / digit) * digit:.0f}"
