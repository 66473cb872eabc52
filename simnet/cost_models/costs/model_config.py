"""Reads transformer sizes from a ``config.json`` of Hugging Face transformers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from simnet.base.errors import InputError, suggest_names
from simnet.base.reading import read_text
from simnet.base.yaml_loader import YamlDocument, load_yaml_mapping, shorten_value
from simnet.cost_models.costs.layers import TransformerShape

MAX_BYTES = 2**16
"""The largest file that is read [byte]."""

MOST_LAYERS, MOST_WIDTH = 10_000, 2**30
"""The most blocks, and the largest side of a tensor."""


def read_shape(path: str | Path) -> TransformerShape:
    """Return a transformer's sizes from ``config.json``; InputError for an unknown model type or invalid field."""
    return _parse_json(read_text(Path(path), MAX_BYTES), str(path))


@lru_cache(maxsize=16)
def _parse_json(text: str, file: str) -> TransformerShape:
    fields = _ConfigFields(load_yaml_mapping(text, file, "a config.json of transformers"), file)
    kind = fields.given.get("model_type")
    if kind is None:
        fields.refuse("is missing; it says which model this is", "model_type")
    if not isinstance(kind, str) or kind not in MODEL_KINDS:
        fields.refuse(f"is {shorten_value(kind)}; {suggest_names(str(kind), MODEL_KINDS)}", "model_type")
    if fields.flag("add_cross_attention", default=False):
        fields.refuse("must be false: cross-attention is not read", "add_cross_attention")
    return MODEL_KINDS[kind](fields)


class _ConfigFields:
    """Fields of a ``config.json``, validated on access."""

    def __init__(self, read: YamlDocument, file: str) -> None:
        self.given: dict[str, Any] = read.value
        self._read, self._file = read, file

    def refuse(self, message: str, field: str) -> NoReturn:
        raise InputError(message, file=self._file, line=self._read.line((field,)), field=field)

    def count(self, name: str, default: int | None = None, most: int = MOST_WIDTH) -> int:
        """Return a whole number in 1 .. `most`; `default` if it is missing or null."""
        value = self.given.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            self.refuse("is missing", name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self.refuse(f"must be a whole number from 1 to {most:,}, got {shorten_value(value)}", name)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.given.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(f"must be true or false, got {shorten_value(value)}", name)
        return default if value is None else value

    def head_size(self, width: int, heads: int) -> int:
        if self.given.get("head_dim") is None and width % heads:
            self.refuse(f"must divide hidden_size, {width:,}, got {heads:,}", "num_attention_heads")
        return self.count("head_dim", width // heads)


def _bert_model(fields: _ConfigFields) -> TransformerShape:
    width, layers = fields.count("hidden_size"), fields.count("num_hidden_layers", most=MOST_LAYERS)
    inside, rows = fields.count("intermediate_size"), fields.count("vocab_size")
    places, types = fields.count("max_position_embeddings"), fields.count("type_vocab_size")
    return TransformerShape("bert", layers, width, inside, rows, places, types)


def _gpt2_model(fields: _ConfigFields) -> TransformerShape:
    width, layers = fields.count("n_embd"), fields.count("n_layer", most=MOST_LAYERS)
    inside, rows, places = fields.count("n_inner", 4 * width), fields.count("vocab_size"), fields.count("n_positions")
    tied = fields.flag("tie_word_embeddings", default=True)
    return TransformerShape("gpt2", layers, width, inside, rows, places, tied=tied)


def _llama_model(fields: _ConfigFields) -> TransformerShape:
    kind = str(fields.given["model_type"])
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    # Only Llama's first configurations leave it out: they have as many heads of keys and values as of queries.
    groups = fields.count("num_key_value_heads", heads if kind == "llama" else None)
    if heads % groups:
        fields.refuse(f"must divide num_attention_heads, {heads:,}, got {groups:,}", "num_key_value_heads")
    size = fields.head_size(width, heads)
    own = kind == "llama" and fields.flag("attention_bias", default=False)
    biases = own or kind == "qwen2", own, kind == "llama" and fields.flag("mlp_bias", default=False)
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    inside, rows = fields.count("intermediate_size"), fields.count("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=False)
    shape = TransformerShape(kind, layers, width, inside, rows, tied=tied)
    return shape._replace(queries=heads * size, keys=groups * size, biases=biases)


MODEL_KINDS = {
    "bert": _bert_model,
    "gpt2": _gpt2_model,
    "llama": _llama_model,
    "mistral": _llama_model,
    "qwen2": _llama_model,
}
"""Readers of the fields of each ``model_type``; defaults are those of its class in transformers."""
