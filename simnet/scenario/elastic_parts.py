"""Workers of a scenario that die, leave and come back, or are not waited for."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from simnet.base.quantities import Duration, Seconds, Share
from simnet.scenario.parts import Part, configures, exactly_one
from simnet.training.job.elastic import Churn


class Death(Part):
    """A worker that stops for good.

    at: on the clock of the scenario, which starts at 0 s
    """

    worker: Annotated[int, Field(ge=0)]
    at: Seconds


class Absence(Part):
    """A time in which a worker is away.

    leaves: on the clock of the scenario, which starts at 0 s
    returns: default: never
    notice: whether it finishes the iteration that is under way
    """

    worker: Annotated[int, Field(ge=0)]
    leaves: Seconds
    returns: Seconds | None = None
    notice: bool = True

    def _check(self) -> None:
        if self.returns is not None and self.returns <= self.leaves:
            raise ValueError(f"returns must be later than leaves, {self.leaves:g} s, got {self.returns:g} s")


@configures(Churn)
class Churning(Part):
    """Workers that leave and come back at random, after times that are exponentially distributed.

    notice: whether they finish the iteration that is under way
    """

    notice: Any


class Deadline(Part):
    """How long an exchange waits for workers that compute, counted from the first that is done.

    quantile: as long as this share of the workers takes, of the compute times of the job
    """

    after: Duration | None = None
    quantile: Share | None = None

    def _check(self) -> None:
        exactly_one(self, ("after", "quantile"))


class Continue(Part):
    """The other workers continue without the dead.

    after: until they notice, as by a time-out, counted from when everything has stopped
    """

    after: Seconds


class OnDeath(Part):
    """What the others do."""

    go_on: Continue = Field(alias="continue")
