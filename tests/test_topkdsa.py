"""TopkDSA: brute-force references of all algorithms, bytes, fill-in, when it turns dense, lost entries.

The golden runs of the released code stand with those of Ok-Topk.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradients import KINDS, f32, gradients_of
from simnet.sparsifier_models import create
from simnet.sparsifier_models.selection import top_k

ALGORITHMS = ["split", "recursive_doubling", "split_allgather", "dense_allgather"]
EPS = float(np.finfo(np.float32).eps)


def supported(supports, parameters):
    """One row per worker, with numbers of a size at its support and next to nothing elsewhere."""
    rows = np.random.default_rng(0).uniform(1e-6, 1e-5, (len(supports), parameters))
    for row, support in zip(rows, supports, strict=True):
        row[support] = 1 + row[support] * 1e4
    return f32(rows)


# What comes out


@given(
    st.sampled_from(ALGORITHMS), st.integers(1, 17), st.integers(1, 1000), st.sampled_from([1e-9, 0.02, 0.3, 1.0]),
    st.sampled_from(KINDS), st.integers(0, 999),
)  # fmt: skip
def test_the_update_is_the_mean_of_all_selections(algorithm, workers, parameters, density, kind, seed):
    gradients = gradients_of(kind, workers, parameters, seed)
    model = create("topkdsa", workers, parameters, density, algorithm=algorithm)
    exchange = model.exchange(gradients)
    expected, residual, union = np.zeros(parameters), gradients.copy(), set()
    for row, kept in zip(gradients, residual, strict=True):
        chosen = np.argsort(-np.abs(row), kind="stable")[: max(1, int(density * parameters))]
        expected[chosen] += row[chosen].astype(np.float64) / workers
        kept[chosen] = 0
        union |= set(chosen.tolist())
    allowed = (workers + 1) * EPS * np.abs(gradients.astype(np.float64)).mean(0) + 1e-44
    assert (np.abs(exchange.update - expected) <= allowed).all()
    np.testing.assert_array_equal(model.residual, residual)
    assert exchange.union == len(union)
    assert exchange.stats["global_nnz"] == np.count_nonzero(exchange.update)


@given(st.integers(1, 17), st.integers(1, 200), st.sampled_from(ALGORITHMS[:1] + ALGORITHMS[2:]), st.integers(0, 99))
def test_splits_are_summed_from_the_owner_backwards(workers, parameters, algorithm, seed):
    gradients = gradients_of("heavy", workers, parameters, seed)
    update = create("topkdsa", workers, parameters, 0.4, algorithm=algorithm).exchange(gradients).update
    size, expected = parameters // workers, np.zeros(parameters, dtype=np.float32)
    picked = np.zeros_like(gradients)
    for row, into in zip(gradients, picked, strict=True):
        chosen = top_k(row, max(1, int(0.4 * parameters)))
        into[chosen] = row[chosen]
    for index in range(parameters):
        owner = min(index // size, workers - 1) if size else workers - 1
        for step in range(workers):
            expected[index] += picked[(owner - step) % workers, index]
    np.testing.assert_array_equal(update, expected / np.float32(workers))


# Recursive doubling of streams


def simulated(gradients, k, header):
    """SSAR_Recursive_double, rank by rank: each rank's sum, and the bytes of each message by round."""
    P, n = gradients.shape
    streams = []
    for row in gradients:
        chosen = top_k(row, k)
        streams.append(({int(i): row[i] for i in chosen}, k == n))

    def nbytes(stream):
        return header + (4 * n if stream[1] else 8 * len(stream[0]))

    def added(one, other):
        dense = one[1] or other[1] or (len(one[0]) + len(other[0])) * 8 >= 4 * n
        total = dict(one[0])
        for index, value in other[0].items():
            total[index] = total.get(index, np.float32(0)) + value
        return total, dense

    Q = 1
    while 2 * Q <= P:
        Q *= 2
    extra, rounds = P - Q, []
    if extra:
        rounds.append({(2 * pair, 2 * pair + 1): nbytes(streams[2 * pair]) for pair in range(extra)})
        for pair in range(extra):
            streams[2 * pair + 1] = added(streams[2 * pair], streams[2 * pair + 1])
    ranks = [rank for rank in range(P) if rank >= 2 * extra or rank % 2]
    mask = 1
    while mask < Q:
        partner = {rank: ranks[ranks.index(rank) ^ mask] for rank in ranks}
        rounds.append({(rank, partner[rank]): nbytes(streams[rank]) for rank in ranks})
        exchanged = {rank: added(streams[rank], streams[partner[rank]]) for rank in ranks}
        for rank, stream in exchanged.items():
            streams[rank] = stream
        mask *= 2
    if extra:
        rounds.append({(2 * pair + 1, 2 * pair): nbytes(streams[2 * pair + 1]) for pair in range(extra)})
        for pair in range(extra):
            streams[2 * pair] = streams[2 * pair + 1]
    return streams, rounds


