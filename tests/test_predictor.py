"""Predictions of hand-made curves over ranks, sizes, collectives, and the cards of a node."""

import math

import numpy as np
import pytest

from hand_made import MPI, NCCL, SIZES, VALUES, fitted, flat, power, predictor, reduce, stepped
from simnet.calibration import Curve, Setting
from simnet.calibration.cards import (
    CARD_PER_RANK,
    LEAST_CHANCE,
    RAIL_CARDS,
    CardCount,
    describe_card_counts,
    likely_card_counts,
    node_rate,
    normalise_chances,
)
from simnet.calibration.curve_models import CurveModel
from simnet.calibration.platform import load_platform, platform_names
from simnet.calibration.predictor import TimeGrowth, fit_predictor
from simnet.calibration.rank_scaling import scale_over_ranks, term_counts
from simnet.calibration.step_model import StepModel


class TestRanks:
    def test_interpolated_ones_go_along_lines_in_logarithms_and_on(self):
        model = predictor(
            flat(reduce(4), 1e-5), flat(reduce(16), 4e-5), flat(reduce(64), 4e-5), inside="interpolated",
            outside="interpolated",
        )  # fmt: skip
        found = [model.at(reduce(ranks), [1e4])[0] for ranks in (1, 2, 8, 32, 256)]
        assert found == pytest.approx([2.5e-6, 5e-6, 2e-5, 4e-5, 4e-5])

    def test_several_numbers_of_nodes_count_by_their_mean(self):
        model = predictor(
            flat(reduce(4, 1), 1e-5), flat(reduce(4, 4), 4e-5), flat(reduce(16), 8e-5), inside="interpolated"
        )
        assert model.at(reduce(8), [1e4])[0] == pytest.approx(4e-5)
        assert model.at(reduce(4, 2), [1e4])[0] == pytest.approx(2e-5)

    def test_steps_are_corrected_as_at_the_neighbours_and_beyond_as_at_the_last(self):
        curves = [stepped(reduce(ranks, algorithm="ring"), MPI, ranks / 4)[0] for ranks in (4, 16, 64)]
        model = predictor(*curves, inside="steps", outside="steps", steps=MPI)
        for ranks, factor in ((2, 1), (8, 2), (32, 8), (256, 16)):
            asked = reduce(ranks, algorithm="ring")
            assert model.at(asked, SIZES) == pytest.approx(factor * MPI.at(asked, SIZES), rel=0.03)

    @pytest.mark.parametrize(("ranks", "share"), [(8, 0.5), (23, 0.25 * math.log2(23 / 16)), (32, 0.25), (128, 0.5)])
    def test_blended_ones_are_between_scaled_and_steps(self, ranks, share):
        curves = [stepped(reduce(ranks, algorithm="ring"), MPI, ranks / 4)[0] for ranks in (4, 16)]
        asked = reduce(ranks, algorithm="ring")
        scaled, steps, blended = (
            predictor(*curves, inside=way, outside=way, steps=MPI).at(asked, SIZES)
            for way in ("scaled", "steps", "blended")
        )
        assert np.abs(np.log(scaled / steps)).max() > 0.05
        assert blended == pytest.approx(scaled ** (1 - share) * steps**share)

    def test_curves_of_one_number_of_ranks_leave_it_to_the_steps(self):
        curve, _ = stepped(reduce(4, algorithm="ring"), MPI, 3.0)
        asked = reduce(32, algorithm="ring")
        for way in ("scaled", "blended"):
            found = predictor(curve, outside=way, steps=MPI).at(asked, SIZES)
            assert found == pytest.approx(3.0 * MPI.at(asked, SIZES), rel=0.05)

    def test_steps_that_are_not_counted_of_all_curves_correct_nothing(self):
        # Schedules of more than 4096 ranks are not looked at.
        curves = [flat(reduce(ranks, algorithm="ring"), 1e-3) for ranks in (4, 5000)]
        found = predictor(*curves, inside="steps", steps=MPI).at(reduce(64, algorithm="ring"), SIZES)
        assert found == pytest.approx(predictor(*curves).at(reduce(64, algorithm="ring"), SIZES))

    def test_interpolated_ones_do_without_steps(self):
        curve, _ = stepped(reduce(4, algorithm="ring"), MPI, 3.0)
        found = predictor(curve, inside="interpolated", outside="interpolated", steps=MPI)
        asked = reduce(32, algorithm="ring")
        assert found.at(asked, SIZES) == pytest.approx(curve.through.at(SIZES))

    def gathers(self, ranks, algorithm, per_rank):
        # The protocol changes at 64 KiB of a rank, or at a MiB of the whole.
        change = ranks * 2.0**16 if per_rank else 2.0**20
        grows = ranks * 1e-6 if per_rank else 2e-5
        segments = ((0.0, grows, 4e-10), (change, 8 * grows, 1e-10))
        return fitted(Setting("all_gather", ranks, ranks, algorithm), CurveModel(segments=segments))

    @pytest.mark.parametrize(
        ("algorithm", "steps", "per_rank"),
        [("ring", None, True), ("Ring_ompi", MPI, True), ("", NCCL, True), ("", MPI, False), ("", None, False),
         ("bruck", MPI, False)],
    )  # fmt: skip
    def test_curves_are_compared_at_the_same_size_per_rank_along_rings_and_of_nccl_alone(
        self, algorithm, steps, per_rank
    ):
        curves = [self.gathers(ranks, algorithm, per_rank) for ranks in (8, 128)]
        wanted = self.gathers(32, algorithm, per_rank)
        sizes = 2.0 ** np.arange(17, 25, 0.5)
        found = predictor(*curves, steps=steps).at(wanted.setting, sizes)
        assert np.abs(np.log(found / wanted.shape.at(sizes))).max() < 0.15

    def test_a_vector_that_is_reduced_has_no_parts(self):
        segments = ((0.0, 2e-5, 4e-10), (2.0**20, 1.6e-4, 1e-10))
        curves = [fitted(reduce(ranks, algorithm="ring"), CurveModel(segments=segments)) for ranks in (8, 128)]
        sizes = 2.0 ** np.arange(17, 25, 0.5)
        found = predictor(*curves).at(reduce(32, algorithm="ring"), sizes)
        assert found == pytest.approx(curves[0].shape.at(sizes), rel=0.15)

    @pytest.mark.parametrize(("steps", "tree"), [(NCCL, True), (MPI, False), (None, False)])
    def test_two_nodes_may_go_along_a_double_tree_with_nccl_alone(self, steps, tree):
        # Links inside are fast: a double tree sends half as much as a ring.
        curves = [
            fitted(reduce(4 * n, n), CurveModel(segments=((0.0, 2e-5, 2 * (1 - 1 / (4 * n)) / rate),)))
            for n, rate in ((1, 400e9), (8, 90e9), (32, 90e9))
        ]
        found = predictor(*curves, steps=steps).at(reduce(8, 2), [2.0**30])[0] / 2.0**30
        assert (found < 1.3 / 90e9) == tree
        assert 1.0 / 90e9 < found < 2.1 / 90e9

    def test_which_basis_and_how_wide(self):
        model = predictor(flat(reduce(4), 1e-5), flat(reduce(16), 4e-5))
        bases = [model.basis(one) for one in (reduce(4), reduce(4, 2), reduce(16, 2), reduce(8), reduce(2), reduce(17))]
        assert bases == ["sizes", "ranks", "ranks", "ranks", "beyond", "beyond"]
        assert model.basis(Setting("all_gather", 4, 4)) == model.basis(reduce(4, 4, "ring")) == "collectives"
        widths = {1: math.sqrt(2), 2: 1, 4: 1, 9: 1, 16: 1, 24: 1, 32: 1, 64: math.sqrt(2), 256: 2}
        for ranks, width in widths.items():
            assert model.widening(reduce(ranks)) == pytest.approx(width)
        assert model.widening(Setting("all_gather", 512, 512)) == 1
        assert predictor(flat(reduce(4), 1e-5), flat(reduce(64), 4e-5)).widening(reduce(16)) == 1
        assert [one.setting.ranks for one in model.near(reduce(4))] == [4]
        assert [one.setting.ranks for one in model.near(reduce(5))] == [4, 16]
        assert len(model.near(Setting("all_gather", 4, 4))) == 2


