"""Transport stacks as people choose them: in a scenario, on the command line, and in what a run says of itself."""

import dataclasses
import itertools
import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from commands import did, refused, timed, wide
from scenario_texts import SMALL
from schedules import write_nodelink
from simnet import topologies
from simnet.collectives import allreduce_ring
from simnet.network import STACKS, Network, Stack
from simnet.scenario import load

OTHER = "{parameters: 4000, iterations: 2, density: 1, compute: {mean: 1 ms}}"
COMPANY = f"other_jobs={{b: {{workers: 2, job: {OTHER}, exchange: {{scheme: dense}}}}}}"
RING = ("allreduce_ring", "--workers", 4, "--size", "1 MB")
STAR = ("--latency", "1 ms", "--bandwidth", "1 Gbit/s")


def stacks_of(path: str, *overrides: str) -> list[Stack]:
    return [network.stack for _, network in load(path, overrides).build().job.stages]


# How far a time depends on microseconds

ALL_GATHER = ("allgather_ring", "--workers", 8, "--size", "48 MB")
ON_TREE = ("--network", "fat_tree:k=4", "--bandwidth", "1 Gbit/s")


def test_times_under_software_jump_no_further_than_the_spread_that_is_said() -> None:
    found = [
        timed(*ALL_GATHER, *ON_TREE, "--latency", f"{us} us", "--stack", "gloo") for us in (1, 2, 5, 200, 500, 1000)
    ]
    # The times of the ranks entering at once fall where the latency grows.
    single = [one["time_s"] for one in found]
    assert single != sorted(single)
    for one in found:
        assert one["duration_low_s"] <= one["duration_median_s"] <= one["duration_high_s"]
        assert one["duration_low_s"] <= one["time_s"] <= one["duration_high_s"]
        assert one["duration_draws"] == 16
    for less, more in itertools.combinations(found, 2):
        assert less["duration_low_s"] <= more["duration_high_s"]
        # Medians do not fall by more than what a time at the longer latency may be.
        assert less["duration_median_s"] <= more["duration_high_s"]
    for one, following in itertools.pairwise(found):
        assert one["duration_high_s"] >= following["duration_low_s"]


def test_the_spread_of_a_time_is_said_and_the_same_each_time() -> None:
    reduce = ("allreduce_ring", "--workers", 8, "--size", "24 MB")
    asked = ("time", *reduce, *ON_TREE, "--latency", "100 us", "--stack", "openmpi", "--wide")
    said = did(*asked).stdout
    assert "429 ms to 578 ms, median 552 ms, where ranks enter up to 605 us apart" in said
    assert did(*asked).stdout == said
    assert timed(*asked[1:], "--seed", 1)["duration_draws"] == 16


# Scenarios


@pytest.mark.parametrize("name", STACKS)
def test_a_scenario_names_a_stack(small: str, name: str) -> None:
    assert stacks_of(small, f"network.stack={name}") == [STACKS[name]]


def test_a_mapping_starts_from_a_stack(small: str) -> None:
    made = stacks_of(small, "network.stack={like: gloo, before: 50 us, before_byte: 0.3 ns, buffer: 4 MiB, pieces: 1}")
    expected = {"before": 5e-5, "before_byte": 3e-10, "buffer": 2.0**22, "pieces": 1}
    assert made == [dataclasses.replace(STACKS["gloo"], **expected, measured="given by the scenario")]


def test_a_mapping_without_a_name_starts_from_ideal(small: str) -> None:
    expected = dataclasses.replace(STACKS["ideal"], send_completion="taken", segment=1448.0)
    assert stacks_of(small, "network.stack={send_completion: taken, segment: 1448 B}") == [expected]


@pytest.mark.parametrize(
    ("given", "measured"),
    [
        ("{like: gloo, rounds: 1}", STACKS["gloo"].measured),
        ("{like: gloo, after: 0 s}", "given by the scenario"),
        ("{like: gloo, after: 1 us, measured: on the lab's switch}", "on the lab's switch"),
    ],
)
def test_software_of_the_scenario_was_not_measured_where_that_of_the_name_was(
    small: str, given: str, measured: str
) -> None:
    assert stacks_of(small, f"network.stack={given}")[0].measured == measured


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("glo", "network.stack: there is no stack 'glo': did you mean 'gloo'? Allowed: gloo, "),
        ("{like: mpi}", "network.stack.like: there is no stack 'mpi'"),
        ("3", "network.stack: must be a text, or a mapping with like, send_completion, own_link, "),
        (
            "{send_completion: redy}",
            "network.stack.send_completion: there is no such choice, got 'redy'; did you mean 'ready'?",
        ),
        ("{befor: 1 us}", "network.stack.befor: there is no such field; did you mean 'before'?"),
        ("{before: 5}", "network.stack.before: 5 has no unit"),
        ("{after_byte: 2 s}", "network.stack.after_byte: must be <= 1, got '2 s'"),
        ("{rounds: 0}", "network.stack.rounds: must be >= 1, got 0"),
        ("{pieces: 65}", "network.stack.pieces: must be <= 64, got 65"),
        ("{before: 1 us}", "network.stack: before counts with another send_completion than left only"),
    ],
)
def test_a_wrong_stack_is_refused_with_its_line(small: str, given: str, said: str) -> None:
    Path(small).write_text(SMALL.replace("stack: ideal", f"stack: {given}"))
    assert f"small.yaml:5: {said}" in refused("run", small)


