"""Scenarios: YAML files that describe a job on a network, read, validated and built for simulation.

`load` reads a file, `Scenario.build` makes the job and its policies, `Scenario.lock` writes everything out again with
every default. `scenarios/quickstart.yaml` shows what a file looks like, `json_schema` says what one may hold.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simnet.scenario.finding import find, shipped
    from simnet.scenario.scenario import Run, Scenario, json_schema, load

__all__ = ["Run", "Scenario", "find", "json_schema", "load", "shipped"]


def __getattr__(name: str) -> object:
    # Who needs a network alone does not wait for all that a job is made of.
    if name not in __all__:
        raise AttributeError(f"module 'simnet.scenario' has no attribute {name!r}")
    home = "finding" if name in ("find", "shipped") else "scenario"
    found: object = getattr(import_module(f"simnet.scenario.{home}"), name)
    return found
