"""Speed-ups in headlines of papers, simulated under each device profile.

What is exchanged does not depend on the device, so that every exchange is made once, and its messages and kernels are
timed with each profile. The scheme that a paper is about goes through all iterations of its scenario, as its thresholds
settle; what it is compared with goes through the last ones alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simnet.cost_models.costs.devices import DeviceProfile, device_names, load_device
from simnet.policies import density_at
from simnet.scenario import load
from simnet.scenario.resolve import candidate
from simnet.training.job.job import create_sparsifier, gradient_buckets
from simnet.validate.published import read_published
from simnet.validate.reproduction import artopk


class Headline(NamedTuple):
    """Headline speed-up of a paper: a slower exchange's iteration time over a faster exchange's."""

    paper: str
    scenario: str
    slower: str
    faster: str
    published: str


HEADLINES = tuple(map(Headline._make, read_published("headlines.csv").itertuples(index=False)))

LAST = 8
"""Number of last iterations that are averaged."""


class DeviceColumn(NamedTuple):
    """Headline speed-up: its published value, and its simulated value by device profile."""

    what: str
    published: str
    ratios: dict[str, float]


def device_columns(headlines: Sequence[Headline] = HEADLINES, names: Sequence[str] = ()) -> list[DeviceColumn]:
    """Return the speed-up in AR-Topk's Table IV and headline speed-ups, simulated under each device profile."""
    devices = [load_device(name) for name in names or device_names()]
    own = {one.faster for one in headlines}
    wanted = dict.fromkeys((one.scenario, label) for one in headlines for label in (one.slower, one.faster))
    took = {(scenario, label): _mean_seconds(scenario, label, devices, label in own) for scenario, label in wanted}
    step = {device.name: artopk.dense_over_star(device) for device in devices}
    found = [DeviceColumn("AR-Topk: dense over STAR-Topk", f"{artopk.dense_over_star():.2f}", step)]
    for one in headlines:
        ratio = took[one.scenario, one.slower] / took[one.scenario, one.faster]
        by_name = dict(zip([device.name for device in devices], ratio.tolist(), strict=True))
        found.append(DeviceColumn(f"{one.paper}: {one.slower} over {one.faster}", one.published, by_name))
    return found


def device_rows(found: Sequence[DeviceColumn]) -> list[tuple[str, ...]]:
    """Return table rows as text cells: headings, published values, then a row per device profile."""
    return [
        ("device", *(one.what for one in found)),
        ("published", *(one.published for one in found)),
        *((name, *(f"{one.ratios[name]:.2f}" for one in found)) for name in found[0].ratios),
    ]


def _mean_seconds(scenario: str, label: str, devices: Sequence[DeviceProfile], settles: bool) -> np.ndarray:
    """Return the mean time of the last iterations with an exchange [s], for each device."""
    loaded = load(scenario)
    job = loaded.build().job
    (bucket,) = gradient_buckets(job.source, job.overlap)
    sparsifier = create_sparsifier(candidate(label, loaded.config.exchanges[label]), bucket, job)
    network, workers = job.network(0), job.source.workers
    times = []
    for iteration in range(0 if settles else job.iterations - LAST, job.iterations):
        sparsifier.density, sparsifier.iteration = density_at(job.density, iteration), iteration
        exchange = sparsifier.exchange(job.source.gradients(iteration))
        if iteration < job.iterations - LAST:
            continue
        for device in devices:
            first, between = device.work(exchange.kernels, workers)
            timing = network.time(exchange.schedule.with_work(between), first, placement=job.placement)
            times.append(job.compute.mean + job.update + timing.lasts_from(0.0))
    return np.asarray(np.array(times).reshape(-1, len(devices)).mean(axis=0))
