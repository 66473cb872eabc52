"""Tensors of known networks, in the names, shapes and order of their reference implementations.

References: torchvision; Hugging Face transformers for BERT, GPT-2, Llama and its kin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple


class Layer(NamedTuple):
    """A tensor of parameters."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def _weight_and_bias(name: str, *shape: int) -> Iterator[Layer]:
    yield Layer(f"{name}.weight", shape)
    yield Layer(f"{name}.bias", shape[:1])


def resnet_layers(blocks: tuple[int, ...], kernels: tuple[int, ...], expansion: int) -> Iterator[Layer]:
    """Yield the tensors of a residual network: stages of blocks, each a convolution per kernel size with batch norm."""
    yield Layer("conv1.weight", (64, 3, 7, 7))
    yield from _weight_and_bias("bn1", 64)
    inputs = 64
    for stage, count in enumerate(blocks):
        width, outputs = 64 << stage, expansion * 64 << stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            widths = (inputs, *[width] * (len(kernels) - 1), outputs)
            for index, kernel in enumerate(kernels, start=1):
                yield Layer(f"{at}.conv{index}.weight", (widths[index], widths[index - 1], kernel, kernel))
                yield from _weight_and_bias(f"{at}.bn{index}", widths[index])
            if inputs != outputs:
                yield Layer(f"{at}.downsample.0.weight", (outputs, inputs, 1, 1))
                yield from _weight_and_bias(f"{at}.downsample.1", outputs)
            inputs = outputs
    yield from _weight_and_bias("fc", 1000, inputs)


def vgg_layers(*stages: tuple[int, ...]) -> Iterator[Layer]:
    """Yield the tensors of a VGG: stages of 3 x 3 convolutions of these widths, and three fully connected layers."""
    index, inputs = 0, 3
    for stage in stages:
        for width in stage:
            yield from _weight_and_bias(f"features.{index}", width, inputs, 3, 3)
            index, inputs = index + 2, width
        index += 1
    yield from _weight_and_bias("classifier.0", 4096, inputs * 7 * 7)
    yield from _weight_and_bias("classifier.3", 4096, 4096)
    yield from _weight_and_bias("classifier.6", 1000, 4096)


def alexnet_layers() -> Iterator[Layer]:
    """Yield the tensors of AlexNet."""
    yield from _weight_and_bias("features.0", 64, 3, 11, 11)
    yield from _weight_and_bias("features.3", 192, 64, 5, 5)
    yield from _weight_and_bias("features.6", 384, 192, 3, 3)
    yield from _weight_and_bias("features.8", 256, 384, 3, 3)
    yield from _weight_and_bias("features.10", 256, 256, 3, 3)
    yield from _weight_and_bias("classifier.1", 4096, 256 * 6 * 6)
    yield from _weight_and_bias("classifier.4", 4096, 4096)
    yield from _weight_and_bias("classifier.6", 1000, 4096)


