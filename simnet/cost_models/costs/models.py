"""Known networks: the tensors that a gradient consists of, and how long a forward and backward pass takes.

Names, shapes and order of the tensors are those of the reference implementation (torchvision; Hugging Face transformers
for BERT, GPT-2 and Llama), so that a layer-wise scheme meets the same layers as on a cluster. Compute times are of one
NVIDIA V100 in single precision, that of Llama of an H100 in bfloat16. Each says whether it was measured, and by whom,
or is an estimate; `simnet.cost_models.costs.computing` has those of other devices.

References
----------
.. [artopk] S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks",
   IEEE BigData 2023, arXiv 2312.02493: Fig. 1a (single node, V100) and Tables III-IV. Neither the image sizes nor the
   batch of Fig. 1a are stated; the batches here are those of its training runs.
.. [u39kun] github.com/u39kun/deep-learning-benchmark, README: PyTorch 0.3.0, "V100 (Amazon p3)", 32-bit.
.. [nvidia] github.com/NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT, README, "Pre-training training
   performance: single-node", one V100, FP32, BERT-large, 128 tokens: 39.43 sequences/s at batch size 8 (16 GB), 46.78
   at 32 (32 GB).
.. [llama] "The Llama 3 Herd of Models", arXiv 2407.21783, Table 3: 32 layers, width 4,096, 14,336 inside, 32 heads, 8
   of them of keys and values; 128,256 rows as released.
.. [torchtitan] github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, Table 1.
.. [gpt] Sizes of D. Narayanan et al., SC 2021 (arXiv 2104.04473), Table 1, 18.4 billion of 40 layers of 6,144, and of
   github.com/hpdps-group/SDP4Bit, README, 1.3 and 6.7 billion of 24 layers of 2,048 and 32 of 4,096; tensors of GPT-2.
.. [galore] github.com/jiaweizzhao/GaLore, configs/llama_60m.json and llama_1b.json.
.. [torchvision] pytorch.org/vision/stable/models.html: "GFLOPS" of its weights, multiply-adds of an image forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from simnet.base import units
from simnet.base.errors import InputError, suggest_names
from simnet.base.quantities import MOST_PARAMETERS
from simnet.cost_models.costs.layers import (
    Layer,
    TransformerShape,
    alexnet_layers,
    resnet_layers,
    transformer_layers,
    vgg_layers,
    vit_layers,
)

MatrixFormat: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16"]
"""Formats in which matrices are multiplied: fp16 and bf16 with sums in fp32, as mixed precision has it."""

SampleKind: TypeAlias = Literal["image", "sequence", "sample"]
"""What a batch consists of."""


class ComputeTime(NamedTuple):
    """Seconds of one forward and backward pass of one worker over a batch on a chip, in a format of products.

    `measured` says whether it was, else it is inferred or estimated, `batch_stated` whether the source states the
    batch.
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
    """A network as far as the exchange of its gradients is concerned.

    Parameters
    ----------
    layers : tuple of Layer
        Its tensors in the order of the reference implementation: the first gets its gradient last.
    times : tuple of ComputeTime
        Known compute times, the one to use first.
    backward_fraction : float
        Share of the compute time that is back-propagation; it does the matrix products of the forward pass twice.
    tied : tuple of str
        Tensors of the input whose values the output layer uses, too.
    work : tuple of float
        Work of the passes of each tensor, in proportion; its entries when empty.
    tokens : int
        Places of a sample that pass all matrices: tokens of a sequence, patches of an image; 0 if none or not known.
    operations : float
        Floating-point operations of a sample, forward and backward; 0 where they follow from parameters and tokens.
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
        """Seconds of forward and backward pass of one iteration."""
        return self.times[0].seconds

    @property
    def batch(self) -> int:
        """Default samples per worker and iteration; 0 if not known."""
        return self.times[0].batch if self.times else 0

    @property
    def source(self) -> str:
        """Source of `compute`."""
        return self.times[0].source


def model_operations(profile: ModelProfile) -> float:
    """Return the floating-point operations of a forward and backward pass of one sample.

    Those of the profile; else 6 for each parameter and token, 2 of them forward, without attention; 0 without tokens.
    """
    return profile.operations or 6.0 * profile.parameters * profile.tokens


def model_names() -> list[str]:
    """Return the names of the networks, sorted."""
    return sorted(_MODELS)


def load_model(name: str) -> ModelProfile:
    """Return the profile of a network: one of `model_names` or an alias, whatever its case and punctuation.

    Or that of the path of a ``config.json`` of Hugging Face transformers, whose times are not known. Raises ValueError
    if there is no such network, InputError for a wrong file.

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
    found = {_plain_name(known): known for known in _MODELS} | _ALIASES
    if key not in found:
        reason = f"{suggest_names(name.lower(), _MODELS)}, or a config.json"
        if units.is_count(name):
            reason = "that is a number of parameters, which `parameters` takes"
        raise ValueError(f"there is no model {name!r}: {reason}")
    return _build_model(found[key])


