"""What each worker did in each iteration, and as a table where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks
from simnet.training.job.row_file import KeptRows

if TYPE_CHECKING:
    import pandas as pd

SPLIT = ("compute_s", "select_s", "communicate_s", "wait_s", "bytes_sent_B", "bytes_received_B", "merge_in_select_s")
"""What is held of a worker in an iteration."""


class WorkerSets:
    """Sets of workers, each stored once and numbered.

    Examples
    --------
    >>> sets = WorkerSets()
    >>> [sets.number(np.array(one)) for one in ([0, 1], [1], [0, 1])], len(sets.all)
    ([0, 1, 0], 2)
    """

    def __init__(self, sets: Sequence[NDArray[np.intp]] = ()) -> None:
        self.all = [np.asarray(one, dtype=np.intp) for one in sets]
        self._numbers = {one.tobytes(): number for number, one in enumerate(self.all)}

    def number(self, workers: NDArray[np.intp]) -> int:
        """Return the number of a set of workers, ascending; a new set is stored."""
        key = workers.tobytes()
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(workers)
        return number


class WorkerRows(NamedTuple):
    """A row per iteration and worker that took part, 8 bytes a number; a table takes twice as much.

    `iteration`, `purpose` and `active` have length n; `active` is the index of the set of workers in `active_sets`;
    `split` has the columns `SPLIT`.
    """

    policy: str
    iteration: Ranks
    purpose: Sequence[str]
    active_sets: Sequence[NDArray[np.intp]]
    active: Ranks
    split: KeptRows

    @property
    def total(self) -> int:
        """How many rows there are."""
        return self.split.total

    def table(self, first: int = 0, last: int | None = None) -> pd.DataFrame:
        """Return rows `first` to `last` (exclusive) as a table; all by default.

        Examples
        --------
        >>> split = KeptRows(7, None, 0, np.arange(28.0).tobytes())
        >>> rows = WorkerRows("AG", np.arange(2), ["train", "train"], [np.array([0, 2])], np.zeros(2, dtype=int), split)
        >>> rows.table(1, 3)[["iteration", "worker", "compute_s"]].to_numpy().tolist()
        [[0.0, 2.0, 7.0], [1.0, 0.0, 14.0]]
        """
        import pandas as pd

        sizes = np.array([one.size for one in self.active_sets], dtype=np.int64)[self.active]
        ends = np.cumsum(sizes)
        last = self.total if last is None else min(last, self.total)
        # Iterations of which there are rows among these.
        begin, end = np.searchsorted(ends, first, side="right"), np.searchsorted(ends, last, side="left") + 1
        own = slice(int(begin), int(end) if last > first else int(begin))
        before = int(ends[own.start - 1]) if own.start else 0
        kept = slice(first - before, last - before)
        active = [self.active_sets[one] for one in self.active[own].tolist()]
        columns = {
            "iteration": np.repeat(self.iteration[own], sizes[own]),
            "purpose": np.repeat(np.array(self.purpose[own], dtype=object), sizes[own]),
            "worker": np.concatenate([np.zeros(0, dtype=np.intp), *active]),
        }
        return pd.DataFrame(
            {
                "policy": self.policy,
                **{name: column[kept] for name, column in columns.items()},
                **dict(zip(SPLIT, self.split.between(first, last).T, strict=True)),
            }
        )
