"""Software of calls on links made up: which share of their bytes is sent, and for how long ranks work before rounds."""

import dataclasses
import math
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from hand_made import fitted, predictor
from simnet import collectives, topologies
from simnet.calibration import CalibratedSoftware, Setting, measured
from simnet.calibration.cost_model import CalibratedCostModel
from simnet.calibration.curve_models import CurveModel
from simnet.calibration.jitter import FittedJitter, messages_of, typical
from simnet.calibration.predictor import Basis
from simnet.calibration.software import eager_measured
from simnet.collectives import registry
from simnet.network import Network
from simnet.schedule import Round, Schedule

LATENCY, BANDWIDTH, SIZE = 2e-5, 1e9, 8e5
HOSTS = np.arange(8)
RING = collectives.allreduce_ring(8, SIZE)
# Fourteen rounds, each with an eighth of the bytes.
ROUNDS, BYTES = 14 * LATENCY, 14 * SIZE / 8 / BANDWIDTH


def curve(latency, per_byte=0.0, ranks=8, name="all_reduce", smallest=2.0**10):
    return fitted(Setting(name, ranks, ranks), CurveModel(segments=((0.0, latency, per_byte),)), smallest)


def software(*curves, hosts=8, latency=LATENCY, stack="", jitter=None):
    known = CalibratedCostModel(predictor(*curves), dict.fromkeys(get_args(Basis), [(0.1, 0.1)] * 4), {}, {})
    known.network, known.stack, known.jitter = {"star": {}}, stack, jitter
    return CalibratedSoftware(known, topologies.star(hosts, latency, BANDWIDTH), jitter=jitter is not None)


def share_of(one, schedule=RING):
    """Return what share of its bytes a schedule sends with software, the same of each message."""
    shares = [now.nbytes / before.nbytes for now, before in zip(one.rounds, schedule.rounds, strict=True)]
    assert np.ptp(np.concatenate(shares)) < 1e-12
    return float(shares[0][0])


def before(one):
    return [float(np.max(each.compute)) for each in one.rounds]


@pytest.mark.parametrize("more", [7e-4, 14e-10])
def test_time_that_links_do_not_take_is_spread_before_all_rounds(more):
    found = software(curve(ROUNDS + more, BYTES / SIZE))(RING, HOSTS)
    assert share_of(found) == 1
    assert before(found) == pytest.approx([more / 14] * 14, rel=1e-4)
    assert [(call.first, call.rounds) for call in found.calls] == [(0, 14)]


def test_what_is_too_short_to_be_spread_comes_first():
    more = 5e-12 * (ROUNDS + BYTES)
    first, *others = software(curve(ROUNDS + more, BYTES / SIZE))(RING, HOSTS).rounds
    assert len(first) == 0
    assert float(np.max(first.compute)) == pytest.approx(more, rel=0.01)
    assert before(Schedule(8, others)) == [0] * 14


def test_calls_that_are_faster_than_links_send_a_share_of_their_bytes():
    for share in (0.25, 4 / 7, 0.999):
        found = software(curve(ROUNDS, share * BYTES / SIZE))(RING, HOSTS)
        assert share_of(found) == pytest.approx(share, rel=1e-9)
        assert before(found) == pytest.approx([0] * 14, abs=1e-12)


def test_shares_are_found_where_times_bend(monkeypatch):
    # Half of the bytes take 1.5e-5 s. The 5e-6 that are left of 2e-5 are a share of 0.005 at 1e-3 s.
    def takes(self, schedule, hosts):
        share = schedule.rounds[0].nbytes[0] / 1e5
        return 1e-5 + 1e-5 * share + (1e-3 - 1e-5) * max(share - 0.5, 0.0)

    monkeypatch.setattr(CalibratedSoftware, "_seconds", takes)
    assert software()._share(RING.rounds, 8, HOSTS, 2e-5) == pytest.approx(0.505, rel=1e-4)


