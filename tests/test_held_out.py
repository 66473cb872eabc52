"""Intervals hold what they say at sets that they were not learnt from, kind by kind, and widen where sets are few."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from validating import held_out

from commands import did, timed
from simnet.cost_models.evidence.intervals import factor_for_another, interval

PAGE = Path(__file__).parents[1] / "docs" / "trust.md"

FEW = {"of these mpich": 2, "of these openmpi": 2, "of these tcp": 1}
"""Kinds of which so few sets tell that what is inside may be more or less than is meant."""


@pytest.fixture(scope="module")
def found():
    return {one.kind: one for one in held_out.everything(pd.DataFrame())}


def test_each_kind_holds_85_to_95_percent_of_sets_that_were_left_out(found):
    outside = {kind: one.sets for kind, one in found.items() if not held_out.LEAST <= one.inside <= held_out.MOST}
    assert outside.items() <= FEW.items()
    assert {kind: found[kind].sets for kind in FEW} == FEW
    assert all(one.sets > 2 and one.low <= one.inside <= one.high for kind, one in found.items() if kind not in FEW)


def test_the_page_has_what_is_found(found):
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d.]+ %) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(rows) == 8
    assert rows == [(kind, str(found[kind].sets), f"{100 * found[kind].inside:.1f} %") for kind, _, _ in rows]


def test_sure_among_four_exchanges_of_a_job_is_right():
    four = held_out.of_four()
    assert four["settings"] > 20
    assert four["brier"] <= 0.15
    assert four["sure"] >= 1 / 3
    assert four["sure_right"] >= 0.95


@pytest.mark.parametrize("sites", [3, 8])
def test_the_interval_of_a_further_site_holds_nine_in_ten_however_few_there_are(sites):
    drawn = np.random.default_rng(2).normal(size=(20_000, sites + 1))
    known, further = drawn[:, :-1], drawn[:, -1]
    half = 1.645 * factor_for_another(sites) * known.std(axis=1, ddof=1)
    assert (np.abs(further - known.mean(axis=1)) <= half).mean() == pytest.approx(0.9, abs=0.01)


def test_waits_of_rounds_are_extrapolated_and_wider_than_those_of_the_same_job_without(small):
    every, rounds = (
        json.loads(did("step", small(strategy), "--set", "job.compute.spread=0.01", "--json").stdout)
        for strategy in ("", "  strategy: {name: diloco, period: 4}\n")
    )
    assert every["evidence"] == "measured"
    assert rounds["evidence"] == "extrapolated"
    assert "rounds of diloco" in rounds["because"]
    wide, own = (one["rows"][0] for one in (rounds, every))
    ratios = [(one["messages_high_s"] - one["messages_s"]) / one["messages_s"] for one in (wide, own)]
    assert ratios[0] > 1.1 * ratios[1]


def test_the_interval_of_a_collective_is_wider_than_errors_of_the_sets_that_tell_of_it():
    ring = ("allreduce_ring", "--workers", 4, "--size", "1 MB")
    found = timed(*ring, "--latency", "5 ms", "--bandwidth", "50 Mbit/s", "--stack", "gloo")
    seconds, each = found["time_s"], np.array(found["messages"] / 4)
    ends = zip(
        interval("gloo", each, np.array(seconds)),
        ("low_s", "high_s"),
        strict=True,
    )
    for end, name in ends:
        assert math.log(found[name] / seconds) == pytest.approx(1.263 * math.log(end / seconds), rel=1e-3)


@pytest.fixture
def small(tmp_path):
    """Return a function that writes a small job with more lines in it."""

    def written(more):
        path = tmp_path / f"job{len(more)}.yaml"
        path.write_text(
            "name: small\nworkers: 4\n"
            "network: {topology: {star: {latency: 5 ms, bandwidth: 50 Mbit/s}}, stack: gloo}\n"
            "job:\n  parameters: 20000\n  density: 1 %\n  iterations: 4\n  compute: {mean: 20 ms}\n"
            f"{more}"
            "exchanges: {dense: {scheme: dense}}\npolicies: {dense: {fixed: dense}}\n",
            encoding="utf-8",
        )
        return str(path)

    return written
