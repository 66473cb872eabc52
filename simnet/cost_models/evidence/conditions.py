"""Evidence level of a result: measured, extrapolated beyond measured conditions, or assumed.

Errors of times that follow from links were learnt on shaped links of one machine; `tests/test_chances.py` holds the
ranges here against the shipped measurements. A calibrated cluster knows itself which sizes and ranks were measured.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from simnet.base.units import format_bandwidth, format_seconds
from simnet.cost_models.evidence.intervals import UNNAMED, stacks

LATENCY, BANDWIDTH, WORKERS = (1e-4, 0.08), (5e5, 1.25e7), (2, 8)
"""Measured ranges of latency [s], bandwidth [byte/s] and number of workers, each with its own link."""

# A quantity that went through a logarithm and back is still the same.
_ROUNDING = 1e-9


Level: TypeAlias = Literal["measured", "extrapolated", "assumed"]


class Evidence(NamedTuple):
    """The evidence level of a result (measured, extrapolated or assumed), and the reason why it is not higher."""

    level: Level
    because: str = ""

    def figures(self) -> dict[str, str]:
        """Return the evidence level of a result, and the reason for it, as the JSON fields "evidence" and "because"."""
        return {"evidence": self.level, "because": self.because}

    def line(self) -> str:
        """Return a sentence on the evidence level and its reason; conditions outside the measured range come first."""
        known, _, here = self.because.rpartition("; here ")
        because = f"here {here}; {known}" if known else here
        return f"{self.level}: {because or 'links and numbers of workers like these were measured'}."


NEVER_COMPARED = Evidence("assumed", "no prediction of this kind was compared with a measurement")
"""Evidence of predictions that were never compared with measurements."""


def evidence_of(
    stack: str,
    latency: tuple[float, float],
    bandwidth: tuple[float, float],
    workers: int,
    per_node: int = 1,
    rounds: str = "",
) -> Evidence:
    """Return the evidence level of times that are predicted from the latency and bandwidth of links.

    `latency` [s] and `bandwidth` [byte/s] are the least and the most that links have; `rounds` names the training
    strategy if workers exchange only after several steps; no such job was measured.
    """
    here = [] if stack in (UNNAMED, *stacks()) else [f"a {stack} stack" if stack == "custom" else stack]
    for (low, high), (least, most), shown in (
        (latency, LATENCY, format_seconds),
        (bandwidth, BANDWIDTH, format_bandwidth),
        ((workers, workers), WORKERS, "{:.0f} workers".format),
    ):
        if low < least * (1 - _ROUNDING):
            here.append(f"down to {shown(low)}" if low < high else shown(low))
        if high > most * (1 + _ROUNDING):
            here.append(f"up to {shown(high)}" if low < high else shown(high))
    if per_node > 1:
        here.append(f"{per_node} workers of a node")
    if rounds:
        here.append(f"rounds of {rounds}")
    if not here:
        return Evidence("measured")
    return Evidence("extrapolated", f"here {', '.join(here)}; errors are of {', '.join(stacks())}, {known_links()}")


def known_links() -> str:
    """Return a phrase on the measured ranges of latency, bandwidth and workers."""
    latency, bandwidth = (
        " to ".join(map(*both)) for both in ((format_seconds, LATENCY), (format_bandwidth, BANDWIDTH))
    )
    return f"links of {latency} and {bandwidth}, with {WORKERS[0]} to {WORKERS[1]} workers of one link each"
