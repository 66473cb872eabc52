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

    A calibrated cluster or platform answers by its cost model for names of nccl-tests; all else is simulated.

    Parameters
    ----------
    what
        A collective, as all_reduce:tree, or a file.

        Files hold GOAL, Chakra traces, an MSCCL algorithm or a table of messages; their content tells.
    size
        Of the whole vector: 64MB, 1,64MB or 1kB:1GB:7:log.
    start
        When all ranks enter, as weather changes.
    loose
        Let rounds that cannot express a file be upper bounds.

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
    return timed_collectives.answer_time(
        what, timed_collectives.message_sizes(size), float(begin or 0.0), loose, set_texts(set), fields
    )