def test_shares_stop_where_a_message_is_eager():
    # Of two ranks each sends half twice; above the limit of 65,536 bytes a request and its answer go before.
    ring = collectives.allreduce_ring(2, 2e5)
    limit = 65536 / BANDWIDTH
    takes = 2 * (2 * LATENCY + limit)
    one = software(curve(takes, ranks=2), stack="openmpi")
    found = one(ring, HOSTS[:2])
    largest = found.rounds[0].nbytes.max()
    assert 65_000 < largest <= 65_536
    assert before(found) == pytest.approx([takes / 2 - LATENCY - largest / BANDWIDTH] * 2, rel=1e-9)
    network = Network(one.graph, stack=one.stack, software=one)
    assert network.time(ring, placement=HOSTS[:2]).duration == pytest.approx(takes, rel=1e-9)


def test_calls_of_which_nothing_is_known_stay_as_they_are():
    found = software(curve(1e-3, name="broadcast"))(RING, HOSTS)
    assert share_of(found) == 1
    assert before(found) == [0] * 14


def test_calls_keep_their_places_beside_messages_of_their_own():
    both = RING.concat(Schedule(8, [Round([0], [1], 5)]), RING)
    found = software(curve(1e-3, 1e-8))(both, HOSTS)
    assert [(call.first, call.rounds, call.operation) for call in found.calls] == [
        (0, 14, "all_reduce"), (15, 14, "all_reduce"),
    ]  # fmt: skip


def test_messages_of_another_algorithm_stand_for_a_call_that_takes_fewer_latencies():
    ring = collectives.allgather_ring(8, 1000.5)
    found = software(curve(4 * LATENCY, name="all_gather"))(ring, HOSTS)
    assert len(found.rounds) == 3
    # Each rank still gets what the other seven have.
    assert sum(one.nbytes.max() for one in found.rounds) == pytest.approx(7003.5)
    assert sum(before(found)) == pytest.approx(LATENCY - 7003.5 / BANDWIDTH)


def test_extra_latencies_are_those_of_the_messages_that_stand_for_a_call():
    jitter = FittedJitter(1e-6, 0.5, 10, 100)
    ring = collectives.allgather_ring(8, 1000.5)
    found = software(curve(4 * LATENCY, name="all_gather"), jitter=jitter)(ring, HOSTS)
    late = typical(jitter, found)
    assert late > 1e-6
    assert len(found.rounds) == 3
    assert sum(before(found)) == pytest.approx(LATENCY - 7003.5 / BANDWIDTH - late)


@pytest.mark.parametrize("jitter", [None, FittedJitter(1e-6, 0.5, 10, 100)])
def test_software_is_what_a_call_takes_beside_links_and_extra_latencies(jitter):
    late = 0.0 if jitter is None else typical(jitter, RING)
    found = software(curve(ROUNDS + 1e-4, BYTES / SIZE), jitter=jitter)(RING, HOSTS)
    assert before(found) == pytest.approx([(1e-4 - late) / 14] * 14)


class TestChunksOfUnequalSize:
    SIZES = np.arange(1.0, 9.0) * 1e5
    RINGS = collectives.allgatherv_ring(SIZES)
    # Seven rounds, each of which takes as long as an eighth of the total.
    EQUAL = 7 * (LATENCY + 4.5e5 / BANDWIDTH)

    def test_have_the_software_of_equal_ones(self):
        found = software(curve(self.EQUAL + 7e-4, name="all_gather"))(self.RINGS, HOSTS)
        assert share_of(found, self.RINGS) == 1
        assert before(found) == pytest.approx([1e-4] * 7)

    def test_send_the_share_of_equal_ones(self):
        seconds = 7 * (LATENCY + 0.25 * 4.5e5 / BANDWIDTH)
        found = software(curve(seconds, name="all_gather"))(self.RINGS, HOSTS)
        assert share_of(found, self.RINGS) == pytest.approx(0.25, rel=1e-6)
        assert found.rounds[0].nbytes == pytest.approx(0.25 * self.SIZES)

    def test_go_along_another_algorithm_with_their_own_sizes(self):
        sizes = self.SIZES / 1e3
        ring = collectives.allgatherv_ring(sizes)
        found = software(curve(4 * LATENCY, name="all_gather"))(ring, HOSTS)
        assert len(found.rounds) == 3
        received = np.zeros(8)
        for one in found.rounds:
            np.add.at(received, one.dst, one.nbytes)
        assert received == pytest.approx(sizes.sum() - sizes)
        assert sum(before(found)) == pytest.approx(LATENCY - 7 * 450 / BANDWIDTH)

    def test_to_each_other_rank_are_those_of_pairs(self):
        sizes = np.outer(np.ones(4), [1e3, 2e3, 3e3, 4e3])
        call = collectives.alltoallv_pairwise(sizes)
        one = software(curve(1e-3, name="alltoall", ranks=4))
        found = one(call, HOSTS[:4])
        assert [now.nbytes.tolist() for now in found.rounds] == [each.nbytes.tolist() for each in call.rounds]
        assert sum(before(found)) == pytest.approx(1e-3 - 3 * (LATENCY + 2.5e3 / BANDWIDTH))


