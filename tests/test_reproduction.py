"""Papers reproduced: what must hold, how rows are judged, what the command says and writes, the page as it stands."""

import json
import re
from functools import cache, partial
from itertools import product

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
from simnet.cost_models import costs
from simnet.network.weather import profile_state
from simnet.report.compared_values import KIND_COLOURS, draw_compared_values
from simnet.report.drawing import BOUND_COLOUR
from simnet.scenario import load, shipped
from simnet.scenario.runner import results_of
from simnet.validate import published as tables
from simnet.validate.reproduction import MISSING, REPRODUCTIONS, artopk, page, pictures, published_runs
from simnet.validate.reproduction.table import KINDS, Row, changed, figure_rows, golden

FAST = [name for name, one in REPRODUCTIONS.items() if not one.slow and not one.needs()]
WHO, ENDS = ("published", "ours"), ("", "_low", "_high")
SLOW = [name for name, one in REPRODUCTIONS.items() if one.slow]


invoke, did, refused = (partial(one, "reproduce") for one in (commands.invoke, commands.did, commands.refused))


@cache
def rows_of(name):
    return REPRODUCTIONS[name].rows()


def holds(name, rows):
    """Check that a reproduction has its rows as frozen, within their tolerance, and all of them in its picture."""
    assert [row for row in rows if row.fails] == []
    assert changed(name, rows) == []
    pictured(name, rows)


def pictured(name, rows):
    """Check that a picture has both values of each row once, with their place, series, kind and contradiction."""
    places = pictures.compared_values(name, rows)
    figure = draw_compared_values("", "", places)
    lines = [(axes, line) for axes in figure.axes for line in axes.lines if line.get_label()[0] != "_"]
    drawn = {line.get_label(): one for one in lines for line in one[1:]}
    marks = {one.get_label(): one.get_marker() for one in figure.legends[0].legend_handles}
    assert len(lines) == len(drawn) == 2 * len(rows)
    for (row, place), who in product(zip(rows, places, strict=True), WHO):
        axes, line = drawn[f"{who} {row.what}"]
        face = KIND_COLOURS[row.kind] if who == "ours" else ("none", BOUND_COLOUR)[row.contradicts]
        assert line.get_markerfacecolor() == face
        across, along = line.get_data()[:: 1 if place.axis else -1]
        names, ends = [one.get_text() for one in axes.get_yticklabels()], [figure_rows(row)[who + end] for end in ENDS]
        ends = [names.index(ends[0])] if isinstance(row.ours, str) else [one for one in ends if one == one]
        assert {*along} == {one for one in ends if not isinstance(one, str)}
        assert (axes.get_ylabel() if place.axis else axes.get_xlabel()) == row.unit
        for at in {*across}:
            if place.axis:
                assert re.search(rf"(?<![\w.]){at:g}(?![\w.-])", row.what.replace(",", ""))
                assert marks.get(place.series, line.get_marker()) == line.get_marker()
            else:
                assert all(part in names[int(at)] + axes.get_title("left") for part in row.what.split(", "))


