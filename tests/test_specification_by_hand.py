"""What a specification says, by hand: latencies, bytes and shares of each way that a collective may go."""

import math

import numpy as np
import pytest

from hand_made import reduce
from simnet.calibration import Setting
from simnet.calibration.own_choice import OPEN_MPI, own_choice
from simnet.calibration.platform import GENERATIONS, LINKS, TRANSPORTS, Platform
from simnet.calibration.specification import half_widths, parameters, sentences, specified, times
from simnet.calibration.step_model import PARAMETERS

TINY, HUGE = 1e-6, 2.0**60
"""Sizes [byte] at which latencies alone count, and bytes alone; of both the whole bandwidth is reached."""


def platform(link="nvlink", rate=100, transport="infiniband", nic=10, nics=4, **fields):
    """Return nodes of eight devices of 100 GB/s that have four cards of 10 GB/s."""
    outer = {"transport": transport, "nics": nics, "rate": f"{nic} GB/s", "device_direct": fields.pop("direct", True)}
    inner = {"link": link, "rate": f"{rate} GB/s", "switch_reduction": fields.pop("switch", False)}
    outer["switch_reduction"] = fields.pop("reducing", False)
    given = {"name": "mine", "devices_per_node": 8, "generation": "hopper", "inner": inner, "outer": outer} | fields
    return Platform.model_validate(given)


def micros(one, setting):
    return 1e6 * float(times(one, setting, [TINY])[0])


def per_byte(one, setting):
    return float(times(one, setting, [HUGE])[0]) / HUGE


