"""What comes with simnet, as tables of names and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeAlias

import simnet.traces
import sparsifier_models
import topologies
from simnet import devices, models, policies, scenario
from simnet.scenario import schema
from simnet.scenario.loader import read
from simnet.scenario.resolve import own_options
from simnet.units import format_seconds
from simnet.weather import PROFILES

Listing: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Column names, and rows."""


def sparsifiers() -> Listing:
    """List schemes of exchange."""
    found = [(name, sparsifier_models.scheme(name)) for name in sparsifier_models.names()]
    return ("scheme", "what it is", "after", "options"), [
        (name, summary(one), one.paper, ", ".join(own_options(name))) for name, one in found
    ]
