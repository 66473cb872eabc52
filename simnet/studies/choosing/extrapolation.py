"""Where times go beyond what their errors were learnt from.

Errors of times that follow from links were learnt on shaped links of one machine; `tests/test_chances.py` holds the
ranges here against the shipped measurements. A calibrated cluster knows itself which sizes and ranks were measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simnet.base.units import format_bandwidth, format_seconds
from simnet.studies.choosing.operating_point import OperatingPoint

LATENCY, BANDWIDTH, WORKERS = (1e-4, 0.08), (5e5, 1.25e7), (2, 8)
"""From where to where links were measured [s], [byte/s], and with how many workers, each on a link of its own."""

# A quantity that went through a logarithm and back is still the same.
_ROUNDING = 1e-9


def beyond_links(point: OperatingPoint) -> NDArray[np.bool_]:
    """Return whether links or workers are beyond those that were measured, of the shape to which these broadcast.

    Parameters
    ----------
    point : OperatingPoint
        The job and the links; fields may be arrays.

    Examples
    --------
    >>> point = OperatingPoint(8, 11_689_512, 0.01, 1e-3, np.array([1.25e6, 1.25e9]))
    >>> beyond_links(point).tolist()
    [False, True]
    """
    ranges = (point.latency, LATENCY), (point.bandwidth, BANDWIDTH), (point.workers, WORKERS)
    outside = np.asarray(point.per_node > 1)
    for value, (low, high) in ranges:
        outside = outside | (np.asarray(value) < low * (1 - _ROUNDING)) | (np.asarray(value) > high * (1 + _ROUNDING))
    return outside


def known_links() -> str:
    """Return on what errors of times that follow from links were learnt, in words.

    Examples
    --------
    >>> known_links()
    'links of 100 us to 80 ms and 4 Mbit/s to 100 Mbit/s, with 2 to 8 workers of one link each'
    """
    latency, bandwidth = (
        " to ".join(map(*both)) for both in ((format_seconds, LATENCY), (format_bandwidth, BANDWIDTH))
    )
    return f"links of {latency} and {bandwidth}, with {WORKERS[0]} to {WORKERS[1]} workers of one link each"


KNOWN_CALLS = "collectives, sizes and numbers of ranks that were measured"
"""The same of a calibrated cluster."""
