"""Measures jobs of models at full size, of a thousand workers, and sweeps, against the limits that the project has set.

    python benchmarks/models.py [CASE ...] [--json FILE]

Every case runs in a process of its own, so that peak memory is its own; they take a quarter of an hour and 16 GB. Times
are seconds of one processor. Beside each stands what summing an array of 100 MB took in the same process, which tells
how busy the machine is: 0.01 s where the limits were set. ``python -m simnet.compile`` must have been run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np

from simnet.cost_models.costs.models import load_model
from simnet.network import Network
from simnet.scenario import load
from simnet.scenario.finding import Source
from simnet.scenario.runner import run_here
from simnet.sparsifier_models import Sparsifier, create
from simnet.sparsifier_models.selection import kth_magnitude
from simnet.studies.sweeping import cell, work
from simnet.traces import synthetic
from simnet.traces.synthetic import SyntheticSource
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.plan import plan_step

CELLS = 200
MANY = """
name: many
workers: 1024
network: {topology: {star: {latency: 10 us, bandwidth: 100 Gbit/s}}}
job: {model: resnet50, scale: 1024, iterations: 4, density: 1 %}
exchanges: {it: {scheme: SCHEME}}
policies: {it: {fixed: it}}
"""
DEVICES = """
name: devices
workers: 64
network:
  topology:
    multi_gpu_nodes:
      {nodes: 8, gpus_per_node: 8, intra_latency: 1 us, intra_bandwidth: 300 GB/s, nic_latency: 5 us,
       nic_bandwidth: 400 Gbit/s}
  weather: [{links: all, bandwidth: {noise: {sigma: 20 %, tau: 20 s, every: 100 ms}}}]
job: {model: resnet50, scale: 1024, iterations: 1, density: 1 %}
exchanges: {dense: {scheme: dense}}
policies: {dense: {fixed: dense}}
"""


@dataclass
class Row:
    """A line of the result: what was measured, and the most that it may be, if anything."""

    name: str
    found: float
    unit: str
    limit: float | None = None
    yardstick: float = 0.0

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"<= {self.limit:g}"
        verdict = "" if self.limit is None else "PASS" if self.found <= self.limit else "FAIL"
        return f"{self.name:68} {limit:8} {self.found:8.3g} {self.unit:4} {verdict:4} {1e3 * self.yardstick:5.1f} ms"


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call [s]."""
    start = time.process_time()
    call()
    return time.process_time() - start


def yardstick() -> float:
    """Return how long summing 100 MB takes, best of five [s]."""
    values = np.ones(25_000_000, dtype=np.float32)
    return min(seconds(values.sum) for _ in range(5))


