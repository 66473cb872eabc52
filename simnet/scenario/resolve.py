"""Resolution of a scenario: fills in defaults that depend on other fields, and checks names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from simnet import sparsifier_models, strategies
from simnet.base import plugins
from simnet.base.errors import suggest_names
from simnet.base.quantities import MAX_ITERATIONS
from simnet.base.yaml_loader import Loc
from simnet.cost_models.costs import models
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.policies import Candidate, Fixed, Flexible, Monitor, Policy, closed_form
from simnet.policies.moo import DensitySearch, Moo
from simnet.scenario import computing, job_parts, schema
from simnet.scenario.choice_text import refuse_bare_option
from simnet.scenario.job_parts import Sharding
from simnet.scenario.loader import EXAMPLES, Findings
from simnet.scenario.parts import field_names
from simnet.scenario.topology_parts import PlatformNodes, Topology, platform_of
from simnet.training.job.exchange import check_feedback
from simnet.training.job.job import DDP_OVERLAP, Overlap
from simnet.training.job.record import MAIN
from simnet.training.parallel.plan import sharding_options


def resolve(config: schema.Config, stem: str, found: Findings) -> schema.Config:
    """Return a scenario with all defaults filled in; `stem` names a scenario that has no name."""
    _check_choices(config, found)
    exchanges, sound = {}, set()
    bits = None if config.job.strategy is None else config.job.strategy.bits
    for label, exchange in config.exchanges.items():
        before = len(found)
        if bits is not None and not {"value_bytes", "values"} & exchange.options.keys():
            exchange = schema.Exchange.model_validate({**exchange.model_dump(), "value_bytes": bits / 8})
        exchanges[label] = _resolve_exchange(label, exchange, found)
        if len(found) == before:
            sound.add(label)
    others, topology, platform = None, config.network.topology, None
    with found.at("network", "topology"):
        platform = platform_of(topology)
        topology = _resolve_topology(topology, config.workers)
    stack = computing.sending_stack(config.network)
    usual = {
        "device": computing.default_device(stack, platform.chip if platform else ""),
        "implementation": computing.default_implementation(stack or (platform.library if platform else None)),
    }
    if config.other_jobs:
        _check_colocated(config, found)
        others = {
            label: one.with_fields(
                exchange=_resolve_exchange(label, one.exchange, found.of_job(label)),
                job=_resolve_job(one.job, one.workers, usual, found.of_job(label)),
            )
            for label, one in config.other_jobs.items()
        }
    if config.network.engine == "vectorised" and (others or config.job.deaths):
        found.add(("network", "engine"), "must be auto or fluid: the max-plus clock knows neither deaths nor company")
    for index, entry in enumerate(config.network.weather):
        if entry.profile is not None and entry.profile.epoch is None and config.job.epoch is None:
            found.add(("network", "weather", index, "profile", "epoch"), "is missing, and there is no job.epoch")
    # The file of a topology may name its stack.
    usual_stack = None if topology.choice[0] in ("file", "platform") else "ideal"
    return config.with_fields(
        name=config.name or re.sub(r"[^A-Za-z0-9._+-]", "_", stem).lstrip(".")[:40] or "scenario",
        network=config.network.with_fields(topology=topology, stack=config.network.stack or usual_stack),
        job=_resolve_job(config.job, config.workers, usual, found),
        exchanges=exchanges,
        policies=_resolve_policies(config, exchanges, sound, found),
        other_jobs=others,
    )


def candidate(label: str, exchange: schema.Exchange) -> Candidate:
    """Return an exchange of the scenario, with its label, as a candidate of policies."""
    return Candidate(label, exchange.scheme, dict(exchange.options))


def labels_of(policy: schema.Policy) -> list[str]:
    """Return the labels of the exchanges that a policy may take; a fixed policy has one."""
    kind, part = policy.choice
    return [part] if kind == "fixed" else list(part.among)


def build_policy(config: schema.Config, given: schema.Policy) -> Policy:
    """Return the policy object that implements a policy of a resolved scenario."""
    kind, part = given.choice
    known = {label: Candidate(label, one.way or "trace") for label, one in config.job.shardings.items()}
    known |= {label: candidate(label, one) for label, one in config.exchanges.items()}
    among = [known[label] for label in labels_of(given)]
    if kind == "fixed":
        return Fixed(among[0])
    if kind == "moo":
        return Moo(among, part.build(Monitor, seed=config.seed), part.build(DensitySearch))
    if kind == "flexible":
        policy: Policy = part.build(Flexible, candidates=among, monitor=part.build(Monitor, seed=config.seed))
    else:
        policy = part.build(candidates=among, **({"seed": config.seed} if part.takes("seed") else {}))
    if lacks := [one for one in ("candidates", "reset", "shortlist") if not hasattr(policy, one)]:
        raise plugins.return_error(part.function, policy, f"a policy: it lacks {', '.join(lacks)}")
    return policy


def _check_choices(config: schema.Config, found: Findings) -> None:
    """Report `exchanges` that are missing, and `exchanges` or `other_jobs` that conflict with a sharded job."""
    if config.job.sharding is None:
        if not config.exchanges:
            found.add(("exchanges",), f"is missing; write {EXAMPLES['exchanges',]}")
    else:
        if config.exchanges:
            why = "what is sent is said there; several ways to compare stand there by name, as FSDP: {as: fsdp2}"
            found.add(("exchanges",), f"must be left out beside job.sharding: {why}")
        if config.other_jobs:
            found.add(("other_jobs",), "must be left out beside job.sharding, whose steps have the network alone")
    for label, other in (config.other_jobs or {}).items():
        if other.job.sharding is not None:
            found.of_job(label).add(("job", "sharding"), "is not for other_jobs; exchange says what they send")


def _check_colocated(config: schema.Config, found: Findings) -> None:
    """Report settings that a scenario with co-located jobs cannot have."""
    others = config.other_jobs or {}
    if MAIN in others:
        found.add(("other_jobs", MAIN), f"{MAIN} is what results call the scenario's own job; take another name")
    barrier = "must be true beside other_jobs, whose messages are timed iteration by iteration"
    for label, job in {"": config.job, **{label: one.job for label, one in others.items()}}.items():
        if not job.barrier:
            found.add((*(("other_jobs", label) if label else ()), "job", "barrier"), barrier)
    for name, policy in config.policies.items():
        if policy.oracle is not None and len(policy.oracle.among or config.exchanges) > 1:
            found.add(
                ("policies", name, "oracle"),
                "tries several exchanges before each iteration, but beside other_jobs only one can take place; leave "
                "it out",
            )
    for index, entry in enumerate(config.network.weather):
        if entry.profile is not None and entry.profile.epoch is None:
            found.add(
                ("network", "weather", index, "profile"),
                "goes by the iterations of one job, which means nothing to other_jobs; give epoch as a time",
            )


def _resolve_topology(given: Topology, workers: int) -> Topology:
    kind, part = given.choice
    more: dict[str, int] = {}
    if isinstance(part, PlatformNodes) and part.nodes is None:
        more = {"nodes": part.load().nodes(workers)}
    elif kind == "multi_gpu_nodes" and part.nodes is None:
        more = {"nodes": -(-workers // part.gpus_per_node)}
    elif getattr(part, "hosts", workers) is None:
        more = {"hosts": workers}
    return given.with_fields(**{kind: part.with_fields(**more)})


def _resolve_exchange(label: str, given: schema.Exchange, found: Findings) -> schema.Exchange:
    allowed = found.attempt(("exchanges", label, "scheme"), sparsifier_models.own_options, given.scheme)
    if not allowed:
        return given
    make = sparsifier_models.scheme(given.scheme).option_type
    good: dict[str, Any] = {}
    _refuse_options(given.options, given.scheme, ["scheme"], allowed, ("exchanges", label), found)
    for name in (name for name in given.options if name in allowed):
        with found.at("exchanges", label, name):
            make(**{name: given.options[name]})
            good[name] = given.options[name]
    with found.at("exchanges", label):
        made = make(**good)
        given = schema.Exchange(scheme=given.scheme, **_written_values({name: getattr(made, name) for name in allowed}))
    return given  # noqa: RET504  # unchanged, if that went wrong


def _refuse_options(
    options: Iterable[str], of: str, fields: Iterable[str], known: Iterable[str], loc: Loc, found: Findings
) -> None:
    """Report options that the named scheme, strategy or sharding does not have."""
    for name in options:
        if name not in known:
            close = suggest_names(name, [*fields, *known])
            close = "write them beside the name, as {scheme: topk, wire: released}" if name == "options" else close
            found.add((*loc, name), f"there is no such option of {of}, got {name!r}; {close}")


def _written_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return option values in scenario notation; values that are None or empty are left out."""
    plain = {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}
    return {name: one for name, one in plain.items() if one is not None and one != []}


