"""A job whose workers live in shards: their gradients are drawn there, and their residuals stay there.

An exchange sends to the shards what each worker does to its own gradient (add its residual, select, keep the rest),
and gets back what it selected; the update, the schedule and its time are made here. So memory for gradients and
residuals, 8 bytes an entry and worker, is that of all shards together, and here there is what is selected, with some
rows as long as a gradient. Rows, and what comes of them, are as without shards to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from simnet import sparsifier_models
from simnet.base.errors import InputError
from simnet.base.plugins import is_file
from simnet.base.rows import Separable
from simnet.base.shards import opened
from simnet.job.job import Job
from simnet.policies import Policy
from simnet.traces.sharded import ShardedSource


@contextmanager
def workers_in_shards(job: Job, policies: Mapping[str, Policy], where: str) -> Iterator[Job]:
    """Return the job with its workers in shards, until a ``with`` block ends.

    Parameters
    ----------
    job : Job
        The job.
    policies : mapping of str to Policy
        What it will run under.
    where : str
        As of `simnet.base.shards.opened`.

    Raises
    ------
    InputError
        If the workers cannot live elsewhere: their gradients come of all at once, or what a scheme does to the gradient
        of a worker takes those of others. If `where` is none.
    """
    option = f"--workers-on {where}"
    if job.steps is not None:
        raise InputError("under job.sharding workers have no gradients that could be elsewhere", file=option)
    if not isinstance(job.source, Separable):
        raise InputError(
            "gradients of a model that is trained come of all workers at once; allowed: synthetic or recorded ones",
            file=option,
        )
    if job.strategy is not None:
        raise InputError("under job.strategy all workers are in one place", file=option)
    schemes = sparsifier_models.usable()
    able = ", ".join(sorted(name for name, scheme in schemes.items() if scheme.separable))
    for name, policy in policies.items():
        for candidate in policy.candidates:
            if is_file(candidate.scheme) or not sparsifier_models.scheme(candidate.scheme).separable:
                raise InputError(
                    f"policy {name!r} exchanges by {candidate.scheme}, which takes the gradients of all workers in one "
                    f"place; allowed: {able}",
                    file=option,
                )
    with opened(job.source, where) as shards:
        yield replace(job, source=ShardedSource(job.source, shards))
