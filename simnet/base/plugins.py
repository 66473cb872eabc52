"""What others add to simnet: entry points of their packages, a group for each kind of thing, and files of their own.

====================  ==========================================================================
``sparsifiers``       a `simnet.sparsifier_models.base.Sparsifier` class
``topologies``        a function that returns a graph as `simnet.topologies` describes it
``collectives``       an entry of `simnet.collectives.registry`
``weather``           an annotated function that returns a `simnet.network.weather.Signal`
``policies``          an annotated class with what `simnet.policies.Policy` asks for
``strategies``        an annotated `simnet.strategies.Strategy` class
``log_readers``       a `simnet.calibration.readers.LogFormat`
``devices``           a function that returns a `simnet.costs.devices.DeviceProfile`
``commands``          a function that adds commands to the command line
====================  ==========================================================================

In a package's ``pyproject.toml`` the group is ``simnet.`` and the kind, as ``simnet.topologies``. What comes with
simnet keeps its names, whatever others register. A file is named with what is wanted of it, as
``./my_scheme.py:Rotating``.

What cannot be used, `usable` leaves out with a warning; `load` refuses it to who asks for it by name. What goes wrong
while code of others runs is one message that says whose it is, by `blamed`; with ``SIMNET_TRACEBACK`` in the
environment it keeps its traceback.

All of this is code that runs with the rights of the user. Where ``SIMNET_NO_PLUGINS`` is set in the environment, as
``simnet --no-plugins`` does, it is refused, here and in the processes that are started from here.
"""

from __future__ import annotations

import os
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from simnet.base.errors import DISTRIBUTION, InputError, SimnetError, nearest
from simnet.base.reading import read_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints
    from types import ModuleType

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
"""The environment variable that refuses code of others, unless it is empty or 0."""

TRACEBACK = "SIMNET_TRACEBACK"
"""The environment variable that keeps tracebacks of code of others, unless it is empty or 0."""

MAX_BYTES = 2**20
"""The largest file that is loaded."""


class PluginError(SimnetError, ValueError):
    """Code of others that is refused, cannot be imported, or is not what its kind asks for."""


class PluginWarning(UserWarning):
    """Something that is registered is left out, as it cannot be used: its kind, its name, and why."""

    def __init__(self, kind: Kind, name: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.name = kind, name


def registered(kind: Kind) -> EntryPoints:
    """Return the entry points of a kind; where plugins are refused, those of simnet itself.

    Examples
    --------
    >>> "validate" in registered("commands").names
    True
    """
    from importlib.metadata import EntryPoints

    return EntryPoints(one for one in _all(kind) if allowed() or _own(one))


def names(kind: Kind) -> list[str]:
    """Return the names that are registered for a kind, sorted."""
    return sorted(registered(kind).names)


def entry(kind: Kind, name: str) -> EntryPoint | None:
    """Return the entry point of a name, refused or not, by the first package that has one; None if nobody does."""
    return next(iter(_all(kind).select(name=name)), None)


def load(kind: Kind, name: str, make: Callable[[Any], T]) -> T | None:
    """Return what is made of that which the first package registers under a name; None if nobody registered it.

    Parameters
    ----------
    kind, name
        Where it is registered.
    make : callable
        Checks what is loaded, and returns what is to be had of it.

    Raises
    ------
    PluginError
        If it is refused, cannot be imported, or `make` raises; names the package and the reason.
    """
    found = entry(kind, name)
    if found is None:
        return None
    package = "" if found.dist is None else f" by {found.dist.name} {found.dist.version}"
    if not allowed() and not _own(found):
        raise PluginError(f"{name!r} is registered as simnet.{kind}{package}, {_WHY}")
    own = (found.module, found.attr, f"{name!r}, registered as simnet.{kind}{package} ({found.value})")
    if not _own(found):
        _AUTHORS.add(own)
    try:
        return make(found.load())
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, PluginError) else f"{_said(error)}{_blame(error)[1]}"
        _AUTHORS.discard(own)
        raise PluginError(f"{own[-1]}, cannot be used: {why}") from error


