"""Candidate exchanges from which a policy chooses, and formulas for the time of each (closed forms)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.collectives import registry
from simnet.cost_models import costs
from simnet.cost_models.costs.encodings import VALUE_BITS, encoded_index_bytes, encoded_value_bytes
from simnet.sparsifier_models.artopk import ARTopk
from simnet.sparsifier_models.dense import FP16, Dense
from simnet.sparsifier_models.options import Options, option_values
from simnet.sparsifier_models.spardl import SparDL
from simnet.sparsifier_models.topk import LayerwiseTopk, MSTopk, Randomk, Topk, TopkA
from simnet.sparsifier_models.two_level import AUTO, OWN, TwoLevel, sizes_of
from simnet.sparsifier_models.wire import ADDED_UP

ClosedForm: TypeAlias = Callable[..., Floats]
"""A closed form from alpha [s], beta [s/byte], dense message M [byte], density c and workers N to seconds.

All may be arrays.
"""


@dataclass(frozen=True)
class Candidate:
    """A candidate exchange: a scheme with its options, and the label that tables and figures show."""

    label: str
    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)


def check_distinct(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates as a tuple; raise ValueError if the sequence is empty or two labels are equal."""
    labels = [candidate.label for candidate in candidates]
    if not labels:
        raise ValueError("a policy needs at least one candidate")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two candidates are called {label!r}; labels tell them apart")
    return tuple(candidates)


def closed_form(candidate: Candidate) -> ClosedForm:
    """Return the function that computes an exchange's time [s] by a formula, for numbers or arrays (AR-Topk, Eqns 4-5).

    Raises ValueError for an unknown scheme or option, or if no closed form is known.

    Examples
    --------
    >>> cost = closed_form(Candidate("AG", "topk"))
    >>> f"{cost(1e-3, 8 / 10e9, 46_758_048, 0.1, 8):.6f}"  # Table VI, ResNet-18, 10 Gbit/s
    '0.055369'
    """
    scheme = sparsifier_models.scheme(candidate.scheme)
    options: Any = option_values(scheme.option_type, candidate.options)
    found = _of_collectives(scheme, options) if options.wire == "paper" else None
    if issubclass(scheme, TwoLevel):
        found = _on_two_levels(candidate, scheme, options)
    if found is not None:
        return found
    given = ", ".join(f"{name}={value}" for name, value in candidate.options.items())
    raise ValueError(
        f"no closed form is known for {candidate.label!r} ({candidate.scheme}{', ' if given else ''}{given}), so a "
        "flexible policy cannot weigh it; it can weigh dense, fp16, artopk, spardl and top-k schemes that gather, each "
        "on the wire 'paper' over collectives with a closed form, and other schemes that have one with default "
        "options; name those among which it chooses, as in among: [AG, dense]"
    )


class _Setting(NamedTuple):
    """Arguments of a formula: latency [s], seconds per byte, dense gradient [byte], density, number of workers."""

    alpha: ArrayLike
    beta: ArrayLike
    M: ArrayLike
    c: ArrayLike
    N: ArrayLike


# Time [s] of a collective, given a setting and the number of bytes.
_Cost: TypeAlias = Callable[[_Setting, ArrayLike], Floats]


def _closed(cost: Callable[[_Setting], Floats]) -> ClosedForm:
    """Return the formula `cost`, which takes one `_Setting`, as a function of five separate arguments."""
    return lambda alpha, beta, M, c, N: cost(_Setting(alpha, beta, M, c, N))


def _of_collectives(scheme: type[sparsifier_models.Sparsifier], options: Any) -> ClosedForm | None:
    """Return the formula for a scheme's time: the sum over its collectives, or else the one that its class declares."""
    # In M, the dense message of the formulas, a value has 4 bytes, and an index as many.
    value, index = (options.value_bytes or 4) / 4, (options.index_bytes or 4) / 4
    if options.values is not None:
        value = VALUE_BITS[options.values] / 32
    reduced = options.values is None or options.values in ADDED_UP
    if scheme in (Dense, FP16):
        if options.indices is not None or options.values is not None:
            return None
        width = 0.5 if scheme is FP16 and options.value_bytes is None else value
        dense = _collective_cost("all_reduce", options.algorithm, options)
        return dense and _closed(lambda at: dense(at, width * np.asarray(at.M)))
    if scheme is ARTopk and reduced:
        reduce = _collective_cost("all_reduce", options.collective, options)
        vote, votes = _collective_cost("all_gather", options.allgather, options), options.selection == "var"
        if reduce is None or (votes and vote is None) or options.monitored:
            return None

        def artopk(at: _Setting) -> Floats:
            indices = costs.broadcast(at.alpha, at.beta, _index_bytes(options, index, at.M, at.c), at.N)
            voted = vote(at, 4.0) if votes and vote is not None else 0.0
            return voted + indices + reduce(at, value * np.multiply(at.M, at.c))

        return _closed(artopk)
    if scheme is Randomk and options.shared:
        if options.indices is not None or not reduced:
            return None
        shared = _collective_cost("all_reduce", options.collective, options)
        return shared and _closed(lambda at: shared(at, value * np.multiply(at.M, at.c)))
    if scheme in _GATHERED:
        gather = _collective_cost("all_gather", options.allgather, options)
        if gather is None or (scheme is LayerwiseTopk and not options.fused):
            return None
        sized = partial(_pair_bytes, options, value + index)
        return _closed(lambda at: gather(at, sized(at.M, at.c)))
    if scheme is SparDL and _sends_as_by_default(
        replace(options, teams=1, sag="bruck", residual="global", adapt="released")
    ):
        d, recursive = options.teams, options.sag != "bruck" and not options.teams & (options.teams - 1)
        teams = costs.spardl_rsag if recursive else costs.spardl_bsag
        return _closed(lambda at: teams(at.alpha, at.beta, at.M, at.c, at.N, d))
    return _first_cost(scheme) if _sends_as_by_default(options) else None


