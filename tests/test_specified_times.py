"""Times of a specification by hand: base, steps and bytes of each algorithm, protocol, link and transport."""

import math

import pytest
from validating.platforms import HOST, platform

from simnet.cost_models.calibration import Setting
from simnet.cost_models.calibration.platform import GENERATIONS, load_platform
from simnet.cost_models.calibration.specification import specified_half_widths, specified_parameters, specified_times

US = 1e-6
# A node of a DGX H100 inside and out: 8 devices of 450 GB/s at 80 %, 8 cards of 50 GB/s at 90 %.
NODE = 360e9


SWITCHED = {"inner": {"switch_reduction": True}}


PCIE = {"inner": {"link": "pcie", "rate": "10 GB/s", "switch_reduction": False}}


TINY, LARGE = 1e-3, 2.0**40


def at(like, collective, ranks, nodes, algorithm="", protocol="", size=TINY, **fields):
    one = platform(like, **fields)
    return float(specified_times(one, Setting(collective, ranks, nodes, algorithm, protocol), [size])[0])


def slope(like, *asked, **fields):
    """Return seconds per byte of long messages."""
    twice, once = (at(like, *asked, size=size, **fields) for size in (2 * LARGE, LARGE))
    return (twice - once) / LARGE


def near(per_byte):
    # Without the absolute tolerance of pytest, 1e-12, which is as much as these are.
    return pytest.approx(per_byte, rel=1e-12, abs=0.0)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "nodes", "micros"),
    [
        # 14 steps inside a node of eight; of two and four nodes 30 and 62, of which 4 and 8 are between nodes.
        ("ring", "LL", 1, 6.7 + 14 * 0.6),
        ("ring", "LL128", 1, 14 + 14 * 1.9),
        ("ring", "Simple", 1, 8.4 + 14 * 3.4),
        ("ring", "LL", 2, 6.7 + 26 * 0.6 + 4 * 2.7),
        ("ring", "LL128", 2, 14 + 26 * 1.9 + 4 * 4.0),
        ("ring", "Simple", 4, 8.4 + 54 * 3.4 + 8 * 14),
        # Down and up a chain of eight, and a tree as deep as two and four nodes.
        ("tree", "LL", 1, 6.7 + 14 * 0.6),
        ("tree", "LL128", 1, 14 + 14 * 1.25),
        ("tree", "Simple", 1, 8.4 + 14 * 4.0),
        ("tree", "LL", 2, 6.7 + 14 * 0.6 + 2 * 5.0),
        ("tree", "LL128", 2, 14 + 14 * 1.25 + 2 * 8.5),
        ("tree", "Simple", 4, 8.4 + 14 * 4.0 + 4 * 14),
        ("nvls", "", 1, 25),
        ("nvlstree", "Simple", 2, 25 + 2 * 21),
        ("nvlstree", "", 4, 25 + 4 * 21),
    ],
)
def test_short_all_reduces_take_base_and_steps_and_a_fifth_more(algorithm, protocol, nodes, micros):
    asked = "all_reduce", 8 * nodes, nodes, algorithm, protocol
    assert at("dgx-h100", *asked) == pytest.approx(1.2 * micros * US)
    # A step between nodes goes one way over the transport, which is 15 us longer than InfiniBand.
    between = {"ring": min(2 * nodes, 16 * nodes - 2), "tree": 2 * math.ceil(math.log2(nodes))}.get(
        algorithm, 2 * math.ceil(math.log2(nodes))
    )
    if nodes > 1 and protocol != "LL128":
        far = at("dgx-h100", *asked, outer={"transport": "efa"})
        assert far == pytest.approx(1.2 * (micros + 15 * between) * US)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "micros"),
    [
        ("ring", "LL", 6.7 + 14 * 1.0), ("ring", "Simple", 8.4 + 14 * 5.7),
        ("tree", "LL", 6.7 + 14 * 1.0), ("tree", "Simple", 8.4 + 14 * 4.0),
    ],
)  # fmt: skip
def test_steps_over_pcie_are_longer(algorithm, protocol, micros):
    assert at("dgx-h100", "all_reduce", 8, 1, algorithm, protocol, **PCIE) == pytest.approx(1.2 * micros * US)


@pytest.mark.parametrize(
    ("collective", "factor", "steps"),
    [("all_gather", 2.0, 7), ("reduce_scatter", 2.0, 7), ("broadcast", 2.0, 7), ("reduce", 2.0, 7)],
)
def test_other_short_collectives_take_twice_what_the_model_of_all_reduces_has(collective, factor, steps):
    assert at("dgx-h100", collective, 8, 1, "", "LL") == pytest.approx(factor * (6.7 + steps * 0.6) * US)
    assert at("dgx-h100", collective, 16, 2, "", "LL") == pytest.approx(factor * (6.7 + 14 * 0.6 + 2.7) * US)


