"""Settings of a shaped network's links, and times predicted on simulated links with the same settings.

A host has one link, with an uplink and a downlink. Its one-way latency is half on each, so that the route from host a
to host b has half the sum of theirs; its bandwidth holds for each direction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simnet import topologies
from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.quantities import Rate, Seconds, Size, bounds_error
from simnet.network import Network
from simnet.network.stack import Stack
from simnet.network.weather import Weather, steps
from simnet.schedule import Schedule
from simnet.topologies.graphs import Link

COLUMNS = ("link_latency", "link_bandwidth")
"""Link columns of a measurement table, for all hosts; host 3 alone has ``link_latency_3``, ``link_bandwidth_3``."""

_QUANTITIES = MappingProxyType(dict(zip(COLUMNS, (Seconds, Rate), strict=True)))

OfHosts: TypeAlias = float | tuple[float, ...]
"""One number for all hosts, or a tuple with one per host."""


class Change(NamedTuple):
    """Latency [s] and bandwidth [byte/s] of links from time `at` on [s since the first setting]."""

    # From when on [s].
    at: float
    # Those of all hosts, or of each host.
    latency: OfHosts
    bandwidth: OfHosts

    @property
    def is_unequal(self) -> bool:
        """Whether links differ between hosts."""
        return any(isinstance(one, tuple) and len(set(one)) > 1 for one in self[1:])

    def of_hosts(self, hosts: int) -> list[tuple[float, float]]:
        """Return the latency [s] and bandwidth [byte/s] of each host's link, as a pair per host."""
        each = (_per_host(given, hosts, name) for given, name in zip(self[1:], COLUMNS, strict=True))
        return list(zip(*each, strict=True))

    def columns(self, hosts: int) -> dict[str, float]:
        """Return the columns of a table on links: one value each if hosts agree, otherwise one per host."""
        found: dict[str, float] = {}
        for name, values in zip(COLUMNS, zip(*self.of_hosts(hosts), strict=True), strict=True):
            alike = len(set(values)) == 1
            found |= {name: values[0]} if alike else {f"{name}_{host}": one for host, one in enumerate(values)}
        return found


def predict(schedule: Schedule, links: Sequence[Change], stack: Stack, starts: Sequence[float] = (0.0,)) -> Floats:
    """Return the duration of a schedule on a star [s], for each start time.

    Connections are warm: congestion windows cover a message. Losses and processor limits are not modelled.

    Examples
    --------
    >>> from simnet.network.stack import STACKS
    >>> from simnet.schedule import Round
    >>> bare = Schedule(2, [Round([0], [1], 14480)])
    >>> sockets = STACKS["tcp"].with_software(0.0, 0.0)
    >>> predict(bare, [Change(0, 1e-3, 1e6)], sockets).round(6)
    array([0.017918])
    >>> predict(bare, [Change(0, (1e-3, 3e-3), 1e6)], sockets).round(6)
    array([0.018918])
    """
    hosts = schedule.n_ranks
    settings = [one.of_hosts(hosts) for one in links]
    graph = topologies.star(hosts, *settings[0][0])
    weather: dict[Link, Weather] = {}
    at = [one.at for one in links]
    for host in range(hosts):
        latencies, bandwidths = zip(*(each[host] for each in settings), strict=True)
        own = Weather(bandwidth=steps(at, bandwidths), latency=steps(at, [each / 2 for each in latencies]))
        both: tuple[Link, Link] = ((host, "switch"), ("switch", host))
        for link in both:
            graph.edges[link].update(latency=latencies[0] / 2, bandwidth=bandwidths[0])
            if len(links) > 1:
                weather[link] = own
    network = Network(graph, weather, stack=stack)
    return np.array([network.time(schedule, start).duration for start in starts])


def of_each(rows: pd.DataFrame, name: str) -> list[OfHosts]:
    """Return the values of a quantity by row: one number if all ranks agree, otherwise a tuple by rank."""
    ranks = rows["ranks"].to_numpy(dtype=int)
    own = {
        int(column.rpartition("_")[2]): column
        for column in map(str, rows)
        if re.fullmatch(rf"{name}_\d{{1,4}}", column)
    }
    common = _column_numbers(rows, name)[0] if name in rows else np.full(len(rows), np.nan)
    values = np.repeat(common[:, None], max([*own, *(ranks - 1)], default=0) + 1, axis=1)
    for host, column in own.items():
        numbers, present = _column_numbers(rows, column)
        none = present & (ranks <= host)
        if none.any():
            row = rows[none].iloc[0]
            raise _refuse_row(row, column, f"is of no rank, got {row[column]} with {row['ranks']} ranks")
        values[present, host] = numbers[present]
    return [_common_value(row[:count]) for row, count in zip(values.tolist(), ranks.tolist(), strict=True)]


def _column_numbers(rows: pd.DataFrame, column: str) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the numbers in a column, NaN where empty, and a mask of rows that have a value."""
    given = rows[column].replace("", None)
    numbers = pd.to_numeric(given, errors="coerce").to_numpy(dtype=float)
    present: NDArray[np.bool_] = given.notna().to_numpy(dtype=bool)
    quantity = next((one for name, one in _QUANTITIES.items() if column.startswith(name)), Size)
    values, where = np.unique(numbers[present], return_index=True)
    for value, place in zip(values.tolist(), where.tolist(), strict=True):
        row = rows[present].iloc[place]
        if said := bounds_error(value, quantity, row[column] if math.isnan(value) else None):
            raise _refuse_row(row, column, said)
    return numbers, present


def _refuse_row(row: pd.Series[Any], column: str, said: str) -> InputError:
    return InputError(said, file=row.get("source") or None, line=_row_line(row), field=column)


def _common_value(values: list[float]) -> OfHosts:
    """Return one number if all values agree, NaN if one is missing, otherwise the tuple of values."""
    if any(math.isnan(each) for each in values):
        return math.nan
    return values[0] if len(set(values)) == 1 else tuple(values)


def _row_line(row: pd.Series[Any]) -> int | None:
    line = row.get("line")
    return None if line is None or pd.isna(line) else int(line)


def _per_host(given: OfHosts, hosts: int, name: str) -> tuple[float, ...]:
    if not isinstance(given, tuple):
        return (given,) * hosts
    if len(given) != hosts:
        raise InputError(f"is given for {len(given)} hosts, but there are {hosts}", file="shaped network", field=name)
    return given
