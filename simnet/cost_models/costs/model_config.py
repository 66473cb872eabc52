"""Reads transformer sizes from a ``config.json`` of Hugging Face transformers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from simnet.base.errors import InputError, suggest_names
from simnet.base.reading import read_shipped_rows, read_text
from simnet.base.yaml_loader import YamlDocument, load_yaml_mapping, shorten_value
from simnet.cost_models.costs.layers import TransformerShape

MAX_BYTES = 2**16
"""The largest file that is read [byte]."""

MOST_LAYERS, MOST_WIDTH = 10_000, 2**30
"""The most blocks, and the largest side of a tensor."""

_SIDES = {row.pop("model_type"): row for row in read_shipped_rows("data/model_configs.csv")}
"""Fields of each ``model_type`` by those of `TransformerShape`; defaults are those of its class in transformers."""


def read_shape(path: str | Path) -> TransformerShape:
    """Return a transformer's sizes from ``config.json``; InputError for an unknown model type or invalid field."""
    return _parse_json(read_text(Path(path), MAX_BYTES), str(path))


@lru_cache(maxsize=16)
def _parse_json(text: str, file: str) -> TransformerShape:
    fields = _ConfigFields(load_yaml_mapping(text, file, "a config.json of transformers"), file)
    kind = fields.given.get("model_type")
    if kind is None:
        fields.refuse("is missing; it says which model this is", "model_type")
    if not isinstance(kind, str) or kind not in _SIDES:
        fields.refuse(f"is {shorten_value(kind)}; {suggest_names(str(kind), _SIDES)}", "model_type")
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

    def __init__(self, read: YamlDocument, file: str) -> None:
        self.given: dict[str, Any] = read.value
        self._read, self._file = read, file

    def refuse(self, message: str, field: str) -> NoReturn:
        raise InputError(message, file=self._file, line=self._read.line((field,)), field=field)

    def count(self, name: str, default: int | None = None, most: int = MOST_WIDTH) -> int:
        """Return a whole number in 1 .. `most`; `default` if it is missing or null."""
        value = self.given.get(name)
        if value is None:
            return self.refuse("is missing", name) if default is None else default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self.refuse(f"must be a whole number from 1 to {most:,}, got {shorten_value(value)}", name)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = default if self.given.get(name) is None else self.given[name]
        return (
            value
            if isinstance(value, bool)
            else self.refuse(f"must be true or false, got {shorten_value(value)}", name)
        )
