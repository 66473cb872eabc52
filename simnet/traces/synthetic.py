"""Synthetic gradients with the statistics of a recorded trace, for any number of workers, model and iteration.

Entry i of the gradient of worker w at iteration t, in layer l, is

    g = a(w, t) * rms(l, t) * s(i, t) * y(x),    x = sqrt(shared) * c(i, t) + sqrt(1 - shared) * e(w, i, t),

a mixture of Gaussians with random scales:

- e is the worker's own white noise; c is common to all workers. A part of c consists of a few constant normals with
  loadings that follow the progress of training; the rest is an autoregressive process of first order, or `turns`: one
  of two numbers that rotate by an angle w in an iteration and shrink to r = cos(w), plus noise. Over k iterations it
  correlates by r^k cos(k w), which sums to zero from k = 1 on. x is standard normal; two workers correlate by `shared`.
- y = x + tail * x |x|, at unit variance, makes a worker's magnitudes less even than a Gaussian's.
- s is the typical size of an entry at all workers, which makes their top-k sets overlap. A share `dead` of the entries
  is zero; log s of the others is normal with deviation `spread`. A part of log s is fixed; the rest changes with the
  logarithm of the iteration.
- rms, dead, spread, tail and shared follow the progress of training, or its logarithm. a is the size of a worker's
  gradient over the typical one: values of recorded workers in random order, or lognormal.

With a lognormal scale the tails are between those of generalised Gaussians and of Student's t.

Where the magnitudes of a layer follow no such law, they are given as quantiles (`simnet.traces.refining`). Then s (|x|
- shift) ranks the entries, with s and shift of kinds of entries (`simnet.traces.ordering`); log s over its deviation
decides the kind. Signs are those of x, or of c with a probability that grows with |c|, so in bands of kinds the mean
product of two workers' signs is as given (`simnet.traces.signs`). An entry that is large for its kind may have the sign
`against` c, as in output layers. A part of e may be constant normals of each worker, for what its shard has of its own.

Every draw comes from a stream named after the iteration, so any iteration can be computed without those before, with a
few arrays of length n in memory. Progress is a function of the iteration, not of the length of a job: a longer job
begins as a shorter one.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Values
from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs.models import Layer, ModelProfile, load_model
from simnet.traces import ordering
from simnet.traces.exponential import exponentiate
from simnet.traces.metadata import TABLES, LayerParameters, SyntheticParameters, load_parameters, most_similar_layer
from simnet.traces.ranked import Ranked, spread_evenly
from simnet.traces.source import as_matrices, output_buffer, shrink_sizes, training_progress

# It is computed afresh every so many iterations, from where it has forgotten all but a hundredth.
_RESTART, _FORGOTTEN = 64, 0.01

PIECE = 1 << 16
"""Entries computed at a time, few enough for the CPU cache."""


def skip_normals(draws: np.random.Generator, count: int) -> None:
    """Advance a random stream past `count` float32 standard normals."""
    for first in range(0, count, PIECE):
        draws.standard_normal(min(PIECE, count - first), dtype=np.float32)


class FadingNormals:
    """Standard normal numbers, one per entry, that follow an autoregressive process over iterations."""

    def __init__(self, entries: int, seed: int, memory: float, turns: bool) -> None:
        self._entries, self._seed, self._turns = entries, seed, turns
        self._kept = math.sqrt(memory) if turns else memory
        self._at, self._rows = -1, np.zeros((0, 0), dtype=np.float32)

    def at(self, iteration: int) -> Values:
        """Return the normals of an iteration, shape (n,); fast if the previous call was for an iteration just before.

        The row is valid until the next call.
        """
        restart = iteration - iteration % _RESTART
        at, rows = self._at, self._rows
        # Until it is there again, as it changes in place.
        self._at = -1
        if not restart <= at <= iteration or not len(rows):
            at = restart - (math.ceil(math.log(_FORGOTTEN, self._kept)) if self._kept > 0 else 0)
            rows = rows if len(rows) else np.empty((1 + self._turns, self._entries), dtype=np.float32)
            for fresh, normals in zip(rows, self._fresh_streams(at), strict=True):
                normals.standard_normal(dtype=np.float32, out=fresh)
        while at < iteration:
            at += 1
            self._advance(rows, self._fresh_streams(at))
        self._at, self._rows = at, rows
        return np.asarray(rows[0])

    def _fresh_streams(self, at: int) -> list[np.random.Generator]:
        """Return the random streams of the noise added in an iteration: one, or two if the process oscillates."""
        names: list[tuple[str | int, ...]] = [("common", at), ("common", at, "aside")]
        return [stream(self._seed, "gradients", *name) for name in names[: 1 + self._turns]]

    def _advance(self, rows: Values, news: list[np.random.Generator]) -> None:
        """Advance the process by an iteration in place: decay all values, rotate oscillating ones, and add noise."""
        turns, kept = self._turns, self._kept
        new_share = math.sqrt(1 - kept**2)
        shares = (kept**2, kept * new_share, new_share) if turns else (kept, 0.0, new_share)
        along, across, fresh = map(np.float32, shares)
        room = np.empty(PIECE, dtype=np.float32)
        for first in range(0, rows.shape[1], PIECE):
            one, *others = part = rows[:, first : first + PIECE]
            turned = [along * other + across * one for other in others]
            one *= along
            for other, new in zip(others, turned, strict=True):
                one -= across * other
                other[:] = new
            for row, normals in zip(part, news, strict=True):
                new = room[: row.size]
                normals.standard_normal(dtype=np.float32, out=new)
                new *= fresh
                row += new


_BLOCK, _ASIDE = 8192, 1 << 22
# Layers of at most so many entries have as many of each kind as is to be expected.
_SMALL = 1 << 14


class SyntheticSource:
    """A source of synthetic gradients; `synthetic` creates it."""

    def __init__(
        self, shapes: Sequence[Layer], workers: int, like: SyntheticParameters, iterations: int, scale: float, seed: int
    ) -> None:
        sizes = shrink_sizes([layer.size for layer in shapes], scale)
        self.layers = tuple((layer.name, size) for layer, size in zip(shapes, sizes, strict=True))
        self.workers = workers
        self.parameters = sum(sizes)
        self.true_parameters = sum(layer.size for layer in shapes)
        self.true_shapes = as_matrices(layer.shape for layer in shapes)
        self.scale = self.true_parameters / self.parameters
        self.like = like
        self._knots = [self._clock(knot) for knot in like.knots]
        self._iterations = iterations
        self._seed = seed
        self.made_of = (tuple(shapes), workers, like, iterations, scale, seed)
        """Everything that determines the gradients; sources with equal values have equal gradients."""
        self._kin = kin = [
            most_similar_layer(like.layers, layer.name, len(layer.shape) > 1, (index + 0.5) / len(shapes))
            for index, layer in enumerate(shapes)
        ]
        # Axes: which of TABLES, layer, knot.
        self._tables = np.array([[getattr(layer, name) for layer in kin] for name in TABLES])
        self._ordered = np.array([layer.magnitudes is not None for layer in kin])
        self._lasting, self._own = _loading_table(kin, "lasting"), _loading_table(kin, "own_lasting")
        self._ends = np.cumsum(sizes)
        self._places = [slice(end - size, end) for end, size in zip(self._ends.tolist(), sizes, strict=True)]
        self._pieces = [
            (layer, slice(first, min(first + PIECE, place.stop)))
            for layer, place in enumerate(self._places)
            for first in range(place.start, place.stop, PIECE)
        ]
        self._rows: dict[tuple[str | int, ...], Values] = {}
        self._remembered = FadingNormals(self.parameters, seed, like.memory, like.turns)
        self._logs = np.zeros(0, dtype=np.float32)

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients of all workers, float32 of shape (P, n)."""
        return self.gradients_of(range(self.workers), iteration, out)

    def gradients_of(self, workers: Sequence[int], iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients of some workers, given in ascending order, as float32.

        Progress is the share of `iterations`, and constant after them. `out`, float32 of shape (len(workers), n),
        receives the gradients.
        """
        gradients = output_buffer(out, len(workers), self.parameters)
        self._make(workers, iteration, gradients, adds=False)
        return gradients

    def add(self, iteration: int, rows: Values) -> None:
        """Add the gradients of an iteration to `rows`, contiguous float32 of shape (P, n)."""
        self._make(range(self.workers), iteration, rows, adds=True)

    def _make(self, workers: Sequence[int], iteration: int, rows: Values, *, adds: bool) -> None:
        """Write some workers' gradients of an iteration to `rows`, (P', n), or add them to `rows` if `adds`."""
        progress = training_progress(iteration, self._iterations)
        self._put_logs(iteration)
        common, factors = self._common(iteration, progress), self._factors(iteration, progress)[list(workers)]
        rms, dead, spread, tail, shared = self._at(self._tables, progress)
        # With these the mean square of s and that of y are one.
        rms = rms * np.exp(-(spread**2)) / np.sqrt(1 - dead)
        rms /= np.sqrt(1 + 4 * math.sqrt(2 / math.pi) * tail + 3 * tail**2)
        own = np.sqrt(1 - shared)
        lasting = self._at(self._own, progress)
        weights = np.array(
            [own * _rest_weight(lasting), np.sqrt(shared), rms, rms * tail, spread, dead], dtype=np.float32
        )
        scales = self._scaled(self._logs, weights[4:])
        orders = self._orders(progress)
        noise, kept = stream(self._seed, "gradients", "noise", iteration), self._normals("own", lasting)
        # What is added is made aside, some workers at a time.
        together = max(1, _ASIDE // self.parameters) if adds else len(rows)
        skips = [(worker - last - 1) * self.parameters for last, worker in pairwise([-1, *workers])]
        for first in range(0, len(rows), together):
            some = slice(first, first + together)
            made = np.empty_like(rows[some]) if adds else rows[some]
            for row, skip in zip(made, skips[some], strict=True):
                skip_normals(noise, skip)
                noise.standard_normal(dtype=np.float32, out=row)
            for layer, part in self._pieces:
                self._mix(layer, made[:, part], common[part], scales[part], weights[:4, layer], factors[some])
            for row, skip in zip(made, skips[some], strict=True):
                for one in kept:
                    skip_normals(one, skip)
                self._add_lasting(row, kept, lasting, own)
            self._put_in_order(made, orders, common, factors[some])
            if adds:
                rows[some] += made

    def _mix(self, layer: int, x: Values, common: Values, scales: Values, weights: Values, factors: Values) -> None:
        """Mix shared normals into a layer's normals `x`, (P, size); without fitted quantiles, also scale them."""
        own, joint, linear, square = weights
        x *= own
        x += joint * common
        if not self._ordered[layer]:
            y = np.abs(x)
            y *= square
            y += linear
            x *= y
            x *= scales
            x *= factors

    def _orders(self, progress: float) -> list[_LayerOrder]:
        """Return how to draw the magnitudes of layers with fitted quantiles; space normals of small layers evenly."""
        found = []
        for layer, place in zip(self._kin, self._places, strict=True):
            if layer.magnitudes is not None and layer.kinds is not None:
                shift, log_scale = np.array(layer.kinds).T
                magnitudes, shares, alike, against = (
                    self._at(np.array(table).T, progress)
                    for table in (layer.magnitudes, layer.shares, layer.agree_bands, layer.against)
                )
                ranked = Ranked(ordering.EntryKinds(shares / shares.sum(), shift, log_scale), magnitudes)
                if place.stop - place.start <= _SMALL:
                    life = float(self._row("life")[place.start])
                    self._logs[place] = spread_evenly(self._logs[place], life)
                found.append(_LayerOrder(place, ranked, alike, float(against)))
        return found

    def _put_in_order(self, gradients: Values, orders: Sequence[_LayerOrder], common: Values, factors: Values) -> None:
        """Turn normals into gradients, in place, in layers whose magnitudes have fitted quantiles."""
        magnitudes = np.empty((len(gradients), _BLOCK), dtype=np.float32)
        for place, ranked, alike, against in orders:
            for start in range(place.start, place.stop, _BLOCK):
                entries = slice(start, min(start + _BLOCK, place.stop))
                x, logs = gradients[:, entries], self._logs[entries]
                y = magnitudes[:, : x.shape[1]]
                ranked.magnitudes(x, logs, y)
                y *= factors
                if alike.any():
                    life = None if self.like.turns else self._row("life")[entries]
                    ranked.sign(x, logs, common[entries], alike, against, life)
                np.copysign(y, x, out=x)

    def _row(self, *name: str | int) -> Values:
        """Return random numbers, (n,), equal in all iterations: uniform for the name ``life``, otherwise normal."""
        if name not in self._rows:
            draws = stream(self._seed, "gradients", *name)
            if name == ("life",):
                self._rows[name] = draws.random(self.parameters, dtype=np.float32)
            else:
                self._rows[name] = np.empty(self.parameters, dtype=np.float32)
                draws.standard_normal(dtype=np.float32, out=self._rows[name])
        return self._rows[name]

    def _clock(self, progress: float) -> float:
        """Return the coordinate for interpolation at training progress 0 to 1: progress itself, or log(1 + step)."""
        linear = self.like.between == "linear"
        return progress if linear else math.log1p(progress * (self.like.steps - 1))

    def _at(self, table: NDArray[np.float64], progress: float) -> NDArray[np.float64]:
        """Return a table, whose last axis is the fitted steps (knots), interpolated at a training progress."""
        knots, at = self._knots, self._clock(progress)
        after = bisect_left(knots, at)
        if after == 0 or after == len(knots):
            return table[..., min(after, len(knots) - 1)]
        weight = (at - knots[after - 1]) / (knots[after] - knots[after - 1])
        return np.asarray((1 - weight) * table[..., after - 1] + weight * table[..., after])

    def _factors(self, iteration: int, progress: float) -> Values:
        """Return the factors, shape (P, 1), by which each worker's gradient is larger than a typical worker's."""
        random = stream(self._seed, "gradients", "worker", iteration)
        if self.like.worker_sizes is not None:
            sizes = self._at(np.array(self.like.worker_sizes).T, progress)
            groups = [random.permutation(sizes) for _ in range(0, self.workers, len(sizes))]
            return np.concatenate(groups)[: self.workers, None].astype(np.float32)
        spread = self._at(np.array(self.like.worker_spread), progress)
        draws = random.standard_normal((self.workers, 1))
        return np.exp(spread * draws).astype(np.float32)

    def _common(self, iteration: int, progress: float) -> Values:
        """Return the normals that all workers share, (n,): a constant part, and a part that changes over iterations."""
        then = self._remembered.at(iteration)
        loadings = self._at(self._lasting, progress)
        if not len(loadings):
            return then
        mixed = np.empty_like(then)
        for place, rest in zip(self._places, _rest_weight(loadings).tolist(), strict=True):
            np.multiply(then[place], np.float32(rest), out=mixed[place])
        self._add_lasting(mixed, self._normals("lasting", loadings), loadings, np.ones(len(self._places)))
        return mixed

    def _normals(self, name: str, loadings: Floats) -> list[np.random.Generator]:
        """Return a new random stream for each factor of `loadings`, which draws the same normals in every iteration."""
        return [stream(self._seed, "gradients", name, one) for one in range(len(loadings))]

    def _add_lasting(
        self, row: Values, normals: Sequence[np.random.Generator], loadings: Floats, scales: Floats
    ) -> None:
        """Add to `row` normals drawn from each stream, times the stream's loading and the scale of each layer."""
        drawn = np.empty_like(row) if normals else row
        for one, shares in zip(normals, loadings * scales, strict=True):
            one.standard_normal(dtype=np.float32, out=drawn)
            for place, share in zip(self._places, shares.tolist(), strict=True):
                drawn[place] *= np.float32(share)
            row += drawn

    def _put_logs(self, iteration: int) -> None:
        """Write normals that change slowly over iterations to `_logs`; the scales of entries are computed from them."""
        clock = math.log1p(iteration) / self.like.period
        before = math.floor(clock)
        names: list[tuple[str | int, ...]] = [("fixed",), ("anchor", before), ("anchor", before + 1)]
        self._rows = {name: row for name, row in self._rows.items() if name in (*names, ("life",))}
        self._logs = self._logs if self._logs.size else np.empty(self.parameters, dtype=np.float32)
        angle = math.pi / 2 * (clock - before)
        changing = math.sqrt(1 - self.like.fixed)
        shares = [math.sqrt(self.like.fixed), changing * math.cos(angle), changing * math.sin(angle)]
        fixed, first, second = (np.float32(one) for one in shares)
        constant, before_row, after_row = (self._row(*name) for name in names)
        for _, part in self._pieces:
            logs = np.multiply(fixed, constant[part], out=self._logs[part])
            logs += first * before_row[part]
            logs += second * after_row[part]

    def _scaled(self, logs: Values, spread_and_dead: Values) -> Values:
        """In layers without fitted quantiles, replace normals by log-normal entry scales, or 0 for dead entries."""
        if self._ordered.all():
            return logs
        life = self._row("life")
        for layer, part in self._pieces:
            if not self._ordered[layer]:
                deviation, dead = spread_and_dead[:, layer]
                piece = logs[part]
                piece *= deviation
                exponentiate(piece, out=piece)
                piece *= life[part] >= dead
        return logs


