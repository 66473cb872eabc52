"""Parameter tensors of known networks, with names, shapes and order of the reference implementations.

`data/layers.csv` has them: sides are numbers or fields of `TransformerShape`, and a star is the number of a block.
"""

# References: torchvision; Hugging Face transformers for BERT, GPT-2, Llama and its kin.

from __future__ import annotations

import math
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

from simnet.base.reading import read_shipped_rows


class Layer(NamedTuple):
    """A parameter tensor: its name and shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class TransformerShape(NamedTuple):
    """A transformer's sizes: blocks, model width, perceptron width (`inside`), embedding rows.

    `kind` is its ``model_type``; `queries` and `keys` are outputs of projections in Llama and its kin, `biases` those
    of queries, keys and values, of the attention's output and of the perceptron there; `tied` output layers use the
    embeddings.
    """

    kind: str
    layers: int
    width: int
    inside: int
    vocabulary: int
    positions: int = 0
    types: int = 0
    queries: int = 0
    keys: int = 0
    biases: tuple[bool, bool, bool] = (False, False, False)
    tied: bool = False


_layer_rows = cache(partial(read_shipped_rows, "data/layers.csv"))


def network_layers(network: str) -> tuple[Layer, ...]:
    """Return the parameter tensors of a network without size options, by name."""
    return transformer_layers(TransformerShape(network, 0, 0, 0, 0))


def transformer_layers(shape: TransformerShape) -> tuple[Layer, ...]:
    """Return the parameter tensors of a transformer, word embeddings first."""
    biases = dict(zip(("inputs biases", "output biases", "inside biases"), shape.biases, strict=True))
    conditions = {"": True, "untied": not shape.tied} | biases
    kind = "llama" if shape.kind in ("mistral", "qwen2") else shape.kind
    rows = [row for row in _layer_rows() if row["network"] == kind and conditions[row["if"]]]
    found: list[Layer] = []
    for in_block, group in groupby(rows, key=lambda row: "*" in row["tensor"]):
        part = [(row["tensor"], tuple(_side(one, shape) for one in row["shape"].split())) for row in group]
        for block in range(shape.layers if in_block else 1):
            found += [Layer(name.replace("*", str(block)), sides) for name, sides in part]
    return tuple(found)


def _side(text: str, shape: TransformerShape) -> int:
    """Return a tensor dimension from text: a number, a field of `shape`, or a multiple such as ``3*width``."""
    times, _, name = text.rpartition("*")
    return int(text) if text.isdigit() else int(times or 1) * int(getattr(shape, name))