def test_messages_that_stand_for_a_call_are_between_its_own_ranks():
    part = collectives.allgather_ring(4, 1e3).embed([1, 3, 5, 7], 8)
    found = software(curve(2.5 * LATENCY, name="all_gather", ranks=4))(part, HOSTS)
    assert len(found.rounds) == 2
    assert {rank for one in found.rounds for rank in (*one.src.tolist(), *one.dst.tolist())} == {1, 3, 5, 7}
    works = [np.flatnonzero(np.broadcast_to(one.compute, 8)).tolist() for one in found.rounds]
    assert works == [[1, 3, 5, 7]] * 2


def test_messages_of_no_call_have_what_a_send_receive_takes_beside_links_and_extra_latencies():
    jitter = FittedJitter(1e-6, 0.5, 10, 100)
    message = Schedule(8, [Round([2], [3], 1e4)])
    for given, late in ((None, 0.0), (jitter, typical(jitter, message))):
        (one,) = software(curve(1e-3, name="sendrecv", ranks=2), jitter=given)(message, HOSTS).rounds
        wanted = np.zeros(8)
        wanted[[2, 3]] = 1e-3 - LATENCY - 1e4 / BANDWIDTH - late
        assert one.compute == pytest.approx(wanted)
        assert one.nbytes.tolist() == [1e4]


def test_what_is_known_of_calls_and_of_messages_of_none():
    both = Schedule(8, [Round([0, 1], [2, 3], [7.0, 9.0]), Round((), (), ())]).concat(RING)
    model = software(curve(1e-3), curve(2e-3, name="sendrecv", ranks=4)).model
    for network, nodes in (({"star": {}}, (0, 0)), ({"multi_gpu_nodes": {"gpus_per_node": 4}}, (1, 2))):
        model.network = network
        message, call = CalibratedSoftware(model, topologies.star(8, LATENCY, BANDWIDTH)).known(both, HOSTS)
        assert message[:5] == ("sendrecv", "", 4, nodes[0], 9.0)
        assert call[:5] == ("all_reduce", "ring", 8, nodes[1], pytest.approx(SIZE))
        assert call.prediction.seconds == pytest.approx(1e-3, rel=0.5)
    unknown = software(curve(1e-3, name="broadcast")).known(both, HOSTS)
    assert [one.prediction for one in unknown] == [None, None]