@pytest.mark.parametrize(
    ("collective", "algorithm", "protocol", "nodes", "per_byte"),
    [
        ("all_reduce", "ring", "Simple", 1, 2 * 7 / 8 / NODE),
        ("all_reduce", "ring", "LL128", 1, 2 * 7 / 8 / (0.92 * NODE)),
        ("all_reduce", "ring", "LL", 1, 2 * 7 / 8 / 141e9),
        ("all_reduce", "ring", "LL", 2, 2 * 15 / 16 / 39e9),
        ("all_reduce", "ring", "LL", 4, 2 * 31 / 32 / 20.4e9),
        ("all_reduce", "tree", "Simple", 1, 2 / NODE / 0.92),
        ("all_reduce", "tree", "LL128", 4, 2 / NODE / 0.92 / 0.92),
        ("all_reduce", "tree", "LL", 1, 2 / 141e9),
        ("all_reduce", "tree", "LL", 2, 2 / 39e9),
        ("all_reduce", "nvls", "", 1, 9 / 8 / (0.85 * NODE)),
        ("all_reduce", "nvlstree", "", 2, 1 / (0.85 * NODE)),
        ("all_reduce", "nvlstree", "", 4, 2 / NODE),
        ("all_gather", "", "Simple", 2, 15 / 16 / NODE),
        ("reduce_scatter", "", "Simple", 2, 15 / 16 / NODE),
        ("broadcast", "", "Simple", 2, 1 / NODE),
        ("reduce", "", "Simple", 2, 1 / NODE),
        ("sendrecv", "", "", 1, 1 / NODE),
        ("sendrecv", "", "", 2, 1 / (0.7 * NODE / 8)),
        ("alltoall", "", "", 1, 7 / 8 / NODE),
        ("alltoall", "", "", 2, 4 / NODE),
        ("alltoall", "", "", 4, 6 / NODE),
    ],
)
def test_long_collectives_take_their_bytes_over_what_is_left_of_links(collective, algorithm, protocol, nodes, per_byte):
    assert slope("dgx-h100", collective, 8 * nodes, nodes, algorithm, protocol) == near(per_byte)


def test_a_tree_sends_once_between_two_nodes_and_an_inner_node_of_more_twice():
    # One device a node: what leaves it is all that counts.
    alone = {"devices_per_node": 1, "outer": {"nics": 1}, "inner": {"rate": "10 GB/s"}}
    for nodes, sent in ((2, 1), (4, 2)):
        assert slope("dgx-h100", "all_reduce", nodes, nodes, "tree", "Simple", **alone) == near(sent / 45e9 / 0.92)


def test_a_tree_is_a_chain_in_each_node_and_as_deep_as_nodes_double():
    # Three nodes need two levels; nine ranks on two nodes are chains of four and a half in the mean.
    assert at("dgx-h100", "all_reduce", 24, 3, "tree", "LL") == pytest.approx(1.2 * (6.7 + 14 * 0.6 + 4 * 5) * US)
    assert at("dgx-h100", "all_reduce", 9, 2, "tree", "LL") == pytest.approx(1.2 * (6.7 + 7 * 0.6 + 2 * 5) * US)
    slow = {"inner": {"rate": "10 GB/s"}}
    for algorithm, share in (("tree", 0.92), ("collnet", 0.9)):
        fields = slow | {"outer": {"switch_reduction": True}}
        assert slope("dgx-a100", "all_reduce", 4, 2, algorithm, "Simple", **fields) == near(2 / 8e9 / share)


def test_a_network_that_reduces_takes_one_step_and_each_byte_once():
    on = {"outer": {"switch_reduction": True}, "inner": {"switch_reduction": False}}
    assert at("dgx-a100", "all_reduce", 64, 8, "collnet", **on) == pytest.approx(1.2 * 35 * US)
    assert slope("dgx-a100", "all_reduce", 64, 8, "collnet", **on) == near(2 / 240e9 / 0.9)
    alone = {"devices_per_node": 1, "outer": {"switch_reduction": True, "nics": 1}, "inner": {"rate": "10 GB/s"}}
    assert slope("dgx-a100", "all_reduce", 8, 8, "collnet", **alone) == near(1 / 22.5e9 / 0.9)
    # A name that a platform does not have leaves the choice to the library, and other protocols have none of it.
    whole, without = (at("dgx-a100", "all_reduce", 8, 1, name, size=LARGE, **on) for name in ("", "collnet"))
    assert whole == without
    ll, ring = (at("dgx-a100", "all_reduce", 64, 8, name, "LL", size=LARGE, **on) for name in ("", "ring"))
    assert ll <= ring


