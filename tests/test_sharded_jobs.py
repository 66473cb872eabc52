"""Jobs whose iterations are steps of replicated or sharded models: the times of steps alone, rows, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import did, refused
from simnet import run as simulate
from simnet.base.clock import advance_time
from simnet.collectives import registry
from simnet.cost_models.costs.models import Layer, load_model
from simnet.scenario import Run, load
from simnet.scenario.runner import identity, results_of
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.record import PolicyResult
from simnet.training.job.running import run_policy
from simnet.training.parallel.graph import describe_slowdown
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.plan import plan_step
from simnet.training.parallel.pytorch import fsdp2
from simnet.training.parallel.units import wrap_units
from step_times import time_step
from test_parallel_traced import as_traces

STEPS = 5
LATENCY, RATE = 20e-6, 10e9
# Falls to a fifth within the first steps, and comes back.
WEATHER = [{"links": "all", "bandwidth": {"steps": {"at": ["0 s", "0.1 s", "0.3 s"], "factors": [1.0, 0.2, 1.0]}}}]


def scenario(folder: Path, sharding: Any, *, model: str | None = "resnet18", **more: Any) -> Path:
    """Write a scenario of four workers on a star, and return its path."""
    job: dict[str, Any] = {"iterations": STEPS, "sharding": sharding} | ({} if model is None else {"model": model})
    given: dict[str, Any] = {
        "workers": 4,
        "network": {"topology": {"star": {"latency": f"{LATENCY} s", "bandwidth": f"{RATE} B/s"}}},
        "job": job | more.pop("job", {}),
    }
    given["network"] |= more.pop("network", {})
    path = folder / "sharded.yaml"
    path.write_text(json.dumps(given | more))
    return path


def one(run: Run) -> PolicyResult:
    (result,) = results_of(run).values()
    return result


WAYS: list[tuple[str, dict[str, object]]] = [
    ("fsdp2", {}),
    ("fsdp2", {"reshard_after_forward": False, "microbatches": 2, "gradient_sync": "last"}),
    ("hsdp", {"replicas": 2}),
    ("ddp", {"iteration": 3}),
    ("zero1", {"overlap_comm": True, "reduce_bucket_size": 2_000_000}),
    ("zero2", {}),
    ("zero3", {"iteration": 3, "max_reuse_distance": 0}),
    ("ddp", {"iteration": 3, "pipeline": 2, "tokens": 64, "width": 32, "microbatches": 2}),
]
CHANGING: dict[str, object] = {"weather": WEATHER, "jitter": {"exponential": {"mean": "0.1 ms"}}}


@pytest.mark.parametrize(("way", "options"), WAYS)
@pytest.mark.parametrize("network", [{}, CHANGING], ids=["constant", "changing"])
def test_a_job_takes_what_its_steps_take_to_the_last_bit(
    tmp_path: Path, way: str, options: dict[str, object], network: dict[str, object]
) -> None:
    # Steps whose groups meet on links take long to simulate.
    steps = 3 if way == "hsdp" or "pipeline" in options else 12
    path = scenario(tmp_path, {"as": way, "slowdown": 1, **options}, network=network, job={"iterations": steps})
    run = load(path).build()
    profile = load_model("resnet18")
    step = plan_step(profile, way, 4, options)
    placed = PlacedStep(step.graph, run.job.network(0), placement=run.job.placement)
    rows, now, lost = one(run).iterations, 0.0, 0.0
    for number, (began, lasted) in enumerate(zip(rows["start_s"], rows["iteration_s"], strict=True)):
        assert (began, lasted) == (now, placed.time(step.seconds(profile.compute), now, number).duration)
        now, lost = advance_time(now, lasted + lost)
    assert (len(set(rows["iteration_s"])) > 2) == bool(network)


def test_gradients_of_a_replicated_model_take_the_closed_form_of_an_all_reduce(tmp_path: Path) -> None:
    sharding = {"as": "ddp", "overlap": False, "bucket_cap_mb": 1e6}
    result = one(load(scenario(tmp_path, sharding, job={"update": "3 ms"})).build())
    profile = load_model("resnet18")
    cost = registry.collective_by_algorithm("all_reduce", "ring").cost
    assert cost is not None
    nbytes = 4.0 * profile.parameters
    reduced = float(cost(LATENCY, 1 / RATE, nbytes, 4))
    later = result.iterations.iloc[2:]
    assert later["iteration_s"].to_numpy() == pytest.approx(profile.compute + reduced + 3e-3, rel=1e-9)
    assert later["compute_s"].to_numpy() == pytest.approx(profile.compute + 3e-3, rel=1e-12)
    assert later["communicate_s"].to_numpy() == pytest.approx(reduced, rel=1e-9)
    assert later["bytes_sent_B"].to_numpy() == pytest.approx(2 * 3 * nbytes, rel=1e-9)


@pytest.mark.parametrize("network", [{}, {"weather": WEATHER}], ids=["constant", "changing"])
def test_what_workers_do_adds_up_to_each_iteration(tmp_path: Path, network: dict[str, object]) -> None:
    job = {"compute": {"spread": 0.2, "straggle": {"probability": 0.3, "slowdown": 2.0}}}
    run = load(scenario(tmp_path, {"as": "fsdp2", "microbatches": 2, "slowdown": 1}, job=job, network=network)).build()
    result = one(run)
    each = result.workers
    assert len(each) == 4 * STEPS
    parts = each[["compute_s", "select_s", "communicate_s", "wait_s"]].sum(axis=1).to_numpy().reshape(STEPS, 4)
    whole = result.iterations["iteration_s"].to_numpy()
    assert parts == pytest.approx(np.repeat(whole[:, np.newaxis], 4, axis=1), rel=1e-9)
    computed = np.stack([run.job.compute.seconds(0, number, 4) for number in range(STEPS)])
    assert each["compute_s"].to_numpy().reshape(STEPS, 4) == pytest.approx(2 * computed, rel=1e-9)
    assert (each["wait_s"] > 0).any()
    # The same of what is drawn, for the first iterations.
    spans = result.spans[result.spans["iteration"] == 1]
    assert set(result.spans["iteration"]) == {0, 1, 2}
    for worker, own in spans.groupby("worker"):
        lasted = (own["finish_s"] - own["start_s"]).groupby(own["what"]).sum()
        row = each[(each["iteration"] == 1) & (each["worker"] == worker)].iloc[0]
        for what in ("compute", "communicate"):
            assert lasted[what] == pytest.approx(row[f"{what}_s"], rel=1e-9)


@pytest.mark.parametrize("network", [{}, {"weather": WEATHER}], ids=["constant", "changing"])
def test_an_interrupted_job_resumes_to_the_same_bytes(tmp_path: Path, network: dict[str, object]) -> None:
    class KilledError(Exception):
        """Stands for the end of the process."""

    job = {"iterations": 8, "compute": {"mean": "33 ms"}}
    sharding = {"as": "ddp"} if network else {"as": "hsdp", "replicas": 2}
    run = load(scenario(tmp_path, sharding, network=network, job=job)).build()
    (name, policy), whole = next(iter(run.policies.items())), one(run)
    checkpoint = Checkpoint(tmp_path / "c.npz", "a", every=0.0)

    def kill(done: int) -> None:
        if done == 4:
            raise KilledError

    with pytest.raises(KilledError):
        run_policy(run.job, name, policy, checkpoint=checkpoint, progress=kill, timeline=3)
    found = run_policy(run.job, name, policy, checkpoint=checkpoint, timeline=3)
    assert found.iterations.equals(whole.iterations)
    assert found.workers.equals(whole.workers)
    assert found.spans.equals(whole.spans)


def test_memory_is_that_of_the_steps_and_a_limit_is_told(tmp_path: Path) -> None:
    path = scenario(tmp_path, {"sharded": {"as": "fsdp2"}, "replicated": {"as": "ddp"}}, model="gpt2")
    out = tmp_path / "out"
    words = ["run", str(path), "--set", "job.device_memory=1 GB", "--set", "job.iterations=4", "--out", str(out)]
    found = did(*words, "--set", "output.report=false")
    summary = json.loads((out / "summary.json").read_text())
    held = {name: one["memory"] for name, one in summary["policies"].items()}
    profile = load_model("gpt2")
    assert held["replicated"]["peak_B"] == 4 * 5 * profile.parameters
    shard = sum(unit.shard(4) for unit in (wrap_units(profile.layers).root, *wrap_units(profile.layers).blocks))
    assert held["sharded"]["parameters_B"] == 4 * shard
    assert held["sharded"]["in_flight_B"] > 0
    assert (held["sharded"]["fits"], held["replicated"]["fits"]) == (True, False)
    assert "Too large for the 1 GB of a device: replicated needs " in " ".join(found.stdout.split())
    assert set(summary["policies"]["sharded"]["choices"]) == {"sharded"}


def test_a_job_is_driven_by_traces(tmp_path: Path) -> None:
    step = fsdp2(wrap_units([Layer(f"h.{number}.weight", (64, 64)) for number in range(3)]), 4)
    as_traces(tmp_path, step, [50] * len(step.nodes))
    run = load(scenario(tmp_path, {"trace": "."}, model=None)).build()
    alone = time_step(step, run.job.network(0), forward=3 * 50e-6, backward=3 * 50e-6)
    rows = one(run).iterations
    assert rows["iteration_s"].to_numpy() == pytest.approx(alone.duration, rel=1e-9)
    assert rows["compute_s"].to_numpy() == pytest.approx(6 * 50e-6, rel=1e-9)
    before = identity(load(tmp_path / "sharded.yaml"), "rows")
    assert before == identity(load(tmp_path / "sharded.yaml"), "rows")
    # Results of other traces of the same name are others.
    as_traces(tmp_path, step, [60] * len(step.nodes))
    assert before != identity(load(tmp_path / "sharded.yaml"), "rows")
    as_traces(tmp_path, step, [50] * len(step.nodes))
    slower = one(load(tmp_path / "sharded.yaml", ["job.compute.slow={'2': 3.0}"]).build()).workers
    assert slower["compute_s"].iloc[2] == pytest.approx(18 * 50e-6, rel=1e-9)


def test_ways_are_compared_and_swept(tmp_path: Path) -> None:
    path = scenario(tmp_path, {"F": {"as": "fsdp2"}, "Z": {"as": "zero2"}}, job={"iterations": 2})
    found = simulate(path)
    rows = found.to_pandas().set_index("policy")
    assert set(rows.index) == {"F", "Z"}
    assert (rows[["iteration_s", "bytes_sent_per_worker_B", "memory_B"]] > 0).all(axis=None)
    assert any("optimisers are those of sharded steps" in one for one in found.notes)
    # What only selection has is not shown.
    assert not {"actual_density", "build_up"} & {column.name for column in found.columns}
    assert "nan" not in found.text(wide=True)
    # Fields of a way, and the way itself, are swept.
    cells = simulate(path, grid={"job.sharding.F.reshard_after_forward": [True, False]}).cells
    sent = cells[cells["policy"] == "F"]["total_bytes_sent_B"].tolist()
    assert sent[0] > sent[1]
    ways = simulate(scenario(tmp_path, {"as": "fsdp2"}), grid={"job.sharding.as": ["fsdp2", "zero3"]}).cells
    assert ways["policy"].tolist() == ["fsdp2", "zero3"]


def test_other_commands_say_that_they_are_for_exchanges_of_gradients(tmp_path: Path) -> None:
    path = str(scenario(tmp_path, {"as": "ddp"}))
    for words in (["convert", path, str(tmp_path / "a.goal")],):
        assert "job.sharding: must be left out" in refused(*words)


PROFILE = """\
name: shared
chip: V100
device: a GPU that NCCL shares
source: made up
memory_bandwidth: 1.0e12
beside_collectives: {compute: 1.5, source: made up}
methods:
  "*": {launch: 1.0e-5, bytes_per_entry: 4, source: made up}
