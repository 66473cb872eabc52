"""What commands say, frozen: the values of each request below, by field, in ``golden/outputs/``.

    python tests/outputs.py check             # what differs, as "field: old -> new"
    python tests/outputs.py renew run-incast  # freeze anew what this request says, or, without a name, what all say

Numbers have nine digits and agree to `tolerance`. Sentences and digests of files are left out. Rows of a table, and
policies, are one list per column; a column of ``iterations.csv`` is its sum. A field that has another name and the old
values is told as renamed.
"""

import json
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from commands import invoke
from exchanges import all_exchanged
from simnet.policies import Candidate
from simnet.scenario import load
from simnet.studies.choosing.whole_job import candidates_of, decide_job
from timings import all_timed

FOLDER = Path(__file__).with_name("golden") / "outputs"
SCENARIOS = Path(__file__).parents[1] / "simnet" / "scenarios"
LINKS = "--latency '10 us' --bandwidth '10 Gbit/s'"
STAR = f"--topology star {LINKS}"
BARE = (
    "choose --set job.parameters=20000 --set job.model=null --set job.iterations=4 --set job.scale=1"
    " --set job.overlap=none --compute 1ms --jobs 1"
)
CHOICE = f"{BARE} --schemes topk,dense:algorithm=ring,artopk:collective=ring"
BUCKETS = "choose --set job.scale=1000 --set job.iterations=2 --bandwidth 25Gbit/s --schemes topk,dense:algorithm=ring"
OTHER = (
    "'other_jobs={other: {workers: 4, placement: [8, 9, 10, 11], exchange: {scheme: dense},"
    " job: {parameters: 20000, iterations: 3, density: 1, compute: {mean: 1 ms}}}}'"
)
WEATHER = "'network.weather=[{links: all, bandwidth: {steps: {at: [0 s, 8 ms], factors: [100 %, 10 %]}}}]'"
TRAINED = (
    "'job={{gradients: {{train: {{data: digits, target: {}}}}}, iterations: {}, density: 1%, compute: {{mean: 10 ms}},"
    " strategy: {{name: diloco, period: 5, inner: {{sgd: {{lr: 0.1}}}}}}}}'"
)
REQUESTS = {
    **{
        f"run-{path.stem}": f"run '{path}' --set job.iterations=2 --set output.report=false --jobs 1 --out run"
        for path in sorted(SCENARIOS.rglob("*.yaml"))
    },
    "compare-all": "run quickstart --schemes all --set job.model=null --set job.parameters=50000 --compute '15 ms'"
    " --set job.iterations=3 --jobs 1 --out compare",
    "choose-base": "choose",
    "choose-quickstart": "choose quickstart --set job.iterations=5",
    "choose-wan": "choose fluctuating_wan --set job.iterations=5",
    "choose-sample": "choose fluctuating_wan --set job.iterations=150 --set job.scale=20000",
    "choose-followed": "choose quickstart --schemes gaussiank,topk,artopk,dense --set job.iterations=120",
    "choose-exact": f"{CHOICE} --exact --memory 1MB --density 5% --latency 10us --link-uncertainty 30",
    "choose-undecided": "choose quickstart --exact --schemes topk,artopk:collective=ring,artopk:collective=tree",
    "choose-unsettled": "choose quickstart --schemes hardthreshold,topk",
    "choose-grid": f"{CHOICE} --grid density=1%,30% --grid device=v100,a100-torch2.6",
    "choose-steady": f"{BARE} --schemes topk --link-uncertainty 2",
    "choose-lone": f"{BARE} --schemes topk --grid workers=2,3",
    "choose-together": f"{CHOICE} --grid 'latency=1us,1ms; bandwidth=1,10Gbit/s'",
    "choose-cells": f"{CHOICE} --grid device_memory=300kB,350kB,1MB",
    "choose-map": f"{BARE} --grid latency=1us:10ms:9:log --grid density=0.1%:50%:9:log",
    "choose-densities": f"{CHOICE} --grid latency=1us,1ms --grid bandwidth=1,10Gbit/s --grid density=1%,10%",
    "choose-simulated-map": f"{CHOICE},randomk --grid latency=1us:10ms:9:log --grid bandwidth=10Mbit/s,100Gbit/s",
    "choose-wrong-map": f"{BARE} --workers 12 --schemes topk,artopk:collective=tree --density 5%"
    " --grid latency=1ms:5ms:3:log --grid bandwidth=10Mbit/s:1Gbit/s:5:log",
    "choose-buckets": f"{BUCKETS} --device v100-torch2.6 --latency 100us --set job.batch=32 --set job.update=1ms",
    "choose-unconfirmed": f"{BUCKETS},artopk:collective=ring --model resnet18 --latency 10us --link-uncertainty 2",
    "choose-nodes": f"{BARE} --network two_level_nodes --workers 16",
    "choose-usual": f"{BARE} --latency 300us --memory 412800B",
    "choose-alike": f"{BARE} --set 'exchanges={{a: {{scheme: topk}}, b: {{scheme: topk}}, c: {{scheme: topk}}}}'",
    "choose-dense": f"{BARE} --schemes topk,dense:algorithm=ring --latency 1us --bandwidth 100Gbit/s",
    "choose-free": "choose quickstart --workers 1 --compute 0s --device ideal --set job.iterations=3",
    "choose-ramp": f"{CHOICE} --set 'job.density=[{{iterations: 3, from: 10 %, to: 1 %}}, {{at: 0.1 %}}]'",
    "choose-weather": f"{CHOICE} --set {WEATHER}",
    "choose-beside": f"{CHOICE} --network fat_tree:k=4 --set {OTHER}",
    "choose-rarer": f"{CHOICE} --strategy diloco --grid strategy.period=3,50",
    **{f"choose-rarer-{period}": f"{BARE} --schemes topk --strategy diloco:period={period}" for period in (1, 2)},
    "choose-rarer-wan": f"{CHOICE} fluctuating_wan --strategy diloco:period=3",
    "choose-sharding": "choose --sharding fsdp2",
    "choose-parallel": "choose --sharding fsdp2:tensor_parallel=2,tokens=1024 --model gpt2",
    "choose-target": f"choose local_steps_wan --set {TRAINED.format(0.6, 40)} --schemes topk,dense",
    "choose-missed": f"choose local_steps_wan --set {TRAINED.format(0.99, 5)} --schemes topk",
    "time-dgx": "time all_reduce --network dgx-h100 --workers 16 --size 25MB",
    "predict-job-quickstart": "step quickstart --set job.iterations=3",
    "predict-job-100g": "step resnet50_100g --set job.iterations=3",
    **{
        f"time-{stack}": f"time {collective} --workers 8 --size '1 MB' {network} --stack {stack}"
        for stack, collective, network in (
            ("ideal", "allreduce_ring", LINKS),
            ("tcp", "allgather_bruck", "--network fluctuating_wan --seed 2026"),
            ("gloo", "allreduce_ring", LINKS),
            ("openmpi", "allreduce_rabenseifner", LINKS),
            ("mpich", "allgather_recursive_doubling", LINKS),
            ("nccl", "allreduce_tree", LINKS),
        )
    },
    "step-fsdp2": "step --model gpt2 --sharding fsdp2 --workers 8 --latency '10 us' --bandwidth '10 Gbit/s'",
    "utilisation": "step --strategy diloco:period=100,bits=16 --set job.parameters=1000000000 --set job.model=null"
    " --workers 2 --compute '0.1 s' --latency '0 s' --bandwidth '10 Gbit/s'",
    "sweep": "run quickstart --grid bandwidth=1,10Gbit/s --set job.iterations=2 --jobs 1 --out sweep",
    "reproduce": "reproduce",
    "list-schemes": "list schemes",
    "choose-races": "",
    "exchanges": "",
    "timings": "",
}
"""What is asked, by the name of the file of its values; without a command it is one of `COMPUTED`."""


