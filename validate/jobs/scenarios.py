"""The scenario of a measured job: its links, what its processes compute, and what they send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from simnet.base.arrays import Floats
from simnet.policies import Candidate, closed_form
from simnet.scenario import Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.inputs import Given, from_scenario
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.policy import make
from validate.jobs.settings import ALGORITHMS, BATCH, EXCHANGES, LEARNING_RATE, MODELS, MOMENTUM, SEED, Setting

CONVOLUTIONAL = 1_070_114
"""Parameters of the convolutional network."""


class Computing(NamedTuple):
    """What a model computes in an iteration, by a process that has a processor for itself.

    Parameters
    ----------
    forward, backward, update : float
        Seconds.
    spread : float
        Standard deviation of the logarithm of the first two together.
    """

    forward: float
    backward: float
    update: float
    spread: float


def scenario(setting: Setting, computing: Computing, device: str) -> dict[str, Any]:
    """Return the scenario of a setting, as its file has it.

    Parameters
    ----------
    setting : Setting
        The job.
    computing : Computing
        What its model computes.
    device : str
        Name or file of the device profile.
    """
    first, hidden = setting.links[0], MODELS[setting.model]
    hosts = first.of_hosts(setting.ranks)
    compute = computing.forward + computing.backward
    job: dict[str, Any] = {
        "iterations": setting.iterations,
        "density": setting.density,
        "compute": {"mean": _seconds(compute), "spread": computing.spread},
        "device": device,
        "update": _seconds(computing.update),
        "workers_per_device": setting.share,
    }
    if hidden:
        trained = {"model": {"mlp": {"hidden": list(hidden)}}, "data": "digits", "batch": BATCH}
        job["gradients"] = {"train": trained | {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}}
    else:
        job["parameters"] = CONVOLUTIONAL
    if setting.bucket is not None:
        job["overlap"] = {"bucket": f"{setting.bucket:g} B", "backward": computing.backward / compute}
    network: dict[str, Any] = {
        "topology": {"star": {"latency": _seconds(hosts[0][0]), "bandwidth": _rate(hosts[0][1])}},
        "stack": "gloo",
    }
    if len(setting.links) > 1 or first.is_unequal:
        network["weather"] = [_weather(setting, host) for host in range(setting.ranks)]
    exchanges = {
        label: {**EXCHANGES[label], **ALGORITHMS.get(EXCHANGES[label]["scheme"], {})} for label in setting.exchanges
    }
    policies: dict[str, Any] = {label: {"fixed": label} for label in setting.exchanges}
    if setting.flexible is not None:
        policies[FLEXIBLE] = {"flexible": {"among": kept_back(setting.exchanges)}}
    return {
        "name": setting.name,
        "seed": SEED,
        "workers": setting.ranks,
        "network": network,
        "job": job,
        "exchanges": exchanges,
        "policies": policies,
    }


FLEXIBLE = "flexible"
"""Name of the policy that picks as the links change."""


def kept_back(exchanges: tuple[str, ...]) -> list[str]:
    """Return the exchanges that keep what they do not send, between which a policy may switch."""
    return [label for label in exchanges if EXCHANGES[label].get("error_feedback", True)]


def computing_of(folder: Path) -> dict[str, Computing]:
    """Return what models compute, from the tables of processes that measured it at once: medians over all of them."""
    rows = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("*/computing.csv"))])
    rows["both"] = rows["forward_s"] + rows["backward_s"]
    found = {}
    for model, own in rows.groupby("model"):
        middle = own[["forward_s", "backward_s", "update_s", "both"]].median()
        # Half of the distance of the quartiles, of a normal distribution.
        low, high = own["both"].quantile([0.25, 0.75])
        spread = float((high - low) / 1.349 / middle["both"])
        found[str(model)] = Computing(
            float(middle["forward_s"]), float(middle["backward_s"]), float(middle["update_s"]), spread
        )
    return found


def write(setting: Setting, computing: Mapping[str, Computing], folder: Path) -> Path:
    """Write the scenario of a setting, in JSON, which is YAML, and return its file.

    Parameters
    ----------
    setting : Setting
        The job.
    computing : mapping of str to Computing
        What models compute, by name.
    folder : Path
        Where ``device.yaml`` is.
    """
    path = folder / f"{setting.name}.yaml"
    text = json.dumps(scenario(setting, computing[setting.model], "device.yaml"), indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def policy_table(loaded: Scenario) -> str:
    """Return a table by which a hook picks among the exchanges of a scenario's flexible policy, as it does."""
    policy = loaded.config.policies[FLEXIBLE].flexible
    assert policy is not None
    among = (candidate(label, loaded.config.exchanges[label]) for label in policy.among or ())
    return make(replace(from_scenario(loaded, Given()), among=tuple(map(_weighed, among)))).text()


def _weighed(exchange: Candidate) -> Choice:
    """Return an exchange as a choice by the closed form that the flexible policy weighs it by."""
    cost = closed_form(exchange)

    def communicate(point: OperatingPoint) -> Floats:
        return cost(point.latency, point.beta, point.dense_bytes, point.kept_share, point.workers, point.nodes)

    return Choice(exchange, "sparse", communicate, kernel_calls=lambda _: ())


def _weather(setting: Setting, host: int) -> dict[str, Any]:
    """Return how the two links of a host change, or differ from those of host 0."""
    latencies, bandwidths = zip(*(one.of_hosts(setting.ranks)[host] for one in setting.links), strict=True)
    at = [_seconds(one.at) for one in setting.links]
    return {
        "links": f"host:{host}",
        "latency": {"steps": {"at": at, "values": [_seconds(one / 2) for one in latencies]}},
        "bandwidth": {"steps": {"at": at, "values": [_rate(one) for one in bandwidths]}},
    }


def _seconds(value: float) -> str:
    return f"{value!r} s"


def _rate(value: float) -> str:
    return f"{value!r} B/s"
