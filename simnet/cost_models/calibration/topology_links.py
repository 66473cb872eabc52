"""Fits link parameters of a topology to measurements, for simulations of the same system.

A topology given by name gets latencies and bandwidths from the step model: the latency is the cost of one more step of
a ring at the smallest measured size, the bandwidth that of the protocol for large messages. Launch and reducing are no
properties of links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import pandas as pd

from simnet.base import units
from simnet.base.errors import InputError, check_choice, refuse_values
from simnet.cost_models.calibration.cards import node_rate
from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.cost_models.calibration.platform import LINK_SHARES, is_platform, load_platform, platform_names
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel, count_steps, undetermined_parameters

LINK_FAMILIES = ("star", "multi_gpu_nodes")
"""Topologies whose links a calibration describes."""

MAX_PER_NODE = 4096
"""The most ranks on a node."""


class Placement(NamedTuple):
    """Measured topology (one of `LINK_FAMILIES`), ranks per node, and bandwidth of a GPU inside a node [byte/s]."""

    name: str
    each: int | None
    inner_rate: float | None = None


class FittedLinks(NamedTuple):
    """Fitted link latencies [s] and bandwidths [byte/s] by topology name, and the parameters that stay undetermined."""

    parameters: dict[str, dict[str, int | float]]
    undetermined: tuple[str, ...]


def place_ranks(given: str, options: Mapping[str, object]) -> Placement:
    """Return the placement for a topology name and its options, or for a platform by name or file.

    Options are ``gpus_per_node``, and ``intra_bandwidth``, the line rate of a GPU's NVLink in one direction. Raises
    InputError for others.
    """
    if not options and (given in platform_names() or is_platform(Path(given))):
        platform = load_platform(given)
        return Placement("multi_gpu_nodes", platform.devices_per_node, platform.inner_rate())
    check_choice(given, "topology or platform", LINK_FAMILIES, file="--network")
    found = Placement(given, 1 if given == "star" else None)
    for name, value in options.items():
        if given == "star" or name not in ("gpus_per_node", "intra_bandwidth"):
            allowed = "gpus_per_node=N and intra_bandwidth=RATE of multi_gpu_nodes"
            raise InputError(f"{name[:60]!r} is not for --network {given}; allowed: {allowed}", file="--network")
        if name == "intra_bandwidth":
            with refuse_values(file="--network", field=name):
                rate = units.bandwidth(value)  # type: ignore[arg-type]
            found = found._replace(inner_rate=LINK_SHARES["nvlink"] * rate)
        elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PER_NODE:
            found = found._replace(each=value)
        else:
            said = f"must be a whole number in 1..{MAX_PER_NODE}, got {str(value)[:40]!r}"
            raise InputError(said, file="--network", field=name)
    return found


def fill_nodes_of(rows: pd.DataFrame, place: Placement) -> pd.DataFrame:
    """Return rows with missing ``nodes`` and ``ranks_per_node`` computed from a topology."""
    if place.each is None:
        return rows
    counted = -(-rows["ranks"] // place.each)
    each = rows["ranks"].clip(upper=place.each)
    return rows.assign(
        nodes=rows["nodes"].fillna(counted),
        ranks_per_node=rows["ranks_per_node"].fillna(each.where(rows["nodes"].isna())),
    )


def fit_topology_links(place: Placement, steps: StepModel | None, curves: Sequence[Curve]) -> FittedLinks:
    """Return the fitted link parameters of a topology.

    Raises InputError if no step model could be fitted, or nothing says how many ranks are on a node.
    """
    where = f"--network {place.name}"
    if steps is None:
        raise InputError("needs measurements of a collective whose algorithms are known", file=where)
    largest = max((one.setting for one in curves), key=lambda one: (one.ranks, one.nodes))
    if place.each is None and not largest.nodes:
        raise InputError("the logs do not say how many ranks are on a node; --set gpus_per_node=8 does", file=where)
    smallest = min(float(one.sizes[0]) for one in curves)
    steps = steps.inside()[1]
    value = dict(zip(PARAMETERS, steps.values, strict=True))
    inside, between = ("inner_latency", "inner_seconds_per_byte"), ("outer_latency", "outer_seconds_per_byte")
    near, far = (_step_latency(steps, smallest, alone) for alone in (True, False))
    made: dict[str, int | float]
    if place.name == "star":
        alone = all(one.setting.nodes == 1 for one in curves)
        used: tuple[str, ...] = inside if alone else between
        made = {"hosts": largest.ranks, "latency": near if alone else far, "bandwidth": 1 / value[used[1]]}
    else:
        # Ranks may send over one card together or each over its own; the card of a node in a simulation is all of them.
        nodes = largest.nodes or -(-largest.ranks // cast(int, place.each))
        used = (*inside, *between)
        out = _out_of_a_node(steps, max((one.setting for one in curves), key=lambda one: one.nodes))
        # No measured call is faster than its ring over the card; NCCL may have sent along a tree.
        card = max(out / value["outer_seconds_per_byte"], node_rate(curves)[0] if steps.nccl else 0.0)
        made = {
            "nodes": nodes,
            "gpus_per_node": -(-largest.ranks // nodes),
            "intra_latency": near,
            # A message between nodes passes a link inside each, which must not be its bottleneck.
            "intra_bandwidth": max(1 / value["inner_seconds_per_byte"], card),
            "nic_latency": max(far - near, 0.0),
            "nic_bandwidth": card,
        }
    unknown = undetermined_parameters(steps)
    return FittedLinks({place.name: made}, tuple(name for name in used if name in unknown))


def _step_latency(steps: StepModel, size: float, alone: bool) -> float:
    """Return the latency [s] per ring step inside a node (`alone`) or between nodes, at `size` bytes."""
    value, found = dict(zip(PARAMETERS, steps.values, strict=True)), []
    for one in (Setting("all_reduce", ranks, 1 if alone else ranks, "ring") for ranks in (4, 8)):
        (cost, *_), seconds = count_steps(one, steps.nccl), steps.at(one, [size])
        assert seconds is not None
        inside, between = (value[f"{where}_seconds_per_byte"] for where in ("inner", "outer"))
        per_byte = cost.inner_bytes * inside + cost.outer_bytes * between
        found.append((cost.inner + cost.outer, seconds.item() - size * per_byte))
    (few, less), (many, more) = found
    return max((more - less) / (many - few), 0.0)


def _out_of_a_node(steps: StepModel, setting: Setting) -> float:
    """Return the number of network cards over which a ring spreads the bytes that leave a node; 1 on one node."""
    if setting.nodes < 2:
        return 1.0
    (ring,) = count_steps(Setting("all_reduce", setting.ranks, setting.nodes, "ring"), steps.nccl, cards=steps.cards)
    return 2 * (setting.ranks - 1) / setting.ranks / ring.outer_bytes
