"""Rivals: each rule is its formula, none sees what is left out, learned ones neither, sets count alike."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.validate import rivals

SIZES = 4.0 ** np.arange(5, 15)


def of_the_page(name, monkeypatch):
    """Return a module by which the validation page is made."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module(f"validating.{name}")


def curve(ranks, nodes=0, collective="all_reduce", algorithm="", seconds=None):
    made = 1e-5 * ranks + 1e-9 * SIZES if seconds is None else seconds
    return Curve(Setting(collective, ranks, nodes, algorithm), SIZES, made)


def test_ranks_come_from_the_nearest_by_the_bus_factor_and_on_the_line_through_the_last_two():
    kept = [curve(ranks, seconds=np.full(10, float(ranks) ** 2)) for ranks in (2, 4, 8)]
    inside, outside = (
        rivals.rival_times("ranks", [kept[0], kept[2]], [curve(6)]),
        rivals.rival_times("ranks", kept, [curve(32)]),
    )
    assert np.allclose(inside[0]["nearest"], 64)
    assert np.allclose(inside[0]["nearest_by_bus_factor"], 64 * (5 / 6) / (7 / 8))
    assert np.allclose(inside[0]["log_log"], 36)
    assert np.allclose(outside[0]["log_log"], 32**2)
    assert np.allclose(outside[0]["nearest"], 64)


def test_between_two_as_near_numbers_of_ranks_stands_their_geometric_mean():
    kept = [curve(ranks, seconds=np.full(10, value)) for ranks, value in ((4, 1.0), (16, 4.0))]
    assert np.allclose(rivals.rival_times("ranks", kept, [curve(8)])[0]["nearest"], 2)


def test_the_rule_takes_the_all_reduce_of_the_same_ranks_nodes_and_algorithm_else_the_nearest():
    flat = {(8, 1, "ring"): 1.0, (8, 1, "tree"): 2.0, (8, 2, "ring"): 3.0, (64, 8, "ring"): 4.0}
    kept = [curve(ranks, nodes, "all_reduce", how, np.full(10, one)) for (ranks, nodes, how), one in flat.items()]
    held = [curve(8, 1, "all_gather", "ring"), curve(8, 2, "all_gather"), curve(32, 4, "all_gather", "ring")]
    said = [one["rule_of_bus_factor"][0] for one in rivals.rival_times("collectives", kept, held)]
    assert said == pytest.approx([0.5, 1.5, 4.0 * (31 / 32) / (2 * 63 / 64)])


def test_without_an_all_reduce_or_a_bus_factor_the_rule_says_nothing():
    said = rivals.rival_times("collectives", [curve(8)], [curve(8, collective="scan")])
    said += rivals.rival_times("collectives", [curve(8, collective="all_gather")], [curve(8)])
    assert all(np.isnan(one["rule_of_bus_factor"]).all() for one in said)


@pytest.mark.parametrize("split", ["sizes", "ranks", "collectives"])
def test_no_rival_looks_at_times_that_are_left_out(split, monkeypatch):
    learned = of_the_page("learned", monkeypatch)
    kept = [curve(4), curve(16), curve(4, collective="all_gather")]
    left = {"sizes": curve(4), "ranks": curve(8), "collectives": curve(8, collective="reduce_scatter")}[split]
    before, after = (
        rivals.rival_times(split, kept, [Curve(left.setting, left.sizes, seconds)], learned.fit_learned)[0]
        for seconds in (left.seconds, np.full(10, 99.0))
    )
    assert set(before) == {*rivals.RULES[split], *learned.LEARNED}
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_every_set_counts_alike_and_the_worse_ones_are_named(monkeypatch):
    alike = of_the_page("alike", monkeypatch)
    many = pd.DataFrame({"set": "many", "ours": [1.01] * 9, "log_log": [1.02] * 9})
    few = pd.DataFrame({"set": "few", "ours": [1.21, 5.0], "log_log": [1.2, np.nan]})
    near = pd.DataFrame({"set": "near", "ours": [1.0104], "log_log": [1.01]})
    table = pd.concat([many, few, near]).assign(measured=1.0, split="sizes", place="", gaussian_process=1.1)
    found = alike.medians(table, ["ours", "log_log", "nearest"])
    assert found["ours"].to_dict() == pytest.approx({"many": 0.01, "few": 0.21, "near": 0.0104})
    assert "nearest" not in found
    text = alike.section(table.assign(ours=table["ours"] + 0.01), dict.fromkeys(alike.LEARNED, "learned"))
    (row,) = [line for line in text.splitlines() if line.startswith("| sizes left out")]
    cells = [one.strip() for one in row.strip("|").split("|")]
    assert cells[1:6] == ["3", "8.7 % / 2.0 %", "7.7 % / 2.0 %", "10 % / 10 %", ""]
    assert cells[6:] == ["2: `few` (22 %, 20 %), `near` (2.0 %, 1.0 %)", "1"]


def test_a_constant_is_chosen_on_the_sets_of_other_sites_alone(monkeypatch):
    constants = of_the_page("constants", monkeypatch)
    figures = {"a_1": (1.0, 0.1), "a_2": (1.0, 0.1), "b_1": (0.2, 0.4), "b_2": (0.3, 0.5)}
    rows = [
        (name, factor, one, one) for name, each in figures.items() for factor, one in zip((1, 2), each, strict=True)
    ]
    values = pd.DataFrame(rows, columns=["set", "factor", "median", "p90"]).set_index(["set", "factor"])
    assert constants.without(values)["median"].to_dict() == {"a_1": 1.0, "a_2": 1.0, "b_1": 0.4, "b_2": 0.5}
