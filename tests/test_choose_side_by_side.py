"""Jobs side by side: `simnet choose --param`, inner steps, utilisation and money."""

import json
import math

import numpy as np
import pytest

from commands import did, invoke
from simnet import choose, run
from simnet.base.processes import InlinePool
from simnet.report import cost_summary
from simnet.studies.choosing.job_grid import ANY, rank_job_grid

SMALL = ["job.scale=200000", "job.iterations=4"]
TWO = ["exchanges={dense: {scheme: dense}, topk: {scheme: topk}}"]
PRICES = ["job.prices={device_hour: 2.5, gigabyte: 0.08, currency: USD}"]
LIVE = [
    "job={gradients: {train: {data: digits, target: 0.6}}, iterations: 40, density: 1%, compute: {mean: 10 ms},"
    " strategy: {name: diloco, period: 5, inner: {sgd: {lr: 0.1}}}}",
]


def beside(parameters, fields=(), scenario="local_steps_wan"):
    return rank_job_grid(scenario, parameters, overrides=[*SMALL, *TWO, *fields], pool=InlinePool())


@pytest.fixture(scope="module")
def found():
    return beside(["job.strategy.period=7,30", "density=0.1%,5%"], PRICES)


def test_each_job_is_that_of_a_run_for_as_many_inner_steps(found):
    assert found.inner_steps == 4 * 100
    assert found.parameters == ("job.strategy.period", "density")
    for row in found.rows:
        period, density = row.values
        rounds = math.ceil(found.inner_steps / int(period))
        fields = [*SMALL, *TWO, *PRICES, f"job.strategy.period={period}", f"job.iterations={rounds}"]
        fields += [] if density == ANY else [f"job.density={density}"]
        policy = run("local_steps_wan", set=fields).summary["policies"][row.candidate.label]
        times = found.inner_steps / (rounds * int(period))
        assert row.seconds == pytest.approx(policy["simulated_s"] * times, rel=1e-9)
        assert row.step_s == pytest.approx(policy["simulated_s"] / (rounds * int(period)), rel=1e-9)
        assert row.sent == pytest.approx(policy["total_bytes_sent_B"] / 4 / (rounds * int(period)), rel=1e-9)
        assert row.utilisation == pytest.approx(policy["breakdown_s"]["compute"] / policy["simulated_s"], rel=1e-9)
        devices = 2.5 * 4 * row.seconds / 3600
        assert row.money == pytest.approx(devices + 0.08 * row.sent * 4 * found.inner_steps / 1e9, rel=1e-9)
        assert policy["spent"]["step_s"] == pytest.approx(row.step_s)
        assert policy["spent"]["money"]["together"] == pytest.approx(row.money / times, rel=1e-9)
        assert row.compute + row.select + row.communicate == pytest.approx(row.seconds, rel=1e-9)
        assert row.low <= row.seconds <= row.high


def test_jobs_are_ranked_and_those_alike_are_one(found):
    assert sorted(row.seconds for row in found.rows) == [row.seconds for row in found.rows]
    labels = [found.label(row) for row in found.rows]
    assert len(set(labels)) == len(labels) == 6
    # The whole gradient does not heed a density.
    assert {"period 7, density any, dense", "period 30, density 5%, topk"} <= set(labels)
    # By H alone, exchanging less often is no slower.
    for exchange in ("dense", "topk"):
        seconds = {row.values: row.seconds for row in found.rows if row.candidate.label == exchange}
        for (period, density), took in seconds.items():
            if period == "7":
                assert took > seconds["30", density]
    assert found.likely.fastest.sum() == pytest.approx(1)


def test_what_is_said_of_them(found):
    first, *rest = found.sentences()
    assert first.startswith("Take period 30, density 0.1%, topk")
    assert any(one.startswith("Cheapest is period 30, density 0.1%, topk") for one in rest)
    assert any("job.gradients.train" in one for one in rest)
    assert rest[-2].startswith("Computing: that of gpt2")
    assert rest[-1].startswith("Memory is that of a worker")
    figures = found.figures()
    assert figures["decision"] == "period 30, density 0.1%, topk"
    assert figures["question"]["prices"] == {"device_hour": 2.5, "gigabyte": 0.08, "currency": "USD"}
    assert json.dumps(figures, allow_nan=False)
    headings = [str(column.header) for column in found.ranking().columns]
    assert headings[:3] == ["period", "density", "exchange"]
    assert headings[-1] == "money"


