"""The time of an exchange by closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import OperatingPoint


class Estimate(NamedTuple):
    """The time of an exchange to send, and to select and put together [s]; of the shape of the operating point."""

    communicate: Floats
    select: Floats

    @property
    def seconds(self) -> Floats:
        """Both together [s]."""
        return np.asarray(self.communicate + self.select)


CostModel: TypeAlias = Callable[[Choice, OperatingPoint], Estimate]
"""The time of a choice at an operating point."""


def by_closed_form(device: DeviceProfile) -> CostModel:
    """Return the cost model of the closed forms, in which no two messages share a link.

    Examples
    --------
    >>> from simnet.studies.choosing.choices import choices
    >>> from simnet.cost_models.costs.devices import load_device
    >>> estimate = by_closed_form(load_device("ideal"))(choices()[0], OperatingPoint(8, 11_689_512, 0.1, 1e-3, 1.25e9))
    >>> f"{estimate.seconds:.4f} s"
    '0.0795 s'
    """

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        if choice.kernel_calls is None:
            raise InputError(f"what is selected by {choice.label} follows from no formula", file="--schemes")
        select = sum((device.once(one) for one in choice.kernel_calls(point)), np.zeros(()))
        return Estimate(choice.communicate(point), np.asarray(select))

    return cost_model
