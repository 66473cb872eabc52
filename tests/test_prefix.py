"""A longer run begins as a shorter one: gradients, thresholds, stragglers, weather and choices go by the iteration."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from commands import did
from simnet import sparsifier_models

TOGETHER = 7
"""Schemes of a run."""

FEW = 4
"""Iterations of the shorter run; the longer one has twice as many."""

NETWORK = {
    "topology": {"star": {"latency": "1 ms", "bandwidth": "1 Gbit/s"}},
    "weather": [{"links": "all", "bandwidth": {"noise": {"sigma": "20 %", "tau": "50 ms", "every": "5 ms"}}}],
}
"""Links that change by chance."""

COMPUTE = {"mean": "5 ms", "spread": "10 %", "straggle": {"probability": 0.2, "slowdown": 3}}
TWO = {"AG": {"scheme": "topk"}, "ART": {"scheme": "artopk", "collective": "ring"}}
FIXED = {"AG": {"fixed": "AG"}, "ART": {"fixed": "ART"}}
LIVE = {"model": "logistic", "data": "classification", "batch": 4}
GRADIENTS = {
    **{like: {"synthetic": {"like": like}} for like in ("digits", "convolutional", "transformer", "transformer-local")},
    "stretched": {"synthetic": {"training": 6}},
    "recorded": {"recorded": "digits"},
    "recorded and stretched": {"recorded": {"trace": "digits", "training": 50}},
    "live": {"train": {**LIVE, "evaluate": 3}},
    "live with drops": {"train": {**LIVE, "evaluate": 2, "warm_up": 2, "drops": [3, 6]}},
    "live, evaluated late": {"train": {**LIVE, "evaluate": 6}},
}
POLICIES = {
    **FIXED,
    "flexible": {"flexible": {"probe_every": "20 ms"}},
    "advise": {"advise": {}},
    "oracle": {"oracle": None},
    "moo": {"moo": {"densities": [0.1, 0.01], "tries": 9, "probe_every": "20 ms"}},
}
JOBS = {
    "density in ramps": {"density": [{"start": "20 %", "end": "1 %", "iterations": 3}, {"at": "2 %"}]},
    "overlap": {"overlap": {"bucket": "4 KiB", "backward": "60 %"}},
    "no barrier": {"barrier": False},
    "deadline": {"strategy": {"name": "diloco", "period": 3}, "deadline": {"quantile": "60 %"}, "compute": COMPUTE},
    "churn": {"churn": {"stay": "100 ms", "away": "20 ms"}, "strategy": {"name": "diloco", "period": 3}},
    "local steps": {"strategy": {"name": "diloco", "period": 5}},
}


def rows(folder: Path, scenario: dict[str, Any], iterations: int) -> dict[str, list[dict[str, str]]]:
    """Return the rows of iterations.csv of a run of so many iterations, by policy."""
    (folder / "scenario.yaml").write_text(json.dumps(scenario))
    out = folder / str(iterations)
    did(
        "run",
        folder / "scenario.yaml",
        "--set",
        f"job.iterations={iterations}",
        "--out",
        out,
        "--set",
        "output.report=false",
        "-q",
    )
    found: dict[str, list[dict[str, str]]] = {}
    with (out / "iterations.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["policy"], []).append(row)
    return found


def check(folder: Path, scenario: dict[str, Any], few: int = FEW) -> None:
    """Check that a run of twice as many iterations begins with the rows of one of `few`."""
    short, long = (rows(folder, scenario, count) for count in (few, 2 * few))
    assert set(short) == set(long)
    for policy, own in short.items():
        assert long[policy][: len(own)] == own, policy
        assert len(long[policy]) >= len(own) + few


def scenario(policies: object = FIXED, exchanges: object = TWO, **job: object) -> dict[str, Any]:
    """Return a scenario on a network whose links change, with computing that scatters."""
    usual = {"parameters": 8192, "density": "5 %", "compute": COMPUTE, "iterations": 1}
    kept = {name: one for name, one in (usual | job).items() if one is not None}
    return {"workers": 4, "network": NETWORK, "job": kept, "exchanges": exchanges, "policies": policies}


SCHEMES = sparsifier_models.names()


@pytest.mark.parametrize("first", range(0, len(SCHEMES), TOGETHER))
def test_with_every_scheme_a_longer_run_begins_as_a_shorter_one(first, tmp_path):
    schemes = SCHEMES[first : first + TOGETHER]
    exchanges = {name: {"scheme": name} for name in schemes}
    check(tmp_path, scenario({name: {"fixed": name} for name in schemes}, exchanges))


@pytest.mark.parametrize("kind", GRADIENTS)
def test_with_all_gradients_a_longer_run_begins_as_a_shorter_one(kind, tmp_path):
    own = {} if "synthetic" in GRADIENTS[kind] else {"parameters": None}
    check(tmp_path, scenario(gradients=GRADIENTS[kind], **own))


@pytest.mark.parametrize("policy", POLICIES)
def test_with_every_policy_a_longer_run_begins_as_a_shorter_one(policy, tmp_path):
    check(tmp_path, scenario({policy: POLICIES[policy]}), few=7)


@pytest.mark.parametrize("kind", JOBS)
def test_in_every_kind_of_job_a_longer_run_begins_as_a_shorter_one(kind, tmp_path):
    check(tmp_path, scenario(**JOBS[kind]))
