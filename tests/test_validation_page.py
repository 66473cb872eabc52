"""The page of the validation: figures are those of the predictions, and a run can be made anew from what it wrote."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    from validating import page, running

    return page, running


def entry(name, held, **more):
    count = len(held["measured"])
    full = {"split": ["sizes"] * count, "place": [""] * count, "system": [""] * count, "size": [1e8] * count}
    full |= {
        "low": [0.0] * count,
        "high": [10.0] * count,
        "three_segments": [2.0] * count,
        "log_log": [2.0] * count,
    } | held
    figures = {"rows": count, "curves": 1, "splits": {}, "spread_of_repetitions": 0.01}
    words = dict.fromkeys(("title", "hardware", "interconnect", "tool", "origin", "licence"), "a|b `c`\n<d>")
    return (
        {"name": name, "shipped": True, "nccl": True, "seconds": 1.0, "figures": figures, "held": full} | words | more
    )


def test_the_summary_has_medians_over_predictions_of_several_nodes(benchmarks):
    page, _ = benchmarks
    many = entry(
        "many", {"setting": ["all_reduce, 16 ranks on 2 nodes"] * 3, "measured": [1.0] * 3, "ours": [1.0, 1.02, 1.1]}
    )
    one = entry("one", {"setting": ["all_reduce, 8 ranks on 1 node"], "measured": [1.0], "ours": [9.0]})
    text = page.page({"sets": {"many": many, "one": one}, "left_out": {"odd": "why"}, "machine": {}}, {})
    what = "A size removed from the data, NCCL and RCCL on several nodes"
    assert f"| {what} | median 4 %, p90 15 % | 2.0 % / 8.4 % | 100 % / 100 % |" in text
    assert "worse in `one`" in text
    assert "- `odd`: why" in text
    assert "| a/b 'c' (d) |" in text
    assert "not in this run" in text


def test_order_counts_pairs_that_are_clearly_apart(benchmarks):
    page, _ = benchmarks
    settings = [f"{name}, 16 ranks on 2 nodes" for name in ("all_reduce, ring", "all_reduce, tree", "all_gather, ring")]
    held = {"setting": settings, "measured": [3.0, 1.0, 1.5], "ours": [2.0, 3.0, 1.0]}
    table = page.frame({"sets": {"a": entry("a", held)}})
    assert page.ordered(table) == {"all-reduce and all-gather": (1, 1), "ring and tree": (0, 1)}


def test_results_of_a_shipped_set_are_kept_and_read_again(benchmarks, tmp_path):
    page, running = benchmarks
    wanted, left_out = running.sets(None)
    one = next(one for one in wanted if one.name == "shaped_gloo")
    made = running.validated(one)
    running.save({"sets": {one.name: made}, "left_out": left_out, "machine": {}}, tmp_path / "r.json")
    again = running.load(tmp_path / "r.json")
    table = page.frame(again)
    sizes = table[table["split"] == "sizes"]
    figures = made["figures"]["splits"]["sizes"]["models"]["ours"]["all"]
    assert math.isclose(float(page.pd.Series(page.errors(sizes, "ours")).median()), figures["median"], rel_tol=1e-3)
    assert "`shaped_gloo`" in page.page(again, {"sizes": "x.svg"})


def test_as_many_sets_hold_the_aim_as_exact_intervals_give_in_simulation():
    from validating import coverage

    random, held = np.random.default_rng(7), []
    counts = [(1, 8), (2, 10), (4, 30), (12, 20), (30, 40)]
    for _ in range(150):
        rows = []
        for number, (curves, sizes) in enumerate(counts):
            for curve in range(curves):
                together = random.normal() * 0.4**0.5
                scores = together + random.normal(size=sizes) * 0.6**0.5
                where = {"set": f"set{number}", "system": "", "setting": f"curve{curve}"}
                rows.append(pd.DataFrame({**where, "inside": scores < 1.2816}))
        table = pd.concat(rows, ignore_index=True)
        each = table.groupby("set")["inside"].mean()
        held.append((each.between(0.85, 0.95).sum(), coverage.exact(table), coverage.correlation(table)))
    came, said, alike = np.mean(held, axis=0)
    assert said == pytest.approx(came, abs=0.35)
    assert 0.05 < alike < 0.4
    # Were all measurements taken to be independent, nearly two sets more would be.
    assert coverage.exact(table.assign(setting=np.arange(len(table)).astype(str))) > came + 0.5