class TestSizes:
    @pytest.mark.parametrize(("exponent", "seen"), [(0, 0), (0.1, 0), (0.25, 0.5), (0.4, 1), (1, 1)])
    def test_bandwidth_was_seen_as_far_as_times_grow(self, exponent, seen):
        found = predictor(power(reduce(4), exponent)).growth(reduce(8))
        assert (found.largest, found.power) == (2.0**20, pytest.approx(exponent))
        assert found.by_power == pytest.approx(seen, abs=1e-9)

    @pytest.mark.parametrize(
        ("shape", "seen"),
        [
            (CurveModel(segments=((0.0, 1e-5, 1e-10),)), 1),  # A latency and bytes.
            # Of which three quarters are less, or more, than two hundredths of the whole time.
            (CurveModel(segments=((0.0, 1e-5, 0.02711e-5 / 2**20),)), 0),
            (CurveModel(segments=((0.0, 1e-5, 0.02768e-5 / 2**20),)), 1),
            (CurveModel(points=((1.0, 1.0), (2.0**40, 2.0**30))), 2 * 4**0.75 / 4 - 1),
            (CurveModel(points=((1.0, 1.0), (2.0**40, 2.0**10))), 0),
        ],
    )
    def test_bytes_were_seen_where_times_grow_by_as_many_times_more_as_the_size(self, shape, seen):
        one = fitted(reduce(4), shape, largest=2.0**20)
        assert predictor(one).growth(reduce(8)).by_bytes == pytest.approx(seen)
        # A measured curve's own models were chosen by what they say of its largest size.
        assert predictor(one).growth(reduce(4)).by_bytes == 1

    def test_sizes_that_tell_growth_are_a_quarter_and_a_sixteenth_of_the_largest_where_there_are_such(self):
        found = predictor(power(reduce(4), 0.75, largest=10.0, smallest=1.0)).growth(reduce(8))
        first, second, third = 1.0, 2.5**0.75, 10**0.75
        assert found.by_bytes == pytest.approx(2 * (third - second) / (second - first) / 4 - 1)
        assert predictor(power(reduce(4), 0.75, largest=10.0, smallest=3.0)).growth(reduce(8)).power == pytest.approx(
            0.75
        )

    def test_growth_of_few_sizes(self):
        lone = predictor(power(reduce(4), 0.2, smallest=2.0**20))
        assert lone.growth(reduce(8)) == (2.0**20, 1, 1, 1)
        assert predictor(power(reduce(4), 0.2, smallest=2.0**19)).growth(reduce(8)).power == pytest.approx(0.2)
        assert predictor().growth(reduce(8)) == (math.inf, 1, 1, 1)

    def test_of_several_curves_the_one_that_grows_most_at_the_largest_size_tells(self):
        model = predictor(power(reduce(4), 0.3), power(reduce(8), 0.2), power(reduce(16), 0.9, largest=2.0**18))
        assert model.growth(reduce(32)).by_power == pytest.approx(2 / 3)
        bytes_alone = fitted(reduce(64), CurveModel(segments=((0.0, 1e-5, 0.05e-5 / 2**20),)), largest=2.0**20)
        assert predictor(bytes_alone).growth(reduce(32)) == (2.0**20, pytest.approx(math.log(1.05 / 1.0125, 4)), 0, 1)
        assert predictor(power(reduce(4), 0.3), bytes_alone).growth(reduce(32)).by_bytes == 0
        # Of two in which no bandwidth was seen, it is the one that goes on, however slowly.
        assert predictor(power(reduce(4), 0.09), bytes_alone).growth(reduce(32)).by_bytes == 1

    def test_belief_in_bytes_fades_from_16_to_256_times_the_largest_size(self):
        ratio = np.array([1.0, 16, 64, 256, 1e4])
        assert TimeGrowth(1.0, 0.3, 0.2, 1.0).trust(ratio) == pytest.approx([1, 1, 0.5, 0.2, 0.2])
        assert TimeGrowth(1.0, 0.3, 0.0, 0.5).trust(ratio) == pytest.approx([0.5, 0.5, 0.25, 0, 0])

    def test_beyond_times_are_drawn_to_the_middle_of_what_is_possible(self):
        model, largest = predictor(power(reduce(4), 0.25)), 2.0**20
        end = 1e-6 * largest**0.25
        for ratio, told in ((0.5, 1), (1, 1), (1.5, 1), (4, 1), (16, 1), (64, 0.5), (256, 0.5), (1e5, 0.5)):
            (seconds,), (least,), (most,) = model.within(reduce(4), [ratio * largest])
            assert seconds == pytest.approx(end * ratio ** (0.25 * told + (1 - told) * 0.625))
            assert least == pytest.approx(end * ratio**0.25)
            assert most == pytest.approx(end * max(ratio, ratio**0.25) if ratio >= 1 else end * ratio**0.25)
        assert predictor().within(reduce(4), [1e9]) is None
        together = model.within(reduce(4), [largest / 2, 64 * largest])
        assert together.seconds == pytest.approx([end * 2**-0.25, end * 64 ** (0.125 + 0.3125)])
        assert together.most == pytest.approx([end * 2**-0.25, end * 64])
        steep = predictor(power(reduce(4), 0.5))
        assert steep.within(reduce(4), [2.0**40]) == (steep.at(reduce(4), [2.0**40]),) * 3


