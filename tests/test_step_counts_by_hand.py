"""Steps and bytes of rounds whose messages are written down, and of schedules whose rounds are counted by hand."""

import math

import numpy as np
import pytest

from simnet.calibration import Setting
from simnet.calibration.step_counts import MAX_RANKS, Cost, _neighbours, _round, costs, like_nccl, through_schedule
from simnet.schedule import Round

APART, TOGETHER, PAIRS = np.arange(4), np.zeros(4, dtype=int), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("src", "dst", "nbytes", "node", "counted"),
    [
        # What comes to one rank, or leaves it, is one after the other.
        ([0, 1, 2], [3, 3, 3], [1.0, 2.0, 4.0], APART, (0, 1, 0, 7)),
        ([3, 3, 3], [0, 1, 2], [1.0, 2.0, 4.0], APART, (0, 1, 0, 7)),
        ([0, 1, 2], [3, 3, 3], [1.0, 2.0, 4.0], TOGETHER, (1, 0, 7, 0)),
        ([3, 3, 3], [0, 1, 2], [1.0, 2.0, 4.0], TOGETHER, (1, 0, 7, 0)),
        ([0, 1], [1, 2], [1.0, 2.0], TOGETHER, (1, 0, 2, 0)),
        # Of a round with a message between nodes, those inside nodes do not count.
        ([0, 1, 2], [1, 2, 3], [9.0, 2.0, 9.0], PAIRS, (0, 1, 0, 2)),
        # Both ranks of a node send through its links, and both receive.
        ([0, 1], [2, 3], [1.0, 2.0], PAIRS, (0, 1, 0, 3)),
        ([0, 2], [1, 3], [1.0, 2.0], PAIRS, (1, 0, 2, 0)),
        ([0, 1, 2], [2, 3, 0], [1.0, 2.0, 5.0], PAIRS, (0, 1, 0, 5)),
    ],
)
def test_the_busiest_rank_or_node_decides_what_a_round_takes(src, dst, nbytes, node, counted):
    assert _round(Round(src, dst, nbytes), node) == (*counted, 0)
    assert _round(Round(src, dst, nbytes, [0.0, 3.0, 1.0, 2.0]), node) == (*counted, 3)


def test_a_round_without_messages_reduces_alone():
    assert _round(Round([], [], []), APART) == (0, 0, 0, 0, 0)
    assert _round(Round([], [], [], [1.0, 0.0, 2.0, 0.0]), APART) == (0, 0, 0, 0, 2)


def test_ranks_are_on_nodes_in_blocks_that_differ_by_one():
    # Six on four: 0 and 1, 2, 3 and 4, 5. Of a ring's messages one leaves each node in each round.
    assert through_schedule("all_gather", "ring", 6, 4)[:4] == (0, 5, 0, pytest.approx(5 / 6))
    # To the next rank and to the one before one message leaves a node of two, to all others both do.
    assert through_schedule("alltoall", "pairwise", 6, 4)[:4] == (0, 5, 0, pytest.approx((1 + 2 + 2 + 2 + 1) / 6))
    # Where nodes are not known each rank has its own.
    assert through_schedule("alltoall", "pairwise", 6, 0)[:4] == (0, 5, 0, pytest.approx(5 / 6))
    assert through_schedule("alltoall", "pairwise", 6, 1)[:4] == (5, 0, pytest.approx(5 / 6), 0)


def test_what_a_schedule_reduces_is_counted_as_bytes():
    # A vector of which each rank reduces all but its own share, in a ring of four; the whole of it each time, by
    # recursive doubling; and half and a quarter of it, by recursive halving.
    for collective, name, reduced in (
        ("all_reduce", "ring", 3 / 4), ("all_reduce", "recursive_doubling", 2), ("all_reduce", "rabenseifner", 3 / 4),
        ("reduce_scatter", "ring", 3 / 4), ("all_gather", "ring", 0), ("broadcast", "binomial", 0),
        ("reduce", "binomial", 2),
    ):  # fmt: skip
        found = through_schedule(collective, name, 4, 4)
        assert (found.reduced, found.peers, found.kind) == (pytest.approx(reduced), 0, "ring")


def test_neighbours_exchange_one_share_and_then_two_by_turns():
    first, *others = _neighbours(6)
    left, right = [1, 0, 3, 2, 5, 4], [5, 2, 1, 4, 3, 0]
    assert (first.dst.tolist(), first.nbytes.tolist()) == (left, [1 / 6] * 6)
    assert [one.dst.tolist() for one in others] == [right, left]
    assert all(one.nbytes.tolist() == [1 / 3] * 6 and one.src.tolist() == list(range(6)) for one in others)
    assert [len(list(_neighbours(ranks))) for ranks in (2, 4, 5, 8)] == [1, 2, 4, 4]


def test_switches_and_cards_count_where_they_are_named():
    setting = Setting("all_reduce", 8, 1)
    assert [one.kind for one in costs(setting, nccl=True)] == ["ring", "tree"]
    assert [one.kind for one in like_nccl("all_reduce", "", 8, 1)] == ["ring", "tree"]
    assert [one.kind for one in costs(setting, nccl=True, switch=True)] == ["ring", "tree", "switch"]
    between = Setting("all_gather", 16, 2)
    # Of eight ranks on a node each has a card of its own, unless fewer are named.
    assert costs(between, nccl=True)[0].outer_bytes == pytest.approx(15 / 16 / 8)
    assert costs(between, nccl=True, cards=2)[0].outer_bytes == pytest.approx(15 / 16 / 2)
    assert costs(between, nccl=True, cards=math.inf) == costs(between, nccl=True, cards=8)


def test_nodes_that_are_not_known_or_more_than_ranks_are_one_for_each():
    for collective in ("all_reduce", "sendrecv"):
        for nccl in (False, True):
            each = costs(Setting(collective, 4, 4), nccl)
            assert costs(Setting(collective, 4, 0), nccl) == costs(Setting(collective, 4, 5), nccl) == each
            assert costs(Setting(collective, 4, 1), nccl) != each


def test_the_most_ranks_of_a_schedule_are_4096():
    assert MAX_RANKS == 4096
    assert costs(Setting("broadcast", 4096, 1), nccl=False) == (Cost(12, 0, 12, 0),)
    assert costs(Setting("broadcast", 4097, 1), nccl=False) == ()
    assert costs(Setting("broadcast", 2, 1), nccl=False) == (Cost(1, 0, 1, 0),)
    assert costs(Setting("broadcast", 1, 1), nccl=False) == costs(Setting("gather", 4, 1), nccl=True) == ()


def test_nodes_of_nccl_that_hold_unlike_many_ranks_count_by_their_mean():
    # One and a half on each: half a step up a chain and half a step down, and 4.5 of six ranks on other nodes.
    _, tree = like_nccl("all_reduce", "", 6, 4)
    assert (tree.inner, tree.outer_bytes) == (1, pytest.approx(2 / 1.5))
    (peers,) = like_nccl("alltoall", "", 6, 4)
    assert (peers.peers, peers.inner_bytes) == (4.5, pytest.approx(0.5 / 6))
