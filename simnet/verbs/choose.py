"""``simnet choose``: the fastest exchange, the certainty of that choice, and what would change it."""

from __future__ import annotations

from typing import Unpack

from simnet.report.summary import Summary
from simnet.scenario.marked_fields import Fields, overrides_of
from simnet.verbs.request import Overrides, ScenarioSource, Words, scenario_path, set_texts, verb, word_list
from simnet.verbs.run import Grid, grid_texts


@verb
def choose(
    scenario: ScenarioSource = "base",
    *,
    exact: bool = False,
    link_uncertainty: float | str | None = None,
    policies: Words | None = None,
    grid: Grid = (),
    jobs: int | None = None,
    set: Overrides = (),
    **fields: Unpack[Fields],
) -> Summary:
    """Rank exchanges and policies by the time of a job; say how sure the ranking is and what changes it.

    Parameters
    ----------
    scenario
        A YAML file or the name of a scenario.
    exact
        Simulate all iterations; also try other defaults.
    link_uncertainty
        Assumed error of links: a factor or 10%; default: 2.
    policies
        Rank only these policies of the scenario, A,B.
    grid
        Fields with values, each an axis: the fastest in each cell; two axes make a map.
    jobs
        Number of processes for the cells of a grid; default: one per core, in Python one.

    Raises
    ------
    SimnetError
        If arguments do not fit each other or are out of range, or something is wrong with a file.

    Examples
    --------
    >>> choose(workers=8, model="resnet50", latency="1 ms", bandwidth="10 Gbit/s").best
    'AG-Topk'
    """
    from simnet.studies.choosing.ranking import ChooseRequest
    from simnet.studies.choosing.side_by_side import answer
    from simnet.studies.options import factor_off

    own, off = set_texts(set), factor_off(link_uncertainty, "--link-uncertainty")
    with scenario_path(scenario) as path:
        own += overrides_of(path, fields, own)
        return answer(ChooseRequest(path, own, exact, word_list(policies) or (), off), grid_texts(grid), jobs)
