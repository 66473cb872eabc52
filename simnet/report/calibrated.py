"""What a run on a calibrated cluster rests on: its calls, the intervals of their times, and where they extrapolate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired

from typing_extensions import TypedDict

from simnet.base.units import NOT_DETERMINED, determined, format_bytes
from simnet.evidence.chances import corrected_prediction
from simnet.evidence.conditions import Evidence

if TYPE_CHECKING:
    from simnet.calibration.software import CalibratedSoftware, CallPrediction

HEADINGS = ("exchange", "call", "ranks", "size", "interval", "rests on")
"""What stands above the rows."""


UNKNOWN = "nothing is known of it: links alone"
"""Why a call has no interval."""


class CallSummary(TypedDict):
    """Calls of one kind in an exchange: their sizes, and the widest interval over the predicted time.

    Where data do not determine that its ends are None, and `interval` says so.
    """

    exchange: str
    collective: str
    algorithm: str
    ranks: int
    nodes: int
    smallest_B: float
    largest_B: float
    low: float | None
    high: float | None
    interval: NotRequired[str]
    extrapolates: bool
    why: str


class CalibrationSummary(TypedDict):
    """The file of a calibrated cluster, the stack that it names, whether its curves are used, and for which calls."""

    file: str
    stack: str
    used: bool
    coverage: float
    calls: list[CallSummary]


def calibration_summary(
    software: CalibratedSoftware, exchanges: Mapping[str, Sequence[CallPrediction]]
) -> CalibrationSummary:
    """Return what a run takes of a calibrated cluster, given its calls by the label of the exchange."""
    model = software.model
    return {
        "file": software.file,
        "stack": model.stack,
        "used": True,
        "coverage": model.coverage,
        "calls": call_summaries(exchanges),
    }


def call_summaries(exchanges: Mapping[str, Sequence[CallPrediction]]) -> list[CallSummary]:
    """Return what is known of the calls of exchanges, by their labels: one row for each kind of call."""
    rows = []
    for label, known in exchanges.items():
        kinds = dict.fromkeys((one.operation, one.algorithm, one.ranks, one.nodes) for one in known)
        for kind in kinds:
            same = [one for one in known if (one.operation, one.algorithm, one.ranks, one.nodes) == kind]
            rows.append(_row(label, same))
    return rows


def _row(label: str, same: Sequence[CallPrediction]) -> CallSummary:
    found = [corrected_prediction(one.prediction) for one in same if one.prediction is not None]
    # One that extrapolates tells more than one that does not.
    low = float(f"{min((one.low / one.seconds for one in found), default=1.0):.4g}")
    high = float(f"{max((one.high / one.seconds for one in found), default=1.0):.4g}")
    worst = max(found, key=lambda one: (one.extrapolates, one.high / one.low), default=None)
    known = determined(low, high)
    made: CallSummary = {
        "exchange": label,
        "collective": same[0].operation,
        "algorithm": same[0].algorithm,
        "ranks": same[0].ranks,
        "nodes": same[0].nodes,
        "smallest_B": float(f"{min(one.nbytes for one in same):.6g}"),
        "largest_B": float(f"{max(one.nbytes for one in same):.6g}"),
        "low": low if known else None,
        "high": high if known else None,
        "extrapolates": worst is None or worst.extrapolates,
        "why": UNKNOWN if worst is None else worst.why,
    }
    if not known:
        made["interval"] = NOT_DETERMINED
    return made


def calls_evidence(found: Sequence[CallSummary]) -> Evidence:
    """Return how well the calls of a schedule are known: as well as the worst of them.

    Examples
    --------
    >>> from simnet.calibration.software import CallPrediction
    >>> calls_evidence(call_summaries({"": [CallPrediction("sendrecv", "", 2, 0, 4e6, None)]})).level
    'assumed'
    """
    beyond = dict.fromkeys(one["why"] for one in found if one["extrapolates"])
    if not found or UNKNOWN in beyond:
        return Evidence("assumed", UNKNOWN if found else "no call of this schedule was calibrated")
    return Evidence("extrapolated", "; ".join(beyond)) if beyond else Evidence("measured")


def call_rows(found: Iterable[CallSummary]) -> list[tuple[str, ...]]:
    """Return the rows of the table under `HEADINGS`, as texts.

    Examples
    --------
    >>> from simnet.calibration import Prediction
    >>> from simnet.calibration.software import CallPrediction
    >>> predicted = Prediction(0.1, 0.09, 0.12, False, "rests on the curve itself")
    >>> known = CallPrediction("all_reduce", "ring", 8, 0, 4e6, predicted)
    >>> call_rows(call_summaries({"dense": [known]}))
    [('dense', 'all_reduce ring', '8', '4 MB', '-10 % to +21 %', 'the curve itself')]
    """
    made: list[tuple[str, ...]] = []
    for one in found:
        sizes = dict.fromkeys(format_bytes(one[name]) for name in ("smallest_B", "largest_B"))
        low, high = one["low"], one["high"]
        mark = "extrapolates: " if one["extrapolates"] else ""
        made.append(
            (
                one["exchange"],
                f"{one['collective']} {one['algorithm']}".strip(),
                str(one["ranks"]) + (f" on {one['nodes']}" if one["nodes"] else ""),
                " to ".join(sizes),
                NOT_DETERMINED
                if low is None or high is None
                else f"{100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %",
                mark + one["why"].removeprefix("rests on "),
            )
        )
    return made


def describe_calibration(calibration: CalibrationSummary) -> str:
    """Return in a few words what a run takes of a calibrated cluster.

    Examples
    --------
    >>> describe_calibration({"file": "c.yaml", "stack": "gloo", "used": True, "coverage": 0.9, "calls": []})
    'of c.yaml, whose curves have its software'
    >>> describe_calibration({"file": "c.yaml", "stack": "gloo", "used": False, "coverage": 0.9, "calls": []})
    'given, so that the curves of c.yaml, which are of gloo, are not used'
    >>> describe_calibration({"file": "c.yaml", "stack": "", "used": True, "coverage": 0.9, "calls": []})
    'c.yaml names no library; its curves have the software'
    """
    file, stack = calibration["file"], calibration["stack"]
    if not calibration["used"]:
        return f"given, so that the curves of {file}{f', which are of {stack},' if stack else ''} are not used"
    if not stack:
        return f"{file} names no library; its curves have the software"
    return f"of {file}, whose curves have its software"
