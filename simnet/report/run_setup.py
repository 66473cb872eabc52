"""The setting of a run, for people and programs: stack, device, link sharing, barrier, strategy, overlap."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from simnet.base.quantities import TIME, Notation, parameter_hints
from simnet.base.units import format_seconds
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.network import STACKS, Network, Sharing, Stack
from simnet.network.stack import name_of
from simnet.report.calls import describe_calibration
from simnet.report.columns import Fields
from simnet.report.wording import lead_text, listed


def stack_summary(stack: Stack, calibration: Mapping[str, Any] | None = None) -> Fields:
    """Return the summary entry of a stack: name, measurements, properties, and origin on a calibrated cluster.

    Examples
    --------
    >>> found = stack_summary(dataclasses.replace(STACKS["gloo"], before=5e-5))
    >>> found["name"], found["properties"]["send_completion"], found["properties"]["before"]
    ('custom', 'ready', '50 us')
    """
    values = dataclasses.asdict(stack)
    measured = values.pop("measured")
    hints = parameter_hints(Stack, list(values))
    properties = {name: _value_text(value, hints[name]) for name, value in values.items() if value != math.inf}
    found: Fields = {"name": name_of(stack), "measured": measured, "properties": properties}
    if calibration is not None:
        found["origin"] = describe_calibration(calibration)
        if calibration["used"]:
            found["name"] = calibration["stack"] or "ideal"
    return found


def _value_text(value: Any, hint: object) -> Any:
    notation = next((one for one in get_args(hint) if isinstance(one, Notation)), None)
    return value if notation is None or isinstance(value, str) else notation.write(value)


def stack_name(network: Network) -> str:
    """Return the name of a network's stack; on a calibrated cluster with the cluster file."""
    if network.software is None:
        return name_of(network.stack)
    from simnet.cost_models.calibration.software import CalibratedSoftware

    assert isinstance(network.software, CalibratedSoftware)
    return f"{network.software.model.stack or 'ideal'} of {network.software.file}"


def distinct_properties(stack: Mapping[str, Any]) -> str:
    """Return, as text, the properties in which a stack differs from `ideal`.

    Examples
    --------
    >>> distinct_properties(stack_summary(Stack("taken", rounds=2)))
    'send_completion taken, rounds 2'
    """
    plain, given = stack_summary(STACKS["ideal"])["properties"], stack["properties"]
    # In the order in which they are declared, which files do not keep.
    names = [field.name for field in dataclasses.fields(Stack) if field.name in given]
    distinct = {name: given[name] for name in names if plain.get(name) != given[name]}
    return ", ".join(name if value is True else f"{name} {value}" for name, value in distinct.items())


def describe_stack(stack: Mapping[str, Any]) -> str:
    """Return a phrase on a stack: its name, its properties if custom, and where its software was measured.

    Examples
    --------
    >>> describe_stack(stack_summary(STACKS["ideal"])), describe_stack(stack_summary(Stack("taken")))
    ('ideal (has no software)', 'custom, send_completion taken (not measured)')
    """
    custom = f", {distinct_properties(stack)}" if stack["name"] == "custom" else ""
    return f"{stack['name']}{custom} ({stack.get('origin', stack['measured'])})"


def device_summary(device: DeviceProfile, kernels: Iterable[DeviceOp] = ()) -> Fields:
    """Return the summary entry of a device: name, kernels counted by evidence, and evidence of encoding kernels.

    Examples
    --------
    >>> from simnet.cost_models.costs.devices import load_device
    >>> device_summary(load_device("ideal"))
    {'name': 'ideal', 'what': 'no device; selecting costs nothing', 'known': {'measured': 1}}
    """
    own = device.methods
    known = Counter(method.known for method in own.values())
    found: Fields = {"name": device.name, "what": device.device, "known": dict(sorted(known.items()))}
    codes = {
        one.method: own[one.method].known
        if one.method in own
        else f"as {' and '.join(instead.method for instead in one.instead)}"
        for one in kernels
        if one.instead
    }
    return found | ({"codes": codes} if codes else {})


def describe_device(device: Mapping[str, Any]) -> str:
    """Return a phrase on a device: name, hardware, and number of kernels by evidence.

    Examples
    --------
    >>> from simnet.cost_models.costs.devices import load_device
    >>> describe_device(device_summary(load_device("v100-torch1.5")))
    'v100-torch1.5 (NVIDIA V100, PyTorch 1.5, ...; of its kernels 6 estimated, 2 measured, 4 scaled)'
    """
    known = ", ".join(f"{count} {how}" for how, count in device["known"].items())
    return f"{device['name']} ({device['what']}; of its kernels {known}){describe_codes(device)}"


