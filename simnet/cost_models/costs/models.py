"""Known neural networks: their gradient tensors, and the time of a forward and backward pass.

`data/layers.csv` has the tensors: sides are numbers or fields of `TransformerShape`, and a star is the number of a
block. Their names, shapes and order are those of the reference implementation (torchvision; Hugging Face transformers
for BERT, GPT-2, Llama and its kin). A ``config.json`` of transformers is a network, too.

Compute times are of one NVIDIA V100 in single precision, that of Llama of an H100 in bfloat16; each says whether it was
measured, and by whom, or is an estimate. `simnet.cost_models.costs.computing` has those of other devices.
"""

# References. [artopk] S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable
# Networks", IEEE BigData 2023, arXiv 2312.02493: Fig. 1a (single node, V100) and Tables III-IV. Neither the image
# sizes nor the batch of Fig. 1a are stated; the batches here are those of its training runs. [u39kun]
# github.com/u39kun/deep-learning-benchmark, README: PyTorch 0.3.0, "V100 (Amazon p3)", 32-bit. [nvidia]
# github.com/NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT, README, "Pre-training training
# performance: single-node", one V100, FP32, BERT-large, 128 tokens: 39.43 sequences/s at batch size 8 (16 GB), 46.78
# at 32 (32 GB). [llama] "The Llama 3 Herd of Models", arXiv 2407.21783, Table 3: 32 layers, width 4,096, 14,336
# inside, 32 heads, 8 of them of keys and values; 128,256 rows as released. [torchtitan]
# github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, Table 1. [gpt] Sizes of D. Narayanan et
# al., SC 2021 (arXiv 2104.04473), Table 1, 18.4 billion of 40 layers of 6,144, and of github.com/hpdps-group/SDP4Bit,
# README, 1.3 and 6.7 billion of 24 layers of 2,048 and 32 of 4,096; tensors of GPT-2. [galore]
# github.com/jiaweizzhao/GaLore, configs/llama_60m.json and llama_1b.json. [torchvision]
# pytorch.org/vision/stable/models.html: "GFLOPS" of its weights, multiply-adds of an image forward.

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

from simnet.base import units
from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import read_shipped_rows, read_text
from simnet.base.quantities import MOST_PARAMETERS

if TYPE_CHECKING:
    from simnet.base.yaml_loader import YamlDocument


class Layer(NamedTuple):
    """A parameter tensor of a neural network: its name and shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of parameters in the tensor."""
        return math.prod(self.shape)


class TransformerShape(NamedTuple):
    """Sizes of a transformer: number of blocks, model width, width of the perceptron (`inside`), vocabulary.

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
    """Return the parameter tensors of a network of fixed size, by the network's name."""
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


MatrixFormat: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16"]
"""Formats in which matrices are multiplied: fp16 and bf16 with sums in fp32, as mixed precision has it."""

SampleKind: TypeAlias = Literal["image", "sequence", "sample"]
"""Unit of a batch."""


class ComputeTime(NamedTuple):
    """Forward and backward time [s] of a batch on a chip, with matrix products in `precision`.

    `measured` says whether it was, else it is inferred or estimated, `batch_stated` whether the source says which.
    """

    seconds: float
    batch: int
    source: str
    measured: bool
    batch_stated: bool = True
    chip: str = "V100"
    precision: MatrixFormat = "fp32"


@dataclass(frozen=True)
class ModelProfile:
    """Gradient tensors, compute times and sample size of a neural network.

    `layers` are in the order of the reference implementation: the first gets its gradient last. The first of `times` is
    the default. `backward_fraction` is the share of back-propagation, `tied` the tensors that the output layer uses,
    too, `work` that of the passes of each tensor (its entries when empty), `tokens` places of a sample that pass all
    matrices, `operations` those of a sample (0: they follow from parameters and tokens).
    """

    name: str
    layers: tuple[Layer, ...]
    times: tuple[ComputeTime, ...]
    reference: str
    backward_fraction: float = 2 / 3
    tied: tuple[str, ...] = ()
    work: tuple[float, ...] = ()
    sample: SampleKind = "sample"
    tokens: int = 0
    operations: float = 0.0

    @property
    def parameters(self) -> int:
        """Number of parameters n."""
        return sum(layer.size for layer in self.layers)

    @property
    def compute(self) -> float:
        """Default time of a forward and backward pass [s]."""
        return self.times[0].seconds

    @property
    def batch(self) -> int:
        """Default samples per worker and iteration; 0 if unknown."""
        return self.times[0].batch if self.times else 0

    @property
    def source(self) -> str:
        """Source of the default compute time."""
        return self.times[0].source


def model_operations(profile: ModelProfile) -> float:
    """Return the floating-point operations of a forward and backward pass of one sample.

    Those of the profile; else 6 for each parameter and token, 2 of them forward, without attention; 0 without tokens.
    """
    return profile.operations or 6.0 * profile.parameters * profile.tokens


