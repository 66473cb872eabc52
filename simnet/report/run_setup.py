"""Setting of a run as text and JSON: stack, device, calibrated calls, link sharing, strategy, overlap."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from simnet.base.quantities import TIME, Notation, parameter_hints
from simnet.base.units import NOT_DETERMINED, determined, format_bytes, format_seconds
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.cost_models.evidence.conditions import Evidence
from simnet.network import STACKS, Network, Sharing, Stack
from simnet.network.stack import name_of
from simnet.report.columns import Fields
from simnet.report.wording import listed

if TYPE_CHECKING:
    from simnet.base.arrays import Ranks
    from simnet.cost_models.calibration.software import CalibratedSoftware, CallPrediction
    from simnet.schedule import Schedule
    from simnet.training.job.record import Interruption

UNKNOWN = "nothing is known of it: links alone"
"""Why a call has no interval."""


def software_of(network: Network) -> CalibratedSoftware | None:
    """Return the model of the communication library's CPU times on a calibrated cluster; None for other networks."""
    if network.software is None:
        return None
    from simnet.cost_models.calibration.software import CalibratedSoftware

    assert isinstance(network.software, CalibratedSoftware)
    return network.software


def calibration_summary(network: Network, sent: Mapping[str, Iterable[tuple[Schedule, Ranks]]]) -> Fields | None:
    """Return the entry on calibration for summary.json: cluster file, stack, and accuracy of each kind of call.

    `sent` has the schedules of each exchange with the hosts of their ranks. None if the network is not calibrated.
    """
    if (software := software_of(network)) is None:
        return None
    known = {"file": software.file, "stack": software.model.stack, "used": True, "coverage": software.model.coverage}
    calls = {label: [call for one in each for call in software.known(*one)] for label, each in sent.items()}
    return known | {"calls": call_summaries(calls)}


def call_summaries(exchanges: Mapping[str, Sequence[CallPrediction]]) -> list[Fields]:
    """Return a row per kind of call (exchange, collective, algorithm, ranks, nodes): its widest error interval.

    If the data do not determine the interval, its ends are None and the entry `interval` says so.
    """
    kinds: dict[tuple[Any, ...], list[CallPrediction]] = {}
    for label, known in exchanges.items():
        for one in known:
            kinds.setdefault((label, one.operation, one.algorithm, one.ranks, one.nodes), []).append(one)
    return [_call_summary(kind, same) for kind, same in kinds.items()]


def _call_summary(kind: Sequence[Any], same: Sequence[CallPrediction]) -> Fields:
    found = [one.prediction.corrected() for one in same if one.prediction is not None]
    # One that extrapolates tells more than one that does not.
    worst = max(found, key=lambda one: (one.extrapolates, one.high / one.low), default=None)
    low = float(f"{min((one.low / one.seconds for one in found), default=1.0):.4g}")
    high = float(f"{max((one.high / one.seconds for one in found), default=1.0):.4g}")
    known = determined(low, high)
    return {
        **dict(zip(("exchange", "collective", "algorithm", "ranks", "nodes"), kind, strict=True)),
        "smallest_B": float(f"{min(one.nbytes for one in same):.6g}"),
        "largest_B": float(f"{max(one.nbytes for one in same):.6g}"),
        "low": low if known else None,
        "high": high if known else None,
        **({} if known else {"interval": NOT_DETERMINED}),
        "extrapolates": worst is None or worst.extrapolates,
        "why": UNKNOWN if worst is None else worst.why,
    }


class CallErrors(NamedTuple):
    """90 % interval of the time of communication calls: from `low` to `high` times the predicted time."""

    kind: str
    low: float
    high: float


def relative_interval(known: Sequence[CallPrediction]) -> CallErrors | None:
    """Return the prediction interval of the calls' total time, divided by this time; None if a time is unknown."""
    found = [one.prediction for one in known if one.prediction is not None]
    if not found or len(found) < len(known):
        return None
    total = math.fsum(one.seconds for one in found)
    ends = (math.fsum(getattr(one, name) for one in found) / total for name in ("low", "high"))
    return CallErrors(max(found, key=lambda one: one.seconds).kind, *ends)


