"""Command line of simnet: commands and options come from the signatures of functions, by cyclopts.

This is the only module that knows cyclopts. A verb is a function of the library that returns a
`simnet.report.summary.Summary`. Its parameters are its options; those that have the names of marked fields of a
scenario take their help and panels from there, and ``**fields`` stands for all of them. Options of every verb, such as
``--json``, are handled here.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter, exceptions

import simnet
from simnet.base import plugins
from simnet.base.errors import InputError, SimnetError, plain_warnings, suggest_names
from simnet.base.file_io import read_shipped_rows, refuse_existing
from simnet.base.threads import one_thread
from simnet.report.summary import ENDINGS, WIDTH, Summary
from simnet.verbs import terminal
from simnet.verbs.request import USUAL_FOLDER, set_texts, word_list

if TYPE_CHECKING:
    from simnet.scenario.marked_fields import MarkedField


class Verb(NamedTuple):
    """Command of simnet: its panel in the help, summary, example, and function as ``module:name``."""

    panel: str
    summary: str
    example: str
    module: str


VERBS: Mapping[str, Verb] = {row.pop("name"): Verb(**row) for row in read_shipped_rows("data/verbs.csv")}
"""The verbs by name, in the order of the help."""

# Values of parameters that a line does not give, where they are others than from Python.
_LINE_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "run": {"out": USUAL_FOLDER, "jobs": None},
    "choose": {"jobs": os.cpu_count() or 1},
    "reproduce": {"out": USUAL_FOLDER, "jobs": None},
}
# What refuses fractions for whole numbers, which cyclopts would truncate.
_CONVERTERS: Mapping[Any, Callable[[Any, Sequence[Any]], int]] = {int: lambda type_, tokens: int(tokens[0].value)}
_ORDER = ("Ask", "Calibrate", "Check", "Files")
_PANELS = ("Answer", "Workload", "Network", "Output")

_REQUEST: Mapping[str, tuple[str, str]] = {
    "set": ("KEY=VALUE", "Set a field of the scenario; repeatable."),
    "grid": ("KEY=VALUES", "Vary a field over A,B,C or LO:HI:N[:log]; repeatable, each is an axis."),
}
_COMMON: Mapping[str, tuple[Any, str, tuple[str, ...]]] = {
    "out": (str | None, "Write the answer as .json, .csv, .txt, .html, .svg or .png.", ("--out", "-o")),
    "force": (bool, "Overwrite existing files.", ("--force",)),
    "save_scenario": (str | None, "Write the request as a scenario.", ("--save-scenario",)),
    "json": (bool, "Print the answer as JSON.", ("--json",)),
    "wide": (bool, "Print all columns, rows and notes.", ("--wide",)),
    "quiet": (bool, "Print only the answer.", ("--quiet", "-q")),
    "verbose": (bool, "Print versions, time and memory, and tracebacks of errors.", ("--verbose", "-v")),
}


def main() -> None:
    """Run the command line of this process and exit. This is the entry point of the `simnet` command."""
    plain_warnings()
    # Imports make many objects that stay, which the collector need not go through again and again.
    gc.set_threshold(50_000, 50, 1000)
    with one_thread():
        raise SystemExit(run_line(sys.argv[1:]))


def run_line(words: Sequence[str]) -> int:
    """Run a command line; return the exit code: 0, 1 for a failed check, 2 for a user error, 130 after Ctrl-C.

    Messages name the plug-in that raised an error; errors that are not user errors keep their traceback.
    """
    try:
        with terminal.output_errors(), plugins.name_authors():
            if list(words[:1]) == ["--no-plugins"]:
                with plugins.refuse_plugins():
                    return _run_verb(words[1:])
            return _run_verb(words)
    except SimnetError as error:
        if "-v" in words or "--verbose" in words:
            traceback.print_exception(error)
        terminal.warn(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        terminal.warn("interrupted")
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1


def _run_verb(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"simnet {simnet.__version__}")
        return 0
    name, *line = words
    if name in ("--install-completion", "--show-completion", "__complete"):
        return _completion(name, line)
    if name not in all_verbs():
        raise SimnetError(_unknown_verb(words))
    command = command_of(name)
    if "-h" in line:
        print(_short_help(name))
        return 0
    if "--help" in line:
        command.help_print([])
        return 0
    try:
        found = command(
            _with_negative_values(line), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except exceptions.CycloptsError as error:
        raise SimnetError(_usage_error(name, command, error)) from None
    return int(found or 0)


def _with_negative_values(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with negative values such as -1ms joined to the option before."""
    found: list[str] = []
    for word in words:
        if re.match(r"-\.?\d", word) and found and re.fullmatch(r"--[a-z-]+", found[-1]):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _completion(wanted: str, words: Sequence[str]) -> int:
    """Print completions of a word for a shell, or print or install the shell's completion script."""
    app = App(name="simnet", help_flags=[], version_flags=["--version"])
    for name in [words[0]] if wanted == "__complete" and words and words[0] in all_verbs() else all_verbs():
        app.command(_on_line(name, function_of(name)), name=name, help=all_verbs()[name].summary)
    try:
        if wanted == "__complete":
            app([wanted, *words], result_action="return_none")
        elif wanted == "--show-completion":
            print(app.generate_completion(shell=words[0] if words else None))  # type: ignore[arg-type]
        else:
            print(f"Written: {app.install_completion(shell=words[0] if words else None)}")  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        raise SimnetError(str(error)) from None
    return 0