def model_names() -> list[str]:
    """Return the names of the known neural networks, sorted."""
    return sorted(_network_rows())


def load_model(name: str) -> ModelProfile:
    """Return a neural network's profile by its name or alias (see `model_names`); case and punctuation are ignored.

    `name` may also be the path of a ``config.json`` of Hugging Face transformers. Raises ValueError if there is no such
    network, InputError for a wrong file.

    Examples
    --------
    >>> load_model("ResNet-50").parameters
    25557032
    >>> load_model("ViT-L/16") is load_model("vit_l_16")
    True
    """
    if is_config(name):
        return _configured_model(name)
    key = _plain_name(name)
    rows = _network_rows()
    found = {_plain_name(word): known for known in rows for word in (known, *rows[known]["aliases"].split())}
    if key not in found:
        reason = f"{suggest_names(name.lower(), rows)}, a config.json, or a size such as 1.3B"
        if units.is_count(name):
            reason = "that is a number of parameters, which `parameters` takes"
        raise ValueError(f"there is no model {name!r}: {reason}")
    return _build_model(found[key])


def is_config(name: str) -> bool:
    """Return whether a model name is a path of a ``config.json``."""
    return name.endswith(".json")


def transformer_flops(batch: int, tokens: int, layers: int, width: int, vocabulary: int = 0) -> float:
    """Return the floating-point operations of a forward and backward pass through a transformer.

    Every weight of a matrix takes 2 operations per token forward and 4 backward: 12 width^2 of a block, width x
    vocabulary of an output layer. Attention takes another 4 x tokens x width per token and block forward, and twice
    that backward.
    """
    weights = 12 * layers * width**2 + vocabulary * width
    return float(batch * tokens * (6 * weights + 12 * layers * tokens * width))


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _network_rows() -> dict[str, dict[str, str]]:
    """Return the shipped table of neural networks: rows by network name."""
    return {row["network"]: row for row in read_shipped_rows("data/models.csv")}


@cache
def _build_model(name: str) -> ModelProfile:
    row, times = _network_rows()[name], _published_times().get(name, ())
    operations, batch = float(row["operations"] or 0), int(row["batch"] or 1)
    if not row["kind"]:
        known = name, network_layers(name), times, row["reference"], float(row["backward_fraction"] or 2 / 3)
        return ModelProfile(*known, sample="image", operations=operations)
    sides = {name: int(row[name] or 0) for name in TransformerShape._fields[1:9]}
    shape = TransformerShape(row["kind"], tied=bool(row["tied"]), **sides)  # type: ignore[arg-type]
    sizes = int(row["tokens"]), shape.layers, shape.width, int(row["output_rows"] or 0)
    found = _transformer(name, shape, row["reference"], times or _estimated_time(batch, *sizes))
    return replace(found, tokens=sizes[0], operations=operations or transformer_flops(1, *sizes))


def _transformer(
    name: str, shape: TransformerShape, reference: str, times: tuple[ComputeTime, ...] = ()
) -> ModelProfile:
    layers, sample = transformer_layers(shape), _SAMPLES.get(shape.kind, "sequence")
    return ModelProfile(name, layers, times, reference, tied=(layers[0].name,) if shape.tied else (), sample=sample)


_SAMPLES: dict[str, SampleKind] = {"vit": "image"}


def _configured_model(path: str) -> ModelProfile:
    shape = read_shape(path)
    found = _transformer(Path(path).name, shape, f"{path}, a {shape.kind} of transformers")
    if found.parameters > MOST_PARAMETERS:
        raise InputError(f"has {found.parameters:.3g} parameters, at most {MOST_PARAMETERS:.3g} are allowed", file=path)
    return found


MAX_BYTES = 2**16
"""The largest file that is read [byte]."""

MOST_LAYERS, MOST_WIDTH = 10_000, 2**30
"""The most blocks, and the largest side of a tensor."""

# Fields of each ``model_type`` by those of `TransformerShape`; defaults are those of its class in transformers.
_SIDES = {row.pop("model_type"): row for row in read_shipped_rows("data/model_configs.csv")}


def read_shape(path: str | Path) -> TransformerShape:
    """Return a transformer's sizes from its ``config.json``; InputError for an unknown model type or invalid field."""
    return _parse_json(read_text(Path(path), MAX_BYTES), str(path))


