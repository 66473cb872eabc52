"""Transport stacks for people and programs: name, properties as a scenario writes them, where software was measured."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NotRequired, get_args

from typing_extensions import TypedDict

from simnet.base.quantities import Notation, parameter_hints
from simnet.network import STACKS, Network, Stack
from simnet.network.stack import name_of
from simnet.report import calibrated
from simnet.report.calibrated import CalibrationSummary


class StackSummary(TypedDict):
    """The stack of a run: its name, or ``custom``; its properties without those that are unlimited.

    Of a calibrated cluster, `origin` says whether it is that of its file.
    """

    name: str
    measured: str
    properties: dict[str, str | int]
    origin: NotRequired[str]


def stack_summary(stack: Stack, calibration: CalibrationSummary | None = None) -> StackSummary:
    """Return what a summary holds of a stack, and of where it comes from on a calibrated cluster.

    Examples
    --------
    >>> found = stack_summary(dataclasses.replace(STACKS["gloo"], before=5e-5))
    >>> found["name"], found["properties"]["send_completion"], found["properties"]["before"]
    ('custom', 'ready', '50 us')
    """
    values = dataclasses.asdict(stack)
    measured = values.pop("measured")
    hints = parameter_hints(Stack, list(values))
    properties = {name: _written(value, hints[name]) for name, value in values.items() if value != math.inf}
    found: StackSummary = {"name": name_of(stack), "measured": measured, "properties": properties}
    if calibration is not None:
        found["origin"] = calibrated.describe_calibration(calibration)
        if calibration["used"]:
            found["name"] = calibration["stack"] or "ideal"
    return found


def name_on(network: Network) -> str:
    """Return the name of the stack of a network, and the file of the calibrated cluster whose curves it has."""
    if network.software is None:
        return name_of(network.stack)
    from simnet.calibration import CalibratedSoftware

    assert isinstance(network.software, CalibratedSoftware)
    return f"{network.software.model.stack or 'ideal'} of {network.software.file}"


def distinct_properties(stack: StackSummary) -> str:
    """Return the properties in which a stack differs from that of closed forms, `ideal`.

    Examples
    --------
    >>> distinct_properties(stack_summary(Stack("taken", rounds=2)))
    'send_completion taken, rounds 2'
    """
    plain = stack_summary(STACKS["ideal"])["properties"]
    # In the order in which they are declared, which files do not keep.
    names = [field.name for field in dataclasses.fields(Stack) if field.name in stack["properties"]]
    given = {name: stack["properties"][name] for name in names if plain.get(name) != stack["properties"][name]}
    return ", ".join(name if value is True else f"{name} {value}" for name, value in given.items())


def describe_stack(stack: StackSummary) -> str:
    """Return a stack in a few words: its name, or else its properties, and where its software was measured.

    Examples
    --------
    >>> describe_stack(stack_summary(STACKS["ideal"])), describe_stack(stack_summary(Stack("taken")))
    ('ideal (has no software)', 'custom, send_completion taken (not measured)')
    """
    custom = f", {distinct_properties(stack)}" if stack["name"] == "custom" else ""
    return f"{stack['name']}{custom} ({stack.get('origin', stack['measured'])})"


def _written(value: Any, hint: object) -> Any:
    notation = next((one for one in get_args(hint) if isinstance(one, Notation)), None)
    return value if notation is None or isinstance(value, str) else notation.write(value)
