"""Bytes of entries on the wire, and the steps of an exchange: messages, and kernels that every worker runs between.

Entries have fixed widths, or the bytes of an encoding of indices and values. A kernel processes the data of the
messages before it and produces those of the messages after it. A worker runs it as soon as it has finished the round
before, independently of others: see `simnet.schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.collectives import registry
from simnet.cost_models.costs import encodings
from simnet.cost_models.costs.devices import DeviceOp
from simnet.cost_models.costs.encodings import ValueCode
from simnet.schedule import Call, Schedule
from simnet.sparsifier_models.codes import Encoding, Places, difference_bytes
from simnet.sparsifier_models.options import Options
from simnet.sparsifier_models.selection import Indices

ADDED_UP: tuple[ValueCode, ...] = ("float32", "float16", "bfloat16")
"""Value codes that an all-reduce can add; codes with a lookup table cannot be added."""

# Words of 32 bits that a pass over bits goes through.
_WORD = 32


class Codes(NamedTuple):
    """Index codes and value codes that a scheme supports, and the reason why others are not supported."""

    # Which codes; none where it sends none, or in a form of its own.
    indices: Sequence[str] = ()
    values: Sequence[str] = ()
    # Why no others, for errors.
    otherwise: str = "its messages have a form of their own"

    def check(self, options: Options) -> None:
        """Raise ValueError if the options ask for an unsupported code."""
        for name, asked, known in (
            ("indices", options.indices, self.indices),
            ("values", options.values, self.values),
        ):
            if asked is not None and asked not in known:
                allowed = f". Allowed: {', '.join(known)}" if known else ""
                raise ValueError(f"{name} cannot be {asked!r}: {self.otherwise}{allowed}")


UNCODED = Codes()
"""Default codes of a scheme: none."""

GATHERED_AND_REDUCED = Codes(
    encodings.INDEX_CODES, ADDED_UP, "values are added up on the way, and codes read by a table cannot be"
)
"""Codes of a scheme that gathers indices unchanged and all-reduces values."""

SUMS_OF_SUMS = Codes(
    encodings.INDEX_CODES, ("float32",), "sums that are rounded anew on the way have no known owner of the rest"
)
"""Codes of a scheme that forwards partial sums."""

EVERY = Codes(encodings.INDEX_CODES, encodings.VALUE_CODES)
"""Codes of a scheme that forwards entries unchanged."""


@dataclass(frozen=True)
class Wire:
    """Byte sizes of values, indices and counts on the wire.

    Parameters
    ----------
    value_bytes, index_bytes : float
        Bytes of the values and of the indices that one entry stands for (more than one at a `scale` above 1).
    count_bytes : float
        Bytes of a number of entries.
    released : bool
        Whether values and indices travel apart, with the further messages of the reference implementation.
    encoding : Encoding, optional
        How indices and values are encoded, if they are. It replaces `index_bytes`, and `value_bytes` except where
        values are reduced in the network.
    scale : float
        Entries of the whole model that an entry of the gradient stands for.
    """

    value_bytes: float
    index_bytes: float
    count_bytes: float
    released: bool
    encoding: Encoding | None = None
    scale: float = 1.0

    scalar_bytes: ClassVar[float] = 4.0
    """Number of bytes of a scalar such as a norm, a float32 for any width of entries."""

    @classmethod
    def of(cls, options: Options, released_widths: tuple[int, int]) -> Wire:
        """Return byte sizes by a scheme's options; `released_widths` are bytes per value and index in released code."""
        released = options.wire == "released"
        value: float
        value, index = released_widths if released else (4, 4)
        encoding = None
        if options.indices is not None or options.values is not None:
            encoding = Encoding(options.indices or "int32", options.values or "float32")
            value = encodings.VALUE_BITS[encoding.values] / 8
        index_bytes = float(options.index_bytes or index)
        value_bytes, scale = float(options.value_bytes or value), options.scale
        return cls(scale * value_bytes, scale * index_bytes, index_bytes, released, encoding, scale)

    @property
    def entry_bytes(self) -> float:
        """Number of bytes of a value and its index."""
        return self.value_bytes + self.index_bytes

    def indices(self, indices: Places, cuts: ArrayLike) -> Floats:
        """Return the bytes of the `indices` in each region, shape (regions,). Each region is one message.

        `cuts` has the starts of regions and the end of the last; indices of a region count from its start.
        """
        edges = np.asarray(cuts, dtype=np.int64)
        counts = self._counts(indices, edges)
        if self.encoding is None:
            return counts * self.index_bytes
        differences = None
        if self.encoding.varies:
            ascending = indices if (indices[1:] > indices[:-1]).all() else np.sort(indices)
            differences = difference_bytes(ascending, edges, self.scale)
        return self._indices(counts, np.diff(edges), differences)

    def entries(self, indices: Places, cuts: ArrayLike) -> Floats:
        """Return the bytes of indices and values in each region; shape (regions,)."""
        counts = self._counts(indices, np.asarray(cuts, dtype=np.int64))
        if self.encoding is None:
            return counts * self.entry_bytes
        return self.indices(indices, cuts) + self._values(counts)

    def expected(self, counts: ArrayLike, spans: ArrayLike) -> Floats:
        """Return the expected bytes of messages with `counts` random entries from regions of `spans` entries."""
        number = np.asarray(counts, dtype=np.float64)
        if self.encoding is None:
            return number * self.entry_bytes
        return self._indices(number, np.asarray(spans), None) + self._values(number)

    def encoding_kernels(self, entries: ArrayLike, n: float, *, ascending: bool, values: bool = True) -> list[DeviceOp]:
        """Return the kernels that encode sparse vectors, given how many `entries` each worker selects out of `n`.

        There is a method of `simnet.cost_models.costs.encodings.CODE_METHODS` for indices and one for values, with
        equivalent passes for device profiles that have not measured it: codes are a `cast` of every entry; a table
        needs a `norm` before it, as do the lengths of differences; a bitmap is a `scatter` to bits that a `cast`
        cleared; indices that are not `ascending` are sorted, as by a `topk_layer`.
        """
        found: list[DeviceOp] = []
        if self.encoding is None:
            return found
        own, code = np.asarray(entries, dtype=np.float64), self.encoding.indices
        if not ascending and code not in ("int64", "int32"):
            found.append(DeviceOp(encodings.SORT_METHOD, own, instead=(DeviceOp("topk_layer", own),)))
        if code == "bitmap":
            passes = DeviceOp("cast", np.where(own > 0, n / _WORD, 0.0)), DeviceOp("scatter", own)
            found.append(DeviceOp("encode_bitmap", np.where(own > 0, n, 0.0), instead=passes))
        elif code != "int32":
            lengths = [DeviceOp("norm", own)] if self.encoding.varies else []
            found.append(DeviceOp(f"encode_{code}", own, instead=(*lengths, DeviceOp("cast", own))))
        return found + (self.value_kernels(own) if values else [])

    def decoding_kernels(self, entries: ArrayLike, n: float, messages: int, *, values: bool = True) -> list[DeviceOp]:
        """Return the kernels that decode `messages` messages with `entries` entries in total; none without encoding.

        For each message these are a `cast` of every entry, a `norm` where differences of indices are summed, and a
        `scan` of the words of each bitmap.
        """
        found: list[DeviceOp] = []
        if self.encoding is None or not messages:
            return found
        all_of_them, code = np.asarray(entries, dtype=np.float64), self.encoding.indices
        if code == "bitmap":
            words, bits = (np.where(all_of_them > 0, one, 0.0) for one in (n / _WORD, n))
            scan = DeviceOp("scan", words, launches=messages)
            found.append(DeviceOp("decode_bitmap", bits, launches=messages, instead=(scan,)))
        elif code != "int32":
            sums = [DeviceOp("norm", all_of_them)] if self.encoding.varies else []
            passes = *sums, DeviceOp("cast", all_of_them)
            found.append(DeviceOp(f"decode_{code}", all_of_them / messages, launches=messages, instead=passes))
        return found + (self.reading_kernels(all_of_them, messages) if values else [])

    def coded(
        self, messages: Schedule, sent: ArrayLike, received: ArrayLike, n: float, count: int = 1,
        *, ascending: bool = True, values: bool = True, of: float | None = None,
    ) -> list[DeviceOp | Schedule]:  # fmt: skip
        """Return the given messages between kernels that encode the entries sent and that decode the entries received.

        Entries sent are selected from `n` entries, those received in `count` messages from `of` (default `n`).
        """
        encode = self.encoding_kernels(sent, n, ascending=ascending, values=values)
        return [*encode, messages, *self.decoding_kernels(received, of or n, count, values=values)]

    def value_kernels(self, entries: ArrayLike) -> list[DeviceOp]:
        """Return the kernels that encode a worker's values; none for float32."""
        if self.encoding is None or self.encoding.values == "float32":
            return []
        own, code = np.asarray(entries, dtype=np.float64), self.encoding.values
        table = [] if code in ADDED_UP else [DeviceOp("norm", own)]
        return [DeviceOp(f"encode_{code}", own, instead=(*table, DeviceOp("cast", own)))]

    def reading_kernels(self, entries: ArrayLike, messages: int = 1) -> list[DeviceOp]:
        """Return the kernels that decode the values in `messages` messages; none for float32."""
        if self.encoding is None or self.encoding.values == "float32":
            return []
        all_of_them = np.asarray(entries, dtype=np.float64)
        passes = (DeviceOp("cast", all_of_them),)
        return [DeviceOp(f"decode_{self.encoding.values}", all_of_them / messages, launches=messages, instead=passes)]

    def _counts(self, indices: Places, edges: Indices) -> Floats:
        if len(edges) == 2:
            return np.array([indices.size], dtype=np.float64)
        region = np.searchsorted(edges, indices, side="right") - 1
        return np.bincount(region, minlength=len(edges) - 1).astype(np.float64)

    def _indices(self, counts: Floats, spans: ArrayLike, differences: Floats | None) -> Floats:
        assert self.encoding is not None
        whole = self.scale * np.asarray(spans, dtype=np.float64)
        return np.asarray(encodings.encoded_index_bytes(self.encoding.indices, whole, self.scale * counts, differences))

    def _values(self, counts: Floats) -> Floats:
        assert self.encoding is not None
        return np.asarray(encodings.encoded_value_bytes(self.encoding.values, self.scale * counts))


