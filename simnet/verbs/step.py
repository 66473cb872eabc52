"""``simnet step``: time of a step, compute utilisation, and what a target utilisation requires."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from simnet.base.errors import InputError
from simnet.report.summary import Summary
from simnet.scenario.marked_fields import Fields
from simnet.verbs.request import Overrides, ScenarioSource, Words, scenario_path, set_texts, verb, word_list


@verb
def step(
    scenario: ScenarioSource = "base",
    *,
    goal: Words | None = None,
    calls: bool = False,
    link_uncertainty: float | str | None = None,
    policies: Words | None = None,
    set: Overrides = (),
    **fields: Unpack[Fields],
) -> Summary:
    """Time one step: exposed communication, utilisation, memory.

    For a sharded model the answer has the parts of the step. For a training strategy it has the bandwidth or period
    that a utilisation needs. For other jobs it has the parts of an iteration under each policy, with intervals.

    Parameters
    ----------
    scenario : str, Path or Scenario
        A scenario, or a folder with Chakra traces.
    goal : sequence of str, optional
        Print what utilisations such as 90% need.
    calls : bool
        List every collective of a sharded step.
    link_uncertainty : float or str, optional
        Assumed error of computing and links; default: 10%.
    policies : sequence of str, optional
        Time only these policies of the scenario.

    Raises
    ------
    SimnetError
        If something is wrong with the scenario, or a closed form is asked for that does not hold for it.

    Examples
    --------
    >>> from simnet import step
    >>> found = step(model="gpt2", sharding="fsdp2", bandwidth="100Gbit/s", latency="10us")
    >>> found.rows[0]["part"], found.details["step_s"] > found.rows[0]["of_step_s"]
    ('compute', True)
    """
    from simnet.scenario import load
    from simnet.studies import options

    goals = [options.share(one, "--goal") for one in word_list(goal) or ()]
    off = options.factor_off(link_uncertainty, "--link-uncertainty")
    with scenario_path(scenario) as path:
        source, given = with_defaults_of_step(
            path, {name: value for name, value in fields.items() if value is not None}
        )
        loaded = load(source, set_texts(set), **given)
    wanted = word_list(policies)
    loaded = loaded if wanted is None else loaded.only(wanted)
    if loaded.config.job.shardings:
        from simnet.studies.step import step_summary

        for option, given_ in (("--goal", goals), ("--link-uncertainty", off)):
            if given_:
                raise InputError("is for exchanges of whole gradients or models, not for sharded steps", file=option)
        return step_summary(loaded, calls=calls)
    if calls:
        raise InputError("is for sharded steps; --sharding says which, as ddp or fsdp2", file="--calls")
    from simnet.studies.iteration import exchange_summary

    return exchange_summary(loaded, wanted, goals, off)


def with_defaults_of_step(scenario: str | Path, given: Mapping[str, Any]) -> tuple[str | Path, Mapping[str, Any]]:
    """Return a scenario and its fields, with defaults for a folder of execution traces or for a training strategy."""
    if Path(scenario).is_dir():
        from simnet.interchange.kinds import trace_prefix

        prefix = trace_prefix(scenario)
        ranks = len(list(prefix.parent.glob(f"{prefix.name}.*.et")))
        return "base", {"workers": ranks, **given, "sharding": str(Path(scenario).absolute())}
    return scenario, ({"schemes": "dense", **given} if scenario == "base" and "strategy" in given else given)