class TestCollectives:
    def test_the_rule_of_the_bus_factor_counts_as_far_as_the_steps_do_not_fit(self):
        # A misfit of a tenth gives it half of what it may have, which is half of the logarithm, and less below 2 MiB.
        curve, sizes = stepped(reduce(16, 2), NCCL, math.exp(0.1))
        model = predictor(curve, steps=NCCL)
        share = 0.5 * sizes / (sizes + 2.0**21) * 0.5
        for name, factor in (("reduce_scatter", 15 / 16), ("all_gather", 15 / 16), ("broadcast", 1.0)):
            asked = Setting(name, 16, 2)
            steps, ruled = NCCL.at(asked, sizes), factor / (15 / 8) * curve.shape.at(sizes)
            assert model.at(asked, sizes) == pytest.approx(steps ** (1 - share) * ruled**share)
        for asked in (Setting("all_gather", 16, 16), Setting("all_gather", 8, 2)):
            assert model.at(asked, sizes) == pytest.approx(NCCL.at(asked, sizes))
        fits, sizes = stepped(reduce(16, 2), NCCL, 1.0)
        asked = Setting("all_gather", 16, 2)
        assert predictor(fits, steps=NCCL).at(asked, sizes) == pytest.approx(NCCL.at(asked, sizes))

    def test_the_rule_goes_by_the_mean_of_what_was_measured_on_the_same_ranks(self):
        known = {name: stepped(Setting(name, 16, 2), NCCL, math.exp(0.1))[0] for name in ("all_reduce", "all_gather")}
        others = [
            stepped(Setting("broadcast", 16, 2), NCCL, math.exp(0.1))[0],
            stepped(Setting("all_reduce", 16, 2, "tree"), NCCL, math.exp(0.1))[0],
            stepped(reduce(8, 1), NCCL, math.exp(0.1))[0],
        ]
        model = predictor(*known.values(), *others, steps=NCCL)
        asked, sizes = Setting("reduce_scatter", 16, 2), np.geomspace(2.0**10, 2.0**30, 16)
        ruled = np.sqrt(known["all_reduce"].shape.at(sizes) / 2 * known["all_gather"].shape.at(sizes))
        steps, share = NCCL.at(asked, sizes), 0.25 * sizes / (sizes + 2.0**21)
        assert model.at(asked, sizes) == pytest.approx(steps ** (1 - share) * ruled**share)

    def test_the_rule_says_nothing_where_no_steps_are_counted_of_what_was_measured(self):
        # Schedules of more than 4096 ranks are not looked at, but a send-receive is a message.
        asked, sizes = Setting("sendrecv", 5000, 5000), np.geomspace(2.0**10, 2.0**30, 16)
        assert predictor(flat(reduce(5000), 1e-3), steps=MPI).at(asked, sizes) == pytest.approx(MPI.at(asked, sizes))

    def test_corrected_steps_are_slower_as_others_are_in_their_mean(self):
        curves = [stepped(Setting(name, 16, 2), NCCL, factor)[0] for name, factor in (("broadcast", 2), ("reduce", 8))]
        model = predictor(*curves, transfer="corrected", steps=NCCL)
        asked, sizes = Setting("all_gather", 32, 4), np.geomspace(2.0**10, 2.0**30, 16)
        assert model.at(asked, sizes) == pytest.approx(4 * NCCL.at(asked, sizes))
        alone = predictor(flat(Setting("gather", 16, 2), 1.0), transfer="corrected", steps=NCCL)
        assert alone.at(asked, sizes) == pytest.approx(NCCL.at(asked, sizes))
        assert predictor(*curves).at(asked, sizes) is None


