"""Which exchange comes next, and at which density: fixed, flexible, the one-step oracle, by several objectives.

A policy is a class with what `Policy` asks for, in a module of its own; `Adaptive` is for one that also chooses the
density. `simnet.policies.moo` is the choice by several objectives.
"""

from simnet.policies.candidate import Candidate, check_distinct, closed_form
from simnet.policies.density import Ramp, density_at
from simnet.policies.fixed import Fixed
from simnet.policies.flexible import Flexible
from simnet.policies.monitor import Aggregate, Monitor, probe_pairs
from simnet.policies.oracle import OneStepOracle
from simnet.policies.protocol import (
    Adaptive,
    Decision,
    Measures,
    Observation,
    Policy,
    PolicyContext,
    TimingOutcome,
)

__all__ = [
    "Adaptive",
    "Aggregate",
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