class TestLatencies:
    @pytest.mark.parametrize(
        ("setting", "protocol", "wanted"),
        [
            # A launch, and steps inside nodes and between; twice of a gather, 1.2 times of an all-reduce.
            (("all_gather", 8, 1, "ring"), "ll", 2 * (6.7 + 7 * 0.6)),
            (("all_gather", 8, 1, "ring"), "ll128", 2 * (14 + 7 * 1.9)),
            (("all_gather", 8, 1, "ring"), "simple", 2 * (8.4 + 7 * 3.4)),
            (("reduce_scatter", 16, 2, "ring"), "ll", 2 * (6.7 + 14 * 0.6 + 2.7)),
            (("reduce_scatter", 16, 2, "ring"), "ll128", 2 * (14 + 14 * 1.9 + 4)),
            (("broadcast", 24, 3, "ring"), "simple", 2 * (8.4 + 21 * 3.4 + 2 * 14)),
            (("reduce", 24, 3, "ring"), "simple", 2 * (8.4 + 21 * 3.4 + 2 * 14)),
            (("all_reduce", 32, 4, "ring"), "ll", 1.2 * (6.7 + 54 * 0.6 + 8 * 2.7)),
            (("all_reduce", 2, 2, "ring"), "ll", 1.2 * (6.7 + 2 * 2.7)),
            (("all_reduce", 8, 1, "ring"), "ll", 1.2 * (6.7 + 14 * 0.6)),
            (("all_reduce", 32, 4, "tree"), "ll", 1.2 * (6.7 + 2 * (7 * 0.6 + 2 * 5))),
            (("all_reduce", 32, 4, "tree"), "ll128", 1.2 * (14 + 2 * (7 * 1.25 + 2 * 8.5))),
            (("all_reduce", 40, 5, "tree"), "simple", 1.2 * (8.4 + 2 * (7 * 4 + 3 * 14))),
            (("all_reduce", 8, 1, "tree"), "simple", 1.2 * (8.4 + 2 * 7 * 4)),
            # Messages to each other rank, of which those to other nodes take half a step; one to the next rank.
            (("alltoall", 8, 1, ""), "", 1.3 * (8.4 + 7 * 3.4)),
            (("alltoall", 16, 2, ""), "", 1.3 * (8.4 + 15 * 7)),
            (("sendrecv", 8, 1, ""), "", 8.4 + 3.4),
            (("sendrecv", 16, 2, ""), "", 8.4 + 14),
        ],
    )
    def test_of_nvlinks_and_infiniband(self, setting, protocol, wanted):
        assert micros(platform(), Setting(*setting, protocol)) == pytest.approx(wanted)

    def test_of_pcie_and_memory_have_no_ll128(self):
        for link in ("pcie", "memory"):
            one = platform(link=link)
            for protocol, ring, tree in (("ll", 6.7 + 14, 6.7 + 2 * 7), ("simple", 8.4 + 14 * 5.7, 8.4 + 14 * 4.0)):
                for name, wanted in (("ring", ring), ("tree", tree)):
                    asked = Setting("all_reduce", 8, 1, name, protocol)
                    assert micros(one, asked) == pytest.approx(1.2 * wanted)
            # What is pinned and does not go: the fastest of the others.
            assert micros(one, Setting("all_gather", 8, 1, "", "ll128")) == pytest.approx(2 * (6.7 + 7))

    @pytest.mark.parametrize(
        ("transport", "later"),
        [("infiniband", 0), ("roce", 1), ("slingshot", 5), ("efa", 15), ("tcpx", 25), ("sockets", 25)],
    )
    def test_each_step_between_nodes_takes_longer_over_other_transports(self, transport, later):
        one = platform(transport=transport)
        assert micros(one, Setting("all_gather", 24, 3, "", "ll")) == pytest.approx(
            2 * (6.7 + 21 * 0.6 + 2 * (2.7 + later))
        )
        assert micros(one, Setting("all_reduce", 32, 4, "tree", "simple")) == pytest.approx(
            1.2 * (8.4 + 2 * (28 + 2 * (14 + later)))
        )
        assert micros(one, Setting("sendrecv", 16, 2)) == pytest.approx(8.4 + 14 + later)
        # LL128 goes where 128 bytes arrive as one.
        steps = 2 * (14 + 21 * 1.9 + 2 * (4 + later))
        ordered = transport in ("infiniband", "roce")
        found = micros(one, Setting("all_gather", 24, 3, "", "ll128"))
        assert (found == pytest.approx(steps)) == ordered
        indirect = platform(transport=transport, direct=False)
        assert micros(indirect, Setting("all_gather", 24, 3, "", "ll128")) < steps

    def test_of_switches_that_reduce(self):
        inside, outside = platform(switch=True), platform(reducing=True, transport="roce")
        assert micros(inside, Setting("all_reduce", 8, 1, "nvls")) == pytest.approx(1.2 * 25)
        assert micros(inside, Setting("all_reduce", 40, 5, "nvlstree")) == pytest.approx(1.2 * (25 + 6 * 21))
        assert micros(outside, Setting("all_reduce", 40, 5, "collnet")) == pytest.approx(1.2 * 35)
        for one, ranks, nodes, protocol in ((inside, 2, 2, ""), (inside, 8, 1, "ll"), (outside, 8, 1, "")):
            # Where nothing reduces: the fastest of ring and tree.
            plain = times(platform(), Setting("all_reduce", ranks, nodes, "", protocol), [TINY, HUGE])
            assert times(one, Setting("all_reduce", ranks, nodes, "", protocol), [TINY, HUGE]) == pytest.approx(plain)

    def test_of_one_rank_are_those_of_a_launch(self):
        assert micros(platform(), reduce(1, 1)) == pytest.approx(6.7)
        assert micros(platform(library="mpi"), reduce(1, 1)) == pytest.approx(1)
        assert times(platform(), reduce(1, 1), [1.0, 2.0, 4.0]).shape == (3,)


