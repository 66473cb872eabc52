"""Candidate exchanges of a choice: schemes combined with available collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from simnet import sparsifier_models
from simnet.collectives import registry
from simnet.policies import Candidate
from simnet.sparsifier_models.options import option_values
from simnet.sparsifier_models.two_level import PREFIX

Kind: TypeAlias = Literal["dense", "half", "sparse"]
"""Kind of an exchange: whole gradient in float32, whole gradient in float16, or selected entries."""

# Entries of a sparsifier of which only its kind matters.
_ANY = 256


def exchange_kind(one: Candidate) -> Kind:
    """Return the kind of an exchange: dense, half (fp16) or sparse."""
    return "dense" if one.scheme == "dense" else "half" if one.scheme == "fp16" else "sparse"


def usual_exchanges(per_node: int = 1) -> list[Candidate]:
    """Return the default candidates of a choice, two-level ones included if workers share nodes.

    Examples
    --------
    >>> [one.label for one in usual_exchanges()][:5]
    ['dense ring', 'dense tree', 'fp16 ring', 'fp16 tree', 'AG-Topk']
    >>> usual_exchanges(4)[-1].label
    'two-level ART-tree VAR'
    """
    found = list(_flat_exchanges(per_node))
    for one in _flat_exchanges(1) if per_node > 1 else ():
        options = {**one.options, "ranks_per_node": per_node}
        found.append(Candidate(f"two-level {one.label}", f"{PREFIX}{one.scheme}", options))
    return found


def _flat_exchanges(per_node: int) -> Iterator[Candidate]:
    reduces, gathers = (registry.offered(one, on_nodes=per_node > 1) for one in ("all_reduce", "all_gather"))
    for scheme in ("dense", "fp16"):
        for one in reduces:
            # Groups are the nodes.
            options = {"algorithm": one.algorithm} | dict.fromkeys(one.needs, per_node)
            yield Candidate(f"{scheme} {one.algorithm}", scheme, options)
    for gather in gathers:
        label = "AG-Topk" if gather is gathers[0] else f"AG-Topk {gather.algorithm}"
        yield Candidate(label, "topk", {"allgather": gather.algorithm})
    for selection, ending in (("star", ""), ("var", " VAR")):
        for one in reduces:
            if not one.needs:
                options = {"collective": one.algorithm, "selection": selection}
                yield Candidate(f"ART-{one.algorithm}{ending}", "artopk", options)


def same_exchange(candidate: Candidate) -> tuple[str, str]:
    """Return a key, scheme class and options, equal for candidates that do the same exchange whatever their labels."""
    scheme = sparsifier_models.scheme(candidate.scheme)
    return str(scheme), repr(option_values(scheme.option_type, candidate.options))


def follows_gradients(candidate: Candidate) -> bool:
    """Return whether the volume of an exchange depends on the gradients; False for invalid options."""
    try:
        made = sparsifier_models.create(candidate.scheme, 4, _ANY, 0.1, layers=[("", _ANY)], **candidate.options)
    except ValueError:
        return False
    return not made.traits.fixed_volume
