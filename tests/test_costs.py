"""Closed forms: printed formulas, the messages they stand for, special values, monotony, arg-min, refusals, speed."""

import csv
import inspect
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from simnet.collectives import registry
from simnet.cost_models import costs

DENSE = tuple(dict.fromkeys(one.cost for one in registry.built_in()))
SPARSE = (costs.artopk_ring, costs.artopk_tree, costs.topk_allgather)

alphas = st.floats(0, 1, allow_subnormal=False)
betas = st.floats(1e-12, 1e-3)
sizes = st.floats(0, 1e10, allow_subnormal=False)
densities = st.floats(1e-6, 1)
workers = st.integers(1, 2000)


class TestPaper:
    @given(alphas, betas, sizes, densities, st.integers(0, 11))
    def test_sparse_formulas_are_the_sums_the_paper_names(self, alpha, beta, M, c, levels):
        N = 2**levels
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
        assert costs.var_overhead(1.0, 1.0, 1) == 0


class TestGroups:
    def test_groups_of_a_hierarchy(self):
        # Trees of eight, a ring of two leaders with halves; all are one group if they are fewer.
        assert costs.hierarchical_allreduce(2.0, 1.0, 3.0, 16) == 2 * 3 * (2 + 3) + 2 * (2 + 1.5)
        assert costs.hierarchical_allreduce(2.0, 1.0, 3.0, 4) == 2 * 2 * (2 + 3)


class TestChoice:
    def test_of_equals_the_first_wins(self):
        assert costs.best_collective(1.0, 1.0, 1.0, 1.0, 1).label == "ART-ring"
        # Two workers without latency: ring and all-gather both take 2 M c beta.
        assert costs.best_collective(0.0, 0.3, 7.0, 0.1, 2).label == "ART-ring"


class TestArrays:
    def test_arguments_are_left_alone(self):
        M = np.array([1.0, 2.0])
        costs.ring_allreduce(1.0, 1.0, M, 4)[0] = 99.0
        np.testing.assert_array_equal(M, [1.0, 2.0])


# Sparsifiers: functions of (alpha, beta, M, c, N), all else at its default.
BY_DENSITY = {
    **{one.__name__: one for one in SPARSE},
    **{
        name: getattr(costs, name)
        for name in (
            *("arctopk", "cltk", "ef21", "exdyna", "gaussiank", "gtopk", "gtopk_reduce", "hardthreshold", "oktopk"),
            *("oktopk_balance_and_allgatherv", "oktopk_split_and_reduce", "spardl", "threshold_allgather", "topka"),
            *("topkdsa", "uniontopk"),
        )
    },
    "deft": lambda *arguments: costs.deft(*arguments, layers=12),
    "spardl_bsag": lambda *arguments: costs.spardl_bsag(*arguments, d=1),
    "spardl_rsag": lambda *arguments: costs.spardl_rsag(*arguments, d=1),
    "sparse_allreduce_bound": lambda alpha, *arguments: costs.sparse_allreduce_bound(*arguments),
    **{
        f"{name} {end}": lambda *arguments, name=name, end=end: getattr(getattr(costs, name)(*arguments), end)
        for name in ("sparcml_bounds", "topkdsa_bounds")
        for end in ("lower", "upper")
    },
}
QUANTISED = (
    *(costs.fp16, costs.powersgd, costs.qsgd, costs.signsgd, costs.signsgd_allgather),
    *(costs.chunked_allgather, costs.muloco, costs.int8_ring, costs.onebit_allreduce, costs.omnireduce),
    *(costs.thc, costs.two_hop_reduce),
)
BY_LENGTH = {one.__name__: one for one in (*DENSE, *QUANTISED)}
PUBLIC = {
    name: one
    for name, one in vars(costs).items()
    if "simnet" in getattr(one, "__module__", "") and not inspect.isclass(one)
}


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
        dense = [argument for key, argument in arguments.items() if key != "c"]
        calls = [(cost, arguments.values()) for cost in (*BY_DENSITY.values(), costs.best_collective)]
        calls += [(cost, dense) for cost in BY_LENGTH.values() if name != "c"]
        for cost, given_values in calls:
            if cost is not BY_DENSITY["sparse_allreduce_bound"] or name != "alpha":
                with pytest.raises(ValueError, match=re.escape(message)):
                    cost(*given_values)


