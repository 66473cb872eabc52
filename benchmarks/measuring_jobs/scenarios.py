"""The scenario of a measured job: its links, what its processes compute, and what they send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from measuring_jobs.settings import (
    ALGORITHMS,
    BATCH,
    CORES,
    EXCHANGES,
    LEARNING_RATE,
    MODELS,
    MOMENTUM,
    PROBE,
    SEED,
    WORKED,
    Setting,
)
from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.cost_models.costs.devices import DeviceProfile, KernelMethod, load_device
from simnet.policies import Candidate, closed_form
from simnet.scenario import Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.closed_forms import ClosedForms, FormEstimate, OperatingPoint
from simnet.studies.choosing.policy import make

ENTRIES: Mapping[str, int] = MappingProxyType({"small": 4_810, "mlp": 700_810, "deep": 563_722, "conv": 1_069_290})
"""Parameters of the models."""

_SETTLED = 5
# Links of a table for run time [s], [byte/s], and cells along each axis.
_LATENCIES, _BANDWIDTHS, _CELLS = (1e-5, 0.1), (5e5, 1.25e9), 24
_PLACES = ("before the first message", "between and after messages")
_LEAST = 1e-6


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
    """Return the scenario of a setting, as its file has it."""
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
    """Return the recorded gradients of a setting whose model no scenario can train."""
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
    """Return the device profile of the first process, with the costs of a hook besides its kernels."""
    profile = load_device(folder / "0" / "device.yaml")
    rows = _worked(folder)
    found: dict[str, list[tuple[tuple[float, ...], tuple[float, ...], pd.DataFrame]]] = {}
    for (model, exchange, density), own in rows.groupby(["model", "exchange", "density"]):
        entries, kept = ENTRIES[str(model)], float(str(density))
        options = dict(WORKED[str(exchange)])
        name = options.pop("scheme")
        options |= ALGORITHMS.get(name, {})
        scheme = sparsifier_models.create(name, CORES, entries, kept, **options)
        for iteration in range(_SETTLED):
            gradients = stream(SEED, "hook", entries, iteration).standard_normal((CORES, entries)).astype(np.float32)
            exchanged = scheme.exchange(gradients)
        before, between = profile.work(exchanged.kernels, CORES)
        kernels = float(before.mean()), sum(float(one.mean()) for one in between.values())
        came = float(np.mean(exchanged.stats["bytes_received"])) / 4
        found.setdefault(name, []).append(((entries, kept * entries, came), kernels, own))
    methods: dict[str, KernelMethod] = {}
    for name, measured in found.items():
        sizes, kernels_s, rows_of = zip(*measured, strict=True)
        for place, (part, all_of, some) in enumerate((("select_s", "begin", "kept"), ("merge_s", "end", "came"))):
            beside = [own[part] - one[place] for own, one in zip(rows_of, kernels_s, strict=True)]
            whole = [float(own[part].median()) for own in rows_of]
            size = np.array([(one[0], one[1 + place]) for one in sizes])
            of_all, of_some = _fitted(beside, whole, size, f"{_PLACES[place]} of {name}")
            methods |= {f"hook_{name}_{all_of}": of_all}
            # Of what is sent as a whole one size tells as much as the other.
            methods |= {f"hook_{name}_{some}": of_some} if of_some.seconds_per_entry else {}
    return replace(profile, methods={**profile.methods, **methods})


def _fitted(
    beside: Sequence[pd.Series[float]], whole: Sequence[float], size: Floats, place: str
) -> tuple[KernelMethod, KernelMethod]:
    """Return non-negative costs over two sizes whose sum is the time without kernels.

    Squares of what is off, over the seconds of the whole, are the least. The interval is that of 90 % of all.
    """
    columns = np.column_stack([np.ones(len(size)), size])
    columns[:, 2] = np.where(columns[:, 2] < columns[:, 1], columns[:, 2], 0.0)
    scale, weight = columns.max(axis=0).clip(1.0), 1 / np.array(whole)
    seconds = np.array([float(one.median()) for one in beside])
    launch, each, some = (nnls(columns / scale * weight[:, np.newaxis], seconds * weight)[0] / scale).tolist()
    said = np.maximum(columns @ (launch, each, some), _LEAST)
    ratios = pd.concat([one / own for one, own in zip(beside, said.tolist(), strict=True)])
    low, high = ratios.quantile([0.05, 0.95])
    source = f"simnet.cluster.hooks, {CORES} processes on links of 5 ms, {place}; beside the kernels of the scheme"
    all_of = KernelMethod(
        launch, 0.0, source, each, low=float(np.clip(low, 0.01, 1)), high=max(float(high), 1.0), known="measured"
    )
    return all_of, replace(all_of, launch=0.0, seconds_per_entry=some)


def _worked(folder: Path) -> pd.DataFrame:
    """Return what processes logged by themselves: rows of logs with ``model`` and ``forward_s``."""
    found = []
    for place in sorted(folder.glob("*/forward.csv")):
        forward, rank = pd.read_csv(place), place.parent.name
        for model, exchange, density in forward[["model", "exchange", "density"]].drop_duplicates().itertuples(False):
            log = place.parent / str(model) / str(exchange) / f"{density:g}" / f"rank_{rank}.csv"
            rows = pd.read_csv(log).assign(model=model, density=density)
            found.append(rows.merge(forward, on=["model", "exchange", "density", "iteration"]))
    rows = pd.concat(found, ignore_index=True)
    return rows[rows["iteration"] >= _SETTLED]


def write(setting: Setting, computing: Mapping[str, Computing], folder: Path) -> Path:
    """Write the scenario of a setting, in JSON, which is YAML, and return its file."""
    path = folder / f"{setting.name}.yaml"
    text = json.dumps(scenario(setting, computing[setting.model], "device.yaml"), indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def policy_table(loaded: Scenario) -> str:
    """Return a table by which a hook picks among the exchanges of a scenario's flexible policy, as it does."""
    policy = loaded.config.policies[FLEXIBLE].flexible
    assert policy is not None
    among = [candidate(label, loaded.config.exchanges[label]) for label in policy.among or ()]
    job = loaded.build().job
    point = OperatingPoint(job.source.workers, job.source.true_parameters, job.density[-1].end, 1e-3, 1e7)
    forms = ClosedForms(among, point, _weighed)
    latency, bandwidth = np.geomspace(*_LATENCIES, _CELLS), np.geomspace(*_BANDWIDTHS, _CELLS)
    return make(forms, loaded, job, latency, bandwidth).text()


def _weighed(exchange: Candidate, point: OperatingPoint) -> FormEstimate:
    """Return the time of an exchange by the closed form that the flexible policy weighs it by."""
    nbytes = 4.0 * np.asarray(point.parameters, dtype=np.float64)
    seconds = closed_form(exchange)(
        point.latency, 1 / point.bandwidth, nbytes, 4.0 * point.kept / nbytes, point.workers
    )
    return FormEstimate(seconds, np.zeros(()))


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
