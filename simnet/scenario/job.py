"""Construction of a training job from a scenario: gradients, density, compute, device and exchanges."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from simnet import sparsifier_models
from simnet.base.errors import suggest_names
from simnet.base.plugins import in_trial
from simnet.base.units import format_bytes
from simnet.cost_models.costs import models
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.cost_models.costs.hooks import check_stack, host_prices
from simnet.network.stack import name_of
from simnet.policies import Candidate, Policy, Ramp
from simnet.scenario import job_parts, schema
from simnet.scenario.computing import build_device, build_steps, model_of
from simnet.scenario.loader import Findings
from simnet.scenario.network import Stages, placements, standalone_config
from simnet.scenario.resolve import candidate, labels_of
from simnet.sparsifier_models.two_level import without_network
from simnet.traces import GradientSource, live
from simnet.traces.source import shrink_sizes
from simnet.traces.synthetic import row_count as synthetic_rows
from simnet.training.job.job import Job, LocalSteps, Optimizer, Overlap, create_sparsifier, deadline_at, job_buckets
from simnet.training.job.local_costs import scheme_hook
from simnet.training.job.local_steps import NoGradients, StrategySet, check_switching, start_strategy
from simnet.training.job.loop import ColocatedJob

# Arrays of P x n float32 that are alive at once beside the residual of each candidate, where there are several:
# gradients, the residual handed on, its sum with the gradients, and room to select; and arrays of n for gradients.
_COPIES, _ROWS = 6, 12
# Under a strategy, of each worker: parameters, two moments of an optimiser, global parameters with their momentum, what
# comes late, the residual; the same once more of before a step, and in a checkpoint; and room to compute in.
_TRAINED = 28
# Of all workers' gradients, what an exchange holds at most for each entry that is sent of one.
_SENT = 4.0
# An interpreter with everything imported.
_PROCESS = 2.0**28
_TRIAL_ENTRIES = 16


def build_job(config: schema.Config, stages: Stages | None, found: Findings, *, elsewhere: bool = False) -> Job | None:
    """Return the job of a scenario whose defaults are filled in; None on errors, which `found` collects.

    `stages` are its networks, None if they have errors. Memory of workers that run `elsewhere` is not counted.
    """
    given = config.job
    device = build_device(given, found)
    source: GradientSource | None = None
    if stages is not None and _check_fits(config, found, memory_limit(config, elsewhere=elsewhere)):
        source = found.attempt(("job", "gradients"), _gradient_source, config)
    steps = build_steps(config, found)
    # Of what traces say, computing is so many times as long.
    mean = 1.0 if given.traced else given.compute.mean
    if mean is None:
        why = "give --compute '50 ms', or job.model, or job.parameters with job.tokens and job.batch"
        if any(one.units for one in given.shardings.values()):
            why = "units in flops need job.compute.mean, e.g. '18 ms'"
        found.add(("job", "compute", "mean"), f"is missing; {why}")
    if source is None or stages is None or device is None or mean is None or (given.shardings and steps is None):
        return None
    straggle, overlap, share = given.compute.straggle, given.overlap, given.workers_per_device
    stragglers = {} if straggle is None else straggle.arguments()
    slow = {int(worker): factor for worker, factor in given.compute.slow.items()}
    built_overlap = None
    if isinstance(overlap, schema.Overlap):
        built_overlap = found.attempt(("job", "overlap"), _build_overlap, overlap, source, found)
    trained = given.gradients.train
    trained_by: Optimizer | None = None if trained is None else "momentum" if trained.momentum else "sgd"
    job = Job(
        source=source,
        iterations=int(given.iterations),
        stages=stages.networks,
        density=_build_ramps(given.density),
        compute=given.compute.build(mean=share * mean, slow=slow, **stragglers),
        device=device if share == 1 else _in_turns(device, share),
        placement=stages.placement,
        overlap=built_overlap,
        update=share * given.update,
        barrier=given.barrier,
        seed=config.seed,
        failures={death.worker: death.at for death in given.deaths or ()},
        patience=given.on_death.go_on.after if isinstance(given.on_death, job_parts.OnDeath) else None,
        strategy=_local_steps(config, source, found),
        steps=steps,
        absences=[one.build() for one in given.absences or ()],
        churn=None if given.churn is None else given.churn.build(),
        optimizer=given.optimizer or trained_by,
        device_memory=_device_memory(given, device, found),
    )
    if given.deadline is not None:
        with found.at("job", "deadline"):
            job = replace(job, deadline=_deadline_seconds(given.deadline, job))
    _try_job(job, config, found)
    return job


def _try_job(job: Job, config: schema.Config, found: Findings) -> None:
    """Report exchanges that cannot handle the job's gradient buckets, densities, stack or absent workers."""
    among = [candidate(label, exchange) for label, exchange in config.exchanges.items()]
    searches = [one.moo for one in config.policies.values() if one.moo is not None]
    if job.strategy is not None and job.elastic:
        with found.at("job", "strategy"):
            StrategySet(job, among[:1])
    for one in among:
        searched = [density for moo in searches if one.label in (moo.among or ()) for density in moo.densities]
        before = len(found)
        with found.at("job", "implementation"):
            check_stack(scheme_hook(job.device, one.scheme), name_of(job.network(0).stack))
        with found.at("exchanges", one.label) if len(found) == before else suppress(ValueError):
            _try_sizes(one, job, searched)


