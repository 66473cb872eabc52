"""The library: its functions say what the commands say, print nothing, and their objects show themselves."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pandas as pd
import pytest

import simnet
from commands import contents, did
from simnet.base.errors import InputError, SimnetError
from simnet.base.progress import report_progress
from simnet.collectives import allreduce_ring
from simnet.report.summary import Summary
from simnet.schedule import Schedule

SHORT = {"job.iterations": 4}
SHORT_TEXTS = ["job.iterations=4"]
LINKS = {"latency": "1 ms", "bandwidth": "1 Gbit/s"}


@pytest.fixture(scope="module")
def results():
    """One of each."""
    return {
        "choose": simnet.choose(**LINKS),
        "job": simnet.choose("quickstart", set=SHORT),
    }


class Tags(HTMLParser):
    """What is open, and which tags there are."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def ran():
    """Answers of runs."""
    return {
        "run": simnet.run("quickstart", set=SHORT),
        "schemes": simnet.run("quickstart", schemes="topk,spardl", set=SHORT),
        "seeds": simnet.run("quickstart", set=SHORT, seeds=2, policies="AG,ART-ring"),
        "grid": simnet.run("quickstart", grid={"density": [0.01, 0.1]}, set=SHORT),
    }


def test_every_answer_has_a_table_a_figure_a_short_repr_and_a_page(ran, results):
    for name, found in (ran | results).items():
        assert isinstance(found, Summary), name
        assert found.best, name
        assert len(found.to_pandas()) == len(found.rows) > 1, name
        plot = found.plot()
        assert plot._repr_png_() == plot.png, name
        assert plot.png.startswith(b"\x89PNG"), name
        assert max(len(repr(found)), len(repr(plot))) < 120, name
        assert not re.search("\n| at 0x", repr(found)), name
        assert str(found).startswith(found.answer[:30]), name
        assert json.loads(found.to_json())["answer"] == found.answer, name
        page = Tags()
        page.feed(found._repr_html_())
        assert not page.open, name
        assert page.seen.count("tr") == 1 + len(found.rows), name


def test_tables_are_copies_that_a_notebook_may_alter(results):
    for name, result in results.items():
        before = result.to_pandas()
        mine = result.to_pandas()
        mine[mine.columns[0]] = 0
        pd.testing.assert_frame_equal(result.to_pandas(), before, obj=name)


def test_names_cannot_become_markup():
    exchange = '{"<script>[red]": {"scheme": "topk"}}'
    fields = {**SHORT, "exchanges": json.loads(exchange), "policies": {"<i>": {"fixed": "<script>[red]"}}}
    found = simnet.run("quickstart", set=fields)
    assert "&lt;i&gt;" in found._repr_html_()
    assert "<i>" not in found._repr_html_()


