"""Schemes on two levels: dense inside nodes, any one between them; where networks are cut, in which order rings go."""

import itertools

import numpy as np
import pytest

from simnet import Network, choose
from simnet.network import ring_order as rings
from simnet.network.ring_order import ring_order
from simnet.policies import Candidate
from simnet.scenario import load
from simnet.sparsifier_models import SCHEMES, conformance, create, scheme
from simnet.topologies import multi_gpu_nodes, star
from simnet.training.job.job import create_sparsifier, gradient_buckets

LINKS = {"intra_latency": 2e-6, "intra_bandwidth": 1e11, "nic_latency": 5e-5, "nic_bandwidth": 1.25e9}
OVER_NODES = [name for name, one in SCHEMES.items() if "ranks_per_node" in one.option_type.__dataclass_fields__]
BETWEEN = sorted(name for name, one in SCHEMES.items() if not one.traits.by_tensors and name not in OVER_NODES)

FEEDBACK = [one for one in BETWEEN if (made := create(one, 4, 64, layers=(64,))).traits.conserves and made.keeps]


def gradients(workers, parameters, seed=0):
    return np.random.default_rng(seed).standard_normal((workers, parameters)).astype(np.float32)


def on_two_levels(name, workers, parameters, ranks, density=0.1, **options):
    layers = (parameters // 3, parameters - parameters // 3)
    return create(f"two_level/{name}", workers, parameters, density, ranks_per_node=ranks, layers=layers, **options)


def flat(name, workers, parameters, density=0.1, **options):
    layers = (parameters // 3, parameters - parameters // 3)
    return create(name, workers, parameters, density, layers=layers, **options)


def bytes_between(schedule, ranks):
    """Return the bytes that leave each node."""
    columns = schedule.columns()
    src, dst = columns["src"] // ranks, columns["dst"] // ranks
    return np.bincount(src, weights=columns["nbytes"] * (src != dst), minlength=schedule.n_ranks // ranks)


@pytest.mark.parametrize("name", BETWEEN)
def test_one_rank_a_node_is_the_scheme_itself_to_the_bit(name):
    model, same = on_two_levels(name, 4, 240, 1), flat(name, 4, 240)
    network = Network(star(4, latency=1e-4, bandwidth=1e9))
    for step in range(2):
        one, other = (each.exchange(gradients(4, 240, step)) for each in (model, same))
        assert np.array_equal(one.update, other.update)
        assert one.schedule == other.schedule
        assert np.array_equal(network.time(one.schedule).finish, network.time(other.schedule).finish)
        assert np.array_equal(model.residual, same.residual)
        kernels = [
            [(op.method, np.broadcast_to(op.entries, 4).tolist(), op.launches, op.before) for op in made.kernels]
            for made in (one, other)
        ]
        assert kernels[0] == kernels[1]
        for statistic in other.stats:
            assert one.stats[statistic] == pytest.approx(other.stats[statistic], rel=1e-12)


@pytest.mark.parametrize("name", ["dense", "topk", "oktopk", "ef21"])
def test_one_node_is_the_dense_collective(name):
    rows = gradients(4, 240)
    network = Network(multi_gpu_nodes(1, 4, **LINKS))
    one, dense = on_two_levels(name, 4, 240, 4).exchange(rows), flat("dense", 4, 240).exchange(rows)
    assert np.array_equal(one.update, dense.update)
    assert network.time(one.schedule).duration == pytest.approx(network.time(dense.schedule).duration, rel=1e-9)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("ranks", [1, 2, 8])
class TestBytesBetweenNodes:
    def test_of_dense_are_those_of_a_ring_of_nodes(self, nodes, ranks):
        n = 48 * ranks
        sent = bytes_between(
            on_two_levels("dense", nodes * ranks, n, ranks).exchange(gradients(nodes * ranks, n)).schedule, ranks
        )
        assert sent == pytest.approx(2 * (nodes - 1) / nodes * 4 * n)

    def test_of_topk_are_eight_for_each_entry_and_other_node(self, nodes, ranks):
        n = 48 * ranks
        model = on_two_levels("topk", nodes * ranks, n, ranks, 0.25, allgather="ring")
        sent = bytes_between(model.exchange(gradients(nodes * ranks, n)).schedule, ranks)
        assert sent == pytest.approx(8 * n / 4 * (nodes - 1))

    def test_of_oktopk_are_those_between_one_worker_of_each_node(self, nodes, ranks):
        n = 48 * ranks
        rows = gradients(nodes * ranks, n)
        model = on_two_levels("oktopk", nodes * ranks, n, ranks, 0.25)
        means = rows.reshape(nodes, ranks, n).mean(axis=1)
        alone = [
            create("oktopk", nodes, 48, 0.25, seed=part).exchange(means[:, part * 48 : (part + 1) * 48].copy())
            for part in range(ranks)
        ]
        expected = np.sum([one.schedule.bytes_sent() for one in alone], axis=0)
        assert bytes_between(model.exchange(rows).schedule, ranks) == pytest.approx(expected)


@pytest.mark.parametrize("name", FEEDBACK)
def test_what_is_sent_and_what_stays_are_the_gradients(name):
    P, n = 6, 242
    model, given, applied = on_two_levels(name, P, n, 2), np.zeros(n), np.zeros(n)
    for step in range(3):
        rows = gradients(P, n, step)
        given += rows.sum(axis=0, dtype=np.float64)
        applied += P * model.exchange(rows).update.astype(np.float64)
    assert applied + model.residual.sum(axis=0, dtype=np.float64) == pytest.approx(given, abs=1e-5, rel=1e-6)
    # A part stays with its owner alone.
    assert not model.residual[0::2, n // 2 :].any()
    assert not model.residual[1::2, : n // 2].any()


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize(("workers", "ranks", "parameters"), [(6, 2, 241), (4, 4, 3)])
def test_schemes_on_two_levels_keep_the_promises_of_all(name, workers, ranks, parameters):
    batches = [gradients(workers, parameters, step) for step in range(2)]
    options = {} if parameters > 3 else {"layers": (1, 2)}
    conformance.check(
        lambda: create(
            f"two_level/{name}", workers, parameters, 0.1, ranks_per_node=ranks, **({"layers": (80, 161)} | options)
        ),
        batches,
    )


@pytest.mark.parametrize("name", ["dense", "topk", "oktopk", "qsgd"])
def test_three_levels_are_two_levels_of_two_levels(name):
    P, n, L = 8, 240, 2
    three = on_two_levels(name, P, n, [2, 2])
    parts = [on_two_levels(name, P // L, n // L, 2, seed=part) for part in range(L)]
    for step in range(2):
        rows = gradients(P, n, step)
        exchange = three.exchange(rows)
        means = rows.reshape(P // L, L, n).mean(axis=1)
        own = [
            part.exchange(np.ascontiguousarray(half))
            for part, half in zip(parts, np.split(means, 2, axis=1), strict=True)
        ]
        assert exchange.update == pytest.approx(np.concatenate([one.update for one in own]), rel=1e-6)
        for part, one in enumerate(parts):
            kept = L * one.residual
            assert three.residual[part::L, part * n // L : (part + 1) * n // L] == pytest.approx(kept, rel=1e-6)
        between = sum(bytes_between(one.schedule, 2) for one in own)
        assert bytes_between(exchange.schedule, 4) == pytest.approx(between)


def test_parts_meet_the_ranks_of_their_own_place():
    schedule = on_two_levels("topk", 6, 60, 2).exchange(gradients(6, 60)).schedule
    columns = schedule.columns()
    across = columns["src"] // 2 != columns["dst"] // 2
    assert across.any()
    assert np.array_equal(columns["src"][across] % 2, columns["dst"][across] % 2)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ranks_per_node": 4}, "must divide the 6 workers"),
        ({"ranks_per_node": "auto"}, "need the network of a job"),
        ({"ranks_per_node": 0}, "ranks_per_node must be >= 1|at least 1|ranks_per_node"),
        ({"ranks_per_node": 2, "node_order": [0, 1]}, "node_order must have each of 3 nodes, got 2"),
        ({"ranks_per_node": 2, "node_order": [0, 1, 1]}, "each node once"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options, error):
    with pytest.raises(ValueError, match=error):
        create("two_level/topk", 6, 60, 0.1, **options)


@pytest.mark.parametrize("name", sorted(set(SCHEMES) - set(BETWEEN)))
def test_schemes_that_work_on_tensors_are_refused(name):
    with pytest.raises(ValueError, match=r"rows and columns of tensors|goes over nodes itself"):
        scheme(f"two_level/{name}")


class TestRingOrder:
    @staticmethod
    def brute(seconds):
        tours = ((0, *rest) for rest in itertools.permutations(range(1, len(seconds))))
        return min(max(seconds[a, b] for a, b in itertools.pairwise((*one, 0))) for one in tours)

    @staticmethod
    def connected(seconds):
        """Return the smallest time within which every rank reaches every other one over others."""
        P = len(seconds)
        within = (np.linalg.matrix_power((seconds <= one) | np.eye(P, dtype=bool), P) for one in np.unique(seconds))
        return next(one for one, near in zip(np.unique(seconds), within, strict=True) if near.all())

    @pytest.mark.parametrize("tried", [rings.MOST_TRIED, 0])
    @pytest.mark.parametrize("seed", range(12))
    def test_of_few_is_that_of_brute_force(self, seed, tried, monkeypatch):
        monkeypatch.setattr(rings, "MOST_TRIED", tried)
        draws = np.random.default_rng(seed)
        P = 2 + seed % 7
        places = draws.random((P, 2))
        seconds = np.hypot(*(places[:, np.newaxis] - places).T) * draws.uniform(0.8, 1.2, (P, P))
        found = ring_order(seconds)
        assert sorted(found.order) == list(range(P))
        assert found.slowest == pytest.approx(self.brute(seconds))
        assert found.bound == (found.slowest if tried else self.connected(seconds)) <= found.slowest
        taken = [seconds[a, b] for a, b in itertools.pairwise((*found.order, found.order[0]))]
        assert max(taken) == found.slowest

    def test_sites_that_interleave_are_gone_through_one_by_one(self):
        site = np.arange(12) % 3
        far = np.array([[0, 1, 9], [1, 0, 1], [9, 1, 0.0]])[site][:, site] + 0.1
        found = ring_order(np.where(np.eye(12, dtype=bool), 0, far + 0.0))
        assert found.slowest == found.bound == pytest.approx(1.1)

    @pytest.mark.parametrize("shape", [(0, 0), (2, 3), (3,)])
    def test_what_is_no_square_matrix_is_refused(self, shape):
        with pytest.raises(ValueError, match="must be a square matrix, got shape"):
            ring_order(np.zeros(shape))


class TestJobs:
    def test_auto_takes_the_nodes_of_the_network(self):
        job = load("two_level_nodes").build().job
        (bucket,) = gradient_buckets(job.source, job.overlap)
        model = create_sparsifier(Candidate("two", "two_level/topk"), bucket, job)
        assert (model.ranks, model.nodes) == (4, 4)

    def test_a_grid_weighs_cuts_of_the_network(self):
        found = choose(
            "two_level_nodes",
            schemes=["two_level/topk", "topk"],
            grid=["two_level/topk.ranks_per_node=2,4"],
            set=["job.iterations=1"],
        )
        two, four = found.rows
        assert (two["ranks_per_node"], four["ranks_per_node"]) == (2, 4)
        assert four["times_s"]["two_level/topk"] < two["times_s"]["two_level/topk"]
        assert two["times_s"]["topk"] == four["times_s"]["topk"]
        assert four["exchange"] == "two_level/topk"
