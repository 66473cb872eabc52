"""The simulated job: iterations of compute, select, exchange, update on P workers in step.

Each iteration every worker computes its gradient, selects what to send, takes part in the exchange, and waits for the
slowest (synchronous SGD). The gradients and the sparsifier are real; computing and selecting take modelled time; the
exchange is timed on the network as its weather is at that moment, alone or in the company of other jobs. A worker may
die: then the job ends, or its others go on without it.
"""

from simnet.training.checkpoint import EVERY, Checkpoint
from simnet.training.exchanging import check_feedback
from simnet.training.job import Bucket, Compute, Job, Overlap, Ramp, buckets, create_sparsifier, density_at
from simnet.training.loop import Neighbour, Progress, run_policy
from simnet.training.record import EXPLORE, MAIN, TRAIN, PolicyResult, Share, Stop, Wait

__all__ = [
    "EVERY",
    "EXPLORE",
    "MAIN",
    "TRAIN",
    "Bucket",
    "Checkpoint",
    "Compute",
    "Job",
    "Neighbour",
    "Overlap",
    "PolicyResult",
    "Progress",
    "Ramp",
    "Share",
    "Stop",
    "Wait",
    "buckets",
    "check_feedback",
    "create_sparsifier",
    "density_at",
    "run_policy",
]
