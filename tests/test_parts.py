"""Parts of a scenario from signatures: what stands once, and kinds that other packages register."""

import json
from dataclasses import dataclass, field
from typing import Annotated

import networkx as nx
import pytest
from annotated_types import Ge
from pydantic import ValidationError
from ruamel.yaml import YAML

from simnet import topologies
from simnet.base import plugins
from simnet.base.errors import InputError
from simnet.base.quantities import Bandwidth, Seconds
from simnet.scenario import json_schema, load, topology_parts
from simnet.scenario.parts import Part, configures, parameter_help, part_of

SCENARIO = """\
workers: 4
network:
  topology:
    TOPOLOGY
job: {parameters: 2000, iterations: 2, density: 0.01, compute: {mean: 10 ms}}
exchanges:
  AG: {scheme: topk}
policies:
  AG: {fixed: AG}
output: {report: false}
"""

MESH = """\
from simnet import topologies
from simnet.base.quantities import Bandwidth, Count, Seconds


def mesh(hosts: Count, hop: Seconds, bandwidth: Bandwidth = 1e9, name_latency: float = 1e-3, twist: int = 0):
    '''Return hosts that all have a link to each other.

    Parameters
    ----------
    hop : float
        Of each link [s].
    twist : int
        Turns of the cables.
    '''
    graph = topologies.torus((hosts,), latency=hop + name_latency, bandwidth=bandwidth)
    del graph.graph["shape"], graph.graph["name"]
    graph.graph["borders"] = [0, 2]
    return graph


def loose(hosts, **link):
    return topologies.star(hosts, **link)


def odd(hosts: object(), hop: Seconds = 0.0):
    pass


def bare(hosts: Count):
    graph = topologies.star(hosts, 1e-3, 1e9)
    graph.graph.clear()
    return graph


def nothing():
    pass
"""

REGISTERED = """\
[simnet.topologies]
mesh = mesh_package:mesh
star = nowhere:none
loose = mesh_package:loose
bare = mesh_package:bare
nothing = mesh_package:nothing
"""


@pytest.fixture
def write(tmp_path, install):
    install("mesh_package", MESH, REGISTERED)

    def write(topology):
        path = tmp_path / "a.yaml"
        path.write_text(SCENARIO.replace("TOPOLOGY", topology))
        return path

    return write


def _locked(found):
    return YAML(typ="safe", pure=True).load(found.lock())


class TestSignatures:
    def test_defaults_bounds_and_help_of_a_function_are_those_of_its_part(self):
        def line(length: Annotated[int, Ge(2)] = 7, *, delay: Seconds = 2e-3, rate: Bandwidth | None = None) -> None:
            """Return a line.

            Parameters
            ----------
            length : int
                Of the line,
                in hosts.
            delay, rate : float
                Of each link [s], ``0`` for none.

            Returns
            -------
            nothing
            """

        part = part_of(line)
        assert part().arguments() == {"length": 7, "delay": 2e-3}
        assert part(delay="3 s", rate="8 Mbit/s").arguments() == {"length": 7, "delay": 3.0, "rate": 1e6}
        assert parameter_help(line) == {
            "length": "Of the line, in hosts.",
            "delay": "Of each link, 0 for none.",
            "rate": "Of each link, 0 for none.",
        }
        described = part.model_json_schema()
        assert described["description"] == "A line."
        assert described["properties"]["length"] == {
            "default": 7,
            "description": "Of the line, in hosts.",
            "minimum": 2,
            "title": "Length",
            "type": "integer",
        }
        assert described["properties"]["delay"]["examples"] == ["10 ms", "50 us", "1.5 h"]
        for wrong in ({"length": 1}, {"delay": 3}, {"rate": 0}, {"delay": "3 B"}, {"length": 2.0}):
            with pytest.raises(ValidationError):
                part(**wrong)

    def test_a_class_says_what_only_a_scenario_has_and_is_built(self):
        @dataclass(frozen=True)
        class Cable:
            length: float
            plugs: tuple[str, ...] = field(default_factory=lambda: ("a",))
            delay: Seconds = 1.0

        @configures(Cable, delay="lag", optional={"length": "that of the rack"})
        class Written(Part):
            plugs: list[str]
            colour: str = "red"

        assert Written().build(length=2.0) == Cable(2.0)
        assert Written(lag="2 s", plugs=["b"], length=1.0).build() == Cable(1.0, ("b",), 2.0)
        assert Written.names() == ["plugs", "colour", "length", "lag"]
        assert "Default: that of the rack." in str(Written.model_json_schema())

    @pytest.mark.parametrize("family", topologies.FAMILIES)
    def test_every_parameter_of_a_topology_is_a_field_with_help(self, family):
        described = topology_parts.Topology.parts()[family].model_json_schema()["properties"]
        assert all("description" in one for one in described.values())


