"""The clocks agree: on an idle, constant star the network takes exactly what the closed forms say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from simnet import collectives, topologies
from simnet.collectives import registry
from simnet.cost_models import costs
from simnet.network import Network

EXACT = 1e-9
POWERS = (2, 4, 8, 16, 32, 64)
# alpha [s], beta [s/byte]: a WAN, a data centre, latency only in all but name, bandwidth only.
STATES = ((50e-3, 8e-9), (1e-6, 4e-11), (1.0, 1e-15), (0.0, 8e-10))
M, DENSITY = 46_758_048.0, 0.01

DENSE = {one.name: one for one in registry.built_in() if one.cost is not None}


def allgather_of_pairs(N, nbytes):
    """AG: every worker contributes its values and as many indices."""
    return collectives.allgather_auto(N, 2 * nbytes)


def artopk(reduce):
    """AR-Topk: one worker broadcasts its indices, the values at them are reduced by a ring or a tree."""
    return lambda N, nbytes: collectives.broadcast_binomial(N, nbytes, root=N // 2).concat(reduce(N, nbytes))


SPARSE = {
    "AG": (costs.topk_allgather, allgather_of_pairs),
    "ART-ring": (costs.artopk_ring, artopk(collectives.allreduce_ring)),
    "ART-tree": (costs.artopk_tree, artopk(collectives.allreduce_tree)),
}


def seconds_on_star(schedule, alpha, beta):
    network = Network(topologies.star(schedule.n_ranks, latency=alpha, bandwidth=1 / beta))
    return network.time(schedule).finish


def both(one, N, nbytes, alpha, beta):
    """What the closed form of a collective says, and what the network does; groups are pairs."""
    options = dict.fromkeys(one.needs, 2)
    expected = float(one.cost(alpha, beta, nbytes, N, **options))
    return seconds_on_star(one.schedule(N, nbytes, **options), alpha, beta), expected


# Others count rounds: by which share the network is off them, at least and at most. Ranks that are paired are out of
# step: they gain some latency, and messages meet. Messages also meet in a reduction whose last level is not full, and
# in groups of two where a rank is left over.
OFF = {
    "allgather_recursive_doubling": (-0.34, 0.2),
    "allreduce_rabenseifner": (0.0, 0.48),
    "allreduce_recursive_doubling": (-0.34, 0.62),
    "allreduce_tree": (-0.05, 0.0),
    "hierarchical": (0.0, 0.34),
    "reduce_binomial": (-0.09, 0.0),
    "reduce_scatter_recursive_halving": (-0.34, 0.64),
    "reduce_tree": (-0.09, 0.0),
}


@each("N", [*range(1, 34), 64])
@pytest.mark.parametrize("name", DENSE)
def test_every_collective_takes_what_its_closed_form_says(name, N):
    one = DENSE[name]
    low, high = (0.0, 0.0) if one.exact.among(N) else OFF[name]
    for alpha, beta in STATES:
        found, expected = both(one, N, M, alpha, beta)
        assert expected * (1 + low) * (1 - EXACT) <= found <= expected * (1 + high) * (1 + EXACT)


@each("N", POWERS)
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_exchanges_of_the_paper(name, N):
    cost, build = SPARSE[name]
    for alpha, beta in STATES:
        expected = float(cost(alpha, beta, M, DENSITY, N))
        found = seconds_on_star(build(N, M * DENSITY), alpha, beta)
        # A leaf of the reduction need not wait for the indices that it sends to be there.
        saved = alpha if name == "ART-tree" else 0.0
        assert expected - saved * (1 + EXACT) <= found * (1 + EXACT)
        assert found <= expected * (1 + EXACT)


@each("N", range(1, 34))
def test_var_selection(N):
    for alpha, beta in STATES:
        found = seconds_on_star(collectives.allgather_auto(N, 4), alpha, beta)
        assert found == pytest.approx(float(costs.var_overhead(alpha, beta, N)), rel=EXACT)


@settings(max_examples=25)
@given(
    st.floats(0, 1, allow_subnormal=False),
    st.floats(1e-11, 1e-6),
    st.floats(0, 1e9, allow_subnormal=False),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(sorted(DENSE)),
)
def test_any_latency_bandwidth_and_size(alpha, beta, nbytes, N, name):
    found, expected = both(DENSE[name], N, nbytes, alpha, beta)
    assert found == pytest.approx(expected, rel=EXACT, abs=1e-15)


@each("N", [2, 4, 8, 16])
def test_reducing_takes_gamma_per_byte(N):
    """With the work of reducing, as the textbook has it: ring (N - 1) / N M gamma, recursive doubling M gamma log N."""
    alpha, beta, gamma = 1e-3, 8e-9, 3e-9
    for build, plain, reduced in (
        (collectives.allreduce_ring, costs.ring_allreduce, (N - 1) / N * M),
        (collectives.reduce_scatter_ring, costs.ring_reduce_scatter, (N - 1) / N * M),
        (collectives.allreduce_rabenseifner, costs.rabenseifner_allreduce, (N - 1) / N * M),
        (collectives.allreduce_recursive_doubling, costs.recursive_doubling_allreduce, M * np.log2(N)),
        (collectives.allreduce_tree, costs.tree_allreduce, M * np.log2(N)),
    ):
        expected = float(plain(alpha, beta, M, N)) + gamma * reduced
        assert seconds_on_star(build(N, M, gamma=gamma), alpha, beta) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("segments", [1, 2, 7, 32])
@each("N", [2, 5, 16])
def test_pipelined_chain(N, segments):
    """The first segment passes N - 1 links, and the others follow it over the last."""
    alpha, beta = 1e-3, 8e-9
    expected = (N - 1) * alpha + (N - 2 + segments) * M / segments * beta
    schedule = collectives.broadcast_tree(N, M, arity=1, segments=segments)
    assert seconds_on_star(schedule, alpha, beta) == pytest.approx(expected, rel=EXACT)


@each("arity", [2, 3])
def test_kary_tree_shares_the_parents_link(arity):
    """In a full k-ary tree of depth 2 each level takes alpha, and k messages over the link of a parent."""
    N, alpha, beta = 1 + arity + arity**2, 1e-3, 8e-9
    one_way = 2 * (alpha + arity * M * beta)
    builds = {collectives.broadcast_tree: 1, collectives.reduce_tree: 1, collectives.allreduce_tree: 2}
    for build, ways in builds.items():
        assert seconds_on_star(build(N, M, arity=arity), alpha, beta) == pytest.approx(ways * one_way, rel=EXACT)


def test_renamed_ranks_take_as_long():
    turned = np.random.default_rng(3).permutation(8)
    for one in DENSE.values():
        schedule = one.schedule(8, M, **dict.fromkeys(one.needs, 2))
        times = [seconds_on_star(one, 1e-3, 8e-9) for one in (schedule, schedule.embed(turned, 8))]
        assert times[0] == pytest.approx(times[1], rel=EXACT)
