"""Codes in two hops of all-to-all, qgZ, LoCo and SDP4Bit: golden runs, the rules they follow, memories, bytes."""

import numpy as np
import pytest

from gradients import gradients_of
from looping import each
from simnet.sparsifier_models import create, sdp4bit, two_hop
from simnet.sparsifier_models.qgz import groups_of
from simnet.sparsifier_models.sdp4bit import weight_difference
from simnet.sparsifier_models.two_hop import Nodes, nearest, stochastic

P = 4
MATRIX = [("w", (64, 96))]


def nibbles(codes):
    """Return codes of four bits two in a byte, the first in the high half."""
    pairs = codes.reshape(-1, 2).view(np.uint8) & 15
    return (pairs[:, 0] << 4 | pairs[:, 1]).astype(np.uint8)


@pytest.fixture
def sent(monkeypatch):
    """Return the codes that schemes send, in the order in which they make them."""
    seen = []

    def watched(module, name):
        rule = getattr(module, name)

        def remembers(*arguments):
            seen.append(rule(*arguments))
            return seen[-1]

        monkeypatch.setattr(module, name, remembers)

    watched(two_hop, "nearest")
    watched(sdp4bit, "stochastic")
    return seen


def rows_of(one, workers=P):
    return one.reshape(workers, -1).astype(np.float32)


def test_halves_go_to_the_even_code():
    groups = np.array([[-8, 0.5, 1.5, 2.5, -0.5, -1.5]], dtype=np.float16)
    assert nearest(groups, 4).codes.tolist() == [[-8, 0, 2, 2, 0, -2]]


# The element rules


@each("bits", [4, 8])
def test_stochastic_codes_are_right_in_the_mean(bits):
    rng = np.random.default_rng(0)
    groups = rng.standard_normal((1, 50)).astype(np.float32)
    draws = [stochastic(groups, bits, 1 - rng.random((1, 50), dtype=np.float32)).values() for _ in range(4000)]
    step = np.abs(groups).max() / ((1 << (bits - 1)) - 1)
    assert np.abs(np.mean(draws, axis=0) - groups).max() < 4 * step / 2 / np.sqrt(4000)
    assert max(np.abs(one - groups).max() for one in draws) <= step * 1.001


# Where partitions go


# qgZ and LoCo


@pytest.mark.parametrize("name", ["qgz", "loco"])
def test_golden_runs_of_two_hops_of_four_bits(name, recorded, sent):
    run = recorded(f"{name}_2x2_P4")
    options = {"reset_T": int(run["reset_T"])} if name == "loco" else {}
    released = create(name, P, 6144, layers=MATRIX, ranks_per_node=2, compat="released", **options)
    mean = create("qgz", P, 6144, layers=MATRIX, ranks_per_node=2)
    for t, g in enumerate(run["g"]):
        sent.clear()
        update = released.exchange(rows_of(g)).update
        np.testing.assert_array_equal(update, run["partition"][t].ravel())
        # Of what LoCo quantises every second is a memory. A node is through with both hops before the next begins.
        codes = [one for number, one in enumerate(sent) if name == "qgz" or number % 2 == 0]
        for node in range(2):
            for rank in range(2):
                for hop, key in ((0, "intra"), (2, "inter")):
                    one, at = codes[4 * node + hop + rank], (t, 2 * node + rank)
                    np.testing.assert_array_equal(nibbles(one.codes), run[f"{key}_codes"][at])
                    np.testing.assert_array_equal(one.inverses, run[f"{key}_scales"][at])
        if name == "qgz":
            # Of the smallest numbers of half precision, half need not be one.
            np.testing.assert_allclose(mean.exchange(rows_of(g)).update * 2, update, rtol=0, atol=6e-8)
            continue
        for rank in range(P):
            for hop, key in ((1, "intra"), (2, "inter")):
                memory = released.memory(hop, 0, rank)
                np.testing.assert_array_equal(memory.codes, run[f"{key}_err_q"][t, rank])
                np.testing.assert_array_equal(memory.inverses, run[f"{key}_err_s"][t, rank])