@lru_cache(maxsize=16)
def _parse_json(text: str, file: str) -> TransformerShape:
    # Its parser takes longer to load than names of models, which is all that most commands ask for.
    from simnet.base.yaml_loader import load_yaml_mapping

    fields = _ConfigFields(load_yaml_mapping(text, file, "a config.json of transformers"))
    kind = fields.given.get("model_type")
    if kind is None:
        fields.refuse("is missing; it says which model this is", "model_type")
    if not isinstance(kind, str) or kind not in _SIDES:
        said = f"is {fields.shown('model_type')}; {suggest_names(str(kind), _SIDES)}"
        fields.refuse(f"{said}; of others, a number of parameters is a model, such as 1.3B", "model_type")
    if fields.flag("add_cross_attention", default=False):
        fields.refuse("must be false: cross-attention is not read", "add_cross_attention")
    named = {side: name for side, name in _SIDES[kind].items() if name}
    most = {"layers": MOST_LAYERS}
    default = {"inside": 4 * fields.count(named["width"])} if kind == "gpt2" else {}
    sizes = {side: fields.count(name, default.get(side), most.get(side, MOST_WIDTH)) for side, name in named.items()}
    shape = TransformerShape(kind, **sizes)  # type: ignore[arg-type]
    if kind == "bert":
        return shape
    shape = shape._replace(tied=fields.flag("tie_word_embeddings", default=kind == "gpt2"))
    return shape if kind == "gpt2" else _with_heads(shape, fields)


def _with_heads(shape: TransformerShape, fields: _ConfigFields) -> TransformerShape:
    """Return a Llama-like shape with the sizes of its attention projections and its biases filled in."""
    llama, heads = shape.kind == "llama", fields.count("num_attention_heads")
    # Only Llama's first configurations leave it out: they have as many heads of keys and values as of queries.
    groups = fields.count("num_key_value_heads", heads if llama else None)
    if heads % groups:
        fields.refuse(f"must divide num_attention_heads, {heads:,}, got {groups:,}", "num_key_value_heads")
    if fields.given.get("head_dim") is None and shape.width % heads:
        fields.refuse(f"must divide hidden_size, {shape.width:,}, got {heads:,}", "num_attention_heads")
    size = fields.count("head_dim", shape.width // heads)
    own = llama and fields.flag("attention_bias", default=False)
    biases = own or shape.kind == "qwen2", own, llama and fields.flag("mlp_bias", default=False)
    return shape._replace(queries=heads * size, keys=groups * size, biases=biases)


class _ConfigFields:
    """Fields of a ``config.json``, validated on access."""

    def __init__(self, read: YamlDocument) -> None:
        self.given: dict[str, Any] = read.value
        self._read = read

    def shown(self, field: str) -> str:
        from simnet.base.yaml_loader import shorten_value

        return shorten_value(self.given[field])

    def refuse(self, message: str, field: str) -> NoReturn:
        self._read.refuse(message, field)

    def count(self, name: str, default: int | None = None, most: int = MOST_WIDTH) -> int:
        """Return a field as a whole number in 1 .. `most`; `default` if the field is missing or null."""
        value = self.given.get(name)
        if value is None:
            return self.refuse("is missing", name) if default is None else default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self.refuse(f"must be a whole number from 1 to {most:,}, got {self.shown(name)}", name)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = default if self.given.get(name) is None else self.given[name]
        return value if isinstance(value, bool) else self.refuse(f"must be true or false, got {self.shown(name)}", name)


@cache
def _published_times() -> dict[str, tuple[ComputeTime, ...]]:
    """Return the published compute times by network; the default time comes first."""
    found: dict[str, tuple[ComputeTime, ...]] = {}
    for row in read_shipped_rows("data/model_times.csv"):
        time = compute_time(row, row["source"], measured=bool(row["measured"]), batch_stated=bool(row["batch_stated"]))
        found[row["model"]] = (*found.get(row["model"], ()), time)
    return found


def compute_time(row: Mapping[str, str], source: str, *, measured: bool, batch_stated: bool = True) -> ComputeTime:
    """Return the compute time of a published training step, given the step's table row."""
    seconds, batch, precision = float(row["seconds"]), int(row["batch"] or 1), cast(MatrixFormat, row["precision"])
    return ComputeTime(seconds, batch, source, measured, batch_stated, row["chip"], precision)


def _estimated_time(batch: int, tokens: int, layers: int, width: int, vocabulary: int = 0) -> tuple[ComputeTime, ...]:
    """Return a transformer's estimated compute time on a V100, by the FLOP/s that NVIDIA's BERT-large reached there."""
    rate = (39.43 if batch * tokens <= 8 * 128 else 46.78) * transformer_flops(1, 128, 24, 1024)
    seconds = transformer_flops(batch, tokens, layers, width, vocabulary) / rate
    bert_large = "that a V100 achieved on BERT-large in FP32 (NVIDIA DeepLearningExamples)"
    how = f"estimate: operations of {batch} sequences of {tokens} tokens at the {rate / 1e12:.1f} TFLOP/s {bert_large}"
    return (ComputeTime(seconds, batch, how, False),)