def _build_overlap(given: schema.Overlap, source: GradientSource, found: Findings) -> Overlap:
    """Return how a job's exchanges overlap the backward pass; report unknown names of layers to exchange dense."""
    layers = [name for name, _ in source.layers]
    for place, name in enumerate(given.dense or ()):
        if name not in layers:
            found.add(("job", "overlap", "dense", place), f"there is no layer {name!r}: {suggest_names(name, layers)}")
    built: Overlap = given.build()
    return built


def _device_memory(given: schema.Job, device: DeviceProfile, found: Findings) -> float | None:
    """Return the memory limit of a worker's device [byte]; None without a limit."""
    if given.device_memory != "device":
        return given.device_memory
    if device.memory:
        return device.memory / given.workers_per_device
    found.add(("job", "device_memory"), f"the device profile {device.name} does not say its memory; give a size")
    return None


def _deadline_seconds(given: job_parts.Deadline, job: Job) -> float:
    """Return the deadline of an exchange [s after the first worker has computed]."""
    if given.after is not None:
        return float(given.after)
    assert given.quantile is not None
    if not (found := deadline_at(job, float(given.quantile))):
        raise ValueError(f"quantile {given.quantile:g} is 0 s, as workers compute alike; give after")
    return found


def _local_steps(config: schema.Config, source: GradientSource, found: Findings) -> LocalSteps | None:
    """Return a job's training strategy; report exchanges and policies that the strategy refuses."""
    given = config.job.strategy
    if given is None:
        return None
    own = LocalSteps(given.name, given.options, 1, given.bucket)
    for label, exchange in config.exchanges.items():
        with found.at("job", "strategy"):
            one = candidate(label, exchange)
            made = start_strategy(source, own, one, config.seed)
            own = replace(own, steps=made.steps, shares=made.shares)
    for name, policy in config.policies.items():
        with found.at("policies", name):
            check_switching(given.name, given.options, len(labels_of(policy)))
    return own


def build_colocated(
    config: schema.Config, stages: Stages | None, found: Findings
) -> tuple[dict[str, ColocatedJob], dict[str, int]]:
    """Return the co-located jobs by label, and the number of messages in each job's exchange."""
    colocated: dict[str, ColocatedJob] = {}
    messages: dict[str, int] = {}
    if stages is None or not config.other_jobs:
        return colocated, messages
    before = len(found)
    hosts = placements(config, stages, found)
    placed = len(found) == before
    for label, given in config.other_jobs.items():
        own, inside, before = standalone_config(config, label), found.of_job(label), len(found)
        if len(hosts[label]) == given.workers:
            messages |= try_exchanges(own, inside)
        if len(found) > before or not placed:
            continue
        job = build_job(own, stages._replace(placement=hosts[label]), inside)
        if job is not None:
            colocated[label] = ColocatedJob(job, candidate(label, given.exchange), given.start)
    return colocated, messages


def _try_sizes(exchange: Candidate, job: Job, searched: Sequence[float] = ()) -> None:
    """Raise ValueError if a scheme refuses a bucket's size, or a density of the job or in `searched`."""
    densities = [*searched, *(density for ramp in job.density for density in (ramp.start, ramp.end))]
    for bucket in job_buckets(job, [exchange]):
        model = create_sparsifier(exchange, bucket, job)
        for density in (min(densities), max(densities)):
            model.density = density
            assert model.k >= 0


def try_exchanges(config: schema.Config, found: Findings) -> dict[str, int]:
    """Run each exchange once on zeros, to report its errors before the run; return message counts by label."""
    device = build_device(config.job, found)
    messages: dict[str, int] = {}
    for label, exchange in config.exchanges.items():
        for workers in _numbers_of_workers(config):
            with found.at("exchanges", label):
                try:
                    trial = trial_exchange(exchange, workers)
                except ValueError as error:
                    gone = "" if workers == config.workers else f"with {workers} workers, where others are gone: "
                    raise ValueError(f"{gone}{error}") from error
                messages.setdefault(label, trial.schedule.n_messages)
                own = sparsifier_models.scheme(exchange.scheme).traits.is_third_party
                with found.at(*(("exchanges", label) if own else ("job", "device"))):
                    _price_kernels(device, trial, workers, f"{exchange.scheme}: " if own else "")
    return messages


