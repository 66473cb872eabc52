"""What cross-validation and calibration make of errors made up: weights and choices."""

import math
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from hand_made import NCCL, predictor, reduce
from simnet.base.errors import InputError
from simnet.base.progress import told
from simnet.calibration import Curve, Setting, crossval, measured
from simnet.calibration.cards import likely, node_rate
from simnet.calibration.cost_model import specified
from simnet.calibration.crossval import HeldOut, ModelChoice, choose, could_be_nccl, mixtures, score
from simnet.calibration.curve_models import OURS
from simnet.calibration.curves import curves_of
from simnet.calibration.platform import load_platform
from simnet.calibration.predictor import Interpolation, Transfer, _misfit, fit
from simnet.calibration.step_model import PARAMETERS, StepModel, fit_step_model

ONE, OTHER = reduce(4), reduce(8)


def held(setting, count, error):
    sizes = 2.0 ** np.arange(count)
    return HeldOut(setting, sizes, np.full(count, math.exp(error)), np.ones(count))


def weights(*by_model, settings=(ONE,)):
    """Return weights of models named a, b, ..., each with what was held out of it."""
    curves = [Curve(one, np.ones(1), np.ones(1)) for one in settings]
    found = mixtures(curves, dict(zip("abcdefg", by_model, strict=False)))
    return [found[one] for one in settings]


class TestWeights:
    def of(self, *sizes_of_errors):
        return weights(*([held(ONE, 6, one)] for one in sizes_of_errors))[0]

    def test_are_inverse_fourth_powers_of_errors(self):
        assert self.of(0.02, -0.03) == pytest.approx({"a": 81 / 97, "b": 16 / 97})
        # Of an error of twice as much the weight is a seventeenth, and left out.
        assert self.of(0.02, 0.04) == {"a": 1.0}
        assert self.of(0.04, 0.02, 0.03) == pytest.approx({"b": 81 / 97, "c": 16 / 97})

    def test_know_no_errors_below_two_in_a_thousand_nor_above_a_half(self):
        assert self.of(0.001, 0.0015) == {"a": 0.5, "b": 0.5}
        assert self.of(0.002, 0.003) == pytest.approx({"a": 81 / 97, "b": 16 / 97})
        assert self.of(5.0, math.log(1.5)) == {"a": 0.5, "b": 0.5}

    def test_of_a_lone_model_are_one(self):
        assert self.of(0.02) == {"a": 1.0}

    def test_are_all_of_the_plainest_that_is_exact(self):
        assert self.of(0.01, 0.0004, 0.0001) == {"b": 1.0}
        assert self.of(0.0006, 0.0007) == {"a": 0.5, "b": 0.5}

    def test_of_a_curve_count_errors_on_all_of_them_like_eight_sizes(self):
        first = [held(ONE, 8, 0.04), held(OTHER, 24, 0.01)]
        second = [held(ONE, 8, 0.017), held(OTHER, 24, 0.017)]
        # Means of roots: 0.2 and 0.1, of all sizes 0.125.
        typical = {ONE: ((8 * 0.2 + 8 * 0.125) / 16) ** 2, OTHER: ((24 * 0.1 + 8 * 0.125) / 32) ** 2}
        found = weights(first, second, settings=(ONE, OTHER))
        for setting, one in zip((ONE, OTHER), found, strict=True):
            ratio = (typical[setting] / 0.017) ** -4
            assert one == pytest.approx({"a": ratio / (1 + ratio), "b": 1 / (1 + ratio)})

    def test_are_none_where_nothing_was_held_out(self):
        assert mixtures([Curve(ONE, np.ones(1), np.ones(1))], {"a": [], "b": []}) == {}


