"""Cards of a node by hand: odd numbers of ranks, the fewest nodes, and what is said of two that are as likely."""

import numpy as np
import pytest
from validating.platforms import platform

from hand_made import reduce
from simnet.calibration import Curve, Setting, cards
from simnet.calibration.cards import OWN, Cards, likely, node_rate, said


def test_two_nodes_are_enough_and_their_ranks_count_in_the_mean():
    # Nine ranks send 2 * 8 / 9 of a vector each, over a card that four and a half of them share.
    curve = Curve(reduce(9, 2), np.array([1.0, 9.0]), np.array([4.0, 64.0]))
    assert node_rate([curve]) == pytest.approx((2 * 8 / 9 / 4, 4.5))
    assert node_rate([Curve(Setting("sendrecv", 2, 2), np.array([3.0]), np.array([4.0]))]) == (0.75, 1)


@pytest.mark.parametrize(("count", "number"), [(4, 4.0), (5, OWN)])
def test_fewer_cards_than_ranks_in_the_mean_are_shared(count, number):
    known = Curve(reduce(9, 2), np.array([1e9]), np.array([1.0]), count)
    elsewhere = [Curve(reduce(8, nodes), np.array([1e9]), np.array([1.0])) for nodes in (0, 2, 8)]
    assert likely([*elsewhere, known]) == (Cards(number, 1.0),)


def test_nodes_without_a_network_tell_nothing_of_cards(monkeypatch):
    closed, other = (platform("dgx-h100", **fields) for fields in ({"outer": None}, {}))
    curves = [Curve(reduce(32, 4), np.array([1e9]), np.array([0.01]))]
    found = []
    for known in ((closed, other), (other,)):
        monkeypatch.setattr(cards, "_platforms", lambda known=known: known)
        found.append(likely(curves))
    assert found[0] == found[1]
    assert {one.number for one in found[0]} == {1.0, OWN}


def test_of_two_numbers_both_are_said_in_whole_per_cent():
    two = [Cards(2.0, 0.67), Cards(1.0, 0.33)]
    told = "network cards of a node: 2 (67 %) or one (33 %), which these data do not tell; large messages of "
    for each, asked in ((2.0, "1 rank on each of several nodes"), (1.0, "all ranks of several nodes")):
        assert said(two, each) == f"{told}{asked} would"
    assert said(two[:1], 2.0) == said([], 2.0) == ""
