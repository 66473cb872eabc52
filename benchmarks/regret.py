"""How much longer a job takes with the exchange that `simnet choose` takes than with the best one, by `simnet run`.

    python benchmarks/regret.py --scenarios 300 --processes 2 --csv regret.csv
    python benchmarks/regret.py --shipped --csv shipped.csv

Random scenarios have 2 to 64 workers on a star, a ring, a tree, a fat-tree or a wide-area network, links that are
constant or change in steps, with noise, or both, 30 to 200 iterations of a model, densities of 0.3 to 10 %, sometimes
after a warm-up, at times with buckets beside the backward pass, and up to two schemes beside the usual exchanges. Every
exchange that `choose` weighs is run in full, all iterations, but for those that it expects to take four times as long
as the fastest; in one of ten scenarios those are run, too. The regret is by how much the job takes longer with the one
that `choose` takes, as a fraction of the shortest. Of exchanges of which a sample was simulated it also says by how
much what `choose` expects is off from the run, and how often by less than two of the standard errors that it states, or
a thousandth. A file that is there already is added to: what it has is not done again. With less `--effort` than
`choose` spends, more of the iterations are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.errors import SimnetError
from simnet.base.rng import stream
from simnet.policies import Fixed
from simnet.scenario import load, shipped
from simnet.studies.choosing.whole_job import EFFORT, candidates_of, decide_job
from simnet.training.job.running import run_in_step

KINDS = ("star", "ring", "tree", "fat_tree", "wan")
_SCHEMES = ("oktopk", "spardl", "gtopk", "topkdsa", "gaussiank", "exdyna", "dgc", "qsgd", "powersgd", "signsgd")
_NEAR = 4.0
_COLUMNS = (
    "name", "kind", "workers", "iterations", "exchanges", "chosen", "fastest", "regret", "tied", "complete", "seconds",
    "sampled", "within", "off",
)  # fmt: skip


def scenario(kind: str, number: int, seed: int) -> dict[str, Any]:
    """Return a random scenario on a kind of network."""
    draws = stream(seed, "regret", kind, number)

    def between(low: float, high: float) -> float:
        return float(np.exp(draws.uniform(math.log(low), math.log(high))))

    def one_of(*words: Any) -> Any:
        return words[int(draws.integers(len(words)))]

    workers, iterations = round(between(2, 64)), round(between(30, 200))
    latency, rate = between(1e-5, 0.05), between(1e7, 5e9)
    links = {"latency": f"{latency!r} s", "bandwidth": f"{rate!r} B/s"}
    if kind == "tree":
        links["arity"] = int(draws.integers(2, 6))
    elif kind == "fat_tree":
        links["k"] = next(k for k in range(2, 100, 2) if k**3 // 4 >= workers)
        links["oversubscription"] = one_of(1, 2, 4)
    elif kind == "wan":
        sites = min(int(draws.integers(2, 6)), workers)
        links |= {"sites": sites, "workers_per_site": -(-workers // sites)}
        links |= {"local_latency": "50 us", "local_bandwidth": f"{rate * between(0.3, 10)!r} B/s"}
        links["latency"] = f"{between(5e-3, 0.1)!r} s"
    model, parameters = one_of(("resnet18", 11_689_512), ("resnet50", 25_557_032))
    density = between(3e-3, 0.1)
    seconds = iterations * (0.03 + 4 * parameters * density / rate + 8 * latency)
    job: dict[str, Any] = {
        "model": model,
        "scale": parameters / 1500,
        "iterations": iterations,
        "density": density,
        "compute": {"spread": one_of("0 %", "5 %")},
        "device": one_of("v100-torch2.6", "a100-torch2.6", "artopk-tables"),
    }
    if draws.random() < 0.2:
        warm = iterations // 4
        job["density"] = [{"iterations": warm, "from": 0.25, "to": density}, {"at": density}]
    if draws.random() < 0.15:
        job["overlap"] = {"bucket": "25 MiB"}
    weather = []
    if draws.random() < 0.6:
        parts = int(draws.integers(2, 6))
        at = sorted(draws.uniform(0, 1, parts - 1).tolist())
        period = seconds * between(0.1, 2)
        weather.append(
            {
                "links": "all",
                "bandwidth": {
                    "steps": {
                        "at": ["0 s", *(f"{one * period!r} s" for one in at)],
                        "factors": [between(0.1, 1) for _ in range(parts)],
                        "period": f"{1.01 * period!r} s",
                    }
                },
            }
        )
    if draws.random() < 0.4:
        tau = seconds * between(0.03, 0.3)
        noise = {"sigma": between(0.05, 0.5), "tau": f"{tau!r} s", "every": f"{max(tau / 4, seconds / 50)!r} s"}
        weather.append({"links": "all", "bandwidth": {"noise": noise}})
    exchanges = {one: {"scheme": one} for one in dict.fromkeys(one_of(*_SCHEMES) for _ in range(draws.integers(0, 3)))}
    return {
        "name": f"{kind}-{number}",
        "seed": int(draws.integers(2**31)),
        "workers": workers,
        "network": {
            "topology": {kind: links},
            "stack": one_of("ideal", "tcp"),
            **({"weather": weather} if weather else {}),
        },
        "job": job,
        "exchanges": exchanges or {"AG": {"scheme": "topk"}},
    }


def lost(name: str, given: Mapping[str, Any] | None, effort: float, whole: bool) -> dict[str, Any]:
    """Choose for a scenario, run everything, and say what the choice costs."""
    if given is None:
        loaded = load(name)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.yaml"
            file.write_text(json.dumps(given), encoding="utf-8")
            loaded = load(file)
    run = loaded.build()
    among = candidates_of(loaded)
    begun = time.process_time()
    found = decide_job(run, among, effort=effort)
    seconds = time.process_time() - begun
    job = replace(run.job, failures={}, patience=None)
    near = {row.label for row in found.rows if row.seconds <= _NEAR * found.best.seconds or whole}
    policies = {one.label: Fixed(one) for one in among if one.label in near}
    totals = {
        label: float(outcome.iterations["iteration_s"].sum())
        for label, outcome in run_in_step(job, policies, colocated=run.colocated)
        if not isinstance(outcome, SimnetError)
    }
    fastest = min(totals, key=totals.__getitem__)
    kind = loaded.config.network.topology.choice[0]
    best = found.best
    sampled = [row for row in found.rows if row.label in totals and not row.complete]
    off = [abs(row.seconds - totals[row.label]) for row in sampled]
    # Times are shown to a thousandth.
    within = sum(gap <= 2 * row.error + 1e-3 * row.seconds for gap, row in zip(off, sampled, strict=True))
    relative = [gap / totals[row.label] for gap, row in zip(off, sampled, strict=True)]
    return dict(
        zip(
            _COLUMNS,
            (
                name, kind, job.source.workers, job.iterations, len(totals), best.label, fastest,
                totals[best.label] / totals[fastest] - 1, any(map(found.tied, found.rows)), best.complete, seconds,
                len(sampled), within, float(np.median(relative)) if sampled else math.nan,
            ),
            strict=True,
        )
    )  # fmt: skip


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=300)
    parser.add_argument("--shipped", action="store_true", help="those that come with simnet, in place of random ones")
    parser.add_argument("--effort", type=float, default=EFFORT, help="seconds of simulation that a choice may take")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="where every scenario is kept, and from where it goes on")
    given = parser.parse_args()
    asked: dict[str, Mapping[str, Any] | None]
    if given.shipped:
        asked = dict.fromkeys(shipped())
    else:
        each = -(-given.scenarios // len(KINDS))
        asked = {f"{kind}-{number}": scenario(kind, number, given.seed) for number in range(each) for kind in KINDS}
    rows: list[dict[str, Any]] = []
    if given.csv and given.csv.exists():
        rows = pd.read_csv(given.csv).to_dict(orient="records")
    done = {row["name"] for row in rows}
    with ProcessPoolExecutor(given.processes) as pool:
        tasks = [
            pool.submit(lost, name, one, given.effort, number % 10 == 0)
            for number, (name, one) in enumerate(asked.items())
            if name not in done
        ]
        for task in as_completed(tasks):
            rows.append(task.result())
            if given.csv:
                pd.DataFrame(rows).to_csv(given.csv, index=False)
    found = pd.DataFrame([row for row in rows if row["name"] in asked])
    print(f"{len(found)} scenarios, seed {given.seed}")
    print("| network | scenarios | choice is the fastest | median | 95 % | worst | estimates off | within 2 errors |")
    print("|---|---|---|---|---|---|---|---|")
    groups = [*found.groupby("kind", sort=False), ("all", found)]
    for kind, part in groups:
        right, regret = (part["chosen"] == part["fastest"]).mean(), part["regret"]
        print(
            f"| {kind} | {len(part)} | {100 * right:.1f} % | {100 * regret.median():.2f} % | "
            f"{100 * regret.quantile(0.95):.2f} % | {100 * regret.max():.2f} % | "
            f"{100 * part['off'].median():.2f} % | {100 * part['within'].sum() / max(part['sampled'].sum(), 1):.1f} % |"
        )


if __name__ == "__main__":
    main()
