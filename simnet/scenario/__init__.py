"""Scenarios: YAML files that describe a job on a network, read, validated and built for simulation.

`load` reads a file, `Scenario.build` makes the job and its policies, `Scenario.lock` writes everything out again with
every default. `scenarios/quickstart.yaml` shows what a file looks like, `json_schema` says what one may hold.
"""

from typing import TYPE_CHECKING

from simnet.base.lazy import lazy_names

if TYPE_CHECKING:
    from simnet.scenario.finding import find, shipped
    from simnet.scenario.scenario import Run, Scenario, json_schema, load

__all__ = ["Run", "Scenario", "find", "json_schema", "load", "shipped"]

# Who needs a network alone does not wait for all that a job is made of.
__getattr__ = lazy_names(
    __name__, {"finding": ("find", "shipped"), "scenario": ("Run", "Scenario", "json_schema", "load")}
)
