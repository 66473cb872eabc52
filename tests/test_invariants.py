"""What every scheme keeps, whatever it is given: mass, state, bounds, and an end."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradients import gradients_of
from looping import each
from simnet.costs.devices import load_device
from sparsifier_models import SCHEMES, create
from sparsifier_models.conformance import check

# Options of every scheme that take it another way; each scheme is also tried as it is.
VARIANTS = {
    "dense": [{"algorithm": "tree"}, {"algorithm": "parameter_server"}],
    "randomk": [{"shared": False, "allgather": "bruck"}],
    "topk": [{"allgather": "ring", "wire": "released", "compat": "released"}],
    "lwtopk": [{"fused": False, "compat": "released"}],
    "mstopk": [{"compat": "released"}],
    "artopk": [
        {"compat": "released", "wire": "released", "collective": "tree"},
        {"selection": "var", "monitored": True},
        {"selection": "var", "compat": "released"},
    ],
    "exdyna": [{"blocks": 8, "wire": "released", "allgather": "ring", "allreduce": "tree"}],
    "micro": [{"initial": "exact", "allgather": "bruck", "allreduce": "rabenseifner"}],
    "deft": [{"layers": (), "wire": "released"}],
    "cltk": [{"wire": "released", "allreduce": "recursive_doubling"}],
    "hardthreshold": [{"form": "original"}, {"form": "original", "layers": (), "wire": "released"}],
    "spardl": [
        {"residual": "local", "exchanges": "sequential", "wire": "released"},
        {"teams": "half", "sag": "auto"},
        {"teams": "half", "adapt": "fixed"},
        {"teams": "all", "sag": "recursive"},
    ],
    "fp16": [{"format": "bf16"}, {"accumulation": "half"}],
    "qsgd": [{"coding": "elias", "norm": "max"}],
    "signsgd": [{"vote": "mean"}, {"scaled": False}],
    "powersgd": [{"compat": "released"}, {"warm_start": False}],
    "oktopk": [
        {"rules": "bert", "wire": "released", "compat": "released"},
        {"rules": "lstm", "balance": "trigger"},
        {"warm_up": 2, "tau": 1, "tau_prime": 2, "balance": "never"},
    ],
    "topkdsa": [
        {"algorithm": "recursive_doubling"},
        {"algorithm": "split_allgather"},
        {"algorithm": "dense_allgather"},
        {"compat": "released", "wire": "released"},
    ],
}
# At a scale, 1 / (2 sqrt k) goes by the k of the whole model.
FIXED = {
    "exdyna": {"initial_threshold": 1.0},
    "micro": {"initial_threshold": 1.0},
    "sage": {"initial_threshold": 1.0},
    "hardthreshold": {"threshold": 1.0},
}
EVERY = [(name, options) for name in SCHEMES for options in ({}, *VARIANTS.get(name, ()))]
KINDS = ["normal", "heavy", "sparse", "ties", "zero", "constant", "alike", "tiny", "one worker", "one entry"]

identify = pytest.mark.parametrize(
    ("name", "options"), EVERY, ids=[" ".join([name, *map(str, options.values())]) for name, options in EVERY]
)


def made(name, options, workers, parameters, density, **more):
    options = {**options, **more}
    match options.get("teams"):
        case "half":
            # The largest power of two that divides P, or as it is for odd P.
            options["teams"] = workers & -workers
        case "all":
            options["teams"] = workers if workers & (workers - 1) == 0 else 1
    cut = parameters // 3
    layers = (cut, cut, parameters - 2 * cut) if cut else (parameters,)
    return create(name, workers, parameters, density, **{"layers": layers, **options})


def assert_promises(name, options, workers, parameters, density, kind, seed):
    batches = [gradients_of(kind, workers, parameters, seed + step) for step in range(3)]
    # An exchange of nothing in between: thresholds and counts of before meet a gradient that is all residual.
    batches.insert(2, np.zeros((workers, parameters), dtype=np.float32))
    check(lambda: made(name, options, workers, parameters, density, seed=seed % 2**31), batches)


# Workers, parameters, density and kind of gradients at which most can go wrong.
EXTREMES = [(17, 1, 1e-9, "normal"), (1, 1, 1.0, "zero"), (16, 5, 0.5, "zero"), (6, 3000, 0.01, "heavy")]


def spread(variant):
    """1 to 17 workers, every kind of gradients, few or many parameters, extreme densities: mixed anew per variant."""
    rng = np.random.default_rng(variant)
    for workers, longest, density in zip(
        range(1, 18), rng.permuted([40, 3000] * 9), rng.permuted([1e-9, 0.01, 0.5, 1.0, *[None] * 13]), strict=False
    ):
        yield (
            workers,
            int(rng.integers(1, longest, endpoint=True)),
            float(rng.uniform(1e-3, 1)) if density is None else density,
            KINDS[(workers + variant) % len(KINDS)],
        )


@identify
def test_every_scheme_keeps_its_promises(name, options):
    variant = EVERY.index((name, options))
    for seed, job in enumerate([*EXTREMES, *spread(variant)]):
        try:
            assert_promises(name, options, *job, seed)
        except Exception as failure:
            failure.add_note(f"workers, parameters, density, kind: {job}; seed {seed}")
            raise


@pytest.mark.slow
@identify
@settings(max_examples=100)
@given(
    workers=st.integers(1, 17),
    parameters=st.one_of(st.integers(1, 40), st.integers(1, 3000)),
    density=st.one_of(st.sampled_from([1e-9, 0.01, 0.5, 1.0]), st.floats(1e-3, 1)),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_scheme_keeps_its_promises_whatever_the_job(name, options, workers, parameters, density, kind, seed):
    assert_promises(name, options, workers, parameters, density, kind, seed)


@identify
def test_a_change_of_density_keeps_the_promises(name, options):
    model, total, workers, parameters = made(name, options, 5, 700, 0.02), 0.0, 5, 700
    applied = np.zeros(parameters)
    for step, density in enumerate((0.02, 0.3, 0.3, 1e-3, 1.0, 0.02, 0.02)):
        gradients = gradients_of("heavy", workers, parameters, step)
        model.density = density
        exchange = model.exchange(gradients)
        total = total + gradients.sum(0, dtype=np.float64)
        applied += workers * exchange.update.astype(np.float64)
        assert np.isfinite(load_device("v100").seconds(exchange.kernels, workers)).all()
    if model.conserves:
        kept = model.residual.sum(0, dtype=np.float64)
        scale = np.abs(applied).max() + np.abs(kept).max()
        np.testing.assert_allclose(applied + kept, total, atol=3e-5 * scale)


@identify
def test_without_error_feedback_nothing_stays(name, options):
    model = made(name, options, 4, 300, 0.05, error_feedback=False)
    for step in range(3):
        model.exchange(gradients_of("normal", 4, 300, step))
        assert not model.residual.any()


@identify
@each("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_worker_layer_and_index(name, options, bad):
    model = made(name, options, 3, 30, 0.2, layers=(("conv", 20), ("fc", 10)))
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
def test_an_exchange_needs_no_more_than_three_copies_of_the_gradients(name, options):
    workers, parameters = 8, 120_000
    gradients = gradients_of("normal", workers, parameters, 0)
    model = made(name, options, workers, parameters, 0.01)
    model.exchange(gradients)
    tracemalloc.start()
    model.exchange(gradients)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Gradients and old residual are there already; beside a third copy, vectors of the length of one worker's.
    assert peak < (1 + 8 / workers) * gradients.nbytes


@identify
def test_a_scale_multiplies_entries_and_not_the_result(name, options):
    gradients = gradients_of("normal", 4, 500, 0)
    options = {**FIXED.get(name, {}), **options}
    plain, scaled = (made(name, options, 4, 500, 0.04, scale=scale).exchange(gradients) for scale in (1.0, 10.0))
    np.testing.assert_array_equal(plain.update, scaled.update)
    bytes_plain, bytes_scaled = plain.schedule.nbytes, scaled.schedule.nbytes
    assert bytes_plain < bytes_scaled <= 15 * bytes_plain
    np.testing.assert_allclose(scaled.stats["entries"], 10 * plain.stats["entries"])
