"""How strategies average over the workers: any scheme of `simnet.sparsifier_models`, tensor by tensor or in buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.quantities import Density, Size, bounded
from simnet.collectives import registry
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange, Sparsifier
from simnet.strategies.optimisers import Index, Values
from simnet.strategies.replicas import Fragment, Replicas

_FLOAT = 4.0


@dataclass(frozen=True)
class Averaging:
    """How an average over the workers is formed.

    Parameters
    ----------
    scheme : str
        The scheme, of `simnet.sparsifier_models.create`. ``dense`` is an all-reduce; its option `algorithm` says which.
    density : float
        The fraction of the entries that it keeps, in (0, 1].
    options : mapping
        Its options.
    bucket : float, optional
        Bytes in float32 up to which tensors are exchanged together; 0 for each by itself, infinite for a fragment as a
        whole. When omitted, dense exchanges go tensor by tensor, as in torchft and gym, and others take all at once.

    Raises
    ------
    ValueError
        If the density or the bucket is out of range.

    Examples
    --------
    >>> Averaging("topk", density=0.01).bucket_bytes, Averaging().bucket_bytes
    (inf, 0.0)
    """

    scheme: str = "dense"
    density: Density = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    bucket: Size | None = None

    def __post_init__(self) -> None:
        if self.bucket not in (None, np.inf):
            bounded(self.bucket, Size, "bucket")

    @property
    def bucket_bytes(self) -> float:
        """The bucket in force [byte]."""
        if self.bucket is not None:
            return self.bucket
        return 0.0 if self.scheme == "dense" else np.inf


class Sync(NamedTuple):
    """An exchange of a strategy.

    Parameters
    ----------
    what : str
        What is exchanged, such as ``gradients``, ``pseudo-gradients`` or ``parameters``.
    schedule : Schedule
        The messages, between the workers that take part.
    kernels : tuple of DeviceOp
        What each worker runs to select, pack, merge and unpack.
    begin : int
        The inner step, from 0, after which it begins.
    delay : int
        How many inner steps later it must have arrived; 0 if the workers wait for it before the next one.
    exchange : Exchange, optional
        What came of it, with its statistics, if a scheme made it.
    scheme : Sparsifier, optional
        The scheme that made it.
    """

    what: str
    schedule: Schedule
    kernels: tuple[DeviceOp, ...]
    begin: int
    delay: int = 0
    exchange: Exchange | None = None
    scheme: Sparsifier | None = None

    @property
    def payload(self) -> float:
        """Bytes of its collectives as nccl-tests counts them: the vector of an all-reduce, what is broadcast."""
        return sum(one.nbytes for one in self.schedule.calls)


NOBODY: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
"""No workers."""


class Averager:
    """Averages the rows of the workers for one fragment, in pieces of whole tensors, each by a scheme of its own.

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    averaging : Averaging
        How.
    fragment : Fragment
        Of which part.
    what : str
        What is averaged.

    Attributes
    ----------
    models : list of Sparsifier
        The scheme of each piece.

    Raises
    ------
    ValueError
        If there is no such scheme, or it refuses an option.
    """

    def __init__(self, replicas: Replicas, averaging: Averaging, fragment: Fragment, what: str) -> None:
        self.what = what
        self._replicas, self._averaging = replicas, averaging
        self._pieces = list(_pieces(replicas, fragment, averaging.bucket_bytes))
        self.models = [self._model(layers, replicas.workers) for layers, _ in self._pieces]

    def __call__(
        self, rows: Values, begin: int, delay: int, active: Index, late: NDArray[np.intp] = NOBODY
    ) -> tuple[Values, list[Sync]]:
        """Return the average of rows, float32 of shape (n_f,), and the exchanges that made it.

        Parameters
        ----------
        rows : ndarray of float32, shape (P', n_f)
            What each worker gives. Not modified.
        begin, delay : int
            As of `Sync`.
        active : slice or ndarray of int
            Which workers give it; the others keep their residuals, and what else a scheme adapts begins afresh for
            those that take part without them.
        late : ndarray of int
            Those of them that come too late: what they give goes into their residuals as a scheme with error feedback
            has it, and is lost without.
        """
        average = np.empty(rows.shape[1], dtype=np.float32)
        syncs = []
        if late.size:
            numbers = np.arange(self._replicas.workers)[active]
            behind = np.isin(numbers, late)
            self._keep_back(rows[behind], late)
            rows, active = rows[~behind], numbers[~behind]
        for number, (layers, columns) in enumerate(self._pieces):
            model = self.models[number]
            if isinstance(active, slice):
                exchange = model.exchange(rows[:, columns])
            else:
                exchange = _among(model, self._model(layers, len(rows)), rows[:, columns], active)
            average[columns] = exchange.update
            syncs.append(Sync(self.what, exchange.schedule, exchange.kernels, begin, delay, exchange, model))
        return average, syncs

    def _keep_back(self, rows: Values, late: NDArray[np.intp]) -> None:
        """Put what workers give that come too late into their residuals, where there are any."""
        for model, (_, columns) in zip(self.models, self._pieces, strict=True):
            if model.keeps:
                decay, gain = map(np.float32, model.weights)
                residual = model.residual.copy()
                residual[late] = decay * residual[late] + gain * rows[:, columns]
                model.residual = residual

    @property
    def keeps(self) -> bool:
        """Whether what comes too late is not lost."""
        return all(model.keeps for model in self.models)

    def _model(self, layers: Sequence[int], workers: int) -> Sparsifier:
        """Return the scheme of a piece, for so many workers."""
        replicas, averaging = self._replicas, self._averaging
        given = {
            "layers": [replicas.layers[one] for one in layers],
            "true_shapes": [replicas.true_shapes[one] for one in layers if replicas.true_shapes],
            "scale": replicas.scale,
            "seed": replicas.seed,
            **averaging.options,
        }
        size = sum(replicas.tensors[one][1] for one in layers)
        return sparsifier_models.create(averaging.scheme, workers, size, averaging.density, **given)


def _among(model: Sparsifier, fewer: Sparsifier, rows: Values, active: Index) -> Exchange:
    """Exchange rows among some of the workers of a scheme, whose residuals come from it and go back to it."""
    fewer.density, fewer.iteration = model.density, model.iteration
    if model.keeps:
        fewer.residual = model.residual[active]
    exchange = fewer.exchange(rows)
    if model.keeps:
        residual = model.residual.copy()
        residual[active] = fewer.residual
        model.residual = residual
    model.iteration += 1
    return exchange


def _pieces(replicas: Replicas, fragment: Fragment, bucket: float) -> Iterator[tuple[list[int], slice]]:
    """Yield the tensors of each piece of a fragment, and its columns among those of the fragment."""
    piece: list[int] = []
    begin = end = 0
    for number in fragment.layers:
        size = replicas.tensors[number][1]
        if piece and _FLOAT * replicas.scale * (end + size - begin) > bucket:
            yield piece, slice(begin, end)
            piece, begin = [], end
        piece.append(number)
        end += size
    yield piece, slice(begin, end)


def broadcasts(replicas: Replicas, what: str, width: float, algorithm: str, workers: int, begin: int) -> list[Sync]:
    """Return the broadcasts of something that has as many entries as the parameters, one for each tensor.

    Parameters
    ----------
    replicas : Replicas
        The model.
    what : str
        What is broadcast, such as ``parameters``.
    width : float
        Bytes of an entry.
    algorithm : str
        How: a broadcast of `simnet.collectives.registry`.
    workers : int
        Workers that take part, of which the first one broadcasts.
    begin : int
        As of `Sync`.
    """
    chosen = registry.find("broadcast", algorithm)
    schedules = (chosen.schedule(workers, width * size * replicas.scale) for _, size in replicas.tensors)
    return [Sync(what, schedule, (), begin) for schedule in schedules]