def calls_evidence(found: Sequence[Mapping[str, Any]]) -> Evidence:
    """Return the evidence for the times of a schedule's calls, which is that of the least certain call.

    Examples
    --------
    >>> from simnet.cost_models.calibration.software import CallPrediction
    >>> calls_evidence(call_summaries({"": [CallPrediction("sendrecv", "", 2, 0, 4e6, None)]})).level
    'assumed'
    """
    beyond = dict.fromkeys(one["why"] for one in found if one["extrapolates"])
    if not found or UNKNOWN in beyond:
        return Evidence("assumed", UNKNOWN if found else "no call of this schedule was calibrated")
    return Evidence("extrapolated", "; ".join(beyond)) if beyond else Evidence("measured", "such calls were measured")


def describe_evidence(evidence: Evidence | None, warnings: Iterable[str]) -> str:
    """Return a run's warnings, and what its times rest on (measured, extrapolated or assumed), as sentences."""
    return " ".join([*(f"Warning: {one}" for one in warnings), *([] if evidence is None else [evidence.line()])])


def call_rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a table row per kind of call, as texts: exchange, call, ranks, sizes, error interval and its source.

    Examples
    --------
    >>> from simnet.cost_models.calibration import Prediction
    >>> from simnet.cost_models.calibration.software import CallPrediction
    >>> predicted = Prediction(0.1, 0.09, 0.12, False, "from the curve itself")
    >>> known = CallPrediction("all_reduce", "ring", 8, 0, 4e6, predicted)
    >>> call_rows(call_summaries({"dense": [known]}))
    [('dense', 'all_reduce ring', '8', '4 MB', '-10 % to +21 %', 'the curve itself')]
    """

    def interval(low: float | None, high: float | None) -> str:
        if low is None or high is None:
            return NOT_DETERMINED
        return f"{100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %"

    return [
        (
            one["exchange"],
            f"{one['collective']} {one['algorithm']}".strip(),
            f"{one['ranks']}" + (f" on {one['nodes']}" if one["nodes"] else ""),
            " to ".join(dict.fromkeys(format_bytes(one[name]) for name in ("smallest_B", "largest_B"))),
            interval(one["low"], one["high"]),
            ("extrapolates: " if one["extrapolates"] else "") + one["why"].removeprefix("from "),
        )
        for one in found
    ]


def describe_calibration(calibration: Mapping[str, Any]) -> str:
    """Return a phrase that names the file of a cluster's fitted cost model and says if software costs are from it.

    Examples
    --------
    >>> describe_calibration({"file": "c.yaml", "stack": "gloo", "used": True})
    'of c.yaml, whose curves have its software'
    >>> describe_calibration({"file": "c.yaml", "stack": "gloo", "used": False})
    'given, so that the curves of c.yaml, which are of gloo, are not used'
    >>> describe_calibration({"file": "c.yaml", "stack": "", "used": True})
    'c.yaml names no library; its curves have the software'
    """
    file, stack = calibration["file"], calibration["stack"]
    if not calibration["used"]:
        return f"given, so that the curves of {file}{f', which are of {stack},' if stack else ''} are not used"
    if not stack:
        return f"{file} names no library; its curves have the software"
    return f"of {file}, whose curves have its software"


def stack_summary(stack: Stack, calibration: Mapping[str, Any] | None = None) -> Fields:
    """Return the name and properties of a transport stack, and which measurements or calibration they are from.

    Examples
    --------
    >>> found = stack_summary(dataclasses.replace(STACKS["gloo"], before=5e-5))
    >>> found["name"], found["properties"]["send_completion"], found["properties"]["before"]
    ('custom', 'ready', '50 us')
    """
    values = dataclasses.asdict(stack)
    measured = values.pop("measured")
    properties = {name: value for name, value in values.items() if value != math.inf}
    for name, hint in parameter_hints(Stack, list(properties)).items():
        for notation in get_args(hint):
            if isinstance(notation, Notation) and not isinstance(properties[name], str):
                properties[name] = notation.write(properties[name])
    found: Fields = {"name": name_of(stack), "measured": measured, "properties": properties}
    if calibration is not None:
        found["origin"] = describe_calibration(calibration)
        if calibration["used"]:
            found["name"] = calibration["stack"] or "ideal"
    return found


def stack_name(network: Network) -> str:
    """Return the name of a network's transport stack; if it is from a calibration file, followed by the file's name."""
    software = software_of(network)
    return name_of(network.stack) if software is None else f"{software.model.stack or 'ideal'} of {software.file}"


def distinct_properties(stack: Mapping[str, Any]) -> str:
    """Return a text on the properties in which a transport stack differs from the stack `ideal`.

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
    """Return a phrase on a transport stack: name, properties if custom, and origin of its software times.

    Examples
    --------
    >>> describe_stack(stack_summary(STACKS["ideal"])), describe_stack(stack_summary(Stack("taken")))
    ('ideal (has no software)', 'custom, send_completion taken (not measured)')
    """
    custom = f", {distinct_properties(stack)}" if stack["name"] == "custom" else ""
    return f"{stack['name']}{custom} ({stack.get('origin', stack['measured'])})"