def _resolve_job(given: schema.Job, workers: int, usual: Mapping[str, str], found: Findings) -> schema.Job:
    profile = None
    given = given.with_fields(**{name: getattr(given, name) or one for name, one in usual.items()})
    if given.model is not None:
        with found.at("job", "model"):
            profile = models.load_model(given.model)
            given = given if models.is_config(given.model) else given.with_fields(model=profile.name)
    _check_workers(given, workers, found)
    density = given.density
    if isinstance(density, list):
        density = [*density]
        for place, ramp in enumerate(density):
            at: Loc = ("job", "density", place, "iterations")
            if ramp.iterations is not None:
                iterations = _resolve_iterations(ramp.iterations, at, given.epoch, found)
                density[place] = ramp.with_fields(iterations=iterations)
            elif place < len(density) - 1:
                found.add(at, "is missing; only the last stretch never ends")
    told, overlap = next((one.seconds for one in given.shardings.values()), None), given.overlap
    mean = given.compute.mean if told is None else told
    unknown = given.traced or (given.model is not None and profile is None)
    if mean is None and not unknown and (built := computing.build_device(given, found)) is not None:
        with found.at("job", "compute", "mean"):
            mean = _mean_compute(given, built)
    every_iteration = given.strategy is None and given.sharding is None
    if overlap is None and every_iteration and (given.model is not None or given.gradients.synthetic is None):
        # Gradients of several layers are ready one after the other.
        sizes = {name: f"{getattr(DDP_OVERLAP, name)!r} B" for name in ("first", "bucket")}
        overlap = schema.Overlap.model_validate({**sizes, "exchanges": DDP_OVERLAP.exchanges})
    if isinstance(overlap, schema.Overlap) and overlap.backward is None:
        share = Overlap.backward if profile is None else profile.backward_fraction
        overlap = overlap.with_fields(backward=share)
    return given.with_fields(
        compute=given.compute.with_fields(mean=mean),
        overlap=overlap,
        strategy=None if given.strategy is None else _resolve_strategy(given.strategy, found),
        sharding=_resolve_sharding(given, found),
        iterations=_resolve_iterations(given.iterations, ("job", "iterations"), given.epoch, found),
        density=density,
        on_death=given.on_death or ("stop" if given.deaths else None),
    )


