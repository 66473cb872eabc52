"""SDP4Bit: gradients travel in two hops of 8-bit and 4-bit codes, and weights as 4-bit differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs import two_hop_reduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange, Step
from simnet.sparsifier_models.selection import Values, squared_norm
from simnet.sparsifier_models.thc import butterflies
from simnet.sparsifier_models.two_hop import GroupCodes, Hop, TwoHop, TwoHopOptions, halves, stochastic, sum_in_two_hops

FIRST_BITS, SECOND_BITS, WEIGHT_BITS = 8, 4, 4
_STAGES = 5
HADAMARD = 1 << _STAGES
"""Number of entries per Hadamard transform."""


def weight_difference(main: Values, model: Values, group: int, uniforms: Values) -> GroupCodes:
    """Return the quantised difference ``main - model``: a rank's own weights minus the copy of them on all ranks.

    Every rank adds the decoded difference to its copy. As the next difference is taken from that copy, errors do not
    add up. `group` entries share a scale; `uniforms` has the meaning that it has in `group_codes.stochastic`.
    """
    return _in_groups((main - model)[np.newaxis], group, WEIGHT_BITS, uniforms[np.newaxis])


def _in_groups(rows: Values, group: int, bits: int, uniforms: Values) -> GroupCodes:
    """Return the codes of rows, each row padded with zeros to whole groups."""
    width = -(-rows.shape[1] // group) * group
    if width != rows.shape[1]:
        rows, uniforms = (np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in (rows, uniforms))
    return stochastic(rows.reshape(-1, group), bits, uniforms.reshape(-1, group))


def _decode_rows(coded: GroupCodes, rows: int, width: int) -> Values:
    """Return the rows, shape (rows, width), that the codes of `_in_groups` decode to, without padding."""
    return coded.values().reshape(rows, -1)[:, :width]


class SDP4BitOptions(TwoHopOptions):
    """Options of `SDP4Bit`.

    Parameters
    ----------
    hadamard : bool
        Whether 32 entries at a time are transformed before they are quantised.
    weight_group, first_group, second_group : int
        Entries that share a scale: of weights, and of gradients in each hop. The released scripts have 128 in both.
    shards : {"differences", "float16", "none"}
        How all workers get the shards of the update: as differences of four bits, see `weight_difference`, as float16,
        or not at all.
    """

    hadamard: bool = True
    weight_group: Count = 2048
    first_group: Count = 512
    second_group: Count = 128
    shards: Literal["differences", "float16", "none"] = "differences"  # type: ignore[assignment]


class SDP4Bit(TwoHop, state=("memory",), costs=(two_hop_reduce,)):
    """SDP4Bit: gradients travel in two hops of 8 and 4 bits, weights as 4-bit differences. The density has no effect.

    All divide by P. The first hop sends codes of eight bits to the ranks of the node, the second one codes of four bits
    of their sums to the other nodes, both rounded at random without bias. A Hadamard transform of 32 entries before,
    and back at the end, makes outliers alike.

    The owner of a shard then sends the quantised difference between its weights and the copy that all workers hold.
    Here this difference is the update; its rounding error stays in the owner's `memory` and is added to the next one,
    which is equivalent under SGD with a constant learning rate. All workers apply the same update, so that their
    weights stay equal.

    Partitions are padded to whole bytes, with the transform to multiples of 32, and their last groups may be short; the
    released code refuses what groups do not divide. Wires ``paper`` and ``released`` are the same.

    References
    ----------
    J. Jia et al., "SDP4Bit: Toward 4-bit Communication Quantization in Sharded Data Parallelism for LLM Training",
    NeurIPS 2024; code hpdps-group/SDP4Bit, commit 25e219d.

    Examples
    --------
    A byte an entry within the node, half a byte of half of them across, and scales of groups:

    >>> model = SDP4Bit(workers=4, parameters=8192, ranks_per_node=2, shards="none")
    >>> gradients = np.random.default_rng(0).standard_normal((4, 8192)).astype(np.float32)
    >>> model.exchange(gradients).schedule.bytes_sent()[0] == (8192 + 4 * 16) / 2 + (2048 + 4 * 32) / 2
    np.True_
    """

    name = "sdp4bit"
    paper = "Jia et al., NeurIPS 2024, arXiv 2410.15526"
    options: SDP4BitOptions

    def _set_up(self) -> None:
        super()._set_up()
        self.partition = self._partition(self.parameters)
        self.memory = np.zeros(self.parameters, dtype=np.float32)

    def _partition(self, entries: int) -> int:
        """Return the number of entries per rank, padding included."""
        multiple = HADAMARD if self.options.hadamard else 2
        return -(-entries // (self.workers * multiple)) * multiple

    def _uniforms(self, what: str, rank: int, shape: tuple[int, int]) -> Values:
        """Return random numbers in (0, 1] for rounding, one row per partition, in order of the receiving rank."""
        draws = stream(self.options.seed, "sdp4bit", what, self.iteration, rank)
        return 1 - draws.random(shape, dtype=np.float32)

    def _transformed(self, values: Values) -> Values:
        return butterflies(values.ravel(), _STAGES).reshape(values.shape) if self.options.hadamard else values

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        n, sent = self.parameters, np.zeros(self.workers)
        mean = self._mean(corrected, sent)[:n]
        if self.options.shards == "differences":
            update = self._by_differences(mean)
        else:
            update = halves(mean).astype(np.float32) if self.options.shards == "float16" else mean
        return self._make_exchange(update, self._steps(), sent, key="two hops")

    def _mean(self, rows: Values, sent: Any) -> Values:
        """Return the padded mean over ranks after both hops; write squared norms after quantisation to `sent`."""
        P, m, options = self.workers, self.partition, self.options

        def shares(row: Values) -> Values:
            buffer = np.zeros((P, m), dtype=np.float32)
            np.divide(row, np.float32(P), out=buffer.reshape(-1)[: self.parameters])
            return self._transformed(buffer)

        def first(rank: int) -> Values:
            coded = self._code("first", rank, shares(rows[rank]), options.first_group, FIRST_BITS)
            # The transform, which is not normalised, multiplies norms by the root of 32.
            sent[rank] = P * P * squared_norm(coded.ravel()) / (HADAMARD if options.hadamard else 1)
            return self.nodes.swizzled(coded)

        def second(rank: int, part: Values) -> Values:
            return self._code("second", rank, part, options.second_group, SECOND_BITS)

        mean = self._transformed(sum_in_two_hops(self.nodes, first, second))
        return mean.ravel() / np.float32(HADAMARD) if options.hadamard else mean.ravel()

    def _code(self, what: str, rank: int, rows: Values, group: int, bits: int) -> Values:
        """Return a rank's partitions `rows` as receivers decode them, in the same shape."""
        coded = _in_groups(rows, group, bits, self._uniforms(what, rank, (len(rows), self.partition)))
        return _decode_rows(coded, *rows.shape)

    def _by_differences(self, mean: Values) -> Values:
        """Return the update as decoded from quantised weight differences, and store the quantisation error."""
        wanted = self.memory + mean
        update, m = np.empty_like(wanted), self.partition
        # The shards of the last ranks may be empty.
        for rank in range(-(-self.parameters // m)):
            shard = slice(rank * m, min((rank + 1) * m, self.parameters))
            size = shard.stop - shard.start
            uniforms = self._uniforms("weights", rank, (1, m))[0, :size]
            coded = weight_difference(wanted[shard], np.zeros(size, np.float32), self.options.weight_group, uniforms)
            update[shard] = _decode_rows(coded, 1, size)[0]
        if self.options.error_feedback:
            self.memory = wanted - update
        return update

    # Messages

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: transform, two hops, inverse transform, all-gather of weights."""
        options, P, (N, L) = self.options, self.workers, self.nodes
        m = self._partition(self.k_of_model)
        # Of the gradient here, which may be a sample.
        n = self.parameters
        transform = [DeviceOp("cast", n)] if options.hadamard else []
        yield from (*transform, DeviceOp("cast", n))
        yield from self._hop(1, Hop.of(P * m, FIRST_BITS, P * -(-m // options.first_group)))
        yield from (DeviceOp("sum", n / L, launches=L), DeviceOp("cast", n / L))
        yield from self._hop(2, Hop.of(N * m, SECOND_BITS, N * -(-m // options.second_group)))
        yield DeviceOp("sum", n / P, launches=N)
        yield from (one._replace(entries=n / P) for one in transform)
        if options.shards == "differences":
            codes, scales = Hop.of(m, WEIGHT_BITS, -(-m // options.weight_group))
            yield from (DeviceOp("sum", n / P), DeviceOp("cast", n / P))
            yield self.options.gather_equal(self.workers, codes, "weight codes")
            yield self.options.gather_equal(self.workers, scales, "weight scales")
            yield DeviceOp("sum", n)
        elif options.shards == "float16":
            yield self.options.gather_equal(self.workers, (options.value_bytes or 2.0) * m, "shards")

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of the weight error that a worker stores for its shard, by name."""
        keeps = self.options.error_feedback and self.options.shards == "differences"
        shard = self._partition(self.k_of_model)
        return {"memory": float(self.memory.itemsize * shard)} if keeps else {}
