"""Calls of a run on a calibrated cluster: intervals of their predicted times, and where these extrapolate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simnet.base.units import NOT_DETERMINED, determined, format_bytes
from simnet.cost_models.evidence.conditions import Evidence
from simnet.report.columns import Fields

if TYPE_CHECKING:
    from simnet.cost_models.calibration.software import CalibratedSoftware, CallPrediction

UNKNOWN = "nothing is known of it: links alone"
"""Why a call has no interval."""


def calibration_summary(software: CalibratedSoftware, exchanges: Mapping[str, Sequence[CallPrediction]]) -> Fields:
    """Return the calibration entry of summary.json: cluster file, stack, coverage and a row per kind of call."""
    model, calls = software.model, call_summaries(exchanges)
    return {
        "file": software.file, "stack": model.stack, "used": True, "coverage": model.coverage, "calls": calls,
    }  # fmt: skip


def call_summaries(exchanges: Mapping[str, Sequence[CallPrediction]]) -> list[Fields]:
    """Return a row per exchange, collective, algorithm, ranks and nodes: sizes and the widest relative interval.

    If the data do not determine the interval, its ends are None and the entry `interval` says so.
    """
    kinds: dict[tuple[Any, ...], list[CallPrediction]] = {}
    for label, known in exchanges.items():
        for one in known:
            kinds.setdefault((label, one.operation, one.algorithm, one.ranks, one.nodes), []).append(one)
    return [_call_summary(kind, same) for kind, same in kinds.items()]


def _call_summary(kind: Sequence[Any], same: Sequence[CallPrediction]) -> Fields:
    found = [one.prediction.corrected() for one in same if one.prediction is not None]
    # One that extrapolates tells more than one that does not.
    worst = max(found, key=lambda one: (one.extrapolates, one.high / one.low), default=None)
    low = float(f"{min((one.low / one.seconds for one in found), default=1.0):.4g}")
    high = float(f"{max((one.high / one.seconds for one in found), default=1.0):.4g}")
    known = determined(low, high)
    return {
        **dict(zip(("exchange", "collective", "algorithm", "ranks", "nodes"), kind, strict=True)),
        "smallest_B": float(f"{min(one.nbytes for one in same):.6g}"),
        "largest_B": float(f"{max(one.nbytes for one in same):.6g}"),
        "low": low if known else None,
        "high": high if known else None,
        **({} if known else {"interval": NOT_DETERMINED}),
        "extrapolates": worst is None or worst.extrapolates,
        "why": UNKNOWN if worst is None else worst.why,
    }


def calls_evidence(found: Sequence[Mapping[str, Any]]) -> Evidence:
    """Return the evidence for the calls of a schedule, which is that of its least certain call.

    Examples
    --------
    >>> from simnet.cost_models.calibration.software import CallPrediction
    >>> calls_evidence(call_summaries({"": [CallPrediction("sendrecv", "", 2, 0, 4e6, None)]})).level
    'assumed'
    """
    beyond = dict.fromkeys(one["why"] for one in found if one["extrapolates"])
    if not found or UNKNOWN in beyond:
        return Evidence("assumed", UNKNOWN if found else "no call of this schedule was calibrated")
    return Evidence("extrapolated", "; ".join(beyond)) if beyond else Evidence("measured")


def call_rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return table rows, as text cells: exchange, call, ranks, sizes, interval and basis of each kind of call.

    Examples
    --------
    >>> from simnet.cost_models.calibration import Prediction
    >>> from simnet.cost_models.calibration.software import CallPrediction
    >>> predicted = Prediction(0.1, 0.09, 0.12, False, "rests on the curve itself")
    >>> known = CallPrediction("all_reduce", "ring", 8, 0, 4e6, predicted)
    >>> call_rows(call_summaries({"dense": [known]}))
    [('dense', 'all_reduce ring', '8', '4 MB', '-10 % to +21 %', 'the curve itself')]
    """

    def interval(low: float | None, high: float | None) -> str:
        if low is None or high is None:
            return NOT_DETERMINED
        return f"{100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %"

    return [
        (
            one["exchange"],
            f"{one['collective']} {one['algorithm']}".strip(),
            f"{one['ranks']}" + (f" on {one['nodes']}" if one["nodes"] else ""),
            " to ".join(dict.fromkeys(format_bytes(one[name]) for name in ("smallest_B", "largest_B"))),
            interval(one["low"], one["high"]),
            ("extrapolates: " if one["extrapolates"] else "") + one["why"].removeprefix("rests on "),
        )
        for one in found
    ]


def describe_calibration(calibration: Mapping[str, Any]) -> str:
    """Return a phrase that says from which cluster file a run takes software times, if any.

    Examples
    --------
    >>> describe_calibration({"file": "c.yaml", "stack": "gloo", "used": True})
    'of c.yaml, whose curves have its software'
    >>> describe_calibration({"file": "c.yaml", "stack": "gloo", "used": False})
    'given, so that the curves of c.yaml, which are of gloo, are not used'
    >>> describe_calibration({"file": "c.yaml", "stack": "", "used": True})
    'c.yaml names no library; its curves have the software'
    """
    file, stack = calibration["file"], calibration["stack"]
    if not calibration["used"]:
        return f"given, so that the curves of {file}{f', which are of {stack},' if stack else ''} are not used"
    if not stack:
        return f"{file} names no library; its curves have the software"
    return f"of {file}, whose curves have its software"
