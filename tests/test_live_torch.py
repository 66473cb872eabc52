"""Live training of models in PyTorch: gradients of all workers at once are those of each alone."""

import numpy as np
import pytest

from jobs import job_on
from simnet import topologies
from simnet.base.errors import SimnetError
from simnet.job import run_policy
from simnet.network import Network
from simnet.policies import Candidate, Fixed, Ramp
from simnet.traces.live import classification, create, needs, train

TEXT = {"context": 5, "characters": 4000}


def source(model, **changes):
    if model == "conv":
        return train("conv", "digits", workers=4, **({"batch": 8, "seed": 2} | changes))
    return train(model, "docstrings", workers=4, options=TEXT, **({"batch": 8, "seed": 2} | changes))


def module_of(live):
    """Return the module, with the first weights."""
    import torch

    module = live.model._module
    torch.nn.utils.vector_to_parameters(torch.from_numpy(live.initial()), module.parameters())
    return module


@pytest.mark.extras
@pytest.mark.parametrize("model", ["conv", "char"])
def test_gradients_are_those_of_each_worker_alone(model):
    live = source(model)
    import torch

    out = np.full((4, live.parameters), np.nan, dtype=np.float32)
    inputs, targets = live.batches(0, np.arange(4))
    losses = live.model.gradients(live.initial(), inputs, targets, out)
    module = module_of(live)
    for worker in range(4):
        module.zero_grad()
        own = inputs[worker].reshape(8, 1, 8, 8) if model == "conv" else inputs[worker].astype(np.int64)
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(own)), torch.from_numpy(targets[worker]))
        loss.backward()
        alone = torch.cat([one.grad.flatten() for one in module.parameters()]).numpy()
        np.testing.assert_allclose(out[worker], alone, rtol=1e-4, atol=1e-6)
        assert losses[worker] == pytest.approx(loss.item(), rel=1e-5)
        assert live.model.score(live.initial(), inputs[worker], targets[worker])[0] == pytest.approx(loss.item())


@pytest.mark.extras
@pytest.mark.parametrize("model", ["conv", "char"])
def test_dense_training_is_a_plain_loop_of_torch_over_the_batches_of_all(model, trainings):
    live = source(model, learning_rate=0.02)
    import torch

    job = job_on(Network(topologies.star(4, 1e-3, 1e6)), 4, 50, source=live, density=[Ramp(1, 0.1, 0.1)])
    frame = run_policy(job, "p", Fixed(Candidate("dense", "dense"))).iterations
    module = module_of(live)
    optimizer = torch.optim.SGD(module.parameters(), 0.02, momentum=0.9)
    for iteration in range(50):
        inputs, targets = live.batches(iteration, np.arange(4))
        whole = inputs.reshape(32, 1, 8, 8) if model == "conv" else inputs.reshape(32, 5).astype(np.int64)
        optimizer.zero_grad()
        logits = module(torch.from_numpy(whole))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets.reshape(32))).backward()
        optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    distance = np.linalg.norm(trainings[0].weights - expected)
    assert distance < 1e-4 * np.linalg.norm(expected - live.initial())
    assert frame["loss"].dropna().iloc[-1] < frame["loss"].dropna().iloc[0]


@pytest.mark.extras
@pytest.mark.parametrize("model", ["conv", "char"])
def test_the_size_is_known_beforehand(model):
    live = source(model)
    data, options = ("digits", {}) if model == "conv" else ("docstrings", TEXT)
    assert needs(model, data, 4, 8, (), options)[0] == live.parameters


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_the_size_of_models_in_numpy_is_known_beforehand(model):
    live = train(model, "docstrings", workers=2, options=TEXT, hidden=[7, 9])
    assert needs(model, "docstrings", 2, 16, (7, 9), TEXT)[0] == live.parameters


@pytest.mark.parametrize("model", ["conv", "char"])
def test_data_of_another_kind_is_refused(model):
    with pytest.raises(ValueError, match=f"{model} takes"):
        create(model, classification(samples=20))


@pytest.mark.extras
def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SimnetError, match="take device: cpu"):
        source("char", device="cuda")
