"""Cost of a job: its steps, throughput, memory per worker, and money if prices are known.

Jobs that exchange more or less often are compared by inner step: a worker's pass over a batch and its update. An
iteration has several inner steps under a training strategy, and one with data parallelism. *Utilisation* is the share
of the simulated time in which workers compute, mean over active workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simnet.base.units import format_bytes
from simnet.cost_models.costs.computing import SampleCount
from simnet.report.columns import COLUMNS as DEFINITIONS
from simnet.report.columns import Fields
from simnet.report.summary import three_digits
from simnet.training.job.job import Job
from simnet.training.job.memory import WorkerMemory

COLUMNS = ("inner_steps", "step_s", "utilisation", "money")
"""Cost columns of tables with a row per policy."""

_PARTS = tuple(f"{name}_B" for name in WorkerMemory._fields)
_OPTIMIZERS = {
    "adam": "Adam, two moments in single precision",
    "momentum": "SGD with momentum, one moment in single precision",
    "sgd": "SGD without momentum",
}
_HOUR, _GIGABYTE = 3600.0, 1e9
_RATES_SHOWN = 5


def price_of(prices: Mapping[str, Any], workers: int, seconds: float, nbytes: float) -> dict[str, float]:
    """Return the price of devices, of traffic, and of both, given workers, seconds, and the total bytes sent.

    Examples
    --------
    >>> price_of({"device_hour": 2.5, "gigabyte": 0.08, "currency": "USD"}, 4, 1800.0, 250e9)
    {'devices': 5.0, 'traffic': 20.0, 'together': 25.0}
    """
    devices = prices["device_hour"] * workers * seconds / _HOUR
    traffic = prices["gigabyte"] * nbytes / _GIGABYTE
    return {"devices": devices, "traffic": traffic, "together": devices + traffic}


def cost_summary(
    seconds: float, computed: float, nbytes: float, inner_steps: int, workers: int, prices: Mapping[str, Any] | None
) -> Fields:
    """Return a job's time and bytes per step, the share of time that is `computed` time, and its price if known."""
    return {
        "inner_steps": inner_steps,
        "step_s": seconds / inner_steps,
        "utilisation": computed / seconds if seconds else 1.0,
        "bytes_sent_per_worker_step_B": nbytes / workers / inner_steps,
        "money": None if prices is None else price_of(prices, workers, seconds, nbytes),
    }


def format_amount(money: float, currency: str) -> str:
    """Return an amount of money as text with three significant digits and its currency.

    Examples
    --------
    >>> format_amount(1234.5, "USD"), format_amount(0.01234, "EUR"), format_amount(0, "EUR")
    ('1,230 USD', '0.0123 EUR', '0 EUR')
    """
    rounded = float(f"{money:.3g}")
    return f"{rounded:{',.0f' if abs(rounded) >= 100 else 'g'}} {currency}"


def throughput(samples: SampleCount | None, seconds: float) -> Fields:
    """Return the throughput of all workers together and its unit; the throughput is None if `seconds` is 0.

    The result is empty for a job without known samples.

    Examples
    --------
    >>> throughput(SampleCount(50, "images"), 4.0)
    {'throughput': 12.5, 'throughput_unit': 'images/s'}
    """
    if samples is None:
        return {}
    rate = float(f"{samples.number / seconds:.12g}") if seconds else None
    return {"throughput": rate, "throughput_unit": f"{samples.unit}/s"}


def throughput_sentences(rates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line on the throughput of each policy, highest first; empty if no throughput is known.

    Examples
    --------
    >>> batch = SampleCount(512, "images")
    >>> throughput_sentences({"dense": throughput(batch, 0.5), "AG": throughput(batch, 0.25)})
    ['Throughput of all workers: AG 2,050 images/s, dense 1,020 images/s.']
    """
    known = [(name, one) for name, one in rates.items() if one and one["throughput"]]
    best = sorted(known, key=lambda item: -item[1]["throughput"])
    each = [f"{name} {three_digits(one['throughput'])} {one['throughput_unit']}" for name, one in best]
    more = [f"and {len(each) - _RATES_SHOWN} more"] if len(each) > _RATES_SHOWN else []
    return [f"Throughput of all workers: {', '.join([*each[:_RATES_SHOWN], *more])}."] if each else []


def memory_summary(memory: WorkerMemory, limit: float | None = None) -> Fields:
    """Return a worker's peak memory and its parts [byte] and, given a limit, whether the peak fits.

    Examples
    --------
    >>> found = memory_summary(WorkerMemory(4e9, 4e9, 8e9, received=1e9), limit=16e9)
    >>> found["peak_B"], found["received_B"], found["fits"]
    (17000000000, 1000000000, False)
    """
    parts = {name: round(value) for name, value in zip(("peak_B", *_PARTS), (memory.peak, *memory), strict=True)}
    return parts | ({} if limit is None else {"fits": memory.peak <= limit})


def memory_assumed(job: Job) -> str:
    """Return a sentence on what a job's memory figures leave out, and which optimisers' state they include."""
    moved = f"the optimiser is {_OPTIMIZERS[job.optimizer]}" if job.optimizer else f"assumed is {_OPTIMIZERS['adam']}"
    if job.steps is not None or job.strategy is not None:
        moved = f"optimisers are those of {'sharded steps' if job.strategy is None else job.strategy.name}"
    return f"Memory is that of a worker without activations and what an allocator adds; {moved}."


def memory_refusal(memory: WorkerMemory, limit: float) -> str:
    """Return why a worker does not fit its device: its peak, the limit, and the parts above 1 % of the peak.

    Examples
    --------
    >>> memory_refusal(WorkerMemory(1e9, 1e9, 2e9, received=60e9), 16e9)
    'needs 64 GB of the 16 GB of a device: messages 60 GB, optimiser 2 GB, parameters 1 GB, gradients 1 GB'
    """
    # Those that are a hundredth of all or more.
    parts = sorted(
        zip((DEFINITIONS[f"memory.{name}"].heading for name in _PARTS), memory, strict=True), key=lambda one: -one[1]
    )
    each = ", ".join(f"{name} {format_bytes(value)}" for name, value in parts if value > 0.01 * memory.peak)
    return f"needs {format_bytes(memory.peak)} of the {format_bytes(limit)} of a device: {each}"


def describe_memory(memory: Mapping[str, Mapping[str, Any]], said: Mapping[str, Any] | None) -> list[str]:
    """Return lines on each policy's peak memory, on assumptions (`said`), and on policies too large for the device."""
    if not memory or said is None:
        return []
    each = ", ".join(f"{format_bytes(one['peak_B'])} ({name})" for name, one in memory.items())
    lines, limit = [f"A worker holds up to {each}. {said['assumed']}"], said["limit_B"]
    if limit is None:
        return lines
    too_much = [
        f"{name} does not fit: it {memory_refusal(WorkerMemory(*(float(one[part]) for part in _PARTS)), limit)}."
        for name, one in memory.items()
        if not one.get("fits", True)
    ]
    return lines + (too_much or [f"All fit the {format_bytes(limit)} of a device."])
