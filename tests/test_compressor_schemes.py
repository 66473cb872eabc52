"""Newer compressors, with optimiser states and trackers: golden runs, the rules they follow, mass, bytes."""

import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from gradients import gradients_of
from looping import each
from simnet.sparsifier_models import create
from simnet.sparsifier_models.omnireduce import turns
from simnet.sparsifier_models.thc import BOUND, code_levels, sender_table

GOLDEN = Path(__file__).parent / "golden" / "compressors"
P = 4


def assert_near(found, expected, relative=1e-6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=relative * np.abs(expected).max())


# ARC-Top-K


def arc_shape(text):
    """Return the matrix that the released code makes of a tensor."""
    shape = [int(one) for one in re.findall(r"\d+", text)]
    if len(shape) < 3:
        return shape if len(shape) == 2 else shape[0]
    columns = 2 * shape[-1] ** 2
    return [int(np.prod(shape)) // columns, columns]


def arc_model(run, monkeypatch, feedback, **options):
    layers = [(str(number), arc_shape(one)) for number, one in enumerate(run["shapes"])]
    model = create("arctopk", P, run["g"].shape[2], 0.08, layers=layers, feedback=feedback, **options)
    matrices = [number for number, shape in enumerate(model.shapes) if len(shape) == 2]

    def recorded_projection(index, columns):
        return run[f"V_{model.iteration}_{matrices.index(index)}"].T.astype(np.float64)

    monkeypatch.setattr(model, "projection", recorded_projection)
    return model


@pytest.mark.parametrize("feedback", ["ef14", "ef21"])
def test_golden_run_of_arctopk(feedback, recorded, monkeypatch):
    run = recorded(f"arctopk_{feedback}_P4")
    model = arc_model(run, monkeypatch, feedback)
    memories = dict(
        zip(run["error_steps"] if "error_steps" in run else range(len(run["g"])), run["error"], strict=True)
    )
    for t, gradients in enumerate(run["g"]):
        begins = model.starts_dense and t == 2
        exchange = model.exchange(gradients)
        assert_near(exchange.update, run["update"][t], 5e-7)
        if feedback == "ef14":
            np.testing.assert_array_equal(exchange.update != 0, run["update"][t] != 0)
        if t in memories:
            np.testing.assert_array_equal(model.residual if feedback == "ef14" else model.tracked, memories[t])
        calls = [call.nbytes / 4 for call in exchange.schedule.calls]
        assert calls == run[f"collectives_{t}"].tolist()
        # What the code counts, bits that all ranks of a ring send; where EF21 begins it forgets the ring.
        bits = 8 * exchange.schedule.bytes_sent().sum()
        assert bits == run["comm_bits_counter"][t] * (2 * (P - 1) if begins else 1)


# EF21

BLOCKS = {"density": 0.05, "layers": [("w", [200, 10])]}
EF21 = {
    "ef21": ("ef21", {"density": 0.02}),
    "ef21plus": ("ef21", {"density": 0.02, "variant": "ef21plus"}),
    "ef21msgd_topkblock": (
        "ef21",
        {"density": 0.05, "compressor": "blocks", "momentum": "heavy_ball", "start": "zero"},
    ),
    "ef21dm_topkblock": ("ef21", {"density": 0.05, "compressor": "blocks", "momentum": "double", "start": "zero"}),
    "ef21msgd_arc": ("arctopk", {**BLOCKS, "momentum": "heavy_ball"}),
    "ef21dm_arc": ("arctopk", {**BLOCKS, "momentum": "double"}),
}


@pytest.mark.parametrize("case", EF21)
def test_golden_run_of_ef21(case, recorded, monkeypatch):
    run = recorded("ef21_P4")
    name, options = EF21[case]
    if name == "arctopk":
        options = options | {"feedback": "ef21", "start": "zero", "warm_up": 0, "rounding": "ceil", "rank": 10}
    model = create(name, P, 2000, **options)
    if name == "arctopk":
        # The script selects by the norms of the means themselves.
        monkeypatch.setattr(model, "projection", lambda index, columns: np.eye(columns))
    for t, gradients in enumerate(run["g"]):
        before = model.tracked.copy()
        exchange = model.exchange(gradients)
        assert_near(exchange.update, run[f"{case}_update"][t])
        np.testing.assert_allclose(exchange.update, model.tracked.mean(0, dtype=np.float64), rtol=0, atol=1e-6)
        if case == "ef21" and t:
            for worker, sent in enumerate(run["ef21_sent_idx"][t]):
                changed = np.flatnonzero(model.tracked[worker] != before[worker])
                np.testing.assert_array_equal(changed, np.sort(sent))
        if case == "ef21plus":
            assert exchange.stats["plain"] == run["ef21plus_counts_plain_ef"][t][0]
    if len(run["g"]) == 16:
        assert_near(model.tracked, run[f"{case}_state_last"])


def test_an_ef21_plus_worker_takes_what_is_strictly_nearer():
    model = create("ef21", 2, 4, 0.25, variant="ef21plus")
    model.exchange(np.array([[8, 0, 0, 0], [8, 0, 0, 0]], dtype=np.float32))
    # The first is one entry of the gradient itself, and two steps from what is tracked; the second as near either way.
    exchange = model.exchange(np.array([[0, 5, 0, 0], [8, 0, 3, 0]], dtype=np.float32))
    np.testing.assert_array_equal(model.tracked, [[0, 5, 0, 0], [8, 0, 3, 0]])
    assert exchange.stats["plain"] == 1
    np.testing.assert_array_equal(exchange.schedule.bytes_sent(), [9, 9])
    # Either form of the first worker's message would be exact: it stays with what is new.
    assert model.exchange(np.array([[0, 5, 0, 0], [8, 0, 3, 0]], dtype=np.float32)).stats["plain"] == 0


# 1-bit Adam and 0/1 Adam

LEARNING_RATE = np.float32(1e-2)
ADAM = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "compat": "released", "masked": False}


