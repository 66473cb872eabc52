"""Baselines (TopkA, gTopk, Gaussian-k, SIDCo, DGC, RedSync): golden runs, brute-force references, fits, densities."""

import csv
import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from gradients import KINDS as COMMON_KINDS
from gradients import f32, gradients_of, jobs
from simnet.sparsifier_models import create
from simnet.sparsifier_models.selection import kth_magnitude
from simnet.sparsifier_models.sidco import exponential_quantile, generalised_pareto
from simnet.sparsifier_models.thresholded import DGC_VARIANTS, RULES, sample_stride
from variants import made, variants_of

GOLDEN = Path(__file__).parent / "golden" / "baselines"

VARIANTS = variants_of("topka", "gtopk", "gaussiank", "sidco", "dgc", "redsync")
variants = st.sampled_from(VARIANTS)
KINDS = [*COMMON_KINDS, "tiny", "huge"]


# The golden runs of the released code: results, residuals, messages, every iteration

RUNS = {
    "tiny_VGG_topkA_P4_corr": ("topka", "inputs_tiny_n64_T2_P4", 0.125),
    "tiny_VGG_gtopk_P4_corr": ("gtopk", "inputs_tiny_n64_T2_P4", 0.125),
    "VGG_topkA_P4_corr": ("topka", "inputs_corr_n4096_T4_P4", 0.02),
    "VGG_gtopk_P4_corr": ("gtopk", "inputs_corr_n4096_T4_P4", 0.02),
    "VGG_gaussiank_P4_corr": ("gaussiank", "inputs_corr_n4096_T4_P4", 0.02),
}


def golden_run(run):
    """Yield iteration, arrays of the released code, exchange and model of a run."""
    name, inputs, density = RUNS[run]
    gradients = np.load(GOLDEN / f"{inputs}.npz")["g"]
    expected = np.load(GOLDEN / f"{run}.npz")
    model = create(name, gradients.shape[1], gradients.shape[2], density, compat="released", wire="released")
    for t, fresh in enumerate(gradients):
        yield t, expected, model.exchange(fresh), model
    assert t == len(expected["nnz_result"]) - 1


@pytest.mark.parametrize("run", RUNS)
def test_golden_updates_and_residuals_to_the_bit(run):
    for t, expected, exchange, model in golden_run(run):
        indices = np.flatnonzero(exchange.update)
        np.testing.assert_array_equal(indices, expected[f"u{t}_idx"])
        np.testing.assert_array_equal(exchange.update[indices].view(np.uint32), expected[f"u{t}_val"].view(np.uint32))
        if "residual" in expected:
            np.testing.assert_array_equal(model.residual, expected["residual"][t])
        else:
            # Of the long runs only a digest is kept here; + 0 makes zeros of either sign alike.
            digest = hashlib.sha256((model.residual + np.float32(0)).tobytes()).hexdigest()
            assert digest == expected["residual_sha256"][t]


def calls(schedule):
    """Calls of each rank in order, as the released code makes them: (rank, number, operation, peer, bytes)."""
    columns = schedule.columns()
    gathers = "Allgatherv" if "sizes" in columns["phase"] else "Allgather"
    made_by = [[] for _ in range(schedule.n_ranks)]
    for phase in dict.fromkeys(columns["phase"].tolist()):
        of = columns["phase"] == phase
        rounds, src, dst, nbytes = (columns[name][of] for name in ("round", "src", "dst", "nbytes"))
        if phase == "tree":
            for sender, receiver, size in zip(src.tolist(), dst.tolist(), nbytes.tolist(), strict=True):
                made_by[sender].append(("Send", receiver, size))
        elif phase == "broadcast":
            assert len(set(nbytes.tolist())) == 1
            for own in made_by:
                own.append(("Bcast", int(src[0]), nbytes[0]))
        else:
            # In the first round of an all-gather everyone sends what it contributes.
            first = rounds == rounds.min()
            assert sorted(src[first].tolist()) == list(range(schedule.n_ranks))
            for sender, size in zip(src[first].tolist(), nbytes[first].tolist(), strict=True):
                made_by[sender].append(("Allgather" if phase == "sizes" else gathers, -1, size))
    return [(rank, number, *one) for rank, own in enumerate(made_by) for number, one in enumerate(own)]


