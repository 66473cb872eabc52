"""The scenario of a measured job: its links, what its processes compute, and what they send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.costs.devices import DeviceProfile, Method, load_device
from simnet.policies import Candidate, closed_form
from simnet.scenario import Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.inputs import Given, from_scenario
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.policy import make
from validate.jobs.settings import ALGORITHMS, BATCH, EXCHANGES, LEARNING_RATE, MODELS, MOMENTUM, PROBE, SEED, Setting

ENTRIES: Mapping[str, int] = MappingProxyType({"small": 4_810, "mlp": 700_810, "deep": 563_722, "conv": 1_069_290})
"""Parameters of the models."""

_SETTLED = 5


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
        "barrier": False,
    }
    if hidden:
        trained = {"model": {"mlp": {"hidden": list(hidden)}}, "data": "digits", "batch": BATCH}
        job["gradients"] = {"train": trained | {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}}
    else:
        job["gradients"] = {"recorded": f"./{trace_of(setting)}"}
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
        asked = {"probe_every": "0 s", "change": 0, "decide_every": setting.flexible}
        asked |= {"probe_bytes": f"{PROBE['nbytes']} B", "probe_times": PROBE["times"]}
        policies[FLEXIBLE] = {"flexible": {"among": kept_back(setting.exchanges), **asked}}
    return {
        "name": setting.name,
        "seed": SEED,
        "workers": setting.ranks,
        "network": network,
        "job": job,
        "exchanges": exchanges,
        "policies": policies,
    }


def trace_of(setting: Setting) -> Path:
    """Return where the recorded gradients of a setting lie, beside its scenario, if no scenario can train its model."""
    return Path("gradients", setting.name)


FLEXIBLE = "flexible"
"""Name of the policy that picks as the links change."""


def kept_back(exchanges: tuple[str, ...]) -> list[str]:
    """Return the exchanges that keep what they do not send, between which a policy may switch."""
    return [label for label in exchanges if EXCHANGES[label].get("error_feedback", True)]


def computing_of(folder: Path) -> dict[str, Computing]:
    """Return what models compute, from what processes measured at once: medians over all of them."""
    rows = _worked(folder)
    found = {}
    for model, own in rows.groupby("model"):
        compute, forward, update = (float(own[name].median()) for name in ("compute_s", "forward_s", "update_s"))
        # Half of the distance of the quartiles, of a normal distribution.
        low, high = own["compute_s"].quantile([0.25, 0.75])
        spread = float((high - low) / 1.349 / compute)
        found[str(model)] = Computing(forward, max(compute - forward, 0.0), update, spread)
    return found


def device_of(folder: Path) -> DeviceProfile:
    """Return the device profile of the first process, with what a hook does beside the kernels of its schemes."""
    profile = load_device(folder / "0" / "device.yaml")
    rows = _worked(folder)
    before, after = {}, {}
    for (model, exchange), own in rows.groupby(["model", "exchange"]):
        entries = ENTRIES[str(model)]
        options = {key: value for key, value in EXCHANGES[str(exchange)].items() if key != "scheme"}
        scheme = sparsifier_models.create(EXCHANGES[str(exchange)]["scheme"], 1, entries, 0.01, **options)
        gradient = stream(SEED, "hook", entries).standard_normal((1, entries)).astype(np.float32)
        selecting, between = profile.work(scheme.exchange(gradient).kernels, 1)
        merging = sum(float(one[0]) for one in between.values())
        before[entries, str(exchange)] = own["select_s"] - float(selecting[0])
        after[entries, str(exchange)] = own["merge_s"] - merging
    plain = {key: one for key, one in before.items() if key[1] == "dense"}
    kept = {key: one for key, one in before.items() if key[1] != "dense"}
    begin, end = _fitted(plain, "before the first message"), _fitted(after, "after the last message")
    beside = {key: one - begin.launch - key[0] * begin.seconds_per_entry for key, one in kept.items()}
    feedback = _fitted(beside, "with what is kept, before the first message")
    return replace(
        profile,
        methods={**profile.methods, "hook_begin": begin, "hook_feedback": feedback, "hook_end": end},
    )


def _fitted(seconds: Mapping[tuple[int, str], pd.Series[float]], what: str) -> Method:
    """Return a method whose launch is the median on the shortest gradient, and its interval that of 90 % of all."""
    shortest = min(entries for entries, _ in seconds)
    launch = max(float(pd.concat([one for key, one in seconds.items() if key[0] == shortest]).median()), 0.0)
    longer = [(one - launch) / key[0] for key, one in seconds.items() if key[0] > shortest]
    each = max(float(pd.concat(longer).median()), 0.0)
    ratios = pd.concat([one / (launch + key[0] * each) for key, one in seconds.items()])
    low, high = ratios.quantile([0.05, 0.95])
    source = f"simnet.hooks, a process by itself, {what}; beside the kernels of the scheme"
    return Method(
        launch, 0.0, source, each, low=float(np.clip(low, 0.01, 1)), high=max(float(high), 1.0), known="measured"
    )


def _worked(folder: Path) -> pd.DataFrame:
    """Return what processes logged by themselves: rows of logs with ``model`` and ``forward_s``."""
    found = []
    for place in sorted(folder.glob("*/forward.csv")):
        forward = pd.read_csv(place)
        for model, exchange in forward[["model", "exchange"]].drop_duplicates().itertuples(index=False):
            rows = pd.read_csv(place.parent / str(model) / str(exchange) / "rank_0.csv").assign(model=model)
            found.append(rows.merge(forward, on=["model", "exchange", "iteration"]))
    rows = pd.concat(found, ignore_index=True)
    return rows[rows["iteration"] >= _SETTLED]


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
