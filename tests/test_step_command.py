"""`simnet step`: the table of a training step's collectives, its figures, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simnet.base.errors import InputError
from simnet.cli import app
from simnet.cost_models.costs.layers import Layer
from simnet.cost_models.costs.models import load_model
from simnet.network import Network
from simnet.studies.step import planned_of, timed
from simnet.studies.timing import Place
from simnet.topologies import star
from simnet.training.parallel import fsdp2, time_step, wrap_units, zero
from simnet.training.parallel.zero import Stage3Limits
from simnet.verbs.commands.step import Around
from test_parallel_traced import as_traces

ON_STAR = ["--topology", "star", "--latency", "10 us", "--bandwidth", "100 Gbit/s"]


def told(*words: str) -> str:
    return CliRunner().invoke(app, ["step", *words, *ON_STAR], catch_exceptions=False).output


def test_figures_are_those_of_the_library() -> None:
    figures = json.loads(
        told(
            *("--model", "gpt2", "--sharding", "fsdp2", "--workers", "4", "--option", "replicas=2"),
            *("--slowdown", "1.2", "--json"),
        )
    )
    profile = load_model("gpt2")
    graph = fsdp2(wrap_units(profile.layers, behind=["wte.weight"]), 4, replicas=2)
    timing = time_step(
        graph,
        Network(star(4, latency=10e-6, bandwidth=100e9 / 8)),
        forward=profile.compute / 3,
        backward=profile.compute * 2 / 3,
        slowdown=1.2,
    )
    assert figures["compute_slowdown"] == 1.2
    assert figures["slowed_s"] == pytest.approx(timing.slowed.max(), rel=1e-9)
    assert figures["step_s"] == pytest.approx(timing.duration, rel=1e-12)
    assert figures["exposed_s"] == pytest.approx(timing.exposed.max(), rel=1e-9)
    assert sum(call["exposed_s"] for call in figures["calls"]) == pytest.approx(figures["exposed_s"], rel=1e-9)
    assert [(call["operation"], call["in_bytes"]) for call in figures["calls"]] == [
        (call.operation, call.in_bytes) for call in graph.calls
    ]
    assert figures["memory"] == {f"{name}_B": size for name, size in timing.memory()._asdict().items()}


def test_the_table_has_a_line_for_each_call() -> None:
    lines = told("--model", "resnet18", "--sharding", "ddp", "--workers", "2", "--compute", "60 ms").splitlines()
    # The answer comes first.
    assert re.search(r"resnet18, 11,689,512 values, ddp between 2 workers: a step takes", lines[0])
    assert sum("all_reduce float32" in line for line in lines) == 3


def test_what_is_assumed_is_said_with_its_source() -> None:
    asked = ("--model", "gpt2", "--sharding", "ddp", "--workers", "2")
    assumed = told(*asked).splitlines()[-1]
    assert "(time: V100, fp32, 4 sequences of 1,024 tokens: " in assumed
    assert f"tokens: {load_model('gpt2').source}; share: that of the model's profile" in assumed
    assert "66.7 % of it backward" in assumed
    alone = "computing takes as long beside collectives as alone (beside NCCL 1.76 to 2.5 times by kernel: "
    assert alone in assumed
    passes = "--compute", "80 ms", "--backward", "50%"
    step, *_, given = told(*asked, *passes, "--slowdown", "1.8", "--stack", "tcp").splitlines()
    assert "longer beside collectives" in step
    assert "computes for 80 ms, 50 % of it backward" in given
    beside = "computing takes 1.8 times as long beside collectives"
    assert f"(time given; share given); {beside}; messages go by the stack tcp" in given
    figures = json.loads(told(*asked, "--json"))
    assert (figures["source"], figures["stack"]) == (
        assumed.split("split alike between tensors (", 1)[1].partition("); computing takes")[0],
        "ideal",
    )


def test_options_are_those_of_the_functions() -> None:
    profile = load_model("bert-base")
    made = planned_of(profile, "zero3", 4, ["prefetch_bucket_size=0", "microbatches=2", "loss_scaling=true"]).graph
    limits = Stage3Limits(prefetch_bucket_size=0)
    own = zero(profile.layers, 4, stage=3, iteration=3, microbatches=2, loss_scaling=True, limits=limits)
    assert made == own
    freed = planned_of(profile, "fsdp2", 4, ["reshard_after_forward=encoder.layer.0,encoder.layer.1"]).graph
    assert sum(call.operation == "all_gather" and call.phase == "backward" for call in freed.calls) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"model": "gtp2"}, "--model: there is no model 'gtp2': did you mean 'gpt2'"),
        ({"sharding": "fsdp"}, "--sharding: there is no 'fsdp': did you mean 'fsdp2'"),
        ({"given": ["replica=2"]}, "--option: fsdp2 has no option 'replica': did you mean 'replicas'"),
        ({"given": ["prefetch_bucket_size=2"]}, "--option: fsdp2 has no option 'prefetch_bucket_size'"),
        ({"given": ["replicas=3"]}, "--option: replicas must divide the 4 workers, got 3"),
        ({"given": ["replicas"]}, "--option: must be"),
        ({"given": ["replicas=two"]}, "--option: replicas must be a whole number >= 1, got 'two'"),
        ({"compute": "fast"}, "--compute: "),
        ({"memory": "much"}, "--memory: "),
        ({"algorithms": ["all_gather=rng"]}, "--algorithm: there is no all_gather 'rng': did you mean 'ring'"),
        ({"workers": 8}, "--workers: the network has places for 4 workers only"),
    ],
)
def test_what_is_wrong_is_told_with_the_option(words: dict[str, object], says: str) -> None:
    place = Place(Network(star(4, latency=0.0, bandwidth=1e9)), [0, 1, 2, 3])
    asked = {"model": "gpt2", "sharding": "fsdp2", "workers": 4, **words}
    with pytest.raises(InputError, match=re.escape(says)):
        timed(asked.pop("model"), asked.pop("sharding"), asked.pop("workers"), lambda: place, **asked)  # type: ignore[arg-type]


def test_parallelism_around_a_step_has_options_of_its_own() -> None:
    own = Around(tensor_parallel=2, pipeline=2, experts=4, expert_parallel=2, microbatches=2, tokens=64)
    asked = own.options(["order=gpipe"])
    found = planned_of(load_model("gpt2"), "ddp", 8, asked)
    assert {call.group: call.ranks for call in found.graph.calls} == {
        "tensor": 2, "expert": 2, "world": 2, "stage 0 to 1": 2, "stage 1 to 0": 2, "tied": 2,
    }  # fmt: skip
    with pytest.raises(InputError, match="--pipeline: is given by --option, too"):
        own.options(["pipeline=2"])
    words = ("--model", "gpt2", "--sharding", "ddp", "--workers", "2", "--pipeline", "2", "--tokens", "64")
    figures = json.loads(told(*words, "--json"))
    assert [call["unit"] for call in figures["calls"]] == ["activations", "gradients", "wte.weight"]
    # What each computes is its share of the whole.
    assert figures["most_compute_s"] < load_model("gpt2").compute
    assert "each stage by its entries" in told(*words)


def test_it_is_told_whether_a_step_fits_a_device() -> None:
    words = ("--model", "gpt2", "--sharding", "ddp", "--workers", "2")
    # Parameters, gradients and buckets, and two moments.
    needed = 5 * 4 * load_model("gpt2").parameters
    for limit, fits in ((needed, True), (needed - 1, False)):
        figures = json.loads(told(*words, "--memory", f"{limit} B", "--json"))
        assert (figures["memory"]["peak_B"], figures["memory_limit_B"], figures["fits"]) == (needed, limit, fits)
    assert "It does not fit the 1 GB of a device." in told(*words, "--memory", "1 GB")
    assert "It fits the 16 GB of a device." in told(*words, "--memory", "16 GB")


def test_several_steps_are_told_by_their_percentiles() -> None:
    asked = ("--model", "resnet18", "--sharding", "ddp", "--workers", "4", "--compute", "60 ms", "--steps", "9")
    weather = ("--scenario", "fluctuating_wan", "--set", "network.stack=ideal")
    found = CliRunner().invoke(app, ["step", *asked, *weather, "--json"], catch_exceptions=False)
    figures = json.loads(found.stdout)
    each = figures["steps"]["step"]["each_s"]
    assert len(each) == 9
    assert len(set(each)) > 1
    assert each[0] == figures["step_s"]
    # The least time within which so many of 100 steps are is that of a step.
    assert figures["steps"]["step"]["p50_s"] == sorted(each)[4]
    assert figures["steps"]["step"]["p90_s"] == figures["steps"]["step"]["p99_s"] == max(each)
    assert len(figures["steps"]["exposed"]["each_s"]) == 9
    lines = CliRunner().invoke(app, ["step", *asked, *weather], catch_exceptions=False).stdout
    assert re.search(r"of each step +p50 +p90 +p99 +least +most", lines)
    assert re.search(r"^ whole ", lines, re.MULTILINE)
    assert "the first step takes" in lines
    assert "all_reduce float32" not in lines


def test_a_step_comes_from_traces(tmp_path: Path) -> None:
    step = fsdp2(wrap_units([Layer(f"h.{number}.weight", (64, 64)) for number in range(3)]), 4)
    as_traces(tmp_path, step, [50] * len(step.nodes))
    found = CliRunner().invoke(app, ["step", "--trace", str(tmp_path), *ON_STAR, "--json"], catch_exceptions=False)
    figures = json.loads(found.stdout)
    network = Network(star(4, latency=10e-6, bandwidth=100e9 / 8))
    timing = time_step(step, network, forward=3 * 50e-6, backward=3 * 50e-6)
    assert figures["step_s"] == pytest.approx(timing.duration, rel=1e-9)
    assert figures["exposed_s"] == pytest.approx(timing.exposed.max(), rel=1e-9)
    assert figures["workers"] == 4
    lines = CliRunner().invoke(app, ["step", "--trace", str(tmp_path), *ON_STAR], catch_exceptions=False).stdout
    assert f"{tmp_path}, 4 ranks: a step takes" in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "gpt2"], "simnet step: needs --sharding and --workers, or --trace in place of a model"),
        (["--trace", "none", "--workers", "4"], "--workers: is only for a model, not for --trace"),
        (["--trace", "none", "--compute", "1 s"], "--compute: is only for a model, not for --trace"),
        (["--trace", "none"], "none.0.et: there is no such file"),
    ],
)
def test_a_step_is_of_a_model_or_of_traces(words: list[str], says: str) -> None:
    found = CliRunner().invoke(app, ["step", *words, *ON_STAR])
    assert found.exit_code == 2
    assert says in found.output


@pytest.mark.parametrize(("sharding", "option"), [("zero3", "zero_quantized_weights=true"), ("fsdp2", "replicas=1")])
def test_it_is_said_that_quantising_takes_no_time(sharding: str, option: str) -> None:
    asked = ("--model", "resnet18", "--sharding", sharding, "--workers", "4", "--option", option)
    lines = CliRunner().invoke(app, ["step", *asked, *ON_STAR], catch_exceptions=False).stdout
    assert ("quantising takes no time" in " ".join(lines.split())) == (sharding == "zero3")