class TestCards:
    @pytest.mark.parametrize("chances", [(0.5, 0.3, 0.2), (0.4, 0.35, 0.25), (0.2, 0.2, 0.6)])
    def test_the_median_of_the_hypotheses_is_predicted(self, chances):
        steps = StepModel(True, VALUES, cards=1.0)
        cards = [CardCount(number, chance) for number, chance in zip((1.0, CARD_PER_RANK, 2.0), chances, strict=True)]
        curve, sizes = stepped(reduce(32, 8), steps, 1.0)
        model = predictor(curve, steps=steps, cards=tuple(cards), each=4.0, outside="steps")
        asked = reduce(16, 16)
        listed = model.by_cards(asked, sizes)
        assert [one for one, _ in listed] == cards
        for one, seconds in listed:
            alone = predictor(curve, steps=steps.as_if(one.number, 4.0), outside="steps")
            assert seconds == pytest.approx(alone.at(asked, sizes))
        found = model.within(asked, sizes)
        for place in range(len(sizes)):
            times = sorted((float(seconds[place]), one.chance) for one, seconds in listed)
            reached = np.cumsum([chance for _, chance in times])
            assert found.seconds[place] == next(
                time for (time, _), sum_ in zip(times, reached, strict=True) if sum_ >= 0.5
            )
            assert (found.least[place], found.most[place]) == (times[0][0], times[-1][0])
        assert listed[0][1][-1] > 0
        assert not np.allclose(listed[0][1][-1], listed[1][1][-1])
        assert len(model.by_cards(reduce(16, 2), sizes)) == 3
        # Nothing is open where it was measured, on one node, or with as many ranks a node.
        for alike in (reduce(32, 8), reduce(4, 1), reduce(16, 4)):
            assert model.by_cards(alike, sizes) == []
        assert predictor(curve, steps=steps, each=4.0).by_cards(asked, sizes) == []
        both = predictor(curve, flat(asked, 1e-3), steps=steps, cards=tuple(cards), each=4.0)
        assert both.by_cards(asked, sizes) == []
        # Three and a half ranks a node are neither three nor four.
        odd = predictor(flat(reduce(7, 2), 1e-3), steps=steps, cards=tuple(cards), each=3.5)
        assert odd.by_cards(reduce(14, 4), sizes) == []
        assert len(odd.by_cards(reduce(12, 4), sizes)) == 3

    def test_chances_that_count_add_to_one_and_the_likeliest_comes_first(self):
        found = normalise_chances({CARD_PER_RANK: 6.0, 4.0: 6.0, 1.0: 7.0, 2.0: 0.99, 8.0: 1.0}, 0.05)
        assert [one.number for one in found] == [1.0, 4.0, CARD_PER_RANK]
        assert [one.chance for one in found] == pytest.approx([7 / 19, 6 / 19, 6 / 19])
        assert [one.number for one in normalise_chances({1.0: 19.0, 2.0: 1.0})] == [1.0, 2.0]
        assert normalise_chances({1.0: 20.0, 2.0: 1.0}) == (CardCount(1.0, 1.0),)

    def test_one_number_of_ranks_on_a_node_leaves_cards_to_what_is_usual(self):
        sizes = 2.0 ** np.arange(10, 31, 4)
        steps = StepModel(True, VALUES, cards=2.0)
        curves = [Curve(one, sizes, steps.at(one, sizes)) for one in (reduce(4, 1), reduce(16, 2), reduce(32, 4))]
        found = fit_predictor(curves, nccl=True)
        assert found.cards == likely_card_counts(curves, LEAST_CHANCE)
        assert len(found.cards) > 1
        assert found.steps.cards == found.cards[0].number

    def reached(self, ranks, nodes, rate, cards=0, collective="all_gather"):
        out = (1 - 1 / ranks) * (2 if collective == "all_reduce" else 1)
        return Curve(Setting(collective, ranks, nodes), np.array([1e6, 1e9]), np.array([1.0, out * 1e9 / rate]), cards)

    def test_what_leaves_a_node_is_the_most_that_was_seen(self):
        assert node_rate([]) == (0, 1)
        assert node_rate([self.reached(8, 1, 1e12), self.reached(8, 0, 1e12), self.reached(4, 8, 1e12)]) == (0, 1)
        curves = [self.reached(32, 8, 3e9), self.reached(32, 4, 9e9, collective="all_reduce"), self.reached(8, 8, 4e9)]
        assert node_rate(curves) == (pytest.approx(9e9), 8)
        assert node_rate(curves[2:]) == (pytest.approx(4e9), 1)
        assert likely_card_counts([self.reached(8, 1, 1e12)]) == RAIL_CARDS

    def test_cards_that_logs_tell_are_known(self):
        for cards, number in ((1, 1.0), (3, 3.0), (4, CARD_PER_RANK), (8, CARD_PER_RANK)):
            assert likely_card_counts([self.reached(32, 8, 3e9, cards), self.reached(8, 8, 3e9)]) == (
                CardCount(number, 1.0),
            )

    def test_one_card_is_the_less_likely_the_more_leaves_a_node(self):
        chances = [
            dict(likely_card_counts([self.reached(32, 8, rate)], 0.0))[1.0] for rate in (45e9, 70e9, 100e9, 200e9)
        ]
        assert chances == sorted(chances, reverse=True)
        assert chances[-1] < 0.2
        numbers = [one.number for one in likely_card_counts([self.reached(32, 8, 100e9)], 0.0)]
        assert CARD_PER_RANK in numbers
        assert sum(one.chance for one in likely_card_counts([self.reached(32, 8, 100e9)])) == pytest.approx(1)

    @pytest.mark.parametrize("rate", [3e9, 100e9, 170e9])
    def test_cards_are_as_likely_as_platforms_that_have_so_many_reach_as_much(self, rate):
        def likeliness(ratio):
            return 1 / (1 + (math.log(ratio) / 0.35) ** 2)

        chances = {1.0: likeliness(max(rate / 50e9, 1.0))}
        for one in map(load_platform, platform_names()):
            if one.outer is not None:
                count = float(one.outer.nics) if one.outer.nics < one.devices_per_node else CARD_PER_RANK
                reached = one.outer_rate(min(4, one.devices_per_node))
                chances[count] = chances.get(count, 0.0) + likeliness(rate / reached)
        found = {one.number: one.chance for one in likely_card_counts([self.reached(32, 8, rate)], 0.0)}
        assert found == pytest.approx({count: one / sum(chances.values()) for count, one in chances.items()})

    def test_what_is_open_is_said_with_what_would_tell(self):
        cards = [CardCount(1.0, 0.5), CardCount(2.0, 0.3), CardCount(CARD_PER_RANK, 0.2)]
        told = "network cards of a node: one (50 %), 2 (30 %) or one for each rank (20 %), which these data do not tell"
        assert describe_card_counts(cards, 4) == f"{told}; large messages of 1 rank on each of several nodes would"
        assert describe_card_counts(cards, 1) == f"{told}; large messages of all ranks of several nodes would"
        assert describe_card_counts(cards[:1], 4) == ""


