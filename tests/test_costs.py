"""Closed forms: the composition the paper names, special values, monotony, arg-min, refusals, broadcasting, speed."""

import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet import collectives, costs

DENSE = (
    costs.parameter_server,
    costs.ring_allreduce,
    costs.tree_allreduce,
    costs.broadcast,
    costs.allgather,
    costs.recursive_doubling_allreduce,
    costs.rabenseifner_allreduce,
    costs.ring_reduce_scatter,
    costs.ring_allgather,
    costs.bruck_allgather,
    costs.pairwise_alltoall,
)
SPARSE = (costs.artopk_ring, costs.artopk_tree, costs.topk_allgather)

alphas = st.floats(0, 1, allow_subnormal=False)
betas = st.floats(1e-12, 1e-3)
sizes = st.floats(0, 1e10, allow_subnormal=False)
densities = st.floats(1e-6, 1)
workers = st.integers(1, 2000)


def lockstep(schedule, alpha, beta):
    """Time of a schedule on a star if every rank waits for all others after each round.

    The messages of a round take the latency once and share the busiest host link.
    """
    total = 0.0
    for one in schedule.rounds:
        busiest = max(np.bincount(ranks, weights=one.nbytes).max() for ranks in (one.src, one.dst))
        total += alpha + float(busiest) * beta
    return total


class TestPaper:
    @given(alphas, betas, sizes, densities, workers)
    def test_sparse_formulas_are_the_sums_the_paper_names(self, alpha, beta, M, c, N):
        indices = costs.broadcast(alpha, beta, M * c, N)
        expected = {
            costs.artopk_ring: indices + costs.ring_allreduce(alpha, beta, M * c, N),
            costs.artopk_tree: indices + costs.tree_allreduce(alpha, beta, M * c, N),
            costs.topk_allgather: costs.allgather(alpha, beta, 2 * M * c, N),
        }
        for cost, seconds in expected.items():
            assert cost(alpha, beta, M, c, N) == pytest.approx(seconds, rel=1e-12, abs=1e-300)
        assert costs.var_overhead(alpha, beta, N) == costs.allgather(alpha, beta, 4, N)

    def test_table_i_by_hand(self):
        alpha, beta, M, N = 3.0, 0.5, 10.0, 8
        assert costs.parameter_server(alpha, beta, M, N) == 2 * 3 + 2 * 7 * 10 * 0.5
        assert costs.ring_allreduce(alpha, beta, M, N) == 2 * 7 * 3 + 2 * 7 / 8 * 10 * 0.5
        assert costs.tree_allreduce(alpha, beta, M, N) == 2 * 3 * 3 + 2 * 3 * 10 * 0.5
        assert costs.broadcast(alpha, beta, M, N) == 3 * 3 + 3 * 10 * 0.5
        assert costs.allgather(alpha, beta, M, N) == 3 * 3 + 7 * 10 * 0.5

    def test_log_is_real_valued(self):
        assert costs.broadcast(1.0, 0.0, 0.0, 6) == pytest.approx(math.log2(6))

    @pytest.mark.parametrize("cost", DENSE)
    def test_one_worker_costs_nothing(self, cost):
        assert cost(1.0, 1.0, 1.0, 1) == 0

    @pytest.mark.parametrize("cost", SPARSE)
    def test_one_worker_costs_nothing_sparse(self, cost):
        assert cost(1.0, 1.0, 1.0, 0.5, 1) == 0
        assert costs.var_overhead(1.0, 1.0, 1) == 0

    @given(st.tuples(alphas, alphas), st.tuples(betas, betas), st.tuples(sizes, sizes), st.tuples(workers, workers))
    def test_costs_rise_with_every_argument(self, alpha, beta, M, N):
        low, high = ([order(pair) for pair in (alpha, beta, M, N)] for order in (min, max))
        for cost in DENSE:
            assert cost(*low) <= cost(*high) * (1 + 1e-12)


