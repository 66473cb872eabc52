"""Registry of collectives: one entry for each algorithm, used by commands, timing and writers of files.

A collective is a function that returns its `Schedule`, marked by `collective` with the rest of its entry: program,
closed form, the names that libraries have for it. It stands in a module of this package, where it is found by itself,
or in a package of others that names the function under the entry points ``simnet.collectives``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, getdoc, signature
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from numpy.typing import ArrayLike

from simnet.base import plugins
from simnet.base.arrays import Floats
from simnet.base.errors import suggest_names
from simnet.base.plugins import PluginError
from simnet.collectives.program import ChunkProgram
from simnet.schedule import Schedule

F = TypeVar("F", bound=Callable[..., Schedule])

Operation: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall"]
"""What a collective achieves, as nccl-tests spells it."""

Offer: TypeAlias = Literal["always", "on nodes", "never"]


class Ranks(NamedTuple):
    """The numbers of ranks for which an algorithm works: a description, and a function that tests a number."""

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
        Its name in `simnet time`, ``simnet convert`` and `simnet.collectives`.
    operation : str
        The operation, such as ``all_reduce``.
    algorithm : str
        The algorithm, such as ``ring``; unique within the operation. Options of schemes use this name.
    function : callable
        ``(n_ranks, nbytes, ...) -> Schedule``. Bytes are those of the vector; what a rank contributes to an
        all-gather, or sends to each other in an all-to-all.
    program : callable, optional
        ``(n_ranks, ...) -> ChunkProgram``, which also executes on arrays.
    varying : callable, optional
        ``(sizes) -> Schedule`` for contributions of unequal size.
    cost : callable, optional
        Closed form ``(alpha, beta, M, N)`` -> seconds on idle links that are all alike.
    ranks, exact : Ranks
        Numbers of ranks for which it is valid, and for which its closed form equals the simulated time on an idle star.
    nccl : str
        NCCL's name.
    mpi : tuple of str
        Names in MPI libraries and their logs: that of Open MPI first.
    calibrated : bool
        Whether a calibration considers it for measurements that do not name their algorithm.
    offered : {"always", "on nodes", "never"}
        When `simnet choose` compares it by default.
    """

    name: str
    operation: Operation
    algorithm: str
    function: Callable[..., Schedule]
    program: Callable[..., ChunkProgram] | None = None
    varying: Callable[[ArrayLike], Schedule] | None = None
    cost: Callable[..., Floats] | None = None
    ranks: Ranks = ANY
    exact: Ranks = ANY
    nccl: str = ""
    mpi: tuple[str, ...] = ()
    calibrated: bool = False
    offered: Offer = "always"

    def schedule(self, n_ranks: int, nbytes: float, **options: Any) -> Schedule:
        """Return the messages of the collective between `n_ranks` ranks, as a schedule.

        Raises
        ------
        ValueError
            If it is not valid for so many ranks, or refuses an option.
        """
        if not self.ranks.among(n_ranks):
            raise ValueError(f"{self.name} needs a number of ranks among {self.ranks.words}, got {n_ranks}")
        return _schedule_from(self.function, n_ranks, nbytes, **options)

    def schedule_of_vector(self, n_ranks: int, nbytes: float, **options: Any) -> Schedule:
        """Return the schedule for `nbytes` bytes in total, as the size column of nccl-tests counts them.

        That is what ``--size`` means, and the size column of nccl-tests: in an all-gather a rank contributes, and in an
        all-to-all it sends to each other, one P-th of it. So a reduce-scatter and an all-gather make an all-reduce.

        Examples
        --------
        >>> [collective_by_name(name).schedule_of_vector(4, 400.0).bytes_sent().max().item() for name in
        ...     ("reduce_scatter_ring", "allgather_ring", "allreduce_ring")]
        [300.0, 300.0, 600.0]
        """
        parted = self.operation in ("all_gather", "alltoall")
        return self.schedule(n_ranks, nbytes / n_ranks if parted else nbytes, **options)

    def schedule_of_sizes(self, sizes: ArrayLike) -> Schedule:
        """Return the schedule for one contribution per rank of unequal `sizes` [byte], shape (P,).

        Raises
        ------
        ValueError
            If it has no variant for unequal sizes.
        """
        if self.varying is None:
            raise ValueError(f"{self.name} takes contributions of one size only")
        return _schedule_from(self.varying, sizes)

    @property
    def options(self) -> dict[str, Parameter]:
        """Keyword parameters, by name, of the function that builds the schedule, without number of ranks and bytes."""
        return dict([*signature(self.function).parameters.items()][2:])

    @property
    def needs(self) -> list[str]:
        """Names of the options without a default."""
        return [name for name, one in self.options.items() if one.default is Parameter.empty]

    @property
    def summary(self) -> str:
        """First line of the docstring of the function that builds the schedule."""
        return (getdoc(self.function) or "").partition("\n")[0]