Step: TypeAlias = DeviceOp | Schedule
"""A step of an exchange: a kernel, or a schedule of messages."""


def in_order(workers: int, *steps: Step) -> tuple[Schedule, tuple[DeviceOp, ...]]:
    """Return one schedule of all messages, and the kernels, each numbered by the round that it precedes.

    `steps` are the schedules and kernels of an exchange, one after another.
    """
    before = 0
    messages: list[Schedule] = []
    kernels: list[DeviceOp] = []
    for step in steps:
        if isinstance(step, DeviceOp):
            kernels.append(step._replace(before=before))
        else:
            messages.append(step)
            before += len(step.rounds)
    return Schedule(workers).concat(*messages), tuple(kernels)


def all_reduced(workers: int, nbytes: float, algorithm: str, phase: str = "") -> Schedule:
    """Return the messages of an all-reduce of `nbytes` bytes by the named algorithm."""
    found = registry.collective_by_algorithm("all_reduce", algorithm).schedule(workers, nbytes)
    return found.in_phase(phase) if phase else found


def reduce_values(workers: int, k: float, wire: Wire, collective: str, phase: str = "") -> list[Step]:
    """Return kernels and messages of an all-reduce of the k values that all workers send for the same indices."""
    return [
        DeviceOp("gather", k),
        *wire.value_kernels(k),
        all_reduced(workers, k * wire.value_bytes, collective, phase),
        *wire.reading_kernels(k),
        DeviceOp("scatter", k, launches=2),
    ]