def is_config(name: str) -> bool:
    """Return whether a model is named by the path of its ``config.json``."""
    return name.endswith(".json")


def transformer_flops(batch: int, tokens: int, layers: int, width: int, vocabulary: int = 0) -> float:
    """Return the floating-point operations of a forward and backward pass through a transformer.

    Every weight of a matrix takes 2 operations per token forward and 4 backward. A block has 12 width^2 weights (4 for
    queries, keys, values and output, 8 for the perceptron), an output layer has width x vocabulary. Scores and weighted
    values of the attention take another 4 x tokens x width per token and block forward, and twice that backward.
    """
    weights = 12 * layers * width**2 + vocabulary * width
    return float(batch * tokens * (6 * weights + 12 * layers * tokens * width))


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _build_model(name: str) -> ModelProfile:
    return _MODELS[name]()


def _configured_model(path: str) -> ModelProfile:
    from simnet.cost_models.costs.model_config import read_shape

    shape = read_shape(path)
    layers = transformer_layers(shape)
    tied = (layers[0].name,) if shape.tied else ()
    reference = f"{path}, a {shape.kind} of transformers"
    found = ModelProfile(Path(path).name, layers, (), reference, tied=tied, sample="sequence")
    if found.parameters > MOST_PARAMETERS:
        raise InputError(f"has {found.parameters:.3g} parameters, at most {MOST_PARAMETERS:.3g} are allowed", file=path)
    return found


def _llama3_8b() -> ModelProfile:
    # Its sequences are not stated beside the figure; of 8,192 tokens it makes 33 % of the peak, as is.
    source = (
        "implied by torchtitan, December 2024: 5,762 tokens/s of each of 8 H100 in a node, FSDP2 in bfloat16, 2 "
        "sequences, taken to be of 8,192 tokens, with which that is 33 % of the peak; has the optimiser's step, and "
        "communication inside the node as far as not hidden"
    )
    times = (ComputeTime(2 * 8192 / 5762, 2, source, False, chip="H100 SXM", precision="bf16"),)
    shape = TransformerShape("llama", 32, 4096, 14336, 128256, queries=4096, keys=1024)
    layers = transformer_layers(shape)
    # All matrices but the rows of the input, and attention.
    operations = 8192.0 * (6 * (sum(one.size for one in layers) - 128256 * 4096) + 12 * 32 * 8192 * 4096)
    reference = "transformers.LlamaForCausalLM, Meta-Llama-3-8B"
    profile = ModelProfile("llama3-8b", layers, times, reference, sample="sequence", tokens=8192)
    return replace(profile, operations=operations)


