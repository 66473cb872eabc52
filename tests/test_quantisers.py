"""Quantisers and PowerSGD: what rounding does on average and at worst, the bytes, what is kept, against brute force."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradients import KINDS as COMMON_KINDS
from gradients import f32, gradients_of, jobs
from simnet.base.rng import stream
from simnet.sparsifier_models import create
from simnet.sparsifier_models.dense import round_to_format
from simnet.sparsifier_models.powersgd import orthonormal
from simnet.sparsifier_models.qsgd import code_counts, elias_length, levels_of, norms_of

EPS = float(np.finfo(np.float32).eps)
LARGEST = float(np.finfo(np.float32).max)
KINDS = [*COMMON_KINDS, "tiny", "large"]


# Half precision


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
@example([65504.0, 65519.0, 65520.0, 1e30, -1e30, 5.9604645e-08, 2.9802322e-08, 1e-45, -0.0])
def test_rounding_to_half_is_that_of_numpy_up_to_the_largest(values):
    values = f32(values)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    expected = np.where(np.isinf(expected), np.copysign(65504, values), expected)
    np.testing.assert_array_equal(round_to_format(values, "fp16"), expected)


@settings(max_examples=50)
@given(jobs(300, KINDS))
def test_fp16_is_the_mean_of_the_halves_and_keeps_what_rounding_cut(job):
    workers, parameters, _, _, seed = job
    gradients = gradients_of("normal", workers, parameters, seed)
    model = create("fp16", workers, parameters)
    exchange = model.exchange(gradients)
    halves = gradients.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(exchange.update, halves.mean(0), rtol=0, atol=workers * EPS * np.abs(halves).max())
    np.testing.assert_array_equal(model.residual, gradients - halves)
    mean = gradients.mean(0, dtype=np.float64)
    assert (np.abs(exchange.update - mean) <= (2**-11 + workers * EPS) * np.abs(gradients).mean(0) + 2**-25).all()


def test_what_is_too_large_for_half_precision_follows_in_later_exchanges():
    model = create("fp16", 2, 2)
    total = 2 * model.exchange(f32([[200_000, 1], [-1e6, 1]])).update.astype(np.float64)
    np.testing.assert_array_equal(total, [0, 2])
    np.testing.assert_array_equal(model.residual, f32([[200_000 - 65504, 0], [65504 - 1e6, 0]]))
    for _ in range(20):
        total += 2 * model.exchange(np.zeros((2, 2), dtype=np.float32)).update.astype(np.float64)
    np.testing.assert_array_equal(total, [-800_000, 2])
    assert not model.residual.any()
    without = create("fp16", 1, 1, error_feedback=False)
    assert without.exchange(f32([[1e30]])).update == 65504
    assert without.exchange(f32([[0]])).update == 0


def test_sums_in_half_precision_are_those_of_float16_and_never_overflow():
    gradients = gradients_of("normal", 6, 1000, 3)
    model = create("fp16", 6, 1000, accumulation="half")
    exchange = model.exchange(gradients)
    total = np.zeros(1000, dtype=np.float16)
    for row in gradients:
        total = total + (row / np.float32(6)).astype(np.float16)
    np.testing.assert_array_equal(exchange.update, total)
    assert exchange.stats["lost"] > 0
    assert "lost" not in create("fp16", 6, 1000).exchange(gradients).stats
    too_large = create("fp16", 4, 1, accumulation="half")
    exchange = too_large.exchange(np.full((4, 1), 1e6, dtype=np.float32))
    assert (exchange.update[0], exchange.stats["lost"]) == (65504, 0)
    assert (too_large.residual == 1e6 - 65504).all()
    full = create("fp16", 7, 1, accumulation="half").exchange(np.full((7, 1), 3e38, dtype=np.float32)).update
    assert 65000 <= full[0] <= 65504
    bf16 = create("fp16", 7, 1, accumulation="half", format="bf16").exchange(np.full((7, 1), LARGEST, np.float32))
    assert 0.97 * LARGEST < bf16.update[0] <= LARGEST


def test_bf16_rounds_to_the_nearest_and_ties_to_even():
    upper = np.arange(0x3F00, 0x4100, dtype=np.uint32)
    for below, up in ((0x7FFF, 0), (0x8000, upper & 1), (0x8001, 1)):
        gradients = (upper << 16 | np.uint32(below)).view(np.float32)[np.newaxis]
        update = create("fp16", 1, upper.size, format="bf16", error_feedback=False).exchange(gradients).update
        np.testing.assert_array_equal(update.view(np.uint32) >> 16, upper + up)


@pytest.mark.parametrize("s", [1, 3, 7, 127])
def test_levels_are_right_on_average_exactly(s):
    # Ratios are multiples of 1 / m and draws mid-points of m intervals, so that the mean over draws is the integral.
    m, values = 64, np.random.default_rng(s).integers(-64, 65, 50) / 64
    uniform = np.tile((np.arange(m) + 0.5) / m, (50, 1))
    buckets = np.repeat(f32(values)[:, np.newaxis], m, axis=1)
    levels = levels_of(buckets, np.ones(50, dtype=np.float32), s, uniform)
    np.testing.assert_allclose(levels.mean(axis=1), s * values, rtol=0, atol=1e-12)
    below = np.floor(s * np.abs(values))[:, np.newaxis]
    assert ((np.abs(levels) == below) | (np.abs(levels) == below + 1)).all()
    assert np.abs(levels).max() <= s


# QSGD


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize(("s", "bucket"), [(1, 40), (7, 16), (127, 100)])
def test_qsgd_is_unbiased_with_the_variance_of_its_rounding(norm, s, bucket):
    workers, n, repeats = 3, 100, 400
    gradients = gradients_of("heavy", workers, n, 5)
    model = create("qsgd", workers, n, levels=s, bucket=bucket, norm=norm, error_feedback=False)
    updates = np.array([model.exchange(gradients).update for _ in range(repeats)], dtype=np.float64)
    variance = np.zeros(n)
    for row in gradients.astype(np.float64):
        for start in range(0, n, bucket):
            part = row[start : start + bucket]
            size = np.linalg.norm(part) if norm == "l2" else np.abs(part).max()
            p = s * np.abs(part) / size % 1
            variance[start : start + bucket] += (size / s) ** 2 * p * (1 - p) / workers**2
    error = updates.mean(0) - gradients.mean(0, dtype=np.float64)
    scale = np.abs(gradients).max()
    assert (np.abs(error) <= 5.5 * np.sqrt(variance / repeats) + 1e-5 * scale).all()
    measured = np.square(updates - gradients.mean(0, dtype=np.float64)).sum(1)
    assert measured.mean() == pytest.approx(variance.sum(), rel=6 * measured.std() / variance.sum() / repeats**0.5)


@settings(max_examples=100)
@given(
    st.integers(1, 300), st.integers(1, 130), st.sampled_from(["normal", "heavy", "sparse", "ties", "constant"]),
    st.integers(0, 999),
)  # fmt: skip
def test_the_variance_stays_below_the_bound_of_lemma_3_1(d, s, kind, seed):
    vector = gradients_of(kind, 1, d, seed)
    norm = float(norms_of(vector, "l2")[0])
    p = s * np.abs(vector.astype(np.float64)) / norm % 1 if norm else np.zeros(1)
    expected = float((norm / s) ** 2 * (p * (1 - p)).sum())
    bound = min(d / s**2, math.sqrt(d) / s) * norm**2
    assert expected <= bound * (1 + 1e-6)
    # Whatever is drawn, no entry is off by more than a level.
    model = create("qsgd", 1, d, levels=s, bucket=d, seed=seed)
    error = np.abs(model.exchange(vector).update - vector)
    assert error.max() <= norm / s * (1 + 4 * EPS)


def test_the_largest_numbers_are_quantised_without_overflow():
    update = create("qsgd", 1, 600, levels=3).exchange(np.full((1, 600), -LARGEST, dtype=np.float32)).update
    assert (update == -LARGEST).all()


def elias_omega(number):
    """Elias's recursive code, as a string."""
    code = "0"
    while number > 1:
        binary = f"{number:b}"
        code = binary + code
        number = len(binary) - 1
    return code