@pytest.mark.parametrize("run", RUNS)
def test_golden_messages(run):
    with (GOLDEN / "messages.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == run]
    for t, _, exchange, _ in golden_run(run):
        expected = [
            (int(row["rank"]), int(row["seq"]), row["op"], int(row["peer"]), float(row["bytes"]))
            for row in rows
            if int(row["iter"]) == t
        ]
        assert calls(exchange.schedule) == expected


# What holds for all of them


@given(variants, jobs(kinds=KINDS))
def test_what_is_sent_and_what_is_kept(variant, job):
    workers, parameters, density, kind, seed = job
    if variant[0] == "gtopk":
        return  # A sum that is cut may be kept by another worker: see below.
    model = made(variant, workers, parameters, density)
    gradients = gradients_of(kind, workers, parameters, seed)
    exchange = model.exchange(gradients)
    kept = (model.residual.astype(np.float64) ** 2).sum(1)
    np.testing.assert_allclose(exchange.sent + kept, (gradients.astype(np.float64) ** 2).sum(1), rtol=1e-12)
    # What is kept is what was given, or nothing.
    assert ((model.residual == gradients) | (model.residual == 0)).all()


def selected_by(model, gradients):
    """Entries that each worker sent, of a scheme that all-gathers, found by what is gone; zeros are not seen."""
    model.exchange(gradients)
    return [np.flatnonzero((row != 0) & (kept == 0)) for row, kept in zip(gradients, model.residual, strict=True)]


THRESHOLDED = [one for one in VARIANTS if one[0] in ("gaussiank", "sidco", "dgc", "redsync")]


@given(st.sampled_from(THRESHOLDED), jobs(kinds=KINDS))
def test_the_threshold_reported_is_the_one_used(variant, job):
    workers, parameters, density, kind, seed = job
    if variant[1].get("groups") == "layers" or "warm_up" in variant[1]:
        return
    gradients = gradients_of(kind, workers, parameters, seed)
    model = made(variant, workers, parameters, density)
    exact = [kth_magnitude(row, model.k) for row in gradients]
    chosen = selected_by(model, gradients)
    exchange = made(variant, workers, parameters, density).exchange(gradients)
    for worker, row in enumerate(np.abs(gradients)):
        threshold = np.float32(exchange.stats["threshold"][worker])
        assert (row[chosen[worker]] >= threshold).all()
        above = np.flatnonzero((row > threshold) & (row > 0))
        if variant[1].get("variant", "original") != "original" or variant[0] != "dgc":
            assert np.isin(above, chosen[worker]).all()
        else:
            # Truncated, in the order of the gradient, to k.
            assert np.isin(above[: chosen[worker].size], chosen[worker]).all() or chosen[worker].size == model.k
        error = exchange.stats["threshold_error"][worker]
        if exact[worker]:
            assert error == pytest.approx(exchange.stats["threshold"][worker] / exact[worker] - 1, rel=1e-6, abs=1e-9)


# gTopk


def gtopk_by_hand(rows, k, *, conserving):
    """gTopk entry by entry in dictionaries: update, residual, and which workers' entries are in each sum applied."""
    P, n = rows.shape

    def largest(sums):
        return sorted(sums, key=lambda i: (-abs(sums[i][0]), i))[:k]

    chosen = [largest({i: (row[i], {r}) for i in range(n)}) for r, row in enumerate(rows)]
    held = [{i: (row[i], {r}) for i in chosen[r]} for r, row in enumerate(rows)]
    cut = [[] for _ in range(P)]
    distance = 1
    while distance < P:
        for r in range(distance, P, 2 * distance):
            at = r - distance
            sums = dict(held[at])
            for i, (value, who) in held[r].items():
                mine, already = sums.get(i, (np.float32(0), set()))
                sums[i] = (np.float32(mine + value) if already else value, already | who)
            keep = largest(sums)
            cut[at] += [(i, sums[i][0]) for i in sorted(set(sums) - set(keep))]
            held[at] = {i: sums[i] for i in keep}
        distance *= 2
    result = held[0]
    update, residual = np.zeros(n, dtype=np.float32), rows.copy()
    for i, (value, _) in result.items():
        update[i] = value / np.float32(P)
    for r in range(P):
        residual[r, [i for i in chosen[r] if i in result]] = 0
    for r in range(P):
        for i, value in cut[r]:
            if i in result and conserving:
                residual[r, i] += value
    return update, residual, {i: who for i, (_, who) in result.items()}


@pytest.mark.parametrize("workers", range(1, 18))
@pytest.mark.parametrize("conserving", [True, False])
def test_gtopk_against_dictionaries(workers, conserving):
    rng = np.random.default_rng(workers)
    for parameters, density in ((1, 1.0), (5, 0.2), (5, 0.4), (12, 0.5), (60, 0.1), (60, 1.0)):
        model = create("gtopk", workers, parameters, density, conserving=conserving)
        assert model.traits.conserves == conserving
        for scale in (1, 3, 1):
            common = rng.standard_normal(parameters)
            gradients = (common + scale * rng.standard_normal((workers, parameters))).astype(np.float32)
            corrected = gradients + model.residual
            update, residual, who = gtopk_by_hand(corrected, model.k, conserving=conserving)
            exchange = model.exchange(gradients)
            np.testing.assert_array_equal(exchange.update, update)
            np.testing.assert_array_equal(model.residual, residual)
            applied = [sum(float(corrected[r, i]) ** 2 for i in who if r in who[i]) for r in range(workers)]
            np.testing.assert_allclose(exchange.sent, applied, rtol=1e-12)
            assert exchange.union == len(who) == model.k
            assert exchange.selected.tolist() == [model.k] * workers


def test_gtopk_loses_as_published_what_another_branch_brings_in():
    # k = 1. Worker 0 (5 at 0) cuts the 2 at 1 of worker 1; workers 2 and 3 bring 9 at 1, which wins.
    gradients = f32([[5, 0, 0], [0, 2, 0], [0, 9, 0], [0, 0, 1]])
    published = create("gtopk", 4, 3, 0.34, conserving=False)
    exchange = published.exchange(gradients)
    np.testing.assert_array_equal(exchange.update, f32([0, 9 / 4, 0]))
    np.testing.assert_array_equal(published.residual, f32([[5, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]))
    assert exchange.stats["lost"] == 2
    np.testing.assert_array_equal(exchange.sent, [0, 0, 81, 0])
    # Corrected, worker 0 keeps the 2 that it cut, and nothing travels for it.
    corrected = create("gtopk", 4, 3, 0.34)
    same = corrected.exchange(gradients)
    np.testing.assert_array_equal(same.update, exchange.update)
    np.testing.assert_array_equal(corrected.residual, f32([[5, 2, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]))
    assert same.schedule == exchange.schedule
    np.testing.assert_array_equal(same.sent, exchange.sent)


def test_gtopk_released_adds_in_double_precision_from_the_second_merge_on():
    # One index, pairs that sum to 1, s, s, s with s = 2^-24. In float32 1 + s is 1, so that 1 + 2 s results; in double
    # 1 + 3 s does, which is rounded once, at the end.
    small = 2.0**-24
    gradients = f32([[1], [0], [small], [0], [small], [0], [small], [0]])
    paper, released = (create("gtopk", 8, 1, 1.0, compat=compat) for compat in ("paper", "released"))
    assert paper.exchange(gradients).update[0] == np.float32(1 + 2 * small) / 8
    assert released.exchange(gradients).update[0] == np.float32(1 + 3 * small) / 8
    assert np.float32(1 + 3 * small) != np.float32(1 + 2 * small)
    assert not released.traits.conserves


# Gaussian-k


def gaussian_by_hand(values, density, rules):
    """Gaussian-k as the released codes have it: the indices selected, and the thresholds tried."""
    n, k = values.size, max(1, int(values.size * density))
    exact = values.astype(np.float64)
    if rules in ("original", "sidco"):
        exact = np.abs(exact)
    deviation = exact.std(ddof=1) if n > 1 else 0.0
    threshold = exact.mean() + deviation * distributions.norm.ppf(1 - density / 2)

    def count():
        return int((np.abs(values) > np.float32(threshold)).sum())

    tried = [threshold]
    if rules == "vgg":
        if count() < 3 * k // 4:
            while count() < 3 * k // 4 and len(tried) <= 20:
                threshold /= 1.02
                tried.append(threshold)
        elif count() > 5 * k // 4:
            while count() > 5 * k // 4 and len(tried) <= 20:
                threshold *= 1.02
                tried.append(threshold)
    elif rules in ("lstm", "bert"):
        least, most = (3 * k // 4, 50) if rules == "lstm" else (5 * k // 6, 20)
        while count() < least and len(tried) <= most:
            threshold /= 1.012
            tried.append(threshold)
    else:
        # What was counted with last is selected, and not what the threshold is corrected to after it.
        tried = []
        for _ in range(5 if rules == "original" else 3):
            tried.append(threshold)
            if count() < 2 * k / 3:
                threshold *= 0.5
            elif count() > 4 * k / 3:
                threshold *= 1.5
            else:
                break
        threshold = tried[-1]
    return np.flatnonzero(np.abs(values) > np.float32(threshold)), tried


@given(st.sampled_from(sorted(RULES)), jobs(kinds=KINDS))
def test_gaussiank_against_the_rules_written_out(rules, job):
    _, parameters, density, kind, seed = job
    if kind in ("constant", "alike", "ties") or density == 1e-9:
        return  # Where values tie with the threshold the last bit of the quantile decides.
    values = gradients_of(kind, 1, parameters, seed)
    exchange = create("gaussiank", 1, parameters, density, rules=rules).exchange(values)
    indices, tried = gaussian_by_hand(values[0], density, rules)
    assert exchange.stats["tries"][0] == len(tried)
    assert exchange.stats["threshold"][0] == pytest.approx(tried[-1], rel=1e-9, abs=1e-30)
    np.testing.assert_array_equal(np.flatnonzero(exchange.update), indices[values[0, indices] != 0])


@pytest.mark.parametrize("rules", ["vgg", "lstm", "bert"])
def test_gaussiank_hits_the_density_of_normal_gradients_at_once(rules):
    for density in (0.001, 0.01, 0.1):
        gradients = gradients_of("normal", 4, 200_000, 7)
        exchange = create("gaussiank", 4, 200_000, density, rules=rules).exchange(gradients)
        k = 200_000 * density
        assert (exchange.stats["tries"] == 1).all()
        assert (np.abs(exchange.selected - k) < 5 * math.sqrt(k)).all()


# SIDCo


@given(st.floats(1e-3, 1e3), st.integers(-45, 300), st.floats(1e-6, 1))
def test_fits_are_the_quantiles_of_their_distributions(scale, hundredths, delta):
    # Mean and variance of a generalised Pareto distribution of shape -kappa.
    kappa = hundredths / 100
    mean = scale / (1 + kappa)
    variance = scale**2 / ((1 + kappa) ** 2 * (1 + 2 * kappa))
    expected = distributions.genpareto.isf(delta, -kappa, scale=scale)
    assert generalised_pareto(mean, variance, delta) == pytest.approx(expected, rel=1e-6, abs=1e-9 * scale)
    assert exponential_quantile(mean, variance, delta) == pytest.approx(
        distributions.expon.isf(delta, scale=mean), rel=1e-9
    )


def signed(magnitude, rng):
    return (magnitude * rng.choice([-1, 1], magnitude.shape)).astype(np.float32)


def test_sidco_hits_the_density_of_what_each_distribution_describes():
    rng, n = np.random.default_rng(2), 300_000
    pareto = signed(rng.pareto(8.0, (2, n)), rng)
    sparse = signed(rng.gamma(0.4, size=(2, n)), rng)

    def off(gradients, **options):
        return np.abs(create("sidco", 2, n, 0.005, **options).exchange(gradients).selected / (n * 0.005) - 1).max()

    assert off(pareto, distribution="pareto", stages=1) < 0.1 < off(pareto, distribution="exponential", stages=1)
    assert off(sparse, distribution="gammapareto", stages=1) < 0.1 < off(sparse, distribution="exponential", stages=1)
    # Without error feedback by the closed form, which is exact for shape 1 only.
    quick = create("sidco", 2, n, 0.005, distribution="gammapareto", stages=1, error_feedback=False).exchange(sparse)
    expected = distributions.gamma.sf(-math.log(0.005) - math.lgamma(0.4), 0.4)
    assert quick.selected / n == pytest.approx(np.full(2, expected), rel=0.1)
    # Stages fit the tail alone: even the wrong distribution comes near.
    assert off(pareto, distribution="exponential", stages=3) < 0.2


def test_sidco_adapts_its_stages_to_what_it_sent():
    # Gamma distributions about the exponential one: shapes below 1 have heavier tails, above 1 lighter ones.
    rng, n, density, shapes = np.random.default_rng(3), 20_000, 0.01, (0.5, 0.8, 0.87, 0.92, 1.0, 1.2, 1.4, 3.0)
    model = create("sidco", len(shapes), n, density, error_feedback=False)
    stages, ratios, means = np.ones(len(shapes)), [], []
    for step in range(100):
        exchange = model.exchange(np.vstack([signed(rng.gamma(one, size=n), rng) for one in shapes]))
        np.testing.assert_array_equal(exchange.stats["stages"], stages)
        ratios.append(exchange.selected / (n * density))
        if step % 5 == 4:
            means.append(np.mean(ratios[-5:], axis=0))
            change = np.where(means[-1] > 1.2, -1, np.where(means[-1] < 0.8, 1, 0))
            stages = np.clip(stages + change, 1, 7)
    # Both limits have mattered, on either side of each, and not for all workers alike.
    counts = np.histogram(means, [0, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 99])[0]
    assert (counts > 0).all()
    assert len(set(stages.tolist())) > 1


def test_the_stages_stay_within_their_bounds():
    # Of a constant gradient nothing exceeds the threshold, whatever the stages: one more every 5 exchanges, up to
    # ceil(ln c / ln 0.5) = 10 at 0.001.
    model = create("sidco", 1, 100, 0.001)
    seen = [int(model.exchange(np.ones((1, 100), dtype=np.float32)).stats["stages"][0]) for _ in range(60)]
    assert seen == [min(1 + step // 5, 10) for step in range(60)]
    assert model.residual.min() == 60
    # The limits, from 4 stages: nothing is sent of zeros, so that only what was counted before matters.
    state = model.save()
    for mean, stages in ((1.19, 4), (1.21, 3), (0.81, 4), (0.79, 5)):
        counted = {"stages": np.array([[4]]), "ratios": np.array([[5 * mean]]), "calls": np.array(4)}
        model.restore({**state, **counted, "residual": np.zeros((1, 100), dtype=np.float32)})
        used = [model.exchange(np.zeros((1, 100), dtype=np.float32)).stats["stages"][0] for _ in range(2)]
        assert used == [4, stages]
    # Of two values half an entry is asked for and one is sent: never below one stage.
    few = create("sidco", 1, 2, 0.25)
    assert {few.exchange(f32([[9, 1]])).stats["stages"][0] for _ in range(12)} == {1}


@pytest.mark.parametrize("distribution", ["exponential", "pareto", "gammapareto"])
@pytest.mark.parametrize("stages", [-1, 0, 1, 2, 7])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_sidco_of_gradients_that_nothing_can_be_fitted_to(distribution, stages, error_feedback):
    options = {"distribution": distribution, "stages": stages, "error_feedback": error_feedback}
    for parameters in (1, 2, 5, 1000):
        for kind in KINDS:
            model = create("sidco", 2, parameters, 0.01, **options)
            exchange = model.exchange(gradients_of(kind, 2, parameters, 4))
            assert np.isfinite(exchange.stats["threshold"]).all()
            if kind == "zero":
                assert exchange.union == 0
        # At density 1 every threshold is 0 and all is sent.
        if error_feedback:
            gradients = gradients_of("heavy", 2, parameters, 5)
            whole = create("sidco", 2, parameters, 1.0, **options).exchange(gradients)
            np.testing.assert_array_equal(whole.update, (gradients[0] + gradients[1]) / np.float32(2))


def test_sidco_fits_each_layer_on_its_own():
    rng, sizes = np.random.default_rng(6), (50_000, 20_000, 30_000)
    layers = [rng.laplace(scale=scale, size=(1, size)) for scale, size in zip((1, 100, 0.01), sizes, strict=True)]
    gradients = np.hstack(layers).astype(np.float32)
    model = create("sidco", 1, 100_000, 0.01, layers=sizes, groups="layers")
    (chosen,) = selected_by(model, gradients)
    counts = np.diff(np.searchsorted(chosen, [0, 50_000, 70_000, 100_000]))
    np.testing.assert_allclose(counts, [500, 200, 300], rtol=0.25)
    # One threshold for all would take the large layer alone.
    (whole,) = selected_by(create("sidco", 1, 100_000, 0.01, layers=sizes), gradients)
    assert ((whole >= 50_000) & (whole < 70_000)).all()
    # Each layer is fitted as if it were alone.
    alone = create("sidco", 1, 20_000, 0.01).exchange(gradients[:, 50_000:70_000].copy())
    assert alone.selected[0] == counts[1]


# DGC


@given(st.integers(1, 3_000_000), st.one_of(st.floats(1e-4, 1), st.just(1e-9)))
def test_the_stride_gives_samples_enough(parameters, density):
    stride = sample_stride(parameters, density)
    fewest = math.ceil(2 / density)
    if parameters <= fewest:
        assert stride == 1
        return
    enough = max(math.ceil(parameters / 100), fewest)
    assert stride % 8 == 1
    assert parameters // stride >= enough
    # It is the first of start, start - 8, ... that does.
    assert stride == math.ceil(parameters / enough / 32) * 32 + 1 or parameters // (stride + 8) < enough


@given(jobs(kinds=KINDS), st.sampled_from(sorted(DGC_VARIANTS)))
def test_dgc_density_is_within_its_bounds_or_adaptation_has_ended(job, name):
    _, parameters, density, kind, seed = job
    gradients = gradients_of(kind, 1, parameters, seed)
    model, variant = create("dgc", 1, parameters, density, variant=name, seed=seed), DGC_VARIANTS[name]
    exchange = model.exchange(gradients)
    count, ended = exchange.selected[0], exchange.stats["tries"][0] == variant.adaptations + 1
    every = name == "original" and sample_stride(parameters, density) == 1
    if variant.truncated:
        assert count <= model.k
    if not ended and not every and parameters > 1:
        assert variant.lower * model.k <= count <= variant.upper * model.k
    if every and np.unique(np.abs(gradients)).size == parameters:
        assert count == model.k


def test_dgc_takes_the_exact_top_k_where_far_too_many_are_above():
    # A tenth of the entries are not zero, the sample of the sparse gradient has the threshold 0, and all are above.
    rng = np.random.default_rng(9)
    gradients = np.zeros((1, 100_000), dtype=np.float32)
    where = rng.choice(100_000, 500, replace=False)
    gradients[0, where] = rng.standard_normal(500)
    model = create("dgc", 1, 100_000, 0.01)
    exchange = model.exchange(gradients)
    assert exchange.selected[0] == 1000
    np.testing.assert_array_equal(exchange.update, gradients[0])
    # Without the exact top-k nothing lifts a threshold of 0, however often it is tried.
    for variant, adaptations in (("grace", 10), ("adtopk", 2)):
        other = create("dgc", 1, 100_000, 0.01, variant=variant).exchange(gradients)
        assert other.selected[0] == 100_000
        assert other.stats["tries"][0] == 1 + adaptations


@pytest.mark.parametrize("masking", [True, False, None])
def test_dgc_momentum_correction_and_masking(masking):
    # Up to 2 / c entries the sample is the whole gradient and the selection exact.
    rng, P, n, m = np.random.default_rng(10), 3, 20, 0.75
    # The paper masks.
    model = create("dgc", P, n, 0.1, momentum=m, **({} if masking is None else {"masking": masking}))
    u, v = np.zeros((P, n)), np.zeros((P, n))
    for _ in range(12):
        gradients = rng.integers(-99, 100, (P, n)).astype(np.float32)
        u = m * u + gradients
        v += u
        update = np.zeros(n)
        for worker in range(P):
            chosen = sorted(range(n), key=lambda i, w=worker: (-abs(v[w, i]), i))[:2]
            update[chosen] += v[worker, chosen] / P
            v[worker, chosen] = 0
            if masking is not False:
                u[worker, chosen] = 0
        added, before = m * model.save()["velocity"].sum(0), model.residual.sum(0)
        exchange = model.exchange(gradients)
        np.testing.assert_allclose(exchange.update, update, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(model.residual, v, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(model.save()["velocity"], u, rtol=1e-5, atol=1e-3)
        # Velocities are conserved: what comes out beyond the gradients is what momentum has added.
        created = P * exchange.update + model.residual.sum(0) - before - gradients.sum(0)
        np.testing.assert_allclose(created, added, atol=1e-2)
        assert not model.traits.conserves
        assert exchange.stats["lost"] == pytest.approx(np.linalg.norm(created), abs=1e-2)
        assert (exchange.stats["worker_gain"] <= 1).all()


def test_dgc_warms_up_through_its_densities():
    model = create("dgc", 2, 10_000, 0.001, warm_up=(0.25, 0.063, 0.015, 0.004), warm_up_exchanges=2)
    for step, k in enumerate([2500, 2500, 630, 630, 150, 150, 40, 40, 10, 10]):
        exchange = model.exchange(gradients_of("normal", 2, 10_000, step))
        assert (exchange.selected <= k).all()
        assert (exchange.selected >= 0.8 * k).all()
        assert exchange.stats["density_error"] == abs(exchange.stats["density"] - k / 10_000)
        assert model.density == 0.001
    model.iteration = 0
    with pytest.raises(ValueError, match="must have shape"):
        model.exchange(np.zeros((2, 3), dtype=np.float32))
    assert model.density == 0.001


# RedSync


@given(jobs(kinds=KINDS), st.sampled_from([0.2, 0.01, 1e-4]))
def test_redsync_keeps_between_k_and_2k_when_it_finds_a_threshold(job, interval):
    _, parameters, density, kind, seed = job
    gradients = gradients_of(kind, 1, parameters, seed)
    model = create("redsync", 1, parameters, density, interval=interval)
    exchange = model.exchange(gradients)
    count, tries, halvings = exchange.selected[0], exchange.stats["tries"][0], math.ceil(-math.log2(interval))
    assert 1 <= tries <= halvings
    if tries < halvings:
        assert model.k < count < 2 * model.k
    # The same by trying every q of the last interval's resolution.
    magnitude = np.abs(gradients[0]).astype(np.float64)
    mean = magnitude.mean()
    low, high, q = 0.0, 1.0, 0.5
    for _ in range(int(tries)):
        q = (low + high) / 2
        above = np.count_nonzero(magnitude > np.float32(mean + q * (magnitude.max() - mean)))
        low, high = (low, q) if above < model.k / 2 else (q, high)
    assert exchange.stats["threshold"][0] == pytest.approx(mean + q * (magnitude.max() - mean), rel=1e-9)


def test_redsync_ends_between_k_and_2k_or_at_half_of_k_if_the_interval_is_fine_enough():
    ends = set()
    for kind in ("normal", "heavy"):
        gradients = gradients_of(kind, 16, 100_000, 0)
        fine = create("redsync", 16, 100_000, 0.01, interval=1e-9).exchange(gradients)
        found = (fine.selected > 1000) & (fine.selected < 2000)
        # Above k/2 the rule raises the threshold, below it lowers it.
        assert (found | (abs(fine.selected - 500) <= 1)).all()
        ends |= set(found.tolist())
    assert ends == {True, False}
    # Three halvings do not reach down from outliers: q = 1/8 is far above k.
    coarse = create("redsync", 16, 100_000, 0.01).exchange(gradients)
    assert (coarse.selected < 500).all()
    assert (coarse.stats["tries"] == 3).all()


@given(jobs(kinds=KINDS))
def test_trimmed_top_k_is_the_top_k(job):
    workers, parameters, density, kind, seed = job
    model = create("redsync", workers, parameters, density, trimmed=True)
    exact = create("topka", workers, parameters, density)
    gradients = gradients_of(kind, workers, parameters, seed)
    ours, theirs = model.exchange(gradients), exact.exchange(gradients)
    np.testing.assert_array_equal(ours.update, theirs.update)
    np.testing.assert_array_equal(model.residual, exact.residual)
    np.testing.assert_array_equal(ours.stats["threshold_error"], 0)
