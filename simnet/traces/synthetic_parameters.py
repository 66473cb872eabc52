"""The parameters of synthetic gradients, as a JSON file has them; `simnet.traces.synthetic` says what they mean."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from simnet.base.errors import nearest
from simnet.costs.layers import Layer
from simnet.traces import ordering
from simnet.traces.metadata import SHIPPED, Description, is_name, read_description
from simnet.traces.refining import BANDS, BEYOND, COARSE

AUTO = "auto"
"""The name that stands for the trace of a model's family."""

_FILE = "synthetic.json"

FURTHEST = 8
"""No standard normal is larger in as many draws as are ever made: one in 10^15 is."""

COMPONENTS = 3
"""Standard normals of which what lasts is made, at most."""

TABLES = ("rms", "dead", "spread", "tail", "shared")
"""Parameters of a layer with a value at each knot."""

LARGEST_DEVIATION = 5.0
"""Of the logarithms of scales, and of the sizes of workers."""

LARGEST_SIZE = 1e12
"""Of a worker's gradient, over what is typical."""

Between: TypeAlias = Literal["linear", "logarithmic"]
"""How tables go from knot to knot."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Deviation = Annotated[float, Field(ge=0, le=LARGEST_DEVIATION)]
_Size = Annotated[float, Field(gt=0, le=LARGEST_SIZE)]
_Weight = Annotated[float, Field(ge=0, le=1e6)]
_Kind = tuple[
    # No |x| is beyond 8, so that entries with a shift of as much would have no magnitudes.
    Annotated[float, Field(ge=-100, le=FURTHEST - 1)],
    Annotated[float, Field(ge=-ordering.LARGEST_LOG, le=ordering.LARGEST_LOG)],
]
_Magnitude = Annotated[float, Field(ge=0, le=3e38)]
_Bands = Annotated[tuple[_Share, ...], Field(min_length=len(BANDS) + 1, max_length=len(BANDS) + 1)]
_Loadings = Annotated[tuple[Annotated[float, Field(ge=-1, le=1)], ...], Field(max_length=COMPONENTS)]
_Quantiles = Annotated[tuple[_Magnitude, ...], Field(min_length=len(COARSE), max_length=len(BEYOND))]


class LayerParameters(Description):
    """The distribution of the entries of one layer, at the knots.

    Parameters
    ----------
    name : str
        Of the layer it was fitted to.
    matrix : bool
        Whether that layer has two dimensions or more, as weights do; biases and norms have one.
    rms : tuple of float
        Root mean square of the entries, at a worker with a = 1.
    dead : tuple of float
        Share of entries that are zero, within [0, 1).
    spread : tuple of float
        Standard deviation of log s of the others.
    tail : tuple of float
        Weight of x |x|.
    shared : tuple of float
        Correlation between two workers, within [0, 1].
    magnitudes : tuple of tuple of float, optional
        At each knot the quantiles of the magnitude, as `simnet.traces.refining` tabulates them; then rms and tail do
        not count, and the rest decides the order alone.
    kinds : tuple of (float, float), optional
        Shift and logarithm of the scale of each kind of entries, where magnitudes are given; see
        `simnet.traces.ordering`. Without them the scales are lognormal, and the dead entries are the smallest.
    shares : tuple of tuple of float, optional
        At each knot the share of each kind.
    agree : tuple of float, optional
        Mean product of the signs of two workers, at the knots, where kinds are given and workers share nothing else.
    agree_bands : tuple of tuple of float, optional
        The same at each knot in bands of kinds, from the smallest to the largest, in place of `agree`.
    against : tuple of float, optional
        At each knot what the sign of an entry that is large for its kind is to that of small ones of its place at other
        workers: from -1, the other, to 1, the same, which it is if not given.
    lasting : tuple of tuple of float, optional
        At each knot the loadings of standard normals of which c consists, beside what changes from iteration to
        iteration. The sum of their squares is at most one.
    own_lasting : tuple of tuple of float, optional
        The same of e, of which each worker has its own, where magnitudes are given.
    skew : float
        How much log s is bent then, within [-0.4, 1].
    """

    name: str
    matrix: bool
    rms: tuple[_Magnitude, ...]
    dead: tuple[Annotated[float, Field(ge=0, lt=1)], ...]
    spread: tuple[_Deviation, ...]
    tail: tuple[_Weight, ...]
    shared: tuple[_Share, ...]
    magnitudes: tuple[_Quantiles, ...] | None = None
    kinds: Annotated[tuple[_Kind, ...], Field(min_length=1)] | None = None
    shares: tuple[tuple[_Share, ...], ...] | None = None
    agree: tuple[_Share, ...] | None = None
    agree_bands: tuple[_Bands, ...] | None = None
    against: tuple[Annotated[float, Field(ge=-1, le=1)], ...] | None = None
    lasting: tuple[_Loadings, ...] | None = None
    own_lasting: tuple[_Loadings, ...] | None = None
    skew: Annotated[float, Field(ge=-0.4, le=1)] = 0.0


class SyntheticParameters(Description):
    """The parameters of synthetic gradients; `simnet.traces.fit` finds them.

    Parameters
    ----------
    version : 1
        Of this format.
    name : str
        Of the trace they were fitted to.
    steps : int
        Length of the recorded run.
    knots : tuple of float
        Progress of training, from 0 to 1, ascending, at which the tables hold.
    between : {"linear", "logarithmic"}
        Whether tables go from knot to knot with the step, or with the logarithm of 1 + step.
    worker_spread : tuple of float
        Standard deviation of log a at the knots.
    worker_sizes : tuple of tuple of float, optional
        Values of a at each knot, ascending, > 0; each group of so many workers has them in random order. Without them
        a is lognormal.
    memory : float
        Correlation of the rest of c from one iteration to the next, within [0, 0.9].
    turns : bool
        Whether the rest of c turns back, rather than fading away. Then each worker's sign follows that of c by chance;
        otherwise entries follow it at all workers or at none.
    fixed : float
        Share of the variance of log s that never changes, within [0, 1].
    period : float
        The rest is new when log(1 + iteration) has grown by this, > 0.
    layers : tuple of LayerParameters
        In the order of the gradient.
    """

    version: Literal[1] = 1
    name: str
    steps: Annotated[int, Field(ge=1)]
    knots: Annotated[tuple[_Share, ...], Field(min_length=1)]
    between: Between = "linear"
    worker_spread: tuple[_Deviation, ...]
    worker_sizes: tuple[Annotated[tuple[_Size, ...], Field(min_length=1)], ...] | None = None
    memory: Annotated[float, Field(ge=0, le=0.9)]
    turns: bool = False
    fixed: _Share
    period: Annotated[float, Field(ge=1e-3, le=1e9)]
    layers: Annotated[tuple[LayerParameters, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _tables(self) -> SyntheticParameters:
        if any(later <= earlier for earlier, later in pairwise(self.knots)):
            raise ValueError("knots must ascend")
        tables = [self.worker_spread, *(getattr(layer, name) for layer in self.layers for name in TABLES)]
        if any(len(table) != len(self.knots) for table in tables):
            raise ValueError(
                f"worker_spread, {', '.join(TABLES)} must have {len(self.knots)} values, one for each knot"
            )
        for layer in self.layers:
            if {len(row) for row in layer.magnitudes or ()} not in (set(), {len(BEYOND)}, {len(COARSE)}):
                raise ValueError(f"magnitudes of layer {layer.name!r} must have {len(BEYOND)} values at each knot")
            for quantiles in layer.magnitudes or ():
                if any(later < earlier for earlier, later in pairwise(quantiles)):
                    raise ValueError(f"magnitudes of layer {layer.name!r} must ascend")
            for name in ("magnitudes", "shares", "agree", "agree_bands", "against", "lasting", "own_lasting"):
                rows = getattr(layer, name)
                if rows is not None and len(rows) != len(self.knots):
                    raise ValueError(f"{name} must have {len(self.knots)} rows, one for each knot")
            for name in ("lasting", "own_lasting"):
                if any(sum(one**2 for one in row) > 1 + 1e-3 for row in getattr(layer, name) or ()):
                    raise ValueError(f"squares of {name} of layer {layer.name!r} must add up to at most 1 at each knot")
                if len({len(row) for row in getattr(layer, name) or ()}) > 1:
                    raise ValueError(f"{name} of layer {layer.name!r} must have as many values at each knot")
            if layer.own_lasting and layer.magnitudes is None:
                raise ValueError(f"layer {layer.name!r} must have magnitudes where it has own_lasting")
            if (layer.kinds is None) != (layer.shares is None) or (layer.kinds and layer.magnitudes is None):
                raise ValueError(f"layer {layer.name!r} must have kinds and shares, and then magnitudes, or neither")
            if any(len(row) != len(layer.kinds or ()) or not sum(row) for row in layer.shares or ()):
                raise ValueError(
                    f"shares of layer {layer.name!r} must have {len(layer.kinds or ())} values, not all zero"
                )
        if self.worker_sizes is not None:
            if len(self.worker_sizes) != len(self.knots):
                raise ValueError(f"worker_sizes must have {len(self.knots)} rows, one for each knot")
            if len({len(row) for row in self.worker_sizes}) > 1:
                raise ValueError("worker_sizes must have as many values at each knot")
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them to a JSON file, which `synthetic` reads."""
        content = self.model_dump_json(indent=1, exclude_none=True)
        Path(path).write_text(content + "\n", encoding="utf-8")


