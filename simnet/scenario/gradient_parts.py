"""The gradients of a scenario's job: made up, recorded, or of a model that is really trained."""

from __future__ import annotations

from typing import Any, Literal

from simnet import traces
from simnet.base.quantities import PositiveShare
from simnet.scenario.fields import File
from simnet.scenario.parts import Named, NameOr, OneOf, Part, configures, kinds
from simnet.traces import live


@configures(traces.synthetic, only=("like", "iterations"), iterations="training")
class Synthetic(Part):
    """Made-up gradients with the statistics of recorded ones: heavy-tailed, correlated between workers and in time."""

    like: File
    training: Any


@configures(traces.recorded, only=("trace", "iterations"), iterations="training")
class Recorded(Named):
    """Gradients of a real training run, which brings its own layers."""

    named = "trace"
    trace: File
    training: Any


class Logistic(Part):
    """Multinomial logistic regression."""


@configures(live.train, only=("hidden",))
class Mlp(Part):
    """Fully connected layers with ReLU between them."""


class Conv(Part):
    """Three convolutions and two fully connected layers, for images; needs PyTorch."""


@configures(live.train, only=("channels",))
class ResidualNetwork(Part):
    """A residual network with group norm, two blocks a stage, for images; needs PyTorch."""


@configures(live.train, only=("width", "blocks"))
class Transformer(Part):
    """A decoder like GPT-2 that foretells the next word at every place; needs PyTorch."""


@kinds(logistic=Logistic, mlp=Mlp, conv=Conv, residual=ResidualNetwork, transformer=Transformer)
class TrainedModel(OneOf):
    """What is trained."""


@kinds(digits=live.digits, classification=live.classification, letters=live.letters, words=live.words)
class TrainingData(OneOf):
    """What it is trained on."""


@configures(live.train, only=("dirichlet",), required=("dirichlet",))
class Dirichlet(Part):
    """Shards that differ in their classes; the smaller the parameter, the more."""

    dirichlet: Any


@configures(live.LearningRate, omit=("rate",), factor="drop")
@configures(live.train, only=("batch", "learning_rate", "momentum", "weight_decay", "evaluate", "device"))
class Train(Part):
    """Gradients of a model that is really trained, with the updates of the scheme; every policy trains its own.

    shards: how the data is dealt out to the workers: at random, or by classes
    target: accuracy whose time is reported; default: 99 % of the best of the first policy
    """

    model: TrainedModel = TrainedModel.model_validate({"mlp": {}})
    data: TrainingData = TrainingData.model_validate({"digits": {}})
    device: Any
    shards: NameOr[Literal["iid"], Dirichlet] = "iid"
    batch: Any
    learning_rate: Any
    momentum: Any
    weight_decay: Any
    warm_up: Any
    drops: Any
    drop: Any
    evaluate: Any
    target: PositiveShare | None = None


class Gradients(OneOf):
    """Where the gradients come from; a text may be the name of a trace."""

    otherwise = "recorded"

    synthetic: Synthetic | None = None
    recorded: Recorded | None = None
    train: Train | None = None
