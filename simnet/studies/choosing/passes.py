"""How long workers compute at an operating point, as flags say it or as it is known of the model on the device."""

from __future__ import annotations

from typing import NamedTuple

from simnet.base.errors import InputError
from simnet.costs.computing import PassTime, SampleCount, batch_samples, pass_time
from simnet.costs.devices import DeviceProfile
from simnet.costs.models import ModelProfile
from simnet.job import Job, Overlap
from simnet.report.columns import Fields
from simnet.report.cost_summary import throughput
from simnet.scenario import Scenario
from simnet.scenario.device import stack_doubt
from simnet.studies.choosing.outer_steps import Weighed
from simnet.studies.codes import computing_told


class Passes(NamedTuple):
    """How long workers compute in an iteration.

    Parameters
    ----------
    compute, backward : float
        Seconds of both passes, and of back-propagation that exchanges may go beside; 0 if not known.
    known : Computing, optional
        How that is known, where nobody gave it.
    samples : Samples, optional
        What all workers go through meanwhile.
    notes : tuple of str
        What is said of it.
    """

    compute: float
    backward: float
    known: PassTime | None = None
    samples: SampleCount | None = None
    notes: tuple[str, ...] = ()

    def throughput(self, exchange: float) -> Fields | None:
        """Return what all workers go through in a second, exchanging so long after the passes; None if not known."""
        return None if self.samples is None else throughput(self.samples, self.compute + exchange)


def passes_of_job(loaded: Scenario, job: Job, own: Weighed) -> Passes:
    """Return how long the workers of a scenario compute from one exchange to the next.

    Parameters
    ----------
    loaded, job : Scenario, Job
        The scenario, and its job.
    own : Weighed
        What an iteration of it has to do with the choice.
    """
    each = loaded.samples
    if each is not None and job.strategy is not None:
        each = each._replace(number=each.number * job.strategy.steps)
    notes = (*computing_told([loaded.computing]), *(f"Warning: {one}" for one in loaded.warnings))
    return Passes(own.compute, own.backward, loaded.compute_time, each, notes)


def passes_of(
    profile: ModelProfile | None,
    device: DeviceProfile,
    workers: int,
    *,
    compute: float | None = None,
    batch: int | None = None,
    stack: str | None = None,
) -> Passes:
    """Return how long workers compute, and what is said of that and of the device.

    Parameters
    ----------
    profile : ModelProfile or None
        The model; None where only its size is known.
    device : DeviceProfile
        What it runs on.
    workers : int
        How many there are.
    compute : float, optional
        Seconds of both passes, where they are given.
    batch : int, optional
        Samples of a worker in an iteration.
    stack : str, optional
        By which messages are sent.

    Raises
    ------
    InputError
        If there is a batch, and nothing says how long it takes.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> passes_of(None, load_device("v100"), 8, compute=0.3, batch=16).samples
    SampleCount(number=128, unit='samples')
    """
    known, doubt = None, stack_doubt(device, stack)
    notes = [] if doubt is None else [f"Warning: {doubt}"]
    if compute is None and profile is not None:
        try:
            known = pass_time(profile, device, batch)
            notes.insert(0, f"Computing: {known.describe()}.")
        except ValueError as error:
            notes.insert(0, f"Exchanges are ranked by themselves: {error}; --compute says it.")
    seconds = known.seconds if known is not None else compute or 0.0
    if batch is not None and not seconds:
        raise InputError("needs --compute: how long a batch takes is not known", file="--batch")
    each = batch or (known.batch if known is not None else 0)
    share = Overlap.backward if profile is None else profile.backward_fraction
    of_all = batch_samples(profile, workers * each) if each else None
    return Passes(seconds, share * seconds, known, of_all, tuple(notes))