@pytest.mark.parametrize("name", FAST)
def test_all_values_are_within_their_tolerance(name):
    holds(name, rows_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow_ones_are_within_their_tolerance(name):
    holds(name, REPRODUCTIONS[name].rows())


def test_the_page_has_everything_in_order():
    text = page.page({name: rows_of(name) if name in FAST else None for name in REPRODUCTIONS})
    headings = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert headings == list(REPRODUCTIONS)
    for one in MISSING:
        assert f"| {one.paper} | {one.what} | {one.why} |" in text
    for kind in KINDS:
        assert f"- *{kind}*: " in text
    assert "FAIL" not in text
    # What contradicts stands before all else of the summary.
    summary = text.partition("## Summary")[2].partition("| name |")[0]
    for name in ("artopk-fig-7 (4 of 8 values, off by 41.5 to 119 %)", "eager-table-5 (31 of 35 values, off by "):
        assert name in " ".join(summary.split())


# What must hold


def test_simulated_times_are_those_of_the_formulas_and_not_of_the_paper():
    formula = tables.read_published("table_vi.csv")["reference_ms"]
    assert [row.ours for row in rows_of("artopk-table-vi")] == pytest.approx(list(formula), abs=0.000501)
    assert all(row.ours != row.published for row in rows_of("artopk-table-vi"))


def test_shipped_step_times_are_the_sheets(shared):
    sheet = pd.read_csv(shared / "papers" / "data" / "artopk_table3_4_steptime_accuracy.csv")
    both = pd.concat([tables.read_published("table_iii.csv"), tables.read_published("table_iv.csv")])
    assert both["published_ms"].tolist() == sheet["t_step_ms"].tolist()
    sheet = pd.read_csv(shared / "papers" / "data" / "spardl_reference_bytes.csv")
    known = set(zip(sheet["run"], sheet["SRS_payload_bytes_all_ranks"], strict=True))
    ours = tables.read_published("spardl_bytes.csv").query("phase == 'spar-reduce-scatter'")
    assert set(zip(ours["run"], ours["published_bytes_of_all"], strict=True)) <= known


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_copied_value_would_be_noticed(workers):
    # Other latency and bandwidth than those of any table.
    ours = artopk.simulated_ms("ART-tree", workers, 3.0, 7.0, 1e5)
    assert ours == pytest.approx(1e3 * float(costs.artopk_tree(3e-3, 1 / (7 * 1.25e8), 1e6, 0.1, workers)), rel=1e-9)


@pytest.mark.parametrize(
    ("scenario", "policy", "gigabits"),
    [
        # Bits that a node sends in a ring of one byte an entry, and of two; that a peer gets of the others' files.
        ("intellect_1", "int8", 8 * 2 * 4 / 5 * 10),
        ("opendiloco_1b", "half", 16 * 2 * 4 / 5 * 1.1),
        ("covenant_72b", "as coded", 8 * 4 * 160 / 4096 * 72),
        ("covenant_72b", "two bits", 8 * 4 * 112 / 4096 * 72),
    ],
)
def test_runs_take_what_their_bytes_take(scenario, policy, gigabits):
    links = ["workers=5", "network.stack=ideal", "network.topology.star.latency=0 s"]
    found = published_runs.first_round(scenario, 3.0, *links)[policy]
    assert found["communicate_s"] == pytest.approx(gigabits / 3.0, rel=1e-4)


def test_runs_are_shipped_as_published(shared):
    sheet = pd.read_csv(shared / "papers" / "data" / "lowcomm" / "published_runs.csv")
    listed = {
        (row.source, row.quantity): [float(one) for one in row.values_in_order.split("/")]
        for row in sheet.itertuples()
        if "Dolma" in row.setting or "all-reduce" in row.quantity or "utilization" in row.quantity
        if "eval" not in row.quantity and "Data-Parallel" not in row.method
    }
    own = tables.read_published("hours.csv").set_index("source")
    streaming = own[own["method"] == "Streaming FP4"]
    assert streaming["hours_at_1_gbit_s"].tolist() == listed["2501.18512 Table 1", "hours at 1 Gbit/s"]
    assert streaming["terabytes"].tolist() == listed["2501.18512 Table 1", "TB exchanged"]
    eager = own.loc["2502.12996 Table 1", "hours_at_1_gbit_s"]
    assert eager.tolist() == listed["2502.12996 Table 1", "hours at 1 Gbit/s"]
    runs = tables.read_published("runs.csv").query("paper == 'INTELLECT-1'")["value"].tolist()
    both = [listed["2412.01152 Table 2", what] for what in ("median all-reduce s", "compute utilization %")]
    assert runs == [*both[0], *both[1]]


def test_times_of_fig_1b_are_numbers_of_the_sheet(shared):
    listed = re.findall(r"\d+\.?\d*", (shared / "papers" / "data" / "artopk_fig1_compute_sync.csv").read_text())
    assert {*tables.read_published("fig_1b.csv")["published_ms"]} <= {*map(float, listed)}


# Rows


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.floats(0, 2), st.booleans())
def test_bounds_are_what_they_say(theirs, ours, tolerance, absolute):
    equal, most, least = (Row("a", theirs, ours, "", tolerance, absolute, relation) for relation in ("=", "<=", ">="))
    assert equal.passes == (most.passes and least.passes)
    assert most.passes or ours > theirs
    assert least.passes or ours < theirs
    error = theirs - ours if absolute else theirs / ours - 1
    assert equal.error == pytest.approx(error, rel=1e-9, abs=1e-12)


def test_rows_known_to_be_outside_are_judged_and_said():
    rows = rows_of("streaming-table-1")
    # Every published hour has a tolerance, what its digits leave open, and four are outside of it.
    assert all(0 < row.tolerance < 0.04 for row in rows if row.unit == "h")
    # The six of TB are ten times ours.
    assert [row.contradicts for row in rows].count(True) == 4 + 6
    assert did("streaming-table-1", "--check").exit_code == 0
    # What is said to be outside, and is not, is as wrong as what is not said.
    assert Row("a", 1.0, 1.0, "", 0.1, beyond=True).fails
    assert Row("a", 1.0, 2.0, "", 0.1).fails


# The command


