"""The step model by hand: what its data do not tell stays typical, and what each way pays is counted."""

import math

import numpy as np
import pytest

from hand_made import times_of_ways
from simnet.cost_models.calibration import Curve, Setting
from simnet.cost_models.calibration.step_counts import count_like_nccl, count_schedule, count_steps
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel, fit_step_model

SIZES = 2.0 ** np.arange(8, 31, 2)
VALUES = {
    "launch": 9e-6, "inner_latency": 7e-7, "outer_latency": 6e-6, "inner_seconds_per_byte": 3e-12,
    "outer_seconds_per_byte": 2e-11, "gamma": 4e-13, "ll128_latency_factor": 2.0, "simple_latency_factor": 4.0,
    "ll_byte_factor": 5.0, "ll128_byte_factor": 1.1, "tree_latency_factor": 0.7, "tree_byte_factor": 1.5,
    "peer_latency": 5e-6, "peer_byte_factor": 1.2, "pair_byte_factor": 1.3, "switch_byte_factor": 1.4,
}  # fmt: skip
MODEL = StepModel(True, tuple(VALUES.values()))


def ways(*setting, size=1e6, model=MODEL):
    return {name: float(one[0]) for name, one in times_of_ways(model, Setting(*setting), [size]).items()}


def told(curves, nccl):
    """Return what is fitted to curves, and its standard errors, by name."""
    found = fit_step_model(curves, nccl)
    return dict(zip(PARAMETERS, zip(found.values, found.errors, strict=True), strict=True))


def curve(*setting):
    return Curve(Setting(*setting), SIZES, 2e-5 + SIZES * 1e-10)


TYPICAL_OF_NCCL = {
    "inner_latency": (4e-7, 0.7), "outer_latency": (5e-6, 1.0), "gamma": (5e-14, 0.5),
    "ll128_latency_factor": (1.8, 0.5), "simple_latency_factor": (3.5, 1.0), "ll_byte_factor": (3.0, 0.7),
    "ll128_byte_factor": (128 / 120, 0.05), "tree_latency_factor": (0.8, 0.2), "tree_byte_factor": (1.6, 0.3),
    "peer_latency": (8e-6, 0.7), "peer_byte_factor": (1.1, 0.3), "pair_byte_factor": (1.1, 0.7),
    "switch_byte_factor": (1 / 0.85, 0.05),
}  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "tells"),
    [
        # A message from each rank to the next, on one node and between nodes, in one protocol.
        (("sendrecv", 8, 1, "", "LL"), {"inner_latency", "ll_byte_factor", "pair_byte_factor"}),
        (("sendrecv", 8, 8, "", "LL"), {"outer_latency", "ll_byte_factor", "pair_byte_factor", "peer_latency"}),
        (("sendrecv", 8, 1, "", "Simple"), {"inner_latency", "simple_latency_factor", "pair_byte_factor"}),
        (("all_gather", 8, 1, "", "LL128"), {"inner_latency", "ll128_latency_factor", "ll128_byte_factor"}),
    ],
)
def test_what_nccl_s_data_do_not_tell_is_typical_and_as_uncertain_as_systems_differ(setting, tells):
    found = told([curve(*setting)], nccl=True)
    for name, (value, error) in TYPICAL_OF_NCCL.items():
        if name not in tells:
            assert found[name] == pytest.approx((value, error), rel=1e-6), name
    if "peer_latency" in tells:
        # What a peer costs goes with what a step between nodes costs.
        assert found["peer_latency"][0] == pytest.approx(0.6 * found["outer_latency"][0], rel=1e-6)


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


def test_what_goes_through_a_schedule_and_what_does_not():
    assert len(count_steps(Setting("all_gather", 8, 8), nccl=False)) == 2
    assert (
        count_steps(Setting("all_gather", 1, 1), nccl=False)
        == count_steps(Setting("all_gather", 1, 1), nccl=True)
        == ()
    )
    assert count_steps(Setting("all_gather", 4096, 0, "bruck"), nccl=False)[0].outer == 12
    assert count_steps(Setting("all_gather", 4097), nccl=False) == ()
    assert (
        len(count_steps(Setting("all_gather", 4097), nccl=True))
        == len(count_steps(Setting("all_gather", 2, 2), nccl=True))
        == 1
    )
    # More nodes than ranks cannot be: they are not known then.
    assert count_steps(Setting("all_gather", 4, 9), nccl=True) == count_steps(Setting("all_gather", 4, 4), nccl=True)
    for nccl in (False, True):
        assert [one.kind for one in count_steps(Setting("sendrecv", 5000, 2), nccl)] == ["pair"]
    assert count_steps(Setting("all_reduce", 8, 1), nccl=True, switch=True)[-1].kind == "switch"
    assert count_steps(Setting("all_gather", 8, 2), True, cards=1)[0].outer_bytes == pytest.approx(7 / 8)


def test_the_busiest_node_decides_what_a_round_takes():
    # Along a binomial tree over four nodes of two ranks the vector leaves a node in two rounds of three.
    assert count_schedule("broadcast", "binomial", 8, 4)[:5] == (1, 2, 1, 2, 0)
    # By recursive doubling both ranks of a node send their vectors away, in all rounds but one.
    found = count_schedule("all_reduce", "recursive_doubling", 8, 4)
    assert found[:5] == (1, 2, 1, 4, 3)
    alone = count_schedule("all_gather", "ring", 4, 1)
    assert (alone.inner, alone.outer, alone.inner_bytes) == (3, 0, pytest.approx(3 / 4))
