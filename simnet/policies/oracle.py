"""Policies that do not weigh anything: one exchange, and the fastest of several on the true weather."""

from __future__ import annotations

from collections.abc import Sequence

from simnet.policies.candidate import Candidate, check_distinct
from simnet.policies.protocol import PolicyContext


class OneStepOracle:
    """The exchange that is fastest in the iteration to come, on the true weather, found by simulating all of them.

    The regret of other policies is reported against it. It looks one iteration ahead only: each iteration begins when
    the one before it ended, so a slower exchange can lead to better weather, and a real policy can come out ahead.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = check_distinct(candidates)

    def reset(self) -> None:
        """Forget nothing: there is nothing to remember."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return all candidates."""
        return self.candidates


class Fixed(OneStepOracle):
    """Always the same exchange."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__((candidate,))
