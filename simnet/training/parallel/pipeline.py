"""Pipeline parallelism: stages run data-parallel steps, and exchange activations and their gradients.

Tied weights: Megatron-LM, commit 00c2c0a, ``finalize_model_grads.py``; DeepSpeed, ``ReduceTiedGrads``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from simnet.training.parallel.graph import CollectiveCall, ComputePart, Groups, Phase, StepBuffer, StepGraph, StepNode

Order: TypeAlias = Literal["1f1b", "gpipe"]

TIED = "tied"
"""Name of the process groups that share tied input and output weights."""

# A pass of a microbatch; None of what is behind all of them.
_Pass: TypeAlias = tuple[Phase, int] | None


class TiedWeights(NamedTuple):
    """Weights that the first and last pipeline stage share; if `first`, they are reduced before all other gradients."""

    unit: str
    elements: int
    dtype: str
    first: bool


def pass_order(stage: int, stages: int, microbatches: int, order: Order) -> list[tuple[Phase, int]]:
    """Return the passes of a pipeline stage in the order in which the stage computes them; stages count from 0.

    ``gpipe`` runs all forward passes first, ``1f1b`` only as many as later stages need, then alternates.

    Examples
    --------
    >>> [f"{phase[0]}{number}" for phase, number in pass_order(0, 2, 3, "1f1b")]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = microbatches if order == "gpipe" else min(stages - 1 - stage, microbatches)
    found: list[tuple[Phase, int]] = [("forward", number) for number in range(ahead)]
    for number in range(microbatches):
        if ahead + number < microbatches:
            found.append(("forward", ahead + number))
        found.append(("backward", number))
    return found


def pipeline(
    stages: Sequence[StepGraph],
    *,
    tokens: int,
    width: int,
    dtype: str = "bfloat16",
    order: Order = "1f1b",
    tied: TiedWeights | None = None,
) -> StepGraph:
    """Return the step of a pipeline-parallel model, whose stages exchange activations and their gradients.

    Passes that wait for each other are in the order of the stage, as of `fsdp2` with ``passes=pass_order(...)``. For
    each of the `tokens` (b s) of a microbatch a worker sends `width` (h) entries of `dtype`. The `tied` weights are
    all-reduced after the last microbatch.
    """
    each = stages[0].workers
    segments = [_pass_nodes(stage) for stage in stages]
    microbatches = {1 + max(one[1] for one in found if one is not None) for found in segments}
    if len(microbatches) > 1 or any(stage.workers != each for stage in stages):
        raise ValueError("stages must have the same number of workers and of microbatches")
    last = max(microbatches) - 1
    if tied is not None and tied.first:
        for place in (0, -1):
            _put_off(stages[place], segments[place], last)
    made = _StageMerger(stages, each, tokens * width, dtype, tied, last)
    waiting: list[list[_Pass]] = [
        [*pass_order(place, len(stages), max(microbatches), order), None] for place in range(len(stages))
    ]
    while any(waiting):
        for place, passes in enumerate(waiting):
            while passes and made.ready(place, passes[0]):
                one = passes.pop(0)
                made.add(place, one, segments[place].get(one, ()))
    return made.built()


def _pass_nodes(stage: StepGraph) -> dict[_Pass, list[int]]:
    """Return the node numbers of each pass; the key None has nodes outside forward and backward passes."""
    found: dict[_Pass, list[int]] = defaultdict(list)
    for number, node in enumerate(stage.nodes):
        does = node.does
        one: _Pass = None
        if does.microbatch is not None and does.phase in ("forward", "backward"):
            one = does.phase, does.microbatch
        found[one].append(number)
    return found


def _put_off(stage: StepGraph, segments: dict[_Pass, list[int]], last: int) -> None:
    """Move the collectives after the last compute of a stage's last backward pass to the end, after all passes."""
    of = segments["backward", last]
    computes = max(place for place, number in enumerate(of) if isinstance(stage.nodes[number].does, ComputePart))
    segments["backward", last], put_off = of[: computes + 1], of[computes + 1 :]
    segments[None] = [*put_off, *segments.get(None, ())]