def log2(P):
    return int(P).bit_length() - 1


def ceil_log2(P):
    return (int(P) - 1).bit_length()


# A printed formula: method, latency and words as printed, and for each function what they come to for P, n, k, and the
# function. Words are of 4 bytes.
SPLIT_AND_REDUCE = (lambda P, n, k: (P - 1, 2 * k * (P - 1) / P), costs.oktopk_split_and_reduce)
BALANCE = (lambda P, n, k: (P + 2 * math.log2(P), 4 * k * (P - 1) / P), costs.oktopk_balance_and_allgatherv)
IN_ALL = (lambda P, n, k: (2 * P + 2 * math.log2(P), 6 * k * (P - 1) / P), costs.oktopk)
TOPKDSA_DENSE = (
    lambda P, n, k: (P - 1 + math.log2(P), (2 * k + n) * (P - 1) / P), BY_DENSITY["topkdsa_bounds upper"]
)  # fmt: skip
OKTOPK = [
    (
        "Dense, Rabenseifner (2^x)", "2*log2(P)", "2*n*(P-1)/P",
        (
            lambda P, n, k: (2 * log2(P), 2 * n * (P - 1) / P),
            lambda a, b, M, c, P: costs.rabenseifner_allreduce(a, b, M, P),
        ),
    ),
    (
        "Dense, ring", "2*(P-1)", "2*n*(P-1)/P",
        (lambda P, n, k: (2 * (P - 1), 2 * n * (P - 1) / P), lambda a, b, M, c, P: costs.ring_allreduce(a, b, M, P)),
    ),
    ("TopkA (allgather)", "log2(P)", "2*k*(P-1)", (lambda P, n, k: (log2(P), 2 * k * (P - 1)), costs.topka)),
    (
        "TopkDSA (split + allgatherv, SparCML SSAR/DSAR_Split_allgather)",
        "(P-1)+log2(P) [+log2(P) for the size allgather]",
        "2*k*(P-1)/P + A, A = 2*k*(P-1)/P if supports coincide ... n*(P-1)/P if dense; "
        "i.e. [4k(P-1)/P ; (2k+n)(P-1)/P]",
        (lambda P, n, k: (P - 1 + log2(P), 4 * k * (P - 1) / P), BY_DENSITY["topkdsa_bounds lower"]),
        TOPKDSA_DENSE,
    ),
    (
        "TopkDSA (SparCML SSAR_Recursive_double)", "log2(P)",
        "2*k*log2(P) (coinciding supports) ... 2*k*(P-1) (disjoint supports, until switch to dense n per step)",
        (lambda P, n, k: (log2(P), 2 * k * log2(P)), BY_DENSITY["sparcml_bounds lower"]),
        (
            lambda P, n, k: (log2(P), sum(min(2 * k * 2**step, n) for step in range(log2(P)))),
            BY_DENSITY["sparcml_bounds upper"],
        ),
    ),
    (
        "gTopk, paper of gTopk", "log2(P)", "2*k*log2(P)",
        (lambda P, n, k: (log2(P), 2 * k * log2(P)), costs.gtopk_reduce),
    ),
    (
        "gTopk, reduce tree + broadcast tree (as coded)", "2*log2(P)",
        "4*k*log2(P) (8*k*log2(P) 4-byte words as coded: float64 pairs)",
        (lambda P, n, k: (2 * log2(P), 4 * k * log2(P)), costs.gtopk),
        (lambda P, n, k: (2 * log2(P), 8 * k * log2(P)), lambda *arguments: costs.gtopk(*arguments, entry_bytes=16)),
    ),
    (
        "Gaussiank", "2*log2(P) (size allgather + data allgatherv) [3*log2(P) as coded: idx and val separate]",
        "2*k_est*(P-1)",
        (
            lambda P, n, k: (2 * log2(P), 2 * 1.7 * k * (P - 1)),
            lambda a, b, M, c, P: costs.gaussiank(a, b, M, c, P, selected=1.7 * c * M / 4),
        ),
        (
            lambda P, n, k: (3 * log2(P), 2 * k * (P - 1)),
            lambda *arguments: costs.threshold_allgather(*arguments, gathers=3),
        ),
    ),
    ("Ok-Topk split-and-reduce (Eq.1)", "P-1", "2*k*(P-1)/P", SPLIT_AND_REDUCE),
    ("Ok-Topk balance-and-allgatherv (Eq.2)", "<= P+2*log2(P)", "<= 4*k*(P-1)/P", BALANCE),
    ("Ok-Topk total (Eq.3)", "<= 2*P+2*log2(P)", "<= 6*k*(P-1)/P", IN_ALL),
    (
        "Lower bound (Theorem 3.1)", "", ">= 2*k*(P-1)/P",
        (lambda P, n, k: (0, 2 * k * (P - 1) / P), BY_DENSITY["sparse_allreduce_bound"]),
    ),
]  # fmt: skip
SPARDL = [
    (
        "SparDL d=1", "2*ceil(log2 P)", "4k(P-1)/P",
        (lambda P, n, k: (2 * ceil_log2(P), 4 * k * (P - 1) / P), costs.spardl),
    ),
    (
        "SparDL + B-SAG, d teams, T=P/d", "2*ceil(log2 T)+ceil(log2 d)",
        "2k(P-d)/P [SRS] + 2h(d-1) [SAG] + <=2k(P-d)/P [AG]; h>=k/P (no coded upper cap; k*d/P is the natural one)",
        (
            lambda P, n, k: (2 * ceil_log2(P // 2) + 1, 2 * k * (P - 2) / P + 2 * (1.3 * k / P) + 2 * k * (P - 2) / P),
            lambda a, b, M, c, P: costs.spardl_bsag(a, b, M, c, P, d=2, h=1.3 * c * M / 4 / P),
        ),
    ),
    (
        "SparDL + R-SAG, d=2^x teams", "2*ceil(log2(P/d))+log2 d", "4k(P-d)/P + 2*(k*d/P)*log2 d",
        (
            lambda P, n, k: (2 * ceil_log2(P // 2) + 1, 4 * k * (P - 2) / P + 2 * (k * 2 / P)),
            lambda *arguments: costs.spardl_rsag(*arguments, d=2),
        ),
    ),
    (
        "TopkA", "ceil(log2 P)", "2k(P-1)",
        (
            lambda P, n, k: (ceil_log2(P), 2 * k * (P - 1)),
            lambda a, b, M, c, P: costs.bruck_allgather(a, b, 2 * c * M, P),
        ),
    ),
    ("TopkDSA", "not established", "between 4k(P-1)/P and (2k+n)(P-1)/P", TOPKDSA_DENSE),
    ("gTopk", "2*log2 P", "4k*log2 P", (lambda P, n, k: (2 * log2(P), 4 * k * ceil_log2(P)), costs.gtopk)),
    ("Ok-Topk split&reduce", "(P-1)", "<=2k(P-1)/P", SPLIT_AND_REDUCE),
    ("Ok-Topk balance&allgatherv", "P+2log2 P", "<=4k(P-1)/P", BALANCE),
    ("Ok-Topk total", "2P+2log2 P", "<=6k(P-1)/P", IN_ALL),
]  # fmt: skip


class TestPrintedFormulas:
    @pytest.mark.parametrize("table", [OKTOPK, SPARDL], ids=["oktopk", "spardl"])
    @each("n, c", [(10**6, 0.01), (14_728_266, 0.02), (4096, 0.25)])
    def test_of_oktopk_spardl_and_their_rivals(self, table, n, c):
        numbers = (2, 4, 8, 32, 256) if table is OKTOPK else (2, 4, 6, 14, 64)
        for (printed, cost), P in itertools.product([one for row in table for one in row[3:]], numbers):
            messages, words = printed(P, n, c * n)
            for alpha, beta in ((1e-3, 0.0), (0.0, 1e-9), (2e-3, 8e-9)):
                assert cost(alpha, beta, 4 * n, c, P) == pytest.approx(messages * alpha + 4 * words * beta, rel=1e-12)

    @pytest.mark.parametrize(("name", "table"), [("oktopk", OKTOPK), ("spardl", SPARDL)])
    def test_the_tables_are_complete_and_as_printed(self, shared, name, table):
        with (shared / "papers" / "data" / f"{name}_cost_formulas.csv").open(encoding="utf-8", newline="") as file:
            printed = [tuple(row)[:3] for row in csv.reader(file)][1:]
        assert [row[:3] for row in table] == printed

    @given(alphas, betas, sizes, densities, workers, st.floats(0, 1e6), st.floats(0, 1e6))
    def test_of_exdyna_on_rings(self, alpha, beta, M, c, n, kmax, U):
        expected = (
            ((n - 1) * alpha + 8 * (n - 1) * beta)
            + ((n - 1) * alpha + 8 * (n - 1) * kmax * beta)
            + (2 * (n - 1) * alpha + 2 * (n - 1) / n * 4 * U * beta)
        )
        for cost in (costs.exdyna, costs.hardthreshold):
            assert cost(alpha, beta, M, c, n, longest=kmax, union=U) == pytest.approx(expected, rel=1e-12)
        bins = log2(n) * alpha + 4 * (n + 15) * ceil_log2(n) * beta
        deft = costs.deft(alpha, beta, M, c, n, layers=15, longest=kmax, union=U)
        assert deft == pytest.approx(expected + bins, rel=1e-12)


class TestOrder:
    """Volumes and latencies of the schemes as they stand to each other."""

    @given(st.floats(1, 1e10), densities, workers)
    def test_nothing_moves_less_than_the_bound_and_oktopk_no_more_than_three_times_that(self, M, c, N):
        bound = costs.sparse_allreduce_bound(1, M, c, N)
        oktopk = costs.oktopk(0, 1, M, c, N)
        assert oktopk == pytest.approx(3 * bound)
        assert oktopk <= 6 * (c * M / 4) * 4
        for name in ("topka", "topkdsa", "gtopk", "spardl", "gaussiank"):
            if c <= 0.5:
                assert BY_DENSITY[name](0, 1, M, c, N) >= bound * (1 - 1e-12)

    @given(alphas, betas, sizes, densities, workers, st.floats(0, 1))
    def test_bounds_are_in_order_and_hold_what_lies_between(self, alpha, beta, M, c, N, share):
        for bounds in (costs.topkdsa_bounds, costs.sparcml_bounds):
            lower, upper = bounds(alpha, beta, M, c, N)
            assert lower <= upper * (1 + 1e-12)
        k, n = c * M / 4, M / 4
        lower, upper = costs.topkdsa_bounds(alpha, beta, M, c, N)
        between = costs.topkdsa(alpha, beta, M, c, N, union=k + share * (min(N * k, n) - k))
        assert lower * (1 - 1e-12) <= between <= upper * (1 + 1e-12)
        volume = costs.sparcml_bounds(0, 1, M, c, N).upper
        # Between powers of two the rounds are a fraction, whose bytes are at most those of the next power of two.
        rounds_of = 1 << (N - 1).bit_length()
        assert volume <= min(2 * k * (rounds_of - 1), n * math.log2(N)) * 4 * (1 + 1e-9) + 1e-6


class TestEvery:
    def test_every_function_is_listed_here(self):
        listed = {name.split()[0] for name in (*BY_DENSITY, *BY_LENGTH)}
        others = {"best_collective", "fill_in", "var_overhead"}
        assert PUBLIC.keys() == listed | others
        assert all(map(inspect.getdoc, PUBLIC.values()))

    @pytest.mark.parametrize("name", BY_DENSITY)
    def test_one_worker_costs_nothing_and_more_of_anything_costs_more(self, name):
        cost = BY_DENSITY[name]
        assert cost(1.0, 1.0, 4000.0, 0.1, 1) == 0
        rng = np.random.default_rng(0)
        alpha, beta, M, c = rng.random((4, 50)) * 0.9 + 0.05
        N = 2 ** rng.integers(0, 10, 50)
        base = cost(alpha, beta, 1e6 * M, c, N)
        for more in ((2, 1, 1, 1, 1), (1, 2, 1, 1, 1), (1, 1, 2, 1, 1), (1, 1, 1, 1.05, 1), (1, 1, 1, 1, 2)):
            arguments = (one * factor for one, factor in zip((alpha, beta, 1e6 * M, c, N), more, strict=True))
            assert (cost(*arguments) >= base * (1 - 1e-12)).all()

    @pytest.mark.parametrize("name", BY_DENSITY)
    def test_arguments_broadcast_and_scalars_give_numpy_floats(self, name):
        cost = BY_DENSITY[name]
        assert isinstance(cost(1, 1, 4000, 0.5, 2), np.float64)
        rng = np.random.default_rng(1)
        alpha, beta = rng.random((2, 1, 1, 1, 1)), rng.random((3, 1, 1, 1))
        M, c, N = 1e4 * rng.random((2, 1, 1)), rng.random((2, 1)) * 0.9 + 0.05, np.array([1, 2, 8])
        grid = cost(alpha, beta, M, c, N)
        assert grid.shape == ((2, 3, 2, 2, 3) if name != "sparse_allreduce_bound" else (3, 2, 2, 3))
        for index in np.ndindex(grid.shape):
            a, b, m, d, n = index if len(index) == 5 else (0, *index)
            scalars = (alpha[a, 0, 0, 0, 0], beta[b, 0, 0, 0], M[m, 0, 0], c[d, 0], N[n])
            assert grid[index] == pytest.approx(cost(*scalars), rel=1e-12)

    @pytest.mark.parametrize("cost", PUBLIC.values(), ids=PUBLIC)
    def test_every_further_argument_is_checked_and_named(self, cost):
        usual = {"alpha": 1.0, "beta": 1.0, "M": 4000.0, "c": 0.1, "N": 8}
        taken = inspect.signature(cost).parameters
        given = {name: usual.get(name, 1) for name, one in taken.items() if name in usual or one.default is one.empty}
        for name, value in itertools.product(taken.keys() - usual, (-1, np.nan, np.inf, [1, -1])):
            said = f"^{name} must be finite and >= [01], got {value[1] if isinstance(value, list) else value}"
            with pytest.raises(ValueError, match=said):
                cost(**given | {name: value})

    @pytest.mark.parametrize(
        ("cost", "teams"), [(costs.spardl_bsag, 3), (costs.spardl_bsag, 16), (costs.spardl_rsag, 5)]
    )
    def test_teams_divide_the_workers(self, cost, teams):
        with pytest.raises(ValueError, match=f"d must divide the number of workers, got {teams} teams of 8"):
            cost(1.0, 1.0, 4000.0, 0.1, 8, d=teams)

    def test_teams_of_recursive_exchange_are_powers_of_two(self):
        with pytest.raises(ValueError, match="d must be a power of two, got 3"):
            costs.spardl_rsag(1.0, 1.0, 4000.0, 0.1, 6, [1, 3])
        with pytest.raises(ValueError, match="d must be a power of two, got 3"):
            costs.spardl_rsag(1.0, 1.0, 4000.0, 0.1, 12, [2, 4, 3, 6])
