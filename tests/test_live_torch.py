"""Live training of models in PyTorch: gradients of all workers at once are those of each alone."""

import itertools

import numpy as np
import pytest

from jobs import job_on
from simnet import topologies
from simnet.base.errors import SimnetError
from simnet.network import Network
from simnet.policies import Candidate, Fixed, Ramp
from simnet.traces.live import (
    LiveTraining,
    Sizes,
    classification,
    create_model,
    train,
    training_size,
    words,
)
from simnet.traces.live.data import deal_shards
from simnet.training.job.running import run_policy

SIZES = {"samples": 50, "features": 6, "classes": 3}
WORDS = {"vocabulary": 50, "context": 5}
SMALL = Sizes(hidden=(7, 9), width=12, blocks=2)
LEARNT = {
    "conv": ("digits", {}),
    "transformer": ("words", WORDS),
}
"""What each model of PyTorch is trained on."""


def source(model, **changes):
    data, options = LEARNT[model]
    sizes = {} if model == "conv" else SMALL._asdict()
    return train(model, data, workers=4, options=options, **({"batch": 8, "seed": 2} | sizes | changes))


def module_of(live):
    """Return the module, with the first weights."""
    import torch

    module = live.model._module
    torch.nn.utils.vector_to_parameters(torch.from_numpy(live.initial()), module.parameters())
    return module


def loss_of(module, inputs, targets):
    """Return the mean loss as one would write it for one worker."""
    import torch

    given = inputs.reshape(-1, 1, 8, 8) if inputs.dtype == np.float32 else inputs.astype(np.int64)
    logits = module(torch.from_numpy(given))
    return torch.nn.functional.cross_entropy(logits.reshape(targets.size, -1), torch.from_numpy(targets.reshape(-1)))


@pytest.mark.extras
@pytest.mark.parametrize("model", LEARNT)
def test_gradients_are_those_of_each_worker_alone(model):
    live = source(model)
    import torch

    out = np.full((4, live.parameters), np.nan, dtype=np.float32)
    inputs, targets = live.batches(0, np.arange(4))
    losses = live.model.gradients(live.initial(), inputs, targets, out)
    module = module_of(live)
    for worker in range(4):
        module.zero_grad()
        loss = loss_of(module, inputs[worker], targets[worker])
        loss.backward()
        alone = torch.cat([one.grad.flatten() for one in module.parameters()]).numpy()
        np.testing.assert_allclose(out[worker], alone, rtol=1e-4, atol=1e-6)
        assert losses[worker] == pytest.approx(loss.item(), rel=1e-5)
        assert live.model.score(live.initial(), inputs[worker], targets[worker])[0] == pytest.approx(loss.item())


@pytest.mark.extras
@pytest.mark.parametrize("model", LEARNT)
def test_dense_training_is_a_plain_loop_of_torch_over_the_batches_of_all(model, monkeypatch):
    """Step by step from the same weights: over many steps processors that round otherwise drift apart."""
    live = source(model, learning_rate=0.02)
    import torch

    weights, apply = [live.initial()], LiveTraining.apply

    def noted(training, update):
        apply(training, update)
        weights.append(training.weights.copy())

    monkeypatch.setattr(LiveTraining, "apply", noted)
    job = job_on(Network(topologies.star(4, 1e-3, 1e6)), 4, 50, source=live, density=[Ramp(1, 0.1, 0.1)])
    frame = run_policy(job, "p", Fixed(Candidate("dense", "dense"))).iterations
    module = module_of(live)
    optimizer = torch.optim.SGD(module.parameters(), 0.02, momentum=0.9)
    assert len(weights) == 51
    for iteration, (before, after) in enumerate(itertools.pairwise(weights)):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(before.copy()), module.parameters())
        inputs, targets = live.batches(iteration, np.arange(4))
        optimizer.zero_grad()
        loss_of(module, inputs.reshape(32, -1), targets.reshape(32, *targets.shape[2:])).backward()
        optimizer.step()
        expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        assert np.linalg.norm(after - expected) < 1e-4 * np.linalg.norm(expected - before)
    assert frame["loss"].dropna().iloc[-1] < frame["loss"].dropna().iloc[0]


@pytest.mark.extras
@pytest.mark.parametrize("model", LEARNT)
def test_the_size_is_known_beforehand(model):
    assert training_size(model, LEARNT[model][0], 4, 8, SMALL, LEARNT[model][1])[0] == source(model).parameters


@pytest.mark.extras
def test_what_comes_next_decides_on_no_gradient_of_what_came_before():
    # The loss of the first place alone knows nothing of the words behind it.
    live = source("transformer")
    import torch

    module = module_of(live)
    one = torch.tensor([[1, 2, 3, 4, 5]])
    other = torch.tensor([[1, 2, 3, 9, 9]])
    torch.testing.assert_close(module(one)[:, :3], module(other)[:, :3])
    assert not torch.allclose(module(one)[:, 3:], module(other)[:, 3:])


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_the_size_of_models_in_numpy_is_known_beforehand(model):
    live = train(model, "classification", workers=2, options=SIZES, hidden=[7, 9])
    assert training_size(model, "classification", 2, 16, SMALL, SIZES)[0] == live.parameters


@pytest.mark.parametrize("model", LEARNT)
def test_data_of_another_kind_is_refused(model):
    with pytest.raises(ValueError, match=f"{model} (takes|foretells)"):
        create_model(model, classification(samples=20))


@pytest.mark.parametrize("model", ["mlp", "logistic", "conv"])
def test_words_at_every_place_are_for_transformers(model):
    with pytest.raises(ValueError, match=f"{model} (takes|foretells)"):
        create_model(model, words(**WORDS))


def test_shards_of_words_may_differ_by_where_they_are_from():
    data = words(**WORDS)
    dealt = [deal_shards(data.kinds, 4, 10, concentration, seed=3) for concentration in (0.05, None)]
    of_one = [max(np.bincount(data.kinds[own]).max() / len(own) for own in owns) for owns in dealt]
    assert of_one[0] > 0.5 > 0.2 > of_one[1]


@pytest.mark.extras
def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SimnetError, match="take device: cpu"):
        source("conv", device="cuda")
