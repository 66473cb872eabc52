"""Dense decisions for NCCL from a calibrated cluster: what was measured pinned, else its step model.

The times of both have intervals: those of the fabric's predictions and, where a step model says the time of an
algorithm that was not measured by itself, those of its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from simnet.base.errors import InputError, join_names
from simnet.studies.choosing.tuner import (
    ALGORITHMS,
    COLLECTIVES,
    Knowledge,
    Known,
    Times,
    Tuning,
    Way,
    by_steps,
    way_of,
)

if TYPE_CHECKING:
    from simnet.calibration import CalibratedCostModel

# From which share of a time on a parameter carries it.
_CARRIES = 0.1


def by_fabric(fabric: CalibratedCostModel, ranks: int, title: str) -> Tuning:
    """Return what to use on a calibrated cluster, or on a platform.

    Where several algorithms were measured, each pinned, they are compared; else its step model compares those of
    NCCL. Of an algorithm whose protocol was not pinned, the step model says it.
    """
    if ranks < 2:
        raise InputError(f"must be at least 2 for a tuner, got {ranks}", file="--workers")
    nodes = _nodes(fabric, ranks)
    steps, platform = fabric.model.steps, fabric.platform
    nccl = steps is not None and steps.nccl
    if platform is not None and nccl:
        nodes = nodes or platform.nodes(ranks)
        times = {name: _specified(fabric, known, ranks) for name, known in COLLECTIVES.items()}
        of_pinned = {name: _predicted(fabric, known, ranks) for name, known in COLLECTIVES.items()}
        said = (f"nothing was measured: all is from the specification of {platform.name}",)
        method = f"the specification of {platform.name}"
        return Tuning(title, method, ranks, nodes, times, of_pinned, said)
    made = Tuning(title, "the calibrated fabric", ranks, nodes, {})
    if nccl:
        assert steps is not None
        made = by_steps(steps, title, made.method, ranks, nodes)
        known_of = {name: _fitted(fabric, COLLECTIVES[name], ranks, nodes) for name in made.times}
        made = replace(made, known=known_of)
    notes = list(made.notes)
    for name, collective in COLLECTIVES.items():
        pinned = _pinned(fabric, collective)
        foreign = sorted(
            {one.setting.algorithm for one in fabric.model.known if one.setting.collective == collective}
            - {one for _, one, _ in pinned}
            - {""}
        )
        if foreign:
            notes.append(f"{name}: measured, but no algorithms of NCCL: {join_names(foreign, 5)}")
        if len({way for way, *_ in pinned}) > 1:
            modelled = made.times.get(name)
            made.times[name] = _measured(fabric, collective, ranks, pinned, modelled)
            made.known[name] = _predicted(fabric, collective, ranks, pinned)
            notes = [one for one in notes if not one.startswith(f"{name}: no rows")]
        elif not nccl:
            found = f"of NCCL's algorithms {pinned[0][0]} alone was measured" if pinned else "no algorithm was measured"
            notes.append(f"{name}: no rows, as {found} by its name, and its steps are not NCCL's")
    if not made.times:
        raise InputError("says nothing of algorithms of NCCL: neither were any pinned, nor are its steps NCCL's; "
                         "--export NAME.json makes a policy table of it", file="--fabric")  # fmt: skip
    return replace(made, notes=tuple(notes))


def _fitted(fabric: CalibratedCostModel, collective: str, ranks: int, nodes: int) -> Knowledge:
    """Return what is known of ways by the step model.

    The interval is that of the fabric's prediction, wider by the errors of the parameters that carry the time, as if
    they were independent of each other.
    """
    from simnet.calibration.curves import Setting
    from simnet.calibration.step_model import PARAMETERS, undetermined_parameters

    steps = fabric.model.steps
    assert steps is not None, "it has a step model"
    errors = dict(zip(PARAMETERS, steps.errors, strict=True)) if steps.errors else {}
    unknown = undetermined_parameters(steps)
    sigmas = NormalDist().inv_cdf((1 + fabric.coverage) / 2)

    first = next((one.setting for one in fabric.model.known if one.setting.collective == collective), None)
    algorithm, protocol = ("", "") if first is None else (first.algorithm, first.protocol)

    def known(nbytes: int, way: Way) -> Known:
        setting = Setting(collective, ranks, nodes)
        weights = {way_of(name): one for name, one in steps.weights(setting, float(nbytes)).items()}[way]
        seconds = {way_of(name): one for name, one in (steps.by_algorithm(setting, [nbytes]) or {}).items()}[way].item()
        given = fabric.predict(collective, ranks, float(nbytes), algorithm=algorithm or None, protocol=protocol or None)
        own = sigmas * math.sqrt(sum((weight * errors.get(one, 0.0)) ** 2 for one, weight in weights.items()))
        below, above = (math.hypot(math.log(one / given.seconds), own) for one in (given.low, given.high))
        typical = tuple(one for one in unknown if weights[one] >= _CARRIES)
        return Known(seconds * math.exp(-below), seconds * math.exp(above), typical)

    return known


def _predicted(
    fabric: CalibratedCostModel, collective: str, ranks: int, pinned: Sequence[tuple[str, str, str]] = ()
) -> Knowledge:
    """Return what is known of ways that the fabric predicts by their names, or by those that were measured."""

    def known(nbytes: int, way: Way) -> Known:
        names = [
            (name, protocol)
            for algorithm, name, protocol in pinned
            if algorithm == way.algorithm and protocol.casefold() in ("", way.protocol)
        ]
        algorithm, protocol = names[0] if names else way
        given = fabric.predict(collective, ranks, float(nbytes), algorithm=algorithm, protocol=protocol)
        return Known(given.low, given.high)

    return known


def _nodes(fabric: CalibratedCostModel, ranks: int) -> int:
    """Return the nodes of so many ranks; 0 if not known."""
    known = [one.setting for one in fabric.model.known if one.setting.nodes]
    if not known:
        return 0
    same = [one.nodes for one in known if one.ranks == ranks]
    close = min(known, key=lambda one: abs(math.log(one.ranks / ranks)))
    return max(same) if same else max(1, round(ranks * close.nodes / close.ranks))


def _pinned(fabric: CalibratedCostModel, collective: str) -> list[tuple[str, str, str]]:
    """Return the algorithms of NCCL that were measured: as the file names them, as the fabric does, the protocol."""
    known = {
        (one.setting.algorithm, one.setting.protocol)
        for one in fabric.model.known
        if one.setting.collective == collective
    }
    words = [(_algorithm(name), name, protocol) for name, protocol in sorted(known)]
    return [one for one in words if one[0]]


def _algorithm(name: str) -> str:
    """Return what the file calls an algorithm, "" if it is none of NCCL; what stands before its name does not matter.

    Examples
    --------
    >>> _algorithm("NVLSTree"), _algorithm("allreduce_nccl_ring"), _algorithm("recursive_doubling")
    ('nvls_tree', 'ring', '')
    """
    word = name.casefold().replace("_", "")
    return ALGORITHMS[max(fits, key=len)] if (fits := [one for one in ALGORITHMS if word.endswith(one)]) else ""


def _measured(
    fabric: CalibratedCostModel, collective: str, ranks: int, pinned: list[tuple[str, str, str]], steps: Times | None
) -> Times:
    def times(nbytes: int) -> dict[Way, float]:
        modelled = {} if steps is None else steps(nbytes)
        found: dict[Way, float] = {}
        for algorithm, name, protocol in pinned:
            given = fabric.predict(collective, ranks, float(nbytes), algorithm=name, protocol=protocol)
            same = {way.protocol: seconds for way, seconds in modelled.items() if way.algorithm == algorithm}
            word = protocol.casefold() or min(same, key=lambda one: same[one], default="simple")
            way = Way(algorithm, word)
            found[way] = min(found.get(way, math.inf), given.seconds)
        return found

    return times


def _specified(fabric: CalibratedCostModel, collective: str, ranks: int) -> Times:
    # Where a platform cannot use LL128, what it is asked of it is the fastest of the others: they go first.
    pairs = [
        Way(one, protocol)
        for one in (("ring", "tree") if collective == "all_reduce" else ("ring",))
        for protocol in ("ll", "simple", "ll128")
    ]

    def times(nbytes: int) -> dict[Way, float]:
        return {
            way: fabric.predict(
                collective, ranks, float(nbytes), algorithm=way.algorithm, protocol=way.protocol
            ).seconds
            for way in pairs
        }

    return times
