"""How commands meet the terminal: their names, how they end, and the progress bar."""

from __future__ import annotations

import functools
import inspect
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from simnet.base import plugins
from simnet.base.errors import SimnetError, nearest
from simnet.commands.options import grouped

P = ParamSpec("P")
R = TypeVar("R")

# Seconds from one line to the next, where progress is written in lines.
_LINES_EVERY = 2.0


class Commands(TyperGroup):
    """Commands of simnet and of packages that register some.

    Some have a name of two words, as ``calibrate device``, beside one of the first word alone. The options of a command
    are read from its signature when it is called: a list of all commands needs only what each says of itself.
    """

    own: ClassVar[Mapping[str, tuple[Callable[..., None], str]]] = {}
    """The commands of simnet by name, each with an example of its arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (function, _) in self.own.items():
            self.commands[name] = TyperCommand(name, help=inspect.getdoc(function))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        for name, function in _names(_registered()).items():
            self.commands.setdefault(name, TyperCommand(name, help=inspect.getdoc(function)))
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that arguments name, by two words where there is one, and what is left of them.

        Where there is none, that ends with 2 and the nearest name.
        """
        words = " ".join(args[:2])
        name, rest = (words, args[2:]) if words in self.own else (args[0], args[1:])
        if name in self.own:
            function, example = self.own[name]
            app = typer.Typer(add_completion=False, context_settings=ctx.command.context_settings)
            app.command(name, epilog=f"Example: simnet {name} {example}")(explained(grouped(function)))
            return name, typer.main.get_command(app), rest
        self._tell_group(args)
        # Not before the options have been read: one of them refuses what others register.
        app = _registered()
        names = _names(app)
        for name, rest in ((words, args[2:]), (args[0], args[1:])):
            if name in names:
                return name, typer.main.get_group(app).commands[name], rest
        known = [*self.own, *names]
        typed = words if any(name.startswith(f"{args[0]} ") for name in known) else args[0]
        typer.echo(f"error: there is no command {printable(typed)!r}: {nearest(typed, known)}", err=True)
        raise typer.Exit(2)

    def _tell_group(self, args: list[str]) -> None:
        """Where arguments are the first word of commands of two words alone, say what these do, and end."""
        members = {name: function for name, (function, _) in self.own.items() if name.startswith(f"{args[0]} ")}
        if not members or args[1:] not in ([], ["-h"], ["--help"]):
            return
        width = max(map(len, members))
        for name, function in members.items():
            summary = (inspect.getdoc(function) or "").split("\n", 1)[0]
            typer.echo(f"simnet {name:{width}}  {summary}")
        typer.echo(f"\nExample: simnet {args[0]} {next(iter(members)).split()[1]} --help")
        raise typer.Exit(0 if args[1:] else 2)


def _registered() -> typer.Typer:
    """Return an application of the commands that packages register."""
    app = typer.Typer()
    plugins.usable("commands", lambda name: plugins.load("commands", name, lambda add: add(app)))
    return app


def _names(app: typer.Typer) -> dict[str, Callable[..., Any] | None]:
    """Return the commands of an application by name, without a look at their options as far as there are no groups."""
    if app.registered_groups:
        return {name: command.callback for name, command in typer.main.get_group(app).commands.items()}
    found: dict[str, Callable[..., Any] | None] = {}
    for one in app.registered_commands:
        assert one.callback is not None
        found[one.name or typer.main.get_command_name(one.callback.__name__)] = one.callback
    return found


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command end with 2 and one message where the user can mend it, and with 130 on Ctrl-C.

    Code of others is blamed for what it raises; other errors keep their traceback.
    """

    @functools.wraps(command)
    def explained(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            with plugins.blamed():
                return command(*arguments, **options)
        except SimnetError as error:
            # What a file says must not steer the terminal.
            shown = "\n".join(map(printable, str(error).split("\n")))
            typer.echo(f"error: {shown}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None

    return explained


@contextmanager
def bar(text: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show on a terminal, unless it shall be quiet, how much is done, and how long the rest will take.

    Yields
    ------
    callable
        To be called with the share that is done, in [0, 1], and perhaps another text.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    # What takes minutes may have steps that take longer than the half minute from which the rest is told otherwise.
    options: dict[str, Any] = {"transient": True, "redirect_stdout": False, "speed_estimate_period": 600.0}
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, **options) as shown:
        task = shown.add_task(text, total=1.0)
        yield lambda share, text=None: shown.update(task, completed=share, description=text)


@contextmanager
def progress(text: str, quiet: bool = False, *, lines: bool = False) -> Iterator[None]:
    """Show how far the loops are, inside a block, that go over `simnet.base.progress.tracked`.

    Parameters
    ----------
    text : str
        What is going on.
    quiet : bool
        Whether to show nothing.
    lines : bool
        Whether to write plain lines where standard error is no terminal, of what takes longer than two seconds.
    """
    from simnet.base.progress import told

    if lines and not quiet and not sys.stderr.isatty():
        with told(_every_two_seconds(text)):
            yield
        return
    with bar(text, quiet) as show, told(show):
        yield


def _every_two_seconds(text: str) -> Callable[[float], None]:
    """Return what writes a line to standard error, at most every two seconds, of the share that is done."""
    last = time.monotonic()

    def show(share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINES_EVERY and share < 1:
            last = now
            typer.echo(f"{text}: {100 * share:.0f} %", err=True)

    return show


def printable(text: str) -> str:
    r"""Return text that cannot steer the terminal.

    Examples
    --------
    >>> print(printable("red\x1b[31m"))
    red\x1b[31m
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


@contextmanager
def sheltered() -> Iterator[None]:
    """Do not let Ctrl-C lose results that are being written, which takes a second or two."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