def _mean_compute(given: schema.Job, device: DeviceProfile) -> float | None:
    """Return the compute seconds of an iteration of a job's model; None if only the model's size is known."""
    try:
        known = computing.model_computing(given, device)
    except ValueError as error:
        raise ValueError(f"is missing: {error}; give it, or --compute, as '120 ms'") from None
    return None if known is None else known.seconds


def _check_workers(given: schema.Job, workers: int, found: Findings) -> None:
    """Report workers that do not exist, and settings that cannot be combined with workers that fail or leave."""
    dead = [one.worker for one in given.deaths or ()]
    named: list[tuple[Loc, str | int]] = [(("compute", "slow", one), one) for one in given.compute.slow]
    named += [(("deaths", place, "worker"), one) for place, one in enumerate(dead)]
    named += [(("absences", place, "worker"), one.worker) for place, one in enumerate(given.absences or ())]
    for loc, worker in named:
        if not (str(worker).isascii() and str(worker).isdigit() and int(worker) < workers):
            found.add(("job", *loc), f"there is no worker {worker!r}; allowed: 0 to {workers - 1}")
    for place, one in enumerate(dead):
        if one in dead[:place]:
            found.add(("job", "deaths", place, "worker"), f"worker {one} dies twice")
    leaving = [*(given.absences or ()), *([] if given.churn is None else [given.churn])]
    stops = bool(given.deaths) or not all(one.notice for one in leaving)
    if given.on_death is not None and not stops:
        found.add(("job", "on_death"), "says what the others do when a worker dies, and job.deaths names none")
    if stops and not given.deaths and not isinstance(given.on_death, job_parts.OnDeath):
        found.add(("job", "on_death"), "must be {continue: {after: ...}}: workers leave without notice, and come back")


def _resolve_sharding(given: schema.Job, found: Findings) -> Sharding | dict[str, Sharding] | None:
    """Return the shardings with all option defaults filled in."""
    spelled_out = {}
    device = computing.build_device(given, found) if given.shardings else None
    slowdown = computing.slowdown_of(device)
    for label, one in given.shardings.items():
        spelled_out[label], loc = one, given.sharding_at(label)
        if one.trace is not None:
            continue
        assert one.way is not None
        with found.at(*loc, "as"):
            known = sharding_options(one.way, pipeline=one.options.get("pipeline", 1) != 1)
            _refuse_options(one.options, one.way, field_names(Sharding), known, loc, found)
            defaults = _written_values(known) | {"slowdown": slowdown}
            # Each iteration is itself unless another is given.
            defaults.pop("iteration", None)
            # An unknown model is told of where it stands.
            with suppress(ValueError):
                defaults["backward"] = computing.model_of(given).backward_fraction
            written = one.model_dump(exclude_none=True, by_alias=True)
            spelled_out[label] = Sharding.model_validate({**defaults, **written})
    return next(iter(spelled_out.values())) if isinstance(given.sharding, Sharding) else spelled_out or None