@given(
    st.integers(1, 17), st.integers(1, 250), st.sampled_from([1e-9, 0.03, 0.1, 0.3, 1.0]), st.sampled_from(KINDS),
    st.sampled_from(["paper", "released"]), st.integers(0, 999),
)  # fmt: skip
@example(8, 250, 0.03, "normal", "released", 0)
@example(13, 250, 0.1, "normal", "paper", 0)
def test_recursive_doubling_is_what_each_rank_does(workers, parameters, density, kind, wire, seed):
    gradients = gradients_of(kind, workers, parameters, seed)
    model = create("topkdsa", workers, parameters, density, algorithm="recursive_doubling", wire=wire)
    exchange = model.exchange(gradients)
    streams, rounds = simulated(gradients, model.k, 4 if wire == "released" else 0)
    for total, dense in streams:
        # Every rank ends with the same update.
        vector = np.zeros(parameters, dtype=np.float32)
        vector[[*total]] = [*total.values()]
        np.testing.assert_array_equal(exchange.update, vector / np.float32(workers))
        assert exchange.stats["dense"] == dense
    assert len(exchange.schedule.rounds) == len(rounds)
    for one, expected in zip(exchange.schedule.rounds, rounds, strict=True):
        sizes = dict(zip(zip(one.src.tolist(), one.dst.tolist(), strict=True), one.nbytes.tolist(), strict=True))
        assert sizes == expected
    if not exchange.stats["dense"]:
        # What comes in a round is added before the next one.
        sums = exchange.kernels[1:-1]
        assert [one.before for one in sums] == list(range(1, len(rounds) + 1))
        for one, expected in zip(sums, rounds, strict=True):
            received = np.zeros(workers)
            for (_, rank), nbytes in expected.items():
                received[rank] = (nbytes - (4 if wire == "released" else 0)) / 8
            np.testing.assert_array_equal(one.entries, received)
    phases = [one.phase for one in exchange.schedule.rounds]
    levels = workers.bit_length() - 1
    folds = workers != 1 << levels
    assert phases == ["fold"] * folds + ["doubling"] * levels + ["unfold"] * folds


def test_a_dense_stream_stays_dense():
    # n = 130: 31 + 31 entries of the fold are fewer than 65, those of rank 2 and of the sum more.
    supports = [np.arange(31), np.arange(31, 62), np.arange(31)]
    model = create("topkdsa", 3, 130, 0.24, algorithm="recursive_doubling", wire="released")
    exchange = model.exchange(supported(supports, 130))
    sizes = [dict(zip(one.src.tolist(), one.nbytes.tolist(), strict=True)) for one in exchange.schedule.rounds]
    assert sizes == [{0: 4 + 8 * 31}, {1: 4 + 8 * 62, 2: 4 + 8 * 31}, {1: 4 + 4 * 130}]
    assert exchange.stats["dense"] == 1
    # n = 100: the sums of both pairs are dense, although that of ranks 2 and 3 has 26 entries only.
    supports = [np.arange(26), np.arange(26, 52), np.arange(26), np.arange(26)]
    exchange = create("topkdsa", 4, 100, 0.26, algorithm="recursive_doubling").exchange(supported(supports, 100))
    assert [set(one.nbytes.tolist()) for one in exchange.schedule.rounds] == [{8 * 26}, {400}]