def peak() -> float:
    """Return the most memory that this process has had [GB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def at_full_size(model: str, workers: int, iterations: int, limit: float | None, memory: float) -> Iterator[Row]:
    """Exchange gradients by AR-Topk, made while they are added to the residuals."""
    source = synthetic(model, workers, iterations=100)
    scheme = create("artopk", workers, source.parameters, 0.01, layers=source.layers)

    def iteration(number: int) -> None:
        scheme.exchange(partial(source.add, number), overwrite=True)

    whose = f"{model}, full size, {workers} workers"
    taken = [seconds(partial(iteration, number)) for number in range(iterations)]
    yield Row(f"{whose}: first iteration, which makes what recurs", taken[0], "s")
    yield Row(f"{whose}: an iteration of AR-Topk", min(taken[1:]), "s", limit)
    yield Row(f"{whose}: peak memory", peak(), "GB", memory)


def counted(holder: type, name: str) -> list[float]:
    """Return a list that takes the processor time of every call of a method from now on [s]."""
    method, taken = getattr(holder, name), []

    @wraps(method)
    def timed(*given: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return method(*given, **options)
        finally:
            taken.append(time.process_time() - start)

    setattr(holder, name, timed)
    return taken


def of_a_thousand(scheme: str) -> Iterator[Row]:
    """Run a job of 1,024 workers on a star, where nothing contends."""
    made, timed = counted(SyntheticSource, "_make"), counted(Network, "time")
    exchanged = counted(Sparsifier, "exchange")
    path = Path(f"many_{scheme}.yaml")
    path.write_text(MANY.replace("SCHEME", scheme), encoding="utf-8")
    try:
        built = load(str(path), []).build()
    finally:
        path.unlink()
    ends = [time.process_time()]
    for _, result in run_here(built, lambda name, done: ends.append(time.process_time())):
        if isinstance(result, Exception):
            raise result
    taken = np.diff(ends)
    # The last iteration adds gradients inside the exchange, as loops are loaded by then; the first loads and compiles.
    typical = int(np.argsort(taken[1:])[1]) + 1
    whose = f"1,024 workers, {scheme}"
    inside = made[typical] if exchanged[typical] > made[typical] and typical == len(taken) - 1 else 0.0
    yield Row(f"{whose}: an iteration, with its schedule and times", float(taken[typical]), "s", 5.0)
    yield Row(f"{whose}: gradients in that", made[typical], "s")
    yield Row(f"{whose}: logic and schedule in that", exchanged[typical] - inside, "s")
    yield Row(f"{whose}: timing in that", timed[typical], "s")


def sampled() -> Iterator[Row]:
    """Run a few iterations of GPT-2 XL on one entry in a thousand."""
    fields = ["workers=8", "job.model=gpt2-xl", "job.scale=1000", "job.iterations=3"]
    built = load("quickstart", fields).build()

    def run() -> None:
        for _, result in run_here(built, lambda name, done: None):
            if isinstance(result, Exception):
                raise result

    yield Row("GPT-2 XL, 8 workers, scale 1000: three iterations, four policies", seconds(run), "s")
    yield Row("GPT-2 XL, 8 workers, scale 1000: peak memory", peak(), "GB")


def local_steps() -> Iterator[Row]:
    """Run 50 rounds of 100 inner steps of GPT-2 XL by DiLoCo, on one entry in 20,000, with a dense exchange."""
    strategy = "job.strategy={name: diloco, period: 100, bucket: 10 GiB}"
    fields = ["workers=8", "job.model=gpt2-xl", "job.scale=20000", "job.iterations=50", strategy]
    built = load(
        "quickstart", [*fields, "exchanges={dense: {scheme: dense}}", "policies={dense: {fixed: dense}}"]
    ).build()

    def run() -> None:
        for _, result in run_here(built, lambda name, done: None):
            if isinstance(result, Exception):
                raise result

    yield Row("GPT-2 XL, 8 workers, scale 20000: 50 rounds of 100 local steps", seconds(run), "s", 120.0)
    yield Row("GPT-2 XL, 8 workers, scale 20000, local steps: peak memory", peak(), "GB", 4.0)


def sharded_steps() -> Iterator[Row]:
    """Time 100 steps of a transformer of 8 billion parameters by FSDP2 on 64 devices while every link changes."""
    path = Path("steps_sharded.yaml")
    path.write_text(DEVICES, encoding="utf-8")
    try:
        network = load(str(path), []).build().job.network(0)
    finally:
        path.unlink()
    profile = load_model("llama3-8b")
    step = plan_step(profile, "fsdp2", 64, {"param_dtype": "bfloat16", "reduce_dtype": "float32"})

    def run() -> None:
        placed, now = PlacedStep(step.graph, network), 0.0
        for number in range(100):
            now += placed.time(step.seconds(profile.compute), now, number).duration

    yield Row("Llama 3 8B, FSDP2 on 64 devices with weather: 100 steps", seconds(run), "s", 60.0)
    yield Row("Llama 3 8B, FSDP2 on 64 devices with weather: peak memory", peak(), "GB", 2.0)


def once_for_all() -> Iterator[Row]:
    """Count how often gradients of an iteration are made where four policies share them."""
    made = counted(SyntheticSource, "_make")
    built = load("quickstart", ["job.iterations=20"]).build()
    for _, result in run_here(built, lambda name, done: None):
        if isinstance(result, Exception):
            raise result
    yield Row("gradients made per iteration that four policies share", len(made) / 20, "", 1.0)


def sweep() -> Iterator[Row]:
    """Check and run cells of quickstart, of 10 iterations."""
    made = counted(SyntheticSource, "_make")
    axes = [f"bandwidth=1:20:{CELLS // 10}:log Gbit/s", "density=0.001:0.1:10:log"]
    planned = work.plan(Source("quickstart", ["job.iterations=10"]), axes)
    start = time.process_time()
    for task in planned.tasks:
        cell.run_cell(task, cell.check_cell(task, "nowhere", 1).identity)
    taken = time.process_time() - start
    yield Row(f"a cell of a sweep of quickstart, mean of {CELLS}", taken / CELLS, "s", 30 * 60 * 2 / 10_000)
    yield Row(f"gradients made in {CELLS} cells of 10 iterations that share them", len(made), "", 10.0)


def kth() -> Iterator[Row]:
    """Time the k-th magnitude where it might be slow, against where it is not."""
    random, n = np.random.default_rng(0), 4_000_000
    normal = random.standard_normal(n, dtype=np.float32)

    def kept(share: float) -> Any:
        return np.where(random.random(n) < share, normal, np.float32(0))

    cases = {
        **{f"{share:.0%} not zero": kept(share) for share in (0.01, 0.1, 0.5, 0.99)},
        "zeros": np.zeros(n, dtype=np.float32),
        "constant": np.full(n, 3, dtype=np.float32),
        "two values": np.where(normal > 0, np.float32(1), np.float32(2)),
        "rounded": np.round(3 * normal),
        "denormal": (normal * 1e-42).astype(np.float32),
        "few denormal": (random.integers(0, 3, n) * 1e-45).astype(np.float32),
        "sorted": np.sort(normal),
        "periodic": np.resize(np.arange(512, dtype=np.float32), n),
        "powers of two": (2.0 ** random.integers(-120, 120, n)).astype(np.float32),
    }
    near = (0.9, 0.99, 1.0, 1.01, 1.1)
    everywhere = [1, 10, n // 1000, n // 100, n // 10, n // 2, n - 1, n]

    def slowest(values: Any) -> float:
        filled = int(np.count_nonzero(values))
        asked = {*everywhere, *(int(share * filled) for share in near)}
        taken = [min(seconds(partial(kth_magnitude, values, k)) for _ in range(3)) for k in asked if 1 <= k <= n]
        return max(taken)

    usual = slowest(normal)
    found = {name: slowest(values) / usual for name, values in cases.items()}
    worst = max(found, key=found.__getitem__)
    yield Row("k-th magnitude of 4 million normal entries, at the slowest k", 1e3 * usual, "ms")
    yield Row(f"k-th magnitude over that, at the slowest: {worst}", found[worst], "", 5.0)


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "vgg16": lambda: at_full_size("vgg16", 8, 4, 3.0, 10.0),
    "resnet50": lambda: at_full_size("resnet50", 8, 5, 1.5, 10.0),
    "resnet50-64": lambda: at_full_size("resnet50", 64, 2, None, 15.0),
    "gpt2-xl": sampled,
    "local-steps": local_steps,
    "spardl-1024": lambda: of_a_thousand("spardl"),
    "oktopk-1024": lambda: of_a_thousand("oktopk"),
    "sharded": sharded_steps,
    "sweep": sweep,
    "once": once_for_all,
    "kth": kth,
}


def main() -> int:
    """Run the cases, and return how many limits are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--json", type=Path, help="also write the lines there")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if given.alone:
        measured, unit = list(CASES[given.cases[0]]()), yardstick()
        print(json.dumps([asdict(row) | {"yardstick": unit} for row in measured]))
        return 0
    found: list[Row] = []
    for case in given.cases or CASES:
        command = [sys.executable, __file__, case, "--alone"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        rows = [Row(**row) for row in json.loads(lines[-1])]
        found += rows
        print(*rows, sep="\n", flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in found], indent=1), encoding="utf-8")
    return sum(row.limit is not None and row.found > row.limit for row in found)


if __name__ == "__main__":
    sys.exit(main())
