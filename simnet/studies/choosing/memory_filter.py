"""What a worker holds with each choice, and which choices are ruled out because a device does not hold as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from simnet.base import units
from simnet.base.errors import InputError
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, load_device
from simnet.policies import Candidate
from simnet.report import cost_summary
from simnet.studies import options
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import VALUE, OperatingPoint
from simnet.studies.choosing.sampled_exchanges import first_rows
from simnet.training.job.job import Job
from simnet.training.job.memory import (
    WorkerMemory,
    combine_memory,
    exchange_memory,
    scheme_memory,
    with_shared_gradients,
)

MOST_WORKERS = 1024
"""The most workers whose schemes are made to see what they hold at an operating point."""

HEADING = "a worker\nholds"
"""Of the column of tables."""

T = TypeVar("T")


class Held(NamedTuple):
    """What a worker holds with each choice.

    Parameters
    ----------
    each : mapping of str to WorkerMemory
        By label; empty where that was not looked at.
    limit : float or None
        What a device holds [byte], if that counts.
    assumed : str
        What is left out and assumed.
    unsettled : mapping of str to str
        Why choices have no rank that have not settled, by label.
    """

    each: Mapping[str, WorkerMemory]
    limit: float | None
    assumed: str
    unsettled: Mapping[str, str] = MappingProxyType({})

    @property
    def ruled_out(self) -> dict[str, str]:
        """Which choices need more than there is, and what they need."""
        if self.limit is None:
            return {}
        limit = self.limit
        return {label: cost_summary.memory_refusal(one, limit) for label, one in self.each.items() if one.peak > limit}

    def left(self, among: Sequence[T], label: Any) -> tuple[T, ...]:
        """Return the choices that are not ruled out."""
        refused = {**{label: f"has not settled: {why}" for label, why in self.unsettled.items()}, **self.ruled_out}
        found = tuple(one for one in among if label(one) not in refused)
        if among and not found:
            raise InputError(f"no exchange is left; {'; '.join(f'{one} {why}' for one, why in refused.items())}")
        return found

    def cell(self, label: str) -> str:
        """Return what the table says of a choice."""
        return units.format_bytes(self.each[label].peak) if label in self.each else ""

    def sentences(self) -> list[str]:
        """Return what is ruled out, and what is assumed."""
        unsettled = [f"{label} has not settled, and has no rank: {why}." for label, why in self.unsettled.items()]
        told = [f"{label} is ruled out: it {why}." for label, why in self.ruled_out.items()]
        return [*unsettled, *([*told, self.assumed] if self.each else [])]

    def figures(self) -> dict[str, Any]:
        """Return the same for programs; names end in units."""
        limit = None if self.limit is None else round(self.limit)
        return {
            "limit_B": limit,
            "assumed": self.assumed,
            "ruled_out": self.ruled_out,
            "unsettled": dict(self.unsettled),
        }

    def of(self, label: str) -> dict[str, Any]:
        """Return what programs are told of a choice."""
        return {"memory": cost_summary.memory_summary(self.each[label])} if label in self.each else {}


NOTHING = Held({}, None, "")
"""Where nobody looked."""


def limit_of(size: str | None, device: str | None = None) -> float | None:
    """Return the bytes that an option says a device holds; None if it is not given.

    Examples
    --------
    >>> limit_of("24 GB"), limit_of("device", "v100"), limit_of(None)
    (24000000000.0, 16000000000.0, None)
    """
    if size != "device":
        return options.quantity(size, "--memory", units.size)
    try:
        profile = load_device(device or DEFAULT_DEVICE)
    except ValueError as error:
        raise InputError(str(error), file="--device") from None
    if not profile.memory:
        raise InputError(f"the device profile {profile.name} does not say its memory; give a size", file="--memory")
    return profile.memory


def at_point(
    among: Sequence[Choice],
    point: OperatingPoint,
    limit: float | None,
    *,
    seed: int = 0,
    shape: str | None = None,
) -> Held:
    """Return what a worker holds with each choice at an operating point, by the first exchanges of synthetic gradients.

    Examples
    --------
    >>> from simnet.studies.choosing.choices import choices
    >>> found = at_point(choices()[:1], OperatingPoint(8, 1_000_000, 0.01, 1e-3, 1e9), 16e9)
    >>> found.cell("dense ring"), found.each["dense ring"].received
    ('17 MB', 1000000.0)
    """
    assumed = cost_summary.optimizer_assumed(None)
    if int(point.workers) > MOST_WORKERS:
        if limit is not None:
            said = f"is for at most {MOST_WORKERS:,} workers, got {int(point.workers):,}"
            raise InputError(said, file="--memory")
        return NOTHING
    each = {}
    for one in among:
        taken = scheme_memory(*first_rows(one, point, seed, shape))
        each[one.label] = combine_memory(VALUE * int(point.parameters), "adam", [taken])
    return Held(each, limit, assumed)


def on_job(job: Job, among: Sequence[Candidate]) -> Held:
    """Return what a worker of a job holds with each exchange; of one that cannot do the job nothing is said."""
    each, kept = {}, with_shared_gradients(job)
    for one in among:
        try:
            each[one.label] = exchange_memory(kept, one)
        except ValueError:
            # Whoever tries the job with it says why.
            continue
    return Held(each, job.device_memory, cost_summary.memory_assumed(job))