def _transformer_profile(
    name: str,
    tensors: Iterable[Layer],
    reference: str,
    sizes: tuple[int, int, int, int],
    *,
    batch: int = 1,
    times: tuple[ComputeTime, ...] = (),
    sample: SampleKind = "sequence",
    tied: tuple[str, ...] = (),
) -> ModelProfile:
    """Return a transformer of these sizes: tokens, blocks, width, rows of the output layer."""
    profile = ModelProfile(
        name, tuple(tensors), times or _estimated_time(batch, *sizes), reference, tied=tied, sample=sample
    )
    return replace(profile, tokens=sizes[0], operations=transformer_flops(1, *sizes))


def _bert_profile(
    name: str, layers: int, width: int, batch: int = 1, times: tuple[ComputeTime, ...] = ()
) -> ModelProfile:
    # The loss has an output layer of its own beside these tensors, of which little is computed.
    tensors = transformer_layers(TransformerShape("bert", layers, width, 4 * width, 30522, 512, 2))
    reference, sizes = f"transformers.BertModel, {name}-uncased", (128, layers, width, 0)
    return _transformer_profile(name, tensors, reference, sizes, batch=batch, times=times)


def _bert_large() -> ModelProfile:
    source = "NVIDIA DeepLearningExamples, BERT-large, 128 tokens, V100 of 16 GB, FP32: 39.43 sequences/s"
    return _bert_profile("bert-large", 24, 1024, times=(ComputeTime(8 / 39.43, 8, source, True),))


def _gpt2_tensors(layers: int, width: int, positions: int) -> tuple[Layer, ...]:
    return transformer_layers(TransformerShape("gpt2", layers, width, 4 * width, 50257, positions, tied=True))


def _gpt2_profile(name: str, layers: int, width: int, batch: int = 1) -> ModelProfile:
    tensors, sizes = _gpt2_tensors(layers, width, 1024), (1024, layers, width, 50257)
    return _transformer_profile(
        name, tensors, f"transformers.GPT2Model, {name}", sizes, batch=batch, tied=("wte.weight",)
    )


def _gpt_profile(layers: int, width: int) -> ModelProfile:
    tensors, sizes = _gpt2_tensors(layers, width, 2048), (512, layers, width, 50257)
    reference = "transformers.GPT2Model, in the sizes of [gpt]_"
    return _transformer_profile(f"gpt-{layers}x{width}", tensors, reference, sizes, tied=("wte.weight",))


def _llama_profile(layers: int, width: int, inside: int) -> ModelProfile:
    shape = TransformerShape("llama", layers, width, inside, 32000, queries=width, keys=width)
    reference, sizes = "transformers.LlamaForCausalLM, sizes of [galore]_", (256, layers, width, 32000)
    return _transformer_profile(f"llama-{layers}x{width}", transformer_layers(shape), reference, sizes)


def _published_times(figure_1a: float, implied: float, batch: int) -> tuple[ComputeTime, ComputeTime]:
    plotted = "AR-Topk paper (arXiv 2312.02493), Fig. 1a, read off the vector graphic; image size, batch not stated"
    inferred = "AR-Topk paper (arXiv 2312.02493), implied by the step times of Tables III-IV, which are not measured"
    return ComputeTime(figure_1a, batch, plotted, True, False), ComputeTime(implied, batch, inferred, False, False)


def _estimated_time(batch: int, tokens: int, layers: int, width: int, vocabulary: int = 0) -> tuple[ComputeTime]:
    """Return operations over the rate that a V100 achieved on BERT-large [nvidia]_ at about as many tokens."""
    bert_large = 39.43 if batch * tokens <= 8 * 128 else 46.78
    rate = bert_large * transformer_flops(1, 128, 24, 1024)
    seconds = transformer_flops(batch, tokens, layers, width, vocabulary) / rate
    how = (
        f"estimate: operations of {batch} sequences of {tokens} tokens at the {rate / 1e12:.1f} TFLOP/s that a V100 "
        "achieved on BERT-large in FP32 (NVIDIA DeepLearningExamples)"
    )
    return (ComputeTime(seconds, batch, how, False),)