def test_golden_sizes_of_all_to_all(recorded):
    for name in ("qgz", "loco"):
        calls = recorded(f"{name}_2x2_P4")["collectives"][0]
        model = create(name, P, 6144, layers=MATRIX, ranks_per_node=2, shards="none")
        rounds = model.exchange(gradients_of("normal", P, 6144, 0)).schedule.rounds
        assert [one.phase for one in rounds] == ["hop 1 codes", "hop 1 scales", "hop 2 codes", "hop 2 scales"]
        # A rank keeps its share of what it gives to an all-to-all.
        assert [(2 * one.nbytes[0], 2) for one in rounds] == [tuple(one) for one in calls.tolist()]


@each("nodes, each_, shape", [(2, 2, (64, 96)), (2, 4, (32, 96)), (4, 2, (96, 10)), (3, 2, (24, 9)), (4, 1, (5, 16))])
def test_what_qgz_sends(nodes, each_, shape):
    workers, n = nodes * each_, int(np.prod(shape))
    gradients = gradients_of("normal", workers, n, 0)
    model = create("qgz", workers, n, layers=[("w", shape)], ranks_per_node=each_, shards="none")
    exchange = model.exchange(gradients)
    groups = max(*shape, workers)
    assert groups_of(shape, Nodes(nodes, each_)) == groups
    inside = (n / 2 + 4 * groups) * (each_ - 1) / each_
    across = (n / 2 + 4 * groups) / each_ * (nodes - 1) / nodes
    np.testing.assert_allclose(exchange.schedule.bytes_sent(), inside + across)
    columns = exchange.schedule.columns()
    crossing = columns["src"] // each_ != columns["dst"] // each_
    assert columns["nbytes"][crossing].sum() == pytest.approx(workers * across)
    # Against two bytes an entry the codes that cross are four times less.
    codes = columns["nbytes"][crossing & (columns["phase"] == "hop 2 codes")].sum() / workers
    assert codes == pytest.approx(2 * n / each_ * (nodes - 1) / nodes / 4)
    # Twice half a step, or an eighth of the largest.
    mean = gradients.mean(0)
    assert np.abs(exchange.update - mean).max() < 0.25 * np.abs(gradients).max()
    assert np.corrcoef(exchange.update, mean)[0, 1] > 0.97
    released = create("qgz", workers, n, layers=[("w", shape)], ranks_per_node=each_, compat="released")
    np.testing.assert_allclose(released.exchange(gradients).update, each_ * exchange.update, rtol=2e-3, atol=1e-6)


