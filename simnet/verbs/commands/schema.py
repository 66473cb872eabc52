"""``simnet schema``: the JSON Schema of scenario files."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of scenario files, with which editors check and complete them."""
    from simnet.scenario import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
