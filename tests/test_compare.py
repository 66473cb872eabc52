"""`simnet run SCENARIO --schemes`: what its table says against runs of the job, and what it refuses."""

import json

import pandas as pd
import pytest

from commands import NO_PAGE, did
from learnt import check_learnt
from scenario_texts import TRAINING
from simnet import sparsifier_models
from simnet.report import learning
from simnet.report.answers import run_answer
from simnet.scenario import load
from simnet.scenario.named_choices import named_exchanges
from simnet.sparsifier_models import own_options
from simnet.training.job.running import run_policy
from variants import OPTIONS

FEW = ("--set", "job.iterations=6")


def means(folder):
    """The means over iterations of each policy, by name, as summary.json has them."""
    policies = json.loads((folder / "summary.json").read_text())["policies"]
    return pd.DataFrame({name: one["means"] for name, one in policies.items()}).T


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    words = ("run", "compare", "--schemes", "dense,topk,artopk", "--workers", 5, *FEW, "--out", folder)
    return folder, did(*words, *NO_PAGE).stdout


def test_the_table_has_a_row_for_each_scheme_the_fastest_first(compared):
    folder, shown = compared
    seconds = means(folder)["iteration_s"].sort_values()
    lines = [line.split() for line in shown.partition("---\n")[2].split("\n\n")[0].splitlines()]
    assert [line[0] for line in lines] == list(seconds.index)
    assert [line[1] for line in lines] == [f"{1e3 * one:.3g}" for one in seconds]
    assert lines[0][3] == "best"
    assert max(map(len, shown.splitlines())) <= 80
    head = " ".join(shown.split("---")[0].split())
    assert all(name in head for name in ("iteration", "best", "comm.", "sent"))
    answer = json.loads(did("run", "compare", "--schemes", "dense,topk,artopk", "--workers", 5, *FEW, "--out", folder,
                            *NO_PAGE, "--json").stdout)  # fmt: skip
    assert [row["policy"] for row in answer["rows"]] == list(seconds.index)
    assert answer["schema"] == 1
    assert [row["iteration_s"] for row in answer["rows"]] == list(seconds)
    first = answer["rows"][0]
    assert first["iteration_prediction_low_s"] < first["iteration_s"] < first["iteration_prediction_high_s"]
    assert sum(row["chance"] for row in answer["rows"]) == pytest.approx(1, abs=1e-9)


def test_densities_and_build_up_are_what_the_schemes_imply(compared):
    table = means(compared[0])
    assert table.loc["dense", "actual_density"] == 1
    assert table.loc["artopk", "build_up"] == 1
    assert 1 < table.loc["topk", "build_up"] <= 5
    sparse = table.drop("dense")
    assert sparse["actual_density"].tolist() == pytest.approx([0.01 * one for one in sparse["build_up"]], rel=0.01)


def test_the_lock_gives_the_same_answer(compared, tmp_path):
    did("run", compared[0] / "scenario.lock.yaml", *NO_PAGE, "--out", tmp_path)
    assert (tmp_path / "iterations.csv").read_text() == (compared[0] / "iterations.csv").read_text()
    both = str(run_answer(json.loads((tmp_path / "summary.json").read_text()))), compared[1].rstrip("\n")
    # What a shipped scenario says is assumed, what a file of the user says is not.
    again, first = ((text.partition("\nAssumed")[0], text.rpartition("\nHidden")[2]) for text in both)
    assert again == first


def test_who_reaches_the_target_first_is_the_answer(tmp_path):
    path = tmp_path / "learn.yaml"
    path.write_text(TRAINING.replace("TARGET", "50 %"))
    found = json.loads(did("run", path, "--jobs", 1, *NO_PAGE, "--out", tmp_path, "--json").stdout)
    run = load(path).build()
    frames = {name: run_policy(run.job, name, policy).iterations for name, policy in run.policies.items()}
    rows = {row["policy"]: {name: row[name] for name in learning.COLUMNS} for row in found["rows"]}
    check_learnt(rows, frames, 0.5, 0.1)
    times = {name: row["time_to_target_s"] for name, row in rows.items()}
    first = min(times, key=times.get)
    assert found["answer"].startswith(f"{first} reaches 50 % accuracy first: ")
    assert "One seed; " in found["answer"]
    assert found["rows"][0]["policy"] == first
    path.write_text(TRAINING.replace("TARGET", "100 %"))
    shown = did("run", path, "--jobs", 1, *NO_PAGE, "--out", tmp_path, "--force").stdout
    assert shown.startswith("No policy reaches 100 % accuracy.")


@pytest.mark.parametrize("scheme", sorted(OPTIONS))
def test_variants_are_the_candidates_that_are_made_by_hand(scheme):
    for way in OPTIONS[scheme]:
        options = {key: value for key, value in way.items() if key in own_options(scheme)}
        if any(isinstance(value, tuple) or value == "half" for value in options.values()) or "teams" in options:
            continue  # Commas separate exchanges; teams and the ranks of a node are a share of the workers here.
        words = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in options.items()]
        ((label, found),) = named_exchanges([":".join([scheme, *words])]).items()
        assert label.startswith(scheme)
        assert found.pop("scheme") == scheme
        assert found == options
        made = [sparsifier_models.create(scheme, 4, 240, 0.1, layers=(80,) * 3, **one) for one in (found, options)]
        assert made[0].options == made[1].options


def test_what_is_set_on_a_scheme_that_is_compared_takes_effect(tmp_path):
    setting = ("--set", "exchanges.spardl.teams=2")
    did("run", "compare", "--schemes", "spardl", "--workers", "4", *FEW, *setting, "--out", tmp_path)
    assert "teams: 2" in (tmp_path / "scenario.lock.yaml").read_text()
