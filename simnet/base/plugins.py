"""What others add to simnet: entry points of their packages, a group for each kind of thing, and files of their own.

====================  ==========================================================================
``sparsifiers``       a `sparsifier_models.base.Sparsifier` class
``topologies``        a function that returns a graph as `topologies` describes it
``collectives``       an entry of `simnet.collectives.registry`
``weather``           an annotated function that returns a `simnet.network.weather.Signal`
``policies``          an annotated class with what `simnet.policies.Policy` asks for
``log_readers``       a `simnet.calibration.readers.Format`
``devices``           a function that returns a `simnet.costs.devices.DeviceProfile`
``commands``          a function that adds commands to the command line
====================  ==========================================================================

In a package's ``pyproject.toml`` the group is ``simnet.`` and the kind, as ``simnet.topologies``. What comes with
simnet keeps its names, whatever others register. A file is named with what is wanted of it, as
``./my_scheme.py:Rotating``.

All of this is code that runs with the rights of the user. Where ``SIMNET_NO_PLUGINS`` is set in the environment, as
``simnet --no-plugins`` does, it is refused, here and in the processes that are started from here.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Set
from contextlib import contextmanager
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from simnet.base.errors import InputError, SimnetError, nearest
from simnet.base.reading import read_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints
    from types import ModuleType

Kind: TypeAlias = Literal[
    "sparsifiers", "topologies", "collectives", "weather", "policies", "log_readers", "devices", "commands"
]

REFUSED = "SIMNET_NO_PLUGINS"
"""The environment variable that refuses code of others, unless it is empty or 0."""

MAX_BYTES = 2**20
"""The largest file that is loaded."""


class PluginError(SimnetError, ValueError):
    """Code of others that is refused, cannot be imported, or is not what its kind asks for."""


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


def load(kind: Kind, name: str) -> Any:
    """Return what is registered under a name, by the first package that does; None if nobody registered it.

    Raises
    ------
    PluginError
        If it is refused, or cannot be imported; names the package and the reason.
    """
    found = entry(kind, name)
    if found is None:
        return None
    package = "" if found.dist is None else f" by {found.dist.name} {found.dist.version}"
    if not allowed() and not _own(found):
        raise PluginError(f"{name!r} is registered as simnet.{kind}{package}, {_WHY}")
    try:
        return found.load()
    except Exception as error:
        raise PluginError(
            f"{name!r}, registered as simnet.{kind}{package}, cannot be imported from {found.value}: "
            f"{type(error).__name__}: {error}"
        ) from error


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


def _all(kind: Kind) -> EntryPoints:
    # Looking through every installed package takes time: only who asks for it pays.
    from importlib.metadata import entry_points

    return entry_points(group=f"simnet.{kind}")


def _own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "simnet"


class _Source(SourceLoader):
    """The text of a file as a module, by which no bytecode is read or left behind."""

    def __init__(self, path: str, text: bytes) -> None:
        self._path, self._text = path, text

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        return self._text


def _module(path: str, text: bytes) -> ModuleType:
    """Return the module of a file's text, under a name that tells its content."""
    import hashlib

    name = f"simnet_file_{hashlib.sha256(text).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Source(path, text)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    # Dataclasses and annotations look their module up while it is imported.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else (lines or [None])[-1]
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"cannot be imported: {type(error).__name__}: {said}", file=path, line=line) from error
    return module
