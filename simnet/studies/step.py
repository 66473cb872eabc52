"""A training step of a replicated or sharded model, or of traces: its calls, its time on a network, and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simnet.base import units as quantities
from simnet.base.arrays import PERCENTS, percentiles
from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.costs.computing import PassTime, SampleCount, batch_samples, pass_time
from simnet.cost_models.costs.devices import DeviceProfile, load_device
from simnet.cost_models.costs.models import ModelProfile
from simnet.cost_models.evidence.conditions import NEVER_COMPARED
from simnet.interchange.kinds import trace_prefix
from simnet.network.stack import name_of
from simnet.report.columns import Fields
from simnet.report.cost_summary import throughput, throughput_sentences
from simnet.scenario.computing import default_device, stack_doubt
from simnet.studies import options
from simnet.studies.timing import Place
from simnet.training.parallel import PlacedStep, plan_step, read_traced_step, repeat_step
from simnet.training.parallel.graph import CollectiveCall, StepTiming, describe_slowdown
from simnet.training.parallel.placing import StepSeries
from simnet.training.parallel.plan import SHARDINGS, PlannedStep

# Options that are lists of names.
_LISTS = ("ready", "reshard_after_forward", "expert_blocks", "expert_tensors")


@dataclass(frozen=True)
class TimedSteps:
    """Steps on a network, and their tables.

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
            "most_compute_s": float(timing.computing.max()),
            "slowed_s": float(timing.slowed.max()),
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
        slowed = float(self.timing.slowed.max())
        beside = f", and compute {seconds(slowed)} longer beside collectives" if slowed > 0 else ""
        return (
            f"{which} step takes {seconds(self.timing.duration)}, of which workers wait for {seconds(exposed)} "
            f"({share:.3g} %){beside}."
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
    slowdown : float
        How many times as long computing takes beside collectives.
    source : str
        Where both come from.
    known : Computing, optional
        How long a microbatch computes on the device, where nobody gave that.
    samples : Samples, optional
        What all workers go through in a step.
    limit : float, optional
        What a worker's device holds [byte].
    split : str
        Between what a pass is split, and how.
    divided : bool
        Whether workers share the model in stages or tensors, so that each computes a part.
    doubt : str, optional
        What of device and stack does not belong together.
    """

    model: str
    sharding: str
    parameters: int
    compute: float
    backward: float
    slowdown: float
    source: str
    known: PassTime | None = None
    samples: SampleCount | None = None
    limit: float | None = None
    split: str = "between units by their entries"
    divided: bool = False
    doubt: str | None = None

    def figures(self) -> dict[str, object]:
        """Return what ``simnet step --json`` prints."""
        own = {
            "model": self.model,
            "sharding": self.sharding,
            "replicas": self.timing.graph.replicas,
            "parameters": self.parameters,
            "microbatch_s": self.compute,
            "backward_fraction": self.backward,
            "compute_slowdown": self.slowdown,
            "source": self.source,
            "compute_time": None if self.known is None else self.known.figures(),
            **(self.throughput() or {}),
            **({} if self.doubt is None else {"warnings": [self.doubt]}),
            "memory": {f"{name}_B": size for name, size in self.timing.memory()._asdict().items()},
            **NEVER_COMPARED.figures(),
        }
        if self.limit is not None:
            own |= {"memory_limit_B": self.limit, "fits": self.timing.memory().peak <= self.limit}
        return own | super().figures()

    def throughput(self) -> Fields | None:
        """Return what all workers go through in a second, of the mean step; None if that is not known."""
        return None if self.samples is None else throughput(self.samples, float(self.series.durations.mean()))

    def sentences(self) -> list[str]:
        """Return how long the step takes, and what memory a worker needs."""
        graph, memory = self.timing.graph, self.timing.memory()
        size, seconds = quantities.format_bytes, quantities.format_seconds
        computes = seconds(self.compute)
        if self.known is not None:
            computes = quantities.format_within(self.compute, self.known.low, self.known.high)
        fits = ""
        if self.limit is not None:
            fits = f" It {'fits' if memory.peak <= self.limit else 'does not fit'} the {size(self.limit)} of a device."
        parts = ", each stage by its entries, and of tensors each worker as much," if self.divided else ","
        codes = "quantising takes no time; " if any(call.dtype == "int8" for call in graph.calls) else ""
        between = f"{graph.workers:,} workers" + (f" in {graph.replicas:,} replicas" if graph.replicas > 1 else "")
        return [
            f"{self.model}, {self.parameters:,} values, {self.sharding} between {between}: {self.takes()}",
            *throughput_sentences({self.sharding: self.throughput()}),
            *([] if self.doubt is None else [f"Warning: {self.doubt}"]),
            f"A worker needs {size(memory.peak)} at most, activations apart: parameters {size(memory.parameters)}, "
            f"gradients {size(memory.gradients)}, optimiser {size(memory.optimizer)}, and for a while gathered "
            f"parameters {size(memory.gathered)}, gradients to be reduced {size(memory.reduced)}.{fits}",
            NEVER_COMPARED.sentence(),
            f"Assumed: a microbatch computes for {computes}{parts} {100 * self.backward:.3g} % of it "
            f"backward, split {self.split} ({self.source}); computing takes "
            f"{describe_slowdown(self.slowdown)}; {codes}messages go by the stack "
            f"{self.stack}.",
        ]


def planned_of(profile: ModelProfile, sharding: str, workers: int, given: Sequence[str] = ()) -> PlannedStep:
    """Return the step of a model, as options say it.

    Examples
    --------
    >>> from simnet.cost_models.costs.models import load_model
    >>> len(planned_of(load_model("gpt2"), "fsdp2", 8, ["reshard_after_forward=false"]).graph.calls)
    26
    """
    if sharding not in SHARDINGS:
        raise InputError(f"there is no {sharding!r}: {suggest_names(sharding, SHARDINGS)}", file="--sharding")
    values = {name: _option_value(text, name) for name, text in options.fields(given, "--option").items()}
    try:
        return plan_step(profile, sharding, workers, values)
    except ValueError as error:
        raise InputError(str(error), file="--option") from None


def timed(
    model: str,
    sharding: str,
    workers: int,
    place: Callable[[], Place],
    *,
    given: Sequence[str] = (),
    device: str | None = None,
    compute: str | None = None,
    batch: int | None = None,
    backward: str | None = None,
    slowdown: float = 1.0,
    algorithms: Sequence[str] = (),
    steps: int = 1,
    memory: str | None = None,
) -> Step:
    """Return training steps on a network, as options say it."""
    profile = options.model(model)
    whole = options.quantity(compute, "--compute", quantities.seconds)
    limit = options.quantity(memory, "--memory", quantities.size)
    options_given = options.fields(given, "--option")
    size: float | None = batch
    if "tokens" in options_given and profile.tokens and profile.sample == "sequence":
        if batch is not None:
            raise InputError("is either --batch or --tokens", file="simnet step")
        tokens = _option_value(options_given["tokens"], "tokens")
        size = tokens / profile.tokens if isinstance(tokens, int) and tokens > 0 else None
    share = profile.backward_fraction if backward is None else options.density(backward, "--backward")
    step = planned_of(profile, sharding, workers, given)
    found = place()
    if len(found.placement) < workers:
        raise InputError(f"the network has places for {len(found.placement):,} workers only", file="--workers")
    stack = name_of(found.network.stack)
    chosen_device = _step_device(device, stack)
    known = None if whole is not None else _known_compute(profile, chosen_device, size)
    source = "time given" if known is None else f"time: {known.source}"
    source += "; share given" if backward is not None else "; share: that of the model's profile"
    whole = known.seconds if known is not None else whole or 0.0
    try:
        chosen = options.fields(algorithms, "--algorithm")
        placed = PlacedStep(step.graph, found.network, chosen, found.placement[:workers], slowdown)
        series = repeat_step(placed, replace(step, backward=share).seconds(whole), steps)
    except ValueError as error:
        raise InputError(str(error), file="--algorithm") from None
    divided = bool((step.shares < 1).any())
    size = size or (known.batch if known is not None else 0)
    ways = {name: int(options_given.get(name, "1")) for name in ("tensor_parallel", "pipeline", "microbatches")}
    count = size * ways["microbatches"] * workers / (ways["tensor_parallel"] * ways["pipeline"])
    return Step(
        series,
        stack,
        profile.name,
        sharding,
        profile.parameters,
        whole,
        share,
        slowdown,
        source,
        known,
        batch_samples(profile, count) if size else None,
        limit,
        Step.split if step.work is None else "alike between tensors",
        divided,
        stack_doubt(chosen_device, stack),
    )


def _step_device(name: str | None, stack: str) -> DeviceProfile:
    """Return the device of this name, or that which goes with a stack."""
    try:
        return load_device(name or default_device(stack))
    except ValueError as error:
        raise InputError(str(error), file="--device") from None


def _known_compute(profile: ModelProfile, device: DeviceProfile, batch: float | None) -> PassTime:
    """Return how long a microbatch of a model computes on a device."""
    try:
        return pass_time(profile, device, batch)
    except ValueError as error:
        raise InputError(f"is missing: {error}", file="--compute") from None


def _option_value(text: str, name: str) -> object:
    """Return the value of an option as Python has it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"\d{0,15}\.\d{1,15}", text):
        return float(text)
    return options.words(text) if name in _LISTS else text