class TestLockstep:
    """On a star in lock-step every textbook schedule takes what its formula says."""

    PAIRS = (
        (costs.parameter_server, collectives.parameter_server),
        (costs.ring_allreduce, collectives.allreduce_ring),
        (costs.tree_allreduce, collectives.allreduce_tree),
        (costs.broadcast, collectives.broadcast_binomial),
        (costs.broadcast, collectives.reduce_binomial),
        (costs.allgather, collectives.allgather_recursive_doubling),
        (costs.recursive_doubling_allreduce, collectives.allreduce_recursive_doubling),
        (costs.rabenseifner_allreduce, collectives.allreduce_rabenseifner),
        (costs.ring_reduce_scatter, collectives.reduce_scatter_ring),
        (costs.ring_allgather, collectives.allgather_ring),
        (costs.bruck_allgather, collectives.allgather_bruck),
        (costs.pairwise_alltoall, collectives.alltoall_pairwise),
    )

    @pytest.mark.parametrize("N", [1, 2, 4, 8, 16, 32, 64])
    @pytest.mark.parametrize(("cost", "build"), PAIRS)
    def test_powers_of_two(self, cost, build, N):
        for alpha, beta, M in ((1e-3, 8e-9, 1e6), (0.0, 1e-9, 12345.0), (5e-2, 0.0, 7.0), (1e-3, 8e-9, 0.0)):
            assert lockstep(build(N, M), alpha, beta) == pytest.approx(cost(alpha, beta, M, N), rel=1e-12)

    @pytest.mark.parametrize("N", range(1, 18))
    @pytest.mark.parametrize(
        ("cost", "build"),
        [pair for pair in PAIRS if pair[0].__name__.split("_")[0] in {"parameter", "ring", "bruck", "pairwise"}],
    )
    def test_every_number_of_workers(self, cost, build, N):
        assert lockstep(build(N, 1e6), 1e-3, 8e-9) == pytest.approx(cost(1e-3, 8e-9, 1e6, N), rel=1e-12)


class TestChoice:
    @given(alphas, betas, sizes, densities, workers)
    def test_is_the_first_minimum(self, alpha, beta, M, c, N):
        seconds = [float(cost(alpha, beta, M, c, N)) for cost in SPARSE]
        best = costs.best_collective(alpha, beta, M, c, N)
        assert best.choice == seconds.index(min(seconds))
        assert best.seconds == min(seconds)
        assert best.label == costs.SPARSE_COLLECTIVES[int(best.choice)]

    def test_of_equals_the_first_wins(self):
        assert costs.best_collective(1.0, 1.0, 1.0, 1.0, 1).label == "ART-ring"
        # Two workers without latency: ring and all-gather both take 2 M c beta.
        assert costs.best_collective(0.0, 0.3, 7.0, 0.1, 2).label == "ART-ring"

    @given(st.floats(1e-6, 1), betas, st.floats(1, 1e10), densities, st.integers(3, 2000))
    def test_inequalities_of_eqn_5(self, alpha, beta, M, c, N):
        ring, tree, gather = (float(cost(alpha, beta, M, c, N)) for cost in SPARSE)
        for first, second, threshold in (
            (ring, tree, costs.ring_over_tree),
            (ring, gather, costs.ring_over_allgather),
            (tree, gather, costs.tree_over_allgather),
        ):
            if abs(first - second) > 1e-9 * max(first, second):
                assert (first < second) == (alpha / beta < threshold(M, c, N))

    def test_eqn_5_at_the_edges(self):
        # Factors of M c at N = 8, and the edge cases at few workers.
        np.testing.assert_allclose(costs.ring_over_tree(1, 1, 8), 0.53125)
        np.testing.assert_allclose(costs.ring_over_allgather(1, 1, 8), 0.66071, atol=5e-6)
        np.testing.assert_allclose(costs.tree_over_allgather(1, 1, 8), 0.83333, atol=5e-6)
        assert costs.ring_over_tree(1, 1, 2) == np.inf
        assert costs.ring_over_allgather(1, 1, 2) == 0
        assert (costs.tree_over_allgather(1, 1, [2, 3, 4]) <= 0).all()

    @given(alphas, betas, sizes, densities)
    def test_few_workers(self, alpha, beta, M, c):
        ring, tree, gather = (cost(alpha, beta, M, c, 2) for cost in SPARSE)
        assert gather <= ring * (1 + 1e-12)
        assert ring <= tree * (1 + 1e-12)
        for N in (3, 4, 5, 6):
            ring, tree, gather = (cost(alpha, beta, M, c, N) for cost in SPARSE)
            assert min(ring, gather) <= tree * (1 + 1e-12)