def kernels_beside(
    parts: Sequence[tuple[tuple[DeviceOp, ...], NDArray[np.int64]]], workers: int, behind: int
) -> list[DeviceOp]:
    """Merge the kernels of exchanges that run at the same time, after `behind` earlier rounds of messages."""
    kinds = [[(one.method, one.launches, one.before, one.segments) for one in kernels] for kernels, _ in parts]
    alike = all(one == kinds[0] for one in kinds)
    joint = [[(kernel, owners)] for kernels, owners in parts for kernel in kernels]
    if alike:
        joint = [[(kernels[number], owners) for kernels, owners in parts] for number in range(len(kinds[0]))]
    return [one._replace(before=one.before + behind) for one in (_merged(own, workers) for own in joint)]


def _merged(own: Sequence[tuple[DeviceOp, NDArray[np.int64]]], workers: int) -> DeviceOp:
    """Merge equal kernels of side-by-side exchanges into one that has each worker's number of entries."""
    kernel, entries = own[0][0], np.zeros(workers)
    for one, owners in own:
        entries[owners] = one.entries
    passes = range(len(kernel.instead))
    instead = (_merged([(one.instead[number], owners) for one, owners in own], workers) for number in passes)
    return kernel._replace(entries=entries, instead=tuple(instead))


# After these it has added up, or decoded, all that has come.
_RELEASES = frozenset({"scatter", "sum", "cast"})
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})


def under_way(schedule: Schedule, kernels: Sequence[DeviceOp], gradient: float) -> Floats:
    """Return the peak bytes of message buffers at each worker during the exchange of a gradient, shape (P,).

    Received bytes stay until a kernel adds or decodes them; contributions to an all-gather, or to a reduction outside
    the gradient (of `gradient` bytes), count too. A reduction holds the messages of this round and of the one before.
    """
    workers = schedule.n_ranks
    released = {one.before for kernel in kernels for one in kernel.passes if one.method in _RELEASES}
    gathers = any(one.method == "gather" for one in kernels)
    call_of = {number: call for call in schedule.calls for number in range(call.first, call.first + call.rounds)}
    received: dict[int, Floats] = {}
    kept, most, last = np.zeros(workers), np.zeros(workers), np.zeros(workers)
    for number, one in enumerate(schedule.rounds):
        if number in released:
            kept[:] = 0.0
        call = call_of.get(number)
        if call is not None and call.first == number:
            kept += _given(call, workers, in_place=call.nbytes >= gradient * (1 - 1e-9) and not gathers)
            last = np.zeros(workers)
        if id(one) not in received:
            received[id(one)] = np.bincount(one.dst, weights=one.nbytes, minlength=workers).astype(np.float64)
        came = received[id(one)]
        if call is not None and call.operation in _REDUCTIONS:
            np.maximum(most, kept + last + came, out=most)
            last = came
        else:
            kept += came
            np.maximum(most, kept, out=most)
    return most


def _given(call: Call, workers: int, *, in_place: bool) -> Floats | float:
    """Return the bytes that each worker copies into the send buffer of a collective."""
    if call.operation == "all_gather":
        return call.nbytes / workers if call.sizes is None else call.sizes
    return call.nbytes if call.operation in _REDUCTIONS and not in_place else 0.0