def parameters_of(like: str | os.PathLike[str], layers: Sequence[Layer]) -> SyntheticParameters:
    """Return what gradients are to be like.

    Parameters
    ----------
    like : str or Path
        The name of a trace that comes with simnet and was fitted, ``auto``, or the path of a JSON file.
    layers : sequence of Layer
        Of the model, by which ``auto`` goes.

    Raises
    ------
    ValueError
        If there is no such trace.
    InputError
        If a file cannot be read, or a field is missing, unknown or wrong.
    """
    if not is_name(like):
        return read_description(SyntheticParameters, Path(like))
    known = {path.parent.name: path for path in SHIPPED.glob(f"*/{_FILE}")}
    name = family(layers) if like == AUTO else like
    if name not in known:
        allowed = [*known, AUTO]
        raise ValueError(f"no trace {like!r} to be like (nor is it a .json file): {nearest(str(like), allowed)}")
    return read_description(SyntheticParameters, known[name])


def family(layers: Sequence[Layer]) -> str:
    """Return which trace is of the family of a model.

    Parameters
    ----------
    layers : sequence of Layer
        Of the model, with names as in PyTorch.

    Examples
    --------
    >>> from simnet.costs.models import load_model
    >>> [family(load_model(name).layers) for name in ("resnet50", "gpt2", "vit-l-16")]
    ['convolutional', 'transformer', 'transformer']
    >>> family([Layer("fc.weight", (10, 64))])
    'digits'
    """
    if any(re.search("attn|attention", layer.name) for layer in layers):
        return "transformer"
    return "convolutional" if any(len(layer.shape) > 3 for layer in layers) else "digits"


def most_alike(layers: Sequence[LayerParameters], name: str, matrix: bool, depth: float) -> LayerParameters:
    """Return the fitted layer that another one resembles.

    Parameters
    ----------
    layers : sequence of LayerParameters
        Those that are fitted, from the first to the last.
    name : str
        Of the other one. Embeddings of words, and of places, resemble such embeddings, and no others do, if there are
        any.
    matrix : bool
        Whether the other one is a matrix; one of the same kind is returned if there is one.
    depth : float
        The relative depth of the other one, in [0, 1]; of those of its kind the nearest is returned.
    """
    kind = [one for one, fitted in enumerate(layers) if fitted.matrix == matrix]
    role = [one for one in kind if _embeds(layers[one].name) == _embeds(name)]
    among = role or kind or range(len(layers))
    return layers[min(among, key=lambda one: abs((one + 0.5) / len(layers) - depth))]


def _embeds(name: str) -> str:
    """Return what a layer embeds by its name, as in PyTorch: words, places, or nothing."""
    if re.search("wpe|pos(ition)?_emb", name):
        return "places"
    return "words" if re.search("wte|word_emb|tok(en)?_emb", name) else ""