def read_omega(bits, at):
    number = 1
    while bits[at] == "1":
        number, at = int(bits[at : at + number + 1], 2), at + number + 1
    return number, at + 1


def encoded(levels):
    """Code of a bucket: distance to the next entry other than zero, sign, level."""
    code, last = "", -1
    for at, level in enumerate(levels):
        if level:
            code += elias_omega(at - last) + ("1" if level < 0 else "0") + elias_omega(abs(level))
            last = at
    return code


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=20))
def test_elias_lengths_are_those_of_the_code(numbers):
    assert elias_length(np.array(numbers)).tolist() == [len(elias_omega(one)) for one in numbers]
    bits, at, read = "".join(map(elias_omega, numbers)), 0, []
    while at < len(bits):
        number, at = read_omega(bits, at)
        read.append(number)
    assert read == numbers


@given(
    st.integers(1, 200), st.integers(1, 60), st.sampled_from([1, 3, 127]), st.sampled_from(KINDS), st.integers(0, 99)
)
def test_bytes_of_elias_coding_are_those_of_the_code_spelt_out(n, bucket, s, kind, seed):
    gradients = gradients_of(kind, 2, n, seed)
    options = {"levels": s, "bucket": bucket, "norm": "max", "seed": seed}
    exchange = create("qsgd", 2, n, coding="elias", **options).exchange(gradients)
    expected = []
    for worker, row in enumerate(gradients):
        draws = stream(seed, "qsgd", 0, worker).random(n)
        bits = ""
        for start in range(0, n, bucket):
            part = row[start : start + bucket].astype(np.float64)
            unit = np.abs(part).max() / s
            levels = np.floor(np.abs(part) / unit + draws[start : start + bucket]) if unit else np.zeros(part.size)
            bits += encoded((np.minimum(levels, s) * np.sign(part)).astype(int).tolist())
        expected.append(math.ceil(len(bits) / 8) + 4 * math.ceil(n / bucket))
    # A level within rounding of the next one could go either way; that is rarer than these examples.
    assert exchange.schedule.bytes_sent().tolist() == expected
    fixed = create("qsgd", 2, n, **options).exchange(gradients)
    np.testing.assert_array_equal(fixed.update, exchange.update)


