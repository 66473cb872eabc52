"""A transformer in PyTorch: a decoder with the architecture of GPT-2.

References
----------
.. [radford] A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block: causal attention and a perceptron, each after a layer norm and with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations after the block, given the activations before it."""
        shape = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        q, k, v = (one.view(shape).transpose(1, 2) for one in self.c_attn(self.ln_1(x)).split(x.shape[2], dim=2))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class Transformer(nn.Module):  # type: ignore[misc]
    """A decoder like GPT-2's [radford]_: embeddings, blocks, and an output layer that shares the weights `wte`."""

    def __init__(self, words: int, places: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(places, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.ln_f = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=deviation(name, blocks))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next word at each position of the input."""
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1], device=words.device))
        return self.ln_f(self.h(x)) @ self.wte.weight.T


def deviation(name: str, blocks: int) -> float:
    """Return the initial standard deviation of a weight matrix as in GPT-2, smaller for output projections."""
    return 0.02 / (2 * blocks) ** 0.5 if name.endswith("proj.weight") else 0.02
