"""The columns of all tables and JSON: each has one definition, which the commands that write it keep."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from commands import NO_PAGE, did
from simnet.base.file_io import read_shipped_rows
from simnet.cluster.hooks import COLUMNS as LOGGED
from simnet.report.columns import COLUMNS

JOB = """
workers: 4
network: {topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}}
job: {iterations: 6, model: resnet18, batch: 8, scale: 2000, density: 1 %}
exchanges: {AG: {scheme: topk}, dense: {scheme: dense}}
policies: {AG: {fixed: AG}, dense: {fixed: dense}}
"""
POINT = ("--workers", 4, "--model", "resnet18", "--latency", "1ms", "--bandwidth", "1Gbit/s", "--density", "1%")

ROWS = r"(policies\.[^.]+|(ranking|rows|calls|goals)\[\])\.(shares\[\]\.|learning\.|spent\.|judgement\.|means\.)?"
"""What stands before the names of columns in JSON that has rows."""

OF_ANSWERS = ("schema", "answer", "evidence", "assumed", "to_accuracy", "depends_on", "next", "notes")
"""Sentences of every answer."""

SIZES = (2**10, 2**14, 2**18, 2**22)

NAMED = ("choices", "elasticities", "exchanges", "flexible", "held_out_sizes", "iterations_to_accuracy", "known",
         "made_for", "mixed", "options", "properties", "refused", "shares_of_iterations", "slow", "starts_not_sampled",
         "times_s", "versions")  # fmt: skip
"""Objects in JSON whose keys are no columns."""


def paths(found: Any, before: str = "") -> Iterator[str]:
    """Yield the paths of all values of JSON, with NAME for keys that are no columns."""
    last = before.rpartition(".")[2]
    if isinstance(found, dict) and last in ("stops[]", "switches[]", "platform", "local_stages"):
        yield f"{before}.NAME"
    elif isinstance(found, dict):
        named = (last in NAMED and not before.startswith("policies.")) or last in ("choices", "parameters")
        for key, one in found.items():
            yield from paths(one, f"{before}.{'NAME' if named else key}" if before else key)
    elif isinstance(found, list) and any(isinstance(one, (dict, list)) for one in found):
        for one in found:
            yield from paths(one, f"{before}[]")
    else:
        yield before


def columns_of_json(found: Any) -> set[str]:
    """Return the names of columns in JSON: of rows those in a row, of objects the path to a value."""
    found = {"rows": found} if isinstance(found, list) else found
    found = {name: one for name, one in found.items() if "schema" not in found or name not in OF_ANSWERS}
    each = (re.sub(f"^{ROWS}", "", one) for one in paths(found))
    return {re.sub(r"\[\]", "", re.sub(r"^(run|question(?=\.compute_time))\.", "", one)) for one in each}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of columns that commands write, by command and file."""
    return names_written(tmp_path_factory.mktemp("columns"))


