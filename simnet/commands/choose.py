"""``simnet choose``: which exchange is fastest, by how much, how sure, and what would change that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.commands import common
from simnet.commands.common import Fields, Force
from simnet.errors import InputError

if TYPE_CHECKING:
    from simnet.choosing.asking import Question


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
    cells: Annotated[int, typer.Option(min=2, max=4000, help="Cells along each axis of the map.")] = 200,
    out: Annotated[
        Path | None, typer.Option(metavar="NAME", help="Map: NAME.png, NAME.svg and NAME.csv; default: map.")
    ] = None,
    force: Force = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampled gradients and equal routes.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Choose between dense, allgather and AR-Topk offline: ranking, margin, what would flip it."""
    from simnet.choosing import asking, showing

    given = asking.Given(
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
        seed=seed,
    )
    if scenario is not None and fabric is not None:
        raise InputError("is either a scenario or --fabric", file="simnet choose")
    of_nodes = {
        "--gpus-per-node": gpus_per_node, "--inner-latency": inner_latency, "--inner-bandwidth": inner_bandwidth
    }  # fmt: skip
    links = {"--latency": latency, "--bandwidth": bandwidth, **of_nodes, "--topology": topology}
    if scenario is not None:
        from simnet.scenario import load

        common.only(
            "flags alone", False, {"--model": model, "--parameters": parameters, **of_nodes, "--topology": topology}
        )
        overrides = [*(set_ or ()), *([f"workers={workers}"] if workers is not None else [])]
        question = asking.from_scenario(load(scenario, overrides, seed or None), given)
    elif fabric is not None:
        from validate.calibration import load_fabric

        common.only(
            "closed forms and simulation", False, {**links, "--simulate": simulate, "--all": every, "--set": set_}
        )
        question = asking.from_fabric(load_fabric(fabric), given)
    else:
        question = asking.from_flags(given)
    common.only("--map", map_ is not None, {"--range": range_, "--out": out, "--force": force})
    if map_ is not None:
        _map(question, map_, common.fields(range_, "--range"), cells, out or Path("map"), force)
        return
    decision = question.answer()
    if json_:
        typer.echo(json.dumps(showing.figures(question, decision), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from simnet.report.console import print_wide

    print_wide(showing.ranking(question, decision), Console())
    for line in showing.sentences(question, decision):
        typer.echo(line)


def _map(question: Question, names: str, ranges: dict[str, str], cells: int, out: Path, force: bool) -> None:
    """Draw a map and write it."""
    from simnet.choosing import maps
    from simnet.exporting import staged

    wanted = [name.strip() for name in names.split(",")]
    if len(wanted) != 2:
        raise InputError(f"needs two quantities, such as latency,bandwidth, got {names!r}", file="--map")
    for name in ranges:
        if name not in wanted:
            raise InputError(f"{name} is no axis of the map; allowed: {', '.join(wanted)}", file="--range")
    made = maps.draw_map(question, *(maps.axis(name, ranges.get(name), cells) for name in wanted))
    image = maps.drawn(made)
    content = {".png": image.png, ".svg": image.svg, ".csv": made.csv()}
    paths = [out.with_name(out.name + ending) for ending in content]
    with staged(paths, force) as folder:
        for path, data in zip(paths, content.values(), strict=True):
            (folder / path.name).write_bytes(data)
    for label, share in made.shares().items():
        typer.echo(f"{label:18} {100 * share:5.1f} % of the map")
    typer.echo(f"Written: {', '.join(map(str, paths))}")


def _density(text: str | None) -> float | None:
    """Read a fraction: a number, or per cent."""
    if text is None:
        return None
    number, percent = text.strip(), 1.0
    if number.endswith("%"):
        number, percent = number[:-1].strip(), 0.01
    try:
        found = float(number) * percent
    except ValueError:
        raise InputError(f"must be a fraction such as 0.01 or 1 %, got {text!r}", file="--density") from None
    if not 0 < found <= 1:
        raise InputError(f"must be > 0 and at most 1, got {text!r}", file="--density")
    return found
