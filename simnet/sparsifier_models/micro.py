"""MiCRO: exclusive partitions of equal size, which never change, and a threshold scaled online."""

from __future__ import annotations

import numpy as np

from simnet.costs import exdyna
from simnet.sparsifier_models.partitioned import Partitioned
from simnet.sparsifier_models.selection import Indices


class MiCRO(Partitioned):
    """MiCRO: as ExDyna, but each of the P partitions keeps its n / P entries.

    References
    ----------
    D. Yoon, S. Oh, "MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and Accelerating Distributed DNN
    Training", HiPC 2023, arXiv 2310.00967, and the reference implementation.

    Examples
    --------
    Nothing in the second half is as large as the threshold; one entry of it is sent all the same.

    >>> model = MiCRO(workers=2, parameters=4, density=0.5, initial_threshold=3)
    >>> exchange = model.exchange(np.array([[4, 3, 9, 0], [9, 0, 1, -2]], dtype=np.float32))
    >>> exchange.update, exchange.selected
    (array([6.5, 1.5, 5. , 0. ], dtype=float32), array([2, 1]))
    """

    name = "micro"
    separable = True
    paper = "Yoon and Oh, HiPC 2023, arXiv 2310.00967"
    costs = (exdyna,)

    def _partitions(self) -> Indices:
        i = np.arange(self.workers + 1)
        quotient, remainder = divmod(self.parameters, self.workers)
        return quotient * i + np.minimum(i, remainder)
