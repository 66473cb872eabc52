"""Loads plug-ins: objects that other packages register as entry points, one group per kind, or objects in files.

====================  ==========================================================================
``sparsifiers``       a `simnet.sparsifier_models.base.Sparsifier` class
``topologies``        a function that returns a graph as `simnet.topologies` describes it
``collectives``       an entry of `simnet.collectives.registry`
``weather``           an annotated function that returns a `simnet.network.weather.Signal`
``policies``          an annotated class with the methods of `simnet.policies.Policy`
``strategies``        an annotated `simnet.strategies.Strategy` class
``log_readers``       a `simnet.cost_models.calibration.readers.LogFormat`
``devices``           a function that returns a `simnet.cost_models.costs.devices.DeviceProfile`
``commands``          a function that adds commands to the command line
====================  ==========================================================================

The group in ``pyproject.toml`` is ``simnet.`` and the kind. Names of simnet itself cannot be replaced. A file is named
with the object in it, as ``./my_scheme.py:Rotating``. Unusable plug-ins are skipped with a warning, or an error if
requested by name. Errors inside plug-in code name its author; ``SIMNET_TRACEBACK`` keeps the traceback.

Plug-ins run with the rights of the user. ``SIMNET_NO_PLUGINS``, set by ``simnet --no-plugins``, refuses them, also in
child processes.
"""

from __future__ import annotations

import os
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from simnet.base.errors import DISTRIBUTION, InputError, SimnetError, suggest_names
from simnet.base.file_io import read_shipped_rows, read_text
from simnet.base.terms import find_term
from simnet.base.threads import set_environment

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")

Kind: TypeAlias = Literal[
    "sparsifiers",
    "topologies",
    "collectives",
    "weather",
    "policies",
    "strategies",
    "log_readers",
    "devices",
    "commands",
]

REFUSED = "SIMNET_NO_PLUGINS"
"""Environment variable that refuses plug-ins, unless empty or 0."""

TRACEBACK = "SIMNET_TRACEBACK"
"""Environment variable that keeps tracebacks of plug-in code, unless empty or 0."""

MAX_BYTES = 2**20
"""Maximum size of a plug-in file."""


class PluginError(SimnetError, ValueError):
    """An error about a plug-in: it is refused, cannot be imported, or lacks what its kind (a policy, ...) requires."""


class PluginWarning(UserWarning):
    """A warning that a registered plug-in is skipped, with its kind, its name and the reason."""

    def __init__(self, kind: Kind, name: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.name = kind, name


def registered_plugins(kind: Kind) -> EntryPoints:
    """Return the entry points registered for a kind of plug-in; only those of simnet if plug-ins are refused.

    Examples
    --------
    >>> "validate" in registered_plugins("commands").names
    True
    """
    from importlib.metadata import EntryPoints

    return EntryPoints(one for one in _all_entries(kind) if plugins_allowed() or _is_own(one))


def plugin_names(kind: Kind) -> list[str]:
    """Return the sorted names under which plug-ins of a kind are registered."""
    return sorted(registered_plugins(kind).names)


def load_plugin(kind: Kind, name: str, make: Callable[[Any], T]) -> T | None:
    """Return `make(plugin)` for the first plug-in registered under a name; None if none is registered.

    Raises PluginError, with package and reason, if it is refused, cannot be imported, or `make` raises.
    """
    found = next(iter(_all_entries(kind).select(name=name)), None)
    if found is None:
        return None
    package = "" if found.dist is None else f" by {found.dist.name} {found.dist.version}"
    if not plugins_allowed() and not _is_own(found):
        raise PluginError(f"{name!r} is registered as simnet.{kind}{package}, {_WHY}")
    own = (found.module, found.attr, f"{name!r}, registered as simnet.{kind}{package} ({found.value})")
    if not _is_own(found):
        _AUTHORS.add(own)
    try:
        return make(found.load())
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, PluginError) else f"{_error_text(error)}{_find_culprit(error)[1]}"
        _AUTHORS.discard(own)
        raise PluginError(f"{own[-1]}, cannot be used: {why}") from error


def usable_plugins(kind: Kind, get: Callable[[str], T | None]) -> dict[str, T]:
    """Return a dict from registered name to `get(name)`; if `get` raises PluginError, warn and skip the name."""
    found = {}
    for name in plugin_names(kind):
        try:
            one = get(name)
        except PluginError as error:
            warnings.warn(PluginWarning(kind, name, str(error)), stacklevel=1)
        else:
            if one is not None:
                found[name] = one
    return found