def races() -> dict[str, Any]:
    """Return how many iterations of each exchange are simulated for how much effort, and what they say."""
    found = {}
    for name, effort in (("fluctuating_wan", 0.54), ("quickstart", 0.2), ("quickstart", 0.8), ("quickstart", 1.1)):
        loaded = load(name, ["job.iterations=150", "job.scale=20000", "exchanges.G={scheme: gaussiank}"])
        more = [Candidate("teams", "spardl", {"teams": 3}), Candidate("H", "hardthreshold", {"threshold": 0.5})]
        among = [*candidates_of(loaded), *more]
        won = decide_job(loaded.build(), among, effort=effort)
        gains = [{"simulated": one.policy.simulated, "saved": one.saved} for one in won.flexible]
        rows = [
            {"label": one.label, "simulated": one.simulated, "job_s": one.seconds} for one in (*won.rows, *won.aside)
        ]
        found |= _fields({"rows": rows, "flexible": gains, "refused": [*won.refused]}, f"{name}, effort {effort}")
    return found


COMPUTED = {"choose-races": races, "exchanges": all_exchanged, "timings": all_timed}
"""How choices spend their effort, what every scheme exchanges, and what networks say of random jobs."""
SENTENCES = ("schema", "answer", "assumed", "depends_on", "next", "notes")
"""What every answer says beside its values."""
KEPT = {
    # The rest stands in tables of the source.
    "reproduce": ["reproductions.name"]
    + [f"reproductions.values.{one}" for one in ("ours", "ours_low", "ours_high", "passes")],
    # With the defaults of all options.
    "list-schemes": ["rows.scheme", "rows.options"],
}
"""Fields that are frozen, where not all are."""


