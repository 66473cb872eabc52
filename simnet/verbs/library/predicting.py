"""`simnet.predict_job`: the iterations of a job, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simnet.scenario import load
from simnet.studies import iteration
from simnet.verbs.library.asking import Fields, Share, overrides, telling, verb


@verb
def predict_job(
    scenario: str | Path,
    *,
    set: Fields = (),
    policies: Sequence[str] | str | None = None,
    progress: Share | None = None,
) -> iteration.JobPrediction:
    """Predict the iterations of a job part by part, with intervals, as `simnet predict job` does.

    Parameters
    ----------
    scenario : str or Path
        A YAML file, or the name of a scenario that comes with simnet.
    policies : sequence of str, optional
        Only these of its policies.
    set, progress
        As of `simnet.run`.

    Raises
    ------
    SimnetError
        If something is wrong with the scenario, or it cannot be predicted part by part.

    Examples
    --------
    >>> from simnet import predict_job
    >>> found = predict_job("quickstart", set={"job.iterations": 2}, policies="AG")
    >>> found
    JobPrediction(quickstart, 1 policy, 2 iterations)
    """
    wanted = policies.split(",") if isinstance(policies, str) else policies
    with telling(progress):
        return iteration.predict_job(load(scenario, overrides(set)), wanted)
