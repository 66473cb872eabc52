"""A job whose workers live in shards, which draw their gradients and hold their residuals.

An exchange sends to the shards what each worker does to its gradient, and receives what it selected; update, schedule
and time are made here. Memory for gradients and residuals, 8 bytes an entry and worker, is spread over the shards.
Results equal those without shards to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from simnet import sparsifier_models
from simnet.base.errors import InputError
from simnet.base.plugins import names_file
from simnet.base.rows import Separable
from simnet.base.shards import open_shards
from simnet.policies import Policy
from simnet.traces.sharded import ShardedSource
from simnet.training.job.job import Job


@contextmanager
def workers_in_shards(job: Job, policies: Mapping[str, Policy], where: str) -> Iterator[Job]:
    """Return the job with its workers in shards until the ``with`` block ends.

    `where` as in `simnet.base.shards.open_shards`.

    Raises InputError if gradients come from all workers at once, a scheme needs the gradients of several workers, or
    `where` is unknown.
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
    able = ", ".join(sorted(name for name, scheme in schemes.items() if scheme.traits.separable))
    for name, policy in policies.items():
        for candidate in policy.candidates:
            if names_file(candidate.scheme) or not sparsifier_models.scheme(candidate.scheme).traits.separable:
                raise InputError(
                    f"policy {name!r} exchanges by {candidate.scheme}, which takes the gradients of all workers in one "
                    f"place; allowed: {able}",
                    file=option,
                )
    with open_shards(job.source, where) as shards:
        yield replace(job, source=ShardedSource(job.source, shards))
