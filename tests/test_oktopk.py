"""Ok-Topk: golden runs of the released code, a brute-force reference, volume, balancing, periods, thresholds, state."""

import csv
import hashlib
import math
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradients import KINDS, f32, gradients_of
from simnet.sparsifier_models import create, split_reduce
from simnet.sparsifier_models.oktopk import RULES, WARM_UP, raised
from simnet.sparsifier_models.split_reduce import equal_cuts, region_cuts

GOLDEN = Path(__file__).parent / "golden" / "oktopk"
RUNS = sorted(one.stem for one in GOLDEN.glob("*_P?_*.npz") if not one.stem.startswith("inputs"))


def observed(kind, step, workers, parameters):
    """Inputs of the observed runs, drawn again."""

    def normal(stream):
        return np.random.default_rng([1, step, stream]).standard_normal(parameters)

    if kind == "iid":
        return f32([normal(rank) for rank in range(workers)])
    return f32([0.8 * normal(1_000_000) + 0.6 * normal(rank) for rank in range(workers)])


@cache
def recorded(kind):
    name = "inputs_tiny_n64_T2_P4" if kind == "tiny" else f"inputs_{kind}_n4096_T4_P4"
    folder = GOLDEN if kind in ("iid", "skew") else GOLDEN.parent / "baselines"
    with np.load(folder / f"{name}.npz") as file:
        return file["g"]


@pytest.fixture(scope="module")
def drawn():
    """`observed`, for which numpy must still draw what it drew when the runs were made."""
    for kind in ("iid", "corr"):
        np.testing.assert_array_equal(observed(kind, 3, 4, 4096), recorded(kind)[3])
    return observed


# Golden runs of the released code, of TopkDSA too: every iteration, every message

CALLS = {
    "cuts": "Allreduce", "split sizes": "Alltoall", "sizes": "Allgather",
    "entries": "Allgatherv", "values": "Allgatherv", "indices": "Allgatherv", "dense": "Allgatherv",
}  # fmt: skip


def calls(schedule, rank):
    """The calls of a rank: operation, peer, bytes it contributes. A phase of a collective is one call."""
    found, phase = [], None
    for one in schedule.rounds:
        mine = one.src == rank
        nbytes = one.nbytes[mine].tolist()
        if one.phase in ("split", "balance"):
            times = Counter()
            for peer, size in zip(one.dst[mine].tolist(), nbytes, strict=True):
                times[peer] += 1
                found.append((f"Isend{times[peer]}", peer, size))
        elif one.phase != phase:
            # In the first round a rank sends its own contribution; of an all-to-all, what it has for one of P.
            factor = schedule.n_ranks if one.phase == "split sizes" else 1
            found.append((CALLS[one.phase], -1, nbytes[0] * factor))
        phase = one.phase
    return found


