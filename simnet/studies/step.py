"""What a training step of a replicated or sharded model calls, how long it takes on a network, and what memory."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from simnet.base import units as quantities
from simnet.base.arrays import PERCENTS, percentiles
from simnet.base.errors import InputError, nearest
from simnet.costs.models import ModelProfile
from simnet.costs.models import model as profile_of
from simnet.network.stack import name_of
from simnet.parallel import (
    CollectiveCall,
    Limits,
    SDP4Bit,
    StepGraph,
    StepSeries,
    StepTiming,
    ZeroPlusPlus,
    ddp,
    fsdp2,
    time_steps,
    units,
    zero,
)
from simnet.studies import options
from simnet.studies.timing import Place

SHARDINGS: Mapping[str, Callable[..., StepGraph]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "zero1": zero,
    "zero2": zero,
    "zero3": zero,
}
"""What a step is made by."""

GROUPS: Mapping[str, Mapping[str, type[Limits | ZeroPlusPlus | SDP4Bit]]] = {
    "fsdp2": {"plus": ZeroPlusPlus},
    "zero1": {"sdp4bit": SDP4Bit},
    "zero2": {"sdp4bit": SDP4Bit},
    "zero3": {"limits": Limits, "plus": ZeroPlusPlus},
}
"""Their arguments that are options themselves."""

_GROUPED = {name for groups in GROUPS.values() for name in groups}

# An iteration from which on all are alike.
_LATER = 3


@dataclass(frozen=True)
class TimedSteps:
    """Steps on a network, and the tables that tell of them.

    Parameters
    ----------
    series : StepSeries
        The steps.
    stack : str
        Name of the transport stack.
    """

    series: StepSeries
    stack: str

    @property
    def timing(self) -> StepTiming:
        """When everything began and ended in the first step."""
        return self.series.first

    def figures(self) -> dict[str, object]:
        """Return what ``simnet step --json`` prints of times, and of each call."""
        timing = self.timing
        return {
            "workers": timing.graph.workers,
            "step_s": timing.duration,
            "compute_s": float(timing.computing.max()),
            "stack": self.stack,
            "exposed_s": float(timing.exposed.max()),
            "steps": {
                name: {
                    "each_s": values.tolist(),
                    **{f"p{percent}_s": value for percent, value in zip(PERCENTS, percentiles(values), strict=True)},
                }
                for name, values in (("step", self.series.durations), ("exposed", self.series.exposed))
            },
            "calls": [
                {**call._asdict(), "in_bytes": call.in_bytes, "out_bytes": call.out_bytes}
                | {"begin_s": begin, "end_s": end, "exposed_s": waited}
                for call, begin, end, waited in self._calls()
            ],
        }

    def takes(self) -> str:
        """Return how long a step takes, as the end of a sentence."""
        which = "a" if len(self.series.durations) == 1 else "the first"
        exposed, seconds = float(self.timing.exposed.max()), quantities.format_seconds
        share = 100 * exposed / self.timing.duration if self.timing.duration else 0.0
        return (
            f"{which} step takes {seconds(self.timing.duration)}, of which workers wait for {seconds(exposed)} "
            f"({share:.3g} %)."
        )

    def headings(self) -> list[str]:
        """Return the headings of `rows`."""
        return ["phase", "call", "unit", "ranks", "in", "out", "begins", "takes", "exposed"]

    def rows(self) -> list[list[str]]:
        """Return a row of text for each collective."""
        several = len({call.microbatch for call, *_ in self._calls()} - {None}) > 1
        return [
            [
                call.phase if not several or call.microbatch is None else f"{call.phase} {call.microbatch}",
                f"{call.operation} {call.dtype}",
                call.unit,
                f"{call.ranks:,}",
                quantities.format_bytes(call.in_bytes),
                quantities.format_bytes(call.out_bytes),
                quantities.format_seconds(begin),
                quantities.format_seconds(end - begin),
                quantities.format_seconds(waited) if waited > 1e-12 else "",
            ]
            for call, begin, end, waited in self._calls()
        ]

    def spread(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows of a table of how the times of several steps spread."""
        headings = ["of each step", *(f"p{percent}" for percent in PERCENTS), "least", "most"]
        rows = [
            [
                name,
                *map(quantities.format_seconds, (*percentiles(values), float(values.min()), float(values.max()))),
            ]
            for name, values in (("whole", self.series.durations), ("exposed", self.series.exposed))
        ]
        return headings, rows

    def _calls(self) -> list[tuple[CollectiveCall, float, float, float]]:
        """Return each collective, when it first begins and last ends, and the most that a worker waits for it [s]."""
        timing = self.timing
        waits, does = timing.waits().max(axis=1), timing.graph.does()
        return [
            (
                node.does,
                float(timing.begun[number, does[number]].min()),
                float(timing.ended[number].max()),
                float(waits[number]),
            )
            for number, node in enumerate(timing.graph.nodes)
            if isinstance(node.does, CollectiveCall)
        ]


