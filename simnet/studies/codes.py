"""Sources of default costs: of codes, measured or estimated from memory passes, and of compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from simnet import sparsifier_models
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.report import run_setup
from simnet.report.columns import Fields
from simnet.sparsifier_models.two_level import without_network

_ENTRIES = 16
_WORKERS = 64


class Exchanging(Protocol):
    """An exchange of a scenario or policy: a scheme and its options."""

    @property
    def scheme(self) -> str:
        """Name of the scheme."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options."""


def with_codes(device: DeviceProfile, exchanges: Iterable[Exchanging], workers: int) -> Fields:
    """Return the summary of a device, with the kernels of the exchanges' codes."""
    return run_setup.device_summary(device, (kernel for one in exchanges for kernel in _code_kernels(one, workers)))


def costs_told(device: DeviceProfile, exchanges: Iterable[Exchanging], workers: int) -> list[str]:
    """Return text on the sources of code costs, as a list of at most one line."""
    codes = run_setup.describe_codes(with_codes(device, exchanges, workers))
    return [f"Costs of kernels on {device.name}{codes}."] if codes else []


def computing_told(found: Iterable[str | None]) -> list[str]:
    """Return text lines on compute times and their sources, without repetitions."""
    return [f"Computing: {one}." for one in dict.fromkeys(found) if one]


def _code_kernels(exchange: Exchanging, workers: int) -> Iterator[DeviceOp]:
    """Yield the kernels of exchanges that use codes."""
    if any(exchange.options.get(one) is not None for one in ("indices", "values")):
        options, ranks = without_network(exchange.scheme, exchange.options)
        entries = ranks * _ENTRIES
        # Which kernels run is the same among more.
        workers = min(workers, max(1, _WORKERS // ranks) * ranks)
        model = sparsifier_models.create(exchange.scheme, workers, entries, layers=(entries,), **options)
        yield from model.exchange(np.zeros((workers, entries), dtype=np.float32)).kernels
