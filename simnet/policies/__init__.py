"""Policies that choose the exchange and density of each iteration: fixed, flexible, one-step oracle, Moo."""

from simnet.policies.candidate import Candidate, check_distinct, closed_form
from simnet.policies.protocol import (
    Adaptive,
    Decision,
    Fixed,
    Flexible,
    Measures,
    Monitor,
    Observation,
    OneStepOracle,
    Policy,
    PolicyContext,
    Ramp,
    TimingOutcome,
    density_at,
    probe_pairs,
)

__all__ = [
    "Adaptive",
    "Candidate",
    "Decision",
    "Fixed",
    "Flexible",
    "Measures",
    "Monitor",
    "Observation",
    "OneStepOracle",
    "Policy",
    "PolicyContext",
    "Ramp",
    "TimingOutcome",
    "check_distinct",
    "closed_form",
    "density_at",
    "probe_pairs",
]
