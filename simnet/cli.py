"""The command line: the verbs of `simnet.verbs.commands`, and those that other packages register.

Everything heavy is imported by the command that needs it, so that ``simnet --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, ClassVar

import typer

import simnet
from simnet.base import plugins
from simnet.base.errors import plain_warnings
from simnet.base.threads import one_thread
from simnet.verbs.app import VERBS, all_verbs
from simnet.verbs.app import main as run_program
from simnet.verbs.commands.terminal import Commands
from simnet.verbs.old_words import OLD_VERBS


class Verbs(Commands):
    """The verbs of simnet."""

    own: ClassVar[Mapping[str, tuple[Callable[..., None], str]]] = {}


app = typer.Typer(
    cls=Verbs,
    help="What a sparsified gradient exchange costs on a network whose links change while the job runs.",
    epilog="Example: simnet run quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    if is_verb(sys.argv[1:]):
        run_program()
    plain_warnings()
    with one_thread():
        app()


def is_verb(words: Sequence[str]) -> bool:
    """Return whether a line is one of `simnet.verbs.app`."""
    refused = plugins.refuse_plugins() if "--no-plugins" in words[:1] else nullcontext()
    words = [one for one in words if one != "--no-plugins"]
    if not words or words[0][0] == "-" or {words[0], " ".join(words[:2])} & Verbs.own.keys():
        return False
    with refused:
        return words[0] in {*VERBS, *OLD_VERBS} or words[0] in all_verbs()


def _no_plugins(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.with_resource(plugins.refuse_plugins())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simnet {simnet.__version__}")
        raise typer.Exit


@app.callback()
def _common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            callback=_no_plugins,
            is_eager=True,
            help="Run no code of others, be it registered by a package or in a file that a scenario names.",
        ),
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
