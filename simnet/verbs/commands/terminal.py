"""How commands meet the terminal: their names, how they end, how much they say, and how far they are."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, ParamSpec, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

import simnet
from simnet.base import plugins
from simnet.base.errors import InputError, SimnetError, suggest_names
from simnet.verbs.commands.options import grouped

P = ParamSpec("P")
R = TypeVar("R")

# Where the words before an incomplete one are kept while it is completed, if they are no command yet.
_TYPED = "simnet.typed"

# Seconds to the first line, where progress is written in lines, and from one to the next as a share of what has passed.
_FIRST_LINE, _LINES_EVERY = 2.0, 0.25

# What is wrong with the words of a command; typer has no name of its own for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# What the system says against writing: a full disk or quota, a limit of size, a broken device or pipe.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing beside what is asked for: no progress, no word on files.")
]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say versions, time and memory, and where an error comes from.")
]

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


class Commands(TyperGroup):
    """Commands of simnet.

    Some have a name of two words, as ``calibrate device``, beside one of the first word alone. The options of a command
    are read from its signature when it is called: a list of all commands needs only what each says of itself.
    """

    own: ClassVar[Mapping[str, tuple[Callable[..., None], str]]] = {}
    """The commands of simnet by name, each with an example of its arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (function, _) in self.own.items():
            self.commands[name] = TyperCommand(name, help=inspect.getdoc(function))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what may stand in place of an incomplete word: options, and the next word of commands."""
        typed = "".join(f"{word} " for word in ctx.meta.get(_TYPED, ()))
        found: dict[str, Any] = {}
        for one in super().shell_complete(ctx, typed + incomplete):
            one.value = one.value.removeprefix(typed).partition(" ")[0]
            found.setdefault(one.value, one)
        return list(found.values())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command; what is wrong with them ends it with 2 and one message."""
        with _output_errors():
            if not args:
                return super().parse_args(ctx, args)
            with _usage_told():
                return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Carry out the command that is named; what is wrong with its words ends it with 2 and one message."""
        with _output_errors(), _usage_told():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that arguments name, by two words where there is one, and what is left of them.

        Where there is none, that ends with 2 and the nearest name.
        """
        words = " ".join(args[:2])
        name, rest = (words, args[2:]) if words in self.own else (args[0], args[1:])
        if name in self.own:
            function, example = self.own[name]
            app = typer.Typer(add_completion=False, context_settings=ctx.command.context_settings)
            app.command(name, epilog=f"Example: simnet {name} {example}")(explained(function))
            return name, _readable_help(typer.main.get_command(app), self._others(name), rest), rest
        if not ctx.resilient_parsing:
            self._tell_group(args)
        known = [*self.own]
        if ctx.resilient_parsing:
            ctx.meta[_TYPED] = args
            return None, None, args
        typed = words if any(name.startswith(f"{args[0]} ") for name in known) else args[0]
        typer.echo(f"error: there is no command {printable(typed)!r}: {suggest_names(typed, known)}", err=True)
        raise typer.Exit(2)

    def _others(self, name: str) -> list[str]:
        """Return the commands of two words of which a name is the first."""
        return [one for one in self.own if one.startswith(f"{name} ")]

    def _tell_group(self, args: list[str]) -> None:
        """Where arguments are the first word of commands of two words alone, say what these do, and end."""
        members = {name: self.own[name][0] for name in self._others(args[0])}
        if not members or args[1:] not in ([], ["-h"], ["--help"]):
            return
        width = max(map(len, members))
        for name, function in members.items():
            summary = (inspect.getdoc(function) or "").split("\n", 1)[0]
            typer.echo(f"simnet {name:{width}}  {summary}")
        typer.echo(f"\nExample: simnet {args[0]} {next(iter(members)).split()[1]} --help")
        raise typer.Exit(0 if args[1:] else 2)


def _readable_help(command: Any, others: list[str], rest: list[str]) -> Any:
    """Return a command whose help names those that begin alike, and shows as they are brackets that would be markup."""
    if others:
        command.help += f"\n\nBeside it: {', '.join(f'simnet {one}' for one in others)}."
    if {"-h", "--help"} & set(rest):
        from rich.markup import escape

        for one in (command, *command.params):
            one.help = escape(one.help or "")
    return command


