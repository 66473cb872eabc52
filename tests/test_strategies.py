"""Training strategies: runs of the released codes, algebra between strategies, volumes, states, what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest

from simnet.strategies import SGD, AdamW, Averaging, Replicas, SignDescent, create
from simnet.traces.live import train
from states import reread, same_state
from variants import CCLOCO, TEMPLAR

RUNS = Path(__file__).parent / "golden" / "strategies"
GOLDEN = np.load(RUNS / "runs.npz")
LAYERS = [("w1", (32, 48)), ("w2", (24, 40)), ("b", 70)]
N = 2566
STEPS = 24
SHOWN = slice(None, None, 8)
INNER = AdamW(1e-2, 0.9, 0.95, 1e-8, 0.1)
SMALL = [("a", 8), ("b", 3), ("c", 5), ("d", 16)]


def masks(case):
    """Return what draws the masks of a golden run."""
    drawn = np.unpackbits(GOLDEN[f"{case}.mask_packed"], axis=1)[:, :N].astype(bool)
    return lambda iteration: drawn[iteration]


CASES = {
    "torchft_localsgd_H4": ("localsgd", {"inner": SGD(0.05), "period": 4}),
    "torchft_diloco_H4": ("diloco", {"inner": INNER, "period": 4}),
    "torchft_stream_H12_d2_a05": (
        "streaming",
        {"inner": INNER, "period": 12, "fragments": 3, "delay": 2, "mixing": 0.5},
    ),
    "torchft_stream_H12_d3_a0": (
        "streaming",
        {"inner": INNER, "period": 12, "fragments": [["w1"], ["w2"], ["b"]], "delay": 3},
    ),
    "gym_diloco_H4": ("diloco", {"inner": INNER, "period": 4, "compat": "gym-alias"}),
    "gym_diloco_H4_noalias": ("diloco", {"inner": INNER, "period": 4, "compat": "gym"}),
    "gym_fedavg_H4": ("localsgd", {"inner": AdamW(), "period": 4, "compat": "gym"}),
    "gym_sparta_p05": ("sparta", {"inner": INNER}),
    "gym_spartadiloco_p05_H4_noalias": ("sparta", {"inner": INNER, "period": 4}),
}


def golden(case, workers):
    """Yield the strategy of a golden run after each inner step, and what the step returned."""
    name, options = CASES[case]
    run = f"{case}.P{workers}"
    if f"{run}.mask_packed" in GOLDEN:
        options = {**options, "draw": masks(run)}
    initial = np.zeros(N, dtype=np.float32)
    initial[SHOWN] = GOLDEN["theta0"]
    # The released codes send tensor by tensor.
    strategy = create(name, Replicas(workers, initial, LAYERS), averaging=Averaging(bucket=0), **options)
    for step in range(STEPS):
        gradients = np.zeros((workers, N), dtype=np.float32)
        gradients[:, SHOWN] = GOLDEN["grad"][step, :workers]
        yield strategy, strategy.step(gradients)


def model(workers=4, seed=0, layers=SMALL):
    """Return replicas of a small model."""
    size = sum(size for _, size in layers)
    return Replicas(workers, np.random.default_rng(seed).standard_normal(size).astype(np.float32), layers, seed=seed)


def random_gradients(replicas, steps, seed=1):
    """Return gradients of some steps; shape (steps, P, n)."""
    shape = (steps, replicas.workers, replicas.parameters)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sent(result):
    """Return what a step sent and ran, and when, in a form that compares."""
    return [(sync.schedule, repr(sync.kernels), sync.begin, sync.delay) for sync in result.syncs]


def dyadic(replicas, seed=1):
    """Return one gradient for all workers, of which sums and differences of a few steps are exact in float32."""
    row = np.random.default_rng(seed).integers(-8, 9, replicas.parameters) / 8
    return np.tile(row.astype(np.float32), (replicas.workers, 1))


def exact_model(workers, seed=0):
    """Return replicas whose first parameters are as exact."""
    row = np.random.default_rng(seed).integers(-64, 65, 32) / 64
    return Replicas(workers, row.astype(np.float32), SMALL)


# Runs of the released codes


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_parameters_and_momentum_of_released_codes(case, workers):
    run = f"{case}.P{workers}"
    listed = GOLDEN[f"{run}.param_steps"].tolist()
    assert listed[-1] == STEPS - 1
    for step, (strategy, _) in enumerate(golden(case, workers)):
        if step not in listed:
            continue
        found = {"param": strategy.parameters, "global_param": strategy.global_parameters}
        found["outer_momentum"] = strategy.save().get("outer.momentum")
        for name, values in found.items():
            if f"{run}.{name}" in GOLDEN:
                wanted = GOLDEN[f"{run}.{name}"][listed.index(step)]
                assert np.abs(values[..., SHOWN] - wanted).max() <= 1e-5 * np.abs(wanted).max(), (step, name)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_bytes_and_numbers_of_collectives_of_released_codes(case, workers):
    run, named = f"{case}.P{workers}", ("all_reduce", "broadcast")
    for step, (_, result) in enumerate(golden(case, workers)):
        calls = [call for sync in result.syncs for call in sync.schedule.calls]
        assert result.stats["collectives"] == len(calls)
        if case.startswith("torchft"):
            assert {call.operation for call in calls} <= {"all_reduce"}
            assert (GOLDEN[f"{run}.n_collectives"][step] == len(calls)).all()
            assert (GOLDEN[f"{run}.tx_payload_bytes"][step] == result.stats["payload"]).all()
            continue
        numbers = [sum(call.operation == one for call in calls) for one in named]
        nbytes = [sum(call.nbytes for call in calls if call.operation == one) for one in named]
        assert (GOLDEN[f"{run}.n_ops_allreduce_broadcast"][step] == numbers).all()
        assert (GOLDEN[f"{run}.payload_bytes_allreduce_broadcast"][step] == nbytes).all()


COMPRESSED = {
    "demo_c16_k4": ("demo", {"chunk": 16, "topk": 4}, {"lr": 1e-3}),
    "ccloco_c16_k4": ("sparseloco", CCLOCO | {"chunk": 16, "topk": 4, "compat": "released"}, {"lr": 0.7}),
    "ccloco_c16_k4_q4": ("sparseloco", CCLOCO | {"chunk": 16, "topk": 4, "bins": 4, "compat": "released"}, {"lr": 0.7}),
    "sparseloco_c16_k8": ("sparseloco", {"chunk": 16, "topk": 8, "bins": None}, {"lr": 0.8}),
    "sparseloco_c16_k8_q4": ("sparseloco", {"chunk": 16, "topk": 8}, {"lr": 1.0}),
    "templar_c16_k8_q4": ("sparseloco", TEMPLAR | {"chunk": 16, "topk": 8}, {"lr": 0.4, "scaled": False}),
    "muloco_stat_q4": ("muloco", {"decay": 0.9, "bins": 4}, {"outer": SGD(0.7, 0.9, True)}),
    "muloco_topk05": ("muloco", {"decay": 0.9, "compressor": "topk"}, {"outer": SGD(0.7, 0.9, True)}),
}


@pytest.mark.parametrize("case", COMPRESSED)
def test_parameters_of_released_codes_that_compress(case):
    golden = np.load(RUNS / "compressed.npz")
    name, scheme, options = COMPRESSED[case]
    averaging = Averaging(name, 0.05 if case == "muloco_topk05" else 1.0, scheme)
    # One step of plain SGD makes the gradient the pseudo-gradient, but for rounding.
    round_ = {} if name == "demo" else {"inner": SGD(1.0), "period": 1}
    strategy = create(name, Replicas(2, golden["theta0"], LAYERS), averaging=averaging, **round_, **options)
    for gradients in golden["grad"]:
        strategy.step(gradients)
    assert np.abs(strategy.global_parameters - golden[case]).max() <= 1e-5 * np.abs(golden[case]).max()


# Optimisers


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_follows_its_formulas(nesterov):
    optimiser = SGD(0.3, momentum=0.8, nesterov=nesterov, weight_decay=0.05)
    rng = np.random.default_rng(3)
    found = rng.standard_normal((2, 7)).astype(np.float32)
    state, expected, velocity = optimiser.state(2, 7), found.astype(np.float64), 0.0
    for _ in range(5):
        gradients = rng.standard_normal((2, 7)).astype(np.float32)
        optimiser.step(found, gradients, state)
        step = gradients + 0.05 * expected
        velocity = 0.8 * velocity + step
        expected -= 0.3 * (step + 0.8 * velocity if nesterov else velocity)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("optimiser", [SGD(0.1, 0.9, True, 0.1), AdamW(0.1), SignDescent(0.1, 0.1)])
def test_rows_and_columns_left_out_of_a_step_stay(optimiser):
    rng = np.random.default_rng(4)
    parameters, gradients = (rng.standard_normal((3, 6)).astype(np.float32) for _ in range(2))
    rows, columns = np.array([0, 2]), np.array([1, 4, 5])
    some, all_ = parameters.copy(), parameters.copy()
    state, whole = optimiser.state(3, 6), optimiser.state(3, 6)
    at = np.ix_(rows, columns)
    optimiser.step(some, gradients[at], state, rows, columns)
    optimiser.step(all_, gradients, whole)
    np.testing.assert_array_equal(some[at], all_[at])
    untouched = np.ones((3, 6), dtype=bool)
    untouched[at] = False
    np.testing.assert_array_equal(some[untouched], parameters[untouched])
    for name in state.keys() - {"steps"}:
        np.testing.assert_array_equal(state[name][at], whole[name][at])
        assert not state[name][untouched].any()


# Algebra


def test_data_parallelism_is_the_live_training_of_a_job_to_the_bit():
    source = train("mlp", "classification", workers=4, batch=4, hidden=[5], learning_rate=0.1, momentum=0.9, seed=1)
    training = source.begin()
    strategy = create("dataparallel", Replicas(4, source.initial(), source.layers), inner=SGD(0.1, momentum=0.9))
    for iteration in range(5):
        gradients = training.gradients(iteration)
        training.apply(np.add.reduce(gradients, axis=0) / np.float32(4))
        strategy.step(gradients)
        np.testing.assert_array_equal(strategy.global_parameters, training.weights)


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_local_sgd_with_plain_sgd_and_a_period_of_one_is_data_parallelism(workers):
    replicas = model(workers)
    local = create("localsgd", replicas, inner=SGD(0.1), period=1)
    parallel = create("dataparallel", replicas, inner=SGD(0.1))
    for gradients in random_gradients(replicas, 10):
        one, other = local.step(gradients), parallel.step(gradients)
        np.testing.assert_allclose(local.parameters, parallel.parameters, atol=2e-6)
        assert [sync.schedule for sync in one.syncs] == [sync.schedule for sync in other.syncs]


def test_accumulating_one_step_is_data_parallelism_and_several_their_mean():
    replicas = model()
    options = {"inner": SGD(0.1, 0.9), "averaging": Averaging("topk", density=0.2)}
    one, three = (create("accumulation", replicas, period=period, **options) for period in (1, 3))
    parallel, of_means = (create("dataparallel", replicas, **options) for _ in range(2))
    for batch in random_gradients(replicas, 12).reshape(4, 3, 4, 32):
        sent = [bool(three.step(gradients).syncs) for gradients in batch]
        assert sent == [False, False, True]
        of_means.step(((batch[0] + batch[1]) + batch[2]) / np.float32(3))
        np.testing.assert_array_equal(three.parameters, of_means.parameters)
        one.step(batch[0])
        parallel.step(batch[0])
        np.testing.assert_array_equal(one.parameters, parallel.parameters)


@pytest.mark.parametrize("scheme", ["dense", "topk"])
def test_streaming_one_fragment_without_delay_is_diloco_to_the_bit(scheme):
    replicas = model()
    options = {"inner": INNER, "period": 3, "averaging": Averaging(scheme, density=0.1)}
    streaming = create("streaming", replicas, fragments=1, delay=0, **options)
    diloco = create("diloco", replicas, **options)
    for gradients in random_gradients(replicas, 10):
        one, other = streaming.step(gradients), diloco.step(gradients)
        np.testing.assert_array_equal(streaming.parameters, diloco.parameters)
        np.testing.assert_array_equal(streaming.global_parameters, diloco.global_parameters)
        assert sent(one) == sent(other)
    np.testing.assert_array_equal(streaming.save()["outer.momentum"], diloco.save()["outer.momentum"])


def test_streaming_mixes_what_was_trained_during_the_delay():
    replicas = exact_model(2)
    gradient = dyadic(replicas)
    for mixing in (0.0, 0.25, 1.0):
        options = {"inner": SGD(0.5), "outer": SGD(1.0), "period": 4, "delay": 2, "mixing": mixing}
        strategy = create("streaming", replicas, fragments=1, **options)
        for _ in range(4):
            strategy.step(gradient)
        # The outer step takes the two steps before the exchange; the two after it count by the mixing.
        master = replicas.initial - gradient[0]
        np.testing.assert_array_equal(strategy.global_parameters, master)
        np.testing.assert_array_equal(strategy.parameters[0], master - np.float32(mixing) * gradient[0])


@pytest.mark.parametrize("first", ["absent", "own"])
def test_eager_diloco_of_one_worker_is_diloco_to_the_bit(first):
    replicas = model(1)
    options = {"inner": INNER, "outer": SGD(0.4, 0.9, True), "period": 3}
    eager, diloco = create("eager", replicas, first=first, **options), create("diloco", replicas, **options)
    for gradients in random_gradients(replicas, 12):
        eager.step(gradients)
        diloco.step(gradients)
        np.testing.assert_array_equal(eager.parameters, diloco.parameters)
        np.testing.assert_array_equal(eager.global_parameters, diloco.global_parameters)


def test_eager_takes_its_own_at_once_and_that_of_others_a_round_later():
    replicas = exact_model(2)
    strategy = create("eager", replicas, inner=SGD(1.0), outer=SGD(1.0), period=1)
    rounds = [np.stack([dyadic(replicas, seed)[0], dyadic(replicas, seed + 1)[0]]) for seed in (1, 3, 5)]
    master, before = replicas.initial + np.zeros_like(rounds[0]), np.zeros_like(rounds[0])
    for moved in rounds:
        strategy.step(moved)
        master = master - (moved + before[::-1]) / 2
        before = moved
        np.testing.assert_array_equal(strategy.parameters, master)


def test_the_outer_learning_rate_acts_twice_where_pseudo_gradients_are_scaled():
    replicas = exact_model(2)
    gradient = dyadic(replicas)
    dense = Averaging()
    for twice in (True, False):
        strategy = create("sparseloco", replicas, inner=SGD(0.5), lr=0.25, period=2, averaging=dense, scaled=twice)
        for _ in range(2):
            strategy.step(gradient)
        factor = np.float32(0.25**2 if twice else 0.25)
        np.testing.assert_array_equal(strategy.global_parameters, replicas.initial - factor * gradient[0])
    muloco = create("muloco", replicas, inner=SGD(0.5), outer=SGD(0.25, 0.5, True), period=2, averaging=dense)
    for _ in range(2):
        muloco.step(gradient)
    np.testing.assert_array_equal(muloco.global_parameters, replicas.initial - np.float32(0.25**2 * 1.5) * gradient[0])


def test_a_compressed_exchange_keeps_back_what_it_does_not_send():
    replicas = model()
    options = {"inner": SGD(0.1), "period": 2}
    strategy = create("sparseloco", replicas, averaging=Averaging("topk", density=0.1), **options)
    batch = random_gradients(replicas, 2)
    strategy.step(batch[0])
    (sync,) = strategy.step(batch[1]).syncs
    moved = np.float32(0.1) * (batch[0] + batch[1])
    residual = strategy.save()["pseudo-gradients/0/residual"]
    np.testing.assert_allclose(moved.sum(0), 4 * sync.exchange.update + residual.sum(0), atol=1e-5)
    np.testing.assert_allclose(strategy.global_parameters, replicas.initial - sync.exchange.update, atol=1e-6)
    assert 0 < np.count_nonzero(sync.exchange.update) < 32
    assert sync.kernels


def test_demo_moves_by_the_sign_of_what_the_scheme_returns():
    replicas = exact_model(3)
    gradients = random_gradients(replicas, 1)[0]
    strategy = create("demo", replicas, lr=0.25, weight_decay=0.5, averaging=Averaging())
    (*syncs,) = strategy.step(gradients).syncs
    update = np.concatenate([sync.exchange.update for sync in syncs])
    np.testing.assert_allclose(update, 0.25 * gradients.mean(axis=0), atol=1e-6)
    expected = replicas.initial * np.float32(0.875) - np.float32(0.25) * np.sign(update)
    np.testing.assert_array_equal(strategy.global_parameters, expected)


def test_sparta_averages_what_is_drawn_and_nothing_else():
    replicas = model(3)
    strategy = create("sparta", replicas, inner=SGD(0.1), share=0.25, masks="seeded")
    twin = create("sparta", replicas, inner=SGD(0.1), share=0.25)
    drawn = 0
    for gradients in random_gradients(replicas, 20):
        before = strategy.parameters.copy()
        result, with_masks = strategy.step(gradients), twin.step(gradients)
        alone = before - np.float32(0.1) * gradients
        mixed = (strategy.parameters != alone).any(axis=0)
        assert mixed.sum() == result.stats["payload"] / 4
        np.testing.assert_allclose(strategy.parameters[:, mixed], alone[:, mixed].mean(0)[None].repeat(3, 0), atol=1e-6)
        np.testing.assert_array_equal(twin.parameters, strategy.parameters)
        assert with_masks.stats["payload"] == result.stats["payload"] + 32
        assert {sync.what for sync in with_masks.syncs} == {"masks", "parameters"}
        drawn += mixed.sum()
    assert 0.15 < drawn / (20 * 32) < 0.35


# What is sent, and when


def sent_by_rings(workers, nbytes):
    return 2 * (workers - 1) / workers * nbytes


def volumes(workers):
    """Return options of strategies, and the bytes that all workers together send in 12 steps by their formulas."""
    ring, rate = workers * sent_by_rings(workers, 4 * 32), {"inner": SGD(0.1)}
    spread = (workers - 1) * 4 * 32
    return [
        ("dataparallel", rate, 12 * ring),
        ("accumulation", {**rate, "period": 4}, 3 * ring),
        ("localsgd", {**rate, "period": 3}, 4 * ring),
        ("localsgd", {**rate, "period": 3, "compat": "gym"}, 3 * ring),
        ("localsgd", {"inner": AdamW(), "period": 5, "compat": "gym"}, 2 * ring),
        ("diloco", {**rate, "period": 6}, 2 * ring),
        ("diloco", {**rate, "period": 5, "compat": "gym"}, 2 * (ring + spread)),
        ("streaming", {**rate, "period": 12, "fragments": 4}, ring),
        ("streaming", {**rate, "period": 4, "fragments": 2, "delay": 1}, 3 * ring),
        ("delayed", {**rate, "period": 4}, 3 * ring),
        ("eager", {**rate, "period": 4}, 3 * ring),
        ("sparta", {**rate, "share": 1.0}, 12 * (ring + (workers - 1) * 32)),
        ("sparta", {**rate, "share": 1.0, "masks": "seeded"}, 12 * ring),
        (
            "sparta",
            {**rate, "share": 1.0, "period": 11},
            12 * (ring + (workers - 1) * 32) + ring + spread,
        ),
        ("sparseloco", {**rate, "period": 4, "averaging": Averaging()}, 3 * ring),
        ("demo", {"averaging": Averaging()}, 12 * ring),
        (
            "dataparallel",
            {**rate, "averaging": Averaging("topk", density=0.25)},
            # Eight values and indices go to everybody else.
            12 * workers * (workers - 1) * 8 * 8,
        ),
    ]


@pytest.mark.parametrize("workers", range(2, 17))
def test_volumes_are_those_of_their_formulas(workers):
    replicas = model(workers)
    for name, options, nbytes in volumes(workers):
        strategy = create(name, replicas, **options)
        results = [strategy.step(gradients) for gradients in random_gradients(replicas, 12)]
        assert sum(result.stats["bytes_sent"].sum() for result in results) == pytest.approx(nbytes, rel=1e-12), name
        received = sum(result.stats["bytes_received"].sum() for result in results)
        assert received == pytest.approx(nbytes, rel=1e-12), name


def test_exchanges_begin_and_arrive_when_the_strategy_says():
    replicas = model()
    options = {"inner": SGD(0.1), "period": 8}

    def begun(name, **more):
        strategy = create(name, replicas, **options, **more)
        results = [strategy.step(gradients) for gradients in random_gradients(replicas, 20)]
        return {(sync.begin, sync.delay) for result in results for sync in result.syncs}

    assert begun("localsgd") == {(7, 0), (15, 0)}
    assert begun("localsgd", compat="gym") == {(8, 0), (16, 0)}
    assert begun("diloco") == {(7, 0), (15, 0)}
    assert begun("streaming", fragments=2, delay=3) == {(0, 3), (4, 3), (8, 3), (12, 3), (16, 3)}
    assert begun("eager") == begun("delayed") == {(7, 8), (15, 8)}
    assert begun("sparta") == {(step, 0) for step in range(20)}


def test_all_reduces_and_buckets_are_those_asked_for():
    replicas = model()

    def payloads(**averaging):
        strategy = create("localsgd", replicas, inner=SGD(0.1), period=1, averaging=Averaging(**averaging))
        syncs = strategy.step(random_gradients(replicas, 1)[0]).syncs
        return [sync.payload for sync in syncs], {call.algorithm for sync in syncs for call in sync.schedule.calls}

    assert payloads() == ([128], {"ring"})
    assert payloads(bucket=0) == ([32, 12, 20, 64], {"ring"})
    assert payloads(bucket=44, options={"algorithm": "rabenseifner"}) == ([44, 20, 64], {"rabenseifner"})
    assert payloads(bucket=np.inf, options={"algorithm": "tree"}) == ([128], {"tree"})


# Fragments


def test_fragments_may_be_of_layers_that_are_apart():
    replicas = model()
    named = [["d", "a"], ["c", "b"]]
    strategy = create("streaming", replicas, inner=SGD(0.1), outer=SGD(1.0), period=2, delay=0, fragments=named)
    gradients = random_gradients(replicas, 2)
    local = replicas.initial - np.float32(0.1) * gradients[0]
    (*syncs,) = strategy.step(gradients[0]).syncs
    assert [sync.payload for sync in syncs] == [96]
    own = np.r_[0:8, 16:32]
    np.testing.assert_allclose(strategy.parameters[:, own], local.mean(0)[None, own].repeat(4, 0), atol=1e-6)
    np.testing.assert_array_equal(strategy.parameters[:, 8:16], local[:, 8:16])
    (*syncs,) = strategy.step(gradients[1]).syncs
    assert [sync.payload for sync in syncs] == [32]


# The state

EVERY = [
    ("dataparallel", {"inner": SGD(0.1, 0.9), "averaging": Averaging("topk", density=0.1)}),
    ("accumulation", {"inner": AdamW(), "period": 3}),
    ("localsgd", {"inner": AdamW(), "period": 3}),
    ("diloco", {"period": 3, "averaging": Averaging("topk", density=0.1, bucket=40)}),
    ("diloco", {"period": 3, "compat": "gym-alias"}),
    ("streaming", {"fragments": 2, "period": 6, "mixing": 0.5, "averaging": Averaging("topk", density=0.1)}),
    ("delayed", {"period": 3}),
    ("eager", {"period": 3, "averaging": Averaging("topk", density=0.1)}),
    ("sparta", {"inner": AdamW(), "share": 0.2}),
    ("sparta", {"inner": AdamW(), "share": 0.2, "period": 3}),
    ("sparseloco", {"averaging": Averaging("topk", density=0.1), "period": 3}),
    ("muloco", {"inner": SGD(0.1), "averaging": Averaging("qsgd"), "period": 3}),
    ("demo", {"averaging": Averaging("topk", density=0.1)}),
]


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_a_state_resumes_to_the_bit(name, options):
    replicas = model()
    batch = random_gradients(replicas, 14)
    for stop in (0, 2, 5, 7):
        strategy, twin = create(name, replicas, **options), create(name, replicas, **options)
        for gradients in batch[:stop]:
            strategy.step(gradients)
        twin.restore(reread(strategy.save()))
        for gradients in batch[stop:]:
            one, other = strategy.step(gradients), twin.step(gradients)
            assert sent(one) == sent(other)
            np.testing.assert_array_equal(strategy.parameters, twin.parameters)
            np.testing.assert_array_equal(strategy.global_parameters, twin.global_parameters)
        assert same_state(strategy.save(), twin.save())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"strategy": np.array("eager")}, "a state of eager, not of diloco"),
        ({"local": np.zeros((4, 31), np.float32)}, "local does not fit"),
        ({"more": np.zeros(1)}, "more does not fit"),
        ({"outer.momentum": None}, "outer.momentum does not fit"),
        ({"pseudo-gradients/0/scheme": np.array("dense")}, "pseudo-gradients/0/: this is a state of dense"),
        ({"pseudo-gradients/1/residual": None}, "pseudo-gradients/1/: .*no residual"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, why):
    replicas = model()
    strategy = create("diloco", replicas, period=2, averaging=Averaging("topk", density=0.1, bucket=40))
    for gradients in random_gradients(replicas, 3):
        strategy.step(gradients)
    state = {name: array for name, array in {**strategy.save(), **change}.items() if array is not None}
    with pytest.raises(ValueError, match=why):
        strategy.restore(state)


# Workers that are left out


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_workers_that_are_left_out_of_a_step_keep_their_parameters(name, options):
    replicas = model(4)
    strategy = create(name, replicas, **options)
    batch = random_gradients(replicas, 8)
    strategy.step(batch[0])
    before = strategy.parameters.copy()
    for gradients in batch[1:]:
        result = strategy.step(gradients[[0, 2, 3]], active=[0, 2, 3])
        assert result.stats["bytes_sent"].shape == (3,)
        assert all(sync.schedule.n_ranks == 3 for sync in result.syncs)
        if strategy.alike:
            np.testing.assert_array_equal(strategy.parameters[1], strategy.parameters[0])
        else:
            np.testing.assert_array_equal(strategy.parameters[1], before[1])
            assert (strategy.parameters[[0, 2, 3]] != before[[0, 2, 3]]).any()
    strategy.step(batch[0])


# What is refused


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("dilocco", {}, "there is no strategy 'dilocco': did you mean 'diloco'"),
        ("diloco", {"periode": 3}, "diloco: there is no option 'periode': did you mean 'period'"),
        ("localsgd", {"inner": SGD(0.1)}, "localsgd has no default for period"),
        ("diloco", {"period": 0}, "period must be a whole number >= 1, got 0"),
        ("diloco", {"compat": "gim"}, "there is no compat 'gim': did you mean 'gym'"),
        ("diloco", {"broadcast": "bionomial"}, "did you mean 'binomial'"),
        ("localsgd", {"inner": SGD(0.1), "period": 3, "compat": "torchft"}, "there is no compat 'torchft'"),
        ("localsgd", {"inner": SGD(0.1), "period": 3, "averaging": Averaging("topk")}, "parameters are averaged as"),
        ("diloco", {"averaging": Averaging("topkk")}, "there is no sparsifier 'topkk': did you mean 'topk"),
        ("diloco", {"averaging": Averaging(options={"algorithm": "rung"})}, "did you mean 'ring'"),
        ("streaming", {"fragments": 2, "period": 5}, "period must be a multiple of the 2 fragments, got 5"),
        ("streaming", {"fragments": 2, "period": 6, "delay": 3}, "delay must be less than the 3 inner steps"),
        ("streaming", {"fragments": 2, "mixing": 1.5}, "mixing must be <= 1, got 1.5"),
        ("eager", {"first": "mine"}, "there is no first 'mine'"),
        ("sparta", {"inner": SGD(0.1), "share": 0.0}, "share must be > 0, got 0"),
        ("sparta", {"inner": SGD(0.1), "masks": "sent"}, "there is no masks 'sent'"),
        ("sparta", {"inner": SGD(0.1), "algorithm": "rung"}, "did you mean 'ring'"),
    ],
)
def test_options_that_are_wrong_are_refused(name, options, why):
    with pytest.raises(ValueError, match=why):
        create(name, model(), **options)


def test_gradients_that_are_wrong_are_refused_and_change_nothing():
    replicas = model(3)
    strategy = create("diloco", replicas, period=1)
    good = random_gradients(replicas, 1)[0]
    before = strategy.save()
    bad = good.copy()
    bad[2, 5] = np.nan
    for gradients, active, why in (
        (good[:2], None, "must have shape"),
        (good.astype(np.float64), None, "must be an array of float32, got float64"),
        (bad, None, "gradient of worker 2 is nan at index 5"),
        (bad[[0, 2]], [0, 2], "gradient of worker 2 is nan at index 5"),
        (good, [0, 1], "must have shape"),
        (good, [0, 1, 3], "active must be numbers of workers within 0..2 that ascend"),
        (good[:2], [1, 0], "that ascend"),
        (good[:0], [], "that ascend"),
    ):
        with pytest.raises(ValueError, match=why):
            strategy.step(gradients, active)
    assert same_state(strategy.save(), before)
    strategy.step(good)
    np.testing.assert_array_equal(good, random_gradients(replicas, 1)[0])


# Strategies of others

MINE = """\
from simnet.strategies.replicas import Averaging
from simnet.strategies.base import Strategy