def usable(kind: Kind, get: Callable[[str], T | None]) -> dict[str, T]:
    """Return what `get` returns for each name that is registered; what it refuses is left out, with a warning."""
    found = {}
    for name in names(kind):
        try:
            one = get(name)
        except PluginError as error:
            warnings.warn(PluginWarning(kind, name, str(error)), stacklevel=1)
        else:
            if one is not None:
                found[name] = one
    return found


def wrong(by: Any, found: object, wanted: str) -> Exception:
    """Return the error that a function or method, perhaps one of others, returned something else than it should.

    Parameters
    ----------
    by : callable
        The function or method.
    found : object
        What it returned.
    wanted : str
        What it should return.

    Examples
    --------
    >>> wrong(nearest, None, "a text")
    TypeError('nearest returned None, and not a text')
    """
    kind, name = type(found), getattr(by, "__qualname__", type(by).__name__)
    shown = reprlib.repr(found) if kind.__module__ == "builtins" else f"a {kind.__name__}"
    what = f"{name} returned {shown}, and not {wanted}"
    owner = type(by.__self__) if hasattr(by, "__self__") else by
    author = _author(owner.__module__, getattr(owner, "__qualname__", ""))
    code = getattr(by, "__code__", None)
    place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return PluginError(f"{author}: {what}{place}") if author else TypeError(what)


def instance(found: object, wanted: type[T]) -> T:
    """Return what is registered, or what it returned, if it is of a type; raise PluginError otherwise."""
    if isinstance(found, wanted):
        return found
    raise PluginError(f"it gives no {wanted.__name__}, but what is of type {type(found).__name__}")


def theirs(error: BaseException) -> BaseException:
    """Return an error of code of others as a `PluginError` that says whose it is; any other as it is."""
    if not isinstance(error, Exception) or isinstance(error, SimnetError):
        return error
    author, place = _blame(error)
    if not author or os.environ.get(TRACEBACK, "") not in ("", "0"):
        return error
    return PluginError(f"{author}, failed: {_said(error)}{place}; {TRACEBACK}=1 in the environment shows the traceback")


@contextmanager
def blamed() -> Iterator[None]:
    """Let what code of others raises inside the block be a `PluginError` that says whose it is."""
    try:
        yield
    except Exception as error:
        if (found := theirs(error)) is error:
            raise
        raise found from error


def left_out(kind: Kind) -> str:
    """Return what to add to a message that something was not found: what was not looked at as it is refused."""
    refused = sorted(one.name for one in _all(kind) if not allowed() and not _own(one))
    return f"; not looked at: {', '.join(refused)}, {_WHY}" if refused else ""


def used(words: Set[str]) -> list[str]:
    """Return kind, name, place, package and version of all that is registered under one of `words`, sorted."""
    from importlib.metadata import distributions

    groups = {f"simnet.{kind}" for kind in get_args(Kind)}
    found = {
        f"{one.group} {one.name} {one.value} {package.name} {package.version}"
        for package in distributions()
        for one in package.entry_points
        if one.group in groups and one.name in words
    }
    return sorted(found)


def is_file(name: str) -> bool:
    """Return whether a name stands for something in a file, as ``./my_scheme.py:Rotating`` does.

    Examples
    --------
    >>> is_file("./my_scheme.py:Rotating"), is_file("topk")
    (True, False)
    """
    return ":" in name


def placed(name: str, folder: Path) -> str:
    """Return the name with the full path of its file, if it has one, which starts from a folder.

    Examples
    --------
    >>> placed("./my_scheme.py:Rotating", Path("/jobs")), placed("topk", Path("/jobs"))
    ('/jobs/my_scheme.py:Rotating', 'topk')
    """
    path, _, wanted = name.rpartition(":")
    return f"{(folder / path).absolute()}:{wanted}" if is_file(name) else name


