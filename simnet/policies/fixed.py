"""The policy that does not choose."""

from __future__ import annotations

from simnet.policies.candidate import Candidate
from simnet.policies.oracle import OneStepOracle


class Fixed(OneStepOracle):
    """Always the same exchange."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__((candidate,))