def _price_kernels(device: DeviceProfile | None, trial: sparsifier_models.Exchange, workers: int, whose: str) -> None:
    """Raise ValueError, with the prefix `whose`, if a device profile lacks the cost of a kernel of an exchange."""
    try:
        if device is not None:
            device.seconds(trial.kernels, workers)
    except ValueError as error:
        raise ValueError(f"{whose}{error}") from error


def _numbers_of_workers(config: schema.Config) -> range:
    """Return the possible numbers of workers in an exchange, descending, given deaths and absences."""
    goes_on = isinstance(config.job.on_death, job_parts.OnDeath)
    least = config.workers - len(config.job.deaths or ()) if goes_on else config.workers
    if config.job.absences or config.job.churn or config.job.deadline:
        least = 1
    return range(config.workers, max(least, 1) - 1, -1)


def trial_exchange(exchange: schema.Exchange | Candidate, workers: int) -> sparsifier_models.Exchange:
    """Return the result of one exchange of zeros, from which messages and kernels are counted."""
    options, ranks = without_network(exchange.scheme, exchange.options)
    entries = ranks * _TRIAL_ENTRIES
    model = sparsifier_models.create(exchange.scheme, workers, entries, layers=(entries,), **options)
    with in_trial("in a trial before the run, with one layer and gradients of zero"):
        return model.exchange(np.zeros((workers, entries), dtype=np.float32))


def memory(config: schema.Config) -> float:
    """Return the peak memory [byte] of a process that simulates the policy with the largest need."""
    if config.job.shardings:
        return fixed_memory(config)
    return fixed_memory(config) + 4.0 * _gradient_entries(config.job) * max(
        _gradient_rows(config, one) for one in config.policies.values()
    )


def _gradient_rows(config: schema.Config, policy: schema.Policy) -> float:
    """Return the peak size of a policy's arrays, in multiples of the size of one worker's gradient."""
    labels, job, P = labels_of(policy), config.job, config.workers
    if job.strategy is not None:
        # Of several exchanges each has a residual, and where they are tried a state from before it.
        tried = 1 if policy.fixed is not None or policy.flexible is not None else len(labels) + 1
        return float(P * (_COPIES + tried * _TRAINED + len(labels) - 1) + _ROWS)
    if len(labels) == 1 and policy.moo is None and job.deaths is None:
        given, overlap = config.exchanges[labels[0]], job.overlap
        model = None
        # What a scheme refuses is said where exchanges are tried.
        with suppress(ValueError):
            model = sparsifier_models.create(given.scheme, P, _TRIAL_ENTRIES, layers=(_TRIAL_ENTRIES,), **given.options)
        overlaps = model is not None and model.traits.overlaps
        in_buckets = isinstance(overlap, schema.Overlap) and (overlap.exchanges != "able" or overlaps)
        if model is not None and not model.traits.reads_gradients:
            drawn = job.gradients.synthetic
            # No file is read for this, and of those that come with simnet only that of digits has neither.
            more = drawn is not None and drawn.like != "digits"
            shared = _ROWS if drawn is None else synthetic_rows(lasts=more, turns=more)
            all_of, one = model.traits.memory_factor
            sent = _SENT * max(max(ramp.start, ramp.end) for ramp in _build_ramps(job.density))
            # Gradients, and the residual if there is one; synthetic gradients are added to it as they are made.
            copies = 1.0 if not in_buckets and (drawn is not None or not model.keeps) else 2.0
            return shared + (copies + all_of + sent) * P + one
    # Exploration has a residual of its own beside that of the candidate, and those who go on without the dead have that
    # of before.
    copies = _COPIES + len(labels) + (policy.moo is not None) + (job.deaths is not None)
    return float(P * copies + _ROWS)


def fixed_memory(config: schema.Config) -> float:
    """Return the peak memory [byte] of a process apart from its policies' arrays: code, data, co-located jobs."""
    others = sum(memory(standalone_config(config, label)) - _PROCESS for label in config.other_jobs or ())
    trained = config.job.gradients.train
    return _PROCESS + others + (0.0 if trained is None else _training_size(trained, config.workers)[1])


def in_step_memory(job: Job, policies: Sequence[Policy]) -> float:
    """Return the peak memory [byte] of the arrays of policies that run in one process on the same gradients."""
    # Two iterations have gradients at once. A policy that waits keeps its update, and beside the residuals of its
    # candidates that of exploration and that of before.
    copies = _COPIES + 1 + sum(len(policy.candidates) + 2 for policy in policies)
    if job.strategy is not None:
        copies += _TRAINED * len(policies)
    return 4.0 * job.source.parameters * (job.source.workers * copies + _ROWS + len(policies))