@each("name", ["qgz", "loco"])
@each("workers, each_, layers", [
    (4, 2, [("b", 96)]),
    (4, 2, [("w", (6, 6))]),
    (4, 2, [("w", (1, 3))]),
    (4, 4, MATRIX),
    (1, 1, MATRIX),
    (8, 2, [("tiny", 5)]),
])  # fmt: skip
def test_what_is_not_quantised_is_a_reduce_scatter_of_float16(name, workers, each_, layers):
    n = int(np.prod(layers[0][1]))
    for compat in ("paper", "released"):
        model = create(name, workers, n, layers=layers, ranks_per_node=each_, shards="none", compat=compat)
        gradients = gradients_of("normal", workers, n, 0)
        exchange = model.exchange(gradients)
        assert {one.phase for one in exchange.schedule.rounds} <= {"values"}
        each_one = -(-n // workers)
        np.testing.assert_allclose(exchange.schedule.bytes_sent(), 2 * each_one * (workers - 1))
        np.testing.assert_allclose(exchange.update, gradients.mean(0), atol=4e-3)


def test_loco_comes_nearer_to_the_sum_than_qgz():
    gradients = [gradients_of("normal", P, 6144, step) for step in range(12)]
    total = np.sum([one.mean(0) for one in gradients], axis=0)
    options = {"layers": MATRIX, "ranks_per_node": 2}
    off = {}
    for name in ("qgz", "loco"):
        model = create(name, P, 6144, **options)
        off[name] = np.linalg.norm(sum(model.exchange(one).update for one in gradients) - total)
    assert off["loco"] < 0.8 * off["qgz"]
    # It is no residual: what is lost does not come back in full.
    model = create("loco", P, 6144, **options)
    assert not model.traits.conserves
    assert model.exchange(gradients[0]).stats["lost"] > 0.1 * off["qgz"]
    without = create("loco", P, 6144, error_feedback=False, **options)
    plain = create("qgz", P, 6144, **options)
    for one in gradients[:3]:
        np.testing.assert_array_equal(without.exchange(one).update, plain.exchange(one).update)


def first_exchange(gradients, layers):
    return create("loco", P, gradients.shape[1], layers=layers, ranks_per_node=2).exchange(gradients).update


def test_loco_forgets_by_steps():
    model, gradients = create("loco", P, 6144, layers=MATRIX, ranks_per_node=2, reset_T=3), []
    for step in range(8):
        gradients.append(gradients_of("normal", P, 6144, step))
        afresh = np.array_equal(model.exchange(gradients[-1]).update, first_exchange(gradients[-1], MATRIX))
        assert afresh == (step in (0, 3, 6)), step


def test_loco_forgets_one_tensor_at_a_time_as_released():
    layers = [("a", (8, 16)), ("b", 24), ("c", (16, 8)), ("d", (4, 32))]
    places = {"a": slice(0, 128), "c": slice(152, 280), "d": slice(280, 408)}
    model = create("loco", P, 408, layers=layers, ranks_per_node=2, reset_T=4, compat="released")
    cleared = []
    for step in range(8):
        gradients = gradients_of("normal", P, 408, step)
        update, afresh = model.exchange(gradients).update, 2 * first_exchange(gradients, layers)
        cleared += [(step, name) for name, place in places.items() if np.array_equal(update[place], afresh[place])]
    # New tensors begin the count, which is 1 after them. It then exceeds 4 at every fifth tensor.
    assert cleared == [(0, "a"), (0, "c"), (0, "d"), (2, "c"), (4, "a"), (5, "d"), (7, "c")]


def test_what_memories_hold():
    layers = [("b", 7), *MATRIX]
    held = create("loco", 8, 6151, layers=layers, ranks_per_node=4).held_bytes()
    assert held == {"first": 6144, "first_scales": 4 * 96, "second": 6144 / 4, "second_scales": 96}
    # Of a sample those of the model: 10 times as many rows.
    scaled = create("loco", 8, 6151, layers=layers, true_shapes=[70, (640, 96)], scale=10.0, ranks_per_node=4)
    assert scaled.held_bytes() == {name: 4 * 640 if name == "first_scales" else 640 if "_" in name else 10 * one
                                   for name, one in held.items()}  # fmt: skip
    assert create("sdp4bit", 8, 1024, scale=10.0).held_bytes() == {"memory": 4 * 10 * 128}
    for name, options in (("loco", {"error_feedback": False}), ("sdp4bit", {"shards": "none"}), ("qgz", {})):
        assert create(name, 8, 6151, layers=layers, **options).held_bytes() == {}


# SDP4Bit


def sdp4bit_model(run, monkeypatch, **options):
    model = create("sdp4bit", P, 8192, ranks_per_node=2, first_group=128, second_group=128, **options)

    def uniforms(what, rank, shape):
        return run[{"first": "u8", "second": "u4"}[what]][model.iteration, rank].astype(np.float32).reshape(shape)

    monkeypatch.setattr(model, "_uniforms", uniforms)
    return model


@pytest.mark.parametrize("hadamard", [False, True])
def test_golden_run_of_gradients_of_sdp4bit(hadamard, recorded, sent, monkeypatch):
    run, key = recorded("sdp4bit_P4"), "ht" if hadamard else "plain"
    model = sdp4bit_model(run, monkeypatch, hadamard=hadamard, shards="none")
    for t, g in enumerate(run["g"]):
        sent.clear()
        update = model.exchange(g).update
        np.testing.assert_allclose(P * update, run[f"{key}_sum"][t].ravel(), rtol=0, atol=1e-8)
        for node in range(2):
            for rank in range(2):
                # Dividing by P leaves codes, and divides what they are multiplied by.
                for hop, bits in ((0, 8), (2, 4)):
                    one, at = sent[4 * node + hop + rank], (t, 2 * node + rank)
                    np.testing.assert_array_equal(one.codes.ravel(), run[f"{key}_codes{bits}"][at])
                    np.testing.assert_array_equal(P * one.inverses, run[f"{key}_scales{bits}"][at])


def test_golden_run_of_weights_of_sdp4bit(recorded):
    run = recorded("sdp4bit_P4")
    main, model = run["weight_main"], run["weight_main"][0].copy()
    for t in range(len(run["weight_codes"])):
        for rank in range(P):
            shard = slice(2048 * rank, 2048 * (rank + 1))
            coded = weight_difference(main[t + 1, shard], model[shard], 2048, run["weight_uniform"][t, rank])
            np.testing.assert_array_equal(coded.codes[0], run["weight_codes"][t, rank])
            np.testing.assert_array_equal(coded.inverses, run["weight_scales"][t, rank : rank + 1])
            model[shard] += coded.values()[0]
        np.testing.assert_array_equal(model, run["weight_model"][t])


def test_weights_of_all_ranks_stay_equal_and_near_to_those_of_their_owners():
    model, main = create("sdp4bit", P, 3000, ranks_per_node=2), np.zeros(3000)
    exact = create("sdp4bit", P, 3000, ranks_per_node=2, shards="none")
    held = np.zeros((P, 3000))
    for step in range(30):
        gradients = gradients_of("normal", P, 3000, step)
        exchange = model.exchange(gradients)
        main += exact.exchange(gradients).update
        held += exchange.update
        assert exchange.replicas is None
        assert (held == held[0]).all()
        # Owners know the rest: a seventh of the largest difference at most, however many steps there were.
        np.testing.assert_allclose(main - held[0], model.memory, atol=1e-4)
        assert np.abs(model.memory).max() < 1.0


@each("nodes, each_, n", [(2, 2, 8192), (2, 4, 4100), (3, 1, 50), (1, 4, 1000), (1, 1, 7), (8, 2, 5)])
@each("hadamard", [False, True])
def test_what_sdp4bit_sends(nodes, each_, n, hadamard):
    workers, gradients = nodes * each_, gradients_of("normal", nodes * each_, n, 0)
    model = create("sdp4bit", workers, n, ranks_per_node=each_, hadamard=hadamard, allgather="ring")
    exchange = model.exchange(gradients)
    multiple = 32 if hadamard else 2
    m = -(-n // (multiple * workers)) * multiple
    phases = exchange.schedule.columns()
    each_phase = {one: phases["nbytes"][phases["phase"] == one].sum() / workers for one in set(phases["phase"])}
    expected = {
        "hop 1 codes": m * workers * (each_ - 1) / each_,
        "hop 1 scales": 4 * workers * -(-m // 512) * (each_ - 1) / each_,
        "hop 2 codes": m / 2 * (nodes - 1),
        "hop 2 scales": 4 * -(-m // 128) * (nodes - 1),
        "weight codes": m / 2 * (workers - 1),
        "weight scales": 4 * -(-m // 2048) * (workers - 1),
    }
    assert each_phase == pytest.approx({phase: nbytes for phase, nbytes in expected.items() if nbytes})
    found = create("sdp4bit", workers, n, ranks_per_node=each_, hadamard=hadamard, shards="none").exchange(gradients)
    assert np.abs(found.update - gradients.mean(0)).max() < 0.4 * np.abs(gradients).max()


def test_codes_of_sdp4bit_are_unbiased():
    gradients = gradients_of("heavy", P, 600, 0)
    updates = [
        create("sdp4bit", P, 600, ranks_per_node=2, seed=seed, shards="none").exchange(gradients).update
        for seed in range(300)
    ]
    error = np.std(updates, axis=0)
    assert (np.abs(np.mean(updates, axis=0) - gradients.mean(0)) < 5 * error / np.sqrt(300) + 1e-6).all()
