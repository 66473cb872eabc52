"""gTopk: the k largest sums of the workers' top-k entries, found by merges up a binomial tree, then broadcast.

Every message has k entries, whatever the number of workers. But a merge may cut a partial sum whose index still reaches
the result through another branch of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simnet import collectives
from simnet.base.arrays import Floats
from simnet.cost_models.costs import gtopk, gtopk_reduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.codes import read_back
from simnet.sparsifier_models.options import Options
from simnet.sparsifier_models.selection import Entries, Values, squared_norm, top_k
from simnet.sparsifier_models.wire import EVERY, Codes


def merge(one: Entries, other: Entries, k: int) -> tuple[Entries, Entries]:
    """Return the sum of two sparse vectors in two parts: its `k` entries of largest magnitude, and all others."""
    indices, places = np.unique(np.concatenate([one.indices, other.indices]), return_inverse=True)
    values = np.zeros(indices.size, dtype=np.result_type(one.values, other.values))
    values[places[: one.indices.size]] = one.values
    values[places[one.indices.size :]] += other.values
    return Entries(indices, values).cut(k)


class GTopkOptions(Options):
    """Options of `GTopk`.

    Parameters
    ----------
    conserving : bool
        Whether a worker that cuts a sum in a merge keeps it, in its residual, if the index is in the result.
    """

    conserving: bool = True


class GTopk(
    Sparsifier,
    fixed_volume=True,
    reads_gradients=False,
    rounds_down=True,
    released_widths=(8, 8),
    costs=(gtopk, gtopk_reduce),
):
    """gTopk: global top-k by merging along a binomial tree, for any number of workers.

    In round d = 1, 2, 4, ... worker r with r mod 2d = d sends its k entries to worker r - d, which adds them to its own
    and keeps the k largest. That is the published tree for P = 2^x; for other P a worker without a partner waits for
    its turn to send. A worker that merges sends when the merge is done. The result is broadcast by worker 0. A worker's
    own entries that are not in the result return to its residual.

    As published, a part of a sum that a merge cuts is lost when the index reaches the result through another branch:
    its originator takes it for sent. With ``conserving`` the worker that made the cut adds that part to its own
    residual, for which no message is needed; ``conserving=False`` is the published rule, with the loss in ``lost``.

    With ``compat="released"`` numbers are those of the reference implementation of Ok-Topk: the published rule, with
    sums in double precision except in a worker's first merge. On the wire ``released`` entries travel as pairs of
    float64.

    Besides those of `Exchange` there is the statistic ``global_threshold``, the smallest magnitude of a sum in the
    result.

    References
    ----------
    S. Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth
    Networks", ICDCS 2019, Algorithms 2 and 4.

    Examples
    --------
    Workers 0 and 1 merge to {0: 5}, and worker 0 cuts the 2 of worker 1; 2 and 3 merge to {1: 9}, which wins.

    >>> gradients = np.array([[5, 0], [0, 2], [0, 9], [1, 0]], dtype=np.float32)
    >>> model = GTopk(workers=4, parameters=2, density=0.5)
    >>> model.exchange(gradients).update, model.residual[:2]
    (array([0.  , 2.25], dtype=float32), array([[5., 2.],
           [0., 0.]], dtype=float32))
    >>> GTopk(workers=4, parameters=2, density=0.5, conserving=False).exchange(gradients).stats["lost"]
    2.0
    """

    name = "gtopk"
    paper = "Shi et al., ICDCS 2019, arXiv 1901.04359"
    options: GTopkOptions

    def _option_traits(self) -> dict[str, Any]:
        paper = self.options.compat == "paper"
        codes = EVERY if paper else Codes(otherwise="released numbers are of float64")
        return {"conserves": self.options.conserving and paper, "codes": codes}

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P, k, released = self.workers, self.k, self.options.compat == "released"
        # In 32 bits, as they travel: all workers' lists are held at a time.
        own = [top_k(row, k).astype(np.uint32) for row in corrected]
        threshold = np.array([np.abs(row[indices]).min() for row, indices in zip(corrected, own, strict=True)])
        held = {r: Entries(indices, corrected[r, indices]) for r, indices in enumerate(own)}
        cuts: list[tuple[int, int, Entries]] = []
        rests: list[tuple[int, Entries]] = []
        nbytes = np.zeros(P)

        def sent_on(r: int) -> Entries:
            """Return the entries of worker r as receivers decode these, and record the encoding error."""
            nbytes[r] = self.wire.entries(held[r].indices, (0, self.parameters))[0]
            if self.options.values in (None, "float32"):
                return held[r]
            read = held[r]._replace(values=read_back(held[r].values, self.options.values))
            rests.append((r, Entries(read.indices, held[r].values - read.values)))
            return read

        d = 1
        while d < P:
            for r in range(0, P - d, 2 * d):
                arrived = sent_on(r + d)
                del held[r + d]
                held[r], cut = merge(held[r], arrived, k)
                cuts.append((r, min(r + 2 * d, P), cut))
                if released:
                    held[r] = held[r]._replace(values=held[r].values.astype(np.float64))
            d *= 2
        held[0] = held[0]._replace(values=held[0].values.astype(np.float32))
        result = sent_on(0)

        update, included = np.zeros(self.parameters, dtype=np.float32), np.zeros(self.parameters, dtype=np.bool_)
        update[result.indices] = result.values / np.float32(P)
        included[result.indices] = True
        applied = [included[indices] for indices in own]
        lost = np.zeros(self.parameters, dtype=np.bool_)
        for r, end, cut in cuts:
            lost[cut.indices] = included[cut.indices]
            for w in range(r, end):
                applied[w] &= ~lost[own[w]]
            lost[cut.indices] = False
        sent = np.zeros(P)
        for w, indices in enumerate(own):
            sent[w] = squared_norm(corrected[w, indices[applied[w]]])
            corrected[w, indices[included[indices]]] = 0
        for r, rest in [*((r, cut) for r, _, cut in cuts if self.traits.conserves), *rests]:
            kept = rest.within(included)
            corrected[r, kept.indices] += kept.values
        return self._make_exchange(
            update,
            self._steps(k, nbytes),
            sent,
            union=k,
            stats={"threshold": threshold, "global_threshold": float(np.abs(result.values).min())},
        )

    def _steps(self, k: int, nbytes: Floats) -> Iterator[Step]:
        """Yield kernels and messages of an exchange, in which worker i sends ``nbytes[i]`` bytes."""
        P, n, wire = self.workers, self.parameters, self.wire
        yield from (DeviceOp("topk", n), DeviceOp("gather", k))
        # Lists are ascending, as merges have them.
        yield from wire.encoding_kernels(k, n, ascending=False)
        for one in collectives.reduce_binomial(P, 1.0).rounds:
            receives = np.where(np.isin(np.arange(P), one.dst), k, 0)
            yield Schedule(P, [Round(one.src, one.dst, nbytes[one.src], phase="tree")])
            yield from wire.decoding_kernels(receives, n, 1)
            yield DeviceOp("scatter", receives)
            yield DeviceOp("topk", 2 * receives)
            yield from wire.encoding_kernels(receives, n, ascending=True)
        yield collectives.broadcast_binomial(P, float(nbytes[0])).in_phase("broadcast")
        yield from wire.decoding_kernels(k, n, 1)
        yield DeviceOp("scatter", k, launches=2)