@dataclass(frozen=True)
class TracedSteps(TimedSteps):
    """Training steps of a trace.

    Parameters
    ----------
    series, stack
        As of `TimedSteps`.
    trace : str
        Where the traces are.
    """

    trace: str

    def figures(self) -> dict[str, object]:
        """Return what ``simnet step --json`` prints."""
        return {"trace": self.trace} | super().figures()

    def sentences(self) -> list[str]:
        """Return the time of the step, and the assumptions."""
        return [
            f"{self.trace}, {self.timing.graph.workers:,} ranks: {self.takes()}",
            f"Assumed: what is no collective and no message takes what the traces say, on each rank one after another; "
            f"messages go by the stack {self.stack}. How far such steps are off was not measured.",
        ]


def timed_trace(
    trace: str, place: Callable[[int], Place], *, algorithms: Sequence[str] = (), steps: int = 1
) -> TracedSteps:
    """Time the step of traces on a network."""
    step = read_traced_step(trace_prefix(trace))
    ranks = step.graph.workers
    found = place(ranks)
    if len(found.placement) < ranks:
        raise InputError(f"has {ranks:,} ranks, the network places for {len(found.placement):,}", file=trace)
    try:
        chosen = options.fields(algorithms, "--algorithm")
        placed = PlacedStep(step.graph, found.network, chosen, found.placement[:ranks])
        series = repeat_step(placed, step.seconds(1.0), steps)
    except ValueError as error:
        raise InputError(str(error), file="--algorithm") from None
    return TracedSteps(series, name_of(found.network.stack), trace)