@contextmanager
def _usage_told() -> Iterator[None]:
    """Let what is wrong with the words of a command be one message, with what was given and the nearest right name."""
    try:
        yield
    except _UsageError as error:
        typer.echo(f"error: {printable(_usage_error(error))}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def _output_errors() -> Iterator[None]:
    """End with 2 and one message where standard output or a file cannot be written, and by SIGPIPE as Unix tools do."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python looks for a folder of temporary files in which it can write, and names none if there is none.
        temporary = error.errno == errno.ENOENT and error.filename is None
        if (error.errno not in _OUTPUT_ERRORS and not temporary) or (error.errno == errno.EPIPE and _is_read()):
            raise
        _discard_output()
        if error.errno == errno.EPIPE:
            _end_by_broken_pipe()
        with suppress(OSError):
            name = printable(str(error.filename or ("temporary files" if temporary else "standard output")))
            typer.echo(f"error: {name}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(2) from None


def _is_read() -> bool:
    """Return whether standard output may still be read, so that another pipe is broken: one to a process, say."""
    if not hasattr(select, "poll"):
        return False
    with suppress(OSError):
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        return not pipe.poll(0)
    return True


def _discard_output() -> None:
    """Let what is left in the buffer of standard output go nowhere, so that the interpreter ends in silence."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _end_by_broken_pipe() -> NoReturn:
    """End as a program ends that writes to a pipe that nobody reads."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    raise typer.Exit(1)


def _usage_error(error: Any) -> str:
    """Return what is wrong with the words of a command."""
    parameter = getattr(error, "param", None)
    message: str = error.format_message()
    if parameter is None or not error.message:
        return " ".join(message.split())
    option = next((one for one in parameter.opts if one.startswith("--")), parameter.metavar or parameter.name)
    if found := re.search(r"'([^']*)' is not one of (.*)", error.message, re.DOTALL):
        allowed = re.findall(r"'([^']*)'", found[2])
        return f"{option}: there is no {found[1]!r}: {suggest_names(found[1], allowed)}"
    # Where types are read by pydantic, it knows what was given.
    given = [one["input"] for one in getattr(error.__cause__, "errors", list)()]
    got = f", got {given[0]!r}" if given and repr(given[0]) not in error.message else ""
    return f"{option}: {error.message}{got}"


def explained(command: Callable[P, R]) -> Callable[..., R]:
    """Let a command end with 2 and one message where the user can mend it, and with 130 on Ctrl-C.

    Code of others is blamed for what it raises; other errors keep their traceback. The command gets the options
    ``--quiet`` and ``--verbose``, which `say` and `progress` go by, and those of its parameters that are dataclasses.
    """
    flat = grouped(command)
    signature, types = inspect.signature(flat), get_type_hints(flat, include_extras=True)
    more = {"quiet": _Quiet, "verbose": _Verbose}
    own = [one.replace(kind=one.KEYWORD_ONLY, annotation=types[one.name]) for one in signature.parameters.values()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=more[name]) for name in more
    ]

    @functools.wraps(command)
    def explained(*, quiet: bool = False, verbose: bool = False, **options: Any) -> R:
        try:
            with _set_verbosity(quiet, verbose), plugins.name_authors():
                return flat(**options)
        except SimnetError as error:
            if verbose:
                traceback.print_exception(error)
            # What a file says must not steer the terminal.
            shown = "\n".join(map(printable, str(error).split("\n")))
            typer.echo(f"error: {shown}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None

    explained.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    explained.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    return explained


@contextmanager
def _set_verbosity(quiet: bool, verbose: bool) -> Iterator[None]:
    """Let a command say less, or say what it runs on and what it took."""
    if quiet and verbose:
        raise InputError("is either --quiet or --verbose", file="--quiet")
    token, begun = _quiet.set(quiet), time.perf_counter()
    kept = os.environ.get(plugins.TRACEBACK)
    if verbose:
        os.environ[plugins.TRACEBACK] = "1"
        typer.echo(f"simnet {simnet.__version__}, Python {sys.version.split()[0]}, {sys.platform}", err=True)
    try:
        yield
    finally:
        _quiet.reset(token)
        if verbose:
            typer.echo(_resources_used(time.perf_counter() - begun), err=True)
            if kept is None:
                del os.environ[plugins.TRACEBACK]


def _resources_used(seconds: float) -> str:
    """Return what a command took, with the processes that it started as far as they have ended."""
    said, used = f"took {seconds:.2f} s", os.times()
    said += f", {used.user + used.system + used.children_user + used.children_system:.2f} CPU s since the start"
    try:
        import resource
    except ImportError:
        return said
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return f"{said}, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.0f} MiB of memory at most"


def quiet() -> bool:
    """Return whether progress and status messages are suppressed."""
    return _quiet.get()


def say(text: str, err: bool = False) -> None:
    """Print a status message, such as the path of a file, unless the command is quiet."""
    if not quiet():
        typer.echo(text, err=err)


@contextmanager
def bar(text: str) -> Iterator[Callable[..., None]]:
    """Show, unless the command shall be quiet, how much is done: on a terminal as a bar, elsewhere in plain lines.

    Yields
    ------
    callable
        To be called with the share that is done, in [0, 1], and perhaps another text.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if quiet() or not console.is_terminal:
        yield _in_lines(text)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    # What takes minutes may have steps that take longer than the half minute from which the rest is told otherwise.
    options: dict[str, Any] = {"transient": True, "redirect_stdout": False, "speed_estimate_period": 600.0}
    with Progress(*columns, console=console, **options) as shown:
        task = shown.add_task(text, total=1.0)
        yield lambda share, text=None: shown.update(task, completed=share, description=text)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show how far the loops are, inside a block, that go over `simnet.base.progress.track_progress`."""
    from simnet.base.progress import report_progress

    with bar(text) as show, report_progress(show):
        yield


def _in_lines(first: str) -> Callable[..., None]:
    """Return what writes the share that is done to standard error, in lines that come ever more rarely.

    What takes no longer than two seconds has none, and an hour has some thirty.
    """
    begun, said = time.monotonic(), first
    due = begun + _FIRST_LINE

    def show(share: float, text: str | None = None) -> None:
        nonlocal due, said
        now, said = time.monotonic(), text or said
        if now >= due and share < 1:
            due = now + max(_FIRST_LINE, _LINES_EVERY * (now - begun))
            say(f"{said}: {100 * share:.0f} %", err=True)

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
def no_empty_folders(folder: Path, *inside: str) -> Iterator[None]:
    """Take away a folder that a block made, those above it and some in it, as far as nothing came to lie there.

    Parameters
    ----------
    folder : Path
        The folder.
    *inside : str
        Names of folders in it.
    """
    new = [one for one in (*(folder / name for name in inside), folder, *folder.parents) if not one.exists()]
    try:
        yield
    finally:
        for one in new:
            with suppress(OSError):
                one.rmdir()


@contextmanager
def sheltered() -> Iterator[None]:
    """Do not let Ctrl-C lose results that are being written, which takes a second or two."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
