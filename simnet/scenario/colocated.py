"""Other jobs of a scenario: each a scenario of its own on the network of the whole."""

from __future__ import annotations

from simnet.base.rng import stream
from simnet.scenario import schema
from simnet.scenario.loader import Findings
from simnet.scenario.network import Stages
from simnet.training.job.record import MAIN


def check_colocated(config: schema.Config, found: Findings) -> None:
    """Report what a scenario with other jobs cannot have."""
    for label in config.other_jobs or ():
        if label == MAIN:
            found.add(("other_jobs", label), f"{MAIN} is what results call the scenario's own job; take another name")
    others = config.other_jobs or {}
    jobs = {("other_jobs", label, "job"): one.job for label, one in others.items()}
    for place, job in ({("job",): config.job} | jobs if others else {}).items():
        if not job.barrier:
            found.add(
                (*place, "barrier"), "must be true beside other_jobs, whose messages are timed iteration by iteration"
            )
    for name, policy in config.policies.items():
        if policy.oracle is not None and len(policy.oracle.among or config.exchanges) > 1:
            found.add(
                ("policies", name, "oracle"),
                "tries several exchanges before each iteration, but beside other_jobs only one can take place; leave "
                "it out",
            )
    for index, entry in enumerate(config.network.weather):
        epoch = None if entry.profile is None else entry.profile.epoch
        if entry.profile is not None and (epoch is None or epoch.iterations is not None):
            found.add(
                ("network", "weather", index, "profile"),
                "goes by the iterations of one job, which means nothing to other_jobs; give epoch as a time",
            )


def standalone_config(config: schema.Config, label: str) -> schema.Config:
    """Return another job as a scenario of its own, with a seed of its own."""
    given = (config.other_jobs or {})[label]
    return config.model_copy(
        update={
            "workers": given.workers,
            "job": given.job,
            "exchanges": {label: given.exchange},
            "policies": {label: schema.Policy(fixed=label)},
            "other_jobs": None,
            "seed": int(stream(config.seed, "other job", label).integers(2**62)),
        }
    )


def placements(config: schema.Config, stages: Stages, found: Findings) -> dict[str, list[int]]:
    """Return the hosts of the workers of all other jobs: those listed, or the first free ones."""
    others = config.other_jobs or {}
    hosts = stages.networks[0][1].routes.n_hosts
    taken = {*stages.placement, *(host for one in others.values() for host in one.placement or ())}
    placed: dict[str, list[int]] = {}
    for label, one in others.items():
        if one.placement is None:
            free = [host for host in range(hosts) if host not in taken]
            if len(free) < one.workers:
                found.add(
                    ("other_jobs", label, "workers"),
                    f"needs {one.workers} free hosts, but of {hosts} only {len(free)} are left; list some under "
                    "placement that other jobs use, or take a larger topology",
                )
            placed[label] = free[: one.workers]
            taken.update(placed[label])
            continue
        placed[label] = one.placement
        if len(one.placement) != one.workers:
            found.add(
                ("other_jobs", label, "placement"),
                f"must name a host for each of the {one.workers} workers, got {len(one.placement)}",
            )
        for rank, host in enumerate(one.placement):
            if host >= hosts:
                found.add(
                    ("other_jobs", label, "placement", rank), f"there is no host {host}; allowed: 0 to {hosts - 1}"
                )
    return placed
