"""The run folder: what is written adds up, equal runs leave equal bytes, and nothing is ever half written."""

import csv
import errno
import hashlib
import html
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from commands import contents
from simnet.base.arrays import significant
from simnet.base.errors import InputError
from simnet.base.file_io import atomic_write, replace_files
from simnet.report import results
from simnet.report.answers import run_answer
from simnet.report.run_summary import RunFacts
from simnet.training.job.checkpoint import RowTable

PHASES = ("compute", "select", "communicate", "wait")
LOCK = "name: made up\nseed: 7\n"
FIGURES = {f"figures/{name}.{kind}" for name in ("iteration_time", "breakdown", "choices")
           for kind in ("png", "svg")}  # fmt: skip
TABLES = {"summary.json", "timeline.json", "scenario.lock.yaml", "iterations.csv",
          "iterations.parquet", "workers.parquet", "spans.parquet", "messages.parquet"}  # fmt: skip


def made_up_run(iterations=40, workers=4):
    """Four policies on a network that is the same function of time for all; AG is slow once bandwidth has fallen."""
    spans = ["policy", "iteration", "worker", "resource", "what", "start_s", "finish_s"]
    messages = ["policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"]
    made = {}
    both = ["AG", "ART-Ring"]
    among = {"AG": both[:1], "ART-Ring": both[1:], "flexible": both, "oracle": both}
    for number, (name, labels) in enumerate(among.items()):
        rng = np.random.default_rng([number, iterations, workers])
        now, rows, split, drawn, sent = 0.0, [], [], [], []
        for iteration in range(iterations):
            bandwidth = 5e8 if now < 5 else 6e7
            cost = {"AG": 4e7 / bandwidth, "ART-Ring": 0.15 + 1e7 / bandwidth}
            late = name == "flexible" and 5 <= now < 5.8
            choice = "AG" if late else min(labels, key=cost.get)
            own = np.column_stack(
                [rng.uniform(0.1, 0.12, workers), np.full(workers, 0.01), np.full(workers, cost[choice])]
            )
            duration = own.sum(axis=1).max()
            own = np.column_stack([own, duration - own.sum(axis=1)])
            rows.append(
                [name, iteration, now, duration, *own.mean(axis=0), 1e7 * workers, choice, 0.01, 1e5, 0.01, bandwidth]
            )
            split += [[name, iteration, worker, *own[worker], 1e7 / 3, 1e7 / 3] for worker in range(workers)]
            for worker in range(workers if iteration < 2 else 0):
                at = now
                for what, length in zip(PHASES, own[worker], strict=True):
                    resource = "network" if what == "communicate" else "compute"
                    drawn.append([name, iteration, worker, resource, what, at, at + length])
                    at += length
                sent.append(
                    [name, iteration, 0, choice, worker, (worker + 1) % workers, 1e7, now + 0.13, now + duration]
                )
            now += duration
        phases = [f"{phase}_s" for phase in PHASES]
        columns = ["policy", "iteration", "start_s", "iteration_s", *phases, "bytes_sent_B",
                   "choice", "density", "selected", "latency_s", "bandwidth_Bps"]  # fmt: skip
        own = ["policy", "iteration", "worker", *phases, "bytes_sent_B", "bytes_received_B"]
        made[name] = SimpleNamespace(
            iterations=pd.DataFrame(rows, columns=columns),
            workers=pd.DataFrame(split, columns=own),
            spans=pd.DataFrame(drawn, columns=spans),
            messages=pd.DataFrame(sent, columns=messages),
            interruptions=(),
            job_shares=(),
        )
        made[name].worker_rows = RowTable(policy=name)
        made[name].worker_rows.append({column: made[name].workers[column].to_numpy() for column in own[1:]})
    return made


def write(folder, made=None, **options):
    kept = {name: options.pop(name) for name in ("links", "bandwidths", "report", "setting") if name in options}
    setup = {"scenario": {"name": "made up"}, "seed": 7, **options.pop("setup", {})}
    facts = RunFacts(setup=setup, **options)
    return results.write_run(folder, made or made_up_run(), facts, LOCK, **kept)


