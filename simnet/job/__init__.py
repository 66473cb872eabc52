"""The simulated job: iterations of compute, select, exchange, update on P workers in step.

Each iteration every worker computes its gradient, selects what to send, takes part in the exchange, and waits for the
slowest (synchronous SGD). The gradients and the sparsifier are real; computing and selecting take modelled time; the
exchange is timed on the network as its weather is at that moment, alone or in the company of other jobs. A worker may
die: then the job ends, or its others go on without it.
"""

from simnet.job.checkpoint import EVERY, Checkpoint
from simnet.job.exchanging import check_feedback
from simnet.job.job import Bucket, Compute, Job, Overlap, buckets, create_sparsifier
from simnet.job.loop import Neighbour, Progress, run_policy
from simnet.job.record import EXPLORE, MAIN, TRAIN, PolicyResult, Share, Stop, Wait

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
    "Share",
    "Stop",
    "Wait",
    "buckets",
    "check_feedback",
    "create_sparsifier",
    "run_policy",
]