@dataclass(frozen=True)
class Step(TimedSteps):
    """Training steps of a model.

    Parameters
    ----------
    series, stack
        As of `TimedSteps`.
    model, sharding : str
        What is trained, and how it is shared.
    parameters : int
        Entries of the model.
    compute : float
        What a microbatch is taken to compute, forward and backward [s].
    backward : float
        Share of the backward pass in it.
    source : str
        Where both come from.
    """

    model: str
    sharding: str
    parameters: int
    compute: float
    backward: float
    source: str

    def figures(self) -> dict[str, object]:
        """Return what ``simnet step --json`` prints."""
        own = {
            "model": self.model,
            "sharding": self.sharding,
            "replicas": self.timing.graph.replicas,
            "parameters": self.parameters,
            "microbatch_s": self.compute,
            "backward_fraction": self.backward,
            "source": self.source,
            "memory_B": self.timing.memory()._asdict(),
        }
        return own | super().figures()

    def sentences(self) -> list[str]:
        """Return how long the step takes, and what memory a worker needs."""
        graph, memory = self.timing.graph, self.timing.memory()
        size, seconds = quantities.format_bytes, quantities.format_seconds
        codes = "quantising takes no time; " if any(call.dtype == "int8" for call in graph.calls) else ""
        between = f"{graph.workers:,} workers" + (f" in {graph.replicas:,} replicas" if graph.replicas > 1 else "")
        return [
            f"{self.model}, {self.parameters:,} values, {self.sharding} between {between}: {self.takes()}",
            f"A worker needs {size(memory.peak)} at most, activations apart: parameters {size(memory.parameters)}, "
            f"gradients {size(memory.gradients)}, optimiser {size(memory.optimizer)}, and for a while gathered "
            f"parameters {size(memory.gathered)}, gradients to be reduced {size(memory.reduced)}.",
            f"Assumed: a microbatch computes for {seconds(self.compute)}, {100 * self.backward:.3g} % of it backward, "
            f"split between units by their entries ({self.source}); {codes}messages go by the stack {self.stack}. "
            "How far such steps are off was not measured.",
        ]


def graph_of(profile: ModelProfile, sharding: str, workers: int, given: Sequence[str] = ()) -> StepGraph:
    """Return the step of a model, as options say it.

    Parameters
    ----------
    profile : ModelProfile
        What is trained.
    sharding : str
        One of `SHARDINGS`.
    workers : int
        Workers P, >= 1.
    given : sequence of str
        Options of `simnet.parallel`, as ``replicas=2``. The iteration is one from which on all are alike.

    Raises
    ------
    InputError
        If there is no such way, or option, or a value is not allowed.

    Examples
    --------
    >>> from simnet.costs.models import model
    >>> len(graph_of(model("gpt2"), "fsdp2", 8, ["reshard_after_forward=false"]).calls)
    26
    """
    if sharding not in SHARDINGS:
        raise InputError(f"there is no {sharding!r}: {nearest(sharding, SHARDINGS)}", file="--sharding")
    build = SHARDINGS[sharding]
    known = {
        name: one.default
        for name, one in inspect.signature(build).parameters.items()
        if one.default is not one.empty and name not in _GROUPED
    }
    groups = GROUPS.get(sharding, {})
    limits = {one.name: one.default for group in groups.values() for one in fields(group)}
    chosen: dict[str, object] = {"iteration": _LATER}
    for name, text in options.fields(given, "--option").items():
        if name not in {**known, **limits}:
            raise InputError(
                f"{sharding} has no option {name!r}: {nearest(name, {**known, **limits})}", file="--option"
            )
        chosen[name] = _value(text, name)
    try:
        for group, options_of in groups.items():
            own = {one.name: chosen.pop(one.name) for one in fields(options_of) if one.name in chosen}
            if own:
                chosen[group] = options_of(**own)  # type: ignore[arg-type]
        if build is zero:
            return zero(profile.layers, workers, stage=int(sharding[-1]), **chosen)  # type: ignore[arg-type]
        what = units(profile.layers, behind=profile.tied) if build is fsdp2 else profile.layers
        return build(what, workers, **chosen)
    except ValueError as error:
        raise InputError(str(error), file="--option") from None


def timed(
    model: str,
    sharding: str,
    workers: int,
    place: Callable[[], Place],
    *,
    given: Sequence[str] = (),
    compute: str | None = None,
    backward: str | None = None,
    algorithms: Sequence[str] = (),
    steps: int = 1,
) -> Step:
    """Return training steps on a network, as options say it.

    Parameters
    ----------
    model : str
        A profile of `simnet.costs.models`.
    sharding, workers, given
        As of `graph_of`.
    place : callable
        Returns the network; asked when the step itself is right.
    compute : str, optional
        Time of a microbatch, forward and backward, with its unit; default: the profile's.
    backward : str, optional
        Share of the backward pass in it; default: the profile's.
    algorithms : sequence of str
        As ``all_reduce=tree``; as of `simnet.parallel.time_step`.
    steps : int
        How many steps, one after another, >= 1.

    Raises
    ------
    InputError
        If a value is not allowed, or there are fewer hosts than workers.
    """
    try:
        profile = profile_of(model)
    except ValueError as error:
        raise InputError(str(error), file="--model") from None
    whole = options.quantity(compute, "--compute", quantities.seconds)
    source = "time given" if whole is not None else f"time: {profile.source}"
    source += "; share given" if backward is not None else "; share: that of the model's profile"
    whole = profile.compute if whole is None else whole
    share = profile.backward_fraction if backward is None else options.density(backward, "--backward")
    graph = graph_of(profile, sharding, workers, given)
    found = place()
    if len(found.placement) < workers:
        raise InputError(f"the network has places for {len(found.placement):,} workers only", file="--workers")
    try:
        series = time_steps(
            graph,
            found.network,
            steps,
            forward=(1 - share) * whole,
            backward=share * whole,
            algorithms=options.fields(algorithms, "--algorithm"),
            placement=found.placement[:workers],
        )
    except ValueError as error:
        raise InputError(str(error), file="--algorithm") from None
    stack = name_of(found.network.stack)
    return Step(series, stack, profile.name, sharding, profile.parameters, whole, share, source)


def _value(text: str, name: str) -> object:
    """Return the value of an option as Python has it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"\d{0,15}\.\d{1,15}", text):
        return float(text)
    return options.words(text) if name in ("ready", "reshard_after_forward") else text