def named_class(kind: Kind, what: str, name: str, own: Mapping[str, type[T]], base: Any) -> type[T]:
    """Return the class that `name` means: one of simnet's classes `own`, a class in a user's file, or a plug-in.

    Case, hyphens, underscores and blanks do not matter in own names. `what` is the kind in the singular. Raises
    ValueError for an unknown name, PluginError for a class that is no complete subclass of `base`, InputError for a
    file without the class.
    """
    if not isinstance(name, str):
        raise ValueError(f"a {what} has a name, got {name!r}")
    plain = name.lower().translate(_IGNORED)
    if plain in own:
        return own[plain]
    found: type[T] | None
    if names_file(name):
        found = _complete_class(load_from_file(name), base, f"{name} ")
    else:
        found = load_plugin(kind, name, lambda found: _complete_class(found, base, "it "))
    if found is None:
        for row in read_shipped_rows("data/renamed.csv"):
            if (row["what"], row["old"]) == (what, plain):
                raise ValueError(f"the {what} {name!r} is now {row['new']}")
        label = find_term(name)
        if label is not None and label.type:
            raise ValueError(f"{name!r} is a label of answers; write {label.type}")
        allowed = suggest_names(name, [*own, *plugin_names(kind)])
        here = f"is it ./{name}.py:CLASS? " if Path(f"{name}.py").is_file() else ""
        raise ValueError(f"there is no {what} {name!r}: {here}{allowed}{refused_names(kind)}")
    return found


_IGNORED = str.maketrans("", "", "-_ ")


def _complete_class(found: Any, base: Any, name: str) -> Any:
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PluginError(f"{name}must be a class that derives from {base.__module__}.{base.__name__}")
    missing = [
        *(one for one in ("name", "paper") if not hasattr(found, one)),
        *sorted(getattr(found, "__abstractmethods__", ())),
    ]
    if missing:
        raise PluginError(f"{name}is no complete {base.__name__} class: it lacks {', '.join(missing)}")
    return found


def return_error(by: Any, found: object, wanted: str) -> Exception:
    """Return the error for a function `by`, which may be a plug-in, that returned `found` where `wanted` was expected.

    Examples
    --------
    >>> return_error(suggest_names, None, "a text")
    TypeError('suggest_names returned None, and not a text')
    """
    kind, name = type(found), getattr(by, "__qualname__", type(by).__name__)
    shown = reprlib.repr(found) if kind.__module__ == "builtins" else f"a {kind.__name__}"
    what = f"{name} returned {shown}, and not {wanted}"
    owner = type(by.__self__) if hasattr(by, "__self__") else by
    author = _author_of(owner.__module__, getattr(owner, "__qualname__", ""))
    code = getattr(by, "__code__", None)
    place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return PluginError(f"{author}: {what}{place}") if author else TypeError(what)


def check_instance(found: object, wanted: type[T]) -> T:
    """Return `found` if it is an instance of `wanted`; raise PluginError otherwise."""
    if isinstance(found, wanted):
        return found
    raise PluginError(f"it gives no {wanted.__name__}, but what is of type {type(found).__name__}")


def name_author(error: BaseException) -> BaseException:
    """Return a `PluginError` with the plug-in's author for an error raised by plug-in code, else the error itself."""
    if not isinstance(error, Exception) or isinstance(error, SimnetError):
        return error
    author, place = _find_culprit(error)
    if not author or _keeps_tracebacks():
        return error
    return PluginError(
        f"{author}, failed: {_error_text(error)}{place}; {TRACEBACK}=1 in the environment shows the traceback"
    )


def refusal_text(error: Exception) -> str:
    """Return an error's message; for an unexpected error in plug-in code, also the line of code that raised it.

    If tracebacks of plug-in code are kept (``SIMNET_TRACEBACK``), it raises the error instead.
    """
    place = "" if isinstance(error, SimnetError) else _find_culprit(error, only_wrote=True)[1]
    if place and _keeps_tracebacks():
        raise error
    return f"{error}{place}"


