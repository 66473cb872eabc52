"""What there is to choose from: exchanges over the collectives that are offered, weighed by their closed forms.

On a star the closed forms are what the network says, whatever N, to 1e-9 without votes, and to a few per cent with them
and on trees of no power of two; AR-Topk over a tree saves up to log N latencies. `simnet.cost_models.costs.collectives`
says what they are on nodes that share a link.

References
----------
S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, arXiv 2312.02493.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.collectives import registry
from simnet.cost_models.costs.devices import DeviceOp
from simnet.policies import Candidate, closed_form
from simnet.sparsifier_models.options import option_values
from simnet.sparsifier_models.two_level import AUTO, PREFIX
from simnet.studies.choosing.operating_point import OperatingPoint

Kind: TypeAlias = Literal["dense", "half", "sparse"]
"""The whole gradient in single precision, in half precision, or a selection of it."""


# Entries of a sparsifier of which only its kind matters.
_ANY = 256


@dataclass(frozen=True)
class Choice:
    """A way to exchange gradients.

    Parameters
    ----------
    candidate : Candidate
        Scheme and options.
    kind : {"dense", "half", "sparse"}
        What is sent.
    communicate : callable
        Seconds that the exchange takes at a point, without selecting.
    kernel_calls : callable, optional
        What a worker goes through to select and to put together at a point; none if unknown.
    """

    candidate: Candidate
    kind: Kind
    communicate: Callable[[OperatingPoint], Floats]
    kernel_calls: Callable[[OperatingPoint], Sequence[DeviceOp]] | None = None

    @property
    def label(self) -> str:
        """Its name in tables and figures."""
        return self.candidate.label


def exchange_kind(one: Candidate) -> Kind:
    """Return what an exchange sends."""
    return "dense" if one.scheme == "dense" else "half" if one.scheme == "fp16" else "sparse"


def choices(per_node: int = 1) -> tuple[Choice, ...]:
    """Return what there is to choose from.

    Examples
    --------
    >>> [one.label for one in choices()][:5]
    ['dense ring', 'dense tree', 'fp16 ring', 'fp16 tree', 'AG-Topk']
    """
    reduces, gathers = (registry.offered(one, on_nodes=per_node > 1) for one in ("all_reduce", "all_gather"))
    found = [_dense_choice(one, half, per_node) for half in (False, True) for one in reduces]
    found += [_allgather_choice(one, plain=one is gathers[0]) for one in gathers]
    found += [_artopk_choice(one, selection) for selection in ("star", "var") for one in reduces if not one.needs]
    return (*found, *(on_two_levels(one, per_node) for one in choices())) if per_node > 1 else tuple(found)


def _weighed_form(candidate: Candidate, *, dense: bool = False) -> Callable[[OperatingPoint], Floats]:
    """Return the closed form that a flexible policy weighs an exchange by, at a point."""
    cost = closed_form(candidate)

    def communicate(point: OperatingPoint) -> Floats:
        share = 1.0 if dense else point.kept_share
        return cost(point.latency, point.beta, point.dense_bytes, share, point.workers, point.nodes)

    return communicate


def _dense_choice(reduce: registry.Collective, half: bool, per_node: int) -> Choice:
    scheme = "fp16" if half else "dense"

    def kernel_calls(point: OperatingPoint) -> list[DeviceOp]:
        return [DeviceOp("cast", point.parameters, 2)] if half else []

    # Groups are the nodes.
    options = {"algorithm": reduce.algorithm} | dict.fromkeys(reduce.needs, per_node)
    candidate = Candidate(f"{scheme} {reduce.algorithm}", scheme, options)
    return Choice(
        candidate,
        "half" if half else "dense",
        _weighed_form(candidate, dense=True),
        kernel_calls,
    )


def _allgather_choice(gather: registry.Collective, *, plain: bool) -> Choice:
    def kernel_calls(point: OperatingPoint) -> list[DeviceOp]:
        k = point.kept
        return [
            DeviceOp("topk", point.parameters),
            DeviceOp("gather", k),
            DeviceOp("scatter", k),
            DeviceOp("pack", k),
            DeviceOp("scatter", point.workers * k),
        ]

    label = "AG-Topk" if plain else f"AG-Topk {gather.algorithm}"
    candidate = Candidate(label, "topk", {"allgather": gather.algorithm})
    return Choice(candidate, "sparse", _weighed_form(candidate), kernel_calls)


def _artopk_choice(reduce: registry.Collective, selection: str) -> Choice:
    votes = selection == "var"

    def kernel_calls(point: OperatingPoint) -> list[DeviceOp]:
        k = point.kept
        norm = [DeviceOp("norm", k)] if votes else []
        return [DeviceOp("topk", point.parameters), *norm, DeviceOp("gather", k), DeviceOp("scatter", k, 2)]

    label = f"ART-{reduce.algorithm}" + (" VAR" if votes else "")
    candidate = Candidate(label, "artopk", {"collective": reduce.algorithm, "selection": selection})
    return Choice(
        candidate,
        "sparse",
        _weighed_form(candidate),
        kernel_calls,
    )


def on_two_levels(one: Choice, per_node: int) -> Choice:
    """Return a choice between nodes, with dense collectives inside.

    Examples
    --------
    >>> on_two_levels(choices()[0], 4).label
    'two-level dense ring'
    """
    own = one.candidate
    candidate = Candidate(
        f"two-level {own.label}", f"{PREFIX}{own.scheme}", {**own.options, "ranks_per_node": per_node}
    )

    def kernel_calls(point: OperatingPoint) -> Sequence[DeviceOp]:
        ranks = np.minimum(float(per_node), point.workers)
        shared = point.at("parameters", np.divide(point.parameters, ranks)).at(
            "workers", np.divide(point.workers, ranks)
        )
        calls = [] if one.kernel_calls is None else one.kernel_calls(shared)
        # Within one node of several nothing is selected.
        selects = np.greater(point.workers, ranks) | (np.asarray(ranks) == 1)
        return [call._replace(entries=np.where(selects, call.entries, 0.0)) for call in calls]

    return Choice(
        candidate,
        one.kind,
        _weighed_form(candidate, dense=one.kind != "sparse"),
        kernel_calls,
    )


def named(among: Sequence[Candidate], per_node: int = 1) -> tuple[Choice, ...]:
    """Return choices of exchanges that somebody names.

    Examples
    --------
    >>> [one.label for one in named([Candidate("mine", "artopk", {"collective": "tree"}), Candidate("dgc", "dgc")])]
    ['mine', 'dgc']
    """
    usual = {same_exchange(one.candidate): one for one in choices(per_node)}
    found = []
    for given in among:
        candidate = given
        if given.scheme.startswith(PREFIX) and given.options.get("ranks_per_node", AUTO) == AUTO and per_node > 1:
            candidate = replace(given, options={**given.options, "ranks_per_node": per_node})
        known = usual.get(same_exchange(candidate))
        try:
            found.append(_published_form(candidate) if known is None else replace(known, candidate=candidate))
        except ValueError as error:
            raise InputError(str(error), file="--schemes", field=candidate.label) from None
    return tuple(found)


def same_exchange(candidate: Candidate) -> tuple[str, str]:
    """Return what is equal for two candidates that exchange alike, however they are called."""
    scheme = sparsifier_models.scheme(candidate.scheme)
    return scheme.name, repr(option_values(scheme.option_type, candidate.options))


def _published_form(candidate: Candidate) -> Choice:
    """Return a scheme and the closed form that a flexible policy weighs it by; ValueError says why there is none."""
    return Choice(candidate, "sparse", _weighed_form(candidate))


def follows_gradients(candidate: Candidate) -> bool:
    """Return whether what an exchange sends depends on the gradients; false where its options are wrong."""
    try:
        made = sparsifier_models.create(candidate.scheme, 4, _ANY, 0.1, layers=[("", _ANY)], **candidate.options)
    except ValueError:
        return False
    return not made.traits.fixed_volume
