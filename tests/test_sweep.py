"""`simnet run --grid`: the grid, what its table says against runs of the job, and that no kill alters a byte."""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
import killing
import needs
from commands import contents
from learnt import check_learnt
from scenario_texts import DENSE_AND_AG
from simnet.base import dask_cluster, file_io, processes, units
from simnet.base.errors import InputError, SimnetError
from simnet.base.file_io import INCOMPLETE
from simnet.report import learning, paired
from simnet.scenario import load
from simnet.scenario.finding import Source
from simnet.scenario.runner import run_here
from simnet.scenario.settings import full_key
from simnet.studies.runs import locked_folder
from simnet.studies.sweeping import cell, grid, work
from simnet.traces import Recorder
from simnet.training.job.running import run_policy

TINY = """
workers: 2
seed: 5
network: {topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}}
job:
  parameters: 4000
  iterations: 2
  density: 5 %
  compute: {mean: 1 ms, spread: 5 %}
exchanges: {AG: {scheme: topk}, ring: {scheme: artopk}}
"""
TRAINED = (
    """
workers: 3
seed: 5
network: {topology: {star: {latency: 1 ms, bandwidth: 1 Mbit/s}}}
job:
  gradients:
    train: {model: {mlp: {hidden: [10]}}, batch: 8, evaluate: 2, target: 45 %,
            data: {classification: {samples: 300, features: 12, classes: 4, noise: 1.0}}}
  iterations: 16
  density: 0.1
  compute: {mean: 10 ms}
"""
    + DENSE_AND_AG
    + "  bound: {oracle: {among: [AG, dense]}}\n"
)
GRID = ("--grid", "network.bandwidth=0.01,1,10Gbit/s", "--grid", "density=0.01:0.1:4:log")
CELLS = 12


class Here:
    """In place of `simnet.base.processes.Pool`: one cell after the other in this process."""

    def __init__(self, jobs):
        self.jobs = jobs

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def each(self, work, tasks, progress, **options):
        for number, task in enumerate(tasks):
            yield number, processes.run_task(work, task)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(processes, "Pool", Here)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenarios") / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def swept(tiny, tmp_path_factory):
    """A sweep that nobody disturbed, on two processes."""
    out = tmp_path_factory.mktemp("swept")
    result = did(tiny, *GRID, "--out", out, "--jobs", 2)
    return out, result


invoke, did, refused = (partial(one, "run") for one in (commands.invoke, commands.did, commands.refused))


def stamped(place):
    return {path.name: path.stat().st_mtime_ns for path in (place / "cells").iterdir()}


def table(place):
    return pd.read_csv(place / "sweep.csv", keep_default_na=False, na_values={"regret_s": ""})


# The grid


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.sampled_from(["Gbit/s", "Mbit/s", "MB/s"]))
def test_a_unit_at_the_end_is_that_of_all(values, unit):
    axis = grid.axis(f"bandwidth={','.join(map(str, values))} {unit}")
    assert grid.numbers(axis.values) == ("Bps", [units.bandwidth(f"{one} {unit}") for one in values])


def test_each_value_may_have_a_unit_of_its_own():
    axis = grid.axis("latency=0, 10us,1 ms ,2,3 s")
    assert axis.values == ("0", "10us", "1 ms", "2 s", "3 s")
    assert grid.numbers(axis.values) == ("s", [0.0, 1e-5, 1e-3, 2.0, 3.0])
    assert grid.numbers(grid.axis("density=0.5,1,5,10%").values) == (None, [0.005, 0.01, 0.05, 0.1])


