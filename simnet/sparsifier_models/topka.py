"""TopkA: top-k over all-gather as the comparisons of sparse all-reduces have it, Ok-Topk's among them."""

from __future__ import annotations

from simnet.costs import topka
from simnet.sparsifier_models.topk import Topk


class TopkA(Topk):
    """TopkA: exact top-k of the fused gradient with k = max(1, floor(c n)), over all-gather.

    What `simnet.sparsifier_models.topk.Topk` does, in the reference implementation of Ok-Topk: on the wire ``released``
    float32 values and uint32 indices are gathered one after the other, and nothing else travels.

    References
    ----------
    S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022 (baseline TopkA);
    C. Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning", SC 2019.

    Examples
    --------
    >>> import numpy as np
    >>> model = TopkA(workers=2, parameters=5, density=0.5, wire="released")
    >>> exchange = model.exchange(np.array([[4, 3, 1, 0, 0], [0, 5, 1, -8, 0]], dtype=np.float32))
    >>> model.k, exchange.update
    (2, array([ 2.,  4.,  0., -4.,  0.], dtype=float32))
    >>> exchange.schedule.rounds
    (Round(2 messages, 16 bytes, phase='values'), Round(2 messages, 16 bytes, phase='indices'))
    """

    name = "topka"
    separable = True
    paper = "Li and Hoefler, PPoPP 2022, arXiv 2201.07598"
    costs = (topka,)
    rounds_down = True
    released_widths = (4, 4)
    sends_gain = False