class TestBytes:
    @pytest.mark.parametrize(
        ("setting", "protocol", "moved", "rate"),
        [
            # 80 GB/s are left of a link, 9 of a card, and of both what a protocol leaves.
            (("all_gather", 8, 1, "ring"), "ll", 7 / 8, 0.5 * 80),
            (("all_gather", 8, 1, "ring"), "ll128", 7 / 8, 0.92 * 80),
            (("all_gather", 8, 1, "ring"), "simple", 7 / 8, 80),
            (("reduce_scatter", 24, 3, "ring"), "ll128", 23 / 24, 0.92 * 36),
            (("broadcast", 24, 3, "ring"), "simple", 1, 36),
            (("reduce", 12, 3, "ring"), "simple", 1, 18),
            (("reduce", 3, 3, "ring"), "simple", 1, 9),
            (("all_reduce", 8, 1, "ring"), "simple", 2 * 7 / 8, 80),
            (("all_reduce", 8, 1, "tree"), "simple", 2, 0.92 * 80),
            (("all_reduce", 16, 2, "tree"), "simple", 1, 0.92 * 36),
            (("all_reduce", 24, 3, "tree"), "simple", 2, 0.92 * 36),
            (("all_reduce", 24, 3, "tree"), "ll", 2, 0.92 * 0.5 * 36),
            (("all_reduce", 3, 3, "tree"), "simple", 2, 0.92 * 9),
            (("alltoall", 8, 1, ""), "", 7 / 8, 80),
            (("alltoall", 24, 3, ""), "", 8 * 2 / 3, 36),
            (("sendrecv", 8, 1, ""), "", 1, 80),
            (("sendrecv", 16, 2, ""), "", 1, 0.7 * 9),
        ],
    )
    def test_over_links_and_cards(self, setting, protocol, moved, rate):
        found = per_byte(platform(), Setting(*setting, protocol))
        assert found == pytest.approx(moved / (rate * 1e9))

    def test_of_two_nodes_whose_links_are_slower_than_cards(self):
        one = platform(rate=5)
        assert per_byte(one, Setting("all_reduce", 16, 2, "tree", "simple")) == pytest.approx(2 / (0.92 * 4e9))
        assert per_byte(one, Setting("all_reduce", 2, 2, "tree", "simple")) == pytest.approx(1 / (0.92 * 9e9))
        assert per_byte(one, Setting("alltoall", 16, 2)) == pytest.approx(4 / 36e9)
        assert per_byte(platform(rate=2), Setting("alltoall", 16, 2)) == pytest.approx(7 / 16 / 1.6e9)
        assert per_byte(one, Setting("sendrecv", 16, 2)) == pytest.approx(1 / (0.7 * 4e9))

    @pytest.mark.parametrize(
        ("generation", "most"),
        [
            ("older", 39), ("volta", 39), ("ampere", 87.7), ("hopper", 141), ("blackwell", 282), ("cdna", 87.7),
            ("cpu", 39),
        ],
    )  # fmt: skip
    def test_by_ll_of_each_generation_are_limited_on_one_node(self, generation, most):
        one = platform(rate=10_000, generation=generation)
        assert per_byte(one, Setting("all_gather", 8, 1, "", "ll")) == pytest.approx(7 / 8 / (most * 1e9))
        assert per_byte(one, Setting("all_reduce", 8, 1, "tree", "ll")) == pytest.approx(2 / (most * 1e9))

    def test_by_ll_between_nodes_are_limited_by_their_number(self):
        one = platform(rate=10_000, nic=1000)
        for nodes, most in ((2, 39e9), (3, 20.4e9), (8, 20.4e9)):
            asked = Setting("all_gather", 8 * nodes, nodes, "", "ll")
            assert per_byte(one, asked) == pytest.approx((1 - 1 / asked.ranks) / most)

    def test_that_switches_reduce(self):
        for generation, share in (("hopper", 0.85), ("blackwell", 0.74)):
            one = platform(switch=True, generation=generation)
            assert per_byte(one, Setting("all_reduce", 8, 1, "nvls")) == pytest.approx(1 / (share * 80e9))
            assert per_byte(one, Setting("all_reduce", 16, 2, "nvlstree")) == pytest.approx(1 / 36e9)
            assert per_byte(one, Setting("all_reduce", 24, 3, "nvlstree")) == pytest.approx(2 / 36e9)
        one = platform(reducing=True)
        assert per_byte(one, Setting("all_reduce", 24, 3, "collnet")) == pytest.approx(1 / (0.9 * 36e9))
        assert per_byte(one, Setting("all_reduce", 3, 3, "collnet")) == pytest.approx(1 / (0.9 * 9e9))
        slow = platform(reducing=True, rate=10)
        assert per_byte(slow, Setting("all_reduce", 24, 3, "collnet")) == pytest.approx(2 / (0.9 * 8e9))
        # One device of a node has nothing to send inside.
        assert per_byte(slow, Setting("all_reduce", 3, 3, "collnet")) == pytest.approx(1 / (0.9 * 9e9))

    @pytest.mark.parametrize(
        ("log2", "share"), [(12, 1), (16, 0.5), (17, 0.425), (18, 0.35), (20, 0.42), (24, 0.75), (28, 1)]
    )
    def test_reach_a_share_of_the_bandwidth(self, log2, share):
        one, asked, size = platform(), Setting("all_gather", 8, 1, "", "simple"), 2.0**log2
        latency = 2e-6 * (8.4 + 7 * 3.4)
        assert times(one, asked, [size])[0] - latency == pytest.approx(7 / 8 * size / 80e9 / share)

    @pytest.mark.parametrize(
        ("transport", "share"),
        [("infiniband", 0.9), ("roce", 0.85), ("slingshot", 0.8), ("efa", 0.85), ("tcpx", 0.85), ("sockets", 0.6)],
    )
    def test_over_each_transport(self, transport, share):
        one = platform(transport=transport, nic=4)
        assert one.outer_rate(8) == pytest.approx(4 * share * 4e9)
        assert platform(transport=transport, nic=4, direct=False).outer_rate(8) == pytest.approx(4 * 0.47 * share * 4e9)
        assert [one.outer_rate(each) for each in (1, 2, 3, 6)] == pytest.approx(
            [4e9 * share * n for n in (1, 1, 1.5, 3)]
        )
        mpi = platform(transport=transport, nic=4, library="mpi")
        assert [mpi.outer_rate(each) for each in (1, 2, 8)] == pytest.approx([4e9 * share * n for n in (1, 2, 4)])
        assert platform(transport=transport, nic=100).outer_rate(2) == pytest.approx(
            2.5e9 if transport == "sockets" else share * 100e9
        )

    def test_over_each_link(self):
        assert dict(LINKS) == {"nvlink": 0.8, "xgmi": 0.75, "pcie": 0.53, "memory": 0.5}
        for link, share in LINKS.items():
            assert per_byte(platform(link=link), Setting("sendrecv", 8, 1)) == pytest.approx(1 / (share * 100e9))
        assert (len(GENERATIONS), len(TRANSPORTS)) == (7, 6)


