"""What every scheme keeps, whatever it is given: mass, state, bounds, and an end."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings

import outputs
from exchanges import exchanged
from gradients import KINDS as COMMON_KINDS
from gradients import f32, gradients_of, jobs
from looping import each
from simnet.cost_models.costs.devices import device_names, load_device
from simnet.sparsifier_models import selection
from simnet.sparsifier_models.conformance import check
from states import assert_continues, same_state
from variants import ADAMS, CCLOCO, EVERY, MATRICES, TWO_HOPS, kept_beside, label, made

# At a scale, 1 / (2 sqrt k) goes by the k of the whole model.
FIXED = {
    "exdyna": {"initial_threshold": 1.0},
    "micro": {"initial_threshold": 1.0},
    "sage": {"initial_threshold": 1.0},
    "hardthreshold": {"threshold": 1.0},
}
KINDS = [*COMMON_KINDS, "tiny", "large", "one entry"]

# Of these every message is so many times as long at a scale but those that only tell how long others are.
TEN_TIMES = FIXED.keys() | {"cltk", "uniontopk", "gaussiank", "sidco", "redsync", "topka", "gtopk", "oktopk"}
ABOUT_MESSAGES = ["counts", "sizes", "cuts", "split sizes", "starts", "ends"]

# Quantisers send what fits, and means of blocks are taken in double precision. Memory is bounded up to these
# densities, and up to 0.1 elsewhere.
ROUNDED = ("fp16", "qsgd", "signsgd", "powersgd", "thc", *MATRICES, *TWO_HOPS, *ADAMS)
SUMMED = [one for one in EVERY if one[0] not in ROUNDED]
DENSEST = dict.fromkeys(("exdyna", "micro", "deft", "cltk", "uniontopk", "hardthreshold", "sage"), 0.5)
DENSEST |= {"oktopk": 0.01, "topkdsa": 0.01, "spardl": 0.05}
# Not so signs without a scale, numbers that float16 rounds coarsely, thresholds that do not go by the gradient, and a
# norm to which a constant is added.
COARSE = [("fp16", {}), ("fp16", {"accumulation": "half"})]
COARSE += [
    one
    for one in EVERY
    if one[0] in ("qgz", "loco") or one[1].get("code") == "templar" or one[1].get("shards") == "float16"
]
SCALING = [
    one
    for one in EVERY
    if one[0] not in (*FIXED, *ADAMS) and one not in COARSE and one[1].get("scaled", True) and "threshold" not in one[1]
]


@pytest.fixture
def loaded():
    """Have compiled loops loaded: what that takes is not what an exchange takes."""
    selection._compiled_loops()


identify = pytest.mark.parametrize("variant", EVERY, ids=map(label, EVERY))


def assert_promises(variant, workers, parameters, density, kind, seed):
    batches = [gradients_of(kind, workers, parameters, seed + step) for step in range(3)]
    # An exchange of nothing in between: thresholds and counts of before meet a gradient that is all residual.
    batches.insert(2, np.zeros((workers, parameters), dtype=np.float32))
    check(lambda: made(variant, workers, parameters, density, seed=seed % 2**31), batches)


# Workers, parameters, density and kind of gradients at which most can go wrong.
EXTREMES = [(17, 1, 1e-9, "normal"), (1, 1, 1.0, "zero"), (16, 5, 0.5, "zero"), (6, 3000, 0.01, "heavy")]


def spread(number):
    """1 to 17 workers, every kind of gradients, few or many parameters, extreme densities: mixed anew per variant."""
    rng = np.random.default_rng(number)
    for workers, longest, density in zip(
        range(1, 18), rng.permuted([40, 3000] * 9), rng.permuted([1e-9, 0.01, 0.5, 1.0, *[None] * 13]), strict=False
    ):
        yield (
            workers,
            int(rng.integers(1, longest, endpoint=True)),
            float(rng.uniform(1e-3, 1)) if density is None else density,
            KINDS[(workers + number) % len(KINDS)],
        )


@identify
def test_every_scheme_keeps_its_promises(variant):
    number = EVERY.index(variant)
    for seed, job in enumerate([*EXTREMES, *spread(number)]):
        try:
            assert_promises(variant, *job, seed)
        except Exception as failure:
            failure.add_note(f"workers, parameters, density, kind: {job}; seed {seed}")
            raise


@pytest.mark.parametrize("adapt", ["released", "fixed"])
@pytest.mark.parametrize("sag", ["bruck", "auto", "recursive"])
def test_spardl_keeps_its_promises_with_every_number_of_teams(sag, adapt):
    for workers in range(1, 13):
        for teams in range(1, workers + 1):
            if workers % teams == 0 and (sag != "recursive" or teams & (teams - 1) == 0):
                variant = "spardl", {"teams": teams, "sag": sag, "adapt": adapt}
                for kind, parameters, density in (("heavy", 97, 0.1), ("ties", 250, 0.5)):
                    assert_promises(variant, workers, parameters, density, kind, workers + teams)


@pytest.mark.slow
@identify
@settings(max_examples=100)
@given(job=jobs(kinds=KINDS))
def test_every_scheme_keeps_its_promises_whatever_the_job(variant, job):
    assert_promises(variant, *job)


@pytest.mark.parametrize(
    ("variant", "job"),
    [
        # Nine times 65504 / 9, rounded up in half precision, are more than its largest number.
        (("qgz", {}), (9, 23, 1e-9, "large", 0)),
        (("loco", {}), (9, 23, 1e-9, "large", 0)),
        # What was kept and what is fresh cancel but for a thousandth, and each was rounded.
        (("sparseloco", CCLOCO | {"topk": None, "mean_over": "workers"}), (1, 7, 1e-9, "ties", 0)),
        (("muloco", {"compressor": "topk", "wire": "released"}), (1, 132, 1e-9, "normal", 1)),
    ],
    ids=["qgz", "loco", "ccloco", "muloco"],
)
def test_promises_are_kept_at_the_ends_of_what_numbers_hold(variant, job):
    assert_promises(variant, *job)


@identify
def test_every_scheme_exchanges_what_it_did(variant):
    assert not outputs.changes("exchanges", exchanged(variant))


@identify
def test_a_change_of_density_keeps_the_promises(variant):
    model, total, workers, parameters = made(variant, 5, 700, 0.02), 0.0, 5, 700
    applied = np.zeros(parameters)
    for step, density in enumerate((0.02, 0.3, 0.3, 1e-3, 1.0, 0.02, 0.02)):
        gradients = gradients_of("heavy", workers, parameters, step)
        model.density = density
        exchange = model.exchange(gradients)
        decay, gain = model.traits.weights
        applied = decay * applied + workers * exchange.update.astype(np.float64)
        total = decay * total + gain * gradients.sum(0, dtype=np.float64)
        assert np.isfinite(load_device("v100").seconds(exchange.kernels, workers)).all()
    assert ("lost" in exchange.stats) == (not model.traits.conserves)
    if model.traits.conserves:
        kept = model.residual.sum(0, dtype=np.float64)
        scale = np.abs(applied).max() + np.abs(kept).max()
        np.testing.assert_allclose(applied + kept, total, atol=3e-5 * scale)


@identify
def test_without_error_feedback_nothing_stays(variant):
    model = made(variant, 4, 300, 0.05, error_feedback=False)
    for step in range(3):
        model.exchange(gradients_of("normal", 4, 300, step))
        assert not model.residual.any()


@identify
def test_a_saved_state_continues_identically(variant):
    for steps, kind in ((0, "normal"), (1, "sparse"), (5, "heavy")):
        model, twin = (made(variant, 5, 300, density, seed=7) for density in (0.05, 1.0))
        batches = [gradients_of(kind, 5, 300, step) for step in range(steps + 3)]
        for gradients in batches[:steps]:
            model.exchange(gradients)
        assert_continues(model, twin, batches[steps:])


@pytest.mark.parametrize("variant", SUMMED, ids=map(label, SUMMED))
def test_a_sum_that_overflows_is_refused_and_leaves_the_state_as_it_was(variant):
    model = made(variant, 4, 8, 1.0)
    for step in range(4):
        model.exchange(gradients_of("normal", 4, 8, step))
    before = model.save()
    copies = {name: value.copy() for name, value in before.items()}
    with pytest.raises(ValueError, match="sum over the workers overflows"):
        model.exchange(f32([[3e38, 3e38, 1, 1, 1, 1, 1, 1]] * 4))
    assert same_state(model.save(), before)
    assert same_state(copies, before)


@identify
def test_every_profile_knows_the_operations(variant):
    exchange = made(variant, 5, 3000, 0.1).exchange(gradients_of("heavy", 5, 3000, 0))
    for device in device_names():
        seconds = load_device(device).seconds(exchange.kernels, 5)
        assert seconds.shape == (5,)
        assert np.isfinite(seconds).all()


@identify
@each("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_worker_layer_and_index(variant, bad):
    model = made(variant, 3, 30, 0.2, layers=(("conv", 20), ("fc", 10)))
    model.exchange(gradients_of("normal", 3, 30, 0))
    before, gradients = model.save(), gradients_of("normal", 3, 30, 1)
    broken = gradients.copy()
    broken[2, 23] = bad
    with pytest.raises(ValueError, match=r"worker 2 is (nan|-?inf) at index 23 \(entry 3 of fc\)"):
        model.exchange(broken)
    after = model.save()
    assert before.keys() == after.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(value, after[key])
    model.exchange(gradients)


@identify
@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_exchange_needs_the_room_that_it_says(variant, overwrite):
    workers, parameters = 8, 600_000 if overwrite else 240_000
    for density in (0.01, DENSEST.get(variant[0], 0.1)):
        model = made(variant, workers, parameters, density)
        for _ in range(2):
            gradients = gradients_of("normal", workers, parameters, 0).copy()
            tracemalloc.start()
            model.exchange(gradients, overwrite=overwrite)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        # Gradients and old residual are there already; where they stay, their sum is a third copy.
        more = model.traits.reads_gradients + kept_beside(variant) + (not overwrite)
        copies, rows = model.traits.memory_factor
        assert peak < (copies + 4 * density + more) * gradients.nbytes + (rows + 1) * 4 * parameters, density


def test_a_residual_that_has_some_of_the_gradients_is_none_any_more():
    def some(rows):
        rows += 1
        raise KeyboardInterrupt

    model = made(("topk", {}), 2, 100, 0.1)
    gradients = gradients_of("normal", 2, 100, 0)
    first = model.exchange(gradients.copy(), overwrite=True).update.copy()
    with pytest.raises(KeyboardInterrupt):
        model.exchange(some, overwrite=True)
    assert model.exchange(gradients.copy(), overwrite=True).update.tobytes() == first.tobytes()


# DGC draws as many entries for its threshold as it would of the whole model, so that another is found; the others share
# the whole entries of a sample out among layers, tensors or rows, see `test_samples`.
SHARED_OUT = ("dgc", "lwtopk", "deft", "arctopk", "muloco")


@pytest.mark.parametrize("variant", [one for one in EVERY if one[0] not in SHARED_OUT], ids=label)
def test_a_scale_multiplies_entries_and_not_the_result(variant):
    gradients = gradients_of("normal", 4, 500, 0)
    fixed = FIXED.get(variant[0], {})
    plain, scaled = (made(variant, 4, 500, 0.04, **fixed, scale=scale).exchange(gradients) for scale in (1.0, 10.0))
    np.testing.assert_array_equal(plain.update, scaled.update)
    bytes_plain, bytes_scaled = plain.schedule.nbytes, scaled.schedule.nbytes
    # Chunks of THC are padded to a power of two.
    assert bytes_plain < bytes_scaled <= (16 if variant[0] == "thc" else 15) * bytes_plain
    if variant[0] in TEN_TIMES:
        one, other = plain.schedule.columns(), scaled.schedule.columns()
        fixed = np.isin(one["phase"], ABOUT_MESSAGES)
        np.testing.assert_array_equal(other["nbytes"][fixed], one["nbytes"][fixed])
        np.testing.assert_allclose(other["nbytes"][~fixed], 10 * one["nbytes"][~fixed])
    # Factors of a matrix ten times as large are sqrt(10) times as long, and so is what makes them orthonormal.
    least = 10**0.5 if variant[0] == "powersgd" else 10 * (1 - 1e-9)
    assert (least * plain.stats["entries"] <= scaled.stats["entries"]).all()
    # Of ten times as many rows, or entries of a tensor, more are left of the density when it is rounded down.
    most = 11 if variant[0] in ("arctopk", "muloco") else 10 * (1 + 1e-9)
    assert (scaled.stats["entries"] <= most * plain.stats["entries"]).all()


@pytest.mark.parametrize("variant", SCALING, ids=map(label, SCALING))
@each("workers, density", [(1, 0.3), (5, 0.02), (8, 1.0)])
def test_gradients_times_a_power_of_two_give_a_result_times_it(variant, workers, density):
    model, twin = (made(variant, workers, 200, density) for _ in range(2))
    for step in range(3):
        gradients = gradients_of("normal", workers, 200, step)
        np.testing.assert_array_equal(model.exchange(gradients).update * 4, twin.exchange(gradients * 4).update)
        np.testing.assert_array_equal(model.residual * 4, twin.residual)