class TestLinksThatAreDrawnDown:
    FEWEST = min(
        float(one.cost(1.0, 0.0, 0.0, 8))
        for one in registry.every()
        if one.operation == "all_reduce" and one.cost is not None and (one.calibrated or one.nccl) and not one.needs
    )

    def latency(self, one):
        return one.graph.edges["switch", 3]["latency"]

    @pytest.mark.parametrize(("stack", "trips"), [("", 1), ("mpich", 1), ("gloo", 2), ("openmpi", 3)])
    def test_leave_a_call_as_long_as_the_words_of_its_fewest_messages(self, stack, trips):
        plain = self.latency(software(curve(1.0), stack=stack))
        room = 2 * LATENCY
        found = self.latency(software(curve(room), stack=stack))
        assert found / plain == pytest.approx(room / (self.FEWEST * trips * LATENCY))

    def test_count_extra_latencies_too(self):
        jitter = FittedJitter(2e-6, 0.5, 10, 100)
        late = typical(jitter, messages_of(Setting("all_reduce", 8, 8), 2.0**10))
        plain, found = (self.latency(software(curve(one), jitter=jitter)) for one in (1.0, 2 * LATENCY))
        assert late > 1e-6
        assert found / plain == pytest.approx((2 * LATENCY - late) / (self.FEWEST * LATENCY))

    def test_go_by_the_tightest_curve_that_there_are_hosts_for(self):
        plain = self.latency(software(curve(1.0)))
        several = software(curve(1e-9, ranks=9), curve(LATENCY / 2, ranks=2), curve(1.0), curve(1e-9, ranks=1))
        assert self.latency(several) / plain == pytest.approx(1 / 2)
        assert self.latency(software(curve(0.0, 1e-9), latency=0.0)) == 0

    @pytest.mark.parametrize("nodes", [0, 1, 3, 8])
    def test_do_not_ask_how_many_nodes_ranks_were_on_where_each_is_a_host(self, nodes):
        plain = self.latency(software(curve(1.0)))
        made = curve(2 * LATENCY)
        found = self.latency(software(dataclasses.replace(made, setting=Setting("all_reduce", 8, nodes))))
        assert found / plain == pytest.approx(2 / self.FEWEST)

    @pytest.mark.parametrize(
        ("ranks", "nodes", "last"),
        [(8, 2, 7), (6, 2, 6), (4, 1, 3), (4, 0, 3), (5, 0, 6), (3, 3, 8), (2, 1, 1), (8, 1, None), (9, 3, 10),
         (4, 4, None), (13, 0, None)],
    )  # fmt: skip
    def test_are_those_between_the_first_rank_and_the_last_of_nodes_that_are_filled_alike(self, ranks, nodes, last):
        graph = topologies.multi_gpu_nodes(
            3, 4, intra_latency=1e-6, intra_bandwidth=1e11, nic_latency=1e-5, nic_bandwidth=1e10
        )
        short = dataclasses.replace(curve(1e-6, ranks=ranks), setting=Setting("all_reduce", ranks, nodes))
        model = software(curve(1.0), short).model
        model.network = {"multi_gpu_nodes": {"gpus_per_node": 4}}
        found = CalibratedSoftware(model, graph).graph
        share = sum(one["latency"] for *_, one in found.edges(data=True)) / sum(
            one["latency"] for *_, one in graph.edges(data=True)
        )
        if last is None:
            assert share == 1
        else:
            fewest = min(
                float(one.cost(1.0, 0.0, 0.0, ranks))
                for one in registry.every()
                if one.operation == "all_reduce" and one.cost is not None and (one.calibrated or one.nccl)
                and not one.needs and one.ranks.among(ranks)
            )  # fmt: skip
            assert share == pytest.approx(1e-6 / (fewest * (1e-6 if last < 4 else 1.1e-5)))

    def test_are_those_of_the_graph_where_calls_leave_time(self):
        model, graph = software(curve(1.0)).model, topologies.star(8, LATENCY, BANDWIDTH)
        assert CalibratedSoftware(model, graph).graph is graph
        drawn = CalibratedSoftware(software(curve(LATENCY)).model, graph).graph
        assert {one["latency"] for *_, one in graph.edges(data=True)} == {LATENCY / 2}
        assert max(one["latency"] for *_, one in drawn.edges(data=True)) == pytest.approx(LATENCY / 2 / self.FEWEST)
        one = software(curve(1.0))
        assert math.isclose(self.latency(one) + one.graph.edges[3, "switch"]["latency"], LATENCY)


def test_all_rows_have_to_say_that_their_messages_are_eager():
    rows = measured.load("shaped_openmpi").rows
    one_in_two = np.where(np.arange(len(rows)) % 2, "default", "ideal_eager")
    assert not eager_measured(rows.assign(profile=one_in_two))
    assert eager_measured(rows.drop(columns="profile", errors="ignore"))