def calls_of(schedule):
    return [(one.operation, one.nbytes) for one in schedule.calls]


def recorded_calls(text):
    """Return operations and bytes of the calls of a step, of what a rank gives, or of what it gets by all-gather."""
    widths = {"int8": 1, "float32": 4}
    found = []
    for name, shape, dtype in re.findall(r"\('(\w+)', \[\(\[([\d, ]+)\], '(\w+)'\)", str(text)):
        nbytes = widths[dtype] * float(np.prod([int(one) for one in shape.split(",")]))
        found.append(
            {"all_to_all_single": ("alltoall", nbytes), "all_gather": (name, P * nbytes)}.get(name, (name, nbytes))
        )
    return found


def test_golden_run_of_the_compressed_all_reduce(recorded):
    run = recorded("onebit_allreduce_P4")
    model = create("onebitadam", P, run["g"].shape[2])
    assert model.server_error.size == run["padded"]
    memories = run["memory_steps"].tolist() if "memory_steps" in run else list(range(len(run["g"])))
    for t, gradients in enumerate(run["g"]):
        found = model._reduce(gradients.__getitem__)
        assert_near(found, run["result"][t])
        np.testing.assert_array_equal(found > 0, run["result"][t] > 0)
        if t in memories:
            assert_near(model.worker_error, run["worker_error"][memories.index(t)])
            assert_near(model.server_error, run["server_error"][memories.index(t)].ravel())


def check_state(model, run, t):
    for part, step in (("mid", 8 if model.name == "onebitadam" else 16), ("last", len(run["dense_step"]) - 1)):
        if t != step or f"exp_avg_{part}" not in run:
            continue
        assert_near(model.m, np.broadcast_to(run[f"exp_avg_{part}"], model.m.shape), 2e-6)
        assert_near(model.v, run[f"exp_avg_sq_{part}"])
        local = model.name == "zerooneadam" and model.frozen and t > step - 1
        scale = LEARNING_RATE if local else np.float32(1)
        for name in ("worker_error", "server_error"):
            expected = run[f"{name}_{part}"].reshape(getattr(model, name).shape)
            np.testing.assert_allclose(getattr(model, name) * scale, expected, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["onebitadam", "zerooneadam"])
