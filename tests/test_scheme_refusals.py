"""Options and states that schemes refuse: with what is allowed, and without a trace."""

import numpy as np
import pytest

from gradients import gradients_of
from simnet.sparsifier_models import create
from states import same_state


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("artpok", {}, "there is no sparsifier 'artpok': did you mean 'artopk'"),
        ("topk", {"alltogether": 1}, "topk: there is no option 'alltogether'.*Allowed: allgather, compat"),
        ("dense", {"algorithm": "rings"}, "there is no algorithm 'rings': did you mean 'ring'"),
        ("artopk", {"selection": "max"}, "there is no selection 'max'.*Allowed: star, var"),
        ("artopk", {"monitored": 1}, "monitored must be true or false, got 1"),
        ("lwtopk", {}, "layers must be given"),
        ("lwtopk", {"layers": (5, 6)}, "layers add up to 11 parameters, but there are 10"),
        ("lwtopk", {"layers": (10, 0)}, "size of layer 1 must be a whole number >= 1, got 0"),
        ("lwtopk", {"layers": [(2, 3), (5, 2)]}, r"size of layer 0 must be a whole number >= 1, got \(2, 3\)"),
        ("lwtopk", {"layers": "10"}, "layers must be a list of sizes, got '10'"),
        ("randomk", {"shared": "yes"}, "shared must be true or false, got 'yes'"),
        ("topk", {"wire": "code"}, "there is no wire 'code': Allowed: paper, released"),
        ("topk", {"compat": "relaesed"}, "did you mean 'released'"),
        ("topk", {"value_bytes": 0}, "value_bytes must be > 0, got 0"),
        ("randomk", {"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ("sidco", {"distribution": "gamma"}, "there is no distribution 'gamma': did you mean 'gammapareto'"),
        ("sidco", {"stages": -2}, "stages must be a whole number in -1..100, got -2"),
        ("sidco", {"stage_ratio": 1.0}, "stage_ratio must be <= 0.95, got 1.0"),
        ("sidco", {"groups": "layers"}, "layers must be given"),
        ("dgc", {"momentum": 1}, "momentum must be < 1, got 1"),
        ("dgc", {"warm_up": 0.25}, "warm_up must be a list, got 0.25"),
        ("dgc", {"warm_up_exchanges": 0}, "warm_up_exchanges must be a whole number >= 1, got 0"),
        ("redsync", {"interval": 0}, "interval must be > 0, got 0"),
        ("exdyna", {"blocks": 0}, "blocks must be a whole number >= 1, got 0"),
        ("exdyna", {"initial_threshold": 0}, "initial_threshold must be > 0, got 0"),
        ("micro", {"start": "best"}, "there is no start 'best'.*Allowed: estimated, exact, published"),
        ("hardthreshold", {"threshold": -0.1}, "threshold must be a finite number >= 0, got -0.1"),
        ("fp16", {"format": "fp8"}, "there is no format 'fp8': Allowed|did you mean"),
        ("qsgd", {"levels": 0}, r"levels must be a whole number in 1\.\.32767, got 0"),
        ("qsgd", {"bucket": 0}, "bucket must be a whole number >= 1, got 0"),
        ("qsgd", {"coding": "huffman"}, "there is no coding 'huffman'"),
        ("signsgd", {"collective": "ring"}, "there is no collective 'ring'"),
        ("powersgd", {"rank": 0}, "rank must be a whole number >= 1, got 0"),
        ("powersgd", {"shapes": [(2, 4)]}, "shapes add up to 8 parameters, but there are 10"),
        ("powersgd", {"shapes": [10]}, r"an entry of shapes must be a list, got 10"),
        ("powersgd", {"shapes": [(10, 1), (0, 3)]}, "an entry of shapes must be a whole number >= 1, got 0"),
        ("powersgd", {"shapes": [(2, 3), (4,)], "layers": (5, 5)}, "shapes and layers differ in size"),
        ("oktopk", {"rules": "resnet"}, "there is no rules 'resnet'.*Allowed: bert, lstm, vgg"),
        ("oktopk", {"balance": "sometimes"}, "there is no balance 'sometimes'"),
        ("oktopk", {"warm_up": -1}, "warm_up must be a whole number >= 0"),
        ("oktopk", {"tau_prime": 1.5}, "tau_prime must be a whole number >= 1"),
        ("oktopk", {"trigger": 0}, "trigger must be > 0, got 0"),
        ("oktopk", {"taus": 3}, "there is no option 'taus': did you mean 'tau'"),
        ("topkdsa", {"algorithm": "ring"}, "there is no algorithm 'ring'"),
        ("loco", {"ranks_per_node": 3}, "ranks_per_node must divide the 2 workers, got 3"),
        ("loco", {"ranks_per_node": 0}, "ranks_per_node must be a whole number >= 1, got 0"),
        ("loco", {"err_beta": 1.5}, "err_beta must be"),
        ("loco", {"reset_T": 0}, "reset_T must be a whole number >= 1, got 0"),
        ("loco", {"shards": "bfloat16"}, "there is no shards 'bfloat16'"),
        ("arctopk", {"warm_up": -1}, "warm_up must be a whole number >= 0, got -1"),
        ("arctopk", {"rank": 0}, "rank must be a whole number >= 1, got 0"),
        ("arctopk", {"feedback": "ef12"}, "there is no feedback 'ef12': did you mean 'ef21'"),
        ("arctopk", {"momentum": "double"}, "momentum 'double' needs feedback 'ef21', got 'ef14'"),
        ("arctopk", {"feedback": "ef21", "eta": 0}, "eta must be"),
        ("onebitadam", {"freeze_step": 0}, "freeze_step must be a whole number >= 1, got 0"),
        ("onebitadam", {"beta1": 1.0}, "beta1 must be < 1, got 1.0"),
        ("onebitadam", {"epsilon": 0}, "epsilon must be"),
        ("zerooneadam", {"local_step_clipper": 0}, "local_step_clipper must be a whole number >= 1, got 0"),
        ("zerooneadam", {"beta2": -0.1}, "beta2 must be a finite number >= 0, got -0.1"),
        ("omnireduce", {"block": 0}, "block must be a whole number >= 1, got 0"),
        ("omnireduce", {"slots": 0}, "slots must be a whole number >= 1, got 0"),
        ("omnireduce", {"threshold": -1.0}, "threshold must be a finite number >= 0"),
        ("omnireduce", {"aggregators": "last"}, "there is no aggregators 'last'"),
        ("demo", {"decay": 0}, "decay must be"),
        ("demo", {"decay": 1.5}, "decay must be <= 1, got 1.5"),
        ("demo", {"gain": -1}, "gain must be"),
        ("demo", {"topk": 0}, "topk must be a whole number >= 1, got 0"),
        ("sparseloco", {"bins": 257}, r"bins must be a whole number in 2\.\.256, got 257"),
        ("sparseloco", {"chunk": 8, "topk": 1.5}, "topk must be a whole number"),
        ("muloco", {"compressor": "top_k"}, "there is no compressor 'top_k': did you mean 'topk'"),
        ("sparseloco", {"mean_over": "contributor"}, "there is no mean_over 'contributor'"),
    ],
)
def test_options_are_refused_with_what_is_allowed(name, options, message):
    with pytest.raises(ValueError, match=message):
        create(name, 2, 10, 0.5, **options)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("artopk", {"density": np.array(2.0)}, "density must be > 0 and <= 1"),
        ("artopk", {"density": np.array([0.5, 0.5])}, r"density must be float64 of shape \(\)"),
        ("artopk", {"iteration": np.array(-1)}, "iteration must be a whole number >= 0, got -1"),
        ("artopk", {"gains": np.array([[0.5, np.inf]])}, "gains must be finite"),
        ("artopk", {"residual": np.zeros((1, 40), dtype=np.float32)}, "residual must have shape"),
        ("artopk", {"residual": np.full((2, 40), np.inf, dtype=np.float32)}, "residual of worker 0 is inf at index 0"),
        ("sidco", {"stages": np.ones((1, 1), dtype=np.int64)}, r"stages must be int64 of shape \(2, 1\)"),
        ("sidco", {"ratios": np.full((2, 1), np.nan)}, "ratios must be finite"),
        ("dgc", {"velocity": np.zeros((2, 39), dtype=np.float32)}, r"velocity must be float32 of shape \(2, 40\)"),
        ("dgc", {"velocity": np.full((2, 40), np.inf, np.float32)}, "velocity must be finite"),
        ("powersgd", {"queries": np.zeros(13, np.float32)}, r"float32 of shape \(14\), got float32 of shape \(13,\)"),
        ("powersgd", {"queries": np.full(14, np.nan, np.float32)}, "queries must be finite"),
        ("oktopk", {"local_threshold": np.zeros(3)}, r"local_threshold must be float64 of shape \(2\)"),
        ("oktopk", {"local_threshold": np.array([1.0, np.nan])}, "finite"),
        ("oktopk", {"global_threshold": np.array(np.inf)}, "finite"),
        ("oktopk", {"cuts": np.array([0, 10])}, r"cuts must be int64 of shape \(3\)"),
        ("exdyna", {"threshold": np.array([1.0, np.nan])}, "threshold must be finite"),
        ("sage", {"mean": np.array([1.0, np.inf])}, "mean must be finite"),
        ("spardl", {"h": np.array([1, 2, 3])}, r"h must be int64 of shape \(2\)"),
        ("spardl", {"flag": np.array([1, 0])}, "flag must be bool"),
    ],
)
def test_a_refused_state_changes_nothing(name, wrong, message):
    workers, parameters, density = {"oktopk": (2, 10, 0.5), "spardl": (4, 400, 0.1)}.get(name, (2, 40, 0.2))
    options = {
        "artopk": {"selection": "var", "compat": "released"}, "dgc": {"momentum": 0.9}, "spardl": {"teams": 2},
    }.get(name, {})  # fmt: skip
    model, other = (create(name, workers, parameters, density, **options) for _ in range(2))
    model.exchange(gradients_of("normal", workers, parameters, 0))
    for step in range(3):
        other.exchange(gradients_of("heavy", workers, parameters, step))
    other.density = density / 2
    before = model.save()
    with pytest.raises(ValueError, match=message):
        model.restore({**other.save(), **wrong})
    assert same_state(model.save(), before)
    model.restore(other.save())
    assert same_state(model.save(), other.save())