def test_step_time_and_whether_compression_pays():
    assert costs.step_time(1.0, 2.0) == 3.0
    assert costs.step_time(1.0, 2.0, 4.0, 8.0) == 15.0
    np.testing.assert_array_equal(costs.compression_pays([1.0, 1.0, 1.0], [0.5, 1.0, 2.0], 2.0), [True, False, False])


class TestArrays:
    def test_every_argument_broadcasts(self):
        rng = np.random.default_rng(1)
        alpha, beta = rng.random((5, 1, 1, 1, 1)), rng.random((4, 1, 1, 1))
        M, c, N = rng.random((3, 1, 1)), rng.random((2, 1)) * 0.9 + 0.05, np.array([1, 2, 7, 64])
        for cost in SPARSE:
            grid = cost(alpha, beta, M, c, N)
            assert grid.shape == (5, 4, 3, 2, 4)
            for index in np.ndindex(grid.shape):
                a, b, m, d, n = index
                scalars = (alpha[a, 0, 0, 0, 0], beta[b, 0, 0, 0], M[m, 0, 0], c[d, 0], N[n])
                assert grid[index] == pytest.approx(cost(*scalars), rel=1e-12)
        for cost in DENSE:
            assert cost(alpha, beta, M, N).shape == (5, 4, 3, 1, 4)
        assert costs.best_collective(alpha, beta, M, c, N).label.shape == (5, 4, 3, 2, 4)

    def test_scalars_give_numpy_floats(self):
        for cost in DENSE:
            assert isinstance(cost(1, 1, 1, 2), np.float64)
        for cost in SPARSE:
            assert isinstance(cost(1, 1, 1, 1, 2), np.float64)

    def test_arguments_are_left_alone(self):
        M = np.array([1.0, 2.0])
        costs.ring_allreduce(1.0, 1.0, M, 4)[0] = 99.0
        np.testing.assert_array_equal(M, [1.0, 2.0])

    def test_a_million_cells(self):
        rng = np.random.default_rng(2)
        cells = 10**6
        start = time.perf_counter()
        best = costs.best_collective(
            rng.random(cells), rng.random(cells), 1e6, rng.random(cells) * 0.9 + 0.1, rng.integers(1, 100, cells)
        )
        assert best.choice.shape == (cells,)
        assert time.perf_counter() - start < 5


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("alpha", -1.0, "alpha must be finite and >= 0, got -1"),
            ("alpha", np.nan, "alpha must be finite and >= 0, got nan"),
            ("beta", -1e-9, "beta must be finite and >= 0, got -1e-09"),
            ("beta", np.inf, "beta must be finite and >= 0, got inf"),
            ("M", [1.0, -2.0], "M must be finite and >= 0, got -2"),
            ("M", [1.0, np.nan], "M must be finite and >= 0, got nan"),
            ("c", 0.0, "c must be in (0, 1], got 0"),
            ("c", 1.01, "c must be in (0, 1], got 1.01"),
            ("c", np.nan, "c must be in (0, 1], got nan"),
            ("N", 0, "N must be finite and >= 1, got 0"),
            ("N", [2, 0.5], "N must be finite and >= 1, got 0.5"),
            ("N", np.nan, "N must be finite and >= 1, got nan"),
            ("N", np.inf, "N must be finite and >= 1, got inf"),
        ],
    )
    def test_values_outside(self, name, value, message):
        arguments = {"alpha": 1.0, "beta": 1.0, "M": 1.0, "c": 0.5, "N": 4, name: value}
        for cost in (*SPARSE, costs.best_collective):
            with pytest.raises(ValueError, match=re.escape(message)):
                cost(**arguments)
        if name != "c":
            del arguments["c"]
            for cost in DENSE:
                with pytest.raises(ValueError, match=re.escape(message)):
                    cost(**arguments)

    def test_thresholds_need_two_workers(self):
        for threshold in (costs.ring_over_tree, costs.ring_over_allgather, costs.tree_over_allgather):
            with pytest.raises(ValueError, match="N must be finite and >= 2, got 1"):
                threshold(1.0, 0.5, 1)