def test_it_tells_what_there_is_and_what_is_missing():
    plain = json.loads(invoke("artopk-fig-8", "--json").stdout)
    assert len(plain["missing"]) == len(MISSING)
    assert all(one["why"] for one in plain["missing"])


def test_it_shows_values_and_writes_them(tmp_path):
    target = tmp_path / "found.csv"
    shown = did("artopk-fig-8", "exdyna-thresholds", "artopk-fig-4", "--check", "--out", target)
    assert shown.stdout.startswith("8 tests, 8 within tolerance; 13 echoes, 13 within tolerance.\n")
    assert "Evidence    Contradictions: none.\n" in shown.stdout
    assert "13.939" in did("artopk-fig-8").stdout
    frame = pd.read_csv(target)
    assert frame["name"].value_counts().to_dict() == {"artopk-fig-4": 8, "exdyna-thresholds": 7, "artopk-fig-8": 6}
    assert frame["kind"].value_counts().to_dict() == {"echo": 13, "test": 8}
    assert frame["passes"].all()
    refused("artopk-fig-8", "--out", target)
    did("artopk-fig-8", "-q", "--out", target, "--force")
    (one,) = json.loads(invoke("artopk-fig-8", "--json").stdout)["reproductions"]
    assert (one["kinds"], one["contradictions"]) == ({"echo": 6}, 0)
    assert [value["kind"] for value in one["values"]] == ["echo"] * 6


def test_pictures_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    did("artopk-fig-1b", "artopk-fig-8", "--figures")
    place = tmp_path / "runs" / "papers"
    drawn = [f"{name}.{kind}" for name in ("artopk-fig-1b", "artopk-fig-8") for kind in ("png", "svg")]
    assert sorted(one.name for one in place.iterdir()) == [*drawn, "index.md"]
    text, old = (place / "index.md").read_text(), (place / "artopk-fig-8.svg").read_bytes()
    assert "![AR-Topk, Fig. 1b. Contradictions: artopk-fig-1b (2 of 4 values" in text
    # What stands below a picture names what contradicts, and on which conditions.
    said = pictures.caption(REPRODUCTIONS["artopk-fig-1b"], rows_of("artopk-fig-1b"))
    assert said.startswith("2 of 4 values contradict: AlexNet; ViT. A simulated ring of 8 ranks on a star")
    again = ("artopk-fig-8", "--figures", "--out", place)
    refused(*again)
    monkeypatch.setattr(pictures, "caption", lambda one, rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        invoke(*again, "--force")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert sorted(one.name for one in place.iterdir()) == [*drawn, "index.md"]
    did(*again, "--force")
    assert sorted(one.name for one in place.iterdir()) == [*drawn[2:], "index.md"]
    did("artopk-fig-8", "--out", "one.svg")
    assert (tmp_path / "one.svg").read_bytes() == (place / "artopk-fig-8.svg").read_bytes() == old
    refused("artopk-fig-8", "artopk-fig-4", "--out", "two.svg")


def test_check_fails_on_a_value_that_has_changed_within_its_tolerance(monkeypatch):
    monkeypatch.setitem(artopk.COMPUTE, "AlexNet", 3.6)
    failed = invoke("artopk-table-iii", "--check")
    assert failed.exit_code == 1
    said = " ".join(failed.stdout.split())
    assert "utside its tolerance" not in said
    assert said.startswith("Changed: artopk-table-iii: AlexNet, DenseSGD; artopk-table-iii: AlexNet, LWTopk")


def test_what_needs_a_checkout_is_left_out_without_one(monkeypatch):
    monkeypatch.setattr("simnet.validate.reproduction.exdyna.golden", lambda name: None)
    assert "left out: it needs the golden runs" in did("exdyna-golden", "--check", "--wide").output
    (one,) = json.loads(did("exdyna-golden", "--json", "-q").stdout)["reproductions"]
    assert one["values"] == []
    assert golden("no such folder") is None


# The jobs


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped().values() if path.parent.name == "papers"))
def test_scenarios_of_papers_build_and_run(name):
    run = load(name, ["job.iterations=2", "job.density=0.01", "workers=4"]).build()
    results = results_of(run)
    assert set(results) == set(run.policies)
    assert all((one.iterations["iteration_s"] > 0).all() for one in results.values())


def test_jobs_of_fig_8_follow_the_published_schedules():
    for config in ("C1", "C2"):
        job = load(f"artopk_fig8_{config.lower()}").build().job
        assert job.iterations == 51 * tables.STEPS
        for start, network in job.stages:
            state = profile_state(config, start // tables.STEPS)
            assert network.links.capacity(0, 0.0)[0] == pytest.approx(state.bandwidth)
