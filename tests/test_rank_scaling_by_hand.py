"""Times over the number of ranks by hand: of one curve, whose terms are told by the ridge alone, and of several."""

import math

import numpy as np
import pytest

from hand_made import reduce
from simnet.calibration import Setting
from simnet.calibration.curve_models import CurveModel
from simnet.calibration.rank_scaling import _sent_by_tree, _share, over_ranks, terms

LARGE = 2.0**30
ALL = (0, 1, 2, 3)
SIZES = np.array([2.0**10, 2.0**14, 2.0**20, 2.0**30])
# What is paid on so many nodes of one rank: launch; steps of a tree; messages of a ring; bytes out; bytes inside.
PAID = {4: [1, 2, 3, 3 / 2, 0], 8: [1, 3, 7, 7 / 4, 0], 16: [1, 4, 15, 15 / 8, 0]}


def line(latency, per_byte):
    return CurveModel(segments=((0.0, latency, per_byte),))


def over(known, shapes, asked, sizes=SIZES, chunked=False):
    return over_ranks(known, shapes, asked, sizes, chunked=chunked)


class TestOneCurve:
    """Every term is as likely as any other, but for bytes, by the square of what they may be of the time.

    Least squares of sum(x) - 1 and of 0.05 x / share have x in proportion to the squares of shares. So times grow by
    the mean of what each term grows by, with these weights.
    """

    @pytest.mark.parametrize("nodes", [None, 1])
    def test_it_grows_as_launch_tree_ring_and_bytes_do_in_their_mean(self, nodes):
        # Four ranks and eight, on as many nodes or on one.
        latency, byte = 1e-5, 1e-9
        seconds = latency + byte * SIZES
        share = np.minimum((latency / LARGE + byte) * SIZES / seconds, 1)
        grown = (1 + 3 / 2 + 7 / 3 + 7 / 6 * share**2) / (3 + share**2)
        found = over([reduce(4, nodes)], [line(latency, byte)], reduce(8, nodes))
        assert found == pytest.approx(seconds * grown, rel=1e-6)
        assert share[-1] == pytest.approx(1)
        assert share[0] < 0.1 < 0.9 < share[2]

    def test_of_a_vector_in_parts_it_is_taken_at_the_same_part(self):
        # Of four ranks the half of it: three quarters of that leave a rank, and seven eighths of the whole of eight.
        latency, byte = 1e-5, 1e-9
        seconds = latency + byte * SIZES / 2
        share = np.minimum((latency / LARGE + byte / 2) * SIZES / seconds, 1)
        grown = (1 + 3 / 2 + 7 / 3 + (7 / 8) / (3 / 8) * share**2) / (3 + share**2)
        known, asked = (Setting("all_gather", ranks, ranks) for ranks in (4, 8))
        found = over([known], [line(latency, byte)], asked, chunked=True)
        assert found == pytest.approx(seconds * grown, rel=1e-6)

    @pytest.mark.parametrize(("collective", "least"), [("all_reduce", 3e-6), ("all_gather", 1.5e-6)])
    def test_it_is_no_ring_where_a_message_of_one_would_take_less_than_half_a_microsecond(self, collective, least):
        # Three messages one way, or twice three.
        known, asked = (Setting(collective, ranks, ranks) for ranks in (4, 8))
        for factor, grown in ((1.0, (1 + 3 / 2 + 7 / 3) / 3), (0.99, (1 + 3 / 2) / 2)):
            found = over([known], [line(factor * least, 0.0)], asked, np.array([8.0]))
            assert found == pytest.approx([factor * least * grown])

    def test_no_bytes_are_a_limit(self):
        none, few = (over([reduce(4)], [line(1e-5, 1e-9)], reduce(8), np.array([size])) for size in (0.0, 1e-6))
        assert none == pytest.approx(few)


def test_one_rank_pays_a_launch_alone_and_two_all_terms():
    for name in ("all_reduce", "broadcast", "sendrecv"):
        assert terms(Setting(name, 1, 1)).tolist() == [1, 0, 0, 0, 0]
        assert terms(Setting(name, 2, 2)).tolist() == [1, 1, 1, 1, 0]


def test_a_tree_of_an_odd_number_of_ranks_has_half_of_them_on_a_node_in_the_mean():
    assert terms(reduce(9, 2))[1] == pytest.approx(1 + 0.15 * math.log2(4.5))
    # Of all to all as many peers are on the other node.
    assert terms(Setting("alltoall", 9, 2))[2] == pytest.approx(4.5 + 0.15 * 3.5)
    assert terms(reduce(9, 2), 1.0)[3] == pytest.approx(1 / 4.5)
    assert terms(reduce(9, 2), 1.0, cards=4)[3] == pytest.approx(1 / 4)


def by_normal_equations(known, ranks, asked, share, places=(0, 1, 2, 3)):
    """Return the time that least squares of some terms give, none of which is below 0: (A'A + R^2) x = A'w."""
    counted = np.array([[PAID[one][place] for place in places] for one in ranks], dtype=float)
    wanted = np.array([PAID[asked][place] for place in places], dtype=float)
    weight = 1 / (1 + np.abs(np.log(np.array(ranks) / asked)))
    matrix = counted / known[:, None] * weight[:, None]
    norms = np.sqrt((matrix**2).sum(axis=0))
    scaled = matrix / norms
    ridge = 0.05 / np.array([1, 1, 1, share])[list(places)]
    cost = np.linalg.solve(scaled.T @ scaled + np.diag(ridge**2), scaled.T @ weight) / norms
    assert (cost >= 0).all()
    rest = np.interp(np.log(asked), np.log(ranks), np.log(known / (counted @ cost)))
    return wanted @ cost * np.exp(rest)