def test_where_a_model_is_trained_jobs_are_ranked_by_the_time_to_the_target():
    fields = ["policies={}", "seed=3", *LIVE]
    found = beside(["job.strategy.period=5,20"], fields, "local_steps_wan")
    assert found.target == 0.6
    assert found.inner_steps == 200
    for row in found.rows:
        rounds = found.inner_steps // int(row.values[0])
        own = run("local_steps_wan", set=[*SMALL, *TWO, *fields, f"job.strategy.period={row.values[0]}",
                                          f"job.iterations={rounds}"]).summary["policies"]  # fmt: skip
        reached = own[row.candidate.label]["learning"]["time_to_target_s"]
        assert row.seconds == (math.inf if reached is None else pytest.approx(reached, rel=1e-9))
    assert np.isfinite(found.rows[0].seconds)
    assert not any("job.gradients.train" in one for one in found.sentences())


def test_targets_that_nobody_reaches_are_said():
    fields = ["policies={}", *(one.replace("target: 0.6", "target: 1.0").replace("40", "2") for one in LIVE)]
    found = beside(["job.strategy.period=5,10"], fields)
    assert found.sentences()[0] == "No job reaches an accuracy of 1 in 10 inner steps."
    assert found.figures()["decision"] is None
    assert found.bars() == []


@pytest.mark.parametrize(("arguments", "said"), [
    (["local_steps_wan"], "under a training strategy jobs are weighed side by side: name fields and values"),
    (["local_steps_wan", "--param", "job.iterations=3,4"], "is what jobs have in common here; give it by --set"),
    (["local_steps_wan", "--param", "job.strategy.perod=3,4"], "there is no such field"),
    (["local_steps_wan", "--param", "job.gradients.train.target=0.5,0.9"], "is what jobs have in common here"),
    (["--parameters", "1000", "--param", "density=1%"], "is only for decisions on jobs"),
    (["local_steps_wan", "--param", "density=1%,2%", "--simulate"], "is only for decisions without --param"),
])  # fmt: skip
def test_questions_that_are_refused(arguments, said):
    result = invoke("choose", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_the_command_and_the_library_say_the_same():
    fields = [word for one in (*SMALL, *TWO) for word in ("--set", one)]
    told = json.loads(
        did("choose", "local_steps_wan", "--param", "job.strategy.period=20,50", *fields, "--json").stdout
    )
    found = choose("local_steps_wan", param={"job.strategy.period": [20, 50]}, set=[*SMALL, *TWO])
    assert found.figures() == told
    assert found.best == told["decision"]
    assert len(found.to_pandas()) == len(found.chances) == 4


def test_jobs_that_exchange_in_every_iteration_are_weighed_as_well():
    found = rank_job_grid(
        "quickstart", ["density=1%,10%"], ["topk"], ["job.iterations=3", "job.scale=500"], pool=InlinePool()
    )
    assert found.inner_steps == 3
    for row in found.rows:
        only = ["exchanges={topk: {scheme: topk}}", "policies={topk: {fixed: topk}}", f"job.density={row.values[0]}"]
        own = run("quickstart", set=["job.iterations=3", "job.scale=500", *only]).summary["policies"]["topk"]
        assert row.seconds == pytest.approx(own["simulated_s"], rel=1e-9)


def test_prices_are_told_in_a_run(tmp_path):
    fields = [word for one in (*SMALL, *TWO, *PRICES) for word in ("--set", one)]
    shown = did("run", "local_steps_wan", *fields, "--out", tmp_path / "priced").stdout
    assert "what inner steps took" in shown
    assert "USD" in shown
    result = invoke("run", "local_steps_wan", "--set", "job.prices={gigabyte: -1, currency: USD}")
    assert result.exit_code == 2
    assert "greater than or equal to 0" in result.output or ">= 0" in result.output


def test_money_is_by_device_hour_and_by_what_is_sent():
    prices = {"device_hour": 3.0, "gigabyte": 0.5, "currency": "EUR"}
    assert cost_summary.price_of(prices, 2, 7200.0, 4e9) == {"devices": 12.0, "traffic": 2.0, "together": 14.0}
    rows = cost_summary.cost_cells({"a": cost_summary.cost_summary(10.0, 4.0, 80.0, 5, 2, None)}, None)
    assert rows == [("a", "5", "2 s", "40 %", "8 B")]