def test_run_writes_what_the_command_writes_to_the_byte(tmp_path, ran):
    said = did("run", "quickstart", "--set", "job.iterations=4", "--out", tmp_path / "a", "-q", "--json").stdout
    kept = simnet.run("quickstart", set=SHORT, out=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert json.loads(said) == json.loads(kept.to_json()) == json.loads(ran["run"].to_json())
    iterations = pd.read_parquet(tmp_path / "b" / "iterations.parquet")
    pd.testing.assert_frame_equal(ran["run"].iterations, iterations, check_dtype=False)
    assert len(ran["run"].workers) == 4 * len(iterations)


def test_run_is_the_same_in_processes(ran):
    apart = simnet.run("quickstart", set=SHORT, jobs=2)
    pd.testing.assert_frame_equal(apart.iterations, ran["run"].iterations)
    assert apart.to_json() == ran["run"].to_json()


def test_run_heeds_its_arguments(ran):
    only = simnet.run("quickstart", set=["job.iterations=4"], policies="AG")
    assert list(only.results) == ["AG"]
    pd.testing.assert_frame_equal(only.results["AG"].iterations, ran["run"].results["AG"].iterations)
    assert simnet.run("quickstart", set=SHORT, policies=["AG"], seed=5).details["seed"] == 5
    slower = simnet.run("quickstart", set=SHORT, policies=["AG"], stack="tcp")
    assert slower.rows[0]["simulated_s"] > only.rows[0]["simulated_s"]
    with pytest.raises(InputError, match="did you mean 'breakdown'"):
        only.plot("breakdwn")


def test_a_grid_has_the_rows_of_the_command(tmp_path, ran):
    did("run", "quickstart", "--grid", "density=0.01,0.1", "--set", "job.iterations=4", "--out", tmp_path / "a", "-q")
    text = (tmp_path / "a" / "sweep.csv").read_text()
    assert ran["grid"].cells.to_csv(index=False, lineterminator="\n") == text
    assert ran["grid"].plot().png == (tmp_path / "a" / "figures" / "sweep.png").read_bytes()
    kept = simnet.run("quickstart", grid=["density=0.01,0.1"], set=SHORT, out=tmp_path / "b")
    assert (tmp_path / "b" / "sweep.csv").read_text() == text
    pd.testing.assert_frame_equal(kept.cells, ran["grid"].cells)


def test_time_says_what_the_command_says(tmp_path):
    found = simnet.time("allreduce_ring", workers=4, size="4 MB", **LINKS)
    given = ("allreduce_ring", "--workers", 4, "--size", "4 MB", "--latency", "1 ms", "--bandwidth", "1 Gbit/s")
    assert json.loads(found.to_json()) == json.loads(did("time", *given, "--json").stdout)
    schedule = allreduce_ring(4, 4e6)
    (row,), (again,) = found.rows, simnet.time(schedule, **LINKS).rows
    assert again["time_s"] == row["time_s"]
    schedule.to_goal(tmp_path / "ring.goal")
    assert simnet.time(tmp_path / "ring.goal", **LINKS).rows[0]["time_s"] == pytest.approx(row["time_s"])
    found.save(tmp_path / "messages.csv")
    assert pd.read_csv(tmp_path / "messages.csv")["finish_s"].max() == row["finish_s"]
    found.save(tmp_path / "ranks.svg")
    assert (tmp_path / "ranks.svg").read_text().startswith("<?xml")
    several = simnet.time("all_reduce", network="dgx-h100", workers=16, size=["1MB", 25e6])
    given = ("all_reduce", "--network", "dgx-h100", "--workers", 16, "--size", "1,25MB")
    assert json.loads(several.to_json()) == json.loads(did("time", *given, "--json").stdout)
    several.save(tmp_path / "rows.csv")
    assert list(pd.read_csv(tmp_path / "rows.csv")["time_s"]) == [one["time_s"] for one in several.rows]


def test_nothing_is_printed_or_written(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shares = []
    with report_progress(lambda share, done="": shares.append(share)):
        simnet.run("quickstart", set=SHORT)
    simnet.run("quickstart", schemes="topk", set=SHORT)
    simnet.run("quickstart", grid={"density": [0.01]}, set=SHORT)
    simnet.choose("quickstart", set=SHORT)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert shares.count(1.0) >= 1
    assert 0 < min(shares) <= max(shares) <= 1


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: simnet.run("nosuch"), "no scenario of that name"),
        (lambda: simnet.run("quickstart", set={"job.iteration": 2}), "iterations"),
        (lambda: simnet.run("quickstart", set={"job.iterations": object()}), r"run\(set=...\): cannot be a value"),
        (lambda: simnet.run("quickstart", set="job.iterations=2"), r"run\(set=...\): must be a mapping"),
        (lambda: simnet.run("quickstart", stack="tpc"), r"run\(stack=...\): .*tcp"),
        (lambda: simnet.choose(latency="5 apples"), r"choose\(latency=...\): "),
        (lambda: simnet.choose(latency=-1.0), r"choose\(latency=...\): "),
        (lambda: simnet.choose(schemes="topkk"), r"choose\(schemes=...\): "),
        (lambda: simnet.time("all_reduce", network="dgx-h100", workers=0), r"time\(workers=...\): "),
        (lambda: simnet.time("all_reduce", size="3"), r"time\(size=...\): "),
        (lambda: simnet.time(Schedule(2, []), size=3), r"time\(size=...\): is for a collective"),
        (lambda: simnet.run("quickstart", grid={"density": ["0,1"]}), r"run\(grid=...\): cannot hold a comma"),
        (lambda: simnet.run("quickstart", grid={"workers": [4, 0]}), r"run\(grid=...\): workers: must be >= 1, got 0"),
        (lambda: simnet.run(simnet.load("fluctuating_wan").replace(workers=16)),
         "^scenario: workers: must be at most 8, .* raise network.topology.wan.workers_per_site to 4$"),
        (lambda: simnet.load("quickstart").replace(**{"job.iterations": 2}), r"run\(..., set=.* takes fields in full"),
        (lambda: simnet.run("quickstart", seeds=0), r"run\(seeds=...\): must be from 1 to 1,000, got 0"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(ask, said):
    with pytest.raises(SimnetError, match=said):
        ask()


def test_a_program_without_a_guard_may_run(tmp_path):
    """A function of the library starts no process: a script is not imported anew, and needs no ``__main__``."""
    script = tmp_path / "script.py"
    script.write_text(
        "import simnet\nprint('begun')\n"
        "simnet.run('quickstart', grid={'density': [0.01]}, set={'job.iterations': 2}, policies='AG')\n"
        "simnet.run('quickstart', set={'job.iterations': 2})\n"
    )
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "begun\n", "")


def test_a_scenario_that_was_read_is_a_request_too(tmp_path):
    read = simnet.load("quickstart", SHORT_TEXTS, density="2%").replace(bandwidth="2 Gbit/s")
    given = {"set": SHORT, "density": "2%", "bandwidth": "2 Gbit/s"}
    for verb, more in ((simnet.run, {"policies": "AG"}), (simnet.choose, {}), (simnet.step, {})):
        found, expected = verb(read, **more), verb("quickstart", **given, **more)
        assert found.rows == expected.rows, verb.__name__
        assert found.answer == expected.answer, verb.__name__
