"""The network and the images of the convolutional family of traces: a residual network, and characters in typefaces.

References
----------
.. [he] K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

SIDE, FINE = 16, 48
"""Side [pixels] of an image, and of the undistorted character image."""

FACES = (
    *(f"DejaVuSans{kind}" for kind in ("", "-Bold", "-Oblique", "-BoldOblique", "Mono", "Mono-Bold")),
    *(f"DejaVuSerif{kind}" for kind in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{kind}" for kind in ("", "Bol", "Italic", "BolIta")),
)
"""The typefaces."""

CHARACTERS = string.ascii_letters + string.digits
"""The characters that images show; each is a class."""


def draw_glyphs() -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return letters and digits in all typefaces as images in [0, 1], (N, FINE, FINE), and the class of each."""
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


class Residual(nn.Module):
    """A residual block: two 3 x 3 convolutions, each followed by a norm, and a skip connection."""

    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = norm(after)
        self.downsample = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
            if before != after
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations of the block."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def convolutional(widths: Sequence[int], classes: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """Return a residual network for one-channel images [he]_: for each width a stage of two blocks.

    `norm` makes the norm of so many channels.
    """
    blocks = [
        Residual(widths[max(stage - (not block), 0)], width, 2 if stage and not block else 1, norm)
        for stage, width in enumerate(widths)
        for block in range(2)
    ]
    stem = [nn.Conv2d(1, widths[0], 3, 1, 1, bias=False), norm(widths[0]), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