def all_verbs() -> dict[str, Verb]:
    """Return all commands by name; those that other packages register come first.

    A package registers the function of a verb under its name, as an entry point of ``simnet.commands``; the function
    may have the attributes ``panel`` and ``example``.
    """
    return {**_registered_verbs(), **VERBS}


@functools.cache
def _registered_verbs() -> dict[str, Verb]:
    return plugins.usable_plugins("commands", lambda name: plugins.load_plugin("commands", name, _verb_of))


def _verb_of(function: Callable[..., Any]) -> Verb:
    summary = (inspect.getdoc(function) or "").split("\n")[0]
    panel, example = getattr(function, "panel", "Others"), getattr(function, "example", "")
    return Verb(panel, summary, example, f"{function.__module__}:{function.__name__}")


def function_of(name: str) -> Callable[..., Any]:
    """Return the Python function of a command, and import its module."""
    module, _, own = all_verbs()[name].module.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"simnet.verbs.{module}" if name in VERBS else module), own)
    return found


def command_of(name: str) -> App:
    """Return the cyclopts app that parses and runs a command."""
    verb = all_verbs()[name]
    app = App(
        name=f"simnet {name}",
        help_flags=[],
        version_flags=[],
        help_epilogue=f"Example: simnet {name} {verb.example}",
        help_format="plaintext",
    )
    app.default(_on_line(name, function_of(name)))
    return app


def _on_line(name: str, function: Callable[..., Any]) -> Callable[..., int]:
    """Return a function with a command's options as parameters, which prints the answer and returns the exit code."""
    own = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    marked, line_defaults = _marked(), _LINE_DEFAULTS.get(name, {})
    parameters = []
    for key, one in own.items():
        if one.kind is one.VAR_KEYWORD:
            parameters += [_keyword(each, marked[each]) for each in marked if each not in own]
        elif key in marked and one.kind is one.KEYWORD_ONLY:
            parameters.append(_keyword(key, marked[key]))
        elif key in _REQUEST:
            hint = _option(list[str] | None, _REQUEST[key][1], "Workload", metavar=_REQUEST[key][0])
            parameters.append(one.replace(annotation=hint, default=None))
        elif key not in _COMMON:
            kind = one.POSITIONAL_ONLY if one.kind is one.POSITIONAL_OR_KEYWORD else one.kind
            default = line_defaults.get(key, one.default)
            default = default if default is one.empty or isinstance(default, str | float | int) else None
            hint = _line_type(hints[key], optional=default is None)
            parameters.append(one.replace(annotation=hint, kind=kind, default=default))
    scenario = "scenario" in own
    for key, (type_, help_, names) in _COMMON.items():
        if key != "save_scenario" or scenario:
            hint, default = _option(type_, help_, "Output", name=names), False if type_ is bool else None
            parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default))

    @functools.wraps(function)
    def on_line(*arguments: Any, **given: Any) -> int:
        common = {key: given.pop(key, None) for key in _COMMON}
        given = {key: one for key, one in given.items() if one is not None}
        given |= {key: common[key] for key in ("out", "force") if key in own and common[key]}
        given = {**line_defaults, **given}
        with terminal.verbosity(bool(common["quiet"]), bool(common["verbose"])):
            bound = inspect.signature(function).bind(*arguments, **given)
            if common["out"] and "out" not in own:
                if name in VERBS and Path(common["out"]).suffix not in ENDINGS:
                    raise InputError(f"must end with one of {', '.join(ENDINGS)}, got {common['out']!r}", file="--out")
                refuse_existing([Path(common["out"])], bool(common["force"]))
            if common["save_scenario"]:
                _save_scenario(name, common["save_scenario"], bound.arguments, bool(common["force"]))
            with terminal.progress_line(name):
                found = inspect.unwrap(function)(*bound.args, **bound.kwargs)
            return _show(found, common, written="out" in own)

    parameters = [
        one.replace(annotation=Annotated[one.annotation, Parameter(completer=_completer(one.name))])
        for one in parameters
    ]
    on_line.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    on_line.__annotations__ = {one.name: one.annotation for one in parameters}
    del on_line.__wrapped__
    return on_line


