"""Training data sets that need no download, and their division into a shard for each worker.

=================  ===========================================================================================
``digits``         1797 handwritten digits of 8 x 8 pixels, which come with scikit-learn
``classification``  made-up points of any number of classes, each of several Gaussian clouds
``words``          documentation of Python's standard library; the next word at every place
=================  ===========================================================================================

A part of each is held out to measure loss and accuracy on.

References
----------
.. [hsu] T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
   Classification", arXiv 1909.06335: shards by Dirichlet distributions of the classes.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from simnet.base.errors import SimnetError, import_extra
from simnet.base.quantities import SHARE
from simnet.base.rng import stream

TOPICS = 10
"""In how many equal parts the text falls, in the order of the files; stretches of one part are of a kind."""

_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]+|\d|\n|[^\sA-Za-z_\d]")


@lru_cache(maxsize=2)
def read_prose(vocabulary: int, context: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return word sequences from docstrings of Python's standard library, shape (N, context + 1), and topics, (N,).

    A stretch begins with the word that the one before ends with. The words are the most frequent ones; others are 0.
    """
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))
    texts = [path.read_text("utf-8", "replace") for path in files if not {"site-packages", "test"} & {*path.parts}]
    words = [word for text in texts for quoted in _QUOTED.findall(text) for word in _WORD.findall(quoted)]
    numbers = {word: number for number, (word, _) in enumerate(Counter(words).most_common(vocabulary - 1), start=1)}
    flat = np.array([numbers.get(word, 0) for word in words], dtype=np.intp)
    count = len(flat) // context - 1
    if count < TOPICS:
        raise SimnetError(f"only {len(flat)} words of documentation were found, too few to train on")
    stretches = np.lib.stride_tricks.sliding_window_view(flat, context + 1)[::context][:count]
    return stretches.copy(), np.arange(count) * TOPICS // count


DATA = ("digits", "classification", "words")
"""Names of the data sets."""

_PIXEL = 16.0
_DIGITS_HELD_OUT = 357
_CLOUDS = 3
_SHARE_HELD_OUT = 0.2


class Data(NamedTuple):
    """A data set for supervised learning: examples for training, and examples held out for evaluation."""

    # Shape (N, d): Numbers, or symbols if `symbols` > 0.
    inputs: NDArray[Any]
    # Shape (N,): The class of each example, or of each of its places, from 0.
    targets: NDArray[np.intp]
    # The same of the held-out examples.
    held_inputs: NDArray[Any]
    held_targets: NDArray[np.intp]
    classes: int
    # Shape of an example as an image, (channels, rows, columns), or (d,).
    shape: tuple[int, ...]
    # Number of different symbols; 0 if inputs are numbers.
    symbols: int = 0
    # Shape (N,): What shards may differ by; the class when omitted.
    kinds: NDArray[np.intp] | None = None


@lru_cache(maxsize=1)
def digits() -> Data:
    """Return scikit-learn's handwritten digits: 1440 for training, 357 held out, with pixels between 0 and 1."""
    datasets = import_extra("sklearn.datasets", "digits", "the digits come with scikit-learn")
    pixels, labels = datasets.load_digits(return_X_y=True)
    order = stream(0, "live", "digits").permutation(len(labels))
    inputs = (pixels[order] / _PIXEL).astype(np.float32)
    targets = labels[order].astype(np.intp)
    cut = len(order) - _DIGITS_HELD_OUT
    return Data(inputs[:cut], targets[:cut], inputs[cut:], targets[cut:], 10, (1, 8, 8))


def classification(
    samples: Annotated[int, Ge(10), Le(10**8)] = 10_000,
    features: Annotated[int, Ge(1), Le(10**6)] = 64,
    classes: Annotated[int, Ge(2), Le(10**5)] = 10,
    noise: Annotated[float, Ge(0), Le(1e6)] = 2.5,
    seed: int = 0,
) -> Data:
    """Return synthetic points of several classes, each three Gaussian clouds, so that no plane separates two classes.

    Parameters
    ----------
    samples : int
        Points to train on; a fifth as many more are held out.
    features, classes : int
        Coordinates of a point, and number of classes.
    noise : float
        Standard deviation of a cloud in each coordinate; that of the centres is 1.
    seed : int
        Seed of the points.
    """
    draws = stream(seed, "live", "classification")
    centres = draws.standard_normal((classes, _CLOUDS, features), dtype=np.float32)
    count = samples + max(1, round(_SHARE_HELD_OUT * samples))
    targets = draws.permutation(np.arange(count) % classes).astype(np.intp)
    clouds = draws.integers(_CLOUDS, size=count)
    inputs = draws.standard_normal((count, features), dtype=np.float32)
    inputs *= np.float32(noise)
    inputs += centres[targets, clouds]
    inputs /= np.float32(np.hypot(1.0, noise))
    return Data(inputs[:samples], targets[:samples], inputs[samples:], targets[samples:], classes, (features,))


def words(
    vocabulary: Annotated[int, Ge(2), Le(2**16)] = 4096,
    context: Annotated[int, Ge(1), Le(1024)] = 64,
    held_out: Annotated[float, Gt(0), Lt(1), SHARE] = 0.1,
) -> Data:
    """Return word sequences from the documentation in Python's standard library, with the next word at each position.

    Shards may differ by the place in the library; a random share of the stretches is held out.

    Parameters
    ----------
    vocabulary : int
        Number of different words.
    context : int
        Words of a stretch.
    held_out : float
        Share of the stretches that are held out; measuring loss and accuracy takes time in proportion.
    """
    stretches, topics = read_prose(vocabulary, context)
    order = stream(0, "live", "words").permutation(len(stretches))
    cut = max(1, round(held_out * len(order)))
    held, own = stretches[order[:cut]], stretches[order[cut:]]
    inputs, held_inputs = (one[:, :-1].astype(np.uint16) for one in (own, held))
    return Data(
        inputs, own[:, 1:], held_inputs, held[:, 1:], vocabulary, (context,), vocabulary, kinds=topics[order[cut:]]
    )


def deal_shards(
    targets: NDArray[np.intp], workers: int, classes: int, dirichlet: float | None = None, seed: int = 0
) -> list[NDArray[np.intp]]:
    """Return the indices of each worker's examples, at least one per worker; `targets`, (N,), has the example classes.

    With `dirichlet`, a concentration, each class is dealt out by shares from a symmetric Dirichlet distribution, as in
    [hsu]_ but class by class; small values give every worker few classes. Otherwise shards are random, of equal size.
    """
    if len(targets) < workers:
        raise SimnetError(f"{workers} workers cannot share {len(targets)} examples; each needs one at least")
    draws = stream(seed, "live", "shards")
    if dirichlet is None:
        return [np.sort(shard) for shard in np.array_split(draws.permutation(len(targets)), workers)]
    dealt: list[list[NDArray[np.intp]]] = [[] for _ in range(workers)]
    for number in range(classes):
        members = draws.permutation(np.flatnonzero(targets == number))
        shares = draws.dirichlet(np.full(workers, dirichlet))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.intp)
        for own, part in zip(dealt, np.split(members, cuts), strict=True):
            own.append(part)
    return _none_empty([np.sort(np.concatenate(own)) for own in dealt])


def _none_empty(found: Sequence[NDArray[np.intp]]) -> list[NDArray[np.intp]]:
    """Move one example to each worker without examples, from the worker with the most examples."""
    filled = list(found)
    for worker in range(len(filled)):
        if not filled[worker].size:
            most = max(range(len(filled)), key=lambda other: filled[other].size)
            filled[worker], filled[most] = filled[most][:1], filled[most][1:]
    return filled
