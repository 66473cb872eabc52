"""Warnings about gradient samples that are too small for the exchanges of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simnet.policies import Candidate, Policy
from simnet.policies.moo import Moo
from simnet.sparsifier_models import Sparsifier
from simnet.sparsifier_models.samples import density_warning
from simnet.training.job.job import Job, create_sparsifier, job_buckets
from simnet.training.job.local_steps import start_strategy


def sample_warnings(job: Job, policies: Iterable[Policy]) -> dict[str, str]:
    """Return why the gradient sample is too small for an exchange, by label; empty if it suffices.

    With several densities, of ramps or a search, the warning is for the lowest.
    """
    if job.steps is not None or job.source.scale <= 1:
        return {}
    ramps = {end for one in job.density for end in (one.start, one.end)}
    asked: dict[str, tuple[Candidate, set[float]]] = {}
    for policy in policies:
        densities = set(policy.search.densities) if isinstance(policy, Moo) else ramps
        for candidate in policy.candidates:
            asked.setdefault(candidate.label, (candidate, set()))[1].update(densities)
    found = {}
    for label, (candidate, densities) in asked.items():
        models = _bucket_schemes(job, candidate)
        for density in sorted(densities):
            for one in models:
                one.density = density
            if said := density_warning(models):
                found[label] = said
                break
    return found


def warning_lines(found: Mapping[str, str]) -> list[str]:
    """Return one text line per distinct warning, with the labels of its exchanges."""
    labels: dict[str, list[str]] = {}
    for label, said in found.items():
        labels.setdefault(said, []).append(label)
    return [f"{', '.join(among)}: {said}." for said, among in labels.items()]


def _bucket_schemes(job: Job, candidate: Candidate) -> list[Sparsifier]:
    """Return a sparsifier for each bucket of a job, or for each piece of its strategy."""
    own = job.strategy
    if own is None:
        return [create_sparsifier(candidate, one, job) for one in job_buckets(job, [candidate]) if not one.dense]
    return list(start_strategy(job.source, own.name, own.options, candidate, seed=job.seed, bucket=own.bucket).schemes)
