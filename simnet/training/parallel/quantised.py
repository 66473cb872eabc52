"""Quantised collectives of sharded steps: ZeRO++, LoCo and SDP4Bit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from simnet.base.quantities import Count
from simnet.cost_models.costs.models import Layer
from simnet.sparsifier_models.qgz import BITS, groups_of
from simnet.sparsifier_models.sdp4bit import FIRST_BITS, HADAMARD, SECOND_BITS, WEIGHT_BITS
from simnet.sparsifier_models.two_hop import SCALE_BYTES, Hop, Nodes, weight_groups
from simnet.training.parallel.graph import GraphBuilder, Groups, Phase
from simnet.training.parallel.units import CheckedOptions, Unit

Waits: TypeAlias = Iterable[int | None]
"""Numbers of nodes that a call waits for; None is ignored."""

NODE, ACROSS = "node", "across"
"""Names of the process groups inside a node, and across nodes at the same local rank."""

HOPS = "two hops"
"""Name of the queue that serialises the all-to-alls of both hops."""


def layout_of(nodes: Nodes) -> dict[str, Groups]:
    """Return the process groups inside nodes and across nodes, by name."""
    named = {NODE: nodes.within(), ACROSS: nodes.across()}
    return {name: tuple(tuple(members) for members in groups.tolist()) for name, groups in named.items()}


@dataclass(frozen=True, kw_only=True)
class ZeroPlusPlus(CheckedOptions):
    """Options of ZeRO++ for sharded steps, with DeepSpeed's names.

    All-gathers of parameters carry eight bits (qwZ). Tensors are reduced in two hops of four bits (qgZ), except vectors
    and tensors whose number of entries is no multiple of 2 P. With hpZ, consecutive ranks keep a second shard of
    parameters that are freed after use.
    """

    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False
    zero_hpz_partition_size: Count = 1
    ranks_per_node: Count | None = None
    loco: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks_per_node is not None:
            if self.zero_hpz_partition_size not in (1, self.ranks_per_node):
                raise ValueError(
                    f"zero_hpz_partition_size must be 1 or ranks_per_node, {self.ranks_per_node}, "
                    f"got {self.zero_hpz_partition_size}"
                )
        elif self.zero_quantized_gradients and self.zero_hpz_partition_size == 1:
            raise ValueError("zero_quantized_gradients needs ranks_per_node")
        if self.loco and not self.zero_quantized_gradients:
            raise ValueError("loco needs zero_quantized_gradients")

    def nodes(self, workers: int) -> Nodes:
        """Return how workers are divided into nodes. ValueError: nodes would not have equal numbers of workers."""
        if self.ranks_per_node is not None:
            return Nodes.of(workers, self.ranks_per_node)
        return Nodes.of(workers, self.zero_hpz_partition_size, "zero_hpz_partition_size")

    def gather(
        self, step: GraphBuilder, unit: str, shard: int, dtype: str, phase: Phase, group: str, after: Waits
    ) -> int | None:
        """Add the all-gather of a unit's parameter shards to the graph `step`; return the index of the last node."""
        entries, ranks = shard * (self.nodes(step.workers).nodes if group == NODE else 1), step.ranks(group)
        if not self.zero_quantized_weights:
            return step.call("all_gather", unit, (entries, entries * ranks), dtype, phase, group=group, after=after)
        if ranks < 2:
            return None
        return _add_gathers(step, unit, Hop(entries, weight_groups(entries) * SCALE_BYTES), phase, group, after)

    def scatter(
        self, step: GraphBuilder, unit: str, layers: tuple[Layer, ...], dtype: str, group: str, queue: str | None = None
    ) -> int | None:
        """Add the reduce-scatter of the gradients of `layers` to the graph `step`; return its last node's index."""
        nodes, after = self.nodes(step.workers), step.computed()
        if self.zero_quantized_gradients and nodes.nodes > 1:
            return reduce_tensors(step, nodes, layers, dtype, after, unit)
        ranks = step.ranks(group)
        one = sum(-(-layer.size // ranks) for layer in layers) if group == "world" else Unit(unit, layers).shard(ranks)
        sizes = one * ranks, one
        return step.call("reduce_scatter", unit, sizes, dtype, "backward", group=group, queue=queue, after=after)


@dataclass(frozen=True, kw_only=True)
class SDP4Bit(CheckedOptions):
    """Options of SDP4Bit, which sends weight differences in 4 bits, gradients in 8 bits inside nodes and 4 across."""

    quantized_weights: bool = False
    quantized_gradients: bool = False
    ranks_per_node: Count = 1
    weight_group: Count = 2048
    first_group: Count = 512
    second_group: Count = 128

    def nodes(self, workers: int) -> Nodes:
        """Return how workers are divided into nodes. ValueError: nodes would not have equal numbers of workers."""
        return Nodes.of(workers, self.ranks_per_node)


def gather_differences(step: GraphBuilder, how: SDP4Bit, elements: int, after: Waits) -> int | None:
    """Add all-gathers of a bucket's weight differences to the graph `step`; return the index of the last new node."""
    m = shard_of(elements, step.workers)
    return _add_gathers(step, "bucket", Hop.of(m, WEIGHT_BITS, -(-m // how.weight_group)), "step", "world", after)


def _add_gathers(step: GraphBuilder, unit: str, sent: Hop, phase: Phase, group: str, after: Waits) -> int | None:
    ranks, found = step.ranks(group), None
    after = tuple(after)
    for elements, dtype in _code_elements(sent):
        found = step.call("all_gather", unit, (elements, elements * ranks), dtype, phase, group=group, after=after)
    return found


def _code_elements(sent: Hop) -> list[tuple[int, str]]:
    """Return (number of elements, dtype) of the codes and of the scales that make up a quantised message."""
    return [(round(sent.codes), "int8"), (round(sent.scales / SCALE_BYTES), "float32")]


def shard_of(elements: int, workers: int) -> int:
    """Return the number of bucket entries per worker with SDP4Bit, a multiple of the Hadamard transform's length."""
    return -(-elements // (workers * HADAMARD)) * HADAMARD


def _two_hops(step: GraphBuilder, first: Hop, second: Hop, after: Waits, unit: str = "bucket") -> int | None:
    waits, found = tuple(after), None
    for hop, group in ((first, NODE), (second, ACROSS)):
        for elements, dtype in _code_elements(hop):
            sizes = elements, elements
            called = step.call("alltoall", unit, sizes, dtype, "backward", group=group, queue=HOPS, after=waits)
            found = found if called is None else called
    return found


def reduce_bucket(step: GraphBuilder, how: SDP4Bit, elements: int, after: Waits) -> int | None:
    """Add SDP4Bit's reduction of a gradient bucket to the graph `step`; return the index of the last new graph node."""
    nodes, m = how.nodes(step.workers), shard_of(elements, step.workers)
    first = Hop.of(nodes.ranks * m, FIRST_BITS, nodes.ranks * -(-m // how.first_group))
    second = Hop.of(nodes.nodes * m, SECOND_BITS, nodes.nodes * -(-m // how.second_group))
    return _two_hops(step, first, second, after)


def reduce_tensors(
    step: GraphBuilder, nodes: Nodes, layers: Iterable[Layer], dtype: str, after: Waits, unit: str = "bucket"
) -> int | None:
    """Add qgZ reductions (ZeRO++) of tensors, in sequence, to the graph `step`; return the last new node's index."""
    last: int | None = None
    waits = tuple(after)
    for layer in layers:
        groups = groups_of(layer.shape, nodes)
        if groups:
            first, second = (Hop.of(layer.size / part, BITS, groups / part) for part in (1, nodes.each))
            called = _two_hops(step, first, second, waits, unit)
        else:
            one = -(-layer.size // nodes.ranks)
            called = step.call("reduce_scatter", unit, (one * nodes.ranks, one), dtype, "backward", after=waits)
        if called is not None:
            waits, last = (called,), called
    return last


def memory_of_loco(layers: Iterable[Layer], nodes: Nodes) -> int:
    """Return the bytes of the two error-feedback memories that LoCo keeps on a rank."""
    quantised = [(layer.size, groups_of(layer.shape, nodes)) for layer in layers]
    first = sum(entries + SCALE_BYTES * groups for entries, groups in quantised if groups)
    return first + first // nodes.each