class TestSettings:
    def test_without_nodes_ranks_fill_as_few_as_hold_them(self):
        one = platform()
        for ranks, nodes in ((8, 1), (9, 2), (20, 3)):
            asked, told = (times(one, Setting("all_reduce", ranks, n), [TINY, 1e6, HUGE]) for n in (0, nodes))
            assert asked.tolist() == told.tolist()
        assert times(one, reduce(4, 9), [1e6]).tolist() == times(one, reduce(4, 4), [1e6]).tolist()
        alone = platform(outer=None)
        assert times(alone, reduce(16, 2), [1e6]).tolist() == times(alone, reduce(16, 1), [1e6]).tolist()
        assert (alone.nodes(20), alone.outer_rate(3)) == (1, math.inf)

    def test_the_fastest_way_counts_and_on_two_nodes_the_middle_with_the_ring(self):
        one = platform()
        for nodes in (1, 2, 3):
            for size in (TINY, 1e7, HUGE):
                ring, tree, both = (
                    times(one, Setting("all_reduce", 8 * nodes, nodes, name), [size])[0]
                    for name in ("ring", "Some_Tree", "other")
                )
                wanted = math.sqrt(ring * min(ring, tree)) if nodes == 2 else min(ring, tree)
                assert both == pytest.approx(wanted)
        assert times(one, Setting("gather", 8, 1), [1e6]) is None
        assert times(platform(library="mpi"), Setting("gather", 8, 1), [1e6]) is None

    def test_the_fastest_protocol_counts(self):
        for size in (TINY, 1e5, 1e6, 1e7, HUGE):
            each = [
                times(platform(), Setting("all_gather", 8, 1, "", name), [size])[0]
                for name in ("ll", "LL128", "simple")
            ]
            assert times(platform(), Setting("all_gather", 8, 1), [size])[0] == min(each)


