"""Gradients of all workers in each iteration: recorded from a training run, computed live, or synthetic.

The logic of every scheme runs on these. A source has a fixed number of workers P and of entries n, and yields the fresh
gradients (P, n) of any iteration, always the same ones for the same iteration.

>>> source = recorded("digits", workers=4)
>>> source.gradients(0).shape
(4, 18586)
>>> source = synthetic("resnet50", workers=16, scale=1000)
>>> source.gradients(0).shape, source.true_parameters
((16, 25617), 25557032)
"""

from simnet.traces.fitting import fit
from simnet.traces.hooks import TorchRecording, record
from simnet.traces.metadata import SyntheticParameters
from simnet.traces.recorded import RecordedSource, recorded, trace_names
from simnet.traces.recording import Recorder
from simnet.traces.source import GradientSource
from simnet.traces.synthetic import SyntheticSource, synthetic

__all__ = [
    "GradientSource",
    "RecordedSource",
    "Recorder",
    "SyntheticParameters",
    "SyntheticSource",
    "TorchRecording",
    "fit",
    "record",
    "recorded",
    "synthetic",
    "trace_names",
]