class TestRegisteredTopologies:
    def test_one_is_a_key_like_those_that_come_with_simnet(self, write, tmp_path):
        path = write("mesh: {hop: 2 ms, bandwidth: 8 Mbit/s, name_latency: 3 ms}")
        found = load(path)
        graph = found.build().job.network(0).graph
        # Hosts are one per worker, as of a star.
        assert graph.graph["hosts"] == 4
        assert graph.edges[0, 1]["latency"] == pytest.approx(5e-3)
        assert graph.edges[0, 1]["bandwidth"] == 1e6
        locked = tmp_path / "lock.yaml"
        locked.write_text(found.lock())
        assert "mesh: {hosts: 4, hop: 2 ms, bandwidth: 8 Mbit/s, name_latency: 3 ms, twist: 0}" in found.lock()
        assert nx.utils.graphs_equal(load(locked).build().job.network(0).graph, graph)
        assert load(path, ["network.topology.mesh.hop=7 ms"]).lock() != found.lock()

    def test_parameters_without_annotations_have_units_by_their_names(self, write):
        graph = load(write("loose: {latency: 4 ms, bandwidth: 8 Mbit/s}")).build().job.network(0).graph
        assert graph.edges[0, "switch"] == {"latency": 2e-3, "bandwidth": 1e6, "kind": "host"}

    @pytest.mark.parametrize(
        ("topology", "message"),
        [
            ("mesh: {hop: 2}", r"a.yaml:4: network.topology.mesh.hop: 2 has no unit; write e.g. '2 ms'"),
            ("mesh: {hop: 2 ms, bandwidth: 0}", r"network.topology.mesh.bandwidth: must be > 0, got 0"),
            ("mesh: {hop: 2 ms, twits: 1}", r"mesh.twits: there is no such field; did you mean 'twist'\?"),
            ("mesh: {}", r"a.yaml:4: network.topology.mesh.hop: is missing"),
            ("mehs: {}", r"network.topology.mehs: there is no such field; did you mean 'mesh'\?"),
            ("{mesh: {hop: 0}, star: {latency: 0, bandwidth: 1 bps}}", r"takes only one of star, .*got star and mesh"),
            ("loose: {latency: 4, bandwidth: 8 Mbit/s}", r"a.yaml:3: network.topology: 4 has no unit"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, write, topology, message):
        with pytest.raises(InputError, match=message):
            load(write(topology)).build()

    def test_a_scenario_of_simnet_alone_looks_for_no_packages(self, monkeypatch):
        monkeypatch.setattr(plugins, "_all_entries", lambda kind: pytest.fail(kind))
        load("quickstart").build()

    def test_a_graph_need_not_say_how_many_hosts_it_has(self, write):
        assert load(write("bare: {hosts: 5}")).build().job.placement == [0, 1, 2, 3]

    def test_the_json_schema_has_it(self, write):
        found = json.loads(json.dumps(json_schema()))
        for place in ("Topology", "Cluster"):
            (described,) = (one for one in found["$defs"][place]["properties"]["mesh"]["anyOf"] if "$ref" in one)
            mesh = found["$defs"][described["$ref"].rpartition("/")[2]]
            assert mesh["properties"]["hop"]["description"] == "Of each link."
            assert mesh["required"] == ["hop"]


ADDED = """\
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from simnet.base.quantities import Absolute, Duration, Share
from simnet.base.rng import stream
from simnet.network.weather import Signal, constant, steps
from simnet.policies import Candidate, PolicyContext, check_distinct


def rush(depth: Share, length: Duration = 3600.0, *, seed: int, name: tuple[str | int, ...] = ()) -> Signal:
    '''Return rush hours that begin at random.

    Parameters
    ----------
    depth : float
        What a rush hour takes of the bandwidth.
    '''
    start = length * stream(seed, "rush", *name).random()
    return steps([0.0, start, start + length], [1.0, 1 - depth, 1.0])


def meter(file: str | Path) -> Annotated[Signal, Absolute]:
    return constant(float(Path(file).read_text()))


def broken() -> Signal:
    return 3


class Turns:
    '''Each exchange in turn, for some iterations.

    Parameters
    ----------
    every : int
        Iterations of a turn.
    '''

    def __init__(self, candidates: Sequence[Candidate], every: int = 1, seed: int = 0) -> None:
        self.candidates, self.every, self.seed = check_distinct(candidates), every, seed

        if every == 13:
            raise ValueError("turns of 13 bring bad luck")

    def reset(self) -> None:
        pass

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        return [self.candidates[context.iteration // self.every % len(self.candidates)]]
"""


@pytest.fixture
def added(tmp_path, install):
    kinds = "rush = added:rush\nmeter = added:meter\nbroken = added:broken\n"
    install("added", ADDED, f"[simnet.weather]\n{kinds}[simnet.policies]\nturns = added:Turns\n")

    def added(entry="{links: all, bandwidth: {rush: {depth: 20 %}}}", policy="turns: {every: 2}"):
        text = SCENARIO.replace("TOPOLOGY", f"star: {{latency: 1 ms, bandwidth: 1 Gbit/s}}\n  weather: [{entry}]")
        text = text.replace("AG: {scheme: topk}", "AG: {scheme: topk}\n  all: {scheme: dense}")
        path = tmp_path / "a.yaml"
        path.write_text(text.replace("  AG: {fixed: AG}", f"  mine: {{{policy}}}"))
        return path

    return added


class TestRegisteredWeather:
    def test_a_factor_moves_each_link_by_its_own_stream(self, added):
        found = load(added())
        (entry,) = _locked(found)["network"]["weather"]
        assert entry["bandwidth"] == {"rush": {"depth": 0.2, "length": "1 h"}}
        links = found.build().job.network(0).links
        first = [links.capacity(link, 0.0) for link in range(4)]
        assert {rate for rate, _ in first} == {1.25e8}
        assert len({until for _, until in first}) == 4
        for link, (_, until) in enumerate(first):
            assert links.capacity(link, until)[0] == pytest.approx(0.8 * 1.25e8)
        shared = (
            load(added("{links: all, shared: true, bandwidth: {rush: {depth: 20 %}}}")).build().job.network(0).links
        )
        assert len({shared.capacity(link, 0.0) for link in range(4)}) == 1
        # Links that the same things move hold one signal, its product with their bandwidth included; others their own.
        assert len({id(signal) for signal in shared._bandwidth}) == 1
        assert len({id(signal) for signal in links._bandwidth}) == len(links._bandwidth)

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ("{links: all, bandwidth: {rush: {depth: 2}}}", r"bandwidth.rush.depth: must be <= 1, got 2"),
            ("{links: all, latency: {rush: {dept: 0}}}", r"latency.rush.dept: .*did you mean 'depth'\?"),
            ("{links: all, latency: {rash: {}}}", r"latency.rash: there is no such field; did you mean 'rush'\?"),
            (
                "{links: all, bandwidth: {broken: {}}}",
                r"bandwidth.broken: .* broken returned 3, and not a .*Signal",
            ),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, added, entry, message):
        with pytest.raises(InputError, match=rf"a.yaml:5: network.weather\[0\].{message}"):
            load(added(entry)).build()


class TestRegisteredPolicies:
    def test_one_is_built_with_its_candidates_and_the_seed(self, added):
        found = load(added(), ["seed=7"])
        assert _locked(found)["policies"] == {"mine": {"turns": {"among": ["AG", "all"], "every": 2}}}
        policy = found.build().policies["mine"]
        assert ([one.label for one in policy.candidates], policy.every, policy.seed) == (["AG", "all"], 2, 7)

    @pytest.mark.parametrize(
        ("policy", "message"),
        [
            ("turns: {among: [AG, ALL]}", r"mine.turns.among\[1\]: there is no exchange 'ALL'; did you mean 'all'\?"),
            ("turns: {every: 1 s}", r"mine.turns.every: must be a whole number, got '1 s'"),
            ("turn: {}", r"policies.mine.turn: there is no such field; did you mean 'turns'\?"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, added, policy, message):
        with pytest.raises(InputError, match=message):
            load(added(policy=policy)).build()