def test_the_lock_gives_the_same_stack(small: str) -> None:
    given = "network.stack={like: openmpi, eager_limit: 4 KiB, before: 1.5 us, before_byte: 0.1 ns}"
    Path("lock.yaml").write_text(load(small, [given]).lock())
    assert stacks_of("lock.yaml") == stacks_of(small, given)
    assert "stack: ideal" in load(small).lock()


def test_jobs_that_share_a_network_share_its_stack(small: str) -> None:
    alone = {}
    for after in ("0 s", "7 ms"):
        stack = f"network.stack={{send_completion: taken, after: {after}}}"
        did("run", small, "--set", COMPANY, "--set", stack, "--out", "out", "--force", "--quiet")
        (one,) = json.loads(Path("out/summary.json").read_text())["policies"].values()
        alone[after] = pd.DataFrame(one["shares"]).set_index("job")["alone_s"]
    # A ring of 2 has 2 rounds, one of 4 has 6.
    more = alone["7 ms"] - alone["0 s"]
    assert more["b"] == pytest.approx(2 * 7e-3)
    assert more["job"] == pytest.approx(6 * 7e-3)


def test_a_topology_from_a_file_has_the_stack_of_the_scenario(small: str) -> None:
    write_nodelink(topologies.star(4, latency=1e-3, bandwidth=1.25e8), "net.json")
    assert stacks_of(small, "network.topology={file: net.json}", "network.stack=tcp") == [STACKS["tcp"]]


# The command line


@pytest.mark.parametrize("name", STACKS)
def test_time_is_that_of_the_network_with_the_stack(small: str, name: str) -> None:
    graph = topologies.star(4, latency=1e-3, bandwidth=1.25e8)
    expected = Network(graph, stack=name).time(allreduce_ring(4, 1e6)).finish
    write_nodelink(graph, "net.json")
    for network in (STAR, ("--network", small), ("--network", "net.json")):
        found = timed(*RING, *network, "--stack", name)
        assert (found["stack"], found["time_s"]) == (name, pytest.approx(expected, rel=1e-12))
    assert f"Stack: {name} (" in did("time", *RING, *STAR, "--stack", name, "--wide").stdout


def test_the_times_of_the_page_are_those_that_its_command_gives() -> None:
    page = (Path(__file__).parents[1] / "docs" / "stacks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) ms \| (\d+) ms \|$", page, re.MULTILINE)
    command = re.findall(r"simnet (time.*\\\n.*) --stack", page)[0].replace("\\\n", "")
    assert [row[0] for row in rows] == list(STACKS)
    for name, *shown in rows:
        for size, milliseconds in zip(("4 kB", "500 kB"), shown, strict=True):
            given = shlex.split(command.replace("500 kB", size))
            found = timed(*given[1:], "--stack", name)["time_s"]
            assert 1e3 * found == pytest.approx(float(milliseconds), abs=0.51, rel=2e-3)


def test_an_exported_network_says_that_it_has_no_stack(small: str) -> None:
    said = did("convert", small, "net.xml", "--set", "network.stack=tcp").stdout
    assert "Not in it: stack of the network" in said


# What a run says of itself


def test_a_run_names_its_stack(small: str) -> None:
    shown = wide("run", small, "--set", "output.report=true", "--out", "out")
    assert "Stack: ideal (has no software)" in shown
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["stack"]["name"] == "ideal"
    assert "Stack: ideal (has no software)" in Path("out/report.html").read_text()


def test_a_run_tells_the_properties_of_a_stack_without_a_name(small: str) -> None:
    given = "network.stack={like: gloo, before: 50 us, measured: <b>here</b>}"
    shown = wide("run", small, "--set", given, "--set", "output.report=true", "--out", "out")
    assert "Stack: custom, send_completion ready, own_link queue, " in shown
    assert "before 50 us, " in shown
    assert "(<b>here</b>)" in shown
    stack = json.loads(Path("out/summary.json").read_text())["stack"]
    assert (stack["name"], stack["measured"]) == ("custom", "<b>here</b>")
    again = f"network.stack={json.dumps(stack['properties'] | {'measured': stack['measured']})}"
    assert stacks_of(small, again) == stacks_of(small, given)
    page = Path("out/report.html").read_text()
    assert "Stack: custom, send_completion ready, " in page
    assert "(&lt;b&gt;here&lt;/b&gt;)" in page
    assert "<b>here" not in page
