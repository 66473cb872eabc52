"""Simulations of measured collectives on calibrated networks, beside predictions and beside links alone.

    python benchmarks/simulated.py shaped_gloo_ranks sizes     # or ranks, or collectives

A calibration of a part of a system's measurements predicts the others, as `simnet.validate.evaluation` splits them.
Here each of these collectives is also simulated: on the network of the calibration with its stack and its curves, as a
scenario has it by ``topology: {file: ...}``; and on the same links without them, by the stack `ideal`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from simnet import topologies
from simnet.base.arrays import Ranks
from simnet.base.errors import InputError
from simnet.collectives import registry
from simnet.cost_models.calibration.cost_model import CalibratedCostModel, calibrate
from simnet.cost_models.calibration.crossval import FOLD_COUNT, size_folds, without_ranks
from simnet.cost_models.calibration.curves import Curve, Setting, curves_of, split_systems
from simnet.cost_models.calibration.software import CalibratedSoftware, eager_measured, stack_measured
from simnet.cost_models.calibration.summary import read_rows
from simnet.cost_models.calibration.topology_links import Placement, fit_topology_links
from simnet.network import Network
from simnet.schedule import Schedule
from simnet.validate.evaluation import kept_without

SIMULATED = ("predicted", "simulated", "links")
"""Columns: by the cost model, by simulation with its curves, and by simulation on its links alone."""

MOST_RANKS = 64
"""The most ranks of a call that is simulated; an all-to-all of thousands has millions of messages."""


def algorithm_of(setting: Setting) -> str:
    """Return the algorithm that a setting names, else the first that is known; empty without one."""
    known = [
        one.algorithm for one in registry.all_collectives() if one.operation == setting.collective and one.calibrated
    ]
    return next((name for name in (setting.algorithm.casefold(), "ring", *known) if name in known), "")


def messages_of(setting: Setting, size: float) -> Schedule | None:
    """Return the messages of a setting of a total size [byte]; None for an unknown collective."""
    found = registry.find_collective(setting.collective, algorithm_of(setting))
    if found is None or not found.ranks.among(setting.ranks):
        return None
    return found.schedule_of_vector(setting.ranks, size)


def simulated(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return what is predicted, and simulated, of what a split leaves out; a row for each measurement.

    Returns
    -------
    DataFrame
        Columns `system`, `setting`, `size` [byte], `measured`, and `SIMULATED` [s].
    """
    found = []
    for name, part in split_systems(rows).items():
        curves = [one for one in curves_of(part) if messages_of(one.setting, 1.0) is not None]
        for kept, held in _SPLITS[split](curves):
            found += [
                table.assign(system=name) for table in _compared(kept, held, stack_measured(part), eager_measured(part))
            ]
    columns = ["system", "setting", "size", "measured", *SIMULATED]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def errors(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return median and 90 % quantile of absolute relative errors of the columns `SIMULATED`.

    Examples
    --------
    >>> errors(pd.DataFrame({"measured": [1.0, 2.0], "predicted": [1.1, 2.2], "simulated": 1.0, "links": 2.0}))["links"]
    (0.5, 0.9)
    """
    found = {}
    for name in SIMULATED:
        off = (table[name] / table["measured"] - 1).abs()
        found[name] = (round(float(off.median()), 6), round(float(off.quantile(0.9)), 6))
    return found


def _sizes(curves: Sequence[Curve]) -> Iterator[tuple[list[Curve], list[Curve]]]:
    for fold in range(FOLD_COUNT):
        masks = [(one, size_folds(one)[fold]) for one in curves if fold < len(size_folds(one))]
        if masks:
            yield [one.at(~mask) for one, mask in masks], [one.at(mask) for one, mask in masks]


def _ranks(curves: Sequence[Curve]) -> Iterator[tuple[list[Curve], list[Curve]]]:
    for ranks in sorted({one.setting.ranks for one in curves}):
        kept, held = without_ranks(curves, ranks)
        if held:
            yield kept, held


def _collectives(curves: Sequence[Curve]) -> Iterator[tuple[list[Curve], list[Curve]]]:
    for name in sorted({one.setting.collective for one in curves}):
        if kept := kept_without(curves, name):
            yield kept, [one for one in curves if one.setting.collective == name]


_SPLITS = {"sizes": _sizes, "ranks": _ranks, "collectives": _collectives}


def _compared(kept: Sequence[Curve], held: Sequence[Curve], stack: str, eager: bool) -> Iterator[pd.DataFrame]:
    """Calibrate on some curves, and yield what that says of others."""
    settings = [one.setting for one in (*kept, *held)]
    each = max((-(-one.ranks // one.nodes) for one in settings if one.nodes), default=1)
    place = Placement("multi_gpu_nodes", each) if each > 1 else Placement("star", 1)
    model = calibrate(kept)
    try:
        found = fit_topology_links(place, model.model.steps, kept)
    except InputError:
        return
    assert found is not None
    model.network, model.stack, model.eager = found.parameters, stack, eager
    (family, parameters), *_ = found.parameters.items()
    count = "nodes" if each > 1 else "hosts"
    most = max((one.nodes or -(-one.ranks // each)) if each > 1 else one.ranks for one in settings)
    made = parameters | ({"gpus_per_node": each} if each > 1 else {}) | {count: most}
    model.network = {family: made}
    graph = topologies.build(family, **made)
    software = CalibratedSoftware(model, graph)
    with_curves = Network(software.graph, stack=software.stack, software=software)
    alone = Network(graph)
    for one in held:
        setting = one.setting
        if setting.ranks > MOST_RANKS:
            continue
        hosts = _hosts(setting, each)
        columns: dict[str, list[float]] = {name: [] for name in SIMULATED}
        for size in one.sizes.tolist():
            schedule = messages_of(setting, size)
            assert schedule is not None
            columns["predicted"].append(_predicted(model, setting, size))
            columns["simulated"].append(with_curves.time(schedule, placement=hosts).duration)
            columns["links"].append(alone.time(schedule, placement=hosts).duration)
        yield pd.DataFrame({"setting": str(setting), "size": one.sizes, "measured": one.seconds} | columns)


def _predicted(model: CalibratedCostModel, setting: Setting, size: float) -> float:
    try:
        return model.fastest(
            setting.collective, algorithm_of(setting), setting.ranks, size, nodes=setting.nodes or None
        ).seconds
    except InputError:
        return math.nan


def _hosts(setting: Setting, each: int) -> Ranks:
    """Return the host of each rank: ranks fill the nodes that they are on in blocks."""
    ranks = np.arange(setting.ranks)
    if each == 1:
        return ranks
    slots = -(-setting.ranks // (setting.nodes or -(-setting.ranks // each)))
    return np.asarray(ranks // slots * each + ranks % slots)


if __name__ == "__main__":
    print(errors(simulated(read_rows(sys.argv[1], {})[0], sys.argv[2])))
