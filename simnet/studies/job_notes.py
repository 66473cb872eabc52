"""Notes on a job: gradient samples that are too small, and the sources of kernel and compute times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.policies import Candidate, Policy
from simnet.policies.moo import Moo
from simnet.report import run_setup
from simnet.report.columns import Fields
from simnet.scenario.job import trial_exchange
from simnet.scenario.schema import Exchange
from simnet.sparsifier_models import Sparsifier
from simnet.sparsifier_models.samples import density_warning
from simnet.sparsifier_models.two_level import without_network
from simnet.training.job.job import Job, create_sparsifier, job_buckets
from simnet.training.job.local_steps import start_strategy


def sample_warnings(job: Job, policies: Iterable[Policy]) -> list[str]:
    """Return why the gradient sample is too small for exchanges, a line per reason with their labels.

    With several densities, of ramps or a search, the warning is for the lowest.
    """
    if job.steps is not None or job.source.scale <= 1:
        return []
    ramps = {end for one in job.density for end in (one.start, one.end)}
    asked: dict[str, tuple[Candidate, set[float]]] = {}
    for policy in policies:
        densities = set(policy.search.densities) if isinstance(policy, Moo) else ramps
        for candidate in policy.candidates:
            asked.setdefault(candidate.label, (candidate, set()))[1].update(densities)
    found: dict[str, list[str]] = {}
    for label, (candidate, densities) in asked.items():
        models = _bucket_schemes(job, candidate)
        for density in sorted(densities):
            for one in models:
                one.density = density
            if said := density_warning(models):
                found.setdefault(said, []).append(label)
                break
    return [f"{', '.join(among)}: {said}." for said, among in found.items()]


def _bucket_schemes(job: Job, candidate: Candidate) -> list[Sparsifier]:
    """Return a sparsifier for each bucket of a job, or for each piece of its strategy."""
    if job.strategy is None:
        return [create_sparsifier(candidate, one, job) for one in job_buckets(job, [candidate]) if not one.dense]
    return list(start_strategy(job.source, job.strategy, candidate, job.seed).schemes)


_WORKERS = 64


def with_codes(device: DeviceProfile, exchanges: Iterable[Candidate | Exchange], workers: int) -> Fields:
    """Return the summary of a device, with the kernels of the exchanges' codes."""
    return run_setup.device_summary(device, (kernel for one in exchanges for kernel in _code_kernels(one, workers)))


def costs_told(device: DeviceProfile, exchanges: Iterable[Candidate | Exchange], workers: int) -> list[str]:
    """Return text on the sources of code costs, as a list of at most one line."""
    codes = run_setup.describe_codes(with_codes(device, exchanges, workers))
    return [f"Costs of kernels on {device.name}{codes}."] if codes else []


def computing_told(found: Iterable[str | None]) -> list[str]:
    """Return text lines on compute times and their sources, without repetitions."""
    return [f"Computing: {one}." for one in dict.fromkeys(found) if one]


def _code_kernels(exchange: Candidate | Exchange, workers: int) -> Iterator[DeviceOp]:
    """Yield the kernels of exchanges that use codes."""
    if any(exchange.options.get(one) is not None for one in ("indices", "values")):
        _, ranks = without_network(exchange.scheme, exchange.options)
        # Which kernels run is the same among more.
        yield from trial_exchange(exchange, min(workers, max(1, _WORKERS // ranks) * ranks)).kernels