def said(name: str) -> dict[str, Any]:
    """Return the values that a request gives now, by field; grids end with 1 where a cell has no result."""
    if name in COMPUTED:
        return COMPUTED[name]()
    with TemporaryDirectory() as folder, chdir(folder):
        choice = ("--out", "said.txt") if name.startswith("choose-") else ()
        found = json.loads(invoke(*shlex.split(REQUESTS[name]), *choice, "--json").stdout)
        if REQUESTS[name].startswith("run "):
            # What these have is said by policy, or by cell and policy, as well.
            del found["rows"], found["notes"]
        if name == "list-schemes":
            found["rows"] = [row | {"options": row["options"].split(", ")} for row in found["rows"]]
        fields = _fields(found)
        if choice:
            fields |= {one: found[one] for one in ("answer", "assumed", "depends_on", "evidence", "next", "notes")}
            fields["table"] = Path("said.txt").read_text().split("\n\n")[1].splitlines()[1:5]
            fields = {field: value for field, value in fields.items() if not field.startswith("rows.options.")}
        if name.startswith("run-"):
            rows = pd.read_csv("run/iterations.csv")
            fields |= {f"iterations.csv {column}": _rounded(_total(rows[column])) for column in rows}
    # The request `exchanges` has the last ones of every scheme.
    own, elsewhere = KEPT.get(name, fields), ("s.threshold", "v threshold", "blocks_moved")
    return {field: value for field, value in fields.items() if field in own and not field.endswith(elsewhere)}


def frozen(name: str) -> dict[str, Any]:
    """Return the values that a request had, by field; none where it is new."""
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def changes(name: str, found: dict[str, Any]) -> str:
    """Return how fields of a request differ from what they were, for an assertion; empty if they do not."""
    before = frozen(name)
    lines = [*differences({field: before.get(field) for field in found}, found)]
    return "\n".join([*lines, f"right? make guard-renew REQUESTS={name}"] if lines else [])


def renew(name: str) -> None:
    """Freeze what a request says now."""
    lines = (f"{json.dumps(field)}:{json.dumps(value, separators=(',', ':'))}" for field, value in said(name).items())
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def tolerance(name: str) -> float:
    """Return by which share numbers of a request may differ: matrix products, of training, differ between CPUs."""
    return 1e-6 if "accuracy" in name or name in ("choose-target", "choose-missed") else 1e-8


def differences(before: dict[str, Any], after: dict[str, Any], near: float = 1e-8) -> Iterator[str]:
    """Yield a line for each field that is renamed, gone, new, or has another value, by more than a share `near`."""
    added = [field for field in after if field not in before]
    for field, old in before.items():
        if field in after:
            yield from _changes(field, old, after[field], near)
        elif same := [one for one in added if after[one] in (old, [old])]:
            yield f"renamed: {field} -> {min(same, key=lambda one: _unlike(field, one))}"
            added.remove(min(same, key=lambda one: _unlike(field, one)))
        else:
            yield f"{field}: {old} -> gone"
    yield from (f"{field}: new -> {after[field]}" for field in added)


def _unlike(one: str, other: str) -> int:
    return len(set(one.split(".")) ^ set(other.split(".")))


def _changes(field: str, old: Any, new: Any, near: float) -> Iterator[str]:
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{field}: {len(old)} -> {len(new)} values: {_without(old, new)} -> {_without(new, old)}"
            return
        for position, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{field}[{position}]", one, other, near)
    elif not (old == new or (type(old) is type(new) is float and math.isclose(old, new, rel_tol=near))):
        yield f"{field}: {old} -> {new}"


def _without(values: list[Any], others: list[Any]) -> list[Any]:
    return [one for one in values if one not in others]


def _fields(value: Any, at: str = "") -> dict[str, Any]:
    if at == "policies":
        value = [{"name": name, **policy} for name, policy in sorted(value.items())]
    if isinstance(value, dict):
        inner = [_fields(one, f"{at}.{key}".strip(".")) for key, one in value.items()]
        return {field: one for fields in inner for field, one in fields.items()}
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        rows = [_fields(one) for one in value]
        names = dict.fromkeys(name for row in rows for name in row)
        return {f"{at}.{name}".strip("."): [row.get(name) for row in rows] for name in names}
    left_out = at.endswith("sha256") or at in SENTENCES or (isinstance(value, str) and value.count(" ") > 3)
    return {} if left_out else {at: _rounded(value)}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _total(column: "pd.Series[Any]") -> Any:
    return float(column.sum()) if pd.api.types.is_numeric_dtype(column) else " ".join(map(str, column.unique()))


if __name__ == "__main__":
    failed = False
    for request in sys.argv[2:] or REQUESTS:
        if sys.argv[1] == "renew":
            renew(request)
        now = differences(frozen(request), said(request), tolerance(request)) if sys.argv[1] == "check" else ()
        for line in now:
            failed = True
            print(f"{request}: {line}", flush=True)
    sys.exit(failed)