def test_code_counts_start_anew_in_every_bucket():
    levels = np.array([[0, 3, 0, -1], [0, 0, 0, 0], [0, 0, 2, 0], [1, 0, 0, 0]], dtype=np.float64)
    magnitudes, distances = code_counts(levels, 3)
    assert magnitudes.tolist() == [0, 2, 1, 1]
    assert distances.tolist() == [0, 1, 2, 1, 0]


# SignSGD


@given(jobs(300, KINDS))
def test_the_majority_decides_and_ties_are_drawn(job):
    workers, parameters, _, kind, seed = job
    gradients = gradients_of(kind, workers, parameters, seed)
    model = create("signsgd", workers, parameters, scaled=False, seed=seed)
    exchange = model.exchange(gradients)
    for index in range(parameters):
        votes = sum(1 if gradients[worker, index] >= 0 else -1 for worker in range(workers))
        assert exchange.update[index] in ((-1, 1) if votes == 0 else (1 if votes > 0 else -1,))
    assert not model.residual.any()
    lost = gradients.sum(0, dtype=np.float64) - workers * exchange.update.astype(np.float64)
    assert exchange.stats["lost"] == pytest.approx(np.linalg.norm(lost), rel=1e-6)
    scaled = create("signsgd", workers, parameters, seed=seed).exchange(gradients).update
    scale = np.abs(gradients.astype(np.float64)).mean(1).astype(np.float32).mean(dtype=np.float64)
    np.testing.assert_allclose(scaled, exchange.update * scale, rtol=2 * EPS)


def test_ties_fall_either_way_alike():
    rows = np.ones((4, 10_000), dtype=np.float32)
    rows[:2] = -1
    first, again = (create("signsgd", 4, 10_000, seed=3, scaled=False) for _ in range(2))
    update = first.exchange(rows).update
    assert abs(update.sum()) < 5 * math.sqrt(10_000)
    np.testing.assert_array_equal(update, again.exchange(rows).update)
    assert (update != first.exchange(rows).update).any()


