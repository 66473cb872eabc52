"""Which exchanges overlap the backward pass, and whether the other assumption would change the first place."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from simnet.report.wording import ahead, listed


class OverlapSummary(TypedDict):
    """What a run assumes of overlap; see `simnet.studies.assumptions`.

    `during` are the exchanges that go bucket by bucket during the backward pass, `after` those that begin after it.
    `default` is whether the scenario leaves that open. `first` is the exchange that a sample of iterations has first,
    `otherwise` the one that it has first under the other assumption, and `lead` by which factor that one is then ahead
    of `first`; None where no sample was timed, or it is `undecided`.
    """

    during: list[str]
    after: list[str]
    default: bool
    first: str | None
    otherwise: str | None
    lead: float | None
    undecided: bool


def describe_overlap(summary: OverlapSummary) -> str:
    """Return which exchanges are overlapped, and whether the other assumption would change the first place.

    Examples
    --------
    >>> print(describe_overlap({"during": ["AG"], "after": ["SparDL"], "default": True, "first": "AG",
    ...     "otherwise": "SparDL", "lead": 1.25, "undecided": False}))  # doctest: +NORMALIZE_WHITESPACE
    Overlap: AG during the backward pass, in DDP's buckets; SparDL after it, as its code does. With none overlapped
    SparDL would be fastest, 25 % before AG.
    """
    during, after = summary["during"], summary["after"]
    if not during:
        what, other = "none; exchanges begin after the backward pass", "In DDP's buckets during it"
    else:
        whose = "DDP's buckets" if summary["default"] else "the buckets of job.overlap"
        what = f"{listed(during)} during the backward pass, in {whose}"
        what += f"; {listed(after)} after it, as {_code(after)}" if after else ""
        other = "With none overlapped"
    said = f"Overlap: {what}."
    first, otherwise, lead = summary["first"], summary["otherwise"], summary["lead"]
    if summary["undecided"]:
        where = f"{other[0].lower()}{other[1:]}"
        return f"{said} A sample does not tell whether the first place would be the same {where}."
    if first is None:
        return said
    if lead is None:
        return f"{said} {other} the first place would be the same."
    return f"{said} {other} {otherwise} would be fastest, {ahead(lead)} before {first}."


def _code(labels: Sequence[str]) -> str:
    return "its code does" if len(labels) == 1 else "their code does"