# Splits


def test_split_allgather_of_the_released_code_drops_what_is_next_to_nothing():
    rows = f32([[1, 0.5, 0, 1e-9], [-1, 0.5, 0, 1e-9]])
    for compat, update, lost in (("paper", [0, 0.5, 0, 1e-9], None), ("released", [0, 0.5, 0, 0], 2e-9)):
        model = create("topkdsa", 2, 4, 1.0, algorithm="split_allgather", compat=compat)
        exchange = model.exchange(rows)
        np.testing.assert_array_equal(exchange.update, f32(update))
        assert model.traits.conserves == (lost is None)
        assert exchange.stats.get("lost") == (None if lost is None else pytest.approx(lost))


# Ok-Topk's TopkDSA: when it turns dense, what it costs, what it loses


@pytest.mark.parametrize(
    ("rules", "parameters", "first_dense"),
    [
        ("vgg", 300, 100), ("lstm", 300, 100), ("bert", 300, 100),
        ("vgg", 301, 100), ("bert", 301, 100),
        # 2 nnz against floor(2 n / 3) = 201, nnz against floor(n / 3) = 100.
        ("vgg", 302, 101), ("lstm", 302, 101), ("bert", 302, 100),
    ],
)  # fmt: skip
def test_regions_are_gathered_dense_from_a_third_of_the_entries_on(rules, parameters, first_dense):
    for nnz in (first_dense - 1, first_dense):
        # One worker of three sends nothing that the first does not.
        supports = [np.arange(60), np.arange(nnz - 60, nnz), np.arange(60)]
        model = create("topkdsa", 3, parameters, 60.5 / parameters, rules=rules, wire="released", allgather="ring")
        exchange = model.exchange(supported(supports, parameters))
        assert exchange.stats["global_nnz"] == nnz
        assert exchange.stats["dense"] == (nnz == first_dense)
        phases = {one.phase for one in exchange.schedule.rounds}
        if nnz == first_dense:
            assert phases == {"split sizes", "split", "sizes", "dense"}
            own = np.array([parameters // 3, parameters // 3, parameters - 2 * (parameters // 3)])
            first = next(one for one in exchange.schedule.rounds if one.phase == "dense")
            assert first.nbytes[np.argsort(first.src)].tolist() == (4.0 * own).tolist()
        else:
            gathered = {"values", "indices"} if rules == "bert" else {"entries"}
            assert phases == {"split sizes", "split", "sizes", *gathered}


def test_the_released_code_loses_the_kth_entry_of_each_worker():
    gradients = gradients_of("normal", 5, 400, 0)
    model = create("topkdsa", 5, 400, 0.05, compat="released")
    exchange = model.exchange(gradients)
    assert not model.traits.conserves
    assert exchange.selected.tolist() == [19] * 5
    kth = [np.argsort(-np.abs(row))[19] for row in gradients]
    lost = np.zeros(400)
    for row, residual, index in zip(gradients, model.residual, kth, strict=True):
        assert residual[index] == 0
        lost[index] += row[index]
    assert exchange.stats["lost"] == pytest.approx(np.linalg.norm(lost), rel=1e-6)
    for algorithm in ALGORITHMS:
        right = create("topkdsa", 5, 400, 0.05, algorithm=algorithm)
        assert right.traits.conserves
        assert right.exchange(gradients).selected.tolist() == [20] * 5
    assert create("topkdsa", 5, 400, 0.05, algorithm="recursive_doubling", compat="released").traits.conserves