class TestHowStepsAreCounted:
    CURVES = (Curve(Setting("all_reduce", 8, 1), 2.0 ** np.arange(4, 8), np.full(4, 1e-4)),)

    def taken(self, monkeypatch, ratio, known, curves=CURVES):
        """Return whether NCCL's steps are taken, whose error is so much of that of schedules."""
        others = [held(ONE, 2, 0.1)] if known else []

        def made_up(curves, curve_model, nccl):
            return (ratio if nccl else 1.0), "scaled", "blended", "steps", [], [], others

        monkeypatch.setattr(crossval, "_wide", made_up)
        return choose(curves).nccl

    def test_by_errors_where_collectives_were_held_out(self, monkeypatch):
        assert [self.taken(monkeypatch, one, known=True) for one in (0.9, 1.0, 1.01)] == [True, True, False]

    def test_as_nccl_does_unless_that_is_much_worse_where_ranks_alone_tell(self, monkeypatch):
        assert [self.taken(monkeypatch, one, known=False) for one in (1.6, 1.7)] == [True, False]

    def test_through_schedules_where_it_cannot_be_nccl(self, monkeypatch):
        foreign = [Curve(Setting("all_reduce", 8, 1, "rabenseifner"), np.arange(1.0, 5.0), np.full(4, 1e-4))]
        assert not self.taken(monkeypatch, 0.1, known=True, curves=foreign)
        assert not choose(self.CURVES, plain=False, wide=False).nccl

    @pytest.mark.parametrize(
        ("setting", "micros"),
        [
            (("all_reduce", 8, 1), 6), (("all_reduce", 8, 0), 6), (("all_reduce", 8, 2), 10),
            (("all_reduce", 8, 4), 14), (("broadcast", 8, 1), 6), (("broadcast", 8, 4), 10),
        ],
    )  # fmt: skip
    def test_kernels_take_six_microseconds_and_steps_of_a_tree_two(self, setting, micros):
        sizes, one = np.array([8.0, 16.0]), Setting(*setting)
        faster, slower = (np.array([factor * micros * 1e-6, 1.0]) for factor in (0.99, 1.01))
        assert could_be_nccl([Curve(one, sizes, slower)])
        assert not could_be_nccl([Curve(one, sizes, faster)])
        assert not could_be_nccl([Curve(one, sizes, slower), Curve(one, sizes, faster)])

    def test_kernels_that_take_six_microseconds_are_none(self):
        for seconds, said in ((6e-6, False), (math.nextafter(6e-6, 1), True)):
            assert could_be_nccl([Curve(Setting("broadcast", 8, 1), np.ones(1), np.array([seconds]))]) == said


class TestModelsOfCurves:
    def chosen(self, monkeypatch, curves=TestHowStepsAreCounted.CURVES, plain=False, **errors):
        """Return what is chosen where models have made up errors; those of others are larger."""
        monkeypatch.setattr(
            crossval, "leave_sizes_out", lambda _, name: [held(curves[0].setting, 4, errors.get(name, 0.3))]
        )
        return choose(curves, plain=plain, wide=False)

    @pytest.mark.parametrize(
        ("line", "piecewise", "best"),
        [(0.01, 0.02, "line"), (0.02, 0.01, "piecewise"), (0.01003, 0.01001, "line"), (0.0103, 0.01, "piecewise")],
    )
    def test_the_plainest_of_those_with_the_least_error_in_four_digits_stands_for_all(
        self, monkeypatch, line, piecewise, best
    ):
        found = self.chosen(monkeypatch, line=line, piecewise=piecewise)
        assert found.curve_model == best
        assert (found.interpolation, found.extrapolation, found.transfer, found.nccl) == (
            "scaled", "blended", "steps", False,
        )  # fmt: skip
        assert (found.held["ranks"], found.held["beyond"], found.held["collectives"]) == ([], [], [])

    def test_those_of_others_are_judged_and_not_taken(self, monkeypatch):
        assert set(self.chosen(monkeypatch).by_curve_model) == {*OURS, "mixture"}
        found = self.chosen(monkeypatch, plain=True, five_anchors=0.001)
        assert found.by_curve_model["five_anchors"][0].log_errors == pytest.approx([0.001] * 4)
        assert found.curve_model == "line"
        assert "five_anchors" not in found.weights[TestHowStepsAreCounted.CURVES[0].setting]

    def test_of_which_nothing_was_held_out_go_through_all_sizes(self):
        found = choose([Curve(ONE, np.arange(1.0, 4.0), np.ones(3))])
        assert (found.curve_model, found.weights, found.held["sizes"]) == ("interpolated", {}, [])
        assert set(found.by_curve_model) == {*OURS, "five_anchors", "mixture"}

    def test_say_together_their_mean_by_weight_in_logarithms(self, monkeypatch):
        # Weights of errors of 2 and 3 % are 81 and 16 parts of 97, whichever way they are off.
        found = self.chosen(monkeypatch, line=0.02, piecewise=-0.03)
        assert found.weights == {
            TestHowStepsAreCounted.CURVES[0].setting: pytest.approx({"line": 81 / 97, "piecewise": 16 / 97})
        }
        (together,) = found.held["sizes"]
        assert together.log_errors == pytest.approx((81 * 0.02 - 16 * 0.03) / 97)
        assert found.by_curve_model["mixture"] == [together]

    def test_are_fitted_as_they_were_chosen(self):
        sizes = 2.0 ** np.arange(10, 20)
        curves = [Curve(ONE, sizes, 1e-5 + sizes * 1e-9)]
        made = ModelChoice("adjacent", "interpolated", "steps", "corrected", True, {ONE: {"line": 1.0}}, {}, {})
        found = made.fitted(curves)
        assert (found.curve_model, found.interpolation, found.extrapolation, found.transfer) == made[:4]
        assert found.steps.nccl
        assert [(one.model, one.weight) for one in found.known[0].shape.parts] == [("interpolated", 0), ("line", 1)]


