"""How flows share links, for people and programs: said where they do not share max-min fairly."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from simnet.base.quantities import TIME
from simnet.network import Sharing


class SharingSummary(TypedDict):
    """The law of a run: congestion control, the exponent of round trips and where it is from, the buffer if known."""

    law: str
    congestion: str
    exponent: float
    measured: bool
    buffer: NotRequired[str]


def sharing_summary(sharing: Sharing) -> SharingSummary:
    """Return what a summary holds of a law.

    Examples
    --------
    >>> sharing_summary(Sharing(congestion="bbr", buffer=0.02))
    {'law': 'rtt', 'congestion': 'bbr', 'exponent': -0.8, 'measured': True, 'buffer': '20 ms'}
    """
    made: SharingSummary = {
        "law": sharing.law,
        "congestion": sharing.congestion,
        "exponent": sharing.power,
        "measured": sharing.exponent is None,
    }
    if sharing.buffer is not None:
        made["buffer"] = TIME.write(sharing.buffer)
    return made


def describe_sharing(sharing: SharingSummary) -> str:
    """Return a law in a few words.

    Examples
    --------
    >>> describe_sharing(sharing_summary(Sharing()))
    'by round trips, as cubic, exponent 0.4 (measured), buffer not known'
    """
    source = "measured" if sharing["measured"] else "given by the scenario"
    buffer = f"buffer {sharing['buffer']}" if "buffer" in sharing else "buffer not known"
    return f"by round trips, as {sharing['congestion']}, exponent {sharing['exponent']:g} ({source}), {buffer}"
