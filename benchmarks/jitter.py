"""How repetitions of a call scatter: which form holds, and whether simulations with fitted jitter scatter as measured.

    python benchmarks/jitter.py [SET]...

Of each system of the shipped measurements with repetitions of single calls, every fourth size is left out at a time;
the rest calibrates a network and its jitter. The first table has, for what was left out, the 90 and 99 % quantiles of
repetitions over the median of their setting, measured and simulated: as many repetitions of each setting, around their
own median. Systems of which calibration fits no jitter, as calls scatter in proportion to their time, are not
simulated. The second table holds forms of scatter against distances of repetitions from that median that were left out,
by `simnet.cost_models.calibration.jitter.uniformity_distance`. Both tables stand in docs/calibration.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from simnet import topologies
from simnet.base.errors import InputError
from simnet.cost_models.calibration import CalibratedSoftware, Curve, Setting, calibrate, split_systems
from simnet.cost_models.calibration.crossval import FOLD_COUNT
from simnet.cost_models.calibration.jitter import (
    FittedJitter,
    RepeatedCall,
    as_call_factors,
    describes_calls,
    fit_jitter,
    messages_of,
    predicted_shares,
    repeated_calls,
    uniformity_distance,
)
from simnet.cost_models.calibration.measured import load_dataset
from simnet.cost_models.calibration.software import eager_measured, stack_measured, stack_of
from simnet.cost_models.calibration.topology_links import Placement, fit_topology_links
from simnet.network import Network, Stack
from simnet.network.jitter import lognormal

SETS = ("shaped_openmpi", "shaped_mpich", "shaped_gloo", "shaped_gloo_ranks", "shaped_gloo_again", "shaped_unequal")
MANY = 10
FORMS = ("message", "call", "factor", "bandwidth")
_ALONE = Setting("broadcast", 2, 0, "binomial")


def main(names: Sequence[str]) -> None:
    """Print a table of quantiles and one of forms."""
    quantiles, forms = [], []
    for name in names or SETS:
        rows, compared, held = 0, [], []
        # Of many systems every third, as in the tables of simulations.
        found = list(split_systems(load_dataset(name).rows).items())
        for system, part in found[::3] if len(found) > MANY else found:
            again = repeated_calls(part)
            library = SimpleNamespace(stack=stack_measured(part), eager=eager_measured(part))
            for kept, left in splits(again):
                stack = stack_of(library)  # type: ignore[arg-type]
                fitted = fit_jitter(kept, stack)
                held += list(distances(kept, left, stack, fitted))
                if fitted is not None and describes_calls(fitted, kept, stack) and name != "shaped_unequal":
                    compared += list(simulated(kept, left, fitted, library, f"{name}, {system}"))
                rows += sum(one.seconds.size for one in left)
        forms.append(table_of_forms(name, pd.concat(held)))
        if compared:
            quantiles.append(table_of_quantiles(name, rows, pd.concat(compared)))
            print(quantiles[-1].to_string(), flush=True)
        print(forms[-1].to_string(), flush=True)
    for tables in (quantiles, forms):
        if tables:
            print(pd.concat(tables).to_string(index=False))


def splits(measured: Sequence[RepeatedCall]) -> Iterator[tuple[list[RepeatedCall], list[RepeatedCall]]]:
    """Yield what is kept and what is left out: every fourth size at a time, but the smallest."""
    sizes = sorted({one.size for one in measured})
    for fold in range(FOLD_COUNT):
        out = {size for place, size in enumerate(sizes) if place % FOLD_COUNT == fold and place}
        if out:
            yield [one for one in measured if one.size not in out], [one for one in measured if one.size in out]


def simulated(
    kept: Sequence[RepeatedCall], left: Sequence[RepeatedCall], fitted: FittedJitter, library: Any, name: str
) -> Iterator[pd.DataFrame]:
    """Yield the repetitions of what was left out over their median, measured and simulated."""
    curves = curves_of(kept)
    model = calibrate(curves)
    try:
        found = fit_topology_links(Placement("star", 1), model.model.steps, curves)
    except InputError:
        return
    assert found is not None
    hosts = max(one.setting.ranks for one in left)
    model.network = {"star": found.parameters["star"] | {"hosts": max(hosts, int(found.parameters["star"]["hosts"]))}}
    model.stack, model.eager, model.jitter = library.stack, library.eager, fitted
    software = CalibratedSoftware(model, topologies.build("star", **model.network["star"]), jitter=True)
    jitter = lognormal(fitted.median, fitted.sigma)
    network = Network(software.graph, stack=software.stack, software=software, jitter=jitter)
    for one in left:
        schedule = messages_of(one.setting, one.size)
        if schedule is None:
            continue
        times = np.array([
            network.time(schedule, stream=(name, str(one.setting), repr(one.size), number)).duration
            for number in range(one.seconds.size)
        ])  # fmt: skip
        middle = np.median(one.seconds)
        yield pd.DataFrame({
            "measured": one.seconds / middle, "simulated": times / np.median(times),
            "median": np.median(times) / middle,
        })  # fmt: skip


def curves_of(measured: Sequence[RepeatedCall]) -> list[Curve]:
    """Return medians over repetitions as curves."""
    by_setting: dict[Setting, list[RepeatedCall]] = {}
    for one in measured:
        by_setting.setdefault(one.setting, []).append(one)
    found = []
    for setting, listed in sorted(by_setting.items()):
        listed.sort(key=lambda one: one.size)
        medians = np.array([float(np.median(one.seconds)) for one in listed])
        found.append(Curve(setting, np.array([one.size for one in listed]), medians))
    return found


def distances(
    kept: Sequence[RepeatedCall], left: Sequence[RepeatedCall], stack: Stack, messages: FittedJitter | None
) -> Iterator[pd.DataFrame]:
    """Yield, by form, which share of the distances that it predicts lies below each that was left out."""
    for form in FORMS:
        fitted = messages if form == "message" else fit_jitter([formed(one, form) for one in kept], Stack())
        if fitted is None:
            continue
        for one in left:
            shares = predicted_shares(formed(one, form), fitted, stack if form == "message" else Stack())
            yield pd.DataFrame({"form": form, "below": shares, "seconds": np.median(one.seconds)})


def formed(one: RepeatedCall, form: str) -> RepeatedCall:
    """Return repetitions such that what a form says scatters is the latency of a message."""
    if form == "message":
        return one
    if form == "factor":
        return as_call_factors(one)
    return RepeatedCall(_ALONE, one.size, one.seconds / (one.size if form == "bandwidth" else 1.0))


def table_of_quantiles(name: str, repetitions: int, found: pd.DataFrame) -> pd.DataFrame:
    """Return a row with quantiles of repetitions over their median."""
    row: dict[str, object] = {"set": name, "left out": repetitions, "simulated of them": len(found)}
    for which in ("measured", "simulated"):
        low, high = np.percentile(found[which], [90, 99])
        row |= {f"{which} p90/p50": round(low, 4), f"{which} p99/p50": round(high, 4)}
    return pd.DataFrame([row | {"median, simulated over measured": round(float(found["median"].median()), 4)}])


def table_of_forms(name: str, found: pd.DataFrame) -> pd.DataFrame:
    """Return a row with how far off each form is."""
    row: dict[str, object] = {"set": name}
    for form in FORMS:
        own = found[found["form"] == form]
        off = uniformity_distance(own["below"].to_numpy(), own["seconds"].to_numpy()) if len(own) else None
        row[form] = None if off is None else round(off, 3)
    return pd.DataFrame([row])


if __name__ == "__main__":
    main(sys.argv[1:])