def _torchvision_profile(
    name: str,
    layers: Iterable[Layer],
    times: tuple[ComputeTime, ...],
    multiply_adds: float,
    backward_fraction: float = 2 / 3,
    reference: str = "",
) -> ModelProfile:
    """Return a network of images of 224 by 224 that takes so many multiply-adds forward [torchvision]_."""
    return ModelProfile(
        name,
        tuple(layers),
        times,
        reference or f"torchvision.models.{name.replace('-', '_')}",
        backward_fraction,
        sample="image",
        operations=3 * 2 * multiply_adds,
    )


def _vgg16_layers() -> ModelProfile:
    source = "github.com/u39kun/deep-learning-benchmark: 83.5 ms forward and backward, 26.2 ms forward; V100, 32-bit"
    stages = (64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3
    times = (ComputeTime(83.5e-3, 16, source, True),)
    return _torchvision_profile("vgg16", vgg_layers(*stages), times, 15.47e9, backward_fraction=1 - 26.2 / 83.5)


def _vit_paper() -> ModelProfile:
    # The paper's code uses ViT-L/16, but Table IV requires 132.855 to 132.870 M parameters. VGG-11 has so many, and is
    # the stand-in: right in size, and only a guess as to its layers.
    stages = (64,), (128,), (256, 256), (512, 512), (512, 512)
    reference = "torchvision.models.vgg11, which has the size that the AR-Topk paper's numbers require of its ViT"
    return _torchvision_profile(
        "vit-paper", vgg_layers(*stages), _published_times(47e-3, 47e-3, 32), 7.609e9, reference=reference
    )


def _vit_l_16() -> ModelProfile:
    reference, sizes = "torchvision.models.vit_l_16", (197, 24, 1024, 0)
    return _transformer_profile("vit-l-16", vit_layers(24, 1024, 16, 224), reference, sizes, batch=32, sample="image")


_MODELS: dict[str, Callable[[], ModelProfile]] = {
    "alexnet": lambda: _torchvision_profile("alexnet", alexnet_layers(), _published_times(5e-3, 3.5e-3, 32), 0.714e9),
    "bert-base": lambda: _bert_profile("bert-base", 12, 768, batch=8),
    "bert-large": _bert_large,
    "gpt-24x2048": lambda: _gpt_profile(24, 2048),
    "gpt-32x4096": lambda: _gpt_profile(32, 4096),
    "gpt-40x6144": lambda: _gpt_profile(40, 6144),
    "gpt2": lambda: _gpt2_profile("gpt2", 12, 768, batch=4),
    "gpt2-xl": lambda: _gpt2_profile("gpt2-xl", 48, 1600),
    "llama-24x2048": lambda: _llama_profile(24, 2048, 5461),
    "llama-8x512": lambda: _llama_profile(8, 512, 1376),
    "llama3-8b": _llama3_8b,
    "resnet18": lambda: _torchvision_profile(
        "resnet18", resnet_layers((2, 2, 2, 2), (3, 3), 1), _published_times(15e-3, 10e-3, 32), 1.814e9
    ),
    "resnet50": lambda: _torchvision_profile(
        "resnet50", resnet_layers((3, 4, 6, 3), (1, 3, 1), 4), _published_times(28e-3, 25e-3, 64), 4.089e9
    ),
    "vgg16": _vgg16_layers,
    "vit-l-16": _vit_l_16,
    "vit-paper": _vit_paper,
}

_ALIASES = {
    "bertbaseuncased": "bert-base",
    "bertlargeuncased": "bert-large",
    "gpt2small": "gpt2",
    "gpt215b": "gpt2-xl",
    "llama318b": "llama3-8b",
    "metallama38b": "llama3-8b",
    "vitlarge16": "vit-l-16",
    "vitlargepatch16224": "vit-l-16",
}