def test_golden_run_of_adam_by_signs(name, recorded):
    if name == "onebitadam":
        run, more = recorded("onebitadam_P4"), {"freeze_step": 6}
    else:
        run = recorded("zeroone_adam_P4")
        more = {"var_freeze_step": 16, "var_update_scaler": 2, "local_step_scaler": 6, "local_step_clipper": 4}
    model = create(name, P, run["g"].shape[2], **ADAM, **more)
    parameters = np.tile(run["p0"], (P, 1))
    expected = run["params"] if run["params"].ndim == 3 else run["params"][:, np.newaxis]
    for t, gradients in enumerate(run["g"]):
        exchange = model.exchange(gradients)
        parameters -= LEARNING_RATE * (exchange.update if exchange.replicas is None else exchange.replicas)
        assert_near(parameters, np.broadcast_to(expected[t], parameters.shape), 2e-6)
        assert calls_of(exchange.schedule) == recorded_calls(run["collectives"][t])
        if name == "zerooneadam":
            np.testing.assert_array_equal(not exchange.schedule.rounds, not recorded_calls(run["collectives"][t]))
            assert [exchange.stats[one] for one in ("var_interval", "local_step_interval")] == run["intervals"][
                t
            ].tolist()
        check_state(model, run, t)


def by_signs(vectors, errors, served):
    """Return what a compressed all-reduce makes of vectors, and the errors after it; plainly, in double precision."""
    N, P = errors.shape[1], len(errors)
    sent = np.zeros((P, N))
    sent[:, : vectors.shape[1]] = vectors
    sent += errors
    signs = np.where(sent >= 0, 1, -1) * np.sqrt(np.square(sent).mean(1, keepdims=True))
    mean = (signs.mean(0) + served).reshape(P, -1)
    result = np.where(mean >= 0, 1, -1) * np.sqrt(np.square(mean).mean(1, keepdims=True))
    return result.ravel()[: vectors.shape[1]], sent - signs, (mean - result).ravel()


