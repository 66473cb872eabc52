"""How likely each exchange is the fastest at an operating point: by the errors of its parts.

Kernels of an exchange and its messages are off for themselves; so each of them is a part of `chances`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simnet.base.arrays import Floats
from simnet.policies import Candidate
from simnet.studies.choosing.chances import Chances, Part, chances, in_job, kind_of_kernels
from simnet.studies.choosing.cost_models import Estimate


def at_point(among: Sequence[Candidate], found: Sequence[Estimate]) -> Chances:
    """Return how likely each exchange is the fastest at an operating point.

    Parameters
    ----------
    among : sequence of Candidate
        The exchanges.
    found : sequence of Estimate
        What each takes, no arrays.
    """
    sending = _part([one.kind for one in found], ((one.communicate, one.least, one.most) for one in found))
    selecting = _part(list(map(_of_kernels, among)), (one.selecting for one in found))
    return chances(list(map(off_alike, among)), [sending, in_job(selecting)])


def off_alike(one: Candidate) -> str:
    """Return a name that exchanges share which send the same messages, but for small ones, and so are off alike.

    Examples
    --------
    >>> star, var = (Candidate(one, "artopk", {"collective": "ring", "selection": one}) for one in ("star", "var"))
    >>> off_alike(star) == off_alike(var) != off_alike(Candidate("", "artopk", {"collective": "tree"}))
    True
    """
    kept = {name: value for name, value in one.options.items() if name != "selection"}
    return f"{one.scheme} {sorted(kept.items())!r}"


def _of_kernels(one: Candidate) -> str:
    return kind_of_kernels(one.scheme)


def _part(kinds: Sequence[str], fields: Iterable[Sequence[Floats | float]]) -> Part:
    seconds, low, high = np.array(list(fields), dtype=float).T
    return Part(seconds, low, high, kinds)