def memory_limit(config: schema.Config, *, elsewhere: bool = False) -> float:
    """Return a run's memory limit [byte]: the scenario's, but no more than this machine's memory unless `elsewhere`."""
    if elsewhere:
        return config.memory
    try:
        installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        installed = math.inf
    return min(config.memory, installed)


def _in_turns(device: DeviceProfile, workers: int) -> DeviceProfile:
    """Return the profile of a device that several workers share: `workers` times slower for each of them."""
    slower = {
        name: replace(one, launch=workers * one.launch, seconds_per_entry=workers * one.seconds_per_entry)
        for name, one in device.methods.items()
    }
    prices = host_prices(device, device.implementation) if device.implementation else None
    host = prices and replace(
        prices, operation=workers * prices.operation, view=workers * prices.view, sync=workers * prices.sync
    )
    return replace(device, memory_bandwidth=device.memory_bandwidth / workers, methods=slower, host=host)


def _build_ramps(given: float | Sequence[schema.Ramp] | None) -> list[Ramp]:
    if isinstance(given, Sequence):
        return [Ramp(int(one.iterations or 1), one.at or one.start, one.at or one.end) for one in given]
    density = 1.0 if given is None else float(given)
    return [Ramp(1, density, density)]


def _gradient_entries(job: schema.Job) -> int:
    """Return the number of gradient entries; 0 for recorded gradients, whose files determine the number."""
    if job.gradients.train is not None:
        return _training_size(job.gradients.train, 1)[0]
    if job.model is not None:
        return sum(shrink_sizes([layer.size for layer in models.load_model(job.model).layers], job.scale))
    return 0 if job.parameters is None else sum(shrink_sizes([job.parameters], job.scale))


def _check_fits(config: schema.Config, found: Findings, limit: float) -> bool:
    """Return whether a run fits into the memory limit [byte]; if not, report what to change so that it fits."""
    needed, least = memory(config), 1.1 * _PROCESS
    entries, much = _gradient_entries(config.job), f"about {format_bytes(needed)}, more than {format_bytes(limit)}"
    others = [memory(standalone_config(config, label)) for label in config.other_jobs or ()]
    if limit < least:
        found.add(("memory",), f"must be at least {format_bytes(least)}, got {format_bytes(limit)}")
    elif needed <= limit or any(one > limit for one in others):
        pass  # what is wrong with another job is said of that one
    elif memory(config.with_fields(other_jobs=None)) <= limit:
        found.add(
            ("other_jobs",),
            f"together with the scenario's own job need {much}; raise job.scale in some of them, or memory",
        )
    elif config.job.gradients.train is not None:
        found.add(
            ("job", "gradients", "train"),
            f"{config.workers} workers that train {entries:,} parameters need {much}; take a smaller model, batch or "
            "set of data, or raise memory",
        )
    else:
        enough = math.ceil(1.01 * config.job.scale * (needed - _PROCESS) / (limit - _PROCESS))
        found.add(
            ("job", "scale"),
            f"{config.workers} workers with {entries:,} entries each need {much}; scale: {enough} would fit, or raise "
            "memory",
        )
    return needed <= limit


def _training_size(given: job_parts.Train, workers: int) -> tuple[int, float]:
    """Return the gradient entries of a trained model, and the bytes of its data and activations."""
    (model, part), (data, options) = given.model.choice, given.data.choice
    return live.training_size(model, data, workers, given.batch, live.Sizes(**part.model_dump()), options.model_dump())


def _live_source(given: job_parts.Train, config: schema.Config) -> GradientSource:
    (model, part), (data, options) = given.model.choice, given.data.choice
    return live.train(
        model,
        data,
        workers=config.workers,
        **given.arguments(live.train) | {"learning_rate": given.build(live.LearningRate, rate=given.learning_rate)},
        dirichlet=given.shards.dirichlet if isinstance(given.shards, job_parts.Dirichlet) else None,
        **part.model_dump(),
        scale=config.job.scale,
        seed=config.seed,
        options=options.model_dump(),
    )


def _gradient_source(config: schema.Config) -> GradientSource:
    given = config.job
    if given.shardings:
        return NoGradients(config.workers, 1 if given.traced else model_of(given).parameters)
    kind, part = given.gradients.choice
    if kind == "train":
        return _live_source(part, config)
    layers = {"layers": given.model or given.parameters or 0} if kind == "synthetic" else {}
    source: GradientSource = part.build(**layers, workers=config.workers, scale=given.scale, seed=config.seed)
    return source
