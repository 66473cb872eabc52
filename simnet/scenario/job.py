"""From the other parts of a scenario to a job and its policies: gradients, density, compute, device, exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import sparsifier_models
from simnet.devices import DeviceProfile, load_device
from simnet.policies import Candidate, Clairvoyant, Fixed, Flexible, Monitor, Policy
from simnet.scenario import schema
from simnet.scenario.loader import Findings
from simnet.scenario.network import Stages
from simnet.scenario.resolve import candidate
from simnet.training import Compute, Job, Overlap, Ramp
from simnet.units import format_bytes

# Arrays of P x n float32 that are alive at once beside the residual of each candidate: gradients and what the source
# keeps of them, the residual handed on, its sum with the gradients, and room to select.
_COPIES = 6
_TRIAL_ENTRIES = 16


def build_job(config: schema.Config, stages: Stages | None, folder: Path, found: Findings) -> Job | None:
    """Build the job of a resolved scenario; None if something is wrong.

    Parameters
    ----------
    config : Config
        The resolved scenario.
    stages : Stages or None
        Its networks, if they could be built.
    folder : Path
        Where file names in it start from.
    found : Findings
        Takes what is wrong with it.
    """
    given = config.job
    device: DeviceProfile | None = None
    with found.at("job", "device"):
        device = load_device(folder / given.device if is_file(given.device) else given.device)
    _try_exchanges(config, device, found)
    source = _source(config, folder, found)
    if given.compute.mean is None:
        found.add(("job", "compute", "mean"), "is missing; only with job.model there is a default")
    if source is None or stages is None or device is None or given.compute.mean is None:
        return None
    straggle = given.compute.straggle
    overlap = given.overlap
    return Job(
        source=source,
        iterations=given.iterations,
        stages=stages.networks,
        density=_ramps(given.density),
        compute=Compute(
            mean=given.compute.mean,
            spread=given.compute.spread,
            slow={int(worker): factor for worker, factor in given.compute.slow.items()},
            straggle=0.0 if straggle is None else straggle.probability,
            slowdown=1.0 if straggle is None else straggle.slowdown,
        ),
        device=device,
        placement=stages.placement,
        overlap=None if overlap is None else Overlap(overlap.bucket, overlap.backward or 0.0),
        update=given.update,
        seed=config.seed,
    )


def build_policies(config: schema.Config) -> dict[str, Policy]:
    """Build the policies of a resolved scenario, in its order."""
    return {name: _policy(config, one) for name, one in config.policies.items()}


def is_file(name: str) -> bool:
    """Whether a name in a scenario is that of a file, and not of something that comes with simnet."""
    return "/" in name or Path(name).suffix in (".yaml", ".yml", ".safetensors")


def _ramps(given: float | Sequence[schema.Ramp] | None) -> list[Ramp]:
    if given is None or isinstance(given, float | int):
        density = 1.0 if given is None else float(given)
        return [Ramp(1, density, density)]
    ramps = []
    for ramp in given:
        start, end = (ramp.at, ramp.at) if ramp.at is not None else (ramp.start, ramp.end)
        assert start is not None
        assert end is not None
        ramps.append(Ramp(ramp.iterations or 1, start, end))
    return ramps


def _try_exchanges(config: schema.Config, device: DeviceProfile | None, found: Findings) -> None:
    """Exchange zeros once with each scheme, so that what it refuses is said before the run."""
    for label, exchange in config.exchanges.items():
        with found.at("exchanges", label):
            model = sparsifier_models.create(
                exchange.scheme, config.workers, _TRIAL_ENTRIES, layers=(_TRIAL_ENTRIES,), **exchange.options
            )
            kernels = model.exchange(np.zeros((config.workers, _TRIAL_ENTRIES), dtype=np.float32)).kernels
            if device is not None:
                with found.at("job", "device"):
                    device.seconds(kernels, config.workers)


def _policy(config: schema.Config, given: schema.Policy) -> Policy:
    kind, part = given.choice
    labels = [part] if kind == "fixed" else part.among
    candidates: list[Candidate] = [candidate(label, config.exchanges[label]) for label in labels]
    if kind == "fixed":
        return Fixed(candidates[0])
    if kind == "clairvoyant":
        return Clairvoyant(candidates)
    return Flexible(candidates, Monitor(part.probe_every, part.noise, part.change, part.aggregate, config.seed))
