"""The policy that does not choose."""

from __future__ import annotations

from collections.abc import Sequence

from simnet.policies.candidate import Candidate
from simnet.policies.protocol import PolicyContext


class Fixed:
    """Always the same exchange."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidates = (candidate,)

    def reset(self) -> None:
        """Forget nothing: there is nothing to remember."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return the one candidate."""
        return self.candidates
