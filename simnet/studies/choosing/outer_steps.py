"""What there is to choose of a job under a training strategy: the exchange of an outer step, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from simnet.base.errors import InputError
from simnet.job import Job, Overlap
from simnet.job.local_steps import check_switching, start_strategy
from simnet.studies.choosing.choices import Choice
from simnet.traces import GradientSource

_PARALLEL = "dataparallel"


class Weighed(NamedTuple):
    """What an iteration of a job has to do with the choice of its exchange.

    Parameters
    ----------
    share : float
        Which part of the model is exchanged, the mean over iterations.
    compute : float
        Seconds that workers compute from one exchange to the next.
    backward : float
        Seconds of back-propagation that an exchange may go beside.
    trained : str
        How workers train, for people; an empty text without a strategy.
    """

    share: float
    compute: float
    backward: float
    trained: str


def weighed(job: Job) -> Weighed:
    """Return what an iteration of a job has to do with the choice of its exchange.

    Parameters
    ----------
    job : Job
        The job.

    Raises
    ------
    InputError
        If its strategy cannot switch between exchanges.
    """
    own, once = job.strategy, job.compute.mean
    if own is None:
        return Weighed(1.0, once, once * (job.overlap.backward if job.overlap is not None else Overlap().backward), "")
    try:
        check_switching(own.name, own.options, 2)
    except ValueError as error:
        raise InputError(str(error), field="job.strategy") from None
    parts = f", one of {len(own.shares)} fragments, as if of one size" if len(own.shares) > 1 else ""
    steps = f"after each of {own.steps:,} inner steps" if own.steps > 1 else "after each inner step"
    return Weighed(sum(own.shares) / len(own.shares), own.steps * once, 0.0, f", {own.name} {steps}{parts}")


def that_average(job: Job, among: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices by which the strategy of a job can average; all if it has none.

    Parameters
    ----------
    job : Job
        The job.
    among : sequence of Choice
        What there is to choose from.

    Raises
    ------
    InputError
        If it can average by none of them; says why not by the last.
    """
    own, why, found = job.strategy, "", []
    for one in among:
        try:
            if own is not None:
                start_strategy(job.source, own.name, own.options, one.candidate, seed=job.seed, bucket=own.bucket)
        except ValueError as error:
            why = str(error)
        else:
            found.append(one)
    if among and not found:
        raise InputError(f"leaves nothing to choose from: {why}", field="job.strategy")
    return tuple(found)


def gradients(job: Job) -> GradientSource:
    """Return the gradients that a job exchanges, on which gains are measured.

    Parameters
    ----------
    job : Job
        The job.

    Raises
    ------
    InputError
        If it exchanges something that follows from how its strategy trains.
    """
    if job.strategy is None or job.strategy.name == _PARALLEL:
        return job.source
    return _refused(job.strategy.name)


def _refused(name: str) -> NoReturn:
    said = f"are not weighed under {name}, whose gains are those of what it exchanges, after inner steps"
    raise InputError(f"{said}; a policy `moo` of the scenario measures them as it trains", file="--ratios")