def test_four_sizes_are_the_fewest_of_which_some_are_held_out():
    for count, places in ((3, []), (4, [[1], [2], [3]]), (6, [[4], [1, 5], [2], [3]])):
        curve = Curve(ONE, np.arange(1.0, count + 1), np.ones(count))
        assert [np.flatnonzero(one).tolist() for one in crossval.folds(curve)] == places
        assert [one.sizes.tolist() for one in crossval.leave_sizes_out([curve], "line")] == [
            [place + 1.0 for place in each] for each in places
        ]


def test_models_of_curves_are_three_tenths_of_the_way_and_all_of_it_where_nothing_else_is_judged(monkeypatch):
    monkeypatch.setattr(crossval, "_wide", lambda *given: (1.0, "scaled", "blended", "steps", [], [], []))
    for wide, end, last in ((True, 0.3, 0.3 + 0.7 * 0.8), (False, 1.0, 1.0)):
        shares = []
        with told(shares.append):
            choose(TestHowStepsAreCounted.CURVES, plain=False, wide=wide)
        assert shares[:6] == pytest.approx([end * number / 6 for number in range(1, 7)])
        assert shares[-1] == pytest.approx(last)


def test_ranks_are_half_of_what_is_judged_beyond_curves_and_collectives_the_rest(monkeypatch):
    curves = [
        Curve(Setting(name, ranks), np.ones(1), np.ones(1)) for name in ("a", "b", "c") for ranks in (2, 4, 8, 16, 32)
    ]
    monkeypatch.setattr(crossval, "fit", lambda *given, **named: predictor())
    for judge, wanted in (
        (crossval.leave_ranks_out, [0.1, 0.2, 0.3, 0.4, 0.5]),
        (crossval.leave_collectives_out, [1 / 3, 2 / 3, 1]),
    ):
        shares = []
        with told(shares.append):
            judge(curves, "line", False)
        assert shares == pytest.approx(wanted)


