"""What a job has spent on its inner steps: time, devices and traffic, and money where prices are given.

Jobs that exchange more or less often are alike by inner step: a worker's pass over a batch and its update. An iteration
of a training strategy has several, one of data parallelism is one. *Utilisation* is the share of the simulated time in
which workers compute, in the mean over those that take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import TypedDict

from simnet.base.units import format_bytes, format_seconds

HEADINGS = ("policy", "inner steps", "an inner step", "utilisation", "sent by a worker in one")
"""Of the table that people see; with prices, `MONEY` follow."""

MONEY = ("devices", "traffic", "together")

COLUMNS = ("inner_steps", "step_s", "utilisation", "money")
"""Columns of tables that have a row per policy."""

_HOUR, _GIGABYTE = 3600.0, 1e9


class Prices(TypedDict):
    """What is paid: for a worker's device by the hour, and for 10^9 bytes that a worker sends."""

    device_hour: float
    gigabyte: float
    currency: str


class Money(TypedDict):
    """What devices cost, what traffic did, and both together, in the currency of the prices."""

    devices: float
    traffic: float
    together: float


class SpentSummary(TypedDict):
    """What a policy spent; no money without prices."""

    inner_steps: int
    step_s: float
    utilisation: float
    bytes_sent_per_worker_step_B: float
    money: Money | None


def price_of(prices: Prices, workers: int, seconds: float, nbytes: float) -> Money:
    """Return what so many workers cost for so long, and so many bytes that they send together.

    Examples
    --------
    >>> price_of({"device_hour": 2.5, "gigabyte": 0.08, "currency": "USD"}, 4, 1800.0, 250e9)
    {'devices': 5.0, 'traffic': 20.0, 'together': 25.0}
    """
    devices = prices["device_hour"] * workers * seconds / _HOUR
    traffic = prices["gigabyte"] * nbytes / _GIGABYTE
    return {"devices": devices, "traffic": traffic, "together": devices + traffic}


def spent_summary(
    seconds: float,
    computed: float,
    nbytes: float,
    inner_steps: int,
    workers: int,
    prices: Prices | None,
    rounded: Callable[[float], float],
) -> SpentSummary:
    """Return what a policy spent."""
    money = None if prices is None else price_of(prices, workers, seconds, nbytes)
    return {
        "inner_steps": inner_steps,
        "step_s": rounded(seconds / inner_steps),
        "utilisation": rounded(computed / seconds) if seconds else 1.0,
        "bytes_sent_per_worker_step_B": rounded(nbytes / workers / inner_steps),
        "money": None if money is None else _rounded(money, rounded),
    }


def _rounded(money: Money, rounded: Callable[[float], float]) -> Money:
    devices, traffic = rounded(money["devices"]), rounded(money["traffic"])
    return {"devices": devices, "traffic": traffic, "together": rounded(money["together"])}


def spent_columns(one: SpentSummary) -> dict[str, Any]:
    """Return `COLUMNS` of a policy."""
    money = one["money"]
    return {
        "inner_steps": one["inner_steps"],
        "step_s": one["step_s"],
        "utilisation": one["utilisation"],
        "money": None if money is None else money["together"],
    }


def format_amount(money: float, currency: str) -> str:
    """Return an amount of money with its currency.

    Examples
    --------
    >>> format_amount(1234.5, "USD"), format_amount(0.01234, "EUR"), format_amount(0, "EUR")
    ('1,230 USD', '0.0123 EUR', '0 EUR')
    """
    rounded = float(f"{money:.3g}")
    return f"{rounded:,.0f} {currency}" if abs(rounded) >= 100 else f"{rounded:g} {currency}"


def spent_headings(prices: Prices | None) -> tuple[str, ...]:
    """Return the headings of `spent_cells`."""
    return HEADINGS + (() if prices is None else MONEY)


def spent_cells(spent: Mapping[str, SpentSummary], prices: Prices | None) -> list[tuple[str, ...]]:
    """Return what policies spent, for people."""
    return [
        (
            name,
            f"{one['inner_steps']:,}",
            format_seconds(one["step_s"]),
            f"{100 * one['utilisation']:.3g} %",
            format_bytes(one["bytes_sent_per_worker_step_B"]),
            *(
                ()
                if prices is None or one["money"] is None
                else (format_amount(float(cost), prices["currency"]) for cost in one["money"].values())  # type: ignore[arg-type]
            ),
        )
        for name, one in spent.items()
    ]
