"""``simnet choose``: which exchange is fastest, by how much, how sure, and what would change that."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.base.errors import InputError
from simnet.commands import common
from simnet.commands.common import Fields, Force

if TYPE_CHECKING:
    from simnet.calibration import CalibratedCostModel
    from simnet.policies.moo import Weights
    from simnet.studies.choosing.inputs import Question


@common.explained
def choose(
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario whose job and links are asked about; else flags say them.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Workers; default: 8.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A model of `simnet list models`; default: resnet50.")
    ] = None,
    parameters: Annotated[int | None, typer.Option(min=1, metavar="N", help="Parameters in place of a model.")] = None,
    density: Annotated[str | None, typer.Option(metavar="0.01|1%", help="Fraction kept; default: 0.01.")] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="From worker to worker, or node to node; default: 1 ms.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Of a worker's link, or a node's; default: 10 Gbit/s.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, metavar="N", help="Workers that share a node.")] = None,
    inner_latency: Annotated[str | None, typer.Option(metavar="TIME", help="Inside a node; default: 5 us.")] = None,
    inner_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Inside a node; default: 800 Gbit/s.")
    ] = None,
    fabric: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A calibrated cluster, in place of latency and bandwidth.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="What selecting costs; default: v100, or as the scenario.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Weigh every scheme that has a closed form.")] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Time messages on the network: contention, weather, routes.")
    ] = False,
    topology: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --simulate: star, ring, tree, fat_tree, ...")
    ] = None,
    set_: Fields = None,
    error: Annotated[
        float, typer.Option(min=0, max=10, help="Relative error of closed forms, of which intervals are made.")
    ] = 0.08,
    misjudged: Annotated[
        float, typer.Option(min=1, max=1000, help="By which factor latency and bandwidth may be misjudged.")
    ] = 2.0,
    map_: Annotated[
        str | None,
        typer.Option("--map", metavar="X,Y", help="Map over two of latency, bandwidth, density, workers, model."),
    ] = None,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="X=LOW:HIGH", help="Range of an axis, as latency=10us:200ms; repeatable."),
    ] = None,
    cells: Annotated[
        int | None,
        typer.Option(min=2, max=4000, help="Cells along each axis; default: 200 of a map, 24 of a policy table."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="NAME.json: policy table for run time; NAME.csv: NCCL tuner table."),
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(metavar="0.1,0.01,...", help="Policy table: densities among which it chooses, too."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="2,1,1", help="With --ratios: how much gain, compression, communication count; not the knee."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="NAME", help="Map: NAME.png, NAME.svg and NAME.csv; default: map.")
    ] = None,
    force: Force = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of samples and equal routes; default: 0, or the scenario's."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Choose between dense, allgather and AR-Topk offline: ranking, margin, what would flip it."""
    from simnet.studies.choosing import inputs, output

    given = inputs.Given(
        workers=workers,
        model=model,
        parameters=parameters,
        density=_density(density),
        latency=common.seconds(latency, "--latency"),
        bandwidth=common.bandwidth(bandwidth, "--bandwidth"),
        per_node=gpus_per_node,
        inner_latency=common.seconds(inner_latency, "--inner-latency"),
        inner_bandwidth=common.bandwidth(inner_bandwidth, "--inner-bandwidth"),
        device=device,
        every=every,
        simulate=simulate,
        topology=topology,
        fields=set_ or (),
        error=error,
        misjudged=misjudged,
        seed=seed or 0,
    )
    if scenario is not None and fabric is not None:
        raise InputError("is either a scenario or --fabric", file="simnet choose")
    of_nodes = {
        "--gpus-per-node": gpus_per_node, "--inner-latency": inner_latency, "--inner-bandwidth": inner_bandwidth
    }  # fmt: skip
    loaded: CalibratedCostModel | None = None
    links = {"--latency": latency, "--bandwidth": bandwidth, **of_nodes, "--topology": topology}
    if scenario is not None:
        from simnet.scenario import load

        common.only(
            "flags alone", False, {"--model": model, "--parameters": parameters, **of_nodes, "--topology": topology}
        )
        overrides = [*(set_ or ()), *([f"workers={workers}"] if workers is not None else [])]
        question = inputs.from_scenario(load(scenario, overrides, seed), given)
    elif fabric is not None:
        from simnet.calibration import load_cost_model

        common.only(
            "closed forms and simulation", False, {**links, "--simulate": simulate, "--all": every, "--set": set_}
        )
        loaded = load_cost_model(fabric)
        question = inputs.from_fabric(loaded, given)
    else:
        question = inputs.from_flags(given)
    common.only("--map", map_ is not None, {"--out": out})
    common.only(
        "--map or --export",
        map_ is not None or export is not None,
        {"--range": range_, "--cells": cells, "--force": force},
    )
    if map_ is not None and export is not None:
        raise InputError("is either --map or --export", file="simnet choose")
    common.only("a decision, not for --map or --export", map_ is None and export is None, {"--json": json_})
    if export is None:
        common.only("--export NAME.json", False, {"--ratios": ratios, "--weights": weights})
    if map_ is not None:
        if every:
            raise InputError("is not for --map: what other schemes select is found by sampling", file="--all")
        _map(question, map_, common.fields(range_, "--range"), cells or 200, out or Path("map"), force)
        return
    if export is not None:
        if export.suffix == ".csv":
            common.only(
                "--export NAME.json", False,
                {"--ratios": ratios, "--weights": weights, "--range": range_, "--cells": cells},
            )  # fmt: skip
            _tuner(question, loaded, export, force)
        elif export.suffix == ".json":
            if ratios is not None and density is not None:
                raise InputError("is either --density or --ratios", file="simnet choose")
            if every:
                raise InputError("is not for --export: what other schemes select is found by sampling", file="--all")
            ranges = common.fields(range_, "--range")
            _policy(question, export, ranges, cells or 24, ratios, weights, seed or 0, force)
        else:
            raise InputError(f"must end with .json or .csv, got {export.name!r}", file="--export")
        return
    with common.progress("choices", json_):
        decision = question.answer()
    if json_:
        typer.echo(json.dumps(output.figures(question, decision), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from simnet.report.console import print_wide

    print_wide(output.ranking(question, decision), Console())
    for line in output.sentences(question, decision):
        typer.echo(line)


def _map(question: Question, names: str, ranges: dict[str, str], cells: int, out: Path, force: bool) -> None:
    """Draw a map and write it."""
    from simnet.studies.choosing import maps
    from simnet.studies.exporting import staged

    if not out.name:
        raise InputError(f"must end with a name, got {str(out)!r}", file="--out")
    wanted = [name.strip() for name in names.split(",")]
    if len(wanted) != 2:
        raise InputError(f"needs two quantities, such as latency,bandwidth, got {names!r}", file="--map")
    for name in ranges:
        if name not in wanted:
            raise InputError(f"{name} is no axis of the map; allowed: {', '.join(wanted)}", file="--range")
    axes = [maps.axis(name, ranges.get(name), cells) for name in wanted]
    with common.progress("choices"):
        made = maps.draw_map(question, *axes)
    image = maps.drawn(made)
    content = {".png": image.png, ".svg": image.svg, ".csv": made.csv()}
    paths = [out.with_name(out.name + ending) for ending in content]
    with staged(paths, force) as folder:
        for path, data in zip(paths, content.values(), strict=True):
            (folder / path.name).write_bytes(data)
    for label, share in made.shares().items():
        typer.echo(f"{label:18} {100 * share:5.1f} % of the map")
    typer.echo(f"Written: {', '.join(map(str, paths))}")


def _policy(
    question: Question,
    path: Path,
    ranges: dict[str, str],
    cells: int,
    ratios: str | None,
    weights: str | None,
    seed: int,
    force: bool,
) -> None:
    """Make a policy table and write it."""
    from simnet.studies.choosing import maps, policy
    from simnet.studies.exporting import free, staged

    free([path], force)
    for name in ranges:
        if name not in ("latency", "bandwidth"):
            raise InputError(f"{name} is no axis of a policy table; allowed: latency, bandwidth", file="--range")
    if weights is not None and ratios is None:
        raise InputError("is only for --ratios", file="--weights")
    ends = {name: maps.axis(name, text, 2).values.tolist() for name, text in ranges.items()}
    words = [] if ratios is None else ratios.split(",")
    densities = [one for one in (_density(word, "--ratios") for word in words) if one is not None]
    objectives = _weights(weights)
    with common.progress("policy table"):
        table = policy.make(
            question, ends.get("latency"), ends.get("bandwidth"),
            cells=cells, densities=densities, weights=objectives, seed=seed,
        )  # fmt: skip
    with staged([path], force) as folder:
        (folder / path.name).write_text(table.json(), encoding="utf-8")
    for label, share in table.shares().items():
        typer.echo(f"{label:24} {100 * share:5.1f} % of the table")
    lost = table.file.regret
    assert lost is not None, "a table that was just made says what it loses"
    typer.echo(
        f"At {lost.points:,} random points the table is {100 * lost.mean:.2g} % slower than the exact choice on "
        f"average, {100 * lost.worst:.3g} % at worst; the exchange is the same at {100 * lost.same_exchange:.1f} %, "
        f"the density at {100 * lost.same_density:.1f} %."
    )
    typer.echo(f"Written: {path}")


def _tuner(question: Question, fabric: CalibratedCostModel | None, path: Path, force: bool) -> None:
    """Write what NCCL's example tuner plugin reads."""
    from simnet.studies.choosing import tuner
    from simnet.studies.exporting import staged

    if fabric is not None:
        tuning = tuner.by_fabric(fabric, int(question.point.workers), question.title)
    else:
        if not question.varies:
            raise InputError(f"cannot be made of what is {question.method}", file="--export")
        tuning = tuner.by_links(question.point, question.title)
    with staged([path], force) as folder:
        (folder / path.name).write_text(tuning.csv(), encoding="utf-8")
    for one in tuning.ranges("allreduce") if "allreduce" in tuning.times else ():
        typer.echo(f"all-reduce from {one.first:>14,} B: {one.way.algorithm}, {one.way.protocol}")
    typer.echo(f"Written: {path}; read by NCCL's example tuner plugin where NCCL_TUNER_CONFIG_FILE says so")


def _weights(text: str | None) -> Weights | None:
    """Read how much each objective counts."""
    from simnet.policies.moo import Weights

    if text is None:
        return None
    try:
        gain, compression, communication = (float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"must be three numbers such as 2,1,1, got {text!r}", file="--weights") from None
    found = Weights(gain, compression, communication)
    if not all(0 <= one < math.inf for one in found) or not any(found):
        raise InputError(f"must be >= 0 and finite, and not all 0, got {text!r}", file="--weights")
    return found


def _density(text: str | None, option: str = "--density") -> float | None:
    """Read a fraction: a number, or per cent."""
    if text is None:
        return None
    from simnet.base import units

    try:
        found = units.fraction(text)
    except ValueError:
        raise InputError(f"must be a fraction such as 0.01 or 1 %, got {text!r}", file=option) from None
    if not 0 < found <= 1:
        raise InputError(f"must be > 0 and at most 1, got {text!r}", file=option)
    return found