class TestWaysBeyondWhatWasMeasured:
    def chosen(self, monkeypatch, inside, beyond, transfer):
        """Return what is chosen for errors by name, of ranks inside and outside those kept, and of collectives."""
        names = get_args(Interpolation)
        ranks = {
            name: [held(ONE, 3, inside.get(name, 0.4)), held(OTHER, 2, beyond.get(name, 0.4))._replace(outside=True)]
            for name in names
        }
        collectives = {name: [held(ONE, 4, transfer.get(name, 0.4))] for name in get_args(Transfer)}
        monkeypatch.setattr(crossval, "leave_ranks_out", lambda *given: ranks)
        monkeypatch.setattr(crossval, "leave_collectives_out", lambda *given: collectives)
        monkeypatch.setattr(crossval, "fit", lambda *given, **named: predictor())
        found = choose(TestHowStepsAreCounted.CURVES, plain=False)
        assert found.held["ranks"] == [ranks[found.interpolation][0]]
        assert found.held["beyond"] == [ranks[found.extrapolation][1]]
        assert found.held["collectives"] == collectives[found.transfer]
        return found.interpolation, found.extrapolation, found.transfer

    def test_are_the_usual_ones_unless_others_are_better_by_a_fifth(self, monkeypatch):
        usual = ("scaled", "blended", "steps")
        assert self.chosen(monkeypatch, {}, {}, {}) == usual
        assert self.chosen(monkeypatch, {"steps": 0.33}, {"scaled": 0.33}, {"corrected": 0.33}) == usual
        assert self.chosen(monkeypatch, {"steps": 0.31}, {"scaled": 0.31}, {"corrected": 0.31}) == (
            "steps", "scaled", "corrected",
        )  # fmt: skip
        # The better of two, and each by its own errors.
        assert self.chosen(monkeypatch, {"steps": 0.31, "interpolated": 0.2}, {"steps": 0.1}, {"steps": 0.01}) == (
            "interpolated", "steps", "steps",
        )  # fmt: skip

    def test_are_the_usual_ones_where_all_are_exact(self, monkeypatch):
        exact = dict.fromkeys(get_args(Interpolation), 0.0)
        assert self.chosen(monkeypatch, exact, exact, dict.fromkeys(get_args(Transfer), 0.0)) == (
            "scaled", "blended", "steps",
        )  # fmt: skip

    @pytest.mark.parametrize("nccl", [True, False])
    def test_are_as_good_as_steps_are_for_ranks_for_collectives_and_for_what_they_were_fitted_to(
        self, monkeypatch, nccl
    ):
        steps = StepModel(nccl, NCCL.values)
        sizes = 2.0 ** np.arange(4, 8)
        own, unknown = Setting("all_gather", 8, 8, "ring"), Setting("gather", 8, 8)
        curves = [Curve(own, sizes, steps.at(own, sizes) * math.exp(0.3)), Curve(unknown, sizes, np.ones(4))]
        ranks = {name: [held(ONE, 3, 0.2 if name == "steps" else 0.01)] for name in get_args(Interpolation)}
        collectives = {name: [held(ONE, 4, 0.1 if name == "steps" else 0.4)] for name in get_args(Transfer)}
        asked = []

        def fitted(curves, curve_model, nccl):
            asked.append((curve_model, nccl))
            return predictor(steps=steps)

        monkeypatch.setattr(crossval, "leave_ranks_out", lambda *given: ranks)
        monkeypatch.setattr(crossval, "leave_collectives_out", lambda *given: collectives)
        monkeypatch.setattr(crossval, "fit", fitted)
        mean, *_ = crossval._wide(curves, "line", nccl)
        assert mean == pytest.approx((0.2 + 0.1 + 0.3) / 3)
        assert asked == [("line", nccl)]
        monkeypatch.setattr(crossval, "fit", lambda *given, **named: predictor())
        assert crossval._wide(curves, "line", nccl)[0] == pytest.approx((0.2 + 0.1) / 2)
        ranks.clear()
        ranks.update(dict.fromkeys(get_args(Interpolation), ()))
        collectives.update(dict.fromkeys(get_args(Transfer), ()))
        assert crossval._wide(curves, "line", nccl)[0] == math.inf

    def test_errors_are_capped_at_a_half(self):
        assert score([held(ONE, 3, 0.1), held(ONE, 1, -5.0)]) == pytest.approx((0.3 + math.log(1.5)) / 4)
        assert score([]) == math.inf


@pytest.mark.parametrize(
    "settings", [((32, 8), (16, 2)), ((32, 8), (16, 2), (8, 4)), ((28, 8), (24, 8)), ((8, 8), (32, 8))]
)
def test_cards_are_the_likelier_the_better_steps_fit_with_them(settings):
    sizes = 2.0 ** np.arange(10, 31, 2)
    steps = StepModel(True, NCCL.values, cards=2.0)
    noise = np.exp(0.2 * np.cos(np.arange(11)))
    curves = [Curve(one, sizes, noise * steps.at(one, sizes)) for one in (reduce(*each) for each in settings)]
    fitted = fit(curves, nccl=True)
    assert fitted.steps == fit_step_model(curves, True, fitted.cards[0].number)
    found = {one.number: one.chance for one in fitted.cards}
    wanted = {}
    for number, chance in likely(curves, 0.0):
        steps = fit_step_model(curves, True, number)
        off = [
            abs(math.log(b / a))
            for one in curves
            for a, b in zip(steps.at(one.setting, sizes), one.seconds, strict=True)
        ]
        wanted[number] = chance * max(sum(off) / len(off), 0.01) ** -5
    assert len(found) > 1
    for number, chance in found.items():
        assert chance / max(found.values()) == pytest.approx(wanted[number] / max(wanted.values()))