@pytest.mark.parametrize(
    ("ranks", "asked", "latencies", "size", "places"),
    [
        ((4, 16), 8, (2e-5, 3e-5), 2.0**10, ALL), ((4, 16), 8, (2e-5, 7e-5), 2.0**14, ALL),
        ((4, 16), 8, (2e-5, 1e-4), 2.0**20, ALL),
        ((4, 8), 16, (5e-5, 7e-5), 2.0**10, ALL), ((4, 8), 16, (8e-5, 5e-5), 2.0**20, ALL),
        # Of sixteen ranks it is too short for a ring, so that none is.
        ((4, 16), 8, (5e-6, 8e-6), 2.0**10, (0, 1, 3)),
        ((8, 16), 4, (2e-5, 3e-5), 2.0**10, ALL), ((8, 16), 4, (8e-5, 2e-4), 2.0**20, ALL),
    ],
)  # fmt: skip
def test_of_two_curves_the_nearer_one_counts_more(ranks, asked, latencies, size, places):
    shapes = [line(one, 1e-9 * PAID[n][3]) for one, n in zip(latencies, ranks, strict=True)]
    known = np.array([float(one.at([size])[0]) for one in shapes])
    # What a byte that leaves costs at the large size, in the mean of two; of all bytes the more, over the mean time.
    per_byte = np.mean([1e-9 + one / LARGE / PAID[n][3] for one, n in zip(latencies, ranks, strict=True)])
    share = min(per_byte * size * PAID[ranks[1]][3] / np.mean(known), 1)
    wanted = by_normal_equations(known, ranks, asked, share, places)
    settings = [reduce(one) for one in ranks]
    for order in (1, -1):
        found = over(settings[::order], shapes[::order], reduce(asked), np.array([size]))
        assert found == pytest.approx([wanted], rel=1e-6)


def test_what_takes_longer_than_more_does_takes_a_tenth_longer_at_most():
    for first, last, wanted in ((1.0, 0.5, 0.55), (1.05, 1.0, 1.05), (1.2, 1.0, 1.1), (0.5, 1.0, 0.5)):
        known, shapes = [reduce(8), reduce(16)], [line(first, 0.0), line(last, 0.0)]
        assert over(known, shapes, reduce(8)) == pytest.approx(np.full(4, wanted))
        assert over(known, shapes, reduce(16)) == pytest.approx(np.full(4, last))


def test_curves_of_as_many_ranks_count_by_the_mean_of_their_logarithms():
    # Eight ranks of unknown nodes are on a node each, as the others are.
    known = [reduce(8), reduce(4), reduce(8, 0)]
    found = over(known, [line(1.0, 0.0), line(0.1, 0.0), line(4.0, 0.0)], reduce(8))
    assert found == pytest.approx(np.full(4, 1.1**0.5))


def test_bytes_are_of_the_time_what_they_are_at_a_large_size_in_the_median():
    sizes = np.array([LARGE / 1024, LARGE / 2, LARGE])
    known = np.array([[1.0, 2.0, 4.0], [1.0, 4.0, 4.0], [9.0, 9.0, 9.0]])
    moved, large = np.array([1.0, 2.0, 0.0]), np.array([3.0, 4.0, 9.0])
    # 3 and 2 seconds for each of LARGE bytes that are moved, of which the most is two of each; medians of 1, 3 and 4 s.
    found = _share(moved, known, large, sizes)
    assert found == pytest.approx([2.5 * 2 / 1024, 2.5 * 2 / 2 / 3, 1])
    assert _share(np.zeros(3), known, large, sizes).tolist() == [1, 1, 1]


def test_all_reduces_of_nccl_go_along_double_trees_unless_rings_are_pinned():
    # Inside a node bytes are ten times as fast as between nodes, so that a tree sends half of what a ring does.
    shapes = [line(2e-5, 2 * (1 - 1 / ranks) / rate) for ranks, rate in ((4, 900e9), (32, 90e9), (128, 90e9))]
    for name, algorithm, other in (("all_reduce", "", True), ("all_reduce", "Ring", False), ("all_gather", "", False)):
        known = [Setting(name, 4 * nodes, nodes, algorithm) for nodes in (1, 8, 32)]
        asked, sizes = Setting(name, 8, 2, algorithm), np.array([LARGE])
        tree, ring = (over_ranks(known, shapes, asked, sizes, chunked=False, nccl=nccl) for nccl in (True, False))
        assert (tree < 0.8 * ring) == other
        assert other or tree == ring
        assert over(known, shapes, asked, sizes) == ring


def test_a_double_tree_sends_what_a_ring_between_nodes_has_of_46_hundredths_of_one_inside():
    def seconds(setting, bandwidth):
        return 2 * (setting.ranks - 1) / setting.ranks * LARGE / bandwidth

    def sent(*curves):
        settings = [reduce(*one) for *one, _ in curves]
        times = np.array([seconds(one, rate) for one, (*_, rate) in zip(settings, curves, strict=True)])
        return _sent_by_tree(settings, times)

    inside = (8, 1, 100e9)
    assert sent(inside, (32, 4, 92e9)) == pytest.approx(2)
    assert sent(inside, (24, 3, 69e9)) == pytest.approx(1.5)
    assert sent(inside, (32, 4, 23e9)) == 1
    assert sent((4, 1, 50e9), inside, (2, 1, 40e9), (32, 4, 69e9), (64, 8, 92e9), (128, 16, 80e9)) == pytest.approx(2)
    # Two nodes tell neither, and none that are not told.
    assert sent(inside, (16, 2, 92e9), (16, 0, 92e9)) == math.inf
    assert sent((16, 2, 100e9), (32, 4, 92e9)) == math.inf
    assert sent() == math.inf