def collective(operation: Operation, algorithm: str, **entry: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function as a collective: one algorithm of an operation.

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


def _schedule_from(by: Callable[..., Schedule], *arguments: Any, **options: Any) -> Schedule:
    if isinstance(made := by(*arguments, **options), Schedule):
        return made
    raise plugins.return_error(by, made, "a Schedule")


def entry_of(function: object) -> Collective | None:
    """Return the `Collective` that the decorator `collective` attached to a function; None if there is none."""
    found = getattr(function, "collective", None)
    return found if isinstance(found, Collective) else None


@cache
def built_in() -> tuple[Collective, ...]:
    """Return the collectives that ship with simnet, ordered by module, then by definition.

    Examples
    --------
    >>> [one.name for one in built_in() if one.operation == "all_gather"]
    ['allgather_auto', 'allgather_recursive_doubling', 'allgather_bruck', 'allgather_ring']
    """
    package = import_module("simnet.collectives")
    modules = sorted(one.name for one in pkgutil.iter_modules(package.__path__, "simnet.collectives."))
    found = (entry_of(value) for name in modules for value in vars(import_module(name)).values())
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _plugin_collective(name: str) -> Collective | None:
    """Return a plug-in's collective by its registered name; None if there is none, or it duplicates a built-in one."""
    one = plugins.load_plugin("collectives", name, _marked_builder)
    taken = (one is None) or any(
        one.name == own.name or (one.operation, one.algorithm) == (own.operation, own.algorithm) for own in built_in()
    )
    return None if taken else one


def _marked_builder(function: object) -> Collective:
    if (found := entry_of(function)) is None:
        raise PluginError("it is not marked by `collective`")
    return found


def all_collectives(operation: Operation | None = None) -> list[Collective]:
    """Return all collectives, or those of one operation: first the built-in ones, then those of plug-ins.

    A warning tells which of other packages cannot be used.
    """
    of_others = plugins.usable_plugins("collectives", _plugin_collective).values()
    return [one for one in (*built_in(), *of_others) if operation in (None, one.operation)]


def collective_by_name(name: str) -> Collective:
    """Return the collective with this name; ValueError with the nearest names if there is none.

    Examples
    --------
    >>> collective_by_name("allgather_bruck").nccl
    'PAT'
    """
    found = _first_wanted(lambda one: one.name == name)
    if found is None:
        raise unknown_collective("collective", name, [one.name for one in all_collectives()])
    return found


def find_collective(operation: str, algorithm: str) -> Collective | None:
    """Return the collective for an operation and an algorithm; None if there is none.

    Examples
    --------
    >>> find_collective("all_reduce", "rabenseifner").name, find_collective("all_reduce", "magic")
    ('allreduce_rabenseifner', None)
    """
    return _first_wanted(lambda one: (one.operation, one.algorithm) == (operation, algorithm))


def collective_by_algorithm(operation: Operation, algorithm: str) -> Collective:
    """Return the collective for an operation and an algorithm; ValueError if there is none."""
    found = find_collective(operation, algorithm)
    if found is None:
        raise unknown_collective(operation, algorithm, [one.algorithm for one in all_collectives(operation)])
    return found


def unknown_collective(what: str, name: object, allowed: Iterable[str]) -> ValueError:
    """Return the error for an unknown collective, or the error of an unusable plug-in that has registered the name.

    Parameters
    ----------
    what : str
        What the name should be, such as ``algorithm``.
    name : object
        The name or algorithm that was given.
    allowed : iterable of str
        The known names.
    """
    for registered in plugins.plugin_names("collectives"):
        if str(name) == registered or str(name).endswith(f"_{registered}"):
            try:
                _plugin_collective(registered)
            except PluginError as error:
                return error
    return ValueError(
        f"there is no {what} {name!r}: {suggest_names(str(name), allowed)}{plugins.refused_names('collectives')}"
    )


def usual_collectives(operation: Operation, *, on_nodes: bool) -> list[Collective]:
    """Return the collectives that `simnet choose` compares by default; `on_nodes` adds those for multi-GPU nodes.

    Examples
    --------
    >>> [one.algorithm for one in usual_collectives("all_reduce", on_nodes=True)]
    ['ring', 'tree', 'hierarchical']
    """
    where: tuple[Offer, ...] = ("always", "on nodes") if on_nodes else ("always",)
    found = [one for one in all_collectives(operation) if one.cost is not None and one.offered in where]
    return sorted(found, key=lambda one: where.index(one.offered))


def algorithm_in_logs(name: str) -> str:
    """Return simnet's name of an algorithm, given its name in logs of MPI libraries; other names stay unchanged.

    Examples
    --------
    >>> algorithm_in_logs("rd"), algorithm_in_logs("ring")
    ('recursive_doubling', 'ring')
    """
    return next((one.algorithm for one in built_in() if name in one.mpi), name)


def _first_wanted(wanted: Callable[[Collective], bool]) -> Collective | None:
    """Return the first collective that `wanted` accepts, built-in ones before plug-ins; None if there is none."""
    found = next(filter(wanted, built_in()), None)
    return found or next(filter(wanted, plugins.usable_plugins("collectives", _plugin_collective).values()), None)
