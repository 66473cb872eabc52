"""What workers hold of memory, for people and for tables: parts, the most of all together, and who needs too much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NotRequired

from typing_extensions import TypedDict

from simnet.base.units import format_bytes
from simnet.job.memory import WorkerMemory

if TYPE_CHECKING:
    from simnet.job import Job

_WORDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimiser",
    "residual": "residual",
    "state": "state of the scheme",
    "masks": "masks",
    "outer": "outer optimiser",
    "in_flight": "in flight",
    "received": "messages",
}
_OPTIMIZERS = {
    "adam": "Adam, two moments in single precision",
    "momentum": "SGD with momentum, one moment in single precision",
    "sgd": "SGD without momentum",
}

COLUMNS = ("memory_B", *(f"memory_{name}_B" for name in _WORDS))
"""Columns of tables that have a row per exchange."""

HEADINGS = ("policy", "a worker holds", *_WORDS.values())
"""Of the table that people see."""


class MemorySummary(TypedDict):
    """What a worker holds [byte]: the most at once, and its parts; `fits` where there is a limit."""

    peak_B: int
    parameters_B: int
    gradients_B: int
    optimizer_B: int
    residual_B: int
    state_B: int
    masks_B: int
    outer_B: int
    in_flight_B: int
    received_B: int
    fits: NotRequired[bool]


class MemoryLimit(TypedDict):
    """What is left out and assumed of memory, and what a device holds [byte], if that is known."""

    assumed: str
    limit_B: int | None


def memory_summary(memory: WorkerMemory, limit: float | None = None) -> MemorySummary:
    """Return what a worker holds in whole bytes.

    Examples
    --------
    >>> found = memory_summary(WorkerMemory(4e9, 4e9, 8e9, received=1e9), limit=16e9)
    >>> found["peak_B"], found["received_B"], found["fits"]
    (17000000000, 1000000000, False)
    """
    parts = {f"{name}_B": round(value) for name, value in memory._asdict().items()}
    found: MemorySummary = {"peak_B": round(memory.peak), **parts}  # type: ignore[typeddict-item]
    if limit is not None:
        found["fits"] = memory.peak <= limit
    return found


def memory_columns(memory: WorkerMemory) -> dict[str, float]:
    """Return `COLUMNS` of an exchange."""
    return {name: float(round(value)) for name, value in zip(COLUMNS, (memory.peak, *memory), strict=True)}


def optimizer_assumed(optimizer: str | None, strategy: str | None = None) -> str:
    """Return what is left out of memory, and which optimiser is counted.

    Examples
    --------
    >>> print(optimizer_assumed("sgd"))
    Memory is that of a worker without activations and what an allocator adds; the optimiser is SGD without momentum.
    """
    moved = f"the optimiser is {_OPTIMIZERS[optimizer]}" if optimizer else f"assumed is {_OPTIMIZERS['adam']}"
    if strategy is not None:
        moved = f"optimisers are those of {strategy}"
    return f"Memory is that of a worker without activations and what an allocator adds; {moved}."


def memory_assumed(job: Job) -> str:
    """Return what is left out of a job's memory, and which optimisers are counted."""
    own = "sharded steps" if job.steps is not None else None if job.strategy is None else job.strategy.name
    return optimizer_assumed(job.optimizer, own)


def memory_refusal(memory: WorkerMemory, limit: float) -> str:
    """Return why what a worker holds does not fit its device: how much that is, and its largest parts.

    Examples
    --------
    >>> memory_refusal(WorkerMemory(1e9, 1e9, 2e9, received=60e9), 16e9)
    'needs 64 GB of the 16 GB of a device: messages 60 GB, optimiser 2 GB, parameters 1 GB, gradients 1 GB'
    """
    return f"needs {format_bytes(memory.peak)} of the {format_bytes(limit)} of a device: {_parts(memory)}"


def _parts(memory: WorkerMemory) -> str:
    """Return the parts that are a hundredth of all or more, the largest first."""
    parts = sorted(memory._asdict().items(), key=lambda one: -one[1])
    return ", ".join(f"{_WORDS[name]} {format_bytes(value)}" for name, value in parts if value > 0.01 * memory.peak)


def describe_memory(memory: Mapping[str, MemorySummary], said: MemoryLimit | None) -> list[str]:
    """Return who needs how much, who needs more than there is, and what is assumed; nothing where nothing is known."""
    if not memory or said is None:
        return []
    each = ", ".join(f"{format_bytes(one['peak_B'])} ({name})" for name, one in memory.items())
    lines = [f"A worker holds up to {each}. {said['assumed']}"]
    limit = said["limit_B"]
    if limit is not None:
        lines += [
            f"{name} does not fit: it {memory_refusal(_as_memory(one), limit)}."
            for name, one in memory.items()
            if not one.get("fits", True)
        ] or [f"All fit the {format_bytes(limit)} of a device."]
    return lines


def _as_memory(one: MemorySummary) -> WorkerMemory:
    return WorkerMemory(*(float(one[f"{name}_B"]) for name in WorkerMemory._fields))  # type: ignore[literal-required]


def memory_rows(memory: Mapping[str, MemorySummary]) -> list[tuple[str, ...]]:
    """Return the cells of the table of what workers hold; empty where nothing is known."""
    return [
        (name, *(format_bytes(value) for value in (float(one["peak_B"]), *_as_memory(one))))
        for name, one in memory.items()
    ]