def describe_codes(device: Mapping[str, Any]) -> str:
    """Return the phrase on the evidence of encoding kernels that follows a device's name; '' without any.

    Examples
    --------
    >>> from simnet.cost_models.costs.devices import load_device
    >>> delta = DeviceOp("encode_delta", 9, instead=(DeviceOp("norm", 9), DeviceOp("cast", 9)))
    >>> describe_codes(device_summary(load_device("cpu"), [delta]))
    '; codes: encode_delta as norm and cast'
    """
    codes = ", ".join(f"{name} {how}" for name, how in device.get("codes", {}).items())
    return f"; codes: {codes}" if codes else ""


def sharing_summary(sharing: Sharing) -> Fields:
    """Return the summary entry of a link-sharing law: congestion control, exponent and buffer.

    Examples
    --------
    >>> sharing_summary(Sharing(congestion="bbr", buffer=0.02))
    {'law': 'rtt', 'congestion': 'bbr', 'exponent': -0.8, 'measured': True, 'buffer': '20 ms'}
    """
    found: Fields = {"law": sharing.law, "congestion": sharing.congestion, "exponent": sharing.power}
    found["measured"] = sharing.exponent is None
    return found | ({} if sharing.buffer is None else {"buffer": TIME.write(sharing.buffer)})


def describe_sharing(sharing: Mapping[str, Any]) -> str:
    """Return a phrase on how flows share links: congestion control, exponent and buffer.

    Examples
    --------
    >>> describe_sharing(sharing_summary(Sharing()))
    'by round trips, as cubic, exponent 0.4 (measured), buffer not known'
    """
    source = "measured" if sharing["measured"] else "given by the scenario"
    buffer = f"buffer {sharing['buffer']}" if "buffer" in sharing else "buffer not known"
    return f"by round trips, as {sharing['congestion']}, exponent {sharing['exponent']:g} ({source}), {buffer}"


def describe_barrier(barrier: bool) -> str:
    """Return a sentence that says whether workers start each iteration together."""
    if barrier:
        return "Workers begin each iteration together (job.barrier: true); processes of PyTorch's DDP do not."
    return "Workers begin an iteration each when done with the one before (job.barrier: false)."


def describe_strategy(name: str, steps: int, deadline_s: float | None = None) -> str:
    """Return a sentence on the training strategy: inner steps per iteration, and its deadline if any.

    Examples
    --------
    >>> describe_strategy("diloco", 100)
    'Workers train by diloco: an iteration is 100 inner steps, with the exchanges that end in it.'
    """
    many = "an inner step" if steps == 1 else f"{steps:,} inner steps"
    waits = "" if deadline_s is None else f" They wait {format_seconds(deadline_s)} after the first, not for all."
    return f"Workers train by {name}: an iteration is {many}, with the exchanges that end in it.{waits}"


def describe_overlap(overlap: Mapping[str, Any]) -> str:
    """Return sentences on the exchanges that overlap the backward pass, and their effect on the first place.

    Parameters
    ----------
    overlap : mapping
        `during` and `after`: exchanges that go during the backward pass and after it; `default`: whether the scenario
        leaves that open; `first` and `otherwise`: which is first in a sample of iterations, and under the other
        assumption, None if there is no sample or it is `undecided`; `lead`: by which factor, None if it is the same.

    Examples
    --------
    >>> print(describe_overlap({"during": ["AG"], "after": ["SparDL"], "default": True, "first": "AG",
    ...     "otherwise": "SparDL", "lead": 1.25, "undecided": False}))  # doctest: +NORMALIZE_WHITESPACE
    Overlap: SparDL timed without it, as its code does; AG during the backward pass, in DDP's buckets. With none
    overlapped SparDL would be fastest, 25 % before AG.
    """
    during, after, first = overlap["during"], overlap["after"], overlap["first"]
    what, other = "none; exchanges begin after the backward pass", "In DDP's buckets during it"
    if during:
        whose = "DDP's buckets" if overlap["default"] else "the buckets of job.overlap"
        code = "its code does" if len(after) == 1 else "their code does"
        what = f"{listed(after)} timed without it, as {code}; " if after else ""
        what += f"{listed(during)} during the backward pass, in {whose}"
        other = "With none overlapped"
    said = f"Overlap: {what}."
    if overlap["undecided"]:
        where = f"{other[0].lower()}{other[1:]}"
        return f"{said} A sample does not tell whether the first place would be the same {where}."
    if first is None:
        return said
    if overlap["lead"] is None:
        return f"{said} {other} the first place would be the same."
    return f"{said} {other} {overlap['otherwise']} would be fastest, {lead_text(overlap['lead'])} before {first}."


def mixed_overlap(overlap: Mapping[str, Any] | None) -> str:
    """Return `describe_overlap` if some exchanges overlap the backward pass and others do not; else ""."""
    return describe_overlap(overlap) if overlap and overlap["during"] and overlap["after"] else ""
