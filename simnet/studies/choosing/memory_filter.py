"""Memory filter of a choice: worker memory per candidate, and candidates over a device's limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from simnet.base.errors import InputError
from simnet.policies import Candidate
from simnet.report import cost_summary
from simnet.studies.choosing.choices import Kind
from simnet.training.job.job import Job
from simnet.training.job.memory import WorkerMemory, exchange_memory, with_shared_gradients


class Held(NamedTuple):
    """Worker memory of each candidate by label, and the memory limit of a device [byte], if any.

    `unsettled` has the reasons why candidates have no steady part, and hence no rank.
    """

    each: Mapping[str, WorkerMemory]
    limit: float | None
    assumed: str
    unsettled: Mapping[str, str] = MappingProxyType({})

    @property
    def ruled_out(self) -> dict[str, str]:
        """Candidates over the memory limit, with the memory that they need as text."""
        if self.limit is None:
            return {}
        limit = self.limit
        return {label: cost_summary.memory_refusal(one, limit) for label, one in self.each.items() if one.peak > limit}

    def left(self, among: Sequence[tuple[Candidate, Kind]]) -> tuple[tuple[Candidate, Kind], ...]:
        """Return the candidates within the memory limit; InputError if none is left."""
        refused = self.ruled_out
        found = tuple(one for one in among if one[0].label not in refused)
        if among and not found:
            raise InputError(f"no exchange is left; {'; '.join(f'{one} {why}' for one, why in refused.items())}")
        return found

    def sentences(self) -> list[str]:
        """Return text lines on excluded candidates and on assumptions about memory."""
        unsettled = [f"{label} has not settled, and has no rank: {why}." for label, why in self.unsettled.items()]
        told = [f"{label} is ruled out: it {why}." for label, why in self.ruled_out.items()]
        return [*unsettled, *([*told, self.assumed] if self.each else [])]

    def figures(self) -> dict[str, Any]:
        """Return the memory figures as JSON fields; names end in units."""
        limit = None if self.limit is None else round(self.limit)
        return {
            "limit_B": limit,
            "assumed": self.assumed,
            "ruled_out": self.ruled_out,
            "unsettled": dict(self.unsettled),
        }

    def of(self, label: str) -> dict[str, Any]:
        """Return the JSON memory fields of a candidate; empty if its memory is unknown."""
        return {"memory": cost_summary.memory_summary(self.each[label])} if label in self.each else {}


def held_on_job(job: Job, among: Sequence[Candidate]) -> Held:
    """Return the worker memory of a job under each candidate, without candidates that fail."""
    each, kept = {}, with_shared_gradients(job)
    for one in among:
        try:
            each[one.label] = exchange_memory(kept, one)
        except ValueError:
            # Whoever tries the job with it says why.
            continue
    return Held(each, job.device_memory, cost_summary.memory_assumed(job))
