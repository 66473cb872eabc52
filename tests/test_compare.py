"""`simnet compare`: what its table says against runs of the job, and what it refuses."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

import commands
from commands import contents
from learnt import check_learnt
from simnet import sparsifier_models
from simnet.base.errors import InputError
from simnet.base.writing import INCOMPLETE
from simnet.policies import Candidate
from simnet.report import learning, paired
from simnet.report.comparison import COLUMNS
from simnet.report.run_setup import device_summary
from simnet.scenario import load
from simnet.scenario.named_exchanges import named_exchanges
from simnet.scenario.resolve import own_options
from simnet.studies import comparison
from simnet.training.job.running import run_policy
from variants import OPTIONS

FEW = ("--set", "job.iterations=6")


invoke, did, refused = (partial(one, "compare") for one in (commands.invoke, commands.did, commands.refused))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    result = did("--schemes", "dense,topk,artopk", "--workers", "1,2,5", "--skip", 2, *FEW, "--out", folder)
    return folder, result.stdout


def test_several_seeds_are_compared_seed_by_seed(tmp_path):
    arguments = ("quickstart", "--schemes", "topk,artopk,dense", "--workers", "2,4", *FEW)
    shown = did(*arguments, "--seed", 3, "--seeds", 3, "--jobs", 2, "--out", tmp_path / "all").stdout
    rows, each = (pd.read_csv(tmp_path / "all" / f"{name}.csv") for name in ("compare", "paired"))
    for seed in (3, 5):
        did(*arguments, "--seed", seed, "-q", "--out", tmp_path / str(seed))
        alone = pd.read_csv(tmp_path / str(seed) / "compare.csv")
        own = rows[rows["seed"] == seed].drop(columns="seed").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, alone, check_exact=True)
    for workers in (2, 4):
        times = rows[rows["workers"] == workers].pivot(index="seed", columns="exchange", values="iteration_s")
        found = paired.contest({name: times[name] for name in times})
        there = each[each["workers"] == workers].set_index("exchange")
        assert there["iteration_rank"].idxmin() == found.policy
        for name, difference in found.differences.items():
            told = there.loc[name, ["iteration_more_s", "iteration_more_low_s", "iteration_more_high_s"]]
            assert told.tolist() == pytest.approx(difference, rel=1e-9)
        assert set(there.index[there["iteration_tied"]]) == {found.policy, *found.tied_with}
    assert "3 seeds" in shown
    assert "interval" in shown
    did(*arguments, "--seed", 3, "--seeds", 3, "--jobs", 1, "--out", tmp_path / "again", "-q")
    assert contents(tmp_path / "again") == contents(tmp_path / "all")
    # One seed leaves what it leaves without the option, and nothing of several.
    did(*arguments, "--seeds", 1, "--out", tmp_path / "all", "-q", "--force")
    did(*arguments, "--out", tmp_path / "one", "-q")
    assert contents(tmp_path / "one") == contents(tmp_path / "all")


def test_there_is_a_row_for_each_exchange_and_number_of_workers(compared):
    folder, shown = compared
    table = pd.read_csv(folder / "compare.csv", dtype={"unsettled": str}).fillna({"unsettled": ""})
    assert list(table.columns) == list(COLUMNS)
    wanted = [(name, count) for count in (1, 2, 5) for name in ("dense", "topk", "artopk")]
    assert list(zip(table["exchange"], table["workers"], strict=True)) == wanted
    content = json.loads((folder / "compare.json").read_text())
    assert content["rows"] == table.astype(object).where(table.notna(), None).to_dict(orient="records")
    assert content["seed"] == 2026
    for name in ("figures/compare.png", "figures/compare.svg", "scenario.lock.yaml"):
        assert (folder / name).stat().st_size > 500
    assert not (folder / INCOMPLETE).exists()
    assert all(name in shown for name in ("dense", "topk", "artopk", "build-", "compare.csv"))


def test_the_figures_are_those_of_the_job(compared):
    table = pd.read_csv(compared[0] / "compare.csv").set_index(["exchange", "workers"])
    source = comparison.sources("compare", [5], ["topk"], overrides=["job.iterations=6"])[5]
    run = source.load().build()
    frame = run_policy(run.job, "topk", run.policies["topk"]).iterations.iloc[2:]
    row = table.loc["topk", 5]
    assert row["iteration_s"] == pytest.approx(frame["iteration_s"].mean())
    assert row["select_s"] == pytest.approx(frame["select_s"].mean())
    assert row["communicate_and_wait_s"] == pytest.approx((frame["communicate_s"] + frame["wait_s"]).mean())
    assert row["bytes_sent_per_worker_B"] == pytest.approx(frame["bytes_sent_B"].mean() / 5)
    # All that a worker of top-k receives is 4 times what one selected, at 8 bytes per entry of the whole model.
    selected = row["selected"] * run.job.source.scale
    assert row["bytes_sent_per_worker_B"] == pytest.approx(4 * 8 * selected, rel=1e-9)
    assert selected == pytest.approx(0.01 * run.job.source.true_parameters, rel=2e-3)


def test_deaths_are_left_out():
    dying = ["job.iterations=3", "job.deaths=[{worker: 1, at: 0 s}]", "job.on_death={continue: {after: 1 s}}"]
    job = comparison.sources("compare", [2], ["topk"], overrides=dying)[2].load().build().job
    assert (dict(job.failures), job.patience) == ({}, None)


def test_densities_and_build_up_are_what_the_schemes_imply(compared):
    table = pd.read_csv(compared[0] / "compare.csv").set_index(["exchange", "workers"])
    assert (table.loc["dense", "actual_density"] == 1).all()
    for count in (1, 2, 5):
        assert table.loc[("artopk", count), "build_up"] == 1
        assert 1 <= table.loc[("topk", count), "build_up"] <= count
    assert table.loc[("topk", 5), "build_up"] > table.loc[("topk", 2), "build_up"] > 1
    sparse = table.drop("dense", level="exchange")
    np.testing.assert_allclose(sparse["actual_density"], sparse["build_up"] * 0.01, rtol=0.01)
    assert (table.xs(1, level="workers")["communicate_and_wait_s"] == 0).all()
    assert (table["density"] == 0.01).all()


def test_equal_comparisons_leave_equal_bytes_in_any_number_of_processes(tmp_path):
    for name, jobs in (("one", 1), ("two", 2)):
        did("--schemes", "topk,mstopk", "--workers", "2,3", *FEW, "--jobs", jobs, "--out", tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "one")) == 5


def test_the_exchanges_of_any_scenario_can_be_compared(tmp_path):
    did("quickstart", "--set", "job.iterations=4", "--density", "1 %", "--out", tmp_path)
    table = pd.read_csv(tmp_path / "compare.csv")
    assert list(table["exchange"]) == ["AG", "ART-ring"]
    assert set(table["workers"]) == {4}
    assert set(table["density"]) == {0.01}


def test_the_lock_gives_the_same_comparison(compared, tmp_path):
    lock = compared[0] / "scenario.lock.yaml"
    did(lock, "--workers", "1,2,5", "--skip", 2, "--out", tmp_path)
    assert (tmp_path / "compare.csv").read_text() == (compared[0] / "compare.csv").read_text()


def test_every_shipped_exchange_builds():
    source = comparison.sources("compare", [2, 8])
    for one in source.values():
        assert list(one.load().build().policies) == list(load("compare").config.exchanges)


def test_an_interrupted_comparison_keeps_what_is_done(tmp_path, monkeypatch):
    real, calls = comparison.row, []

    def row(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(comparison, "row", row)
    result = invoke("--schemes", "dense,topk", "--workers", "2,3", *FEW, "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 130
    assert list(pd.read_csv(tmp_path / "compare.csv")["exchange"]) == ["dense", "topk"]
    assert "topk with 3 workers" in (tmp_path / INCOMPLETE).read_text()


TRAINING = """
workers: 2
network:
  topology:
    star: {latency: 1 ms, bandwidth: 1 Mbit/s}