@each("P, n", [(2, 30), (3, 100), (5, 7)])
def test_local_steps_of_01_adam_by_hand(P, n):
    model = create("zerooneadam", P, n, beta2=0.9, var_freeze_step=2, local_step_scaler=2, local_step_clipper=4)
    rng = np.random.default_rng(P)
    m, v, errors, served = (
        np.zeros((P, n)),
        np.zeros(n),
        np.zeros_like(model.worker_error),
        np.zeros_like(model.server_error),
    )
    u, since, interval, ours, theirs = np.zeros((P, n)), 0, 1, np.zeros((P, n)), np.zeros((P, n))
    silent = []
    for step in range(1, 16):
        gradients = (1 + rng.standard_normal((P, n))).astype(np.float32)
        exchange = model.exchange(gradients)
        ours -= exchange.update if exchange.replicas is None else exchange.replicas
        if step <= 3:
            m = 0.9 * m + 0.1 * gradients.mean(0)
            v = 0.9 * v + 0.1 * gradients.mean(0, dtype=np.float64) ** 2
            theirs -= m / (np.sqrt(v) + 1e-8)
        else:
            m, since = 0.9 * m + 0.1 * gradients, since + 1
            theirs -= m / (np.sqrt(v) + 1e-8)
            u -= m / (np.sqrt(v) + 1e-8)
            if step % interval == 0:
                total, errors, served = by_signs(u * (np.sqrt(v) + 1e-8), errors, served)
                theirs += total / (np.sqrt(v) + 1e-8) - u
                m, u, since = np.tile(-total / since, (P, 1)), np.zeros((P, n)), 0
                np.testing.assert_allclose(np.ptp(theirs, axis=0), 0, atol=1e-9)
            else:
                silent.append(step)
                assert exchange.schedule.n_messages == 0
                assert not exchange.kernels
            # Doubled after every two local steps.
            interval = min(4, 2 ** ((step - 3) // 2))
        assert (exchange.schedule.n_messages == 0) == (step in silent)
        assert_near(ours, theirs, 1e-4)
        if exchange.replicas is not None:
            np.testing.assert_allclose(exchange.update, exchange.replicas.mean(0), rtol=1e-5, atol=1e-6)
    assert silent == [7, 9, 10, 11, 13, 14, 15]


def test_entries_without_variance_are_masked():
    gradients = np.tile(np.array([1, 0, -1, 2], dtype=np.float32), (2, 1))
    masked, released = (create("onebitadam", 2, 4, freeze_step=1, masked=one) for one in (True, False))
    for model in (masked, released):
        model.exchange(gradients)
    assert masked.exchange(gradients).update[1] == 0
    # Divided by epsilon alone.
    assert released.exchange(gradients).update[1] > 1e5


def test_the_first_step_as_released_updates_nothing():
    gradients = gradients_of("normal", 4, 100, 0)
    for name in ("onebitadam", "zerooneadam"):
        paper, released = (create(name, 4, 100, compat=one) for one in ("paper", "released"))
        exchange = released.exchange(gradients)
        assert not exchange.update.any()
        assert [one.operation for one in exchange.schedule.calls] == ["all_reduce", "alltoall", *["all_gather"] * 3]
        assert paper.exchange(gradients).update.any()
        alone = create(name, 1, 100, freeze_step=1) if name == "onebitadam" else create(name, 1, 100)
        for _ in range(3):
            assert alone.exchange(gradients[:1]).schedule.n_messages == 0


# OmniReduce


def rows_of(name):
    with (GOLDEN / f"omnireduce_{name}_DERIVED.csv").open() as file:
        return list(csv.DictReader(file))


def test_turns_of_omnireduce_are_those_of_the_trace():
    filled = np.array([[int(one[f"nonzero_rank{p}"]) for one in rows_of("blocks")] for p in range(P)], dtype=np.bool_)
    found, messages = turns(filled, 8), rows_of("messages")
    expected = {(int(one["slot"]), int(one["round"])): one for one in messages}
    assert len(expected) == found.block.size
    each_block = 256 * 4 + 4
    for at, (block, slot, turn) in enumerate(zip(found.block, found.slot, found.turn, strict=True)):
        one = expected[slot, turn]
        assert block == int(one["block"])
        assert "".join(map(str, found.senders[:, at].astype(int))) == one["senders_rank0_first"]
        assert int(one["upload_bytes_all_senders"]) == each_block * found.senders[:, at].sum()
        following = found.block[(found.slot == slot) & (found.turn == turn + 1)]
        assert one["next_block"] == (str(following[0]) if following.size else "inf")
    # Of the same blocks, messages have their bytes: all but what an aggregator sends itself.
    gradients = np.repeat(filled, 256, axis=1).astype(np.float32)
    exchange = create("omnireduce", P, 64 * 256, aggregators="first").exchange(gradients)
    sent = exchange.schedule.bytes_sent()
    np.testing.assert_array_equal(sent[1:], each_block * found.senders[1:].sum(1))
    assert sent[0] == (P - 1) * each_block * found.block.size
    np.testing.assert_array_equal(exchange.update, gradients.mean(0))
    assert len(exchange.schedule.rounds) == 2 * 5


@each("P, n", [(1, 5), (3, 2), (4, 1000), (5, 1030)])
@each("aggregators", ["all", "first"])
def test_what_omnireduce_sends(P, n, aggregators):
    model = create("omnireduce", P, n, block=16, slots=3, threshold=1.5, aggregators=aggregators)
    gradients = gradients_of("normal", P, n, n)
    exchange = model.exchange(gradients)
    padded = np.zeros((P, -(-n // 16) * 16), dtype=np.float32)
    padded[:, :n] = gradients
    dropped = np.abs(padded.reshape(P, -1, 16)).max(2) <= 1.5
    kept = np.repeat(dropped, 16, axis=1)[:, :n]
    np.testing.assert_array_equal(model.residual, np.where(kept, gradients, 0))
    np.testing.assert_allclose(exchange.update, np.where(kept, 0, gradients).mean(0), atol=1e-6)
    dropped[:, :3] = False
    np.testing.assert_array_equal(exchange.stats["blocks"], (~dropped).sum(1))
    assert exchange.stats["union_blocks"] == (~dropped.all(0)).sum()
    place = np.arange(dropped.shape[1]) % min(3, dropped.shape[1]) % P if aggregators == "all" else 0
    own = place == np.arange(P)[:, np.newaxis] if aggregators == "all" else (np.arange(P) == 0)[:, np.newaxis]
    up, down = (~dropped & ~own).sum(1), (P - 1) * (~dropped.all(0) & own).sum(1)
    np.testing.assert_array_equal(exchange.schedule.bytes_sent(), (16 * 4 + 4) * (up + down))
    released = create("omnireduce", P, n, block=16, slots=3, threshold=1.5, compat="released")
    lost = released.exchange(gradients).stats["lost"]
    assert not released.residual.any()
    assert lost == pytest.approx(np.linalg.norm(np.where(kept, gradients, 0).sum(0)), abs=1e-4)


# THC


def test_tables_of_thc_are_those_of_the_released_code(recorded):
    run, (codes, chances) = recorded("thc_P4"), sender_table(16)
    np.testing.assert_array_equal(code_levels(16), run["recv_table"])
    assert (float(run["T"]), float(run["inc"])) == (BOUND, 2 * BOUND / 16)
    assert float(run["delta"]) == pytest.approx(2 * BOUND / 1000)
    # Where a level is a point of the grid, the code below it with a chance of 1 is as good.
    same = codes == run["sender_table_X"]
    assert np.count_nonzero(~same) <= 3
    np.testing.assert_allclose(run["sender_table_p"][same], chances[same], atol=1e-6)
    np.testing.assert_array_equal(codes[~same], run["sender_table_X"][~same] + np.rint(run["sender_table_p"][~same]))
    np.testing.assert_array_equal(chances[~same], 0)


@each("granularity", [15, 16, 30])
def test_levels_of_thc_have_the_least_error_of_all(granularity):
    """Mirrored levels by brute force, their errors by a sum over the grid."""
    x = np.linspace(-BOUND, BOUND, 4001)
    weights = np.exp(-(x**2) / 2)

    def error(levels):
        points = (2 * np.array(levels) / granularity - 1) * BOUND
        place = np.clip(np.searchsorted(points, x, side="right") - 1, 0, len(points) - 2)
        return ((x - points[place]) * (points[place + 1] - x) * weights).sum()

    halves = itertools.combinations(range(1, granularity // 2 + 1), 7)
    found = min(((0, *one, *(granularity - level for level in reversed((0, *one)))) for one in halves), key=error)
    assert code_levels(granularity) == found


def test_sums_of_thc_take_as_many_bits_as_its_granularity_needs():
    sent = [create("thc", 8, 1024, granularity=g).exchange(np.ones((8, 1024), "f4")).schedule for g in (16, 30, 32)]
    assert [float(one.bytes_received()[1]) - 12 for one in sent] == [1024, 1024, 1152]


def test_golden_run_of_thc(recorded, monkeypatch):
    run = recorded("thc_P4")
    model, d = create("thc", P, 4096), 4096
    monkeypatch.setattr(model, "diagonal", lambda entries: run["sign_diagonal"][:entries].astype(np.float64))

    def happens(what, worker, first, chances, draws):
        bits = np.unpackbits(run[f"bernoulli_{what}"][model.iteration, worker])[:d][first : first + chances.size]
        return bits.astype(np.int64) * (chances > 0)

    monkeypatch.setattr(model, "_happens", happens)
    take, levels = model._codes, np.array(code_levels(16))

    class Codes:
        """Those of the table, that remembers what was looked up."""

        def __getitem__(self, points):
            seen.append(take[points])
            return seen[-1]

    seen = []
    monkeypatch.setattr(model, "_codes", Codes())
    for t, gradients in enumerate(run["g"]):
        seen.clear()
        norms = np.sqrt(np.square(gradients + model.residual, dtype=np.float64).sum(1))
        np.testing.assert_allclose(norms, run["norms"][t], rtol=1e-6)
        exchange = model.exchange(gradients)
        for worker, low in enumerate(seen):
            above = np.unpackbits(run["bernoulli_table"][t, worker])[:d]
            differ = run["codes"][t, worker] != low + above
            # The released table has the code below with a chance of one at three points of the grid.
            assert np.count_nonzero(differ) <= 25
            np.testing.assert_array_equal(levels[run["codes"][t, worker][differ]], levels[low[differ]])
        assert_near(exchange.update, run["update"][t], 2e-6)
        if t == 0:
            assert_near(model.residual, run["error_t0"], 2e-6)
    if len(run["g"]) == 8:
        assert_near(model.residual, run["error_last"], 5e-6)


@each("granularity", [15, 16, 30])
def test_what_thc_sends_is_what_leaves_its_residuals(granularity):
    model, gradients = create("thc", 3, 1000, granularity=granularity), gradients_of("normal", 3, 1000, 0)
    update = model.exchange(gradients.copy()).update
    np.testing.assert_allclose(update, (gradients - model.residual).mean(0), atol=1e-6)


def test_codes_of_thc_are_unbiased():
    gradients = gradients_of("normal", 2, 1000, 0)
    updates = [
        create("thc", 2, 1000, seed=seed, error_feedback=False).exchange(gradients).update for seed in range(400)
    ]
    # One in 32 lies beyond T, of a standard normal distribution, and is cut: a bias of some hundredths.
    mean, error = np.mean(updates, axis=0), np.std(updates[0] - gradients.mean(0))
    assert 0.05 < error < 0.3
    assert np.abs(mean - gradients.mean(0)).mean() < error / 4
