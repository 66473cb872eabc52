"""Calls on the critical path of a step: forward and backward passes that stop for collectives at given places."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simnet.collectives.registry import Operation
from simnet.training.parallel.graph import (
    COMPUTE,
    CollectiveCall,
    ComputePart,
    GroupName,
    Groups,
    StepBuffer,
    StepGraph,
    StepNode,
)
from simnet.training.parallel.units import Units


class StoppingCall(NamedTuple):
    """A collective at a place of a pass: after the share `at` of its entries, within 0..1.

    On the queue of computing the pass stops for it. It is in all microbatches if `microbatch` is None; other fields are
    those of `CollectiveCall`.
    """

    at: float
    operation: Operation
    unit: str
    group: GroupName
    ranks: int
    in_elements: int
    out_elements: int
    dtype: str
    microbatch: int | None = None
    queue: str = COMPUTE


class BlockPart(NamedTuple):
    """Where a part of a block begins and ends in the forward pass, as shares of it."""

    block: str
    begin: float
    end: float

    def backward(self) -> BlockPart:
        """Return where it begins and ends in the backward pass."""
        return BlockPart(self.block, 1 - self.end, 1 - self.begin)


def block_parts(model: Units, attention: float) -> list[tuple[BlockPart, BlockPart]]:
    """Return attention and perceptron of each block, in the order of the forward pass.

    `attention` is the share of a block that attention computes; ValueError if it is no share.

    Examples
    --------
    >>> from simnet.cost_models.costs.layers import Layer
    >>> from simnet.training.parallel import wrap_units
    >>> model = wrap_units([Layer("in.weight", (4, 1)), Layer("h.0.weight", (12, 1)), Layer("out.weight", (4, 1))])
    >>> [(part.begin, part.end) for part in block_parts(model, 1 / 3)[0]]
    [(0.2, 0.4), (0.4, 0.8)]
    """
    if not 0 <= attention <= 1:
        raise ValueError(f"attention must be a share within 0..1, got {attention}")
    found, done = [], model.before
    for block in model.blocks:
        begin, middle, end = done, done + attention * block.size, done + block.size
        shares = [one / model.size for one in (begin, middle, end)]
        found.append((BlockPart(block.name, *shares[:2]), BlockPart(block.name, *shares[1:])))
        done = end
    return found


def insert_calls(
    step: StepGraph, forward: Iterable[StoppingCall], backward: Iterable[StoppingCall], layout: Mapping[str, Groups]
) -> StepGraph:
    """Return a step whose passes stop for the collectives `forward` and `backward` of each microbatch.

    Parts of a pass are cut where a collective is inside; `layout` has the groups of the collectives.
    """
    of: Mapping[str, Sequence[StoppingCall]] = {
        "forward": sorted(forward, key=lambda one: one.at),
        "backward": sorted(backward, key=lambda one: one.at),
    }
    whole: dict[object, int] = defaultdict(int)
    for node in step.nodes:
        if isinstance(node.does, ComputePart):
            whole[_pass_key(node)] += node.does.elements
    nodes: list[StepNode] = []
    # The first and the last number of what has become of each node.
    became: list[tuple[int, int]] = []
    done: dict[object, int] = defaultdict(int)

    def call(one: StoppingCall, part: ComputePart, node: StepNode, behind: tuple[int, ...] = ()) -> None:
        does = CollectiveCall(*one[1:8], part.phase, step.iteration, part.microbatch)
        nodes.append(StepNode(does, one.queue, () if one.queue == COMPUTE else behind, node.workers))

    for node in step.nodes:
        after = tuple(sorted({became[one][1] for one in node.after}))
        first = len(nodes)
        if not isinstance(node.does, ComputePart):
            nodes.append(node._replace(after=after))
            became.append((first, first))
            continue
        does, total = node.does, whole[_pass_key(node)]
        begin = done[_pass_key(node)]
        end = done[_pass_key(node)] = begin + does.elements
        here = [one for one in of[does.phase] if one.microbatch in (None, does.microbatch)]
        for one in here:
            if begin == 0 and round(one.at * total) == 0:
                call(one, does, node)
        first, reached = len(nodes), begin
        places = sorted({place for one in here if begin < (place := round(one.at * total)) <= end} | {end})
        for place in places:
            if place > reached or place == begin:
                nodes.append(StepNode(does._replace(elements=place - reached), COMPUTE, after, node.workers))
                after = ()
            last, reached = len(nodes) - 1, place
            for one in here:
                if round(one.at * total) == place and place > 0:
                    call(one, does, node, (last,))
        became.append((first, last))
    buffers = tuple(StepBuffer(one.what, one.nbytes, became[one.first][0], became[one.last][1]) for one in step.buffers)
    return dataclasses.replace(step, nodes=tuple(nodes), buffers=buffers, layout={**step.layout, **layout})


def _pass_key(node: StepNode) -> object:
    assert isinstance(node.does, ComputePart)
    return node.does.phase, node.does.microbatch, node.workers