class TestOtherAlgorithms:
    def test_are_those_that_nccl_or_mpi_have(self):
        # Of an all-reduce, doubling has the fewest rounds, three; NCCL has none of it.
        found = software(curve(4 * LATENCY))(collectives.allreduce_ring(8, 1e3), HOSTS)
        assert len(found.rounds) == 3
        assert [(call.first, call.rounds) for call in found.calls] == [(0, 3)]
        assert sum(before(found)) == pytest.approx(LATENCY - 3e3 / BANDWIDTH)

    def test_are_not_taken_where_its_own_take_just_as_long_without_bytes(self, monkeypatch):
        one = software(curve(1.0))
        exact = one._without_bytes([Round(each.src, each.dst, each.nbytes) for each in RING.rounds], 8, HOSTS)
        monkeypatch.setattr(one.model, "fastest", lambda *given, **named: SimpleNamespace(seconds=exact))
        assert share_of(one(RING, HOSTS)) == 0

    def test_have_what_ranks_compute_before_their_first_messages(self):
        ring = collectives.allreduce_ring(8, 1e3, gamma=1e-8)
        first, *others = software(curve(4 * LATENCY))(ring, HOSTS).rounds
        assert len(others) == 2
        # Along a ring each rank adds seven eighths of the vector.
        assert first.compute - others[0].compute == pytest.approx(7 / 8 * 1e3 * 1e-8)

    def test_stand_for_chunks_of_unequal_size_where_they_can_have_them(self):
        sizes = np.outer(np.ones(8), np.arange(1.0, 9.0))
        one = software(curve(4 * LATENCY, name="alltoall"))
        assert len(one(collectives.alltoall_pairwise(8, 1.0), HOSTS).rounds) == 3
        found = one(collectives.alltoallv_pairwise(sizes), HOSTS)
        assert len(found.rounds) == 7
        assert sum(each.nbytes.sum() for each in found.rounds) == 0

    @pytest.mark.parametrize(
        ("name", "make"), [("broadcast", collectives.broadcast_binomial), ("reduce", collectives.reduce_binomial)]
    )
    def test_stand_for_none_that_has_a_root(self, name, make):
        # Below the sizes that were measured a call is said to take a latency, and its messages take three.
        shape = CurveModel(segments=((0.0, LATENCY, 0.0), (2.0**10, 1.0, 0.0)))
        tree = make(8, 100.0, 5)
        found = software(fitted(Setting(name, 8, 8), shape))(tree, HOSTS)
        assert [one.src.tolist() for one in found.rounds] == [one.src.tolist() for one in tree.rounds]
        assert sum(one.nbytes.sum() for one in found.rounds) == 0

    def test_that_are_not_known_are_named(self):
        mine = RING.calls[0]._replace(algorithm="mine", sizes=np.arange(8.0))
        with pytest.raises(ValueError, match="there is no all_reduce by mine"):
            software(curve(1e-3))(Schedule(8, RING.rounds, [mine]), HOSTS)


def test_software_that_messages_of_earlier_rounds_leave_room_for_comes_first():
    # Of five ranks one sends its kilobyte first to another; where that one is late, the kilobyte no longer waits.
    doubling = collectives.allreduce_recursive_doubling(5, 1e3)
    one = software(curve(1e-2, 1e-8, ranks=5), hosts=5)
    first, *others = one(doubling, HOSTS[:5]).rounds
    assert (len(first), first.phase, others[1].phase) == (0, "fold", "recursive doubling")
    assert float(first.compute) == pytest.approx(1e3 / BANDWIDTH)
    assert len(set(before(Schedule(5, others)))) == 1
    predicted = one.model.predict("all_reduce", 5, 1e3).seconds
    found = Network(one.graph, stack=one.stack, software=one).time(doubling, placement=HOSTS[:5]).duration
    assert found == pytest.approx(predicted, rel=1e-11)


@pytest.mark.parametrize("more", [4e-6, 4e-9])
def test_software_that_would_make_messages_of_several_rounds_meet_comes_first(more):
    # Rank 3 and 4 send each other a kilobyte three times, 3 * (20 + 1) us, before 3 sends ten to rank 2: that ends to
    # leave at 73 us. Just then 53 kB have reached rank 0 at 53 + 20 us, which sends its own ten to 2. With a quarter of
    # the software before each round, the former begins four quarters later, and the latter two: half would be lost.
    rounds = [
        Round([1, 4], [0, 3], [53e3, 1e3]), Round([0, 3], [2, 4], [1e4, 1e3]), Round([2, 4], [5, 3], [1e3, 1e3]),
        Round([5, 3], [6, 2], [1e3, 1e4]),
    ]  # fmt: skip
    schedule = Schedule(7, rounds, [RING.calls[0]._replace(rounds=4, nbytes=1e4)])
    # From 1 to 0, 2, 5 and 6: four latencies and 53 + 10 + 1 + 1 kB.
    first, *others = software(curve(145e-6 + more, ranks=7), hosts=7)(schedule, HOSTS[:7]).rounds
    assert (len(first), float(np.max(first.compute))) == (0, pytest.approx(more, rel=1e-4))
    assert before(Schedule(7, others)) == [0] * 4