@pytest.mark.parametrize(
    ("collective", "ranks", "nodes", "wanted"),
    [
        # Launch; a step of a tree; a step of a ring, or a peer; a byte out of a node; one inside the only node.
        ("all_reduce", 1, 1, [1, 0, 0, 0, 0]),
        ("all_reduce", 8, 1, [1, 0.15 * 3, 0.15 * 7, 0, 7 / 4]),
        ("all_reduce", 8, 0, [1, 3, 7, 7 / 4, 0]),
        ("all_reduce", 8, 20, [1, 3, 7, 7 / 4, 0]),
        ("all_gather", 16, 4, [1, 2 + 0.3, 4 + 0.15 * 11, 15 / 64, 0]),
        ("gather", 16, 4, [1, 2 + 0.3, 4 + 0.15 * 11, 15 / 64, 0]),
        ("alltoall", 16, 4, [1, 2 + 0.3, 12 + 0.15 * 3, 3 / 4, 0]),
        ("alltoall", 8, 1, [1, 0.45, 0.15 * 7, 0, 7 / 8]),
        ("broadcast", 4, 2, [1, 1 + 0.15, 2 + 0.15, 1 / 2, 0]),
        ("sendrecv", 4, 2, [1, 1 + 0.15, 2 + 0.15, 1, 0]),
    ],
)
def test_what_grows_with_the_ranks(collective, ranks, nodes, wanted):
    assert term_counts(Setting(collective, ranks, nodes)) == pytest.approx(np.array(wanted))


