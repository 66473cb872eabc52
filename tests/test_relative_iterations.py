"""Iterations to the same accuracy relative to dense: means, runs that did not reach it, densities between others."""

import math

import pytest

from simnet.cost_models.evidence import relative_iterations as module
from simnet.cost_models.evidence.relative_iterations import relative_iterations
from simnet.policies import Candidate
from simnet.scenario import load
from simnet.studies.assumptions import iterations_to_accuracy

DENSE = [("mlp", "dense", "", 1, True), ("conv", "dense", "", 1, True), ("transformer", "dense", "", 1, True)]
FIELDS = "model", "scheme", "density", "iterations", "reached", "momentum", "seed"


@pytest.fixture
def measure(monkeypatch):
    """Return a function that puts runs in place of the shipped ones: model, scheme, density, iterations, reached."""

    def put(*runs, momenta=(0,)):
        rows = [(*one, momentum, 1) for momentum in momenta for one in (*DENSE, *runs)]
        rows = [dict(zip(FIELDS, map(str, one), strict=True)) for one in rows]
        monkeypatch.setattr(module, "read_shipped_rows", lambda path: rows)
        module.measured_ratios.cache_clear()

    yield put
    module.measured_ratios.cache_clear()


def test_the_estimate_is_the_geometric_mean_and_its_interval_has_the_spread_over_settings(measure):
    measure(("mlp", "topk", 0.01, 1, True), ("conv", "topk", 0.01, 2, True), ("transformer", "topk", 0.01, 4, True))
    # Student's t with two degrees of freedom is 2.919986 at 95 %; the deviation of the logarithms is log 2.
    half = 2.919986 * math.log(2) * math.sqrt(4 / 3)
    expected = (2, 2 * math.exp(-half), 2 * math.exp(half))
    assert relative_iterations("topk", 0.01)[:3] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("length", [2, 3, 6], ids=["shorter", "between", "longer"])
def test_runs_that_do_not_reach_the_target_never_lower_the_estimate(measure, length):
    reached = ("mlp", "topk", 0.01, 1, True), ("conv", "topk", 0.01, 4, True)
    measure(*reached)
    without = relative_iterations("topk", 0.01)
    measure(*reached, ("transformer", "topk", 0.01, length, False))
    found = relative_iterations("topk", 0.01)
    assert found.estimate == pytest.approx((4 * max(4, length)) ** (1 / 3))
    assert found.estimate >= without.estimate
    assert str(found) == f"{found.estimate:.1f}x or more the iterations of dense"


def test_between_measured_densities_logarithms_are_interpolated_and_outside_nothing_is_known(measure):
    measure(*(("mlp", "topk", at, ratio, True) for at, ratio in ((0.001, 4), (0.1, 1))))
    assert relative_iterations("topk", 0.01) is None  # The spread over models is not known.
    measure(*((model, "topk", at, ratio, True) for model in ("mlp", "conv") for at, ratio in ((0.001, 4), (0.1, 1))))
    assert [relative_iterations("topk", at).estimate for at in (0.001, 0.01, 0.1)] == pytest.approx([4, 2, 1])
    assert [relative_iterations("topk", at) for at in (0.0009, 0.2)] == [None, None]
    assert relative_iterations("new", 0.01) is None
    assert relative_iterations("topk", 0.01, without="mlp") is None


def test_runs_with_the_momentum_count_alone_where_it_was_measured():
    momenta = [relative_iterations("spardl", 0.01, momentum).estimate for momentum in (0, 0.9, 0.5, None)]
    assert momenta[2] == momenta[3]
    assert momenta[0] < momenta[2] < momenta[1]


def test_options_that_change_the_update_need_runs_of_their_own():
    options = {"collective": "tree"}, {"selection": "var"}, {"error_feedback": False}
    among = {str(one): Candidate("", "artopk", one) for one in options} | {"dense": Candidate("", "dense")}
    found = iterations_to_accuracy(load("quickstart").build().job, among)
    assert [*found.values()] == [str(relative_iterations(one, 0.05)) for one in ("artopk", "artopk:selection=var")]


def test_dense_reaches_the_target_in_every_shipped_setting():
    runs = module.read_shipped_rows("data/iterations_to_accuracy.csv")
    reached = {(one["model"], one["momentum"]) for one in runs if one["scheme"] == "dense" and one["reached"] == "True"}
    assert reached == {(model, momentum) for model, *_ in DENSE for momentum in ("0", "0.9")}