@cache
def messages():
    expected = defaultdict(list)
    with (GOLDEN / "messages.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["run"], int(row["iter"]), int(row["rank"])
            expected[key].append((row["op"], int(row["peer"]), float(row["bytes"])))
    return expected


def model_of(run):
    """The scheme of a run, and its gradients."""
    rules, scheme, workers, kind = run.removeprefix("tiny_").split("_")
    inputs = recorded("tiny" if run.startswith("tiny") else kind)[:, : int(workers[1:])]
    name = {"oktopk": "oktopk", "topkSA": "topkdsa"}[scheme]
    # The rules of vgg have no bug to be compatible with, but TopkDSA has.
    compat = "paper" if (name, rules) == ("oktopk", "VGG") else "released"
    density = 0.125 if run.startswith("tiny") else 0.02
    options = {"rules": rules.lower(), "compat": compat, "wire": "released", "allgather": "ring"}
    return create(name, inputs.shape[1], inputs.shape[2], density, **options), inputs


def test_there_are_all_golden_runs():
    assert len(RUNS) == 18 + 2 + 2
    assert len(messages()) == sum(len(model_of(run)[1]) * model_of(run)[0].workers for run in RUNS)


@pytest.mark.parametrize("run", RUNS)
def test_golden_run(run):
    expected = np.load(GOLDEN / f"{run}.npz")
    model, inputs = model_of(run)
    for t, gradients in enumerate(inputs):
        exchange = model.exchange(np.ascontiguousarray(gradients))
        support = np.flatnonzero(exchange.update)
        np.testing.assert_array_equal(support, expected[f"u{t}_idx"])
        np.testing.assert_array_equal(exchange.update[support], expected[f"u{t}_val"])
        assert support.size == expected["nnz_result"][t] == exchange.stats["global_nnz"]
        assert hashlib.sha256(model.residual.tobytes()).hexdigest() == expected["residual_sha256"][t]
        if model.name == "oktopk":
            for name in ("local_threshold_after", "global_threshold_after", "region_offsets", "region_sizes"):
                assert (exchange.stats[name] == expected[name][t]).all(), name
            assert exchange.stats["counter"] == expected["counter"][t]
        for rank in range(model.workers):
            assert calls(exchange.schedule, rank) == messages()[run, t, rank], (t, rank)


@pytest.mark.parametrize("scheme", ["VGG_oktopk", "BERT_oktopk", "VGG_topkSA"])
def test_bytes_between_pairs_are_those_that_an_mpi_library_counted(scheme, drawn):
    expected, iterations = {}, set()
    with (GOLDEN / "wire_bytes_openmpi.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if f"{row['variant']}_{row['scheme']}" == scheme:
                key = row["class"], int(row["src"]), int(row["dst"])
                expected[key] = (float(row["bytes"]), int(row["msgs"]))
                iterations.add(int(row["iteration_1based"]))
    variant, name = scheme.split("_")
    options = {"rules": variant.lower(), "compat": "released", "wire": "released", "allgather": "ring"}
    model = create({"topkSA": "topkdsa"}.get(name, name), 4, 65_536, 0.01, **options)
    (last,) = iterations
    for step in range(last):
        exchange = model.exchange(drawn("corr", step, 4, 65_536))
    nbytes, number = Counter(), Counter()
    for rank in range(4):
        for operation, peer, size in calls(exchange.schedule, rank):
            # As if each collective sent straight to its peers.
            own = peer if operation.startswith("Isend") else None
            kind = "collective_api_level" if own is None else "point_to_point"
            for other in {0, 1, 2, 3} - {rank} if own is None else {own}:
                nbytes[kind, rank, other] += size / 4 if operation == "Alltoall" else size
                number[kind, rank, other] += 1
    assert {key: (size, number[key]) for key, size in nbytes.items()} == expected


# Selection sizes that were observed in long runs


def sizes_of(model, draw, kind, steps):
    exchanges = [model.exchange(draw(kind, t, model.workers, model.parameters)) for t in range(steps)]
    return np.array([one.selected for one in exchanges]), np.array([one.union for one in exchanges])


def test_observed_sizes_with_the_rules_of_vgg(drawn):
    model = create("oktopk", 4, 8192, 0.02)
    local, total = sizes_of(model, drawn, "corr", 64)
    assert model.k == 163
    assert (local[[0, 32]] == 162).all()
    assert 181 <= local[4:29:4, 0].min() <= local[4:29:4, 0].max() <= 209
    assert (total[4:29:4].min(), total[4:29:4].max()) == (620, 716)
    # After the second recomputation.
    assert (total[[0, 32]] == 163).all()
    assert 250 <= np.median(total[33:]) <= 400


def test_observed_sizes_with_the_rules_of_bert(drawn):
    model = create("oktopk", 4, 8192, 0.01, rules="bert", compat="released")
    _, total = sizes_of(model, drawn, "corr", 64)
    assert total[[8, 16, 32]].tolist() == [1230, 795, 323]
    assert (total[48:].min(), total[48:].max()) == (74, 128)


@pytest.mark.parametrize("seed", range(3))
def test_between_recomputations_noise_selects_about_four_times_as_many_as_wanted(seed):
    rng = np.random.default_rng(seed)
    model = create("oktopk", 4, 200_000, 0.01)
    total = [model.exchange(rng.standard_normal((4, 200_000), dtype=np.float32)).union for _ in range(16)]
    assert 7000 < min(total[6:]) <= max(total[6:]) < 10_500


def test_the_released_bug_keeps_what_it_applies(drawn):
    gradients = drawn("corr", 0, 8, 4096)
    model = create("oktopk", 8, 4096, 0.02, rules="bert", compat="released")
    exchange = model.exchange(gradients)
    applied = np.flatnonzero(exchange.update)
    threshold = exchange.stats["threshold"].astype(np.float32)
    assert np.count_nonzero(np.abs(gradients[:, applied]) > threshold[:, None]) == 282
    assert np.count_nonzero(model.residual != gradients) == 4
    assert not model.traits.conserves
    assert exchange.stats["lost"] > 0
    for options in ({"rules": "bert"}, {"rules": "vgg", "compat": "released"}):
        assert create("oktopk", 8, 4096, 0.02, **options).traits.conserves


# The algorithm, once more

CONSTANTS = {
    # tau', tau, local low, high, step, global low, high, up, down, raise
    "vgg": (32, 64, Fraction(2, 3), Fraction(5, 4), 1.012, Fraction(2, 3), Fraction(4, 3), 1.008, 1.008, (4, 3)),
    "lstm": (32, 64, Fraction(3, 4), Fraction(5, 4), 1.012, Fraction(3, 4), Fraction(5, 4), 1.008, 1.01, (3, 2)),
    "bert": (128, 64, Fraction(4, 5), Fraction(5, 4), 1.025, Fraction(4, 5), Fraction(5, 4), 1.025, 1.036, None),
}


def ok_topk(gradients, k, rules, tau_prime, tau):
    """Ok-Topk on gradients of shape (T, P, n), every worker with dense arrays: what each iteration leaves behind."""
    _, _, low, high, step, global_low, global_high, up, down, most = CONSTANTS[rules]
    T, P, n = gradients.shape
    eps = np.zeros((P, n), dtype=np.float32)
    local, shared, cuts = [0.0] * P, 0.0, None
    for c in range(T):
        acc = gradients[c] + eps
        mine = np.zeros((P, n), dtype=bool)
        for r in range(P):
            magnitude = np.abs(acc[r])
            if c % tau_prime == 0 or local[r] == 0:
                local[r] = float(sorted(magnitude.tolist(), reverse=True)[k - 1])
            elif most:
                raises = 0
                while (magnitude > np.float32(local[r])).sum() > most[0] * k // most[1] and raises < 5:
                    local[r] *= 1.03
                    raises += 1
            mine[r] = magnitude > np.float32(local[r])
        if c % tau == 0:
            cuts = [0] * P + [n]
            for i in range(1, P):
                proposals = []
                for r in range(P):
                    own = np.flatnonzero(mine[r]).tolist()
                    if not own:
                        proposals.append(i * n // P)
                    else:
                        proposals.append(own[i * (len(own) // P) if len(own) >= P else i * len(own) // P])
                cuts[i] = sum(proposals) // P
        reduced = np.zeros(n, dtype=np.float32)
        for q in range(P):
            region = slice(cuts[q], cuts[q + 1])
            for j in range(P):
                r = (q - j) % P
                reduced[region] += np.where(mine[r, region], acc[r, region], np.float32(0))
        found = [i for i in range(n) if reduced[i] != 0]
        used = list(local)
        if c % tau_prime == 0:
            kept = sorted(found, key=lambda i: (-abs(reduced[i]), i))[:k]
            shared = float(min((abs(reduced[i]) for i in kept), default=0.0))
            shared_after = shared
        else:
            kept = [i for i in found if abs(reduced[i]) > np.float32(shared)]
            shared_after = shared
            if len(kept) < global_low * k:
                shared_after = shared / down
            elif len(kept) > global_high * k:
                shared_after = shared * up
        update = np.zeros(n, dtype=np.float32)
        eps = acc.copy()
        for i in kept:
            update[i] = reduced[i] / np.float32(P)
            eps[mine[:, i], i] = 0
        for r in range(P):
            if mine[r].sum() < low * k:
                local[r] /= step
            elif mine[r].sum() > high * k:
                local[r] *= step
        yield update, eps, used, list(local), shared, shared_after, cuts, mine.sum(1)
        shared = shared_after


@settings(max_examples=80)
@given(
    st.integers(1, 17), st.integers(1, 90), st.sampled_from([1e-9, 0.02, 0.1, 0.4, 1.0]), st.sampled_from(KINDS),
    st.sampled_from(["vgg", "lstm", "bert"]), st.integers(1, 5), st.integers(1, 4), st.integers(0, 999),
)  # fmt: skip
@example(4, 3000, 0.02, "normal", "vgg", 5, 4, 0)
@example(6, 2000, 0.03, "heavy", "bert", 5, 3, 0)
@example(17, 3, 0.5, "normal", "lstm", 3, 2, 0)
def test_oktopk_is_its_algorithm(workers, parameters, density, kind, rules, tau_prime, tau, seed):
    batches = np.array([gradients_of(kind, workers, parameters, seed + t) for t in range(7)])
    model = create("oktopk", workers, parameters, density, rules=rules, tau_prime=tau_prime, tau=tau)
    expected = ok_topk(batches, max(1, int(parameters * density)), rules, tau_prime, tau)
    for t, (update, eps, used, local, shared, shared_after, cuts, nnz) in enumerate(expected):
        exchange = model.exchange(batches[t])
        stats = exchange.stats
        np.testing.assert_array_equal(exchange.update, update)
        np.testing.assert_array_equal(model.residual, eps)
        np.testing.assert_array_equal(exchange.selected, nnz)
        assert stats["threshold"].tolist() == used
        assert stats["local_threshold_after"].tolist() == local
        assert (stats["global_threshold"], stats["global_threshold_after"]) == (shared, shared_after)
        assert [*stats["region_offsets"], parameters] == cuts
        assert stats["region_sizes"].tolist() == np.diff(cuts).tolist()


# Split and reduce


def test_cuts_by_hand():
    # Proposals of P = 3: 20 and 40; 3 and 6, of six entries with two each; 10 and 20 of a worker with none.
    chosen = [np.array([10, 20, 40]), np.arange(1, 7), np.zeros(0, dtype=np.int64)]
    assert region_cuts(chosen, 30 + 30).tolist() == [0, (20 + 3 + 20) // 3, (40 + 5 + 40) // 3, 60]
    # A worker with fewer entries than regions: all cuts are its first entry, or its entries are spread.
    few = [np.array([7, 9])] * 4
    assert region_cuts(few, 20, spread=False).tolist() == [0, 7, 7, 7, 20]
    assert region_cuts(few, 20).tolist() == [0, 7, 9, 9, 20]
    assert region_cuts([np.array([3])], 10).tolist() == [0, 10]
    assert region_cuts([np.zeros(0, dtype=np.int64)] * 4, 10).tolist() == [0, 2, 5, 7, 10]
    assert equal_cuts(10, 4).tolist() == [0, 2, 4, 6, 10]


def test_sums_of_cuts_do_not_overflow():
    last = np.array([2**31 - 10], dtype=np.int32)
    assert region_cuts([last] * 64, 2**31).tolist() == [0] + [2**31 - 10] * 63 + [2**31]


@pytest.mark.parametrize("name", ["never", "always", "trigger", "default"])
@pytest.mark.parametrize("kind", ["skew", "iid"])
def test_balancing_is_done_when_asked_for(name, kind):
    model = create("oktopk", 4, 4096, 0.02, balance=name, trigger=1.5)
    for t, gradients in enumerate(recorded(kind)):
        exchange = model.exchange(gradients)
        stats, T = exchange.stats, exchange.stats["gathered"]
        sends = any(one.phase == "balance" for one in exchange.schedule.rounds)
        if t == 0 or name == "never" or (name == "trigger" and stats["balance_before"] <= 1.5):
            assert not sends
            assert stats["balance_after"] == stats["balance_before"]
        else:
            assert sends
            assert stats["balance_after"] <= 1 + 4 / T
            assert stats["balance_after"] <= stats["balance_before"]
    # The uneven inputs do trigger, the even ones do not.
    assert (stats["balance_before"] > 1.5) == (kind == "skew")


# Balancing and volume


@pytest.mark.parametrize(
    ("rules", "wire", "balanced"),
    [("vgg", "released", False), ("lstm", "released", False), ("bert", "released", True)]
    + [(rules, "paper", True) for rules in RULES],
)
def test_balancing_as_released_and_as_in_the_paper(rules, wire, balanced):
    model = create("oktopk", 4, 4096, 0.02, rules=rules, wire=wire)
    phases = [{one.phase for one in model.exchange(one).schedule.rounds} for one in recorded("skew")]
    assert ["balance" in one for one in phases] == [False] + [balanced] * 3
    assert [("values" in one, "indices" in one) for one in phases] == [
        (rules == "bert" and wire == "released",) * 2
    ] * 4
    assert all(("split sizes" in one) == (wire == "released") for one in phases)


# Periods, thresholds, warm-up


@pytest.mark.parametrize("rules", RULES)
def test_periods(rules):
    tau_prime, tau = {"vgg": (32, 64), "lstm": (32, 64), "bert": (128, 64)}[rules]
    first = {"vgg": 512, "lstm": 128, "bert": 0}[rules]
    model = create("oktopk", 3, 60, 0.1, rules=rules)
    offsets, seen = None, set()
    for t in range(193):
        exchange = model.exchange(gradients_of("normal", 3, 60, t))
        stats = exchange.stats
        assert stats["counter"] == first + t
        assert stats["recomputed"] == (t % tau_prime == 0)
        assert any(one.phase == "cuts" for one in exchange.schedule.rounds) == (t % tau == 0)
        if t % tau:
            assert stats["region_offsets"].tolist() == offsets
        offsets = stats["region_offsets"].tolist()
        seen.add(tuple(offsets))
        if t % tau_prime == 0:
            assert stats["threshold_error"].tolist() == [0, 0, 0]
            assert exchange.selected.tolist() == [model.k - 1] * 3
            assert exchange.union == model.k
    assert len(seen) > 1


def test_the_warm_up_is_dense_and_ends_with_a_recomputation():
    model = create("oktopk", 4, 100, 0.05, rules="lstm", warm_up=3)
    for t in range(4):
        gradients = gradients_of("normal", 4, 100, t)
        exchange = model.exchange(gradients)
        assert exchange.stats["counter"] == WARM_UP["lstm"] - 3 + t
        if t < 3:
            np.testing.assert_allclose(exchange.update, gradients.mean(0), rtol=1e-5, atol=1e-7)
            assert not model.residual.any()
            assert {one.phase for one in exchange.schedule.rounds} == {"dense"}
            np.testing.assert_allclose(exchange.schedule.bytes_sent(), 2 * 3 / 4 * 400)
    assert exchange.stats["recomputed"] == 1
    assert exchange.union == model.k


def test_constants_are_those_of_the_released_code():
    with (GOLDEN / "oktopk_code_constants.csv").open(newline="") as file:
        table = {row["constant"]: row for row in csv.DictReader(file)}

    def pair(text):
        return tuple(float(Fraction(one.strip())) for one in text.split(";"))

    for name, rules in RULES.items():
        column = {constant: row[name.upper()] for constant, row in table.items()}
        assert rules.tau_prime == int(column["local threshold recompute period tau_prime"])
        assert rules.tau_prime == int(column["global threshold recompute period"])
        assert rules.tau == int(column["region repartition period tau"])
        assert rules.local_step == float(column["local threshold /= or *= factor per iteration"])
        assert (rules.local_low, rules.local_high) == pair(column["local nnz lower / upper trigger (times k)"])
        assert (rules.global_low, rules.global_high) == pair(column["global nnz lower / upper trigger (times k)"])
        assert rules.global_up == float(column["global threshold factor up (too many)"])
        assert rules.global_down == float(column["global threshold factor down (too few)"])
        raising = column["in-iteration raise of the local threshold before selection"]
        share = {4 / 3: "4k/3", 3 / 2: "3k/2", math.inf: "none"}[rules.raise_above]
        assert share in raising
        dense = column["dense warm-up iterations (counter < x uses dense allreduce)"]
        assert dense.startswith(str(WARM_UP[name])) or (name, WARM_UP[name]) == ("bert", 0)


@given(st.integers(1, 2000), st.floats(0.5, 300), st.floats(1e-3, 3), st.integers(0, 99))
def test_a_threshold_is_raised_at_most_five_times_and_no_further_than_needed(n, most, threshold, seed):
    values = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    after, indices, passes = raised(values, threshold, most)
    expected = threshold
    for _ in range(passes - 1):
        assert np.count_nonzero(np.abs(values) > np.float32(expected)) > most
        expected *= 1.03
    assert after == expected
    assert 1 <= passes <= 6
    np.testing.assert_array_equal(indices, np.flatnonzero(np.abs(values) > np.float32(after)))
    assert passes == 6 or indices.size <= most


def test_a_change_of_density_recomputes():
    model = create("oktopk", 4, 4000, 0.05)
    flags = []
    for t, density in enumerate([0.05, 0.05, 0.01, 0.01, 0.01001, 0.05]):
        model.density = density
        exchange = model.exchange(gradients_of("normal", 4, 4000, t))
        flags.append(exchange.stats["recomputed"])
        if flags[-1]:
            assert exchange.union == model.k
    # 0.01001 of 4000 is 40 entries as well.
    assert flags == [1, 0, 1, 0, 0, 1]


def test_hooks_recompute_and_cut_anew_when_ddp_has_changed_the_order_of_the_layers():
    model, plain = create("oktopk", 4, 4000, 0.05, hooked=True), create("oktopk", 4, 4000, 0.05)
    for t in range(4):
        drawn = gradients_of("normal", 4, 4000, t)
        # What is large moves to the other end after the first iteration.
        drawn[:, slice(0, 100) if t else slice(3900, 4000)] *= 50
        exchange, other = model.exchange(drawn), plain.exchange(drawn)
        assert (exchange.stats["recomputed"], other.stats["recomputed"]) == (t < 2, t < 1)
    assert model.cuts[1] < 400 < 1500 < plain.cuts[1]


# Kernels, scale, state


@given(st.integers(1, 20), st.integers(1, 300), st.floats(0, 1), st.sampled_from(["i4", "i8"]), st.integers(0, 2**31))
def test_regions_are_added_up_in_the_order_of_arrival(P, n, share, width, seed):
    random = np.random.default_rng(seed)
    rows = random.standard_normal((P, n)).astype(np.float32)
    rows[random.random((P, n)) < 0.2] = -0.0
    chosen = [np.flatnonzero(random.random(n) < share).astype(width) for _ in range(P)]
    cuts = np.concatenate([[0], np.sort(random.integers(0, n + 1, P - 1)), [n]])
    expected = np.zeros(n, dtype=np.float32)
    for owner in range(P):
        for step in range(P):
            worker = (owner - step) % P
            mine = chosen[worker][(chosen[worker] >= cuts[owner]) & (chosen[worker] < cuts[owner + 1])]
            expected[mine] += rows[worker, mine]
    reduced, entries = split_reduce.split_and_reduce(rows, chosen, cuts)
    assert reduced.tobytes() == expected.tobytes()
    assert entries.sum(axis=1).tolist() == [one.size for one in chosen]