def test_steps_that_fit_exactly_are_off_by_a_hundredth():
    sizes = 2.0 ** np.arange(10, 31, 4)
    exact = NCCL.at(ONE, sizes)
    for off, said in ((0.0, 0.01), (0.009, 0.01), (-0.3, 0.3)):
        # Of a gather no steps are counted.
        curves = [Curve(ONE, sizes, exact * math.exp(off)), Curve(Setting("gather", 4, 4), sizes, np.ones(6))]
        assert _misfit(NCCL, curves) == pytest.approx(said)


def test_cards_are_as_likely_as_rates_say_where_one_number_of_ranks_on_a_node_was_measured():
    sizes = 2.0 ** np.arange(10, 31, 10)
    curves = [Curve(reduce(4 * nodes, nodes), sizes, 1e-5 + 2 * sizes / 20e9) for nodes in (4, 8)]
    fitted = fit(curves, nccl=True)
    assert len(fitted.cards) > 1
    assert fitted.cards == likely(curves)
    assert fitted.steps.cards == fitted.cards[0].number
    assert fitted.each == 4


def test_rates_out_of_a_node_are_the_fastest_and_not_rounded():
    def rate(*settings):
        return node_rate([Curve(Setting("all_gather", *one), np.array([1.0, 3.0]), np.ones(2) * 4) for one in settings])

    assert rate((8, 2)) == (7 / 8 * 3 / 4, 4.0)
    assert rate((8, 2), (4, 4)) == (7 / 8 * 3 / 4, 4.0)
    assert rate((8, 1), (8, 0), (4, 8)) == (0.0, 1.0)


def test_a_step_of_mpi_is_as_long_as_the_fastest_message_has_it_where_nothing_else_tells():
    # On one node nothing crosses the network: the latency of a step is the smallest size's time by steps and a call.
    sizes = 2.0 ** np.arange(10, 20)
    for ranks, steps in ((8, 7), (4, 3)):
        curve = Curve(Setting("all_gather", ranks, 1, "ring"), sizes, 2e-5 + sizes * 1e-9)
        found = dict(zip(PARAMETERS, fit_step_model([curve], False).values, strict=True))
        assert found["outer_latency"] == pytest.approx(curve.seconds[0] / (1 + steps), rel=1e-6)


def test_platforms_take_as_many_nodes_as_ranks_need_and_more():
    model = specified(load_platform("dgx-h100"))
    assert model.predict("all_reduce", 16, 2**20, nodes=2) == model.predict("all_reduce", 16, 2**20)
    assert model.predict("all_reduce", 16, 2**20, nodes=4) != model.predict("all_reduce", 16, 2**20)
    with pytest.raises(InputError, match=r"nodes: 16 ranks need 2 nodes of .*, got 1"):
        model.predict("all_reduce", 16, 2**20, nodes=1)


def test_curves_have_two_ranks_and_a_byte_at_the_least():
    rows = measured.load("shaped_gloo").rows.head(3).copy()
    assert curves_of(rows.assign(ranks=2))[0].setting.ranks == 2
    for less in ({"ranks": 1}, {"ranks": 0}, {"ranks": pd.NA}, {"nbytes": 0}):
        assert curves_of(rows.assign(**less)) == []


def test_cards_of_a_curve_are_the_most_that_are_told():
    rows = measured.load("shaped_gloo").rows.head(3).copy()
    assert curves_of(rows.drop(columns="network_cards", errors="ignore"))[0].cards == 0
    assert curves_of(rows.assign(network_cards=pd.array([2, None, 4], dtype="Int64")))[0].cards == 4
    assert curves_of(rows.assign(network_cards=pd.array([None] * 3, dtype="Int64")))[0].cards == 0


def test_rates_of_platforms_are_written_as_they_are_read():
    written = load_platform("dgx-h100").model_dump(mode="json")
    assert (written["inner"]["rate"], written["outer"]["rate"]) == ("450 GB/s", "50 GB/s")