@given(
    st.integers(1, 9), st.integers(1, 200), st.sampled_from(["normal", "heavy", "sparse", "ties"]), st.integers(0, 99)
)
def test_the_mean_of_scaled_signs_is_ef_signsgd(workers, n, kind, seed):
    model = create("signsgd", workers, n, vote="mean")
    e = np.zeros((workers, n))
    for step in range(4):
        gradients = gradients_of(kind, workers, n, seed + step)
        p = gradients + e
        delta = np.abs(p).sum(1, keepdims=True) / n * np.where(p >= 0, 1, -1)
        e = p - delta
        exchange = model.exchange(gradients)
        if (np.abs(p) < 1e-3 * np.abs(p).max()).any():
            # A sum this close to zero may have another sign in single precision.
            e = model.residual.astype(np.float64)
            continue
        tolerance = 1e-5 * np.abs(p).max()
        np.testing.assert_allclose(exchange.update, delta.mean(0), rtol=0, atol=tolerance)
        np.testing.assert_allclose(model.residual, e, rtol=0, atol=tolerance)


@given(st.integers(1, 200), st.sampled_from(["normal", "heavy", "sparse", "constant"]), st.integers(0, 99))
def test_scaled_signs_contract_by_the_share_of_lemma_8(n, kind, seed):
    # Karimireddy et al., Lemma 8: the error is (1 - ||v||_1^2 / (n ||v||_2^2)) of the squared norm.
    model, vector = create("signsgd", 1, n, vote="mean"), gradients_of(kind, 1, n, seed)
    model.exchange(vector)
    l1, l2 = np.abs(vector.astype(np.float64)).sum(), np.square(vector, dtype=np.float64).sum()
    assert np.square(model.residual, dtype=np.float64).sum() == pytest.approx(l2 - l1**2 / n, rel=1e-5, abs=1e-5 * l2)


# PowerSGD


def projected(matrix, Q):
    """One step of power iteration from Q, by LAPACK: the projection of the matrix on the range of M Q."""
    basis, _ = np.linalg.qr(matrix @ Q)
    return basis @ (basis.T @ matrix)


@given(st.integers(1, 9), st.integers(3, 40), st.integers(3, 40), st.integers(1, 4), st.integers(0, 999))
def test_the_update_is_the_mean_projected_on_the_range_of_its_image(workers, rows, columns, rank, seed):
    if rank * (rows + columns) >= rows * columns:
        return
    gradients = np.random.default_rng(seed).standard_normal((workers, rows * columns)).astype(np.float32)
    options = {"rank": rank, "shapes": [(rows, columns)], "seed": seed}
    exchange = create("powersgd", workers, rows * columns, **options).exchange(gradients)
    mean = gradients.mean(0, dtype=np.float64).reshape(rows, columns)
    Q = stream(seed, "powersgd", 0, 0).standard_normal((min(rank, rows, columns), columns)).T
    np.testing.assert_allclose(exchange.update.reshape(rows, columns), projected(mean, Q), atol=3e-4)
    released = create("powersgd", workers, rows * columns, compat="released", **options).exchange(gradients)
    np.testing.assert_allclose(released.update, exchange.update, atol=1e-5)
    # What each worker sent is its own part in that range, and the mean of the parts is the update.
    assert exchange.sent.mean() >= np.square(exchange.update, dtype=np.float64).sum() * (1 - 1e-5)


@given(
    st.integers(1, 9), st.integers(8, 40), st.integers(8, 40), st.integers(1, 3), st.integers(0, 2), st.integers(0, 999)
)
def test_matrices_of_low_rank_pass_unharmed(workers, rows, columns, true_rank, surplus, seed):
    rng, rank = np.random.default_rng(seed), true_rank + surplus
    model = create("powersgd", workers, rows * columns, rank=rank, shapes=[(rows, columns)], warm_start=False)
    left = rng.standard_normal((rows, true_rank))
    for _ in range(3):
        # The same column space at every worker; exactly dependent columns, in whole numbers, in between.
        right = rng.integers(-3, 4, (workers, true_rank, columns))
        Q = stream(0, "powersgd", model.iteration, 0).standard_normal((rank, columns)).T
        seen = np.linalg.svd(right.mean(0) @ Q, compute_uv=False)
        gradients = (left @ right).reshape(workers, -1).astype(np.float32)
        model.residual = np.zeros_like(gradients)
        update = model.exchange(gradients).update
        if seen[true_rank - 1] > 0.02 * seen[0]:
            # Single precision, times the condition of M Q: what Q hardly sees of the columns does not pass.
            tolerance = 2e-3 * (1 + np.abs(gradients).max())
            np.testing.assert_allclose(update, gradients.mean(0), atol=tolerance)
            assert np.abs(model.residual).max() <= tolerance


