"""Tables for run time that tests need."""

import numpy as np

from simnet.scenario import load
from simnet.studies.choosing.closed_forms import closed_forms
from simnet.studies.choosing.policy import make
from simnet.studies.choosing.whole_job import candidates_of, decide_job


def made_table(workers=8, cells=2, fields=(), latency=(1e-4, 1e-2), bandwidth=(1e8, 1e10), **more):
    """Return a table by closed forms over latencies [s] and bandwidths [byte/s]."""
    sample = ["job.overlap=none", "job.iterations=2", "job.scale=20000"]
    loaded = load("base", [*sample, f"workers={workers}", *fields])
    run = loaded.build()
    forms = closed_forms(loaded, run, decide_job(run, candidates_of(loaded), policies=False))
    return make(forms, loaded, run.job, np.geomspace(*latency, cells), np.geomspace(*bandwidth, cells), **more)