class TestThroughSchedules:
    """Of MPI: two nodes of four ranks. Each round of a ring has messages between the nodes."""

    ONE = platform(library="mpi", link="memory", rate=40)

    @pytest.mark.parametrize(
        ("collective", "rounds", "moved", "reduced", "received"),
        [
            ("all_gather", 7, 7 / 8, 0, 1), ("all_reduce", 14, 14 / 8, 7 / 8, 2),
            ("reduce_scatter", 7, 7 / 8, 7 / 8, 1),
        ],
    )  # fmt: skip
    def test_messages_are_eager_or_have_twice_the_latency(self, collective, rounds, moved, reduced, received):
        for ranks, nodes, share in ((8, 2, 4), (8, 8, 1)):
            asked = Setting(collective, ranks, nodes, "ring")
            seconds = max(moved / (share * 9e9), received / 20e9 if ranks > nodes else 0.0)
            assert micros(self.ONE, asked) == pytest.approx(1 + rounds)
            assert per_byte(self.ONE, asked) == pytest.approx(seconds + reduced / 3.5e9)
            size = 1e3
            eager = 1e-6 * (1 + rounds) + (2 * seconds + reduced / 3.5e9) * size
            assert times(self.ONE, asked, [size])[0] == pytest.approx(eager)
        inside = Setting(collective, 8, 1, "ring")
        assert micros(self.ONE, inside) == pytest.approx(1 + rounds / 2)
        assert per_byte(self.ONE, inside) == pytest.approx(max(moved, received) / 20e9 + reduced / 3.5e9)

    def test_the_last_of_a_binomial_broadcast_received_through_memory(self):
        asked = Setting("broadcast", 4, 2, "binomial")
        # One message between nodes and two inside, of which one may go at the same time.
        assert per_byte(self.ONE, asked) == pytest.approx(1 / 18e9 + 1 / 20e9, rel=0.5)
        assert micros(platform(library="gloo", transport="sockets"), asked) == pytest.approx(1 + 26 + 0.5)

    @pytest.mark.parametrize(("ranks", "nodes"), [(64, 8), (128, 16)])
    def test_open_mpi_takes_what_its_tables_say(self, ranks, nodes):
        one, mpi = platform(library="openmpi"), platform(library="mpi")
        sizes = 2.0 ** np.arange(2, 28)
        for name in OPEN_MPI:
            chosen = [own_choice(name, ranks, size) for size in sizes.tolist()]
            wanted = [
                times(mpi, Setting(name, ranks, nodes, way), [size])[0] for way, size in zip(chosen, sizes, strict=True)
            ]
            assert times(one, Setting(name, ranks, nodes), sizes).tolist() == wanted
        assert len(set(chosen)) > 1
        ring = Setting("all_gather", ranks, nodes, "ring")
        assert times(one, ring, sizes).tolist() == times(mpi, ring, sizes).tolist()

    def test_tables_of_open_mpi_begin_at_powers_of_two(self):
        for table in OPEN_MPI.values():
            assert list(table) == [2**one for one in range(1, 13) if 2**one in table]