def test_a_warm_start_finds_the_best_approximation_and_a_cold_one_does_not():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((30, 30)))[0] for _ in range(2))
    singular = 0.8 ** np.arange(30)
    matrix = left @ np.diag(singular) @ right
    best = math.sqrt(np.square(singular[2:]).sum())

    def error(**options):
        model = create("powersgd", 2, 900, shapes=[(30, 30)], error_feedback=False, **options)
        for _ in range(30):
            update = model.exchange(np.tile(matrix.ravel(), (2, 1)).astype(np.float32)).update
        return np.linalg.norm(update - matrix.ravel())

    assert best * (1 - 1e-6) <= error() <= 1.001 * best
    assert error(warm_start=False) > 1.02 * best


def test_a_gradient_of_zero_does_not_end_the_power_iteration():
    model, gradients = create("powersgd", 3, 400), gradients_of("normal", 3, 400, 0)
    for _ in range(2):
        assert not model.exchange(np.zeros_like(gradients)).update.any()
    assert np.linalg.norm(model.exchange(gradients).update) > 0.1


def test_overflow_of_a_factor_is_refused():
    # Ten workers whose entries add up to less than the largest number, but whose columns, or rows along Q, do not.
    Q = stream(0, "powersgd", 0, 0).standard_normal(100)
    for signs in (np.ones(100), np.sign(Q)):
        gradients = np.tile(signs * 2e37, (10, 100)).astype(np.float32)
        model = create("powersgd", 10, 10_000, rank=1)
        with pytest.raises(ValueError, match="the sum of a factor over the workers overflows float32"):
            model.exchange(gradients)
        assert model.iteration == 0
        model.exchange(gradients * np.float32(1e-3))


def test_what_a_worker_keeps_is_its_own_part_or_the_update_as_in_the_released_code():
    gradients = gradients_of("normal", 4, 900, 2)
    model = create("powersgd", 4, 900, compat="released")
    update = model.exchange(gradients).update
    np.testing.assert_array_equal(model.residual, gradients - update)
    paper = create("powersgd", 4, 900)
    exchange = paper.exchange(gradients)
    # An orthogonal projection: what is sent and what is kept add up like the legs of a right-angled triangle.
    np.testing.assert_allclose(
        exchange.sent + np.square(paper.residual, dtype=np.float64).sum(1),
        np.square(gradients, dtype=np.float64).sum(1), rtol=1e-5,
    )  # fmt: skip


@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 99))
def test_gram_schmidt(r, a, seed):
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((r, a)) * 10.0 ** rng.integers(-30, 30, (r, 1))
    columns[rng.random(r) < 0.2] = 0
    basis = orthonormal(columns)
    found = basis.any(axis=1)
    np.testing.assert_allclose(basis @ basis.T, np.diag(found.astype(float)), atol=1e-9)
    np.testing.assert_allclose((columns @ basis.T) @ basis, columns, atol=1e-5 * np.linalg.norm(columns, axis=1).max())


def resnet18_of_cifar():
    shapes, planes = [(64, 3, 3, 3), (64,), (64,)], 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, planes, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if planes != width and block == 0:
                shapes += [(width, planes, 1, 1), (width,), (width,)]
            planes = width
    return [*shapes, (10, 512), (10,)]


@pytest.mark.parametrize(("rank", "published"), [(1, 243), (2, 136), (4, 72)])
def test_bytes_of_resnet18_are_those_of_the_paper(rank, published):
    # Vogels et al., compression of ResNet-18 on CIFAR-10, biases not compressed.
    n = 11_173_962
    model = create("powersgd", 2, n, rank=rank, shapes=resnet18_of_cifar())
    assert round(n / sum(model.lengths)) == published
