"""``simnet time``: time of a collective, or of a schedule from a file, on a network."""

from __future__ import annotations

from pathlib import Path

from simnet.report.summary import Summary
from simnet.schedule import Schedule
from simnet.verbs.request import Overrides, Words, set_texts, verb


@verb
def time(
    what: str | Path | Schedule,
    *,
    size: Words | float | None = None,
    start: float | str = "0 s",
    loose: bool = False,
    workers: int | None = None,
    network: str | Path | None = None,
    latency: float | str | None = None,
    bandwidth: float | str | None = None,
    stack: str | None = None,
    seed: int | None = None,
    set: Overrides = (),
) -> Summary:
    """Time one collective, or a schedule from a file, on a network.

    On a calibrated cluster or platform the cost model gives the time of collectives with names of nccl-tests, such as
    all_reduce. All other collectives and files are simulated.

    Parameters
    ----------
    what
        A collective, such as all_reduce:tree, or a file.

        Files may be GOAL, Chakra traces, an MSCCL algorithm or a table of messages.
    size
        Vector size: 64MB, or 1,64MB, or 1kB:1GB:7:log.
    start
        Simulated time at which all ranks start.
    loose
        Accept any graph; its time is then an upper bound.

    Raises
    ------
    SimnetError
        If something is wrong with what is given, or the schedule can never end.

    Examples
    --------
    >>> from simnet import time
    >>> found = time("all_reduce", network="dgx-h100", workers=16, size=["1 MB", "25 MB"])
    >>> [row["low_s"] < row["time_s"] < row["high_s"] for row in found.rows]
    [True, True]
    """
    from simnet.base import units
    from simnet.studies import options, timed_collectives

    fields = {
        "workers": workers, "network": network, "latency": latency, "bandwidth": bandwidth, "stack": stack,
        "seed": seed,
    }  # fmt: skip
    begin = start if isinstance(start, float | int) else options.quantity(start, "--start", units.seconds)
    request = timed_collectives.TimeRequest(set_texts(set), fields, float(begin or 0.0), loose)
    return timed_collectives.answer_time(what, timed_collectives.message_sizes(size), request)