def test_calls_of_two_ranks_have_one_round_and_each_root_its_own_messages():
    one = software(curve(1e-3, name="broadcast", ranks=2))
    for root in (0, 1):
        (found,) = one(collectives.broadcast_binomial(2, 1e3, root), HOSTS[:2]).rounds
        assert (found.src.tolist(), found.dst.tolist()) == ([root], [1 - root])
        assert found.compute == pytest.approx(1e-3 - LATENCY - 1e3 / BANDWIDTH)
    four = software(curve(LATENCY, name="broadcast", ranks=2))
    for root in range(4):
        assert four(collectives.broadcast_binomial(4, 1e3, root), HOSTS[:4]).rounds[0].src.tolist() == [root]


@pytest.mark.parametrize("late", [5e-5, 1e-3])
def test_calls_that_extra_latencies_alone_take_longer_than_have_neither_bytes_nor_software(late):
    jitter = FittedJitter(late, 0.5, 10, 100)
    found = software(curve(2 * LATENCY, ranks=2), jitter=jitter)(collectives.allreduce_ring(2, 1e5), HOSTS[:2])
    assert [one.nbytes.sum() for one in found.rounds] == before(found) == [0]


def test_so_many_fits_are_kept_and_no_more(monkeypatch):
    monkeypatch.setattr("simnet.calibration.software._KEPT", 2)
    one = software(curve(1e-3), curve(1e-3, name="sendrecv", ranks=2))
    for size in (1e3, 2e3, 1e3, 2e3):
        one(collectives.allreduce_ring(8, size), HOSTS)
        one(Schedule(8, [Round([2], [3], size)]), HOSTS)
    assert (len(one._fits), len(one._extra)) == (2, 2)
    one(collectives.allreduce_ring(8, 3e3), HOSTS)
    one(Schedule(8, [Round([2], [3], 3e3)]), HOSTS)
    assert (len(one._fits), len(one._extra)) == (1, 1)


class TestMessagesOfNoCall:
    def test_have_the_software_of_the_largest_of_a_round(self):
        one = software(curve(1e-3, 1e-8, name="sendrecv", ranks=4))
        both = Schedule(8, [Round([0, 2], [1, 3], [1e4, 5e4])])
        (found,) = one(both, HOSTS).rounds
        predicted = one.model.predict("sendrecv", 4, 5e4).seconds
        wanted = np.zeros(8)
        wanted[:4] = predicted - LATENCY - 5e4 / BANDWIDTH
        assert found.compute == pytest.approx(wanted)

    def test_have_none_where_they_take_longer_or_nothing_is_known(self):
        message = Schedule(8, [Round([2], [3], 1e6), Round((), (), (), 1e-3)])
        for name in ("sendrecv", "broadcast"):
            sent, empty = software(curve(LATENCY, name=name, ranks=2))(message, HOSTS).rounds
            assert np.max(sent.compute) == 0
            assert sent.nbytes.tolist() == [1e6]
            assert empty is message.rounds[1]

    def test_count_from_the_hosts_that_they_are_between(self):
        graph = topologies.multi_gpu_nodes(
            2, 4, intra_latency=1e-6, intra_bandwidth=1e11, nic_latency=1e-5, nic_bandwidth=1e10
        )
        model = software(curve(1e-3, name="sendrecv", ranks=3)).model
        model.network = {"multi_gpu_nodes": {"gpus_per_node": 4}}
        one = CalibratedSoftware(model, graph)
        # Its largest message is inside a node, or between two, by the round and by where the ranks are.
        inside = Schedule(3, [Round([0, 0], [1, 2], [9e3, 1e3])])
        between = Schedule(3, [Round([0, 0], [2, 1], [9e3, 1e3])])
        predicted = one.model.predict("sendrecv", 3, 9e3, nodes=2).seconds
        takes = {False: 1e-6 + 9e3 / 1e11, True: 1.1e-5 + 9e3 / 1e10}
        for schedule, hosts, away in (
            (inside, [0, 1, 4], False), (between, [0, 1, 4], True), (inside, [0, 4, 1], True),
            (between, [0, 4, 1], False),
        ):  # fmt: skip
            (found,) = one(schedule, np.array(hosts)).rounds
            assert found.compute == pytest.approx(predicted - takes[away], rel=1e-6)