def device_summary(device: DeviceProfile, kernels: Iterable[DeviceOp] = ()) -> Fields:
    """Return a device's name and description, and how many of its kernel costs were measured, scaled or estimated.

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
    """Return a phrase on a device: name, hardware, and how many kernel costs are measured or estimated.

    Examples
    --------
    >>> from simnet.cost_models.costs.devices import load_device
    >>> describe_device(device_summary(load_device("v100-torch1.5")))
    'v100-torch1.5 (NVIDIA V100, PyTorch 1.5, ...; of its kernels 9 estimated, 2 measured, 4 scaled)'
    """
    known = ", ".join(f"{count} {how}" for how, count in device["known"].items())
    return f"{device['name']} ({device['what']}; of its kernels {known}){describe_codes(device)}"


def describe_codes(device: Mapping[str, Any]) -> str:
    """Return a phrase on how the costs of a device's encoding kernels are known; empty if no such kernel is used.

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
    """Return the summary entry on how flows share links: congestion control, exponent of round-trip time, and buffer.

    Examples
    --------
    >>> sharing_summary(Sharing(congestion="bbr", buffer=0.02))
    {'law': 'rtt', 'congestion': 'bbr', 'exponent': -0.8, 'measured': True, 'buffer': '20 ms'}
    """
    found: Fields = {"law": sharing.law, "congestion": sharing.congestion, "exponent": sharing.power}
    found["measured"] = sharing.exponent is None
    return found | ({} if sharing.buffer is None else {"buffer": TIME.write(sharing.buffer)})


def describe_sharing(sharing: Mapping[str, Any]) -> str:
    """Return a phrase on how flows share links: congestion control, exponent of round-trip time, and buffer.

    Examples
    --------
    >>> describe_sharing(sharing_summary(Sharing()))
    'by round trips, as cubic, exponent 0.4 (measured), buffer not known'
    """
    source = "measured" if sharing["measured"] else "given by the scenario"
    buffer = f"buffer {sharing['buffer']}" if "buffer" in sharing else "buffer not known"
    return f"by round trips, as {sharing['congestion']}, exponent {sharing['exponent']:g} ({source}), {buffer}"


def describe_barrier(barrier: bool) -> str:
    """Return a sentence that says whether all workers start each iteration together."""
    if barrier:
        return "Workers begin each iteration together (job.barrier: true); processes of PyTorch's DDP do not."
    return "Workers begin an iteration each when done with the one before (job.barrier: false)."


def describe_strategy(name: str, steps: int, deadline_s: float | None = None) -> str:
    """Return a sentence on the training strategy: inner steps per iteration, and the deadline if there is one.

    Examples
    --------
    >>> describe_strategy("diloco", 100)
    'Workers train by diloco: an iteration is 100 inner steps, with the exchanges that end in it.'
    """
    many = "an inner step" if steps == 1 else f"{steps:,} inner steps"
    waits = "" if deadline_s is None else f" They wait {format_seconds(deadline_s)} after the first, not for all."
    return f"Workers train by {name}: an iteration is {many}, with the exchanges that end in it.{waits}"


def describe_overlap(overlap: Mapping[str, Any]) -> str:
    """Return a sentence that says which exchanges overlap the backward pass.

    Parameters
    ----------
    overlap : mapping
        `during` and `after`: exchanges that go during the backward pass and after it; `undeclared`: those of the latter
        that say nothing about overlap; `default`: whether the scenario leaves that open.

    Examples
    --------
    >>> print(describe_overlap({"during": ["AG"], "after": ["SparDL"], "default": True}))
    Overlap: SparDL timed without it, as its code does; AG during the backward pass, in DDP's buckets.
    >>> print(describe_overlap({"during": ["AG"], "after": ["mine"], "undeclared": ["mine"], "default": True}))
    Overlap: mine declares none (trait overlaps=True; or job.overlap=none for all); AG during the backward pass, in \
DDP's buckets.
    """
    during, undeclared = overlap["during"], overlap.get("undeclared", ())
    after = [one for one in overlap["after"] if one not in undeclared]
    if not during:
        return "Overlap: none; exchanges begin after the backward pass."
    whose = "DDP's buckets" if overlap["default"] else "the buckets of job.overlap"
    code = "its code does" if len(after) == 1 else "their code does"
    without = f"{listed(after)} timed without it, as {code}; " if after else ""
    if undeclared:
        declare = "declares" if len(undeclared) == 1 else "declare"
        without = f"{listed(undeclared)} {declare} none (trait overlaps=True; or job.overlap=none for all); {without}"
    return f"Overlap: {without}{listed(during)} during the backward pass, in {whose}."