def test_what_a_tree_sends_counts_on_two_nodes_alone():
    for by_tree, outer in ((1.0, 1 / 4), (1.2, 1.2 / 4), (9.0, 7 / 16)):
        assert term_counts(reduce(8, 2), by_tree)[3] == pytest.approx(outer)
        assert term_counts(reduce(16, 4), by_tree)[3] == pytest.approx(15 / 32)
    assert term_counts(reduce(8, 2), 1.0, cards=1)[3] == pytest.approx(1.0)
    assert term_counts(reduce(16, 4), cards=2)[3] == pytest.approx(15 / 16)


def test_at_ranks_that_were_measured_curves_stand_for_themselves():
    shape = CurveModel(segments=((0.0, 1e-6, 1e-9),))
    found = scale_over_ranks([reduce(8)], [shape], reduce(8), SIZES, chunked=False)
    assert found == pytest.approx(shape.at(SIZES))


def test_steps_are_those_of_schedules_and_curves_their_own_models_unless_said():
    sizes = 2.0 ** np.arange(10, 20)
    curve = Curve(reduce(4), sizes, 1e-5 + sizes * 1e-9)
    found = fit_predictor([curve])
    assert found.steps.nccl is False
    assert [(one.model, one.weight) for one in found.known[0].shape.parts] == [("interpolated", 1.0)]
    assert (found.known[0].smallest, found.known[0].largest, found.known[0].count) == (2.0**10, 2.0**19, 10)
    found = fit_predictor([curve], weights={reduce(4): {"line": 3.0}}, with_steps=False)
    assert [(one.model, one.weight) for one in found.known[0].shape.parts] == [("interpolated", 0.0), ("line", 1.0)]
    assert found.steps is None


def test_cards_are_looked_for_with_nccl_alone_and_where_steps_are_counted():
    sizes = 2.0 ** np.arange(10, 31, 4)
    settings = [Setting(name, ranks, nodes) for name in ("all_reduce", "gather") for ranks, nodes in ((16, 4), (8, 4))]
    every = [Curve(one, sizes, 1e-5 + sizes * 1e-10) for one in settings]
    alone = fit_predictor(every[2:], nccl=True)
    assert (alone.cards, alone.steps) == (RAIL_CARDS, None)
    for found in (fit_predictor(every), fit_predictor(every, nccl=True, with_steps=False)):
        assert found.cards == RAIL_CARDS
    assert [fit_predictor(every, nccl=nccl, with_steps=False).each for nccl in (False, True)] == [1, 4]
