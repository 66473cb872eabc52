"""Which exchange comes next, and at which density: fixed, flexible, clairvoyant, by several objectives."""

from simnet.policies.density import Ramp, density_at
from simnet.policies.policies import (
    Adaptive,
    Aggregate,
    Candidate,
    Clairvoyant,
    Fixed,
    Flexible,
    Moment,
    Monitor,
    Policy,
    Seen,
    Turn,
    closed_form,
    distinct,
    probe_pairs,
)

__all__ = [
    "Adaptive",
    "Aggregate",
    "Candidate",
    "Clairvoyant",
    "Fixed",
    "Flexible",
    "Moment",
    "Monitor",
    "Policy",
    "Ramp",
    "Seen",
    "Turn",
    "closed_form",
    "density_at",
    "distinct",
    "probe_pairs",
]
