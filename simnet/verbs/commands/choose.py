"""``simnet choose``: which exchange is fastest, by how much, how sure, and what would change that."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.base.errors import InputError, suggest_names
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Batch, Compute, Device, Fields, Force, Json, Memory, Size, Stack

if TYPE_CHECKING:
    from simnet.policies.moo import ObjectiveWeights
    from simnet.studies.choosing.answer import ChooseAnswer
    from simnet.studies.choosing.policy_file import PolicyTable
    from simnet.studies.choosing.problem import Problem
    from simnet.studies.choosing.request import ChooseRequest


@dataclass(frozen=True)
class Job:
    """What is exchanged."""

    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Workers; default: 8.")] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A model of `simnet list models`, or its config.json; default: resnet50.",
            autocompletion=completion.one_of(completion.models),
        ),
    ] = None
    parameters: Size = None
    density: Annotated[str | None, typer.Option(metavar="0.01|1%", help="Fraction kept; default: 0.01.")] = None
    compute: Compute = None
    batch: Batch = None


@dataclass(frozen=True)
class Links:
    """On what it is exchanged, where no scenario says so."""

    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="From worker to worker, or node to node; default: 1 ms.")
    ] = None
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Of a worker's link, or a node's; default: 10 Gbit/s.")
    ] = None
    gpus_per_node: Annotated[int | None, typer.Option(min=1, metavar="N", help="Workers that share a node.")] = None
    inner_latency: Annotated[str | None, typer.Option(metavar="TIME", help="Inside a node; default: 5 us.")] = None
    inner_bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="Inside a node; default: 800 Gbit/s.")] = (
        None
    )
    fabric: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A calibrated cluster, in place of latency and bandwidth.")
    ] = None


@dataclass(frozen=True)
class Method:
    """How exchanges are weighed."""

    device: Device = None
    every: Annotated[bool, typer.Option("--all", help="Weigh every scheme that has a closed form.")] = False
    schemes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B:OPTION=VALUE",
            help="Weigh these, as artopk or artopk:collective=tree, and no others.",
            autocompletion=completion.several_of(completion.schemes),
        ),
    ] = None
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Simulate all iterations of a job; of an exchange by itself, its messages."),
    ] = False
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="star, ring, tree, fat_tree, ...; default: star.",
            autocompletion=completion.one_of(completion.topologies),
        ),
    ] = None
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUES",
            help="Choose among jobs, too: a field of the scenario with values a,b,c or lo:hi:n[:log]; repeatable.",
        ),
    ] = None
    set_: Fields = None
    stack: Stack = None
    error: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=10,
            help="Relative error of closed forms, of which intervals and chances are made; default: as measured.",
        ),
    ] = None
    misjudged: Annotated[
        float | None,
        typer.Option(min=1, max=1000, help="By which factor latency and bandwidth may be misjudged; default: 2."),
    ] = None
    memory: Memory = None
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of samples and equal routes; default: 0, or the scenario's."),
    ] = None


@dataclass(frozen=True)
class Answer:
    """What is made of it: a ranking, a map, or a table for run time."""

    map_: Annotated[
        str | None,
        typer.Option("--map", metavar="X,Y", help="Map over two of latency, bandwidth, density, workers, model."),
    ] = None
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="X=LOW:HIGH", help="Range of an axis, as latency=10us:200ms; repeatable."),
    ] = None
    cells: Annotated[
        int | None,
        typer.Option(
            min=2, max=4000, help="Cells along each axis; default: 200 of a map (24 simulated), 24 of a table."
        ),
    ] = None
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="NAME.json: policy table for run time."),
    ] = None
    ratios: Annotated[
        str | None,
        typer.Option(metavar="0.1,0.01,...", help="Policy table: densities among which it chooses, too."),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="2,1,1", help="With --ratios: how much gain, compression, communication count; not the knee."
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(metavar="NAME", help="Map: NAME.png, .svg, .csv, and .html to drag in; default: map.")
    ] = None
    force: Force = False
    json_: Json = False


def choose(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="A scenario whose job is asked about; default: base, of which flags are fields.",
            autocompletion=completion.scenario,
        ),
    ] = None,
    *,
    job: Job,
    links: Links,
    method: Method,
    answer: Answer,
) -> None:
    """Choose between dense, allgather and AR-Topk offline: ranking, margin, what would flip it."""
    _refuse_unused(answer)
    from simnet.studies.choosing.answer import problem_of, refuse_ignored
    from simnet.studies.choosing.request import ChooseRequest

    decision = answer.map_ is None and answer.export is None
    request = ChooseRequest(scenario, **vars(job), **vars(links), **vars(method))
    if decision:
        _print_answer(_answer_with_progress(request), answer.json_)
        return
    refuse_ignored(request, decision=False, table=answer.export is not None)
    problem = problem_of(request, over=method.simulate and answer.map_ is not None)
    if answer.map_ is not None:
        _refuse_sampled(problem, method, "--map")
        _write_map(problem, answer, simulated=method.simulate and scenario is None)
    elif answer.export is not None:
        if answer.ratios is not None and job.density is not None:
            raise InputError("is either --density or --ratios", file="simnet choose")
        _refuse_sampled(problem, method, "--export")
        _write_table(_write_policy_table(problem, answer, answer.export, method.seed or 0), answer.export, answer.force)


def _answer_with_progress(request: ChooseRequest) -> ChooseAnswer:
    """Return the decision, and show how far it is meanwhile."""
    from simnet.base.processes import Pool
    from simnet.studies.choosing.answer import answer

    if not request.param:
        with terminal.progress("choices" if request.of_exchange else "exchanges"):
            return answer(request)
    with terminal.bar("jobs") as show, Pool(os.cpu_count() or 1) as pool:
        return answer(request, pool, lambda done: show(done, "jobs"))


def _refuse_sampled(problem: Problem, method: Method, wanted: str) -> None:
    """Refuse schemes whose exchanges are sampled, where as many points are asked for as a map or a table has."""
    if sampled := [one.label for one in problem.among if one.kernel_calls is None]:
        what = f"is not for {wanted}: what is selected by {', '.join(sampled)} is found by sampling"
        raise InputError(what, file="--all" if method.every else "--schemes")


def _refuse_unused(answer: Answer) -> None:
    """Refuse options of an answer that is not asked for."""
    if answer.map_ is not None and answer.export is not None:
        raise InputError("is either --map or --export", file="simnet choose")
    if answer.export is not None and answer.export.suffix != ".json":
        raise InputError(f"must end with .json, got {answer.export.name!r}", file="--export")
    a_file = answer.map_ is not None or answer.export is not None
    options.only("--map", answer.map_ is not None, {"--out": answer.out})
    grid = {"--range": answer.range_, "--cells": answer.cells}
    options.only("--map or --export", a_file, {**grid, "--force": answer.force})
    options.only("a decision, not for --map or --export", not a_file, {"--json": answer.json_})
    options.only("--export", answer.export is not None, {"--ratios": answer.ratios, "--weights": answer.weights})


def _print_answer(found: ChooseAnswer, json_: bool) -> None:
    """Print what to take, the ranking, and what would flip it."""
    from simnet.report.tables import print_wide

    if json_:
        typer.echo(json.dumps(found.figures, indent=2, allow_nan=False))
        return
    answer, *others = found.sentences
    typer.echo(answer)
    print_wide(found.ranking)
    for line in others:
        typer.echo(line)


def _write_map(problem: Problem, answer: Answer, *, simulated: bool) -> None:
    """Draw a map and write it."""
    from simnet.base.writing import refuse_existing, write_new
    from simnet.report.html import map_report
    from simnet.studies.choosing import map_page, maps
    from simnet.studies.choosing.output import title

    out = Path("map") if answer.out is None else answer.out
    if not out.name:
        raise InputError(f"must end with a name, got {str(out)!r}", file="--out")
    files = {ending: out.with_name(out.name + ending) for ending in (".png", ".svg", ".csv", ".html")}
    refuse_existing(list(files.values()), answer.force)
    wanted = options.words(answer.map_) or []
    if len(wanted) != 2:
        raise InputError(f"needs two quantities, such as latency,bandwidth, got {answer.map_!r}", file="--map")
    ranges = _axis_ranges(answer, wanted, "the map")
    cells = answer.cells or 200
    if simulated:
        for name in wanted:
            maps.axis(name, ranges.get(name), 2)
        if answer.cells is None:
            cells = max(min(maps.cells_within(problem, wanted, ranges, maps.USUAL_SECONDS), maps.USUAL_CELLS), 2)
        most = maps.cells_within(problem, wanted, ranges, maps.MOST_SECONDS)
        if cells > most:
            longest = f"at most {most} can be simulated in about {maps.MOST_SECONDS / 60:.0f} minutes"
            raise InputError(f"{longest}, got {cells}; fewer workers take less", file="--cells")
    axes = [maps.axis(name, ranges.get(name), cells) for name in wanted]
    with terminal.progress("choices"):
        made = maps.draw_map(problem, *axes)
    image = maps.plot_map(made)
    x, y = map_page.points(made.x, problem), map_page.points(made.y, problem)
    with terminal.progress("chances"):
        shown = map_page.page_data(problem, x, y, map_page.weighed(problem, x, y))
    page = map_report(problem.title, title(problem), image, shown)
    content: dict[str, bytes | str] = {".png": image.png, ".svg": image.svg, ".csv": made.csv(), ".html": page}
    write_new({files[ending]: data for ending, data in content.items()}, answer.force)
    _say_shares(made.shares(), "map")
    terminal.say(f"Written: {', '.join(map(str, files.values()))}")


def _write_policy_table(problem: Problem, answer: Answer, path: Path, seed: int) -> PolicyTable:
    """Make a policy table by latency and bandwidth."""
    from simnet.base.writing import refuse_existing
    from simnet.studies.choosing import maps, policy

    refuse_existing([path], answer.force)
    ranges = _axis_ranges(answer, ("latency", "bandwidth"), "a policy table")
    if answer.weights is not None and answer.ratios is None:
        raise InputError("is only for --ratios", file="--weights")
    ends = {name: maps.axis(name, text, 2).values.tolist() for name, text in ranges.items()}
    densities = [options.density(word, "--ratios") for word in options.words(answer.ratios) or ()]
    weights = _read_weights(answer.weights)
    with terminal.progress("policy table"):
        return policy.make(
            problem, ends.get("latency"), ends.get("bandwidth"),
            cells=answer.cells or 24, densities=densities, weights=weights, seed=seed,
        )  # fmt: skip


def _write_table(table: PolicyTable, path: Path, force: bool) -> None:
    """Write a policy table, and say what stands in it."""
    from simnet.base.writing import write_new

    write_new({path: table.text()}, force)
    _say_shares(table.shares(), "table")
    lost = table.regret
    assert lost is not None, "a table that was just made says what it loses"
    terminal.say(
        f"At {lost.points:,} random points the table is {100 * lost.mean:.2g} % slower than the exact choice on "
        f"average, {100 * lost.worst:.3g} % at worst; the exchange is the same at {100 * lost.same_exchange:.1f} %, "
        f"the density at {100 * lost.same_density:.1f} %."
    )
    terminal.say(f"Written: {path}, by latency, bandwidth")


def _say_shares(shares: Mapping[str, float], where: str) -> None:
    """Say what is the fastest most often in a map or a table, and all shares."""
    from simnet.report.learning import IGNORED

    first, most = next(iter(shares.items()))
    terminal.say(f"Fastest most often: {first}, {100 * most:.3g} % of the {where}. {IGNORED}")
    for label, share in shares.items():
        terminal.say(f"{label:24} {100 * share:5.1f} % of the {where}")


def _axis_ranges(answer: Answer, axes: Sequence[str], what: str) -> dict[str, str]:
    """Return the ranges of axes that are given."""
    found = options.fields(answer.range_, "--range")
    for name in found:
        if name not in axes:
            raise InputError(f"{name} is no axis of {what}; {suggest_names(name, axes)}", file="--range")
    return found


def _read_weights(text: str | None) -> ObjectiveWeights | None:
    """Read how much each objective counts."""
    from simnet.policies.moo import ObjectiveWeights

    if text is None:
        return None
    try:
        gain, compression, communication = (float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"must be three numbers such as 2,1,1, got {text!r}", file="--weights") from None
    found = ObjectiveWeights(gain, compression, communication)
    if not all(0 <= one < math.inf for one in found) or not any(found):
        raise InputError(f"must be >= 0 and finite, and not all 0, got {text!r}", file="--weights")
    return found