def vit_layers(layers: int, width: int, patch: int, image: int) -> Iterator[Layer]:
    """Yield the tensors of a vision transformer."""
    yield Layer("class_token", (1, 1, width))
    yield from _weight_and_bias("conv_proj", width, 3, patch, patch)
    yield Layer("encoder.pos_embedding", (1, (image // patch) ** 2 + 1, width))
    for index in range(layers):
        at = f"encoder.layers.encoder_layer_{index}"
        yield from _weight_and_bias(f"{at}.ln_1", width)
        yield Layer(f"{at}.self_attention.in_proj_weight", (3 * width, width))
        yield Layer(f"{at}.self_attention.in_proj_bias", (3 * width,))
        yield from _weight_and_bias(f"{at}.self_attention.out_proj", width, width)
        yield from _weight_and_bias(f"{at}.ln_2", width)
        yield from _weight_and_bias(f"{at}.mlp.0", 4 * width, width)
        yield from _weight_and_bias(f"{at}.mlp.3", width, 4 * width)
    yield from _weight_and_bias("encoder.ln", width)
    yield from _weight_and_bias("heads.head", 1000, width)


class TransformerShape(NamedTuple):
    """Sizes of a transformer: blocks, width of the model and of the perceptron (`inside`), rows of the embeddings.

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


def _bert_layers(shape: TransformerShape) -> Iterator[Layer]:
    width = shape.width
    for what, rows in (("word", shape.vocabulary), ("position", shape.positions), ("token_type", shape.types)):
        yield Layer(f"embeddings.{what}_embeddings.weight", (rows, width))
    yield from _weight_and_bias("embeddings.LayerNorm", width)
    for index in range(shape.layers):
        at = f"encoder.layer.{index}"
        for what in ("query", "key", "value"):
            yield from _weight_and_bias(f"{at}.attention.self.{what}", width, width)
        yield from _weight_and_bias(f"{at}.attention.output.dense", width, width)
        yield from _weight_and_bias(f"{at}.attention.output.LayerNorm", width)
        yield from _weight_and_bias(f"{at}.intermediate.dense", shape.inside, width)
        yield from _weight_and_bias(f"{at}.output.dense", width, shape.inside)
        yield from _weight_and_bias(f"{at}.output.LayerNorm", width)
    yield from _weight_and_bias("pooler.dense", width, width)


def _gpt2_layers(shape: TransformerShape) -> Iterator[Layer]:
    # The weights of a block stand as (inputs, outputs).
    width, inside = shape.width, shape.inside
    yield Layer("wte.weight", (shape.vocabulary, width))
    yield Layer("wpe.weight", (shape.positions, width))
    block = {
        "ln_1": (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width)),
        "ln_2": (("mlp.c_fc", width, inside), ("mlp.c_proj", inside, width)),
    }
    for index in range(shape.layers):
        for norm, following in block.items():
            yield from _weight_and_bias(f"h.{index}.{norm}", width)
            for what, inputs, outputs in following:
                yield Layer(f"h.{index}.{what}.weight", (inputs, outputs))
                yield Layer(f"h.{index}.{what}.bias", (outputs,))
    yield from _weight_and_bias("ln_f", width)
    if not shape.tied:
        yield Layer("lm_head.weight", (shape.vocabulary, width))


def _gated_layers(shape: TransformerShape) -> Iterator[Layer]:
    # Llama and what is built like it: queries may have more heads than keys and values, the perceptron is gated.
    width, inside, (inputs_bias, output_bias, inside_bias) = shape.width, shape.inside, shape.biases
    projections = (
        ("self_attn.q", shape.queries, width, inputs_bias),
        ("self_attn.k", shape.keys, width, inputs_bias),
        ("self_attn.v", shape.keys, width, inputs_bias),
        ("self_attn.o", width, shape.queries, output_bias),
        ("mlp.gate", inside, width, inside_bias),
        ("mlp.up", inside, width, inside_bias),
        ("mlp.down", width, inside, inside_bias),
    )
    yield Layer("model.embed_tokens.weight", (shape.vocabulary, width))
    for index in range(shape.layers):
        at = f"model.layers.{index}"
        for what, outputs, inputs, has_bias in projections:
            both = _weight_and_bias(f"{at}.{what}_proj", outputs, inputs)
            yield from both if has_bias else islice(both, 1)
        for what in ("input", "post_attention"):
            yield Layer(f"{at}.{what}_layernorm.weight", (width,))
    yield Layer("model.norm.weight", (width,))
    if not shape.tied:
        yield Layer("lm_head.weight", (shape.vocabulary, width))


def transformer_layers(shape: TransformerShape) -> tuple[Layer, ...]:
    """Return the tensors of a transformer; the embeddings of words come first."""
    kinds = {"bert": _bert_layers, "gpt2": _gpt2_layers}
    return tuple(kinds.get(shape.kind, _gated_layers)(shape))