@pytest.mark.parametrize(("generation", "efficiency"), [("hopper", 0.85), ("blackwell", 0.74)])
def test_switches_inside_nodes_reduce_where_the_generation_has_them(generation, efficiency):
    found = slope("dgx-h100", "all_reduce", 8, 1, "nvls", generation=generation, **SWITCHED)
    assert found == near(9 / 8 / (efficiency * NODE))
    factor = specified_parameters(platform("dgx-h100", generation=generation))["switch_byte_factor"]
    assert factor == pytest.approx((1 / efficiency, 0.1))
    # A device alone on its node has no other for the switch to reduce with.
    alone = {"devices_per_node": 1, "outer": {"nics": 1}, "generation": generation, **SWITCHED}
    named, free = (at("dgx-h100", "all_reduce", 4, 4, name, **alone) for name in ("nvlstree", ""))
    assert named == free
    older = slope("dgx-h100", "all_reduce", 8, 1, "nvls", generation="ampere", **SWITCHED)
    assert older > found * 1.1
    # Two are enough.
    two = slope("dgx-h100", "all_reduce", 2, 1, "nvls", generation=generation, **SWITCHED)
    assert two == near(3 / 2 / (efficiency * NODE))


@pytest.mark.parametrize(
    ("generation", "most"),
    [("older", 39), ("volta", 39), ("ampere", 87.7), ("hopper", 141), ("blackwell", 282), ("cdna", 87.7), ("cpu", 39)],
)
def test_ll_on_one_node_has_at_most_what_the_generation_gives(generation, most):
    fast = {"inner": {"rate": "4000 GB/s", "switch_reduction": False}}
    assert slope("dgx-h100", "all_gather", 8, 1, "", "LL", generation=generation, **fast) == near(7 / 8 / (most * 1e9))


def test_part_of_the_bandwidth_is_reached_between_4_kib_and_256_mib():
    one, slow = load_platform("dgx-h100"), platform("dgx-h100", inner={"rate": "1 MB/s", "switch_reduction": False})
    reached = {10: 1, 12: 1, 13: 0.875, 16: 0.5, 17: 0.425, 18: 0.35, 20: 0.42, 22: 0.585, 24: 0.75, 27: 0.9375, 28: 1}
    for power, share in reached.items():
        size = 2.0**power
        found = specified_times(one, Setting("all_gather", 8, 1, "", "Simple"), [size])[0]
        assert found == pytest.approx(2 * (8.4 + 7 * 3.4) * US + size / share * 7 / 8 / NODE)
        found = specified_times(slow, Setting("all_gather", 8, 1, "", "Simple"), [size])[0]
        assert found == pytest.approx(2 * (8.4 + 7 * 3.4) * US + size / share * 7 / 8 / 0.8e6)


@pytest.mark.parametrize(
    ("name", "ranks", "later"), [("dgx-h100", 4, 0.5), ("gb200-nvl72", 8, 2), ("gb200-nvl72", 72, 18)]
)
def test_switches_that_reduce_are_filled_by_what_a_device_reduces(name, ranks, later):
    one, latency = load_platform(name), 1.2 * 25 * US
    each = (1 + 1 / ranks) / (one.inner_rate() * GENERATIONS[one.generation].switch)
    for power, share in ((24, 0.65), (25, 0.725), (26, 0.8), (28, 0.92), (30, 1), (33, 1)):
        found = specified_times(one, Setting("all_reduce", ranks, 1, "nvls"), [later * 2.0**power])[0]
        assert found == pytest.approx(latency + later * 2.0**power * each / share)


@pytest.mark.parametrize(
    ("transport", "efficiency", "micros"),
    [("infiniband", 0.9, 0), ("roce", 0.85, 1), ("slingshot", 0.8, 5), ("efa", 0.85, 15), ("tcpx", 0.85, 25),
     ("sockets", 0.6, 25)],
)  # fmt: skip
def test_transports_leave_their_share_and_take_longer_one_way(transport, efficiency, micros):
    # Cards of 4 GB/s, of which sockets, too, may have all that is left.
    outer = {"outer": {"transport": transport, "rate": "4 GB/s"}}
    found = slope("dgx-h100", "all_gather", 16, 2, "", "Simple", **outer)
    assert found == near(15 / 16 / (8 * 4e9 * efficiency))
    assert at("dgx-h100", "sendrecv", 16, 2, **outer) == pytest.approx((8.4 + 14 + micros) * US)
    staged = {"outer": outer["outer"] | {"device_direct": False}}
    assert slope("dgx-h100", "all_gather", 16, 2, "", "Simple", **staged) == near(found / 0.47)


