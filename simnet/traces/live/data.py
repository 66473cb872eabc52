"""Data to train on that need no download, and the shards of the workers.

=================  ===========================================================================================
``digits``         1797 handwritten digits of 8 x 8 pixels, which come with scikit-learn
``classification``  points of any number of classes, each of several Gaussian clouds; made up
``docstrings``     the documentation strings of Python's standard library, character by character: which one is
                   next, given those before it; they differ a little between versions of Python
``letters``        letters and digits in the typefaces that matplotlib brings, as images of 16 x 16 pixels
``words``          the documentation of the standard library, word by word: which one is next, at every place
=================  ===========================================================================================

A part of each is held out of the training, to measure loss and accuracy on.

References
----------
.. [hsu] T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
   Classification", arXiv 1909.06335: shards by Dirichlet distributions of the classes.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from simnet.base.errors import SimnetError, to_install
from simnet.base.rng import stream
from simnet.traces.live.letters import CHARACTERS, SIDE, glyphs, seen
from simnet.traces.live.words import prose

DATA = ("digits", "classification", "docstrings", "letters", "words")
"""What there is to train on."""

ALPHABET = " \nabcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"`()[]{}<>=+-*/_#%@|&\\"
"""The characters of `docstrings`; others are read as a space, capitals as small letters."""

_PIXEL = 16.0
_DIGITS_HELD_OUT = 357
_CLOUDS = 3
_SHARE_HELD_OUT = 0.2
_TEXT_HELD_OUT = 0.1


class Data(NamedTuple):
    """Examples to train on, and others that are held out.

    Parameters
    ----------
    inputs : ndarray of float32 or uint8, shape (N, d)
        Numbers or, where `symbols` says so, symbols.
    targets : ndarray of int, shape (N,) or (N, d)
        The class of each, or of each of its places, from 0.
    held_inputs, held_targets : ndarray
        The same of the examples held out.
    classes : int
        How many classes there are.
    shape : tuple of int
        An example as an image, (channels, rows, columns), or (d,).
    symbols : int
        How many different symbols an input may be; 0 if inputs are numbers.
    kinds : ndarray of int, shape (N,), optional
        By what shards may differ; the class when omitted.
    """

    inputs: NDArray[Any]
    targets: NDArray[np.intp]
    held_inputs: NDArray[Any]
    held_targets: NDArray[np.intp]
    classes: int
    shape: tuple[int, ...]
    symbols: int = 0
    kinds: NDArray[np.intp] | None = None

    @property
    def features(self) -> int:
        """Numbers that stand for an example, each symbol as one of `symbols` numbers that is 1."""
        return int(self.inputs.shape[1]) * max(self.symbols, 1)


@lru_cache(maxsize=1)
def digits() -> Data:
    """Return scikit-learn's handwritten digits: 1440 to train on, 357 held out, pixels between 0 and 1.

    Raises
    ------
    SimnetError
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SimnetError(f"the digits come with scikit-learn: {to_install('digits')}") from None
    pixels, labels = load_digits(return_X_y=True)
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
    """Return points of several classes, each of three Gaussian clouds, so that no plane parts two classes.

    Parameters
    ----------
    samples : int
        Points to train on; a fifth as many more are held out.
    features : int
        Coordinates of a point.
    classes : int
        How many.
    noise : float
        Standard deviation of a cloud in each coordinate; that of the centres is 1.
    seed : int
        Decides on the points.

    Examples
    --------
    >>> data = classification(samples=100, features=8, classes=3)
    >>> data.inputs.shape, data.held_inputs.shape, sorted(set(data.targets.tolist()))
    ((100, 8), (20, 8), [0, 1, 2])
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


def docstrings(
    context: Annotated[int, Ge(1), Le(256)] = 8, characters: Annotated[int, Ge(1000), Le(10**7)] = 200_000
) -> Data:
    """Return stretches of the standard library's documentation strings, and the character that comes after each.

    Parameters
    ----------
    context : int
        Characters before the one to foretell.
    characters : int
        Length of the text, of which the last tenth is held out; less if there are not so many.

    Raises
    ------
    SimnetError
        If the sources of the standard library are not there, or have too little text.

    Examples
    --------
    >>> data = docstrings(context=4, characters=2000)
    >>> data.inputs.shape, data.symbols == data.classes == len(ALPHABET)
    ((1796, 4), True)
    """
    symbols = _text(characters)
    cut = len(symbols) - max(context + 1, round(_TEXT_HELD_OUT * len(symbols)))
    if cut <= context:
        raise SimnetError(f"only {len(symbols)} characters of documentation were found, too few to train on")
    parts = []
    for text in (symbols[:cut], symbols[cut:]):
        windows = np.lib.stride_tricks.sliding_window_view(text, context + 1)
        parts.append((windows[:, :-1], windows[:, -1].astype(np.intp)))
    (inputs, targets), (held_inputs, held_targets) = parts
    return Data(inputs, targets, held_inputs, held_targets, len(ALPHABET), (context,), len(ALPHABET))


def letters(drawings: Annotated[int, Ge(2), Le(1000)] = 6) -> Data:
    """Return letters and digits as images of 16 x 16 pixels, each turned, moved, larger or smaller, and with noise.

    Parameters
    ----------
    drawings : int
        Images of each character in each of 14 typefaces. So many characters as there are in all typefaces, drawn once
        more, are held out.

    Examples
    --------
    >>> data = letters(drawings=2)
    >>> data.inputs.shape, data.held_inputs.shape, data.classes
    ((1736, 256), (868, 256), 62)
    """
    images, kinds = glyphs()
    draws = stream(0, "live", "letters")
    inputs = np.concatenate([seen(images, draws).reshape(len(images), -1) for _ in range(drawings + 1)])
    targets, held = np.tile(kinds, drawings + 1), len(images)
    return Data(inputs[held:], targets[held:], inputs[:held], targets[:held], len(CHARACTERS), (1, SIDE, SIDE))


def words(vocabulary: Annotated[int, Ge(2), Le(2**16)] = 4096, context: Annotated[int, Ge(1), Le(1024)] = 64) -> Data:
    """Return stretches of the standard library's documentation as words, and at each place the word that comes next.

    Shards may differ by where in the library a stretch is from; a tenth of the stretches, drawn at random, is held out.

    Parameters
    ----------
    vocabulary : int
        How many words are told apart.
    context : int
        Words of a stretch.

    Raises
    ------
    SimnetError
        If the sources of the standard library are not there, or have too little text.

    Examples
    --------
    >>> data = words(vocabulary=100, context=16)
    >>> bool((data.inputs[:, 1:] == data.targets[:, :-1]).all()), data.symbols
    (True, 100)
    """
    stretches, topics = prose(vocabulary, context)
    order = stream(0, "live", "words").permutation(len(stretches))
    cut = max(1, round(_TEXT_HELD_OUT * len(order)))
    held, own = stretches[order[:cut]], stretches[order[cut:]]
    inputs, held_inputs = (one[:, :-1].astype(np.uint16) for one in (own, held))
    return Data(
        inputs, own[:, 1:], held_inputs, held[:, 1:], vocabulary, (context,), vocabulary, kinds=topics[order[cut:]]
    )


@lru_cache(maxsize=2)
def _text(characters: int) -> NDArray[np.uint8]:
    found: list[str] = []
    count = 0
    for text in _documentation():
        found.append(text)
        count += len(text) + 1
        if count >= characters:
            break
    table = np.zeros(256, dtype=np.uint8)
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    raw = "\n".join(found).lower().encode("latin-1", errors="replace")[:characters]
    return table[np.frombuffer(raw, dtype=np.uint8)]


def _documentation() -> Iterator[str]:
    """Yield the documentation strings of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield text


def shards(
    targets: NDArray[np.intp], workers: int, classes: int, dirichlet: float | None = None, seed: int = 0
) -> list[NDArray[np.intp]]:
    """Deal examples out to workers; every example goes to one, and every worker gets one at least.

    Parameters
    ----------
    targets : ndarray of int, shape (N,)
        The class of each example.
    workers : int
        P.
    classes : int
        How many classes there are.
    dirichlet : float, optional
        How alike the shards are: each class is dealt out by shares from a symmetric Dirichlet distribution with this
        parameter, as in [hsu]_ but class by class; small values give every worker few classes. Without it the shards
        are of equal size and drawn at random.
    seed : int
        Decides.

    Returns
    -------
    list of ndarray of int
        Which examples each worker has.

    Raises
    ------
    SimnetError
        If there are fewer examples than workers.

    Examples
    --------
    >>> [len(shard) for shard in shards(np.zeros(10, dtype=int), 3, 1)]
    [4, 3, 3]
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
    """Give those that have nothing an example of the one that has most."""
    filled = list(found)
    for worker in range(len(filled)):
        if not filled[worker].size:
            most = max(range(len(filled)), key=lambda other: filled[other].size)
            filled[worker], filled[most] = filled[most][:1], filled[most][1:]
    return filled