"""


@pytest.mark.parametrize(
    ("given", "device", "slowdown"),
    [({}, None, 1.18), ({"slowdown": 1.8}, None, 1.8), ({}, PROFILE, 1.5), ({"slowdown": 1}, PROFILE, 1.0)],
)
def test_a_job_computes_as_much_slower_beside_collectives_as_is_said_of_it_or_its_device(
    tmp_path: Path, given: dict[str, object], device: str | None, slowdown: float
) -> None:
    job = {}
    if device is not None:
        (tmp_path / "shared.yaml").write_text(device)
        job["device"] = "./shared.yaml"
    loaded = load(scenario(tmp_path, {"as": "fsdp2", "iteration": 3, **given}, job=job))
    assert loaded.computing is not None
    assert describe_slowdown(slowdown) in loaded.computing
    assert ("(device profile: made up)" in loaded.computing) == (slowdown == 1.5)
    run = loaded.build()
    profile = load_model("resnet18")
    step = fsdp2(wrap_units(profile.layers), 4, iteration=3)
    passes = {"forward": profile.compute / 3, "backward": 2 * profile.compute / 3}
    found = time_step(step, run.job.network(0), slowdown=slowdown, **passes)
    rows = one(run).iterations
    assert rows["iteration_s"].to_numpy() == pytest.approx(found.duration, rel=1e-9)
    assert rows["compute_s"].to_numpy() == pytest.approx(profile.compute, rel=1e-9)
    assert rows["communicate_s"].to_numpy() == pytest.approx(found.communicating.max() + found.slowed.max(), rel=1e-9)
