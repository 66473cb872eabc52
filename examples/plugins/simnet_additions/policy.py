"""A policy: the exchanges take turns."""

from __future__ import annotations

from collections.abc import Sequence

from simnet.base.quantities import Count
from simnet.policies import Candidate, PolicyContext


class Turns:
    """Every exchange for some iterations, one after the other.

    Parameters
    ----------
    candidates : sequence of Candidate
        The exchanges.
    every : int
        Iterations until the next one's turn, >= 1.
    """

    def __init__(self, candidates: Sequence[Candidate], every: Count = 1) -> None:
        self.candidates, self._every = candidates, every

    def reset(self) -> None:
        """Forget nothing: the iteration says whose turn it is."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return the one whose turn it is."""
        return [self.candidates[context.iteration // self._every % len(self.candidates)]]
