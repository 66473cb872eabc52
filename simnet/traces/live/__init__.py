"""Gradients of live training: simulated workers train one model on real data, of which each worker has a shard.

Gradients depend on the updates applied before, so every policy of a job trains a model of its own, which
`LiveSource.begin` starts. Model, data, order of batches and first weights are the same for all.

>>> source = train("mlp", "classification", workers=4, batch=8, learning_rate=0.1, momentum=0.9, seed=1)
>>> training = source.begin()
>>> gradients = training.gradients(0)
>>> training.apply(gradients.mean(axis=0))
>>> training.score(9)
Score(loss=..., accuracy=...)
"""

from simnet.traces.live.data import classification, digits, words
from simnet.traces.live.models import Perceptron, Sizes
from simnet.traces.live.source import LearningRate, LiveSource, LiveTraining, create_model, train, training_size

__all__ = [
    "LearningRate",
    "LiveSource",
    "LiveTraining",
    "Perceptron",
    "Sizes",
    "classification",
    "create_model",
    "digits",
    "train",
    "training_size",
    "words",
]
