"""GraphML and GML: speeds and coordinates of the Topology Zoo, and what is refused."""

import json
import math

import pytest

from commands import refused, timed
from simnet.base.errors import InputError
from simnet.interchange.kinds import kind_of
from simnet.interchange.networkx_graphs import read_graphml


def data(**values):
    return "".join(f'<data key="{key}">{value}</data>' for key, value in values.items() if value is not None)


def node(name, north=None, east=None):
    return f'<node id="{name}">{data(N=north, E=east)}</node>'


def edge(u, v, speed=1e10):
    return f'<edge source="{u}" target="{v}">{data(S=speed)}</edge>'


def put(folder, *parts):
    keys = (("N", "node", "Latitude"), ("E", "node", "Longitude"), ("S", "edge", "LinkSpeedRaw"))
    known = "".join(f'<key id="{key}" for="{of}" attr.name="{name}" attr.type="double"/>' for key, of, name in keys)
    graph = f'<graph edgedefault="undirected">{"".join(parts)}</graph>'
    path = folder / "zoo.graphml"
    path.write_text(f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{known}{graph}</graphml>')
    return path


def test_latencies_are_of_light_between_coordinates(tmp_path):
    # A quarter of the equator, and parallel links.
    path = put(tmp_path, node("b", 0, 0), node("a", 0, 90), node("c", 0, 90.0), edge("b", "a"), edge("a", "b", 5e9),
               edge("a", "c"), edge("c", "c"))  # fmt: skip
    graph = read_graphml(path)
    assert kind_of(path) == "graphml"
    assert graph.edges[0, 1]["latency"] == pytest.approx(math.pi / 2 * 6_371e3 / 2.04e8)
    assert (graph.edges[1, 0]["bandwidth"], graph.edges[1, 2]["latency"]) == (15e9 / 8, 0.0)
    assert read_graphml(path, latency=0.005).edges[2, 1]["latency"] == 0.005
    # From the last to the first over the node in between.
    found = timed("allgather_ring", "--workers", 3, "--size", "3MB", "--network", path, "--latency", "10ms")
    assert found["time_s"] == pytest.approx(0.03 + 2e6 / 1.25e9)


def test_gml_is_read_alike(tmp_path):
    path = tmp_path / "zoo.gml"
    path.write_text('Creator "x"\ngraph [ node [ id 4 ] node [ id 2 ] edge [ source 4 target 2 LinkSpeedRaw 8000 ] ]')
    assert kind_of(path) == "graphml"
    graph = read_graphml(path, latency=0.25)
    assert graph.edges[1, 0] == {"latency": 0.25, "bandwidth": 1000.0, "kind": "wan"}
    assert graph.graph["remarks"] == ["bandwidth counts in byte/s: a link has 1000"]
    path.write_text("graph [ node [ id ] ]")
    with pytest.raises(InputError, match="is not a graph that networkx reads"):
        read_graphml(path, latency=0.25)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((node("a"), node("b", 1, 1), edge("a", "b")), "the link a - b has no latency"),
        (
            (node("a", 2, 2), node("b", 1, 1), edge("a", "b", None)),
            "the link a - b has no LinkSpeedRaw: give bandwidth",
        ),
        ((), "the topology has no hosts"),
        ((node("a"), "<x>"), "is not XML"),
    ],
)
def test_what_is_missing_is_said(tmp_path, parts, said):
    with pytest.raises(InputError, match=said):
        read_graphml(put(tmp_path, *parts))


def test_hosts_without_switches_pass_on_messages_and_it_is_said(tmp_path):
    links = [{"source": a, "target": (a + 1) % 4, "latency": 0.01, "bandwidth": 1.25e9} for a in range(4)]
    written = {"directed": False, "nodes": [{"id": a} for a in range(4)], "edges": links}
    (path := tmp_path / "ring.json").write_text(json.dumps(written))
    found = timed("allreduce_ring", "--workers", 4, "--size", "1MB", "--network", path)
    assert found["time_s"] == pytest.approx(6 * (0.01 + 2.5e5 / 1.25e9))
    assert "hosts pass on messages, as the graph has no switches" in found["assumed"]
    written["nodes"].append({"id": "switch"})
    links.append({"source": 0, "target": "switch", "latency": 0.01, "bandwidth": 1.25e9})
    path.write_text(json.dumps(written))
    said = refused("time", "allreduce_ring", "--workers", 4, "--size", "1MB", "--network", path)
    assert "hosts pass on nothing unless the graph has hosts_forward" in said
