"""The collectives that there are: one entry each, from which all that offers, times or writes collectives derives.

A collective is a function that returns its `Schedule`, marked by `collective` with the rest of its entry: program,
closed form, the names that libraries have for it. It stands in a module of this package, where it is found by itself,
or in a package of others that names the function under the entry points ``simnet.collectives``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, getdoc, signature
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from numpy.typing import ArrayLike

from simnet.base import plugins
from simnet.base.arrays import Floats
from simnet.base.errors import nearest
from simnet.base.plugins import PluginError
from simnet.collectives.program import Program
from simnet.schedule import Schedule

F = TypeVar("F", bound=Callable[..., Schedule])

Operation: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall"]
"""What a collective achieves, as nccl-tests spells it."""

Offer: TypeAlias = Literal["always", "on nodes", "never"]


class Ranks(NamedTuple):
    """Numbers of ranks: in words, and whether one is among them."""

    words: str
    among: Callable[[int], bool]


ANY = Ranks("any", lambda P: P >= 1)
POWERS_OF_TWO = Ranks("powers of two", lambda P: P >= 1 and P & (P - 1) == 0)


@dataclass(frozen=True)
class Collective:
    """An algorithm of a collective operation.

    Parameters
    ----------
    name : str
        Its name in `simnet time`, ``simnet export`` and `simnet.collectives`.
    operation : str
        What it achieves.
    algorithm : str
        How; one of a kind among those of the operation. Options of schemes have this name.
    function : callable
        ``(n_ranks, nbytes, ...) -> Schedule``. Bytes are those of the vector; what a rank contributes to an
        all-gather, or sends to each other in an all-to-all.
    program : callable, optional
        ``(n_ranks, ...) -> Program``, which also executes on arrays.
    varying : callable, optional
        ``(sizes) -> Schedule`` for contributions of unequal size.
    cost : callable, optional
        Closed form ``(alpha, beta, M, N)`` -> seconds on idle links that are all alike; with `nodes`, see
        `simnet.costs.Nodes`, where it takes them.
    ranks, exact : Ranks
        For which numbers of ranks it is valid, and for which its closed form is what the network says on an idle star.
    nccl : str
        NCCL's name.
    mpi : tuple of str
        Names in MPI libraries and their logs: that of Open MPI first.
    calibrated : bool
        Whether a calibration considers it for measurements that do not name their algorithm.
    offered : {"always", "on nodes", "never"}
        When `simnet choose` weighs it unasked.
    """

    name: str
    operation: Operation
    algorithm: str
    function: Callable[..., Schedule]
    program: Callable[..., Program] | None = None
    varying: Callable[[ArrayLike], Schedule] | None = None
    cost: Callable[..., Floats] | None = None
    ranks: Ranks = ANY
    exact: Ranks = ANY
    nccl: str = ""
    mpi: tuple[str, ...] = ()
    calibrated: bool = False
    offered: Offer = "always"

    def schedule(self, n_ranks: int, nbytes: float, **options: Any) -> Schedule:
        """Return its messages between so many ranks.

        Raises
        ------
        ValueError
            If it is not valid for so many ranks, or refuses an option.
        """
        if not self.ranks.among(n_ranks):
            raise ValueError(f"{self.name} needs a number of ranks among {self.ranks.words}, got {n_ranks}")
        return self.function(n_ranks, nbytes, **options)

    def schedule_of_sizes(self, sizes: ArrayLike) -> Schedule:
        """Return its messages for contributions of these sizes [byte], shape (P,).

        Raises
        ------
        ValueError
            If it has no variant for unequal sizes.
        """
        if self.varying is None:
            raise ValueError(f"{self.name} takes contributions of one size only")
        return self.varying(sizes)

    @property
    def options(self) -> dict[str, Parameter]:
        """Further parameters of its function, by name."""
        return dict([*signature(self.function).parameters.items()][2:])

    @property
    def needs(self) -> list[str]:
        """Those of them that have no default."""
        return [name for name, one in self.options.items() if one.default is Parameter.empty]

    @property
    def knows_nodes(self) -> bool:
        """Whether its closed form takes `nodes`."""
        return self.cost is not None and "nodes" in signature(self.cost).parameters

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (getdoc(self.function) or "").partition("\n")[0]


def collective(operation: Operation, algorithm: str, **entry: Any) -> Callable[[F], F]:
    """Mark a function that returns a schedule as a collective.

    Parameters
    ----------
    operation, algorithm : str
        As of `Collective`.
    **entry
        Further fields of `Collective`.

    Examples
    --------
    >>> from simnet.schedule import Round
    >>> @collective("broadcast", "flat", nccl="mine")
    ... def broadcast_flat(n_ranks: int, nbytes: float) -> Schedule:
    ...     others = list(range(1, n_ranks))
    ...     return Schedule(n_ranks, [Round([0] * len(others), others, nbytes)])
    >>> entry_of(broadcast_flat).name, broadcast_flat(3, 8.0).bytes_sent()
    ('broadcast_flat', array([16.,  0.,  0.]))
    """

    def mark(function: F) -> F:
        vars(function)["collective"] = Collective(function.__name__, operation, algorithm, function, **entry)
        return function

    return mark


def entry_of(function: object) -> Collective | None:
    """Return the entry of a function that is marked as a collective; None of anything else."""
    found = getattr(function, "collective", None)
    return found if isinstance(found, Collective) else None


@cache
def built_in() -> tuple[Collective, ...]:
    """Return the collectives of this package, by module and in their order there.

    Examples
    --------
    >>> [one.name for one in built_in() if one.operation == "all_gather"]
    ['allgather_recursive_doubling', 'allgather_bruck', 'allgather_ring']
    """
    package = import_module("simnet.collectives")
    modules = sorted(one.name for one in pkgutil.iter_modules(package.__path__, "simnet.collectives."))
    found = (entry_of(value) for name in modules for value in vars(import_module(name)).values())
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _registered(unusable: dict[str, PluginError] | None = None) -> Iterator[Collective]:
    """Yield the collectives of other packages; what comes with simnet keeps its names."""
    taken = {key for one in built_in() for key in (one.name, (one.operation, one.algorithm))}
    for name in plugins.names("collectives"):
        try:
            one = entry_of(plugins.load("collectives", name))
            if one is None:
                raise PluginError(f"{name!r}, registered as simnet.collectives, is not marked by `collective`")
        except PluginError as error:
            if unusable is None:
                raise
            unusable[name] = error
            continue
        if not taken & {one.name, (one.operation, one.algorithm)}:
            yield one


def every(operation: Operation | None = None, unusable: dict[str, PluginError] | None = None) -> list[Collective]:
    """Return all collectives, or those of an operation: first simnet's own, then those of other packages.

    Raises
    ------
    PluginError
        If one of another package cannot be imported or is no collective. With a mapping `unusable` it is left out, and
        the mapping gets its name and the error.
    """
    return [one for one in (*built_in(), *_registered(unusable)) if operation in (None, one.operation)]


def named(name: str) -> Collective:
    """Return a collective by its name.

    Raises
    ------
    ValueError
        If there is none; says which name is nearest.

    Examples
    --------
    >>> named("allgather_bruck").nccl
    'PAT'
    """
    found = _first(lambda one: one.name == name)
    if found is None:
        refused = plugins.left_out("collectives")
        raise ValueError(f"there is no collective {name!r}; {nearest(name, [one.name for one in every()])}{refused}")
    return found


def known(operation: str, algorithm: str) -> Collective | None:
    """Return the collective that carries an operation out by an algorithm; None if there is none.

    Examples
    --------
    >>> known("all_reduce", "rabenseifner").name, known("all_reduce", "magic")
    ('allreduce_rabenseifner', None)
    """
    return _first(lambda one: (one.operation, one.algorithm) == (operation, algorithm))


def find(operation: Operation, algorithm: str) -> Collective:
    """Return the collective that carries an operation out by an algorithm.

    Raises
    ------
    ValueError
        If there is none; says which algorithm is nearest.
    """
    found = known(operation, algorithm)
    if found is None:
        names = [one.algorithm for one in every(operation)]
        refused = plugins.left_out("collectives")
        raise ValueError(f"there is no {operation} {algorithm!r}: {nearest(algorithm, names)}{refused}")
    return found


def offered(operation: Operation, *, on_nodes: bool) -> list[Collective]:
    """Return what `simnet choose` weighs unasked: with a closed form, on nodes one that knows of them.

    Examples
    --------
    >>> [one.algorithm for one in offered("all_reduce", on_nodes=True)]
    ['ring', 'tree', 'hierarchical']
    """
    found = [one for one in every(operation) if one.cost is not None and one.offered != "never"]
    if on_nodes:
        return sorted((one for one in found if one.knows_nodes), key=lambda one: one.offered == "on nodes")
    return [one for one in found if one.offered == "always"]


def algorithm_in_logs(name: str) -> str:
    """Return the algorithm that MPI libraries and their logs call by a name; the name itself if it is none of theirs.

    Examples
    --------
    >>> algorithm_in_logs("rd"), algorithm_in_logs("ring")
    ('recursive_doubling', 'ring')
    """
    return next((one.algorithm for one in built_in() if name in one.mpi), name)


def _first(wanted: Callable[[Collective], bool]) -> Collective | None:
    """Return the first that is wanted; packages of others are only looked through if it is none of simnet's."""
    return next(filter(wanted, built_in()), None) or next(filter(wanted, _registered()), None)