def in_file(name: str) -> Any:
    """Return what a file defines, as ``my_scheme.py:Rotating``.

    The module is that of this content: loaded once in each process, and anew when the file has changed.

    Raises
    ------
    PluginError
        If files are refused here, or the name has another form.
    InputError
        If the file is not there, is too large, fails while it is imported, or defines no such name.
    """
    path, _, wanted = name.rpartition(":")
    if not path.endswith(".py") or not wanted.isidentifier():
        raise PluginError(f"a file is named with a class in it, as ./my_scheme.py:Rotating; got {name!r}")
    if not allowed():
        raise PluginError(f"{name!r} is a file, {_WHY}")
    module = _module(path, read_text(Path(path), MAX_BYTES).encode())
    if not hasattr(module, wanted):
        own = [
            name for name, one in vars(module).items() if isinstance(one, type) and one.__module__ == module.__name__
        ]
        raise InputError(f"defines no {wanted!r}: {nearest(wanted, own)}", file=path)
    return getattr(module, wanted)


def allowed() -> bool:
    """Return whether code of others may be loaded here."""
    return os.environ.get(REFUSED, "") in ("", "0")


@contextmanager
def refused() -> Iterator[None]:
    """Load no code of others inside the block: neither entry points nor files that a scenario names."""
    before = os.environ.get(REFUSED, "")
    os.environ[REFUSED] = "1"
    try:
        yield
    finally:
        os.environ[REFUSED] = before


_WHY = f"code of others, which --no-plugins or {REFUSED} in the environment refuses"


_AUTHORS: set[tuple[str, str, str]] = set()
"""The modules in which code of others was found, what in them, and what to say of it."""


def _author(module: str, name: str) -> str:
    """Return whose a function or class of a module is, or else the module, or else its package; "" if not theirs."""
    near = sorted(one for one in _AUTHORS if one[0].partition(".")[0] == module.partition(".")[0])
    for same in ((module, name.partition(".")[0]), (module,), ()):
        if found := [one[-1] for one in near if one[: len(same)] == same]:
            return " and ".join(found)
    return ""


def _blame(error: BaseException) -> tuple[str, str]:
    """Return whose code raised an error, and where: the last of their lines, or else of those that an object ran."""
    ran, wrote = ("", ""), ("", "")
    from traceback import walk_tb

    cause: BaseException | None = error
    while cause is not None:
        for frame, line in walk_tb(cause.__traceback__):
            place = f" ({frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname})"
            owner = type(frame.f_locals.get("self"))
            if author := _author(frame.f_globals.get("__name__", ""), frame.f_code.co_qualname):
                wrote = author, place
            elif author := _author(owner.__module__, owner.__qualname__):
                ran = author, place
        cause = cause.__cause__
    return wrote if wrote[0] else ran


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _all(kind: Kind) -> EntryPoints:
    folders = [one for one in map(Path, sys.path) if one.exists()]
    return _scanned(kind, *((str(one.absolute()), one.stat().st_mtime_ns) for one in folders))


@lru_cache
def _scanned(kind: Kind, *_folders: tuple[str, int]) -> EntryPoints:
    """Look through every installed package, which takes time, again only where a folder has changed."""
    from importlib.metadata import entry_points

    return entry_points(group=f"simnet.{kind}")


def _own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == DISTRIBUTION


def _module(path: str, text: bytes) -> ModuleType:
    """Return the module of a file's text, under a name that tells its content."""
    import hashlib
    import traceback
    from importlib.abc import SourceLoader

    name = f"simnet_file_{hashlib.sha256(text).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]

    class Source(SourceLoader):
        """The text as a module, by which no bytecode is read or left behind."""

        def get_filename(self, fullname: str) -> str:
            return path

        def get_data(self, path: str) -> bytes:
            return text

    loader = Source()
    spec = spec_from_loader(name, loader)
    assert spec is not None
    # Dataclasses and annotations look their module up while it is imported.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
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