job:
  gradients:
    train:
      model: logistic
      data: {classification: {samples: 200, features: 8, classes: 3, noise: 1.0}}
      evaluate: 2
      target: TARGET
  iterations: 10
  density: 10 %
  compute: {mean: 10 ms}
exchanges:
  dense: {scheme: dense}
  AG: {scheme: topk}
"""


def test_what_is_learnt_stands_beside_what_exchanges_cost(tmp_path):
    path = tmp_path / "learn.yaml"
    path.write_text(TRAINING.replace("TARGET", "50 %"))
    result = did(path, "--workers", "2,3", "--jobs", 1, "--out", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "compare.csv")
    assert list(table.columns) == [*COLUMNS, "throughput", "throughput_unit", *learning.COLUMNS]
    for count, group in table.groupby("workers"):
        run = comparison.sources(path, [count])[count].load().build()
        frames = {name: run_policy(run.job, name, policy).iterations for name, policy in run.policies.items()}
        check_learnt(group.set_index("exchange").to_dict("index"), frames, 0.5, 0.1)
        assert list(group["first_to_target"]) == list(group["time_to_target_s"] == group["time_to_target_s"].min())
    assert all(name in result.stdout for name in ("time to", "statis-", "accu-"))


def test_a_target_that_nobody_reaches_and_a_reference_that_is_missing_are_blank(tmp_path):
    path = tmp_path / "learn.yaml"
    path.write_text(TRAINING.replace("TARGET", "100 %"))
    loaded = load(path, ["policies={dense: {fixed: dense}, AG: {fixed: AG}}"])
    run = loaded.build()
    held = comparison.Held().of(run.job, run.policies["AG"])
    row = comparison.row(2, "AG", run_policy(run.job, "AG", run.policies["AG"]), held)
    found = comparison.write(tmp_path / "out", {"a": row}, loaded, "", device_summary(run.job.device), built={2: run})
    assert found["iterations_to_target"].isna().all()
    (told,) = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    blank = {name for name, value in told.items() if value is None}
    assert blank == {"density_ratio", "iterations_to_target", "time_to_target_s", "statistical_efficiency"}
    assert (told["target_accuracy"], told["first_to_target"]) == (1.0, False)
    path.write_text(TRAINING.replace("TARGET", "null"))
    again = load(path, ["policies={dense: {fixed: dense}, AG: {fixed: AG}}"])
    told = comparison.write(tmp_path / "out", {"a": row}, again, "", device_summary(run.job.device))
    assert told[["target_accuracy", "time_to_target_s", "first_to_target"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--schemes", "topk,spardel"), "--schemes: there is no sparsifier 'spardel': did you mean 'spardl'?"),
        (("--workers", "2,x"), "--workers: must be whole numbers from 1 to 1,000,000 such as 2,4,8, got '2,x'"),
        (("--workers", "0"), "--workers: must be whole numbers from 1"),
        (("--skip", "6"), "--skip: must be less than the 6 iterations, got 6"),
        (("--density", "2"), "job.density"),
        (("nosuch",), "there is no such file"),
        (("--schemes", ""), "--schemes: there is no sparsifier ''"),
        (("--schemes", "artopk:colective=tree"), "no option 'colective' of artopk; did you mean 'collective'?"),
        (("--schemes", "artopk:collective=teee"), "--schemes: artopk:collective=teee: there is no collective 'teee'"),
        (("--schemes", "artopk:collective=teee"), "did you mean 'tree'?"),
        (("--schemes", "artopk:collective"), "must be OPTION=VALUE after the colon, got 'collective'; artopk has "),
        (("--schemes", "artopk:selection=var:selection=star"), "gives the option selection twice"),
        (("--schemes", "topk:error_feedback=yes"), "error_feedback must be true or false, got 'yes'"),
        (("--schemes", "topk:scale=2"), "there is no option 'scale' of topk"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, said, tmp_path):
    assert said in refused(*arguments, *FEW, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("scheme", sorted(OPTIONS))
def test_variants_are_the_candidates_that_are_made_by_hand(scheme):
    for way in OPTIONS[scheme]:
        options = {key: value for key, value in way.items() if key in own_options(scheme)}
        if any(isinstance(value, tuple) or value == "half" for value in options.values()) or "teams" in options:
            continue  # Commas separate exchanges; teams and the ranks of a node are a share of the workers here.
        words = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in options.items()]
        (found,) = named_exchanges([":".join([scheme, *words])])
        by_hand = Candidate(found.label, scheme, options)
        assert found == by_hand
        assert found.label.startswith(scheme)
        made = [
            sparsifier_models.create(scheme, 4, 240, 0.1, layers=(80,) * 3, **one) for one in (found.options, options)
        ]
        assert made[0].options == made[1].options


def test_a_variant_is_compared_as_the_exchange_of_a_scenario_is(tmp_path):
    name = "artopk:collective=tree:selection=var"
    found = comparison.sources("compare", [4], [name, "artopk"], overrides=["job.iterations=3"])[4].load()
    exchange = {"scheme": "artopk", "collective": "tree", "selection": "var"}
    by_hand = load(
        "compare",
        [
            "exchanges=" + json.dumps({"by hand": exchange}),
            'policies={"by hand": {fixed: by hand}}',
            "job.iterations=3",
            "workers=4",
        ],
    )
    seen, wanted = (
        run_policy(run.job, label, run.policies[label]).iterations["iteration_s"].tolist()
        for run, label in ((found.build(), name), (by_hand.build(), "by hand"))
    )
    assert seen == wanted
    plain = run_policy(found.build().job, "artopk", found.build().policies["artopk"]).iterations["iteration_s"].tolist()
    assert plain != wanted


def test_a_scheme_that_there_is_not_is_refused():
    with pytest.raises(InputError):
        comparison.sources("compare", [2], ["nothing"])


def test_what_is_set_on_a_scheme_that_is_compared_takes_effect(tmp_path):
    setting = ("--set", "exchanges.spardl.teams=2")
    did("--schemes", "spardl", "--workers", "4", *FEW, *setting, "--out", tmp_path)
    assert "teams: 2" in (tmp_path / "scenario.lock.yaml").read_text()
