"""The page of the command line, made of the commands' own help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from cells import cell
from simnet import cli
from simnet.verbs import app


def page() -> str:
    """Return the page: a section for each command, with its options."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    group: Any = typer.main.get_command(cli.app)
    context = group.make_context("simnet", ["list"], resilient_parsing=True)
    yield "# Commands\n\nWhat each command does and takes, as `simnet COMMAND --help` says it.\n"
    yield from _options(group, context)
    for name, verb in app.all_verbs().items():
        options = app.verb_options(name)
        words = [one.names for one in options if one.names.isupper()]
        yield f"\n## simnet {name}\n\n{cell(verb.summary)}\n"
        yield f"```text\nsimnet {' '.join([name, *words])} [FLAGS]\n```\n\n| Takes | Meaning |\n|---|---|"
        yield from (f"| {cell(f'`{one.names}`')} | {cell(one.help)} |" for one in options)
        yield f"\n```sh\nsimnet {name} {verb.example}\n```"
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, name.split())
        own = type(context)(command, parent=context, info_name=name)
        yield f"\n## simnet {name}\n\n{cell(command.help)}\n"
        yield f"```text\n{command.get_usage(own).removeprefix('Usage: ')}\n```\n"
        yield from _options(command, own)
        if command.epilog:
            yield f"\n```sh\n{command.epilog.removeprefix('Example: ')}\n```"


def _options(command: Any, context: Any) -> Iterator[str]:
    records = [one.get_help_record(context) for one in command.get_params(context)]
    shown = [(given, meaning) for given, meaning in filter(None, records) if "--help" not in given]
    if shown:
        yield "| Takes | Meaning |\n|---|---|"
        yield from (f"| {cell(f'`{given}`')} | {cell(meaning)} |" for given, meaning in shown)
