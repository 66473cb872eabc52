"""Bandwidth and latency of links over time, as far as known, for timing by the max-plus recurrence."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simnet.network.links import Links, moments_around
from simnet.network.recurrence import Cursors, LinkForecast

# Segments of all links to hold, segments of its own route, and seconds, beyond which a message that waits is left to
# the other clock.
_HELD, _PATIENCE, _LONGEST = 1 << 25, 1 << 20, 1e7


class WeatherForecast:
    """Bandwidths and latencies of links over time, generated as far as a schedule needs them.

    - `links`: the links.
    - `origin`: the moment from which times count [s].
    - `start`, `until`: first moment, and earliest end, of the forecast [s].
    - `n_messages`: messages of the schedule.
    """

    def __init__(self, links: Links, origin: float, start: float, until: float, n_messages: int) -> None:
        self._links, self._origin, self._start, self._n_messages = links, origin, start, n_messages
        self._waiting = -1
        self.effort = n_messages
        """Messages of the schedule, or segments that one of them waits through."""
        if not links.constant:
            self._look(start, until)

    def _look(self, start: float, until: float, likely: float = 0.0) -> None:
        first, last = moments_around(self._origin, start, until)
        self._timelines = [
            record.timelines(first, last, likely and self._origin + likely)
            for record in (self._links.bandwidths, self._links.latencies)
        ]
        self._first = first
        self.__dict__.pop("forecast", None)

    @cached_property
    def forecast(self) -> LinkForecast | None:
        """Bandwidth and latency of all links over time, as far as known; None if links never change."""
        if self._links.constant:
            return None
        return LinkForecast(
            *(Cursors(one.counted_from(self._origin), one.values, one.at(self._first)) for one in self._timelines)
        )

    def extend(self, through: int, route: NDArray[np.int64], now: float, when: float) -> bool:
        """Generate all links' bandwidths and latencies beyond time `when` [s]; return False at a time or memory limit.

        - `through`: messages that have completed.
        - `route` (L,): links of the next message, padded with -1.
        - `now`, `when`: when the first rank entered, and the time that is unknown [s].
        """
        used = route[route >= 0]
        segments = int((self._timelines[0].last[used] - self._timelines[0].first[used]).sum())
        stuck, self._waiting = through == self._waiting and segments > _PATIENCE, through
        if stuck or when - now > _LONGEST or sum(one.times.size for one in self._timelines) > _HELD:
            return False
        self.effort = max(self._n_messages, segments)
        self._look(now, when, self._start + 1.25 * (when - self._start) * self._n_messages / max(1, through))
        return all(when < one.until - self._origin for one in self._timelines)
