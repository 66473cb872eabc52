"""`simnet convert`, `simnet time`, and topologies from files in scenarios, as a user types them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commands
from schedules import write_nodelink
from simnet import topologies
from simnet.collectives import allreduce_ring, registry
from simnet.interchange.chakra import read_chakra
from simnet.interchange.goal import read_goal
from simnet.interchange.kinds import kind_of
from simnet.interchange.messages_csv import read_messages, write_messages
from simnet.interchange.simgrid import read_platform
from simnet.interchange.simgrid_writing import write_platform
from simnet.network import Network
from simnet.network.weather import Weather, steps
from simnet.scenario import load
from simnet.schedule import Round, Schedule
from simnet.topologies.graphs import label

SCENARIO = """\
name: small
workers: 4
network:
  topology: {TOPOLOGY}
  weather: [{links: all, bandwidth: {steps: {at: [0 s, 30 ms], factors: [1, 0.25]}}}]
  jitter: {exponential: {mean: 100 us}}
job:
  parameters: 4000
  iterations: 6
  density: 0.02
  compute: {mean: 10 ms, spread: 0.1}
exchanges:
  AG: {scheme: topk}
  ring: {scheme: artopk, collective: ring}
policies:
  AG: {fixed: AG}
output: {report: false}
"""
STAR = "star: {latency: 1 ms, bandwidth: 1 Gbit/s}"


def timed_ring(workers: int, size: str) -> tuple[object, ...]:
    return "allreduce_ring", "--workers", workers, "--size", size


TIMED = timed_ring(5, "1 MB")
ON_STAR = ("--latency", "10 us", "--bandwidth", "10 Gbit/s")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("TOPOLOGY", STAR))
    return path


def did(*arguments: object) -> str:
    result = commands.did(*arguments)
    assert result.stderr == ""
    return result.stdout


def refused(*arguments: object) -> str:
    """Return the message of a command that was refused, and left nothing behind."""
    before = sorted(Path().rglob("*"))
    said = commands.refused(*arguments)
    assert sorted(Path().rglob("*")) == before
    return said


figures = commands.timed


def to(kind: str, target: str, source: str = "allreduce_ring", *more: object) -> tuple[object, ...]:
    """Return the words that write a collective of five workers, or of as many as are named further on, as a kind."""
    chosen = more or ("--workers", 5, "--size", "1 MB")
    return "convert", source, target, "--to", kind, *chosen


# Schedules


@pytest.mark.parametrize(("kind", "name"), [("goal", "ring.goal"), ("chakra", "ring"), ("csv", "ring.csv")])
def test_an_exported_collective_takes_as_long_as_the_collective(kind: str, name: str) -> None:
    said = did(*to(kind, name))
    assert said.startswith(f"{name}: ")
    assert "40 messages of 5 ranks in 8 rounds, 8 MB" in " ".join(said.split())
    network = Network(topologies.star(5, 1e-5, 1.25e9))
    expected = network.time(allreduce_ring(5, 1e6)).finish
    read, direct = figures(f"./{name}", *ON_STAR), figures(*TIMED, *ON_STAR)
    same = ("time_s", "low_s", "high_s", "because", "messages", "rounds", "bytes_B", "lower_bound_s", "ranks", "hosts")
    assert [read[one] for one in same] == [direct[one] for one in same]
    assert read["finish_s"] == expected
    assert 0 < read["lower_bound_s"] <= read["finish_s"]
    assert read["lower_bound_s"] == pytest.approx(1.6e6 / 1.25e9, rel=1e-12)


@pytest.mark.parametrize("one", registry.built_in(), ids=lambda one: one.name)
def test_every_collective_has_a_command(one: registry.Collective) -> None:
    chosen = ("--workers", 8, "--size", "64 kB")
    source = f"{one.name}:group_size=4" if one.needs else one.name
    did(*to("csv", "a.csv", source, *chosen))
    found = figures(source, *chosen, *ON_STAR)
    assert figures("a.csv", *ON_STAR)["finish_s"] == pytest.approx(found["finish_s"], rel=1e-12)
    assert found["finish_s"] >= found["lower_bound_s"]


def test_an_iteration_of_a_scenario_is_what_the_run_sent(small: Path) -> None:
    did("run", small, "--out", "out", "-q")
    ran = pd.read_csv("out/iterations.csv").set_index("iteration")
    for iteration in (0, 4):
        did("convert", small, "sent.csv", "--part", f"exchange=AG,iteration={iteration}", "--force")
        sent = read_messages("sent.csv")
        assert sent.nbytes == pytest.approx(ran.loc[iteration, "bytes_sent_B"])
    timeline = json.loads(Path("out/timeline.json").read_text())
    assert timeline["traceEvents"]


def test_with_compute_the_schedule_takes_as_long_as_the_iteration(small: Path) -> None:
    small.write_text(small.read_text().replace("  jitter: {exponential: {mean: 100 us}}\n", ""))
    did("run", small, "--out", "out", "-q")
    ran = pd.read_csv("out/iterations.csv").set_index("iteration")
    for kind, out in (("goal", "sent.goal"), ("chakra", "sent")):
        said = did("convert", small, out, "--to", kind, "--part", "exchange=AG,iteration=2,compute")
        assert "to compute" not in said
        found = figures(out, "--network", small, "--start", f"{float(ran.loc[2, 'start_s'])!r} s")
        # Work is rounded to nanoseconds, or to microseconds.
        assert found["time_s"] == pytest.approx(ran.loc[2, "iteration_s"], abs=1e-6)


def test_what_is_lost_is_said(small: Path) -> None:
    def lost(target: str, *more: str, part: str = "exchange=AG") -> str:
        return " ".join(did("convert", small, target, "--part", part, "--force", *more).split())

    assert "Not in it: the time to compute, to select and to merge; --part compute" in lost("a.csv")
    assert "computation: a table has messages only" in lost("a.csv", part="exchange=AG,compute")
    assert "phases: the format has none" in lost("a.goal")
    assert "fractions of a microsecond" in lost("a", "--to", "chakra", part="exchange=AG,compute")
    said = lost("b.csv", "--set", "job.overlap={bucket: 4 kB}", "--set", "job.parameters=4000")
    assert "overlap" not in said  # all in one layer
    assert "placement" in lost("c.goal", "--set", "network.placement=[3, 2, 1, 0]")


def test_other_jobs_and_deaths_are_left_out(small: Path) -> None:
    fields = ("--set", "network.topology.star.hosts=6", "--set", "job.deaths=[{worker: 1, at: 5 s}]")
    assert "Not in it: deaths of workers" in did("convert", small, "sent.goal", "--part", "exchange=AG", *fields)


def test_the_routes_of_the_scenario_are_written(small: Path) -> None:
    tree = "network.topology={fat_tree: {k: 4, latency: 1 us, bandwidth: 1 Gbit/s}}"
    one = ("--set", tree, "--set", "network.weather=[]", "--set", "network.jitter=null")
    for routing in ("hash", "single"):
        fields = (*one, "--set", f"network.routing={routing}")
        said = did("convert", small, f"{routing}.xml", *fields)
        assert "Not in it" not in said
        network = load(small, [*one[1::2], f"network.routing={routing}"]).build().job.network(0)
        text = Path(f"{routing}.xml").read_text()
        for src, dst in ((0, 15), (3, 8), (12, 1)):
            links = [network.routes.links[link] for link in network.routes.route(src, dst)]
            steps_ = "".join(f'<link_ctn id="{label(u)}-&gt;{label(v)}"/>' for u, v in links)
            assert f'<route src="host:{src}" dst="host:{dst}" symmetrical="NO">{steps_}</route>' in text
    said = did("convert", small, "a.xml", *one, "--set", "network.routing=adaptive")
    assert "Not in it: routing of the network" in said


def test_messages_of_a_timing_are_a_table_to_time_again() -> None:
    assert commands.did("time", *TIMED, *ON_STAR, "--out", "m.csv").stderr == "wrote m.csv\n"
    table = pd.read_csv("m.csv")
    assert list(table) == ["round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"]
    found = figures("m.csv", *ON_STAR)
    assert table["finish_s"].max() == found["finish_s"]
    assert "is there already" in refused("time", *TIMED, *ON_STAR, "--out", "m.csv")
    did("time", *TIMED, *ON_STAR, "--out", "m.csv", "--force", "--quiet")


def test_what_rounds_cannot_express_is_an_upper_bound() -> None:
    Path("a.goal").write_text(
        "num_ranks 2\nrank 0 {\na: send 8b to 1 tag 1\nb: recv 8b from 1\nc: send 8b to 1 tag 3\nc requires a\n}\n"
        "rank 1 {\na: recv 8b from 0 tag 1\nb: send 8b to 0\nb requires a\nc: recv 8b from 0 tag 3\nc requires b\n}\n"
    )
    assert "a.goal:5: does not wait for b (line 4), which rounds would" in (said := refused("time", "a.goal", *ON_STAR))
    assert "--loose accepts that" in said
    assert figures("a.goal", "--loose", *ON_STAR)["messages"] == 3


# Networks


def test_a_network_travels_through_simgrid_with_its_weather(small: Path) -> None:
    said = " ".join(did("convert", small, "net.xml", "--part", "duration=10 s").split())
    assert "net.xml: a SimGrid platform: 4 hosts, 8 links, profiles of 8 links" in said
    assert "Not in it: weather after 10 s" in said
    assert "Not in it: jitter of the network" in said
    chosen = timed_ring(4, "20 MB")
    there = figures(*chosen, "--network", "net.xml")
    here = figures(*chosen, "--network", small, "--set", "network.jitter=null")
    assert there["finish_s"] == pytest.approx(here["finish_s"], rel=1e-12)
    assert there["lower_bound_s"] == pytest.approx(here["lower_bound_s"], rel=1e-12)


# In scenarios


def written(folder: Path, topology: str) -> Path:
    path = folder / "on_file.yaml"
    path.write_text(SCENARIO.replace("TOPOLOGY", topology))
    return path


@pytest.mark.parametrize("spelling", ["file: {NAME}", "file: {{path: {NAME}}}"])
def test_topologies_from_files_are_those_written_out(tmp_path: Path, small: Path, spelling: str) -> None:
    (tmp_path / "nets").mkdir()
    write_platform(topologies.star(4, 1e-3, 1.25e8), tmp_path / "nets" / "net.xml")
    write_nodelink(topologies.star(4, 1e-3, 1.25e8), tmp_path / "nets" / "net.json")
    chosen = timed_ring(4, "20 MB")
    expected = figures(*chosen, "--network", small)["finish_s"]
    for name in ("nets/net.xml", "nets/net.json"):
        path = written(tmp_path, spelling.format(NAME=name))
        assert figures(*chosen, "--network", path)["finish_s"] == pytest.approx(expected, rel=1e-12)


def test_profiles_are_the_weather_and_factors_multiply_it(tmp_path: Path) -> None:
    weather = {(0, "switch"): Weather(steps([0, 1], [1e8, 4e7]), steps([0, 2], [1e-3, 5e-3]))}
    write_platform(topologies.star(4, 1e-3, 1.25e8), tmp_path / "net.xml", weather, duration=10)
    path = written(tmp_path, "file: net.xml")
    network = load(path).build().job.stages[0][1]
    at = [network.path(0, 1, t) for t in (0.0, 0.5, 1.5, 2.5)]
    # Bandwidth times the scenario's steps: 1 up to 30 ms, then 0.25. The other link of the route has 1 ms.
    assert [bandwidth for _, bandwidth in at] == pytest.approx([1e8, 2.5e7, 1e7, 1e7])
    # A star of simnet has half its latency on each of the two links.
    assert [latency for latency, _ in at] == pytest.approx([1.5e-3, 1.5e-3, 1.5e-3, 5.5e-3])


def test_the_run_folder_runs_again_without_the_platform(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    weather = {(0, "switch"): Weather(steps([0, 0.02], [1e8, 4e7]))}
    write_platform(topologies.star(4, 1e-3, 1.25e8), tmp_path / "nets" / "net.xml", weather, duration=10)
    path = written(tmp_path, "file: nets/net.xml")
    did("run", path, "--out", "first", "-q")
    for old in (tmp_path / "nets").rglob("*.*"):
        old.unlink()
    did("run", "first/scenario.lock.yaml", "--out", "second", "-q")
    for name in ("iterations.csv", "scenario.lock.yaml"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()
    (copied,) = Path("first/inputs").iterdir()
    assert sorted(one.name for one in copied.rglob("*") if one.is_file()) == ["link0_bandwidth.profile", "net.xml"]
    assert read_platform(copied / "net.xml").weather


BOMB = '<!DOCTYPE p [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><platform version="4.1">&b;</platform>'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BOMB, "bad.xml:1: declares its own document type"),
        ("<platform version='4.1'>\n" + "<zone>" * 100, "bad.xml:2: "),
        ('<platform version="4.1">\n<zone id="z" routing="Full">\n<host id="a" speed="1Gf">\n</zone></platform>',
         "bad.xml:4: is not XML: mismatched tag"),
        ('<platform version="4.1"><zone id="z" routing="Full"><host id="a"/>\n<link id="l" bandwidth="1 lightyear"/>'
         "</zone></platform>", "bad.xml:2: link.bandwidth: "),
        ('<platform version="4.1"><zone id="z" routing="Full"><host id="a"/>'
         '<link id="l" bandwidth="1Bps" bandwidth_file="../../etc/passwd"/></zone></platform>',
         "must lie beside the platform or below"),
        ("<html></html>", "is not recognised as a network; allowed are a SimGrid platform"),
        ("num_ranks 2\n", "is GOAL text, not a network"),
        ('{"nodes": [}', "bad.xml:1: is not JSON"),
        ("", "is not recognised as a network"),
    ],
)  # fmt: skip
def test_bad_files_in_scenarios(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "bad.xml").write_text(content)
    path = written(tmp_path, "file: bad.xml")
    for command in (("time", *TIMED, "--network", path), ("convert", path, "net.xml")):
        message = refused(*command)
        assert said in message
        assert "needed by" in message
        assert ("--network: " if "time" in command else "on_file.yaml:4: ") + "network.topology" in message
    assert said in refused("time", *TIMED, "--network", "bad.xml")


# Refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert", "quickstart", "a.goal"], "which of quickstart? Allowed: AG, ART-ring"),
        (["convert", "quickstart", "a.goal", "--part", "exchange=AC"], "no exchange 'AC': Allowed: AG, ART-ring"),
        (["convert", "quickstart", "a.goal", "--part", "exchange=AG,iteration=1000000"], "must be in 0.."),
        (["convert", "quickstart", "a.xml"], "duration is missing: how much of the weather"),
        (["convert", "quickstart", "a.xml", "--part", "duration=0 s"], "duration must be > 0 s"),
        (["convert", "quickstart", "a.goal", "--part", "duration=1 s"], "there is no part of goal 'duration': "),
        (["convert", "quickstart", "a", "--to", "gaol"], "--to: must be one of trace, simgrid, goal, chakra, csv"),
        (["convert", "quickstart", "a"], "--to: is missing"),
        ([*to("simgrid", "a.xml")], "has no network"),
        ([*to("goal", "a", "allreduce_ring:gama=1")], "no option 'gama': did you mean 'gamma'?"),
        ([*to("goal", "a", "allreduce_ring:gamma")], "did you mean 'allreduce_ring'?"),
        ([*to("goal", "no/folder/a.goal")], "cannot be written: No such file"),
        ([*to("goal", ".")], "must be the name of a file"),
        ([*to("csv", "a", "allreduce_rign")], "did you mean 'allreduce_ring'?"),
        ([*to("csv", "a", "allreduce_ring", "--size", "1 B")], "--workers: is missing"),
        ([*to("csv", "a", "allreduce_ring", "--workers", 4)], "--size: is missing"),
        ([*to("csv", "a", "allreduce_ring", "--workers", 4, "--size", "1 m")], "--size: '1 m'"),
        ([*to("csv", "a", "allreduce_ring", "--workers", 10**5, "--size", "1 B")], "must be at most 16,384"),
        ([*to("csv", "a", "parameter_server:server=9", "--workers", 4, "--size", "1 B")], "parameter_server: "),
        (["time", *ON_STAR], "WHAT"),
        (["time", "allreduce_rign"], "no such file, and no collective 'allreduce_rign': did you mean 'allr"),
        (["time", "all_reduce:rign"], "there is no all_reduce 'rign': did you mean 'ring'?"),
        (["time", "allreduce_ring:gama=1"], "no option 'gama': did you mean 'gamma'?"),
        (["time", "ring:gamma=x"], "gamma must be a number, got 'x'"),
        (["time", "hierarchical"], "needs group_size, as hierarchical:group_size=4"),
        (["time", "sendrecv"], "no schedule of sendrecv is known, but by a calibrated cluster or a platform"),
        (["time", "parameter_server:server=9"], "parameter_server: "),
        (["time", *timed_ring(4, "1 m")], "--size: '1 m'"),
        (["time", *timed_ring(10**5, "1 B")], "must be at most 16,384"),
        (["time", *TIMED, "--network", "star:hosts=4"], "must be at most 4, the hosts of the topology, got 5"),
        (["time", *TIMED, "--network", "quickstart", "--bandwidth", "1 Gbitt/s"], "did you mean 'Gbit/s'"),
        (["time", *TIMED, "--set", "network.hots=4"], "hots"),
        (["time", *TIMED, "--network", "stra"], "did you mean 'star'?"),
        (["time", *TIMED, "--network", "fat_tree:hosts=4"], "hosts: there is no such field"),
        (["time", *TIMED, "--start", "soon"], "--start: "),
        (["time", *TIMED, "--collective", "x"], "--collective is now the collective itself"),
        (["time", "all_reduce", "--network", "dgx-h100:sizes=4"], "sizes"),
        (["time", "all_reduce:rign", "--network", "dgx-h100"], "there is no algorithm 'rign'"),
        (["time", "."], "is a folder without Chakra traces"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[object], said: str) -> None:
    assert said in refused(*arguments)


def test_nothing_is_overwritten_unless_asked(small: Path) -> None:
    for kind, name in (("goal", "a"), ("chakra", "b")):
        did(*to(kind, name))
        assert f"error: {name}: is there already; --force replaces it" in refused(*to(kind, name))
        did(*to(kind, name, "allreduce_ring", "--workers", 3, "--size", "3 kB", "--force"))
    assert read_goal("a") == read_chakra("b/trace") == allreduce_ring(3, 3000).in_phase("")
    assert len(list(Path("b").iterdir())) == 3
    Path("b/notes.txt").write_text("mine")
    assert "other files in it" in refused(*to("chakra", "b"), "--force")
    assert Path("b/notes.txt").exists()
    assert "is a folder; name a file" in refused(*to("goal", "b"), "--force")
    platform = ("convert", small, "n.xml", "--part", "duration=1 s")
    did(*platform)
    Path("n.xml").unlink()
    # The profiles of somebody's platform are there already, too.
    assert "n_profiles: is there already" in refused(*platform)


# Recognition


@pytest.mark.parametrize("content", ["/**/" * 16000, "/*" * 30000, "// a\n" * 12000, "<!--" * 16000, "<?" * 30000])
def test_recognition_is_not_led_astray_for_long(content: str) -> None:
    Path("a").write_text(content)
    assert kind_of("a") is None


def test_other_files_are_not_shown_as_networks() -> None:
    Path("zero.json").write_text('{"train_batch_size": 32, "zero_optimization": {"stage": 2}}')
    assert "is not recognised as a network" in refused("show", "zero.json")
    Path("astra.yaml").write_text("topology: [Ring]\nnpus_count: [2]\n")
    assert "npus_count: there is no such field" in refused("show", "astra.yaml")


# The page


def test_the_time_that_the_page_compares_with_loggopsim() -> None:
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8").replace("\n", " ")
    did(*to("goal", "eight.goal", "allreduce_ring", "--workers", 8, "--size", "64MiB"))
    seconds = commands.timed("eight.goal", "--latency", "10 us", "--bandwidth", "8 Gbit/s")["time_s"]
    assert f"that of simnet {seconds * 1e9:,.0f} ns" in page


def test_examples_of_the_help_work() -> None:
    did(*to("goal", "ring.goal"))
    for command in ("convert", "time"):
        page = " ".join(did(command, "--help").split())
        (example,) = re.findall(r"Example: simnet (.*)$", page)
        did(*shlex.split(example), *(["--force"] if command == "convert" else []))


# Any table, any text


MESSAGE = st.tuples(st.integers(0, 5), st.integers(1, 5), st.floats(0, 1e15))


@given(st.lists(st.tuples(st.lists(MESSAGE, min_size=1, max_size=4), st.text(max_size=5)), max_size=4))
@settings(max_examples=50)
def test_tables_come_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[list[tuple[int, int, float]], str]]
) -> None:
    given_rounds = [
        Round(
            [src for src, _, _ in own],
            [(src + step) % 6 for src, step, _ in own],
            [b for _, _, b in own],
            phase=phase.encode("ascii", "ignore").decode().replace("\r", "").replace("\0", ""),
        )
        for own, phase in rounds
    ]
    schedule = Schedule(6, given_rounds)
    file = tmp_path_factory.getbasetemp() / "any.csv"
    write_messages(schedule, file)
    assert read_messages(file, 6) == schedule


def test_a_comment_that_is_never_closed_is_refused_at_once() -> None:
    Path("a").write_text("num_ranks 2\nrank 0 {\n" + "/* " * 200_000)
    assert "a:3: the comment that begins here is not closed" in refused("time", "a", *ON_STAR)