def replaced(folder, **options):
    with replace_files(folder, results.RUN) as stage:
        write(stage, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    made = made_up_run()
    write(folder, made)
    return folder, made


def test_the_folder_holds_every_file_and_no_leftovers(run):
    assert set(contents(run[0])) == TABLES | FIGURES | {"report.html"}


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_the_page_has_the_table_of_the_summary_whatever_order_the_file_keeps(tmp_path, names):
    made = made_up_run()
    for one in made.values():
        one.iterations["choice"] = one.iterations["choice"].map(dict(zip(("AG", "ART-Ring"), names, strict=True)))
    summary = write(tmp_path, made)
    page = (tmp_path / "report.html").read_text()
    told = re.findall(r'<th scope="row" data-key.*', page)
    cells = [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row)] for row in told]
    rows = run_answer(summary).rows
    assert [(row[0], row[2]) for row in cells] == [(row["policy"], row["to_best"]) for row in rows]
    keys = {row[0]: re.findall(r'data-key="([^"]*)"', text) for row, text in zip(cells, told, strict=True)}
    assert {name: float(own[1]) for name, own in keys.items()} == {row["policy"]: row["simulated_s"] for row in rows}


def test_without_a_report_there_are_no_figures_and_matplotlib_is_not_needed(tmp_path):
    write(tmp_path, report=False)
    assert set(contents(tmp_path)) == TABLES


def test_csv_and_parquet_and_the_frames_agree(run):
    folder, made = run
    expected = pd.concat([one.iterations for one in made.values()], ignore_index=True)
    with (folder / "iterations.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    parquet = pd.read_parquet(folder / "iterations.parquet")
    assert list(rows[0]) == list(parquet) == list(expected)
    for column in expected:
        values = parquet[column].tolist()
        assert [type(value)(row[column]) for row, value in zip(rows, values, strict=True)] == values
        if expected[column].dtype == float:
            np.testing.assert_allclose(values, expected[column], rtol=5e-9)
        else:
            assert values == expected[column].tolist()
        assert not column.endswith("_B") or parquet[column].dtype == np.int64
    workers = pd.read_parquet(folder / "workers.parquet")
    pd.testing.assert_frame_equal(workers, pd.concat([one.workers for one in made.values()], ignore_index=True))


def test_csv_has_unix_line_ends_and_at_most_twelve_digits(run):
    text = (run[0] / "iterations.csv").read_bytes().decode()
    assert "\r" not in text
    assert text.endswith("\n")
    for row in text.splitlines()[1:]:
        for cell in re.findall(r"(?<=,)[0-9.]+e?[-+0-9]*(?=,|$)", row):
            assert len(re.sub(r"e.*|\.", "", cell).strip("0")) <= 12


def test_summary_agrees_with_sums_over_the_frames(run):
    folder, made = run
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["policies"]) == sorted(made)
    bound = math.fsum(made["oracle"].iterations["iteration_s"])
    for name, result in made.items():
        one, frame = summary["policies"][name], result.iterations
        total = math.fsum(frame["iteration_s"])
        assert one["simulated_s"] == pytest.approx(total, rel=1e-8)
        assert one["total_bytes_sent_B"] == 40 * 4 * 10**7
        assert math.fsum(one["breakdown_s"].values()) == pytest.approx(one["simulated_s"], rel=1e-8)
        for phase in PHASES:
            per_worker = result.workers.groupby("worker")[f"{phase}_s"].sum().mean()
            assert one["breakdown_s"][phase] == pytest.approx(per_worker, rel=1e-8)
        assert one["regret"]["seconds"] == pytest.approx(total - bound, rel=1e-7, abs=1e-7)
        assert one["regret"]["fraction"] == pytest.approx(total / bound - 1, rel=1e-7, abs=1e-7)
        assert sum(one["choices"].values()) == one["iterations"] == 40
    assert summary["policies"]["oracle"]["regret"] == {"fraction": 0.0, "seconds": 0.0}
    assert summary["winner"]["policy"] == "flexible"
    assert summary["policies"]["flexible"]["switch_count"] == 1
    assert summary["scenario"] == {"name": "made up", "sha256": hashlib.sha256(LOCK.encode()).hexdigest()}
    assert (folder / "scenario.lock.yaml").read_text() == LOCK
    assert set(summary["versions"]) == {"simnet", "numpy", "simpy"}