def _completer(name: str) -> Callable[[Any], list[str]]:
    """Return a function that completes values of the parameter `name` in a shell."""

    def complete(context: Any) -> list[str]:
        from simnet.verbs.completion import completion_words

        try:
            first = context["scenario"].raw
        except KeyError:
            first = None
        return completion_words(name, context.incomplete, str(first or ""))

    return complete


def _marked() -> dict[str, MarkedField]:
    from simnet.scenario.marked_fields import MARKED_FIELDS

    return {one.name: one for one in MARKED_FIELDS}


def _keyword(name: str, field: MarkedField) -> inspect.Parameter:
    type_ = int if field.name in ("workers", "seed") else str
    hint = _option(type_ | None, field.help, field.panel, metavar=field.metavar, converter=_CONVERTERS.get(type_))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=None)


def _option(hint: Any, help_: str, panel: str, **more: Any) -> Any:
    group = Group(panel, sort_key=_PANELS.index(panel))
    return Annotated[hint, Parameter(help=help_, group=group, negative=(), show_default=False, **more)]


def _line_type(hint: Any, *, optional: bool) -> Any:
    """Return the type that a Python parameter has on the command line: str for unions that include str."""
    if get_origin(hint) in (Union, UnionType) and str in get_args(hint):
        hint = str
    panel, converter = Group(_PANELS[0], sort_key=0), _CONVERTERS.get(hint)
    shown = Parameter(negative=(), converter=converter, group=panel, show_default=lambda value: value or None)
    return Annotated[hint | None if optional else hint, shown]


def _save_scenario(name: str, path: str, arguments: Mapping[str, Any], force: bool) -> None:
    from simnet.base.file_io import write_new
    from simnet.scenario import load
    from simnet.scenario.marked_fields import overrides_of
    from simnet.verbs.step import with_defaults_of_step

    source, fields = arguments.get("scenario") or "base", arguments.get("fields", {})
    if name == "step":
        source, fields = with_defaults_of_step(source, fields)
    own = set_texts(arguments.get("set"))
    loaded, kept = load(source, [*own, *overrides_of(source, fields, own)]), word_list(arguments.get("policies"))
    write_new({Path(path): (loaded if kept is None else loaded.only(kept)).to_yaml()}, force)
    unset = {"grid": (), "seeds": 1, "goal": None, "link_uncertainty": None}
    others = [f"--{key.replace('_', '-')}" for key, one in unset.items() if arguments.get(key, one) != one]
    terminal.say(f"wrote {path}" + (f"; scenarios do not store {', '.join(others)}" if others else ""))


def _show(found: Summary | str | None, common: Mapping[str, Any], *, written: bool) -> int:
    """Print an answer, or save it to ``--out``, and return the exit code. The answer is None on most MPI ranks."""
    if found is None:
        return 0
    if isinstance(found, str):
        print(found, end="" if found.endswith("\n") else "\n")
        return 0
    if common["out"] and not written:
        found.save(common["out"], force=bool(common["force"]))
        terminal.say(f"wrote {common['out']}")
        if found.next_saved is not None and not common["json"]:
            found = replace(found, next=found.next_saved.format(out=common["out"]))
    print(found.to_json() if common["json"] else found.text(line_width(), wide=bool(common["wide"])))
    return found.exit_code


def line_width() -> int:
    """Return the number of characters in a line: that of the terminal, between 40 and 80, or 80 in a pipe."""
    wanted = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
    return max(min(wanted, WIDTH), 40)