def _resolve_strategy(given: schema.Strategy, found: Findings) -> schema.Strategy:
    """Return a strategy with all option defaults filled in."""
    known: Mapping[str, Any] = {}
    with found.at("job", "strategy", "name"):
        refuse_bare_option(given.name, strategies.names(), lambda one: strategies.options(strategies.strategy(one)))
        known = strategies.options(strategies.strategy(given.name))
    if not known:
        return given
    allowed = [name for name in known if name not in ("averaging", "draw")]
    options = found.attempt(("job", "strategy"), lambda: given.options) or ()
    _refuse_options(options, given.name, ["name", "bucket", "bits"], allowed, ("job", "strategy"), found)
    defaults: dict[str, Any] = {}
    for option in allowed:
        default = known[option].default
        if isinstance(default, strategies.SGD | strategies.AdamW):
            kind = "sgd" if isinstance(default, strategies.SGD) else "adamw"
            defaults[option] = {kind: dataclasses.asdict(default)}
        elif isinstance(default, bool | int | float | str):
            defaults[option] = default
    written = given.model_dump(exclude_none=True, by_alias=True)
    return schema.Strategy.model_validate({**defaults, **written})


def _resolve_iterations(given: int | str, loc: Loc, epoch: int | None, found: Findings) -> int:
    if isinstance(given, int):
        return given
    if epoch is None:
        found.add(loc, f"is {given!r}, but there is no job.epoch that says how many iterations an epoch has")
        return 1
    count = round(float(given.split()[0]) * epoch)
    if not 1 <= count <= MAX_ITERATIONS:
        found.add(loc, f"must come to 1 to {MAX_ITERATIONS:,} iterations, got {count:,}")
    return count


def _resolve_policies(
    config: schema.Config, exchanges: dict[str, schema.Exchange], sound: set[str], found: Findings
) -> dict[str, schema.Policy]:
    """Return the checked policies; by default one per exchange or sharding and, if the job may switch, an oracle."""
    ways = config.job.shardings
    if not config.policies:
        every = {label: schema.Policy(fixed=label) for label in ways or exchanges}
        if ways or config.other_jobs or config.job.strategy is not None or not every:
            return every
        name = "oracle"
        while name in every:
            name += " policy"
        return every | {name: schema.Policy(oracle=schema.Oracle(among=list(exchanges)))}
    resolved = dict(config.policies)
    for name, policy in config.policies.items():
        (kind, part), at = policy.choice, ("policies", name)
        if kind == "fixed":
            _check_label(part, (*at, kind), ways or exchanges, "way of sharding" if ways else "exchange", found)
            continue
        if ways:
            found.add(at, "must be fixed: under job.sharding a policy keeps to one way of sharding")
            continue
        among = list(exchanges) if part.among is None else part.among
        for position, label in enumerate(among):
            loc = (*at, kind, "among", position)
            if label in among[:position]:
                found.add(loc, f"{label!r} stands here twice")
            known = _check_label(label, loc, exchanges, "exchange", found)
            if known and kind in ("flexible", "moo", "advise") and label in sound:
                with found.at(*loc):
                    closed_form(candidate(label, exchanges[label]))
        if kind == "advise" and part.fallback is not None and part.fallback not in among:
            found.add((*at, kind, "fallback"), f"is none of its exchanges; {suggest_names(part.fallback, among)}")
        with found.at(*at, kind):
            check_feedback({label: exchanges[label].options["error_feedback"] for label in among if label in sound})
        spelled_out = _resolve_moo(part, (*at, kind), config.job.epoch, found) if kind == "moo" else {}
        resolved[name] = policy.with_fields(**{kind: part.with_fields(among=among, **spelled_out)})
    return resolved


def _resolve_moo(given: schema.Moo, loc: Loc, epoch: int | None, found: Findings) -> dict[str, Any]:
    """Return the fields of a multi-objective policy (MOO) whose defaults depend on its `mode`."""
    published = given.mode == "published"
    monitored, warm_up = given.arguments(Monitor), given.warm_up
    if warm_up is None and published:
        if epoch is None:
            found.add((*loc, "warm_up"), "is missing; only with job.epoch there is a default, 5 epochs")
        warm_up = 5 * (epoch or 1)
    elif warm_up is not None:
        warm_up = _resolve_iterations(warm_up, (*loc, "warm_up"), epoch, found)
    return {
        "warm_up": warm_up,
        "probe_every": monitored.get("every", 0.0 if published else Monitor.every),
        "change": monitored.get("change", 0.0 if published else Monitor.change),
    }


def _check_label(label: str, loc: Loc, known: Collection[str], what: str, found: Findings) -> bool:
    if label not in known:
        found.add(loc, f"there is no {what} {label!r}; {suggest_names(label, known)}")
    return label in known