def names_written(place: Path) -> dict[str, set[str]]:
    job = place / "job.yaml"
    job.write_text(JOB)
    trained = ("time_to_accuracy_wan", "--set", "job.iterations=4")
    seeds = ("--seeds", 2)
    ran = [
        ("run", job, *NO_PAGE),
        ("run", job, *NO_PAGE, *seeds),
        ("run", *trained, "--policies", "dense,AG-Topk", *NO_PAGE),
        ("run", *trained, "--policies", "dense,AG-Topk", *NO_PAGE, *seeds),
        ("run", "shared_fat_tree", "--set", "job.iterations=2", *NO_PAGE),
        ("run", "local_steps_wan", "--set", "job.iterations=2", *NO_PAGE),
        ("run", job, *NO_PAGE, "--set", "job.deaths=[{worker: 1, at: 0.3 s}]"),
        ("run", "compare", "--set", "job.iterations=2", "--schemes", "topk,dense", *NO_PAGE),
        ("run", job, "--grid", "density=0.01,0.1"),
        ("run", job, "--grid", "density=0.01", *seeds),
    ]
    found: dict[str, set[str]] = {}

    for number, words in enumerate(ran):
        did(*words, "--out", out := place / f"{words[0]}{number}", "-q")
        for path in sorted(out.rglob("*")):
            where = f"{words[0]}: {path.name}"
            if path.suffix == ".csv" and path.parent.name != "inputs":
                found.setdefault(where, set()).update(pd.read_csv(path, nrows=0).columns)
            if path.suffix == ".parquet":
                found.setdefault(where.replace(".parquet", ".csv"), set()).update(pq.read_schema(path).names)
            if path.suffix == ".json" and path.name != "timeline.json" and path.parent.name != "cells":
                found.setdefault(where, set()).update(columns_of_json(json.loads(path.read_text())))
    calls, logs = place / "calls.csv", place / "logs"
    calls.write_text(
        "collective,ranks,nodes,variant,nbytes,seconds\n"
        + "".join(
            f"all_reduce,{ranks},{ranks},{ranks},{size},{1e-4 * ranks + 1e-9 * size}\n"
            for ranks in (2, 4)
            for size in SIZES
        )
    )
    logs.mkdir()
    for rank in range(4):
        each = (f"{number},{(1 + rank // 3) * (0.1 + 0.001 * (number * (rank + 3) % 7))}\n" for number in range(30))
        (logs / f"rank_{rank}.csv").write_text("iteration,compute_s\n" + "".join(each))
    (place / "sent.csv").write_text("round,src,dst,nbytes_B\n0,0,1,1000\n")
    asked = {
        "calibrate": [
            ("calibrate", calls, "-o", place / "fabric.yaml"),
            ("calibrate", "dgx-h100", "-o", place / "platform.yaml"),
            ("calibrate", place / "logs"),
            ("calibrate", "digits", "--where", "scale=10"),
        ],
        "choose": [
            ("choose", *POINT),
            ("choose", "--model", "11689512"),
            ("choose", job),
            ("choose", "quickstart", "--set", "job.iterations=4"),
            ("choose", job, "--grid", "density=0.01,0.1"),
            ("choose", *POINT[:4], "--schemes", "topk,dense:algorithm=ring", "--set", "job.overlap=none", "--exact"),
        ],
        "time": [
            ("time", "allreduce_ring", "--workers", 4, "--size", "1MB"),
            ("time", "all_reduce", "--network", place / "fabric.yaml", "--workers", 4),
            ("time", place / "sent.csv"),
        ],
        "step": [
            ("step", job),
            ("step", "--model", "gpt2", "--sharding", "fsdp2", "--workers", 4, "--memory", "16 GB"),
            ("step", "--sharding", "ddp", "--network", "dgx-h100", "--calls"),
            ("step", "sharded_nodes"),
            ("step", "--strategy", "diloco", "--bandwidth", "1Gbit/s"),
            ("step", "--schemes", "dense", "--goal", "10%"),
        ],
        "show": [("show", "digits"), ("show", "topk", "resnet50")],
    }  # fmt: skip
    for command, each in asked.items():
        for words in each:
            found.setdefault(f"{command} --json", set()).update(
                columns_of_json(json.loads(did(*words, "--json").stdout))
            )
    ranges = ("--grid", "latency=1ms,2ms", "--grid", "bandwidth=1Gbit/s,2Gbit/s", "--set", "job.overlap=none")
    did("choose", *POINT[:4], *ranges, "--out", place / "map.csv", "-q")
    did("choose", *POINT[:4], "--density", "1%", *ranges, "--out", place / "policy.json", "-q")
    found["choose --out policy.json"] = columns_of_json(json.loads((place / "policy.json").read_text()))
    found["choose --out"] = set(pd.read_csv(place / "map.csv", nrows=0).columns)
    return found


EMPTY = {
    *("question.compute_time", "compute_time", "shares", "spread", "stops", "switches", "first_to_target.NAME"),
    *("best_of_each_iteration", "defaults", "overlap", "flips", "misjudged"),
}
"""Objects and lists of rows, which may be empty."""


def test_every_column_that_a_command_writes_is_defined_and_no_other(written: dict[str, set[str]]) -> None:
    found: dict[str, set[str]] = {"hooks": set(LOGGED)}
    of = {name: one.commands.split(", ") for name, one in COLUMNS.items()}
    for where, names in written.items():
        command = re.sub(r":.*| --(json|out)$", "", where)
        assert {name for name in names - EMPTY if command not in of.get(name, ())} == set(), where
        found.setdefault(command, set()).update(names)
    assert {command for each in of.values() for command in each} == set(found)
    for command, names in found.items():
        assert {name for name, each in of.items() if command in each} - EMPTY == names - EMPTY, command


def test_a_name_ends_in_its_unit_and_has_one_definition() -> None:
    assert len(read_shipped_rows("data/columns.csv")) == len(COLUMNS)
    ends = {"s": "_s", "B": "_B", "B/s": "_Bps"}
    for name, one in COLUMNS.items():
        assert one.meaning, name
        # As the fields of a prediction and of job.compute are called.
        if one.unit in ends and "." not in name and name not in ("seconds", "low", "high", "mean"):
            assert name.endswith(ends[one.unit]), name
