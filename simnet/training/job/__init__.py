"""The simulated job: iterations of compute, select, exchange, update on P workers in step.

Each iteration every worker computes its gradient, selects what to send, takes part in the exchange, and waits for the
slowest (synchronous SGD). The gradients and the sparsifier are real; computing and selecting take modelled time; the
exchange is timed on the network as its weather is at that moment, alone or beside co-located jobs. A worker may fail:
then the job ends, or the others resume without it.
"""

from simnet.training.job.checkpoint import EVERY, Checkpoint
from simnet.training.job.exchange import check_feedback
from simnet.training.job.iteration import EXPLORE, TRAIN
from simnet.training.job.job import (
    DDP_OVERLAP,
    Bucket,
    Compute,
    Job,
    LocalSteps,
    Overlap,
    create_sparsifier,
    gradient_buckets,
    job_buckets,
    job_overlap,
)
from simnet.training.job.loop import Progress
from simnet.training.job.record import MAIN, BlockedWorker, Interruption, JobShare, PolicyResult
from simnet.training.job.running import ColocatedJob, run_in_step, run_policy
from simnet.training.job.sharding import workers_in_shards

__all__ = [
    "DDP_OVERLAP",
    "EVERY",
    "EXPLORE",
    "MAIN",
    "TRAIN",
    "BlockedWorker",
    "Bucket",
    "Checkpoint",
    "ColocatedJob",
    "Compute",
    "Interruption",
    "Job",
    "JobShare",
    "LocalSteps",
    "Overlap",
    "PolicyResult",
    "Progress",
    "check_feedback",
    "create_sparsifier",
    "gradient_buckets",
    "job_buckets",
    "job_overlap",
    "run_in_step",
    "run_policy",
    "workers_in_shards",
]