def test_devices_share_cards_and_a_lone_one_has_a_whole_card():
    two = platform("dgx-h100", outer={"nics": 2})
    assert [two.outer_rate(each) / 45e9 for each in (1, 4, 6, 8)] == pytest.approx([1, 1, 1.5, 2])
    many = platform("dgx-h100", devices_per_node=4, outer={"nics": 8})
    assert [many.outer_rate(each) / 45e9 for each in (1, 2, 4)] == pytest.approx([2, 4, 8])
    # A rank of a host drives one card.
    host = platform("leonardo-booster", **HOST)
    assert [host.outer_rate(each) / 11.25e9 for each in (1, 3, 4, 16)] == pytest.approx([1, 3, 4, 4])
    assert platform("dgx-h100", outer=None).outer_rate(8) == math.inf


class TestHosts:
    """MPI between hosts with one card of 11.25 GB/s for each rank, and memory that is copied at 6 GB/s."""

    @staticmethod
    def at(*asked, size, **fields):
        return at("leonardo-booster", *asked, size=size, **HOST | fields)

    def test_short_messages_go_eagerly(self):
        for transport, one_way in (("infiniband", 1), ("slingshot", 6), ("sockets", 26)):
            found = self.at("all_gather", 8, 8, "ring", size=TINY, outer={"transport": transport})
            assert found == pytest.approx((1 + 7 * one_way) * US)
        # Of four ranks a node, each round of a ring has a message between nodes; on one node none.
        assert self.at("all_gather", 8, 2, "ring", size=TINY) == pytest.approx((1 + 7) * US)
        assert self.at("all_gather", 4, 1, "ring", size=TINY) == pytest.approx((1 + 3 * 0.5) * US)

    def test_long_ones_by_rendezvous(self):
        # A core adds at 3.5 GB/s.
        for collective, work in (("all_gather", 0.0), ("reduce_scatter", 1 / 3.5e9)):
            found = self.at(collective, 8, 8, "ring", size=1e8)
            assert found == pytest.approx((1 + 2 * 7) * US + 7 / 8 * 1e8 * (1 / 11.25e9 + work))
            per_byte = slope("leonardo-booster", collective, 8, 8, "ring", **HOST)
            assert per_byte == near(7 / 8 * (1 / 11.25e9 + work))

    def test_ranks_of_a_node_drive_a_card_each_in_the_mean(self):
        # Six ranks on four nodes, of which each sends five sixths over one and a half cards, and memory takes no time.
        found = self.at("all_gather", 6, 4, "ring", size=1e9, inner={"rate": "100000 GB/s"})
        assert found == pytest.approx((1 + 2 * 5) * US + 5 / 6 * 1e9 / (1.5 * 11.25e9))

    @pytest.mark.parametrize(
        ("collective", "received"),
        [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1), ("broadcast", 1), ("alltoall", 0)],
    )
    def test_ranks_of_a_node_receive_through_its_memory(self, collective, received):
        # Six ranks on four nodes have a message between nodes in each round, and cards take no time.
        size, fast = 1e12, {"outer": {"rate": "100000 GB/s"}}
        algorithm = {"broadcast": "binomial", "alltoall": "pairwise"}.get(collective, "ring")
        work = {"all_reduce": 5 / 6, "reduce_scatter": 5 / 6}.get(collective, 0.0) * size / 3.5e9
        alone, shared = (self.at(collective, 6, nodes, algorithm, size=size, **fast) - work for nodes in (6, 4))
        assert alone < 0.01 * size / 6e9
        assert shared == pytest.approx(received * size / 6e9, rel=1e-3, abs=0.01 * size / 6e9)


@pytest.mark.parametrize(
    ("fields", "low", "high"),
    [
        # What the page says: large messages within 0.7 to 1.4 times over links that are known, 0.6 to 2.2 over others.
        ({}, 0.74, 1.42),
        ({"outer": None}, 0.74, 1.42),
        ({"outer": {"transport": "efa"}}, 0.61, 2.23),
        (HOST, 0.70, 3.16),
    ],
)
def test_nine_in_ten_large_messages_are_within_what_the_page_says(fields, low, high):
    below, above = specified_half_widths(platform("dgx-a100", **fields), 0.9)[-1]
    assert (math.exp(-below), math.exp(above)) == pytest.approx((low, high), abs=0.01)