@given(
    st.floats(1e-6, 1e6).map(lambda one: f"{one:.6g}"),
    st.floats(1.01, 1e6),
    st.integers(2, 40),
    st.sampled_from(["", ":log", ":lin"]),
)
def test_ranges_are_even_and_hold_their_ends(low, ratio, count, kind):
    high = f"{float(low) * ratio:.6g}"
    _, found = grid.numbers(grid.axis(f"x={low}:{high}:{count}{kind}").values)
    made = (np.geomspace if kind == ":log" else np.linspace)(float(low), float(high), count)
    assert (found[0], found[-1], len(found)) == (float(low), float(high), count)
    assert found == pytest.approx(made, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("density", "must be KEY=VALUES"),
        ("=1", "must be KEY=VALUES"),
        ("density=1,,2", "must be KEY=VALUES"),
        ("density=0.01,5%", "0.01 may mean 0.01 % or 1 %"),
        ("density=[1,2", "do not match"),
        ("density=0:1:5:log", "needs ends > 0"),
        ("density=1:1:5", "two different ends"),
        ("density=0:1:1", "n from 2 to 1,000,000"),
        ("density=0:1:999999999", "n from 2 to 1,000,000"),
        ("x=1ms:1Gbit/s:3", "units of one kind"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(text, said):
    with pytest.raises(InputError) as caught:
        grid.axis(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--grid ")


@pytest.mark.parametrize(
    ("scenario", "name", "field"),
    [
        ("quickstart", "bandwidth", "network.topology.star.bandwidth"),
        ("quickstart", "network.latency", "network.topology.star.latency"),
        ("quickstart", "density", "job.density"),
        ("quickstart", "workers", "workers"),
        ("quickstart", "seed", "seed"),
        ("quickstart", "job.spread", "job.compute.spread"),
        ("quickstart", "job.compute.spread", "job.compute.spread"),
        ("quickstart", "exchanges.AG.allgather", "exchanges.AG.allgather"),
        ("link_faults", "oversubscription", "network.topology.fat_tree.oversubscription"),
        ("link_faults", "bandwidth", "network.topology.fat_tree.bandwidth"),
        ("shared_fat_tree", "density", "job.density"),
    ],
)
def test_short_names_mean_the_field_of_the_scenario(scenario, name, field):
    assert full_key(name, load(scenario)) == field


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bandwith", "did you mean 'bandwidth'? Allowed:"),
        ("network.bandwith", "did you mean 'bandwidth'? Allowed:"),
        ("output.report", "does not alter what is simulated"),
        ("scheme", "may mean exchanges.AG.scheme, exchanges.ART-ring.scheme; write one of them"),
    ],
)
def test_names_that_mean_nothing_or_too_much_are_refused(name, said):
    with pytest.raises(InputError, match="--set") as caught:
        full_key(name, load("quickstart"))
    assert said in str(caught.value)


def test_other_parameters_go_by_the_topology_of_the_cell(tiny):
    topologies = (
        "network.topology={star: {latency: 1 ms, bandwidth: 1 Gbit/s}},{ring: {latency: 1 ms, bandwidth: 1 B/s}}"
    )
    found = work.plan(Source(tiny), ["bandwidth=1,2Gbit/s", topologies]).cells
    last = [one.overrides[-1] for one in found]
    assert [one.rpartition(".")[0] for one in last] == ["network.topology.star", "network.topology.ring"] * 2
    assert [one.values[0] for one in found] == ["1 Gbit/s", "1 Gbit/s", "2Gbit/s", "2Gbit/s"]


def test_the_grid_has_every_combination_and_together_only_pairs(tiny):
    found = work.plan(Source(tiny), ["workers=2,3", "seed=0:2:3"])
    assert [one.values for one in found.cells] == [(w, s) for w in "23" for s in "012"]
    assert [one.name for one in found.columns] == ["workers", "seed"]
    paired = work.plan(Source(tiny), ["workers=2,3; density=1,2%", "seed=0,1"])
    assert [one.values for one in paired.cells] == [(*pair, s) for pair in (("2", "1 %"), ("3", "2%")) for s in "01"]
    with pytest.raises(InputError, match="workers has 2, seed has 3"):
        work.plan(Source(tiny), ["workers=2,3; seed=0:2:3"])


def test_what_is_too_large_or_given_twice_is_refused(tiny):
    assert "399,980 cells, more than 1,000; --force runs them" in refused(
        tiny, "--grid", "seed=1:19999:19999", "--grid", "density=0.1:0.2:20"
    )
    assert "job.density is a parameter twice" in refused(tiny, "--grid", "density=1%", "--grid", "job.density=2%")
    assert "--seed: is a parameter already" in refused(tiny, "--grid", "seed=1,2", "--seed", 3)
    assert "there is no policy 'AH'" in refused(tiny, *GRID, "--policies", "AH")


# The table


def test_there_is_a_row_for_each_cell_and_policy(swept):
    out, result = swept
    found = table(out)
    assert len(found) == 3 * CELLS
    assert list(found.columns) == ["cell", "network.bandwidth_Bps", "density", *cell.COLUMNS]
    assert list(found["network.bandwidth_Bps"].unique()) == [1.25e6, 1.25e8, 1.25e9]
    assert list(found["policy"][:3]) == list(load(out / "scenario.lock.yaml").config.policies)
    assert (found["status"] == "done").all()
    content = json.loads((out / "sweep.json").read_text())
    assert [row["simulated_s"] for row in content["rows"]] == list(found["simulated_s"])
    assert content["missing"] == []
    assert (found[list(learning.COLUMNS)] == "").all(axis=None), "nothing is trained"
    assert not (out / "figures" / "sweep-target.png").exists()
    parquet = pd.read_parquet(out / "sweep.parquet")
    assert list(parquet["total_bytes_sent_B"]) == list(found["total_bytes_sent_B"])
    assert not (out / INCOMPLETE).exists()
    assert "sweep.csv" in result.stderr
    shown = result.stdout.partition("---\n")[2].split("\n\n")[0].splitlines()
    assert len(shown) == CELLS
    assert max(map(len, result.stdout.splitlines())) <= 80
    fastest = found[found["wins"] | found["tied"]].groupby("policy")["cell"].nunique()
    assert result.stdout.startswith("It depends: " if (fastest < CELLS).all() else "")
    for kind in ("png", "svg"):
        assert (out / "figures" / f"sweep.{kind}").stat().st_size > 500


def test_the_parts_add_up_and_the_winner_is_the_fastest(swept):
    found = table(swept[0])
    parts = found[["compute_s", "select_s", "communicate_s", "wait_s"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(found["iteration_s"].to_numpy())
    run = found[found["policy"] != "oracle"]
    for _, group in run.groupby("cell"):
        best = group["simulated_s"].min()
        assert list(group["wins"] | group["tied"]) == list(group["simulated_s"] <= 1.001 * best)
        assert group["wins"].sum() + (group["tied"].sum() > 1) == 1
        assert group["vs_best"].to_numpy() == pytest.approx(group["simulated_s"].to_numpy() / best)
    assert not found[found["policy"] == "oracle"]["wins"].any()


def test_values_written_differently_are_one_cell(here, tiny, tmp_path):
    did(tiny, "--grid", "bandwidth=1Gbit/s,1000Mbit/s", "--policies", "AG", "--out", tmp_path)
    assert len(list((tmp_path / "cells").iterdir())) == 1
    first, second = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    assert first | {"cell": 1} == second


def test_one_or_two_numeric_parameters_are_drawn(here, tiny, swept, tmp_path):
    for name, axis in (("one", "bandwidth=1,10Gbit/s"), ("text", "device=ideal,v100-torch2.6")):
        did(tiny, "--grid", axis, "--policies", "AG", "--out", tmp_path / name)
    drawn = [[one.name for one in folder.glob("figures/*.svg")] for folder in (swept[0], tmp_path / "one")]
    assert drawn == [["sweep.svg"]] * 2
    assert not (tmp_path / "text" / "figures").exists()


# What is learnt


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A sweep of a training over seeds, in this process, and its scenario."""
    path = tmp_path_factory.mktemp("scenarios") / "trained.yaml"
    path.write_text(TRAINED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "Pool", Here)
        out = tmp_path_factory.mktemp("trained")
        result = did(path, "--grid", "seed=0,1,2", "--out", out)
    return out, path, result.stdout


def test_what_is_learnt_is_as_in_a_run_and_of_each_seed_its_own(trained):
    out, path, shown = trained
    found = pd.read_csv(out / "sweep.csv")
    for seed in (0, 2):
        run = load(path, seed=seed).build()
        frames = {name: run_policy(run.job, name, policy).iterations for name, policy in run.policies.items()}
        check_learnt(found[found["seed"] == seed].set_index("policy").to_dict("index"), frames, 0.45, 16 * 0.01)
    assert (found["target_accuracy"] == 0.45).all()
    losses = found.groupby("policy")["loss"]
    assert (losses.nunique() == 3).all(), "weights, data and batches follow the seed"
    means = found.groupby("policy")["time_to_target_s"].mean()
    assert (means > 0).all()
    for row, line in zip((0, 1, 2), shown.partition("---\n")[2].splitlines(), strict=False):
        times = found[found["seed"] == row].set_index("policy")["time_to_target_s"]
        assert sorted(map(float, line.split()[1:])) == sorted(float(f"{1e3 * one:.3g}") for one in times)
    parquet = pd.read_parquet(out / "sweep.parquet")
    assert list(parquet["iterations_to_target"]) == list(found["iterations_to_target"])


def test_the_first_to_the_target_can_be_run_and_the_winner_stays_the_fastest(trained):
    found = pd.read_csv(trained[0] / "sweep.csv")
    assert not found[found["policy"] == "bound"]["first_to_target"].any()
    for _, group in found[found["policy"] != "bound"].groupby("cell"):
        soonest, fastest = group["time_to_target_s"].min(), group["simulated_s"].min()
        assert list(group["first_to_target"]) == list(group["time_to_target_s"] == soonest)
        assert list(group["wins"] | group["tied"]) == list(group["simulated_s"] <= 1.001 * fastest)


def test_policies_that_failed_cost_the_others_what_is_measured_by_them(trained):
    loaded = load(trained[1])
    run, stalled = loaded.build(), SimnetError("it stalled")
    outcomes = dict.fromkeys(run.policies, stalled) | {"AG": run_policy(run.job, "AG", run.policies["AG"])}
    failed, other = cell.cell_rows(loaded, run, outcomes)[:2]
    assert failed["message"] == "it stalled"
    assert {failed[name] for name in learning.COLUMNS} == {None}
    assert other["time_to_target_s"] > 0
    assert other["first_to_target"] is True
    assert other["statistical_efficiency"] is None, "in other cells it is over the iterations of dense"
    *_, other, _ = cell.cell_rows(load(trained[1], ["job.gradients.train.target=null"]), run, outcomes)
    assert [other[name] for name in ("target_accuracy", "time_to_target_s", "first_to_target")] == [None] * 3
    assert other["best_accuracy"] >= other["accuracy"] > 0


def test_cells_with_other_columns_run_again(trained, here):
    out, path, _ = trained
    before = contents(out)
    for name in sorted((out / "cells").iterdir())[:2]:
        content = json.loads(name.read_text())["content"]
        content["format"] = "simnet sweep cell 1"
        content["rows"] = [{key: row[key] for key in row if key not in learning.COLUMNS} for row in content["rows"]]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        name.write_text(json.dumps({"content": content, "sha256": digest}))
    result = invoke(path, "--grid", "seed=0,1,2", "--out", out)
    assert "1 of 3 cells are there already, 2 to run" in result.stderr
    assert contents(out) == before
    loaded = load(path)
    assert cell.identity(loaded, cell.FORMAT) != cell.identity(loaded, "simnet sweep cell 1")


# What goes wrong


def test_several_seeds_are_seeds_as_a_parameter_that_are_compared(here, tiny, tmp_path):
    grid_ = ("--grid", "density=2,10%", "--grid", "network.bandwidth=1,10 Gbit/s")
    shown = did(tiny, *grid_, "--seed", 4, "--seeds", 3, "--out", tmp_path / "seeds").stdout
    did(tiny, *grid_, "--grid", "seed=4,5,6", "--out", tmp_path / "given", "-q")
    one, other = (contents(tmp_path / name) for name in ("seeds", "given"))
    for name in ("sweep.csv", "sweep.parquet", "paired.csv", "figures/sweep.png", "figures/sweep.svg"):
        assert one[name] == other[name], name
    cells, each = table(tmp_path / "seeds"), pd.read_csv(tmp_path / "seeds" / "paired.csv")
    assert len(each) * 3 == len(cells)
    for (density, rate), group in each.groupby(["density", "network.bandwidth_Bps"]):
        rows = cells[(cells["density"] == density) & (cells["network.bandwidth_Bps"] == rate)]
        times = rows.pivot(index="seed", columns="policy", values="iteration_s")
        found = paired.contest({name: times[name] for name in times if name != "oracle"})
        assert set(group["policy"][group["iteration_tied"]]) == {found.policy, *found.tied_with}
        more = group.set_index("policy")["iteration_more_low_s"]
        for name, difference in found.differences.items():
            assert more[name] == pytest.approx(difference.low, rel=1e-9, abs=1e-15)
    assert shown.startswith(f"{found.policy} in all 4 cells")


def test_values_that_do_not_go_together_cost_no_other_cell(here, tiny, tmp_path):
    grid = ("--grid", "workers=2,4", "--grid", "job.compute.slow={0: 2},{3: 2}")
    result = invoke(tiny, *grid, "--policies", "AG", "--out", tmp_path)
    assert result.exit_code == 1
    assert "1 of 4 cells without result: " in " ".join(result.stdout.split())
    found = table(tmp_path)
    assert list(found["status"]) == ["done", "refused", "done", "done"]
    assert "0 to 1" in found["message"][1]


def test_a_value_that_no_cell_can_have_ends_the_command_before_anything_runs(here, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(cell, "run_here", lambda *_: pytest.fail("it was simulated"))
    for values in ("density=2,200,5%", "density=200,300%"):
        said = refused(tiny, "--grid", values, "--out", tmp_path / "out")
        assert said == "error: --grid: job.density: must be <= 1, got '200 %'\n"
    # Fits the fields, but not the rest of the scenario.
    assert "hosts" in refused(tiny, "--grid", "network.topology.star.hosts=1", "--out", tmp_path / "out")
    assert "there is no such field" in refused(tiny, "--grid", "job.densty=1%", "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "sweep.csv").exists()


def test_a_network_that_stalls_is_a_failed_row_and_stays_one(here, tiny, tmp_path, monkeypatch):
    faults = "network.faults=[],[{links: 'host:0', down: {at: 0 s}}]"
    arguments = (tiny, "--grid", faults, "--policies", "AG,ring", "--out", tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 1
    found = table(tmp_path)
    assert list(found["status"]) == ["done", "done", "failed", "failed"]
    assert "for ever" in found["message"][2]
    assert "1 of 2 cells without result: " in " ".join(result.stdout.split())
    before = contents(tmp_path)
    monkeypatch.setattr(cell, "run_here", lambda *_: pytest.fail("it was simulated again"))
    assert invoke(*arguments).exit_code == 1
    assert contents(tmp_path) == before


def test_a_bug_in_a_cell_costs_no_other_and_is_not_kept(here, tiny, tmp_path, monkeypatch):
    def broken(run, progress):
        if run.job.seed == 2:
            raise ZeroDivisionError("a bug")
        return run_here(run, progress)

    monkeypatch.setattr(cell, "run_here", broken)
    arguments = (tiny, "--grid", "seed=1,2,3", "--policies", "AG", "--out", tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "cell 1 (seed=2): failed: ZeroDivisionError: a bug" in " ".join(result.stdout.split())
    assert "Traceback" in result.stderr
    assert list(table(tmp_path)["status"]) == ["done", "failed", "done"]
    monkeypatch.undo()
    monkeypatch.setattr(processes, "Pool", Here)
    did(*arguments)
    assert (table(tmp_path)["status"] == "done").all()


def test_a_process_that_ends_costs_no_cell(tiny):
    planned = work.plan(Source(tiny, policies=["AG"]), ["seed=1,2,3"])
    tasks = [(one, cell.identity(one.load(), cell.FORMAT)) for one in planned.tasks]
    with processes.Pool(1) as workers:
        outcomes = workers.each(cell.run_cell, tasks, lambda number, share: None, retry=True)
        found = dict([next(outcomes)])
        (process,) = multiprocessing.active_children()
        os.kill(process.pid, signal.SIGKILL)
        found |= dict(outcomes)
    assert {one.kind for one in found.values()} == {"done"}
    assert [cell.decoded(found[number].content, tasks[number][1]) is not None for number in range(3)] == [True] * 3
    assert not multiprocessing.active_children()


# Resuming


def test_cells_that_are_there_do_not_run_again(here, swept, tiny, tmp_path, monkeypatch):
    out, _ = swept
    before = contents(out)
    monkeypatch.setattr(cell, "run_here", lambda *_: pytest.fail("it was simulated again"))
    result = did(tiny, *GRID, "--out", out)
    assert "12 of 12 cells are there already" in result.stderr
    assert contents(out) == before


@pytest.mark.parametrize("damage", ["cut", "altered", "of another", "deep", "empty"])
def test_a_damaged_file_is_run_again(here, swept, tiny, damage):
    out, _ = swept
    before = contents(out)
    first, second, *_ = sorted((out / "cells").iterdir())
    data = first.read_bytes()
    first.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "altered": data.replace(b'"simulated_s": 0.0', b'"simulated_s": 0.1', 1),
            "of another": second.read_bytes(),
            "deep": b"[" * 100_000,
            "empty": b"",
        }[damage]
    )
    assert first.read_bytes() != data
    result = invoke(tiny, *GRID, "--out", out)
    assert "11 of 12 cells are there already, 1 to run" in result.stderr
    assert contents(out) == before


def test_force_runs_all_and_gives_the_same(here, swept, tiny):
    out, _ = swept
    before, stamps = contents(out), stamped(out)
    did(tiny, *GRID, "--out", out, "--force")
    assert contents(out) == before
    assert all(later > stamps[name] for name, later in stamped(out).items())


def test_ctrl_c_keeps_what_is_done(here, swept, tiny, tmp_path, monkeypatch):
    class Interrupted(Here):
        def each(self, work, tasks, progress, **options):
            for number, found in super().each(work, tasks, progress):
                if work is cell.run_cell and number == 5:
                    raise KeyboardInterrupt
                yield number, found

    monkeypatch.setattr(processes, "Pool", Interrupted)
    result = invoke(tiny, *GRID, "--out", tmp_path)
    assert result.exit_code == 130
    assert "interrupted: 7 cells not done, as the file INCOMPLETE says" in result.stderr
    assert (tmp_path / INCOMPLETE).read_text().startswith("interrupted: 7 of 12 cells missing")
    assert len(table(tmp_path)) == 15
    assert len(json.loads((tmp_path / "sweep.json").read_text())["missing"]) == 7
    monkeypatch.setattr(processes, "Pool", Here)
    did(tiny, *GRID, "--out", tmp_path)
    assert contents(tmp_path) == contents(swept[0])


@pytest.mark.parametrize("written", [0, 2, 3])
def test_a_sweep_that_ends_while_it_writes_its_table_says_so_and_is_mended(here, swept, tiny, monkeypatch, written):
    out, _ = swept
    before, real = contents(out), file_io.atomic_write
    count = 0

    def dying(path):
        nonlocal count
        count += path.name != INCOMPLETE
        if count > written:
            raise SystemExit(9)
        return real(path)

    monkeypatch.setattr(file_io, "atomic_write", dying)
    assert invoke(tiny, *GRID, "--out", out).exit_code == 9
    assert (out / INCOMPLETE).exists()
    monkeypatch.setattr(file_io, "atomic_write", real)
    did(tiny, *GRID, "--out", out)
    assert contents(out) == before


@needs.posix
def test_two_sweeps_do_not_share_a_folder(here, tiny, tmp_path):
    with locked_folder(tmp_path, "sweep", work.CELLS):
        assert "another sweep is at work there" in refused(tiny, "--grid", "seed=1", "--out", tmp_path)


@pytest.mark.parametrize(
    "change", ["workers=3", "seed=6", "job.density=0.051", "network.jitter={uniform: {high: 1 ms}}"]
)
def test_the_identity_is_that_of_all_a_cell_depends_on(tiny, change):
    first, same, other = (Source(str(tiny), fields).load() for fields in ((), (), (change,)))
    assert cell.identity(first, cell.FORMAT) == cell.identity(same, cell.FORMAT)
    assert cell.identity(first, cell.FORMAT) != cell.identity(other, cell.FORMAT)


def test_the_identity_goes_by_the_content_of_files_and_of_recorded_gradients(tmp_path):
    path, link, weather = tmp_path / "windy.yaml", tmp_path / "link.csv", "[{links: all, trace: {file: link.csv}}]"
    text = TINY.replace("network: {", f"network: {{weather: {weather}, ")
    path.write_text(text.replace("parameters: 4000", "gradients: {recorded: ./trace}"))
    with Recorder(tmp_path / "trace", {"w": (400,)}, workers=2, every=1) as recorder:
        for worker in (0, 1, 0, 1):
            recorder.take({"w": np.ones(400, dtype=np.float32)}, worker)
            if worker:
                recorder.end_step()
    last = max((tmp_path / "trace").glob("*.safetensors"))
    whole, found = last.read_bytes(), []
    for rate, content in ((1, whole), (2, whole), (2, whole[:-1] + bytes([whole[-1] ^ 1])), (2, whole)):
        link.write_text(f"time_s,bandwidth_Mbit_s\n0,{rate}\n")
        last.write_bytes(content)
        found.append(cell.identity(load(path), cell.FORMAT))
    assert len(set(found)) == 3
    assert found[1] == found[3]


# Kills


def killed(command, place, cells, kills, draws):
    """Start a sweep again and again and kill it in the middle of the cells that are left; some are left at the end."""
    count = 0
    for left in range(kills, 0, -1):
        number = draws.randint(1, cells - count - left)
        when = ("before", "after")[left % 2]
        killing.run_killed(["run", *command, "--out", place, "-q"], work.CELLS, number, when=when, whom="one")
        count += number - (when == "before")
        assert len(list(place.glob("cells/*.json"))) == count
        assert len(list(place.glob("cells/.*.tmp"))) == (when == "before")
        assert (place / INCOMPLETE).exists()


@needs.linux
def test_a_sweep_killed_twice_ends_with_the_bytes_of_one_left_alone(here, swept, tiny, tmp_path):
    killed((tiny, *GRID, "--jobs", 1), tmp_path, CELLS, 2, random.Random(8))
    did(tiny, *GRID, "--out", tmp_path)
    assert contents(tmp_path) == contents(swept[0])


@pytest.mark.slow
@needs.linux
def test_a_sweep_of_200_runs_killed_five_times_ends_with_the_bytes_of_one_left_alone(tiny, tmp_path):
    parameters = ("--grid", "bandwidth=0.01:100:20:log Gbit/s", "--grid", "density=0.1,0.3,1,3,10%")
    parameters += ("--grid", "seed=1,2")
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert killing.start(["run", tiny, *parameters, "--out", undisturbed, "-q"]).wait() == 0
    killed((tiny, *parameters), disturbed, 200, 5, random.Random(1))
    assert killing.start(["run", tiny, *parameters, "--out", disturbed, "-q"]).wait() == 0
    found = contents(disturbed)
    assert len([name for name in found if name.startswith("cells/")]) == 200
    assert found == contents(undisturbed)
    assert not [name for name in found if name.endswith(".tmp")]


# Dask


@pytest.mark.parametrize(
    ("module", "on", "said"),
    [
        ("distributed", "tcp://127.0.0.1:1", "Dask: pip install 'simnet-sparse[dask]'"),
        ("submitit", "slurm", "submitit: pip install 'simnet-sparse[slurm]'"),
    ],
)
def test_without_its_package_the_command_says_what_to_install(here, tiny, tmp_path, monkeypatch, module, on, said):
    monkeypatch.setitem(sys.modules, module, None)
    assert f"--on {on}: needs {said}" in refused(tiny, "--grid", "seed=1", "--on", on, "--out", tmp_path, "-q")
    assert not (tmp_path / INCOMPLETE).exists()


@pytest.fixture(scope="module")
def scheduler():
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as made:
        yield made.scheduler_address


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_bytes(here, scheduler, swept, tiny, tmp_path):
    did(tiny, *GRID, "--out", tmp_path, "--on", scheduler)
    assert contents(tmp_path) == contents(swept[0])


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_not_there_is_told(here, scheduler, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_cluster, "_TIMEOUT", "1 s")
    said = refused(tiny, "--grid", "seed=1", "--on", "tcp://127.0.0.1:1", "--out", tmp_path, "-q")
    assert "there is no Dask scheduler that answers" in said


# Slurm


@pytest.mark.extras
def test_jobs_of_a_cluster_give_the_same_bytes_and_leave_no_files_of_their_own(swept, tiny, tmp_path, monkeypatch):
    local = partial(work.run_on_slurm, cluster="local")
    monkeypatch.setattr(work, "run_on_slurm", local)
    did(tiny, *GRID, "--out", tmp_path, "--on", "slurm:jobs=3,timeout_min=5")
    assert contents(tmp_path) == contents(swept[0])


@pytest.mark.extras
def test_a_job_that_dies_loses_its_cells_alone(tiny, tmp_path, monkeypatch):
    tasks = [(Source(str(tiny)), "other") for _ in range(4)] + [(Source(str(tiny)), "deadly")]
    found = dict(work.run_on_slurm(tasks, "slurm:jobs=5", tmp_path / "jobs", cluster="local"))
    assert [found[number].kind for number in range(5)] == ["refused"] * 5
    monkeypatch.setattr(work, "run_share", dies_of_the_last)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = dict(work.run_on_slurm(tasks, "slurm:jobs=5", tmp_path / "jobs", cluster="local"))
    assert [found[number].kind for number in range(5)] == ["refused"] * 4 + ["lost"]
    assert "did not finish" in found[4].content
    assert not (tmp_path / "jobs").exists()


def dies_of_the_last(tasks):
    if tasks[0][1] == "deadly":
        os._exit(9)
    return [processes.run_task(cell.run_cell, task) for task in tasks]


@pytest.mark.extras
def test_without_slurm_the_command_says_so(here, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refused(tiny, "--grid", "seed=1", "--on", "slurm", "--out", tmp_path / "out", "-q")
    assert "--on slurm: cannot submit jobs: " in said
