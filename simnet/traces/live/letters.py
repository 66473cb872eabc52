"""Images of letters and digits: characters in the typefaces of matplotlib, drawn with few pixels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE, FINE = 16, 48
"""Pixels of a side of an image, and of the character it is made of."""

FACES = (
    *(f"DejaVuSans{kind}" for kind in ("", "-Bold", "-Oblique", "-BoldOblique", "Mono", "Mono-Bold")),
    *(f"DejaVuSerif{kind}" for kind in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{kind}" for kind in ("", "Bol", "Italic", "BolIta")),
)
"""The typefaces."""

CHARACTERS = ascii_letters + digits
"""What is drawn, each character a class."""

TURN, SIZE, SHIFT, NOISE = 0.6, 0.4, 0.3, 0.15
"""How much images of a character differ: radians, size and place [half sides] from end to end, and grey of a pixel."""


@lru_cache(maxsize=1)
def draw_glyphs() -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return the characters in all typefaces as images (N, FINE, FINE) from 0 to 1, and the class of each."""
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import TextPath

    folder = Path(mpl.get_data_path(), "fonts", "ttf")
    axis = (np.arange(FINE) + 0.5) / FINE
    points = np.stack(np.meshgrid(axis, axis[::-1]), axis=2).reshape(-1, 2)
    images = []
    for face in FACES:
        font = FontProperties(fname=str(folder / f"{face}.ttf"))
        for character in CHARACTERS:
            path: Any = TextPath((0, 0), character, size=0.8, prop=font)
            low, high = path.get_extents().get_points()
            outline = Outline(path.vertices + 0.5 - (low + high) / 2, path.codes)
            # Holes are inside two outlines.
            inside = np.sum([one.contains_points(points) for one in _closed_path(outline)], axis=0) % 2
            images.append(inside.reshape(FINE, FINE))
    return np.array(images, dtype=np.float32), np.tile(np.arange(len(CHARACTERS)), len(FACES))


def _closed_path(path: Any) -> Iterator[Any]:
    starts = [*np.flatnonzero(path.codes == path.MOVETO), len(path.codes)]
    for start, end in pairwise(starts):
        yield type(path)(path.vertices[start:end], path.codes[start:end])


def distorted_images(images: NDArray[np.float32], draws: np.random.Generator) -> NDArray[np.float32]:
    """Return the images of `draw_glyphs` at SIDE x SIDE pixels, each rotated, shifted, scaled and with noise."""
    from scipy.ndimage import affine_transform

    turn, size, right, down = draws.random((4, len(images))) - 0.5
    size = 1.1 + SIZE * size
    sine, cosine = size * np.sin(TURN * turn), size * np.cos(TURN * turn)
    middle = (FINE - 1) / 2
    found = np.empty((len(images), SIDE, SIDE), dtype=np.float32)
    for number, image in enumerate(images):
        matrix = np.array([[cosine[number], sine[number]], [-sine[number], cosine[number]]])
        moved = SHIFT * FINE / 2 * np.array([down[number], right[number]])
        offset = middle + moved - matrix @ (middle, middle)
        drawn = affine_transform(image, matrix, offset, order=1)
        found[number] = drawn.reshape(SIDE, FINE // SIDE, SIDE, FINE // SIDE).mean(axis=(1, 3))
    found += np.float32(NOISE) * draws.standard_normal(found.shape, dtype=np.float32)
    return found