def _overview() -> str:
    """Return the help text of simnet, which has a line for each command."""
    lines = ["Predict what gradient exchange costs. Usage: simnet VERB [SCENARIO] [FLAGS]"]
    verbs = all_verbs()
    for panel in dict.fromkeys([*_ORDER, *(one.panel for one in verbs.values())]):
        members = [(name, one) for name, one in verbs.items() if one.panel == panel]
        for place, (name, one) in enumerate(members):
            lines.append(f"{'' if place else panel:10} {name:10} {_cut(one.summary, WIDTH - 22)}")
    lines.append("simnet VERB -h: short help; --help: all. --no-plugins: no third-party code.")
    return "\n".join([*lines, "Example: simnet run quickstart"])


class Option(NamedTuple):
    """Option or positional argument of a command: its names, its help, and whether it is required or shared."""

    names: str
    help: str
    required: bool
    shared: bool


def verb_options(name: str) -> list[Option]:
    """Return the options and positional arguments of a command. Names of positional arguments are in capitals."""
    shared, found = {*_marked(), *_COMMON, *_REQUEST}, []
    for one in command_of(name).assemble_argument_collection(parse_docstring=True):
        named = one.field_info.kind is inspect.Parameter.KEYWORD_ONLY
        names = ", ".join(one.names) if named else one.field_info.name.upper()
        metavar = f" {one.parameter.metavar}" if named and one.parameter.metavar else ""
        help_ = " ".join((one.parameter.help or "").split())
        found.append(Option(names + metavar, help_, one.required, named and one.field_info.name in shared))
    return found


def _short_help(name: str) -> str:
    """Return the help for a command on one screen: a line per option, and the names of shared options."""
    verb, options = all_verbs()[name], verb_options(name)
    words = [one.names if one.required else f"[{one.names}]" for one in options if one.names.isupper()]
    said = [" ".join(["Usage: simnet", name, *words, "[FLAGS]"]), verb.summary]
    said += [f"  {one.names:24} {_cut(one.help, WIDTH - 27)}".rstrip() for one in options if not one.shared]
    shared = [one.names.split(" ")[0].rstrip(",") for one in options if one.shared]
    flags = textwrap.wrap(" ".join(shared), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    said += ["Further flags (--help says more):", *flags, f"Example: simnet {name} {verb.example}"]
    return "\n".join(said)


def _cut(text: str, room: int) -> str:
    return textwrap.shorten(text, room, placeholder=" ...")


def _unknown_verb(words: Sequence[str]) -> str:
    for name in (" ".join(words[:2]), words[0]):
        if name in _old_words():
            return f"{name!r} is now 'simnet {_old_words()[name]}'"
    return f"there is no verb {words[0]!r}: {suggest_names(words[0], all_verbs())}"


@functools.cache
def _old_words() -> dict[str, str]:
    """Return the commands and options of earlier versions, each with its replacement."""
    return {row["old"]: row["new"] for row in read_shipped_rows("data/old_words.csv")}


def _usage_error(name: str, command: App, error: exceptions.CycloptsError) -> str:
    """Return a one-line message on a wrong word in a command line, with the most similar valid word."""
    argument, token = getattr(error, "argument", None), getattr(error, "token", None)
    word = str(getattr(token, "keyword", None) or "")
    known = sorted({each for one in command.assemble_argument_collection() for each in one.names if each[:2] == "--"})
    place = word or ("" if argument is None else next(iter(argument.names), argument.field_info.name.upper()))
    if isinstance(error, exceptions.UnusedCliTokensError):
        unused = getattr(error, "unused_tokens", None) or [""]
        return f"{name} has no use for {unused[0]!r}; see 'simnet {name} -h'"
    if isinstance(error, exceptions.UnknownOptionError) or (word and word not in known):
        word = word or (re.findall(r"--?[\w-]+", str(error)) or [""])[0]
        if word in _old_words():
            return f"{word} is now {_old_words()[word]}"
        return f"{name} has no option {word}: {suggest_names(word, known)}"
    if isinstance(error, exceptions.MissingArgumentError):
        return f"{place}: is missing"
    if isinstance(error, exceptions.CoercionError) and token is not None:
        wanted: dict[Any, str] = {int: "a whole number", float: "a number", bool: "left out, or true or false"}
        kind = next((wanted[one] for one in (error.target_type, *get_args(error.target_type)) if one in wanted), None)
        return f"{place}: must be {kind or 'another word'}, got {token.value!r}"
    return " ".join(str(error).split())
