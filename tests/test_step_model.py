"""The step model by hand: what its data do not tell stays typical, and what each way pays is counted."""

import math

import pytest

from hand_made import times_of_ways
from simnet.cost_models.calibration import Setting
from simnet.cost_models.calibration.step_model import StepModel, count_like_nccl, count_schedule

VALUES = {
    "launch": 9e-6, "inner_latency": 7e-7, "outer_latency": 6e-6, "inner_seconds_per_byte": 3e-12,
    "outer_seconds_per_byte": 2e-11, "gamma": 4e-13, "ll128_latency_factor": 2.0, "simple_latency_factor": 4.0,
    "ll_byte_factor": 5.0, "ll128_byte_factor": 1.1, "tree_latency_factor": 0.7, "tree_byte_factor": 1.5,
    "peer_latency": 5e-6, "peer_byte_factor": 1.2, "pair_byte_factor": 1.3, "switch_byte_factor": 1.4,
}  # fmt: skip
MODEL = StepModel(True, tuple(VALUES.values()))


def ways(*setting, size=1e6, model=MODEL):
    return {name: float(one[0]) for name, one in times_of_ways(model, Setting(*setting), [size]).items()}


def test_each_way_pays_launch_steps_bytes_and_what_it_reduces():
    v, size = VALUES, 1e6
    found = ways("all_reduce", 16, 2, size=size)
    assert list(found) == [f"{kind}, {name}" for kind in ("ring", "tree") for name in ("LL", "LL128", "Simple")]
    inner, outer = 26 * v["inner_latency"], 4 * v["outer_latency"]
    moved, reduced = 15 / 8 / 8 * size * v["outer_seconds_per_byte"], 15 / 16 * size * v["gamma"]
    for name, later, longer in (("LL", 1, 5), ("LL128", 2, 1.1), ("Simple", 4, 1)):
        wanted = v["launch"] + later * (inner + outer) + longer * moved + reduced
        assert found[f"ring, {name}"] == pytest.approx(wanted)
    # Along a chain of eight and once between two nodes; half of the vector each way.
    for name, later, longer in (("LL", 1, 5), ("LL128", 2, 1.1), ("Simple", 4, 1)):
        steps = 14 * v["inner_latency"] + 2 * 0.7 * v["outer_latency"]
        moved = 1 / 8 * size * 1.5 * v["outer_seconds_per_byte"]
        wanted = v["launch"] + later * steps + longer * moved + size * v["gamma"]
        assert found[f"tree, {name}"] == pytest.approx(wanted)


@pytest.mark.parametrize(("ranks", "nodes"), [(16, 2), (16, 4), (8, 1), (12, 12), (2, 2), (2, 1), (4, 0)])
def test_what_nccl_counts_of_each_collective(ranks, nodes):
    many, share = nodes or ranks, (ranks - 1) / ranks
    each, alone = ranks / many, many == 1
    moved = {"all_reduce": 2 * share, "broadcast": 1, "reduce": 1, "all_gather": share, "reduce_scatter": share}
    reduced = {"all_reduce": share, "reduce": 1, "reduce_scatter": share}
    for collective, factor in moved.items():
        ring = count_like_nccl(collective, "", ranks, nodes)[0]
        passes = 2 if collective == "all_reduce" else 1
        assert ring.inner + ring.outer == passes * (ranks - 1)
        assert ring.outer == (0 if alone else min(passes * many, passes * (ranks - 1)))
        assert (ring.inner_bytes, ring.outer_bytes) == pytest.approx((factor, 0) if alone else (0, factor / each))
        assert (ring.reduced, ring.peers, ring.kind) == (pytest.approx(reduced.get(collective, 0)), 0, "ring")
        assert len(count_like_nccl(collective, "", ranks, nodes)) == (2 if collective == "all_reduce" else 1)
    (_, tree) = count_like_nccl("all_reduce", "", ranks, nodes)
    assert (tree.inner, tree.outer) == (2 * (each - 1), 0 if alone else 2 * math.ceil(math.log2(many)))
    sent = 0 if alone else (1 if many == 2 else 2) / each
    assert (tree.inner_bytes, tree.outer_bytes) == ((2, 0) if alone else (0, pytest.approx(sent)))
    assert (tree.reduced, tree.kind) == (1, "tree")
    (pair,) = count_like_nccl("sendrecv", "", ranks, nodes)
    assert pair[:6] == ((1, 0, 1, 0, 0, 0) if alone else (0, 1, 0, 1, 0, 0))
    (peers,) = count_like_nccl("alltoall", "", ranks, nodes)
    assert peers[:2] == ((1, 0) if alone else (0, 1))
    assert peers.inner_bytes == pytest.approx((each - 1) / ranks)
    assert peers.outer_bytes == pytest.approx(0 if alone else 1 - 1 / many)
    assert (peers.reduced, peers.peers, peers.kind) == (0, ranks - 1 if alone else ranks - each, "peers")


def test_the_busiest_node_decides_what_a_round_takes():
    # Along a binomial tree over four nodes of two ranks the vector leaves a node in two rounds of three.
    assert count_schedule("broadcast", "binomial", 8, 4)[:5] == (1, 2, 1, 2, 0)
    # By recursive doubling both ranks of a node send their vectors away, in all rounds but one.
    found = count_schedule("all_reduce", "recursive_doubling", 8, 4)
    assert found[:5] == (1, 2, 1, 4, 3)
    alone = count_schedule("all_gather", "ring", 4, 1)
    assert (alone.inner, alone.outer, alone.inner_bytes) == (3, 0, pytest.approx(3 / 4))
