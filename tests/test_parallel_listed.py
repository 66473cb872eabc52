"""Models told as lists of units: what each part of a pass takes, in steps and in jobs, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.cost_models.costs.models import Layer, ModelProfile, load_model
from simnet.network import Network
from simnet.scenario import load
from simnet.scenario.runner import results_of
from simnet.topologies import star
from simnet.training.parallel.graph import ComputePart
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.plan import PlannedStep, model_steps, plan_step
from simnet.training.parallel.units import ListedUnit, PassShares, profile_of_units

# Entries and seconds that do not go together: 1 + 3 x 2 + 5 = 12 s.
UNITS = (ListedUnit("embedding", 4_000, 1.0), ListedUnit("block", 1_000, 2.0, times=3), ListedUnit("head", 2_000, 5.0))
TAKES = {"embedding.0": 1.0, "block.0": 2.0, "block.1": 2.0, "block.2": 2.0, "head.0": 5.0}


def computed(step: PlannedStep, phase: str) -> list[tuple[str, float]]:
    """What each part of a pass takes the first worker, of 12 s of which a third is forward."""
    seconds = step.seconds(12.0)
    return [
        (node.does.unit, float(seconds[number, 0]))
        for number, node in enumerate(step.graph.nodes)
        if isinstance(node.does, ComputePart) and node.does.phase == phase
    ]


@pytest.mark.parametrize("way", ["fsdp2", "zero3"])
def test_units_take_what_is_said_of_them_forward_and_twice_that_backward(way: str) -> None:
    step = plan_step(profile_of_units(UNITS), way, 4, {})
    assert dict(computed(step, "forward")) == pytest.approx({name: one / 3 for name, one in TAKES.items()})
    assert dict(computed(step, "backward")) == pytest.approx({name: 2 * one / 3 for name, one in TAKES.items()})
    assert [name for name, _ in computed(step, "forward")] == list(TAKES)
    assert {call.unit for call in step.graph.calls if call.operation == "all_gather"} <= {*TAKES, "model"}


def test_buckets_take_what_their_units_take_from_the_last_on() -> None:
    # A bucket closes at 15,728 bytes: behind the head and two blocks, 16,000; then a block and the embedding.
    step = plan_step(profile_of_units(UNITS), "ddp", 2, {"bucket_cap_mb": 0.015})
    sizes = [call.in_elements for call in step.graph.calls]
    assert sizes == [4_000, 5_000]
    # 5 + 2 x 2 s, and 2 + 1 s; backward two thirds of it.
    assert [one for _, one in computed(step, "backward")] == pytest.approx([6.0, 2.0])
    assert [one for _, one in computed(step, "forward")] == pytest.approx([4.0])


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_units_that_take_as_long_as_they_are_large_take_what_a_known_model_takes(way: str) -> None:
    layers = tuple(Layer(f"h.{number}.weight", (size,)) for number, size in enumerate((3000, 500, 1500, 4000)))
    known = ModelProfile("known", layers, load_model("gpt2").times, "made up")
    units = [ListedUnit(f"h{number}", layer.size, 7.0 * layer.size) for number, layer in enumerate(layers)]
    asked: dict[str, object] = {"microbatches": 2}
    profiles = profile_of_units(units), known
    found, expected = (plan_step(one, way, 3, asked, backward=0.6).seconds(1.0) for one in profiles)
    assert found == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 9)), min_size=1, max_size=6), st.data())
def test_parts_of_a_pass_add_up_to_it_in_both_directions(units: list[tuple[int, float]], data: st.DataObject) -> None:
    sizes, takes = zip(*((size, one + 0.1) for size, one in units), strict=True)
    work, size = PassShares(sizes, takes), sum(sizes)
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=4))})
    shares = [[work.share(a, b - a, backward=backward) for a, b in pairwise(cuts)] for backward in (False, True)]
    assert np.sum(shares, axis=1) == pytest.approx([1.0, 1.0])
    # What is last forward is first backward.
    last = work.share(size - sizes[-1], sizes[-1], backward=False)
    assert work.share(0, sizes[-1], backward=True) == pytest.approx(last)
    assert last == pytest.approx(takes[-1] / sum(takes))


def test_a_unit_without_entries_of_others_is_gathered_in_one_call_of_its_size() -> None:
    step = plan_step(profile_of_units(UNITS), "fsdp2", 4, {})
    gathered = {call.unit: call.out_elements for call in step.graph.calls if call.operation == "all_gather"}
    assert gathered == {"embedding.0": 4_000, "block.0": 1_000, "block.1": 1_000, "block.2": 1_000, "head.0": 2_000}


@pytest.mark.parametrize(
    ("units", "says"),
    [
        ([("a", 10, 1.0), ("a", 10, 1.0)], "there are two tensors 'a.0.weight'"),
        ([("a", 0, 1.0)], "a length of tensor 'a.0.weight' must be"),
        ([("a", 10, 0.0)], "no unit takes any time"),
    ],
)
def test_what_is_no_unit_is_refused(units: list[Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        profile_of_units([ListedUnit(*one) for one in units])


@pytest.mark.parametrize(
    "asked",
    [
        {"tensor_parallel": 2, "tokens": 8, "width": 4},
        {"pipeline": 2, "tokens": 8, "width": 4},
        {"experts": 2, "tokens": 8, "width": 4},
    ],
)
def test_units_are_not_divided(asked: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="units are not for tensor_parallel, pipeline and experts"):
        plan_step(profile_of_units(UNITS), "ddp", 4, asked)


def scenario(folder: Path, sharding: dict[str, object], **job: object) -> Path:
    path = folder / "units.yaml"
    topology = {"star": {"latency": "20 us", "bandwidth": "10 GB/s"}}
    given = {"workers": 4, "network": {"topology": topology}, "job": {"iterations": 2, "sharding": sharding, **job}}
    path.write_text(json.dumps(given))
    return path


def units(measure: str, unit: str = "") -> list[dict[str, object]]:
    return [
        {"name": one.name, "parameters": one.parameters, measure: f"{one.work:g}{unit}", "times": one.times}
        if unit
        else {"name": one.name, "parameters": one.parameters, measure: one.work, "times": one.times}
        for one in UNITS
    ]


@pytest.mark.parametrize("measure", ["seconds", "flops"])
def test_a_job_of_units_takes_what_their_steps_take(tmp_path: Path, measure: str) -> None:
    seconds = measure == "seconds"
    told = units(measure, " ms" if seconds else "")
    job = {} if seconds else {"compute": {"mean": "12 ms"}}
    run = load(scenario(tmp_path, {"as": "fsdp2", "units": told, "slowdown": 1}, **job)).build()
    (result,) = results_of(run).values()
    step = model_steps(profile_of_units(UNITS), "fsdp2", 4, {})(1)
    placed = PlacedStep(step.graph, Network(star(4, latency=20e-6, bandwidth=1e10)))
    expected = placed.time(step.seconds(np.full(4, 12e-3))).duration
    assert result.iterations["iteration_s"].to_numpy() == pytest.approx(expected, rel=1e-9)
    assert result.iterations["compute_s"].to_numpy() == pytest.approx(12e-3, rel=1e-9)
    assert run.job.source.true_parameters == 9_000
    # With all defaults spelled out it is the same scenario.
    (tmp_path / "lock.yaml").write_text(load(tmp_path / "units.yaml").lock())
    (again,) = results_of(load(tmp_path / "lock.yaml").build()).values()
    assert again.iterations["iteration_s"].tolist() == result.iterations["iteration_s"].tolist()


def way(*own: dict[str, object], **more: object) -> dict[str, object]:
    """Sharding by FSDP2 of units."""
    return {"as": "fsdp2", "units": list(own), **more}


def one(**fields: object) -> dict[str, object]:
    """A unit of some parameters."""
    return {"name": "a", "parameters": 3, **fields}


SECOND = one(seconds="1 s")
TIMED = units("seconds", " ms")


@pytest.mark.parametrize(
    ("sharding", "job", "says"),
    [
        (way(*TIMED), {"model": "gpt2"}, "takes no model beside units"),
        (way(*TIMED), {"compute": {"mean": "1 s"}}, "takes no compute.mean beside"),
        (way(*units("flops")), {}, "is missing; units in flops need job.compute.mean, e.g. '18 ms'"),
        (way(one()), {}, "units[0]: needs either seconds or flops, got neither"),
        (way(SECOND | {"flops": 2}), {}, "units[0]: needs either seconds or flops, got both"),
        (way(*units("flops"), SECOND), {}, "units[3]: needs flops, as units[0] has"),
        (way(SECOND | {"name": "a.1"}), {}, "must be a letter and up to 39 letters, digits or - behind it, got 'a.1'"),
        (way(*TIMED, SECOND | {"name": "block"}), {}, "units[3].name: is that of units[1], too, got 'block'"),
        (way(one(seconds=0)), {}, "units: must have one that takes any time"),
        # 600 + 401.
        (
            way(SECOND | {"times": 600}, SECOND | {"name": "b", "times": 401}),
            {},
            "units: must be at most 1,000 with those that follow by times, got 1,001",
        ),
        (way(*TIMED, slowdown="fast"), {}, "slowdown: must be a number, got 'fast'"),
        (way(*TIMED, reshard_after_forward=["root"]), {}, "there is no reshard_after_forward 'root'"),
        ({"as": "ddp"}, {}, "sharding needs tensors, which a size has not"),
        ({"A": way(*TIMED) | {"as": "ddp"}, "B": {"as": "fsdp2"}}, {}, "needs the same units in all ways of sharding"),
    ],
)
def test_what_does_not_go_with_units_is_refused_in_words(
    tmp_path: Path, sharding: dict[str, object], job: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError) as error:
        load(scenario(tmp_path, sharding, **job)).build()
    assert says in str(error.value)
    # Once, as what is wrong stands in one place.
    assert len(str(error.value).splitlines()) == 1


def test_what_decides_on_a_job_of_units_is_told_and_stands_in_the_lock(tmp_path: Path) -> None:
    told = [{"name": "a", "parameters": 9, "seconds": "3 ms"}]
    told += [{"name": "block", "times": 3, "parameters": 9, "seconds": "5 ms"}]
    found = load(scenario(tmp_path, {"as": "fsdp2", "units": told}))
    # 3 + 3 x 5 ms, of which two thirds are backward.
    said = "18 ms of its units, 66.7 % backward; 1.18 times as long beside collectives"
    assert (found.computing or "").startswith(said)
    assert "mean: 18 ms" in found.lock() or "mean: 0.018 s" in found.lock()
    assert "backward: 0.6666" in found.lock()
    # Ways that differ are told one by one.
    ways = {"F": {"as": "fsdp2", "units": told, "slowdown": 2}, "D": {"as": "ddp", "units": told, "backward": 0.5}}
    first, *others = (load(scenario(tmp_path, dict(ways))).computing or "").split("; ")
    assert first == "18 ms of its units"
    assert others[0] == "F: 66.7 % backward, 2 times as long beside collectives"
    assert others[1].startswith("D: 50 % backward, 1.18 times as long beside collectives")
