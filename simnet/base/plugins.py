"""What packages of others add to simnet: entry points, a group for each kind of thing.

====================  ==========================================================================
``sparsifiers``       a `sparsifier_models.base.Sparsifier` class
``topologies``        a function that returns a graph as `topologies` describes it
``collectives``       an entry of `simnet.collectives.registry`
``weather``           an annotated function that returns a `simnet.network.weather.Signal`
``policies``          an annotated class with what `simnet.policies.Policy` asks for
``log_readers``       a format of `simnet.calibration.readers`
``devices``           a function that returns a `simnet.costs.devices.DeviceProfile`
``commands``          a function that adds commands to the command line
====================  ==========================================================================

In a package's ``pyproject.toml`` the group is ``simnet.`` and the kind, as ``simnet.topologies``. What comes with
simnet keeps its names, whatever others register.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

Kind: TypeAlias = Literal[
    "sparsifiers", "topologies", "collectives", "weather", "policies", "log_readers", "devices", "commands"
]

_allowed: ContextVar[bool] = ContextVar("plugins", default=True)


def registered(kind: Kind) -> EntryPoints:
    """Return the entry points of a kind; none where plugins are refused.

    Examples
    --------
    >>> [one.name for one in registered("commands")]
    ['validate']
    """
    # Looking through every installed package takes time: only who asks for it pays.
    from importlib.metadata import EntryPoints, entry_points

    return entry_points(group=f"simnet.{kind}") if _allowed.get() else EntryPoints()


def names(kind: Kind) -> list[str]:
    """Return the names that are registered for a kind, sorted."""
    return sorted(registered(kind).names)


def entry(kind: Kind, name: str) -> EntryPoint | None:
    """Return the entry point of a name, the first where several packages register it; None if nobody does."""
    return next(iter(registered(kind).select(name=name)), None)


def load(kind: Kind, name: str) -> Any:
    """Return what is registered under a name; None if nobody registered it.

    Raises
    ------
    ValueError
        If it cannot be imported; names the package and the reason.
    """
    found = entry(kind, name)
    if found is None:
        return None
    try:
        return found.load()
    except Exception as error:
        package = "" if found.dist is None else f" by {found.dist.name} {found.dist.version}"
        raise ValueError(
            f"{name!r}, registered as simnet.{kind}{package}, cannot be imported from {found.value}: "
            f"{type(error).__name__}: {error}"
        ) from error


def allowed() -> bool:
    """Return whether code of others may be loaded here."""
    return _allowed.get()


@contextmanager
def refused() -> Iterator[None]:
    """Load no code of others inside the block: neither entry points nor files that a scenario names."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)