def test_a_second_run_leaves_the_same_bytes_in_any_folder(run, tmp_path):
    first = contents(run[0])
    write(tmp_path / "a")
    assert contents(tmp_path / "a") == first
    replaced(tmp_path / "a", report=False)
    drawn = {name for name in first if name == "report.html" or name.startswith("figures/")}
    assert contents(tmp_path / "a") == {name: content for name, content in first.items() if name not in drawn}
    replaced(tmp_path / "a")
    assert contents(tmp_path / "a") == first
    for name, content in first.items():
        assert str(run[0]).encode() not in content, name
        assert not re.search(rb"20\d\d-\d\d-\d\d", content), name


def test_hash_seed_changes_no_byte(run, tmp_path):
    script = "import runpy, sys; runpy.run_path(sys.argv[1])['write'](sys.argv[2])"
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, __file__, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)},
        )
        for seed in ("0", "1")
    ]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert contents(tmp_path / "0") == contents(tmp_path / "1") == contents(run[0])


def test_last_bits_do_not_show(tmp_path):
    def nudge(frame):
        return frame.apply(lambda column: np.nextafter(column, np.inf) if column.dtype == float else column)

    made = made_up_run()
    nudged = {name: SimpleNamespace(**{**vars(one), "iterations": nudge(one.iterations)}) for name, one in made.items()}
    write(tmp_path / "a", made, report=False)
    write(tmp_path / "b", nudged, report=False)
    for name in ("summary.json", "iterations.csv", "iterations.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_parquet_says_nothing_about_who_wrote_it_but_the_format_library(run):
    assert pq.read_schema(run[0] / "iterations.parquet").metadata is None


@given(st.floats(min_value=1e-12, max_value=1e15), st.sampled_from([1.0, -1.0]))
def test_significant_rounds_to_twelve_digits(size, sign):
    rounded = float(significant(sign * size))
    assert rounded == float(f"{rounded:.12g}")
    assert abs(rounded - sign * size) <= 5.001e-12 * size
    assert float(significant(rounded)) == rounded


def test_significant_leaves_what_is_no_number():
    assert significant([0.0, math.inf, -math.inf]).tolist() == [0.0, math.inf, -math.inf]
    assert math.isnan(significant(math.nan))


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def fail():
        with atomic_write(path) as stream:
            stream.write(b"new, but not all of it")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_a_full_disk_is_an_input_error_and_leaves_the_old_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)

    def fail():
        with atomic_write(path) as stream:
            stream.write(b"new")

    with pytest.raises(InputError, match=r"a\.txt: cannot be written: No space left on device"):
        fail()
    assert contents(tmp_path) == {"a.txt": b"old"}


@needs.posix
def test_a_kill_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    script = (
        "import os, signal, sys; from simnet.base.file_io import atomic_write\n"
        "with atomic_write(sys.argv[1]) as stream:\n"
        "    stream.write(b'x' * 10**6); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_a_failure_to_draw_leaves_the_old_run(tmp_path, monkeypatch):
    write(tmp_path, report=False)
    before = contents(tmp_path)

    def fail(*arguments):
        raise RuntimeError("cannot draw")

    monkeypatch.setattr("simnet.report.figures.render", fail)
    with pytest.raises(RuntimeError, match="cannot draw"):
        write(tmp_path, made_up_run(iterations=3))
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"file.*: cannot be written: (Not a directory|File exists); .* --out$"):
            results.prepare_folder(folder)
        with pytest.raises(InputError, match="--out"):
            write(folder)


def test_prepare_folder_makes_it_and_leaves_nothing_in_it(tmp_path):
    folder = results.prepare_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert contents(folder) == {}