def mixed_overlap(overlap: Mapping[str, Any] | None) -> str:
    """Return a text on overlap if only some exchanges overlap the backward pass; otherwise an empty text."""
    return describe_overlap(overlap) if overlap and overlap["during"] and overlap["after"] else ""


MAX_WAITING = 20
"""Maximum number of waiting workers that the summary lists per stop; the count includes all."""


def stop_summary(stop: Interruption) -> Fields:
    """Return the summary entry on an interruption by failures; `resumed_s` is None if the job ended."""
    return {
        "job": stop.job,
        "iteration": stop.iteration,
        "stopped_s": stop.stopped,
        "resumed_s": stop.resumed,
        "workers_left": stop.left,
        "died": [{"worker": worker, "at_s": at} for worker, at in stop.failed.items()],
        "waited_count": len(stop.blocked),
        "waited": [
            {"worker": one.worker, "round": one.round, "phase": one.phase, "waits_for": list(one.workers)[:MAX_WAITING]}
            for one in stop.blocked[:MAX_WAITING]
        ],
    }


def describe_stop(policy: str, stop: Mapping[str, Any], main: str) -> str:
    r"""Return sentences on an interruption: which workers failed and when, who waited, and how the job continued.

    Examples
    --------
    >>> stop = {"job": "job", "iteration": 12, "stopped_s": 10.2, "resumed_s": None, "workers_left": 7,
    ...     "died": [{"worker": 3, "at_s": 10.0}], "waited_count": 7,
    ...     "waited": [{"worker": 0, "round": 1, "phase": "gather", "waits_for": [3]}]}
    >>> print(describe_stop("AG", stop, "job").replace(". ", ".\n"))
    AG: worker 3 died at 10 s.
    Iteration 12 stopped at 10.2 s: worker 0 waited in round 1 (gather) for worker 3, and 6 others waited too.
    The job ended there, after 12 complete iterations.
    """
    when: dict[str, list[int]] = {}
    for one in stop["died"]:
        when.setdefault(format_seconds(one["at_s"]), []).append(one["worker"])
    died = " and ".join(f"{_worker_text(workers)} died at {at}" for at, workers in when.items())
    who = policy if stop["job"] == main else f"{stop['job']}, beside {policy}"
    halted = f"Iteration {stop['iteration']} stopped at {format_seconds(stop['stopped_s'])}"
    if stop["waited"]:
        first, others = stop["waited"][0], stop["waited_count"] - 1
        where = f"round {first['round']}" + (f" ({first['phase']})" if first["phase"] else "")
        halted += f": worker {first['worker']} waited in {where} for {_worker_text(first['waits_for'])}"
        halted += f", and {others} other{'s' * (others > 1)} waited too" if others else ""
    done, left = stop["iteration"], stop["workers_left"]
    end = f"The job ended there, after {done} complete iteration{'s' * (done != 1)}."
    if stop["resumed_s"] is not None:
        end = (
            f"The others noticed at {format_seconds(stop['resumed_s'])} and went on as {left} "
            f"worker{'s' * (left != 1)}, without the gradients and residuals of the dead."
        )
    return f"{who}: {died}. {halted}. {end}"


def _worker_text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"worker{'s' * (len(numbers) != 1)} {shown}"


def share_lines(shares: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a line on each job that shares the network: its iterations, their time, and its slowdown."""
    lines = []
    for policy, one in ((policy, one) for policy, jobs in shares.items() for one in jobs):
        times = ["-" if one[name] is None else format_seconds(one[name]) for name in ("mean_iteration_s", "alone_s")]
        slowdown = "-" if one["slowdown"] is None else f"{one['slowdown']:.3g}x"
        done = f"{one['iterations']} of {one['planned']}"
        lines.append(f"Job {', '.join([policy, one['job'], str(one['workers']), done, *times, slowdown])}")
    return lines
