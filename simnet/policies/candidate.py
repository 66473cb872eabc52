"""An exchange that a policy may ask for, and the closed form it is weighed by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

import sparsifier_models
from simnet import costs
from simnet.base.arrays import Floats
from sparsifier_models.artopk import ARTopk
from sparsifier_models.dense import Dense
from sparsifier_models.fp16 import FP16
from sparsifier_models.mstopk import MSTopk
from sparsifier_models.options import Options, option_values
from sparsifier_models.randomk import Randomk
from sparsifier_models.topk import LayerwiseTopk, Topk
from sparsifier_models.topka import TopkA

Cost: TypeAlias = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike], Floats]
"""Closed form: alpha [s], beta [s/byte], dense message M [byte], density c, workers N -> seconds; all may be arrays."""


@dataclass(frozen=True)
class Candidate:
    """One way of exchanging gradients: a scheme with its options, under the name that reports use.

    Parameters
    ----------
    label : str
        Name in tables and figures, e.g. ``"ART-ring"``.
    scheme : str
        Name of the sparsifier, see `sparsifier_models.names`.
    options : mapping
        Its options, see `sparsifier_models.create`.
    """

    label: str
    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)


def distinct(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates, at least one and each with a label of its own.

    Raises
    ------
    ValueError
        If not.
    """
    labels = [candidate.label for candidate in candidates]
    if not labels:
        raise ValueError("a policy needs at least one candidate")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two candidates are called {label!r}; labels tell them apart")
    return tuple(candidates)


def closed_form(candidate: Candidate) -> Cost:
    """Return the closed form of an exchange, as Eqns 4 and 5 of the AR-Topk paper use them.

    The widths of values and indices are taken into account; with 4 bytes each the formulas are those of the paper.
    Arguments broadcast against each other.

    Raises
    ------
    ValueError
        If there is no such scheme or option, or no closed form is known for the scheme with these options.

    Examples
    --------
    >>> cost = closed_form(Candidate("AG", "topk"))
    >>> f"{cost(1e-3, 8 / 10e9, 46_758_048, 0.1, 8):.6f}"  # Table VI, ResNet-18, 10 Gbit/s
    '0.055369'
    """
    scheme = sparsifier_models.scheme(candidate.scheme)
    options: Any = option_values(scheme.option_type, candidate.options)
    # In M, the dense message of the formulas, a value has 4 bytes, and an index as many.
    value, index = (options.value_bytes or 4) / 4, (options.index_bytes or 4) / 4
    if options.wire == "paper":
        if scheme in (Dense, FP16) and options.algorithm in _ALLREDUCE:
            dense = _ALLREDUCE[options.algorithm]
            width = 0.5 if scheme is FP16 and options.value_bytes is None else value
            return lambda alpha, beta, M, c, N: dense(alpha, beta, width * np.asarray(M), N)
        if scheme is ARTopk and not options.monitored:
            reduce, votes = _ALLREDUCE[options.collective], options.selection == "var"

            def art(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
                kept = np.multiply(M, c)
                vote = costs.var_overhead(alpha, beta, N) if votes else 0.0
                return vote + costs.broadcast(alpha, beta, index * kept, N) + reduce(alpha, beta, value * kept, N)

            return art
        if scheme is Randomk and options.shared:
            shared = _ALLREDUCE[options.collective]
            return lambda alpha, beta, M, c, N: shared(alpha, beta, value * np.multiply(M, c), N)
        fused = scheme is not LayerwiseTopk or options.fused
        if scheme in _GATHERED and fused and options.allgather == "recursive_doubling":
            pair = (value + index) / 2
            return lambda alpha, beta, M, c, N: costs.topk_allgather(alpha, beta, pair * np.asarray(M), c, N)
        if scheme not in (Dense, FP16, ARTopk, *_GATHERED) and _sends_as_by_default(options):
            own = _first_cost(scheme)
            if own is not None:
                return own
    given = ", ".join(f"{name}={value}" for name, value in candidate.options.items())
    raise ValueError(
        f"no closed form is known for {candidate.label!r} ({candidate.scheme}{', ' if given else ''}{given}), so a "
        "flexible policy cannot weigh it; it can weigh dense and fp16 over ring, tree or parameter_server, top-k "
        "schemes that gather over recursive_doubling, and artopk, each on the wire 'paper', and other schemes that "
        "have a closed form with their default options"
    )


def _sends_as_by_default(options: Options) -> bool:
    """Whether all options that messages depend on have their defaults."""
    silent = ("error_feedback", "compat", "seed", "layers", "scale")
    fields = (one for one in dataclasses.fields(options) if one.name not in silent)
    return all(getattr(options, one.name) == one.default for one in fields)


def _first_cost(scheme: type[sparsifier_models.Sparsifier]) -> Cost | None:
    """Return the first of a scheme's closed forms, with k entries selected; of a bound, the bound.

    None if there is none, or it asks for more than all schemes know.
    """
    if not scheme.costs:
        return None
    cost = scheme.costs[0]
    names = signature(cost).parameters
    if {name for name, one in names.items() if one.default is Parameter.empty} - {"alpha", "beta", "M", "c", "N"}:
        return None
    widths = {"index_bytes": 4.0} if "index_bytes" in names else {}

    def closed(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
        density = {"c": c} if "c" in names else {}
        found: Floats = cost(alpha=alpha, beta=beta, M=M, N=N, **density, **widths)
        return found

    return closed


_GATHERED = (Topk, TopkA, LayerwiseTopk, MSTopk, Randomk)
_ALLREDUCE: dict[str, Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], Floats]] = {
    "ring": costs.ring_allreduce,
    "tree": costs.tree_allreduce,
    "parameter_server": costs.parameter_server,
}