def _rest_weight(loadings: Floats) -> Floats:
    """Return, by layer, the weight of normals that add up to variance 1 with factors of `loadings`, (K, layers)."""
    return np.asarray(np.sqrt(np.maximum(1 - np.square(loadings).sum(axis=0), 0.0)))


def _loading_table(layers: Sequence[LayerParameters], name: str) -> Floats:
    """Return the loadings of all layers as a table (K, layers, knots), padded with zeros."""
    rows = [np.array(getattr(layer, name) or ((),) * len(layer.rms)) for layer in layers]
    most = max(row.shape[1] for row in rows)
    return np.array([np.pad(row, ((0, 0), (0, most - row.shape[1]))) for row in rows]).transpose(2, 0, 1)


class _LayerOrder(NamedTuple):
    """Layer with fitted quantiles: slice of its entries, how normals become magnitudes, and agreement of signs."""

    place: slice
    ranked: Ranked
    alike: Floats
    against: float


def row_count(*, lasts: bool = False, turns: bool = False) -> int:
    """Return how many arrays of n entries a synthetic source holds in memory.

    There are two more if a part of the noise that workers share is constant (`lasts`), and one more if the rest rotates
    (`turns`).
    """
    return 6 + 2 * lasts + turns


def synthetic(
    layers: str | ModelProfile | int | Sequence[tuple[str, tuple[int, ...]]],
    workers: int,
    *,
    like: str | os.PathLike[str] | SyntheticParameters = "digits",
    iterations: Count | None = None,
    scale: Annotated[float, Ge(1), Le(1e9)] = 1.0,
    seed: int = 0,
) -> SyntheticSource:
    """Return a source of synthetic gradients that resemble the gradients of a recorded trace.

    A layer gets the parameters of the fitted layer at the same relative depth: weights those of weights, biases and
    norms those of biases and norms, embeddings of words and of places those of such embeddings.

    Parameters
    ----------
    layers : str, ModelProfile, int or sequence of (name, shape)
        The model: its name (see `simnet.cost_models.costs.models.model_names`) or profile, its layers, or its number of
        parameters, which are then the weights of one layer.
    workers : int
        P, >= 1.
    like : str, Path or SyntheticParameters
        The name of a fitted trace that ships with simnet, the path of a JSON file, parameters, or ``auto``, the trace
        of the model's family: ``transformer`` for models with attention, ``convolutional`` for others with
        convolutions, else ``digits``.
    iterations : int, optional
        Iterations of the whole training; by default those of the recorded run: 400 of ``digits``, 133 of
        ``convolutional`` and ``transformer``, 13 rounds of ``...-local``. After them distributions stay constant.
    scale : float
        Generate only 1 / `scale` of the entries of each layer, at least one.
    seed : int
        Of everything random, >= 0.

    Raises
    ------
    ValueError
        If there is no such model or trace, or a parameter is out of range.
    InputError
        If a file cannot be read, or a field is missing, unknown or wrong.

    Examples
    --------
    >>> source = synthetic("resnet18", workers=4, scale=500, iterations=200)
    >>> source.parameters, source.scale * source.parameters
    (23403, 11689512.0)
    >>> bool((source.gradients(7) == synthetic("resnet18", 4, scale=500, iterations=200).gradients(7)).all())
    True
    """
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be >= 1, got {iterations}")
    shapes = _ordered_layers(layers)
    if not shapes or any(layer.size < 1 for layer in shapes):
        raise ValueError("every layer must have at least one entry, and there must be one")
    parameters = like if isinstance(like, SyntheticParameters) else load_parameters(like, shapes)
    return SyntheticSource(shapes, workers, parameters, iterations or parameters.steps, scale, seed)


def _ordered_layers(layers: str | ModelProfile | int | Sequence[tuple[str, tuple[int, ...]]]) -> list[Layer]:
    if isinstance(layers, str):
        layers = load_model(layers)
    if isinstance(layers, ModelProfile):
        return list(layers.layers)
    if isinstance(layers, int):
        return [Layer("weight", (1, layers))]
    return [Layer(name, tuple(shape)) for name, shape in layers]
