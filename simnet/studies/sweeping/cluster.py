"""Cells on a Dask cluster: the same function as on this machine, sent to the workers of a scheduler.

The files that the scenario names, and the scenario itself, must be where the workers find them under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from simnet.base.dask_cluster import connect_dask
from simnet.base.processes import Outcome, run_task
from simnet.scenario.source import Source
from simnet.studies.sweeping import cell


def answered(tasks: Sequence[tuple[Source, str]], scheduler: str) -> Iterator[tuple[int, Outcome]]:
    """Run cells with their identities on a cluster; yield the number of each with its bytes, in any order."""
    with connect_dask(scheduler, f"--scheduler {scheduler}") as client:
        from distributed import as_completed

        futures: list[Any] = []
        try:
            # The same cell under the same name: the scheduler runs it once, whoever asks.
            futures = client.map(
                partial(run_task, cell.run),
                list(tasks),
                key=[f"simnet-{identity}" for _, identity in tasks],
            )
            numbers = {future.key: number for number, future in enumerate(futures)}
            for future in as_completed(futures, loop=client.loop):
                if future.status == "finished":
                    yield numbers[future.key], future.result()
                else:
                    why = "cancelled" if future.cancelled() else repr(future.exception())
                    yield numbers[future.key], Outcome("lost", f"the cluster did not finish it: {why}")
                # Its bytes are no longer needed there.
                future.release()
        finally:
            # Whatever has become of the scheduler meanwhile.
            with suppress(Exception):
                client.cancel([future for future in futures if not future.done()])