class _StageMerger:
    """Merges the step graphs of all stages into one, pass by pass."""

    def __init__(
        self, stages: Sequence[StepGraph], each: int, entries: int, dtype: str, tied: TiedWeights | None, last: int
    ) -> None:
        self.stages, self.each, self.entries, self.dtype = stages, each, entries, dtype
        self.tied, self.last = tied, last
        # Stages that share weights, what of them has been through all passes, and the call that exchanges the weights.
        self.sharing = () if tied is None else (0, len(stages) - 1)
        self.through: dict[int, list[int]] = {}
        self.exchange: int | None = None
        self.nodes: list[StepNode] = []
        # Process groups with a worker of each of two stages.
        self.joint: dict[str, Groups] = {}
        # What has become of the nodes of each stage.
        self.became: list[dict[int, int]] = [{} for _ in stages]
        # The call that brings a stage what it needs for a pass.
        self.arrives: dict[tuple[int, _Pass], int] = {}

    def ready(self, place: int, one: _Pass) -> bool:
        """Return whether the data that a stage needs for a pass have been sent to the stage."""
        if one is None:
            return place not in self.sharing or self.exchange is not None
        first = place == (0 if one[0] == "forward" else len(self.stages) - 1)
        return first or (place, one) in self.arrives

    def add(self, place: int, one: _Pass, numbers: Sequence[int]) -> None:
        """Add nodes `numbers`, a pass of pipeline stage `place`, and the message to the stage that needs its output."""
        became, waits = self.became[place], self.arrives.get((place, one))
        last = None
        for number in numbers:
            node = self.stages[place].nodes[number]
            if any(other not in became for other in node.after):
                raise ValueError(
                    "in a pipeline a microbatch cannot wait for one that comes later, as it does where each of them "
                    "gathers or reduces; allowed: ddp, zero of stage 1, and fsdp2 with its passes in the stage's order"
                )
            after = {became[other] for other in node.after}
            if one is None and place in self.sharing and self.exchange is not None:
                after.add(self.exchange)
            if isinstance(node.does, ComputePart):
                if waits is not None:
                    after.add(waits)
                waits = None
                last = len(self.nodes)
            became[number] = len(self.nodes)
            workers = range(self.each) if node.workers is None else node.workers
            self.nodes.append(
                StepNode(node.does, node.queue, tuple(sorted(after)), tuple(self.each * place + one for one in workers))
            )
        if one is not None and last is not None:
            self._send(place, one, last)
        if one == ("backward", self.last) and place in self.sharing:
            self.through[place] = [became[number] for number in numbers]
            if len(self.through) == len(self.sharing):
                self._exchange_tied()

    def _exchange_tied(self) -> None:
        assert self.tied is not None
        elements, iteration = (self.tied.elements,) * 2, max(stage.iteration for stage in self.stages)
        call = CollectiveCall(
            "all_reduce", self.tied.unit, TIED, 2, *elements, self.tied.dtype, "backward", iteration, None
        )
        self.exchange = len(self.nodes)
        after = sorted(number for numbers in self.through.values() for number in numbers)
        self.nodes.append(StepNode(call, TIED, tuple(after), self._join(TIED, *self.sharing)))

    def _join(self, group: str, one: int, other: int) -> tuple[int, ...]:
        """Add process groups of workers with the same rank in two stages; return all workers of both stages."""
        self.joint[group] = tuple((self.each * one + rank, self.each * other + rank) for rank in range(self.each))
        return tuple(sorted(worker for members in self.joint[group] for worker in members))

    def _send(self, place: int, one: tuple[Phase, int], behind: int) -> None:
        phase, microbatch = one
        to = place + 1 if phase == "forward" else place - 1
        if not 0 <= to < len(self.stages):
            return
        group = f"stage {place} to {to}"
        unit, entries = ("activations" if phase == "forward" else "gradients"), (self.entries, self.entries)
        iteration = self.stages[place].iteration
        call = CollectiveCall("broadcast", unit, group, 2, *entries, self.dtype, phase, iteration, microbatch)
        self.nodes.append(StepNode(call, group, (behind,), self._join(group, place, to)))
        self.arrives[to, one] = len(self.nodes) - 1

    def built(self) -> StepGraph:
        """Return the merged step graph."""
        layout = dict(self.joint)
        for name in {name for stage in self.stages for name in stage.layout}:
            layout[name] = tuple(
                tuple(self.each * place + worker for worker in members)
                for place, stage in enumerate(self.stages)
                for members in stage.groups(name)
            )
        buffers = tuple(
            StepBuffer(one.what, one.nbytes, became[one.first], became[one.last])
            for stage, became in zip(self.stages, self.became, strict=True)
            for one in stage.buffers
        )
        most = max(self.stages, key=lambda stage: sum(stage.held))
        return StepGraph(tuple(self.nodes), self.each * len(self.stages), most.replicas, most.held, buffers, layout)