class TestParameters:
    def test_of_nccl(self):
        found = parameters(platform(transport="roce"))
        assert list(found) == list(PARAMETERS)
        wanted = {
            "launch": (8.4e-6, 0.7), "inner_latency": (0.6e-6, 0.7), "outer_latency": (3.7e-6, 0.7),
            "inner_seconds_per_byte": (1 / 80e9, 0.2), "outer_seconds_per_byte": (8 / 34e9, 0.35),
            "gamma": (5e-14, 0.5), "ll128_latency_factor": (4 / 2.7, 0.5), "simple_latency_factor": (15 / 3.7, 0.5),
            "ll_byte_factor": (2, 0.5), "ll128_byte_factor": (1 / 0.92, 0.05), "tree_latency_factor": (1, 0.5),
            "tree_byte_factor": (1 / 0.92, 0.2), "peer_latency": (7e-6, 0.7), "peer_byte_factor": (1, 0.3),
            "pair_byte_factor": (1 / 0.7, 0.4), "switch_byte_factor": (1 / 0.85, 0.1),
        }  # fmt: skip
        assert {name: pytest.approx(value) for name, value in wanted.items()} == found

    def test_of_schedules_and_of_one_node(self):
        found = parameters(platform(library="mpi", link="memory", transport="efa", generation="cpu"))
        wanted = {
            "launch": 1e-6, "inner_latency": 0.5e-6, "outer_latency": 16e-6, "inner_seconds_per_byte": 1 / 50e9,
            "outer_seconds_per_byte": 1 / 34e9, "gamma": 1 / 3.5e9, "simple_latency_factor": 2, "ll_byte_factor": 2,
            "switch_byte_factor": 1,
        }  # fmt: skip
        assert {name: found[name][0] for name in wanted} == pytest.approx(wanted)
        alone = parameters(platform(outer=None))
        assert alone["outer_seconds_per_byte"][0] == pytest.approx(1 / 80e9)
        assert alone["outer_latency"][0] == pytest.approx(2.7e-6)

    def test_go_into_step_models_and_sentences(self):
        for one, nccl in ((platform(switch=True), True), (platform(library="gloo"), False)):
            steps, said = specified(one), parameters(one)
            assert (steps.nccl, steps.switch) == (nccl, nccl)
            assert list(zip(steps.values, steps.errors, strict=True)) == list(said.values())
            lines = sentences(one)
            assert lines[0] == "mine"
            value, error = said["launch"]
            factor = math.exp(1.645 * error)
            assert f"  {'launch':<24}{value:>10.3g}  within a factor of {factor:.2f} ({PARAMETERS['launch']})" in lines


def test_widths_are_those_of_public_measurements():
    known = [(0.35, 0.85), (0.4, 1.3), (0.4, 0.55), (0.3, 0.35)]
    nccl = [(0.75, 1.1), (0.65, 1.4), (0.55, 1.15), (0.5, 0.8)]
    schedules = [(2.2, 1.5), (1.7, 1.3), (0.8, 1.1), (0.35, 1.15)]
    for one, wanted in (
        (platform(), known), (platform(outer=None), known), (platform(link="xgmi"), known),
        (platform(link="pcie"), nccl), (platform(transport="roce"), nccl), (platform(direct=False), nccl),
        (platform(library="mpi"), schedules),
    ):  # fmt: skip
        assert np.array(half_widths(one, 0.9)) == pytest.approx(np.array(wanted))
        # Of a normal distribution 68 % are within one of what 90 % are within 1.645 of.
        narrow = np.array(half_widths(one, math.erf(1 / math.sqrt(2))))
        assert narrow == pytest.approx(np.array(wanted) / 1.6448536)