class Mine(Strategy):
    name, paper = "mine", "a test"

    def __init__(self, replicas, *, inner, period=2):
        super().__init__(replicas, inner)
        self.period = period
        self._averager = self.averager("parameters", Averaging())

    def _advance(self, gradients):
        self.descend(gradients)
        if not self.due(self.period):
            return []
        mean, syncs = self.average(self._averager, self.local[self.active])
        self.local[self.active] = mean
        return syncs


class Wrong(Mine):
    def _advance(self, gradients):
        return 3


class Incomplete(Strategy):
    name, paper = "incomplete", "a test"
"""


def test_a_strategy_in_a_file_is_as_good_as_those_of_simnet(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    replicas = model()
    mine = create(f"{file}:Mine", replicas, inner=SGD(0.1))
    ours = create("localsgd", replicas, inner=SGD(0.1), period=2)
    for gradients in random_gradients(replicas, 5):
        mine.step(gradients)
        ours.step(gradients)
    np.testing.assert_array_equal(mine.parameters, ours.parameters)
    with pytest.raises(ValueError, match=r"code in .*mine.py.*returned 3, and not a list of Sync"):
        create(f"{file}:Wrong", replicas, inner=SGD(0.1)).step(random_gradients(replicas, 1)[0])
    with pytest.raises(ValueError, match="lacks _advance"):
        create(f"{file}:Incomplete", replicas, inner=SGD(0.1))
    with pytest.raises(ValueError, match="must be a class that derives from"):
        create(f"{file}:Averaging", replicas)


def on_the_page(containing):
    page = (Path(__file__).parents[1] / "docs" / "strategies.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if containing in one]
    names = {"__name__": "page"}
    exec(compile(block, "strategies.md", "exec"), names)
    return block, names


def test_the_example_of_the_page_runs(capsys):
    on_the_page("network.time")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [[step, "pseudo-gradients", "4000.0"] for step in ("49", "99")]


def test_the_strategy_of_the_page_is_local_sgd_in_a_dozen_lines():
    block, names = on_the_page("class LocalSGD")
    lines = [line for line in block.splitlines() if line.strip() and "import" not in line]
    assert len(lines) <= 12
    replicas = model()
    mine = names["LocalSGD"](replicas, period=3)
    ours = create("localsgd", replicas, inner=SGD(0.1), period=3)
    for gradients in random_gradients(replicas, 7):
        assert sent(mine.step(gradients)) == sent(ours.step(gradients))
        np.testing.assert_array_equal(mine.parameters, ours.parameters)
