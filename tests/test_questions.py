"""Open questions: their files, the answer computed from cells, and the command that runs them."""

import json

import numpy as np
import pandas as pd
import pytest

from simnet.base.errors import InputError
from simnet.report.paired import estimate
from simnet.scenario.finding import Source
from simnet.studies.questions.question_answer import answer_question
from simnet.studies.questions.question_file import Question, questions, read_question
from simnet.studies.sweeping.answer import GridAnswer
from simnet.studies.sweeping.work import plan
from simnet.validate.commands import reproduce
from simnet.verbs.app import run_line

SEEDS = range(5)
NOISE = np.random.default_rng(7).normal(1.0, 0.01, (2, 5))


def answer_of(ratios, comparison, values=(0.5, 1.0), status="done", lost=()):
    """The answer where A takes 1 s and B `ratios` of that, at each value of the axis, with noise from seed to seed."""
    rows = [
        {"cell": 0, "slow": value, "seed": seed, "policy": policy, "status": status, "iteration_s": seconds,
         "accuracy": 0.5 + 0.1 * ratio * (policy == "B")}
        for value, ratio in zip(values, ratios, strict=True)
        for seed in SEEDS
        for policy, seconds in (("A", NOISE[0, seed]), ("B", NOISE[1, seed] * ratio), ("oracle", 0.1))
    ]  # fmt: skip
    cells = pd.DataFrame(rows)
    for value, seed in lost:
        cells.loc[(cells["policy"] == "B") & (cells["slow"] == value) & (cells["seed"] == seed), "iteration_s"] = np.nan
    question = Question(
        question="?",
        source="",
        scenario="",
        grid={"slow links": "slow=0.5,1"},
        compare=[{"label": "time", **comparison}],
    )
    return answer_question(question, GridAnswer(answer="", cells=cells, bound="oracle"))


def test_an_effect_is_the_paired_ratio_and_where_it_does_not_hold_is_said():
    found = answer_of((0.5, 1.3), {"column": "iteration_s", "against": ["A"]})
    effects = found.details["effects"]["B, time"]
    expected = np.expm1(estimate(np.log(0.5 * NOISE[1] / NOISE[0])))
    assert [effects[0][key] for key in ("mean", "low", "high")] == pytest.approx(expected)
    assert "B against A: time lower by 50 % (95 %: 49 to 51) at slow links 0.5; higher by 30 %" in found.answer
    tied = answer_of((0.5, 1.0), {"column": "iteration_s", "against": ["A"]})
    assert "no difference that these seeds show at slow links 1" in tied.answer


@pytest.mark.parametrize("seeds", [[4], SEEDS])
def test_a_series_without_a_value_for_every_seed_is_not_compared_and_that_is_said(seeds):
    lost = [(1.0, seed) for seed in seeds]
    found = answer_of((0.5, 0.5), {"column": "iteration_s", "against": ["A"]}, lost=lost)
    assert "time lower by 50 % (95 %: 49 to 51) in 1 of 2 cells" in found.answer
    assert "not compared in 1 of 2 cells, where a seed has no value." in found.answer
    assert found.rows[1]["B iteration_s"] is None


def test_shares_are_compared_in_points_and_the_better_one_is_named_first():
    found = answer_of((0.5, 0.5), {"column": "accuracy", "unit": "percent", "better": "higher", "against": ["A"]})
    assert "B against A: time higher by 5 points (95 %: 5 to 5) in all 2 cells." in found.answer


def test_without_a_rival_the_answer_says_where_each_is_fastest_and_the_bound_never_is():
    found = answer_of((0.5, 1.3), {"column": "iteration_s"})
    assert found.answer.startswith("Time: It depends: B at slow links 0.5 (A")
    assert "A at slow links 1 (B +30 %)" in found.answer
    assert not any("oracle" in name for row in found.rows for name in row)
    assert answer_of((1, 1), {"column": "iteration_s"}, status="failed").answer.endswith("of 30 results are missing.")


@pytest.mark.parametrize(
    ("reach", "said"), [(0.55, "550 ms or lower from B on at slow links 0.5; nowhere at"), (2, "from A on in all 2")]
)
def test_the_answer_says_from_which_series_on_a_value_is_reached(reach, said):
    found = answer_of((0.5, 0.6), {"column": "iteration_s", "better": "lower", "reach": reach})
    assert said in found.answer


def test_the_best_of_several_rivals_is_that_of_each_setting():
    found = answer_of((0.5, 1.3), {"column": "iteration_s", "against": ["A", "B"], "series": ["A"]})
    effects = [one["mean"] for one in found.details["effects"]["A, time"]]
    assert effects == pytest.approx([1 / 0.49 - 1, 0.0], abs=0.05)


def test_fields_that_move_together_are_one_axis_which_tells_all_settings_apart(tmp_path):
    (tmp_path / "question.yaml").write_text(
        "question: x\nsource: x\nscenario: quickstart\nseeds: 3\npolicies: [AG, ART-ring]\nset: {job.iterations: 2}\n"
        "grid: {job: 'job.scale=4096,4096,8192; job.density=1,2,2 %'}\n"
        "compare: [{column: iteration_s, label: time, against: [AG]}]\n"
    )
    assert [row["job"] for row in reproduce(str(tmp_path)).rows] == ["4096, 0.01", "4096, 0.02", "8192, 0.02"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question: x\nseed: 3\n", "question.yaml:2: seed: there is no such field"),
        ("- 1\n", "is not a question"),
        ("question: x\nsource: x\nscenario: base\ncompare: []\n", "question.yaml:4: compare: has 0 entries"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, said):
    (tmp_path / "question.yaml").write_text(text)
    with pytest.raises(InputError, match=r"question") as error:
        read_question(tmp_path)
    assert said in str(error.value)


def test_unknown_series_and_columns_name_the_nearest():
    with pytest.raises(InputError, match=r"no column 'iteration'.*did you mean 'iteration_s'"):
        answer_of((1, 1), {"column": "iteration"})
    with pytest.raises(InputError, match=r"no series 'a'.*did you mean 'A'"):
        answer_of((1, 1), {"column": "iteration_s", "against": ["a"]})


@pytest.mark.parametrize("name", questions())
def test_every_shipped_question_can_be_run_and_names_what_its_grid_has(name):
    asked = read_question(questions()[name])
    planned = plan(Source(asked.scenario, [f"{key}={json.dumps(one)}" for key, one in asked.set.items()]),
                   list(asked.grid.values()))  # fmt: skip
    policies = [*planned.base.build().policies]
    series = {"policy": policies, **dict.fromkeys(asked.grid)}[asked.series]
    for one in asked.compare if series else ():
        assert {*one.against, *one.series} <= {*series}


def test_a_question_of_ones_own_is_answered_drawn_and_goes_on_from_its_cells(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_line(["new", "question", "mine"]) == 0
    assert run_line(["reproduce", "./mine", "--out", "mine.svg"]) == 0
    first = capsys.readouterr().out
    assert (tmp_path / "mine.svg").read_text().startswith("<?xml")
    assert run_line(["reproduce", "./mine", "--json"]) == 0
    found = capsys.readouterr()
    assert "cells are there already, 0 to run" in found.err
    assert json.loads(found.out)["answer"].split()[0] in first
    assert run_line(["new", "question", "other"]) == run_line(["reproduce", "./mine", "./other", "--figures"]) == 0
    assert {"index.md", "mine.svg", "other.svg"} <= {one.name for one in (tmp_path / "runs" / "papers").iterdir()}
    assert run_line(["reproduce", "./mine", "artopk-table-vi"]) == 2
