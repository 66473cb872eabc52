"""Compressors of low-communication training: golden runs, blocks, transform, quantisers, packing, mass, bytes."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradients import KINDS, f32, gradients_of
from jobs import star
from looping import each
from simnet import sparsifier_models
from simnet.cost_models.costs.devices import load_device
from simnet.cost_models.costs.models import load_model as model_named
from simnet.policies import Candidate, Ramp
from simnet.sparsifier_models.chunking import mean_of_sent, places, tiles
from simnet.sparsifier_models.codes import (
    linear,
    pack_12,
    pack_bits,
    packed_bytes,
    statistical,
    uncentred,
    unpack_12,
    unpack_bits,
)
from simnet.traces import synthetic
from simnet.traces.source import tensor_options
from simnet.training.job.job import Compute, Job, create_sparsifier, gradient_buckets
from variants import CCLOCO, TEMPLAR

CODES = {"ccloco": CCLOCO, "templar": TEMPLAR}


def create(name, workers, parameters, density=1.0, **options):
    """Return a scheme; ccloco and templar are sparseloco by these codes."""
    scheme = "sparseloco" if name in CODES else name
    return sparsifier_models.create(scheme, workers, parameters, density, **CODES.get(name, {}) | options)


GOLDEN = Path(__file__).parent / "golden" / "lowcomm"
LAYERS = [("w1", [32, 48]), ("w2", [24, 40]), ("b", 70)]
N = 2566
TENSORS = ("w1", "w2", "b")

CASES = {
    "demo_c16_k4": ("demo", {"chunk": 16, "topk": 4, "gain": 1e-3}),
    "ccloco_c16_k4": ("ccloco", {"chunk": 16, "topk": 4, "gain": 0.7, "compat": "released"}),
    "ccloco_c16_k4_q256": ("ccloco", {"chunk": 16, "topk": 4, "gain": 0.7, "bins": 256, "compat": "released"}),
    "ccloco_c16_k4_q4": ("ccloco", {"chunk": 16, "topk": 4, "gain": 0.7, "bins": 4, "compat": "released"}),
    "sparseloco_c16_k8": ("sparseloco", {"chunk": 16, "topk": 8, "gain": 0.8, "bins": None}),
    "sparseloco_c16_k8_q4": ("sparseloco", {"chunk": 16, "topk": 8}),
    "templar_c16_k8_q4": ("templar", {"chunk": 16, "topk": 8}),
    "muloco_stat_q4": ("muloco", {"decay": 0.9, "gain": 0.7, "bins": 4}),
    "muloco_rowstat_q4": ("muloco", {"decay": 0.9, "gain": 0.7, "bins": 4, "compressor": "row_wise_statistical"}),
    "muloco_topk05": ("muloco", {"decay": 0.9, "gain": 0.7, "density": 0.05, "compressor": "topk"}),
}  # fmt: skip


def golden_model(case, P):
    name, options = CASES[case]
    return create(name, P, N, layers=LAYERS, wire="released", **options)


def buffers(model, gradients):
    """Return what each worker compresses."""
    decay, gain = map(np.float32, model.traits.weights)
    return decay * model.residual + gain * gradients


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def steps_of(case, P, folder):
    """Yield number, recording, model, what workers compress, and the exchange, step by step."""
    inputs, run = (np.load(folder / f"{one}.npz") for one in ("inputs", f"{case}.P{P}"))
    model, theta, momentum = golden_model(case, P), inputs["theta0"], 0
    for t in range(min(len(run["tx_bytes"]), len(inputs["grad"]))):
        gradients = inputs["grad"][t, :P]
        if model.name == "muloco":
            # Old less new parameters, with the rounding of both.
            gradients = theta - (theta - gradients)
        compressed = buffers(model, gradients)
        exchange = model.exchange(gradients)
        momentum = np.float32(0.9) * momentum + exchange.update
        theta = theta - np.float32(0.7) * (exchange.update + np.float32(0.9) * momentum)
        yield t, run, model, compressed, exchange


def check_transmitted(t, run, model, compressed, tensor):
    """Hold what workers send of a tensor against what they sent."""
    which = TENSORS.index(tensor)
    place, how = model.tensors[which] if model.name == "muloco" else model.tensors[which].parts[0]
    for worker, row in enumerate(compressed):
        if model.name == "muloco":
            values, about = run[f"values_{tensor}"][t, worker], run[f"metadata_{tensor}"][t, worker]
            if model.options.compressor == "topk":
                kept = about[3 + len(how) :]
                sent = model._sent(row[place], how, len(kept))
                assert set(np.flatnonzero(sent)) == set(kept.tolist())
                assert_near(sent[kept], values)
                continue
            coded = model.coded(row[place], how)
            np.testing.assert_array_equal(pack_bits(coded.codes.ravel(), 2), values)
            first = 2 if model.options.compressor == "statistical" else 1
            described = [*coded.offset, *coded.table.ravel()]
            numbers = np.delete(about, range(first - 1, first + len(how) + 1 + (first == 1)))
            assert_near(described, numbers)
            continue
        found = model.contribution(row[place], how, model._top(how))
        sent, values = run[f"idx_{tensor}"][t, worker], run[f"val_{tensor}"][t, worker]
        order = np.argsort(sent, axis=1)
        np.testing.assert_array_equal(found.indices, np.take_along_axis(sent, order, axis=1))
        values = np.take_along_axis(values, order, axis=1)
        if found.coded is None:
            assert_near(found.values, values)
            continue
        np.testing.assert_array_equal(found.coded.codes.reshape(values.shape), values)
        table = [*found.coded.offset, *found.coded.table[0]]
        name = (
            f"shift_lookup_scale_{tensor}"
            if getattr(model.options, "code", "") == "templar"
            else f"shift_lookup_{tensor}"
        )
        assert_near(table, run[name][t, worker][: len(table)])
        if getattr(model.options, "code", "") == "templar" and t < len(run[f"packed_idx_{tensor}"]):
            packed = run[f"packed_idx_{tensor}"][t, worker]
            np.testing.assert_array_equal(pack_12(sent.ravel()), packed)
            np.testing.assert_array_equal(unpack_12(packed, sent.size), sent.ravel())


def check_run(case, P, folder):
    for t, run, model, compressed, exchange in steps_of(case, P, folder):
        for tensor in TENSORS:
            check_transmitted(t, run, model, compressed, tensor)
        for name, found in (("update", exchange.update), ("residual", model.residual)):
            for place in np.flatnonzero(run[f"{name}_steps"] == t):
                assert_near(found, run[name][place])
        np.testing.assert_array_equal(exchange.stats["contributed"], run["tx_bytes"][t])
        np.testing.assert_allclose(exchange.schedule.bytes_sent().sum(), P * (P - 1) * run["tx_bytes"][t, 0])
        if "rx_bytes" in run:
            # What the released code counts, its own share included.
            total = exchange.schedule.bytes_received().mean() + exchange.stats["contributed"]
            np.testing.assert_array_equal(total, run["rx_bytes"][t])


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_golden_run(case, P):
    check_run(case, P, GOLDEN)


@pytest.mark.parametrize("case", CASES)
def test_every_step_of_the_golden_runs(case, shared):
    for P in (2, 4):
        check_run(case, P, shared / "papers" / "data" / "lowcomm")


def check_ring(P, folder):
    inputs, run = (np.load(folder / f"{one}.npz") for one in ("inputs", f"prime_int8ring.P{P}"))
    for t in range(min(len(run["result"]), len(inputs["grad"]))):
        exchange = create("int8ring", P, 2560).exchange(inputs["grad"][t, :P, :2560])
        np.testing.assert_allclose(exchange.replicas, run["result"][t], rtol=0, atol=1e-8)
        np.testing.assert_allclose(exchange.update, run["result"][t].mean(0), rtol=0, atol=1e-8)
        np.testing.assert_array_equal(exchange.schedule.bytes_sent(), run["tx_bytes"][t])


@pytest.mark.parametrize("P", [2, 4])
def test_golden_ring(P):
    check_ring(P, GOLDEN)


def test_every_round_of_the_golden_ring(shared):
    for P in (2, 4):
        check_ring(P, shared / "papers" / "data" / "lowcomm")


# Settings that other golden runs have can be asked for.


@each("name, options", [
    ("demo", {"chunk": 64, "topk": 32}),
    ("ccloco", {"chunk": 16, "topk": 4, "gain": 0.7, "dct": True, "decay": 0.95}),
    ("templar", {"chunk": 16, "topk": 4}),
    ("muloco", {"compressor": "linear", "bins": 4, "decay": 0.9, "gain": 0.7}),
])  # fmt: skip
def test_other_settings(name, options):
    model = create(name, 2, N, layers=LAYERS, wire="released", **options)
    exchange = model.exchange(gradients_of("heavy", 2, N, 0))
    # 7 numbers of four bytes beside the lengths of the axes; two bits an entry.
    expected = {"demo": 12 * 32 * 4, "ccloco": 12 * 4 * 19, "templar": 2.5 * 4 * 19, "muloco": 642 + 4 * (9 + 9 + 8)}
    assert (exchange.stats["contributed"] == expected[name]).all()


# Blocks

shapes = st.one_of(st.tuples(st.integers(1, 70), st.integers(1, 70)), st.tuples(st.integers(1, 300)))


@given(shapes, st.integers(1, 20), st.integers(0, 99))
def test_the_transform_is_orthonormal_and_comes_back(shape, most, seed):
    blocks = tiles(shape, most)
    cut = blocks.cut(gradients_of("heavy", 1, math.prod(shape), seed)[0])
    found = blocks.coefficients(cut)
    scale = np.abs(cut).max()
    np.testing.assert_allclose(blocks.entries(found), cut, rtol=0, atol=1e-13 * scale * blocks.size)
    wide = np.square(cut.astype(np.float64)).sum(1)
    np.testing.assert_allclose(np.square(found).sum(1), wide, rtol=1e-12)
    # The first coefficient is the mean, times the root of the number of entries.
    np.testing.assert_allclose(found[:, 0], cut.mean(1, dtype=np.float64) * blocks.size**0.5, atol=1e-12 * scale)


def test_a_mean_over_contributors_counts_zeros_that_were_sent():
    where = [np.array([[0, 1]]), np.array([[1, 2]])]
    sent = [f32([[4, 0]]), f32([[6, 8]])]
    assert mean_of_sent(where, sent, 4, contributors=True)[0].tolist() == [[4, 3, 8, 0]]
    assert mean_of_sent(where, sent, 4, contributors=False)[0].tolist() == [[2, 3, 4, 0]]


def test_shapes_are_those_of_the_layers():
    model = create("topk", 1, 10, layers=[("w", [2, 3]), ("b", 4)])
    assert (model.layers, model.shapes) == ((("w", 6), ("b", 4)), ((2, 3), (4,)))
    assert list(places(model.shapes))[1] == (slice(6, 10), (4,))


# Quantisers and packing


@given(
    st.integers(1, 5), st.integers(1, 60), st.integers(2, 256), st.sampled_from([*KINDS, "large"]), st.integers(0, 99)
)
def test_codes_stay_within_their_range_and_means_are_kept(rows, size, bins, kind, seed):
    values = gradients_of(kind, rows, size, seed)
    scale = np.abs(values).max(axis=1, keepdims=True) + 1e-30
    for coded in (statistical(values, bins, 6.0), uncentred(values, bins), linear(values, bins)):
        assert coded.codes.shape == values.shape
        assert coded.codes.max(initial=0) < bins
        assert np.isfinite(coded.values()).all()
    for quantise in (lambda one: statistical(one, bins, 6.0), lambda one: uncentred(one, bins)):
        # What a bin stands for is the mean of what is in it.
        found = quantise(values).values()
        np.testing.assert_allclose((found / scale).mean(1), (values / scale).mean(1), atol=1e-5)
    steps = (values.max(1, keepdims=True).astype(np.float64) - values.min(1, keepdims=True)) / (bins - 1)
    error = np.abs(linear(values, bins).values() - values.astype(np.float64))
    assert (error <= steps / 2 * (1 + 1e-5) + 1e-6 * scale).all()


def test_rows_are_quantised_apart_and_long_ones_in_pieces():
    values = gradients_of("heavy", 3, 20_000, 1)
    for quantise in (lambda one: statistical(one, 16, 6.0), uncentred, lambda one: linear(one, 16)):
        together = quantise(values)
        for row, value in enumerate(values):
            alone = quantise(value[np.newaxis])
            for ours, theirs in zip(together, alone, strict=True):
                np.testing.assert_array_equal(ours[row], theirs[0])


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 40), st.integers(0, 99))
def test_packing_comes_back(bits, count, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, count).astype(np.uint8)
    packed = pack_bits(codes, bits)
    assert packed.size == packed_bytes(count, bits)
    np.testing.assert_array_equal(unpack_bits(packed, bits, count), codes)
    indices = rng.integers(0, 4096, count)
    assert pack_12(indices).size == 3 * math.ceil(count / 2)
    np.testing.assert_array_equal(unpack_12(pack_12(indices), count), indices)
    # Low bits first: the first code is the rest of the first byte.
    if count:
        assert int(packed[0]) % (1 << bits) == codes[0]


# Mass


@each("name, options", [
    ("demo", {}), ("ccloco", {"gain": 0.5}), ("ccloco", {"dct": True}), ("sparseloco", {"decay": 0.7}),
    ("muloco", {"requantised": False}), ("muloco", {"compressor": "topk", "density": 0.1}),
])  # fmt: skip
def test_mass_of_one_worker_is_conserved_up_to_decay(name, options):
    model = create(name, 1, N, layers=LAYERS, **options)
    decay, gain = model.traits.weights
    for step in range(4):
        gradients, before = gradients_of("heavy", 1, N, step), model.residual
        update = model.exchange(gradients).update
        given = decay * before.astype(np.float64) + gain * gradients
        np.testing.assert_allclose(update + model.residual[0], given[0], rtol=0, atol=1e-6 * np.abs(given).max())


@each("name", ["sparseloco", "ccloco"])
def test_a_mean_over_all_workers_conserves_and_one_over_contributors_tells_what_it_adds(name):
    gradients = gradients_of("normal", 4, N, 0)
    model = create(name, 4, N, layers=LAYERS, mean_over="workers")
    assert "lost" not in model.exchange(gradients).stats
    other = create(name, 4, N, layers=LAYERS)
    exchange = other.exchange(gradients)
    missing = gradients.sum(0, dtype=np.float64) - 4 * exchange.update.astype(np.float64) - other.residual.sum(0)
    assert exchange.stats["lost"] == pytest.approx(np.linalg.norm(missing), rel=1e-4)
    assert exchange.stats["lost"] > 0.1 * np.linalg.norm(exchange.update)


# Workers


def test_templar_clips_to_the_lower_median():
    rows = f32([[1, 1, 0, 0], [0, 0, 2, 2], [3, 3, 0, 0], [0, 0, 40, 40]])
    update = create("templar", 4, 4, chunk=4, topk=2, bins=None).exchange(rows).update
    # Norms of 1, 2, 3 and 40 root 2: the lower of the two middle ones is that of 2.
    np.testing.assert_allclose(update, [(1 + 2) / 2, (1 + 2) / 2, 2, 2], rtol=1e-6)


def test_templar_keeps_an_even_number_of_each_block_and_two_at_least():
    row = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    kept = [int(create("templar", 1, 16, chunk=4, topk=topk).exchange(row).selected[0]) for topk in (1, 2, 3, 4)]
    assert kept == [8, 8, 8, 16]
    assert create("templar", 1, 1, chunk=1, topk=1).exchange(row[:, :1]).selected[0] == 1


# Bytes


def test_templar_sends_one_of_146_bytes_as_published():
    layers = [("w", [4096, 64])]
    model = create("templar", 2, 4096 * 64, layers=layers)
    assert 4 * model.parameters / model.contributed == pytest.approx(146.3, abs=0.05)
    assert create("templar", 2, 4096 * 64, layers=layers, wire="released").contributed == 160 * 64


@each(
    "name, expected", [("demo", 32 / 4096), ("sparseloco", 128 / 4096), ("templar", 64 / 4096), ("ccloco", 32 / 4096)]
)
def test_defaults_keep_the_share_that_is_published(name, expected):
    model = create(name, 2, 64 * 128, layers=[("w", [64, 128])])
    assert model.k / model.parameters == expected


@each("size, bits", [(13, 4), (17, 5), (31, 5), (37, 6)])
def test_an_index_has_bits_for_every_place_of_a_block(size, bits):
    assert create("demo", 2, size, layers=[("w", [size])], topk=8).contributed == 8 * (4 + bits / 8)


@each("parameters, expected", [(20, 1), (48, 2), (64, 2), (4096, 128)])
def test_sparseloco_keeps_the_nearest_number_to_its_share_of_a_small_tensor(parameters, expected):
    shape = [64, 64] if parameters == 4096 else [parameters]
    assert create("sparseloco", 2, parameters, layers=[("w", shape)]).k == expected


def test_without_topk_the_density_says_how_many_of_each_block():
    model = create("demo", 2, N, 0.1, layers=LAYERS, chunk=16, topk=None)
    assert model.k == 6 * 26 + 8 * 12 + 5 * 2
    model.density = 1.0
    assert model.k == N
    # All coefficients are sent: nothing stays but what the transform rounds.
    gradients = gradients_of("normal", 2, N, 0)
    exchange = model.exchange(gradients)
    np.testing.assert_allclose(exchange.update, gradients.mean(0), atol=1e-6)
    assert exchange.stats["density"] == 1


def test_coefficients_are_counted_and_not_the_entries_that_they_reach():
    exchange = create("demo", 1, 4096, chunk=64, topk=1, layers=[("w", [64, 64])]).exchange(
        gradients_of("normal", 1, 4096, 0)
    )
    assert exchange.union == 1
    assert np.count_nonzero(exchange.update) > 4000
    assert exchange.stats["gain"] == pytest.approx(
        float(np.square(exchange.update).sum() / exchange.stats["given_norm"][0] ** 2), rel=1e-4
    )


NAMED = [("attention.weight", (128, 192)), ("attention.bias", (128,)), ("head.weight", (331, 64)), ("norm", (70,))]
"""Layers whose lengths have many divisors, few, and none."""


def exchanged(name, scale, workers=3, **options):
    source = synthetic(NAMED, workers, iterations=4, scale=scale)
    model = create(name, workers, source.parameters, **tensor_options(source), scale=source.scale, **options)
    return model, model.exchange(source.gradients(0)), source


@pytest.mark.parametrize("wire", ["paper", "released"])
@pytest.mark.parametrize(("name", "options"), [
    ("demo", {}),
    ("demo", {"topk": None, "density": 0.02}),
    ("ccloco", {"bins": 4}),
    ("ccloco", {"compat": "released"}),
    ("sparseloco", {}),
    ("templar", {}),
    ("muloco", {"bins": 4}),
    ("muloco", {"compressor": "row_wise_linear"}),
    ("muloco", {"compressor": "topk", "density": 0.05}),
])  # fmt: skip
@pytest.mark.parametrize("scale", [3.0, 40.0, 2000.0])
def test_messages_and_kernels_of_a_sample_are_those_of_the_whole_model(name, options, wire, scale):
    model, whole, _ = exchanged(name, 1.0, wire=wire, **options)
    sampled, found, source = exchanged(name, scale, wire=wire, **options)
    assert source.parameters < model.parameters / 2
    # A sample keeps whole entries, each of which stands for the bytes of `scale`, and tensors have whole bytes.
    least = scale * model.contributed / model.k + len(sampled.tensors)
    assert sampled.contributed == pytest.approx(model.contributed, rel=1e-12, abs=least)
    least *= whole.schedule.n_ranks
    np.testing.assert_allclose(found.schedule.bytes_sent(), whole.schedule.bytes_sent(), rtol=1e-12, atol=least)
    assert found.schedule.n_messages == whole.schedule.n_messages
    assert len(found.kernels) == len(whole.kernels)
    for one, other in zip(found.kernels, whole.kernels, strict=True):
        assert one._replace(entries=0) == other._replace(entries=0)
        assert one.entries == pytest.approx(other.entries, rel=1e-9, abs=scale)


@pytest.mark.parametrize("name", ["demo", "sparseloco", "templar"])
def test_a_sample_keeps_as_large_a_share_of_each_tensor_as_the_whole_one(name):
    model = create(name, 2, 40_960, layers=[("w", 40_960)], true_shapes=[(640, 640)], scale=10)
    share = model._top(model.tensors[0].whole) / 4096
    assert model.k / 40_960 == pytest.approx(share, rel=1e-12)
    exchange = model.exchange(np.random.default_rng(1).standard_normal((2, 40_960)).astype(np.float32))
    assert exchange.selected.tolist() == [model.k] * 2


def test_a_job_tells_schemes_the_tensors_of_its_model():
    # Blocks of 64 x 64 of matrices, which a list of sizes does not have.
    profile = model_named("gpt2")

    def blocks(shape):
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
        return tiles((rows, columns), 64)

    entries = sum(blocks(one.shape).number * min(32, blocks(one.shape).size) for one in profile.layers)
    for scale in (500, 5000):
        source = synthetic("gpt2", 2, scale=scale)
        job = Job(source, 1, [(0, star(2))], [Ramp(1, 0.01, 0.01)], Compute(0.0), load_device("ideal"), seed=0)
        made = create_sparsifier(
            Candidate("demo", "demo", {"wire": "released"}), gradient_buckets(source, None)[0], job
        )
        assert made.contributed == pytest.approx(12 * source.scale * made.k, rel=1e-5)
        assert made.k_of_model == entries
        assert source.scale * made.k == pytest.approx(entries, rel=1e-3)