@contextmanager
def in_trial(what: str) -> Iterator[None]:
    """Add the note `what` to errors raised in the block, in which user code is tried out before a run."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


@contextmanager
def name_authors() -> Iterator[None]:
    """Convert errors from plug-in code inside the block into `PluginError` with the author."""
    try:
        yield
    except Exception as error:
        if (found := name_author(error)) is error:
            raise
        raise found from error


def refused_names(kind: Kind) -> str:
    """Return a suffix for unknown-name errors that lists plug-ins whose loading is disabled; "" if there are none."""
    refused = sorted(one.name for one in _all_entries(kind) if not plugins_allowed() and not _is_own(one))
    return f"; not looked at: {', '.join(refused)}, {_WHY}" if refused else ""


def installed_under(words: Set[str]) -> list[str]:
    """Return "group name value package version" of each entry point whose name is in `words`, sorted."""
    return sorted(
        f"{one.group} {one.name} {one.value} {one.dist.name} {one.dist.version}"
        for kind in get_args(Kind)
        for one in _all_entries(kind)
        if one.name in words and one.dist is not None
    )


def names_file(name: str) -> bool:
    """Return whether a name refers to an object in a file, such as ``./my_scheme.py:Rotating``.

    Examples
    --------
    >>> names_file("./my_scheme.py:Rotating"), names_file("topk")
    (True, False)
    """
    return ":" in name or name.endswith(".py")


def absolute_name(name: str, folder: Path) -> str:
    """Return a plug-in name with its file path made absolute, from `folder`; names without a file stay unchanged.

    Examples
    --------
    >>> absolute_name("./my_scheme.py:Rotating", Path("/jobs")), absolute_name("topk", Path("/jobs"))
    ('/jobs/my_scheme.py:Rotating', 'topk')
    """
    path, colon, wanted = name.partition(":") if name.endswith(".py") else name.rpartition(":")
    return f"{(folder / path).absolute()}{colon}{wanted}" if names_file(name) else name


def load_from_file(name: str) -> Any:
    """Return the object that a name such as ``my_scheme.py:Rotating`` refers to; equal files are loaded only once.

    Raises PluginError if plug-ins are refused or the name has another form, InputError if the file cannot be imported.
    """
    path, _, wanted = name.rpartition(":")
    if not path.endswith(".py") or not wanted.isidentifier():
        text = read_text(Path(name), MAX_BYTES) if name.endswith(".py") else ""
        own = [f"{Path(name).name}:{one}" for one in re.findall(r"^class (\w+)", text, re.MULTILINE)]
        said = " or ".join(own) or "./my_scheme.py:Rotating"
        raise PluginError(f"name a class in the file, such as {said}; got {name!r}")
    if not plugins_allowed():
        raise PluginError(f"{name!r} is a file, {_WHY}")
    module = _module_from_text(path, read_text(Path(path), MAX_BYTES).encode())
    if not hasattr(module, wanted):
        own = [
            name for name, one in vars(module).items() if isinstance(one, type) and one.__module__ == module.__name__
        ]
        raise InputError(f"defines no {wanted!r}: {suggest_names(wanted, own)}", file=path)
    return getattr(module, wanted)


def plugins_allowed() -> bool:
    """Return whether plug-ins may be loaded."""
    return os.environ.get(REFUSED, "") in ("", "0")


def refuse_plugins() -> AbstractContextManager[None]:
    """Refuse to load plug-ins inside the block."""
    return set_environment({REFUSED: "1"})


_WHY = f"code of others, which --no-plugins or {REFUSED} in the environment refuses"


# Module, qualified name and description of plug-in code.
_AUTHORS: set[tuple[str, str, str]] = set()


def _author_of(module: str, name: str) -> str:
    """Return the plug-in author of a function or class, given its module and name; "" if no plug-in defines it."""
    near = sorted(one for one in _AUTHORS if one[0].partition(".")[0] == module.partition(".")[0])
    for same in ((module, name.partition(".")[0]), (module,), ()):
        if found := [one[-1] for one in near if one[: len(same)] == same]:
            return " and ".join(found)
    return ""


def _keeps_tracebacks() -> bool:
    return os.environ.get(TRACEBACK, "") not in ("", "0")


def _find_culprit(error: BaseException, only_wrote: bool = False) -> tuple[str, str]:
    """Return the author of the plug-in code that raised an error, and the file, line and function that raised it."""
    # That is code that the author wrote, or else, unless `only_wrote`, code that ran on an object of the author.
    ran, wrote = ("", ""), ("", "")
    from traceback import walk_tb

    cause: BaseException | None = error
    while cause is not None:
        notes = "".join(f", {one}" for one in getattr(cause, "__notes__", ()))
        for frame, line in walk_tb(cause.__traceback__):
            place = f" ({frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}{notes})"
            owner = type(frame.f_locals.get("self"))
            if author := _author_of(frame.f_globals.get("__name__", ""), frame.f_code.co_qualname):
                wrote = author, place
            elif author := _author_of(owner.__module__, owner.__qualname__):
                ran = author, place
        cause = cause.__cause__
    return wrote if wrote[0] or only_wrote else ran


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _all_entries(kind: Kind) -> EntryPoints:
    folders = [one for one in map(Path, sys.path) if one.exists()]
    return _scanned_entries(kind, *((str(one.absolute()), one.stat().st_mtime_ns) for one in folders))


@lru_cache
def _scanned_entries(kind: Kind, *_folders: tuple[str, int]) -> EntryPoints:
    """Return the entry points of a kind, from a scan of all installed packages that is repeated if a folder changed."""
    from importlib.metadata import entry_points

    return entry_points(group=f"simnet.{kind}")


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == DISTRIBUTION


def _module_from_text(path: str, text: bytes) -> ModuleType:
    """Return the module that results from executing a file's text; its name is a hash of the text."""
    import hashlib
    import traceback

    name = f"simnet_file_{hashlib.sha256(text).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    # Dataclasses and annotations look their module up while it is made.
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    try:
        exec(compile(text, path, "exec"), vars(module))  # noqa: S102 - the user's own file, as an import of it
        _AUTHORS.add((name, "", f"code in {path}"))
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else (lines or [None])[-1]
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"cannot be imported: {type(error).__name__}: {said}", file=path, line=line) from error
    return module
