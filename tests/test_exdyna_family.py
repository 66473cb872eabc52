"""ExDyna and its kin: golden runs of the released code, independent references, and what the rules promise."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradients import gradients_of, jobs
from simnet.base.rng import stream
from simnet.sparsifier_models import create
from simnet.sparsifier_models.carried_threshold import scaling
from simnet.sparsifier_models.exdyna import allocate, block_layout, threshold_factor
from simnet.sparsifier_models.union_reduced import assign_k
from simnet.validate.reproduction.exdyna import LAYERS, STARTS, STEMS

GOLDEN = Path(__file__).parent / "golden" / "exdyna"
EPS = float(np.finfo(np.float32).eps)


EXCLUSIVE = ("exdyna", "micro")


def rows_of(name):
    return [json.loads(line) for line in (GOLDEN / f"{STEMS[name]}.jsonl").read_text().splitlines()]


def contributed(exchange, reduced="values"):
    """Bytes that each rank contributes to each call, in order, given ring algorithms and binomial broadcasts."""
    P, calls = exchange.schedule.n_ranks, {}
    for one in exchange.schedule.rounds:
        calls.setdefault(one.phase, np.zeros(P))
        np.add.at(calls[one.phase], one.src, one.nbytes)
    for phase, sent in calls.items():
        if phase == reduced:
            calls[phase] = sent * P / (2 * (P - 1))
        elif phase in ("bins", "layers") or "broadcaster" in exchange.stats:
            calls[phase] = sent.sum() / (P - 1)
        else:
            calls[phase] = sent / (P - 1)
    return calls


def compare(name, model, gradients, row, indices, values):
    """Hold an exchange against one row of a golden run, by the tolerances that its fields allow."""
    exchange = model.exchange(gradients)
    stats = exchange.stats
    np.testing.assert_array_equal(np.flatnonzero(exchange.update), indices)
    np.testing.assert_allclose(exchange.update[indices], values, rtol=0, atol=1e-6)
    assert exchange.union == row["params_transmitted"]
    assert stats["density"] == row["actual_density"]
    assert stats["bits"] == row["bits"]
    calls = contributed(exchange)
    for sent, call in zip(calls.values(), row["trace"], strict=True):
        np.testing.assert_allclose(sent, call["bytes"], rtol=1e-12)
    np.testing.assert_allclose(stats["residual_norm"], row["err_norm"], rtol=2e-6)
    assert stats["global_error"] == pytest.approx(row["global_error"], rel=2e-6)
    if "k_per_rank" in row:
        assert exchange.selected.tolist() == row["k_per_rank"]
        assert stats["k_max"] == row["k_max"]
        assert stats["imbalance"] == pytest.approx(row["f_padding"], rel=1e-15)
        assert stats["duplicates"] == row["buildup_dups"]
    if name in EXCLUSIVE:
        assert stats["threshold"].tolist() == [row["threshold"]] * row["n"]
        bounds = np.stack([stats["partition_start"], stats["partition_end"]], axis=1)
        assert bounds.tolist() == row["partition_bounds"]
        assert stats["rank_to_partition"].tolist() == row["rank_to_partition"]
        assert stats["acc_inefficiency"] == pytest.approx(row["acc_inefficiency"], rel=1e-15)
    if name == "exdyna":
        assert stats["blk_part"].tolist() == row["blk_part"]
        assert stats["blk_pos"].tolist() == row["blk_pos"]
        assert (model.sz_blk, model.min_blk) == (row["sz_blk"], row["min_blk"])
        assert model.parameters - model.num_blk * model.sz_blk == row["num_rem"]


def golden_model(name):
    return create(name, 4, 40_000, 0.01, wire="released", layers=LAYERS, **STARTS.get(name, {}))


# Golden runs


@pytest.mark.parametrize("name", STEMS)
def test_the_first_iteration_is_that_of_the_released_code(name):
    gradients = np.load(GOLDEN / "gradients_t00.npz")["gradients"]
    updates = np.load(GOLDEN / "updates_t00.npz")
    indices, values = (updates[f"{STEMS[name]}_{part}"] for part in ("idx", "val"))
    compare(name, golden_model(name), gradients, rows_of(name)[0], indices, values)


@pytest.mark.parametrize("name", STEMS)
def test_twelve_iterations_are_those_of_the_released_code(name, shared):
    folder = shared / "papers" / "data" / "exdyna_golden"
    updates = np.load(folder / f"{STEMS[name]}_reference_updates.npz")
    model = golden_model(name)
    for row in rows_of(name):
        t = row["t"]
        gradients = np.load(folder / f"gradients_t{t - t % 2:02d}_t{t - t % 2 + 1:02d}.npz")["gradients"][t % 2]
        compare(name, model, gradients, row, updates[f"u{t}_idx"], updates[f"u{t}_val"])
    assert model.iteration == 12


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_thresholds_follow_from_the_counts_of_the_golden_runs(name):
    rows = rows_of(name)
    assert rows[0]["threshold"] == 1 / (2 * math.sqrt(400))
    for before, after in itertools.pairwise(rows):
        factor = threshold_factor(before["params_transmitted"], before["k_user"])
        assert before["threshold"] * factor == after["threshold"]


# Independent references: each algorithm written out as plain loops


class Reference:
    """ExDyna and MiCRO over lists, positions moved along with the blocks."""

    def __init__(self, name, n, n_g, d, blocks=1024):
        self.name, self.n, self.n_g, self.k = name, n, n_g, max(1, int(d * n_g))
        self.t = 0
        self.residual = np.zeros((n, n_g), dtype=np.float32)
        if name == "micro":
            self.part, self.unit, self.rem = [n_g // n + (i < n_g % n) for i in range(n)], 1, 0
        else:
            self.blocks, self.unit = block_layout(n_g, n, blocks)
            self.rem = n_g - self.blocks * self.unit
            self.part = [self.blocks // n + (i < self.blocks % n) for i in range(n)]
        self.pos = [sum(self.part[:i]) for i in range(n)]

    def rebalance(self):
        n, part, pos, min_blk = self.n, self.part, self.pos, self.blocks / (4 * self.n)
        kp = [0] * n
        for i in range(n):
            kp[(self.t - 1 + i) % n] = self.counts[i]
        kavg = int(self.K_prev / n)
        mv = int(self.unit * (self.K_prev / self.n_g))
        for i in range(n - 1 if kavg else 0):
            a, b = kp[i] / kavg, kp[i + 1] / kavg
            if a > 1.05 and b < 0.95238 and not part[i] - 1 < min_blk:
                part[i] -= 1
                part[i + 1] += 1
                pos[i + 1] -= 1
                kp[i] -= mv
                kp[i + 1] += mv
            elif a < 0.95238 and b > 1.05 and not part[i + 1] - 1 < min_blk:
                part[i] += 1
                part[i + 1] -= 1
                pos[i + 1] += 1
                kp[i] += mv
                kp[i + 1] -= mv

    def step(self, gradients):
        n = self.n
        acc = gradients + self.residual
        if self.t == 0:
            self.threshold = 1 / (2 * math.sqrt(self.k))
        else:
            if self.name == "exdyna":
                self.rebalance()
            x = self.K_prev / self.k
            self.threshold *= 1.005 if x > 1.1 else 1.00125 if x > 0.909 else 0.995
        picks = []
        for r in range(n):
            p = (self.t + r) % n
            start, end = self.pos[p] * self.unit, (self.pos[p] + self.part[p]) * self.unit
            end += self.rem if p == n - 1 else 0
            own = [j for j in range(start, end) if abs(acc[r, j]) >= np.float32(self.threshold)]
            if not own and end > start:
                own = [start + self.t % (end - start)]
            picks.append(own)
        U = list(itertools.chain(*picks))
        update = np.zeros(self.n_g, dtype=np.float32)
        for j in U:
            total = np.float32(0)
            for r in range(n):
                total += acc[r, j]
            update[j] = total / np.float32(n)
        acc[:, U] = 0
        self.residual, self.counts, self.K_prev, self.t = acc, [len(one) for one in picks], len(U), self.t + 1
        return update


@given(st.sampled_from(EXCLUSIVE), jobs(300), st.integers(2, 5))
@example("exdyna", (17, 5, 0.3, "normal", 0), 4)
@example("exdyna", (3, 300, 0.05, "heavy", 0), 5)
@example("micro", (4, 100, 1e-9, "sparse", 3), 5)
def test_exdyna_and_micro_are_their_plain_loops(name, job, steps):
    workers, parameters, density, kind, seed = job
    model = create(name, workers, parameters, density, start="published")
    reference = Reference(name, workers, parameters, density)
    for step in range(steps):
        gradients = gradients_of(kind, workers, parameters, seed + step)
        # The load lies at the beginning, so that blocks move.
        gradients *= np.linspace(1, 0.01, parameters, dtype=np.float32)
        exchange, update = model.exchange(gradients), reference.step(gradients)
        np.testing.assert_array_equal(exchange.update, update)
        np.testing.assert_array_equal(model.residual, reference.residual)
        assert exchange.selected.tolist() == reference.counts
        assert exchange.stats["threshold"].tolist() == [reference.threshold] * workers
        if name == "exdyna":
            assert exchange.stats["blk_part"].tolist() == reference.part
            assert exchange.stats["blk_pos"].tolist() == reference.pos


def test_exdyna_balances_as_its_plain_loops_over_many_iterations():
    rng = np.random.default_rng(0)
    model = create("exdyna", 5, 2000, 0.05, blocks=100, start="published")
    reference = Reference("exdyna", 5, 2000, 0.05, blocks=100)
    profile = np.array([3, 0.5, 2, 0.2, 1], dtype=np.float32).repeat(400)
    for _ in range(40):
        gradients = (rng.laplace(size=(5, 2000)) * profile).astype(np.float32)
        np.testing.assert_array_equal(model.exchange(gradients).update, reference.step(gradients))
    assert model.blk_part.tolist() == reference.part != [20] * 5


def sorted_top(values, k):
    return np.argsort(-np.abs(values), kind="stable")[:k].tolist()


@given(st.sampled_from(["uniontopk", "cltk", "hardthreshold", "original"]), jobs(300), st.integers(1, 3))
def test_the_baselines_are_their_plain_loops(name, job, steps):
    workers, parameters, density, kind, seed = job
    original = name == "original"
    model = (
        create(name, workers, parameters, density, **STARTS.get(name, {}))
        if not original
        else create("hardthreshold", workers, parameters, density, form="original", start="published")
    )
    residual, k = np.zeros((workers, parameters), dtype=np.float32), max(1, int(density * parameters))
    threshold = np.float32(1 / (2 * math.sqrt(k)))
    for t in range(steps):
        gradients = gradients_of(kind, workers, parameters, seed + t)
        acc = gradients + residual
        if name == "uniontopk":
            picks = [sorted_top(row, k) for row in acc]
        elif name == "cltk":
            picks = [sorted_top(acc[t % workers], k)] * workers
        else:
            picks = [np.flatnonzero(np.abs(row) >= threshold).tolist() for row in acc]
        U = sorted(set().union(*picks))
        expected, sent, residual = np.zeros(parameters), acc.astype(np.float64), acc.copy()
        for r, own in enumerate(picks):
            taken = own if original else U
            expected[taken] += sent[r, taken] / workers
            residual[r, taken] = 0
        exchange = model.exchange(gradients)
        allowed = (workers + 1) * EPS * np.abs(sent).mean(0) + 1e-44
        assert (np.abs(exchange.update - expected) <= allowed).all()
        np.testing.assert_array_equal(model.residual, residual)
        assert exchange.selected.tolist() == [len(own) for own in picks]
        assert exchange.union == len(U)
        if name == "cltk":
            assert exchange.union == k
            assert exchange.stats["broadcaster"] == t % workers


# Behaviour over many iterations


def laplace(rng, workers, parameters):
    return rng.laplace(size=(workers, parameters)).astype(np.float32)


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_the_density_settles_near_the_target_in_a_saw_tooth(name):
    rng = np.random.default_rng(1)
    n_g, d = 40_000, 0.01
    exact = math.log(1 / d)
    model = create(name, 4, n_g, d, initial_threshold=exact, error_feedback=False)
    runs = [model.exchange(laplace(rng, 4, n_g)) for _ in range(150)]
    ratio = np.array([one.union / model.k for one in runs[50:]])
    assert abs(ratio.mean() - 1) < 0.1
    assert ratio.mean() < 1
    # Small steps up, large ones down.
    steps = np.diff([one.stats["threshold"][0] for one in runs[50:]]) > 0
    assert 0.5 < steps.mean() < 0.95


def test_top_k_and_hard_threshold_build_up_and_exclusive_selection_does_not():
    rng = np.random.default_rng(0)
    gradients, n_g = laplace(rng, 16, 20_000), 20_000

    def densities(name, **options):
        return [
            create(name, P, n_g, 0.01, **options).exchange(gradients[:P]).stats["density"] for P in (1, 2, 4, 8, 16)
        ]

    for grown in (densities("uniontopk"), densities("hardthreshold", threshold=math.log(100))):
        assert all(after > 1.8 * before for before, after in itertools.pairwise(grown))
    assert densities("cltk") == [0.01] * 5
    for name in EXCLUSIVE:
        flat = densities(name, initial_threshold=math.log(100))
        assert max(flat) < 1.3 * min(flat)
    deft = densities("deft")
    assert max(abs(one / 0.01 - 1) for one in deft) < 0.1


def test_the_density_may_change_between_exchanges():
    rng = np.random.default_rng(0)
    for name in (*EXCLUSIVE, "hardthreshold", "sage"):
        options = STARTS[name] if name == "hardthreshold" else {"initial_threshold": math.log(100)}
        model = create(name, 4, 20_000, 0.01, error_feedback=False, **options)
        model.exchange(laplace(rng, 4, 20_000))
        before = model.exchange(laplace(rng, 4, 20_000)).stats["threshold"]
        model.density = 0.05
        after = model.exchange(laplace(rng, 4, 20_000)).stats["threshold"]
        if name in EXCLUSIVE:
            np.testing.assert_array_equal(after, before * 0.995)
            for _ in range(90):
                exchange = model.exchange(laplace(rng, 4, 20_000))
            assert abs(exchange.stats["density"] / 0.05 - 1) < 0.15
        if name == "hardthreshold":
            np.testing.assert_allclose(after, before / math.sqrt(5))


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_the_first_threshold_keeps_what_was_asked_of_gradients_of_any_magnitude(name, magnitude):
    rng = np.random.default_rng(0)
    model = create(name, 4, 100_000, 0.01)
    asked = 1000 if name in EXCLUSIVE else 4000
    for density in (0.01, 0.02):
        model.density = density
        model.residual = np.zeros((4, 100_000), dtype=np.float32)
        exchange = model.exchange(laplace(rng, 4, 100_000) * np.float32(magnitude))
        assert exchange.selected.sum() == pytest.approx(asked * density / 0.01, rel=0.1)
    # A sample of 256 / d entries has that many above the threshold on average.
    kernels = [(one.method, np.max(one.entries)) for one in exchange.kernels]
    assert ("topk", 12_800) in kernels
    assert "topk" not in [one.method for one in model.exchange(laplace(rng, 4, 100_000)).kernels]


@pytest.mark.parametrize("name", EXCLUSIVE)
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_the_density_settles_while_residuals_fill(name, density):
    rng = np.random.default_rng(0)
    n = round(100 / density)
    model, published = (create(name, 4, n, density, start=start) for start in ("estimated", "published"))
    ratios = [[], []]
    for _ in range(128):
        gradients = laplace(rng, 4, n) * np.float32(1e-6)
        for own, one in zip(ratios, (model, published), strict=True):
            own.append(one.exchange(gradients).stats["density"] / density)
    assert np.mean(ratios[0][64:]) == pytest.approx(1, abs=0.1)
    assert not 0.8 < np.mean(ratios[1][64:]) < 1.25


# Partitions and thresholds


def test_block_sizes_of_the_released_code():
    # 11 173 962 // 1024 = 10 912 = 341 * 32, the rest is 74; rest of up to 32 767 entries.
    assert block_layout(11_173_962, 8) == (1024, 10_912)
    assert block_layout(64 * 1024 - 1, 8) == (1024, 32)


def test_blocks_move_by_hand():
    def moved(part, counts, **options):
        settings = {"moved": 1, "minimum": 64, **options}
        return allocate(np.array(part), np.array(counts), **settings).tolist()

    part = [256] * 4
    # Average 100: only neighbours of which one is above 105 and the other below 95.238 move a block.
    assert moved(part, [106, 95, 100, 99]) == [255, 257, 256, 256]
    assert moved(part, [105, 95, 100, 100]) == part
    assert moved(part, [106, 96, 100, 98]) == part
    assert moved(part, [95, 106, 100, 99]) == [257, 255, 256, 256]
    assert moved(part, [120, 100, 100, 80]) == part
    # Counts are updated before the next pair is looked at: 94 becomes 97 or 95, which is short all the same.
    assert moved(part, [106, 94, 106, 94], moved=3) == [255, 257, 255, 257]
    assert moved(part, [106, 94, 106, 94], moved=1) == [255, 258, 255, 256]
    # The least that a partition keeps.
    assert moved([64, 448, 256, 256], [200, 0, 100, 100]) == [64, 448, 256, 256]
    assert moved([65, 447, 256, 256], [200, 0, 100, 100]) == [64, 448, 256, 256]
    assert moved([64, 448, 256, 256], [200, 0, 100, 100], minimum=63.5) == [64, 448, 256, 256]
    # Fewer entries than workers.
    assert moved(part, [1, 1, 1, 0]) == part


def test_the_threshold_factors_are_those_of_the_band():
    found = [threshold_factor(selected, 1000) for selected in (0, 909, 910, 1100, 1101)]
    assert found == [0.995, 0.995, 1.00125, 1.00125, 1.005]


def test_the_exact_start_of_micro_is_each_workers_own_kth_magnitude():
    gradients = gradients_of("normal", 3, 200, 0)
    gradients[2] = 0
    model = create("micro", 3, 200, 0.05, start="exact")
    expected = [np.sort(np.abs(row))[-10] for row in gradients[:2]]
    threshold = model.exchange(gradients).stats["threshold"]
    assert threshold[:2].tolist() == [float(one) for one in expected]
    # A gradient without entries has no k-th magnitude to go by.
    assert threshold[2] == 1 / (2 * math.sqrt(10))
    second = model.exchange(gradients)
    assert len(set((second.stats["threshold"] / threshold).round(12))) == 1
    # What the first exchange needs is an exact top-k, what all others need a scan.
    assert [one.method for one in second.kernels] == ["scan", "gather", "scatter"]
    twin = create("micro", 3, 200, 0.05, start="exact").exchange(gradients)
    assert [one.method for one in twin.kernels] == ["topk", "scan", "gather", "scatter"]


def test_thresholds_recover_from_a_long_time_without_gradients():
    model = create("exdyna", 2, 100, 0.5)
    zero, busy = np.zeros((2, 100), dtype=np.float32), gradients_of("normal", 2, 100, 0)
    model.restore({**_after(model, zero), "threshold": np.full(2, 1e-320)})
    for _ in range(5):
        exchange = model.exchange(zero)
        assert exchange.stats["threshold"].min() > 0
    assert model.exchange(busy).union == 100
    model.restore({**_after(model, zero), "threshold": np.full(2, 1.7e308), "counts": np.array([90, 10])})
    for _ in range(5):
        exchange = model.exchange(busy)
        assert np.isfinite(exchange.stats["threshold"]).all()
    assert exchange.union == 2


def _after(model, gradients):
    model.exchange(gradients)
    return model.save()


# DEFT


def test_norms_share_the_entries_by_hand():
    # 100 entries, norms 5, 3, 2: 50; 50 * 3/5 = 30; all that is left.
    assert assign_k([3.0, 2.0, 5.0], [100, 100, 100], 100) == [30, 20, 50]
    # A short layer passes on what it has no use for: (100 - 10) * 3/5 = 54, then 36.
    assert assign_k([3.0, 2.0, 5.0], [100, 100, 10], 100) == [54, 36, 10]
    assert assign_k([0.0, 0.0], [4, 4], 6) == [1, 1]
    assert assign_k([1.0] * 5, [9] * 5, 2) == [1] * 5


def test_common_layers_are_sent_whole_by_all_and_announced_by_none():
    # Layer 0 has two entries and nearly all of the norm: k_l = 2 is all it has.
    gradients = gradients_of("normal", 3, 32, 0)
    gradients[:, :2] = [[90, 80], [70, 60], [-50, 40]]
    model = create("deft", 3, 32, 0.25, layers=(2, 10, 10, 10), wire="released", allgather="ring")
    exchange = model.exchange(gradients)
    np.testing.assert_allclose(exchange.update[:2], [110 / 3, 60], rtol=1e-6)
    assert not model.residual[:, :2].any()
    assert exchange.stats["duplicates"] == -2
    assert exchange.selected.tolist() == [2, 2, 2]
    assert exchange.union == 8
    # BC 4 n, BC 4 L, AG 8, AG 8 k_max, AR 4 |U|.
    calls = contributed(exchange)
    assert {name: float(np.max(sent)) for name, sent in calls.items()} == pytest.approx(
        {"bins": 12, "layers": 16, "counts": 8, "indices": 16, "values": 32}
    )
    assert sum(np.max(one.entries) for one in exchange.kernels if one.method == "topk_layer") == 10


def test_the_packing_worker_and_the_bins_take_turns():
    gradients = np.tile(gradients_of("normal", 1, 400, 0), (4, 1))
    model = create("deft", 4, 400, 0.1, error_feedback=False)
    seen = []
    for t in range(4):
        exchange = model.exchange(gradients)
        roots = {int(one.src[0]) for one in exchange.schedule.rounds if one.phase == "bins" and len(one) == 1}
        assert roots == {t}
        seen.append(exchange.selected)
    # With equal gradients the bins are the same; worker r takes bin (t + r) mod P.
    for t in range(1, 4):
        np.testing.assert_array_equal(np.roll(seen[0], -t), seen[t])


# SAGE and the hard threshold


def test_sage_scales_each_threshold_by_its_own_sample():
    workers, n, d = 3, 5000, 0.01
    model = create("sage", workers, n, d, seed=5, error_feedback=False, start="published")
    threshold, before = np.full(workers, 1 / (2 * math.sqrt(50))), None
    for t in range(6):
        gradients = gradients_of("heavy", workers, n, t) * np.float32(1 + t)
        exchange = model.exchange(gradients)
        mean = np.zeros(workers)
        for r, row in enumerate(gradients):
            places = stream(5, "sage", t, r).integers(n, size=int(n / (1 + n * 0.05**2)))
            mean[r] = np.abs(row[places]).mean(dtype=np.float64)
            if before is not None:
                alpha = mean[r] / before[r]
                exam = np.count_nonzero(np.abs(row) >= np.float32(threshold[r] * alpha)) / n
                beta = 2 / (1 + math.exp(d - exam))
                gamma = 0.95 if exam < 0.1 * d else 1.05 if exam > 10 * d else 1
                threshold[r] *= alpha * beta * gamma
        before = mean
        np.testing.assert_allclose(exchange.stats["threshold"], threshold, rtol=1e-12)
        for r, row in enumerate(gradients):
            at = np.count_nonzero(np.abs(row) >= np.float32(exchange.stats["threshold"][r]))
            assert exchange.selected[r] == at
    assert len(set(threshold)) == workers


def test_sage_survives_samples_of_nothing():
    model = create("sage", 2, 50, 0.1, initial_threshold=0.5)
    zero, busy = np.zeros((2, 50), dtype=np.float32), gradients_of("constant", 2, 50, 0)
    first = model.exchange(busy).stats["threshold"]
    quiet = model.exchange(zero).stats["threshold"]
    # All that is there is the residual of before, as large as the gradient was.
    np.testing.assert_allclose(quiet, first * scaling(1.0, 0.0, 0.1))
    model = create("sage", 2, 50, 0.1, initial_threshold=0.5)
    model.exchange(zero)
    assert model.exchange(zero).stats["threshold"] == pytest.approx(first * scaling(1.0, 0.0, 0.1))
    assert np.isfinite(model.exchange(busy).stats["threshold"]).all()


def test_the_formula_gives_the_published_thresholds():
    # lambda of the released scripts for k = 0.1 % of the model.
    models = {11_173_962: 0.00473, 11_389_726: 0.00468, 6_166_250: 0.00637, 11_220_132: 0.00472}
    for parameters, published in models.items():
        model = create("hardthreshold", 1, 1000, 0.001, scale=parameters / 1000, start="published")
        exchange = model.exchange(np.zeros((1, 1000), dtype=np.float32))
        assert exchange.stats["threshold"] == pytest.approx(published, abs=1e-5)


def test_the_original_hard_threshold_gathers_what_its_code_does():
    gradients = np.zeros((4, 90), dtype=np.float32)
    counts = [3, 0, 7, 2]
    for rank, count in enumerate(counts):
        gradients[rank, :count] = 1
    common = {"threshold": 0.5, "layers": (30, 30, 30), "allgather": "ring", "form": "original"}
    exchange = create("hardthreshold", 4, 90, 0.1, wire="released", **common).exchange(gradients)
    calls = {name: sent.tolist() for name, sent in contributed(exchange, reduced="").items()}
    expected = {"counts": 8, "starts": 24, "ends": 24, "values": 28, "indices": 28}
    assert calls == {name: [each] * 4 for name, each in expected.items()}
    assert exchange.stats["bits"] == 64 * 7
    plain = create("hardthreshold", 4, 90, 0.1, **common).exchange(gradients)
    np.testing.assert_array_equal(plain.schedule.bytes_received(), 8 * (12 - np.array(counts)))
    wide = create("hardthreshold", 4, 90, 0.1, wire="released", index_bytes=8, **common).exchange(gradients)
    assert wide.stats["bits"] == 96 * 7