def _collective_cost(operation: registry.Operation, algorithm: str, options: Any) -> _Cost | None:
    """Return the formula for a collective's time, a function of `_Setting` and bytes; None if there is none."""
    found = registry.collective_by_algorithm(operation, algorithm)
    if found.cost is None:
        return None
    cost, needed = found.cost, {name: getattr(options, name) for name in found.needs}

    def closed(at: _Setting, nbytes: ArrayLike) -> Floats:
        return cost(at.alpha, at.beta, nbytes, at.N, **needed)

    return closed


def _on_two_levels(candidate: Candidate, scheme: type[TwoLevel], options: Any) -> ClosedForm | None:
    """Return a two-level scheme's formula: collectives inside nodes plus the scheme between nodes; None if unknown."""
    if options.ranks_per_node == AUTO or len(sizes_of(options.ranks_per_node)) > 1:
        return None
    own = {name: value for name, value in candidate.options.items() if name not in OWN}
    between = closed_form(Candidate(candidate.label, scheme.scheme.name, own))
    scatter = _collective_cost("reduce_scatter", options.inner_reduce_scatter, options)
    gather = _collective_cost("all_gather", options.inner_all_gather, options)
    (size,), width = sizes_of(options.ranks_per_node), (options.value_bytes or 4) / 4
    if scatter is None or gather is None:
        return None

    def closed(at: _Setting) -> Floats:
        L = np.minimum(float(size), at.N)
        near = at._replace(N=L)
        whole = width * np.asarray(at.M, dtype=np.float64)
        dense: Floats = scatter(near, whole) + gather(near, whole / L)
        # Within one node nothing crosses, whatever the scheme says of one worker.
        crosses = np.asarray(at.N) > L if size > 1 else np.asarray(True)
        across = between(at.alpha, at.beta, np.divide(at.M, L), at.c, np.divide(at.N, L))
        found: Floats = dense + np.where(crosses, across, 0.0)
        return found

    return _closed(closed)


def _index_bytes(options: Options, width: float, M: ArrayLike, c: ArrayLike) -> Floats:
    """Return index bytes for M gradient bytes at density c: `width` per selected gradient byte, unless encoded."""
    kept: Floats = np.multiply(M, c)
    if options.indices is None:
        return width * kept
    return encoded_index_bytes(options.indices, np.divide(M, 4), kept / 4)


def _pair_bytes(options: Options, width: float, M: ArrayLike, c: ArrayLike) -> Floats:
    """Return the bytes of indices and values sent of M gradient bytes at density c; uncompressed, `width` * M * c."""
    if options.indices is None and options.values is None:
        pairs: Floats = width * np.asarray(M, dtype=np.float64) * np.asarray(c)
        return pairs
    k = np.multiply(M, c) / 4
    indices = encoded_index_bytes(options.indices or "int32", np.divide(M, 4), k)
    return indices + encoded_value_bytes(options.values or "float32", k)


def _sends_as_by_default(options: Options) -> bool:
    """Return whether all options that affect the messages have their default values."""
    silent = ("error_feedback", "compat", "seed", "layers", "scale")
    fields = (one for one in dataclasses.fields(options) if one.name not in silent)
    return all(getattr(options, one.name) == one.default for one in fields)


def _first_cost(scheme: type[sparsifier_models.Sparsifier]) -> ClosedForm | None:
    """Return the first formula that a scheme's class declares; None if there is none, or if an argument is unknown."""
    if not scheme.traits.costs:
        return None
    cost = scheme.traits.costs[0]
    names = signature(cost).parameters
    if {name for name, one in names.items() if one.default is Parameter.empty} - {"alpha", "beta", "M", "c", "N"}:
        return None
    widths = {"index_bytes": 4.0} if "index_bytes" in names else {}

    def closed(at: _Setting) -> Floats:
        density = {"c": at.c} if "c" in names else {}
        found: Floats = cost(alpha=at.alpha, beta=at.beta, M=at.M, N=at.N, **density, **widths)
        return found

    return _closed(closed)


_GATHERED = (Topk, TopkA, LayerwiseTopk, MSTopk, Randomk)
