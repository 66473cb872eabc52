"""SimGrid platforms: samples in the style of SimGrid's own, round trips of topologies and weather, hostile files."""

import re

import networkx as nx
import numpy as np
import pytest

from schedules import write_nodelink
from simnet.base.errors import InputError
from simnet.collectives import alltoallv_pairwise
from simnet.interchange.networkx_graphs import read_nodelink
from simnet.interchange.simgrid import read_link_profile, read_platform
from simnet.interchange.simgrid_writing import write_platform
from simnet.network import Network
from simnet.network.weather import Weather, steps
from simnet.topologies import Routes, fat_tree, multi_gpu_nodes, ring, star, tree, wan

HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
"""


def read(tmp_path, body, head=HEAD):
    path = tmp_path / "p.xml"
    path.write_text(f"{head}{body}</platform>\n")
    return read_platform(path)


def lanes(platform, src, dst):
    """The links of the platform on the way from one host to another, by name."""
    routes = Routes(platform.graph)
    names = [platform.graph.edges[routes.links[i]].get("link") for i in routes.route(src, dst)]
    return [name for name in names if name]


HOSTS = '<host id="A" speed="1Gf"/><host id="B" speed="1Gf" core="2"/><host id="C" speed="1Gf"/>'

DOGBONE = """
<zone id="AS0" routing="Full">
  <host id="S1" speed="1Gf"/> <host id="C1" speed="1Gf"/> <host id="S2" speed="1Gf"/> <host id="C2" speed="1Gf"/>
  <link id="1" bandwidth="100MBps" latency="10ms"/>
  <link id="2" bandwidth="80Mbps" latency="20us" sharing_policy="SHARED"/>
  <link id="3" bandwidth="1GiBps" latency="10ms"/>
  <link id="4" bandwidth="100MBps" latency="10ms"/>
  <link id="5" bandwidth="100MBps" latency="10ms"/>
  <link id="loop" bandwidth="1GBps" latency="0" sharing_policy="FATPIPE"/>
  <route src="S1" dst="S1"><link_ctn id="loop"/></route>
  <route src="S1" dst="C1"><link_ctn id="1"/><link_ctn id="2"/><link_ctn id="3"/></route>
  <route src="S2" dst="C2"><link_ctn id="4"/><link_ctn id="2"/><link_ctn id="5"/></route>
  <route src="S1" dst="C2"><link_ctn id="1"/><link_ctn id="2"/><link_ctn id="5"/></route>
  <route src="S2" dst="C1"><link_ctn id="4"/><link_ctn id="2"/><link_ctn id="3"/></route>
</zone>
"""


def test_full_routes_over_shared_links(tmp_path):
    platform = read(tmp_path, DOGBONE)
    assert platform.hosts == ("S1", "C1", "S2", "C2")
    assert lanes(platform, 0, 1) == ["1_UP", "2", "3_UP"]
    assert lanes(platform, 3, 2) == ["5_DOWN", "2", "4_DOWN"]
    routes = Routes(platform.graph)
    assert routes.path_latency(0, 1) == pytest.approx(0.02002, rel=1e-15)
    assert routes.bottleneck(0, 1) == 1e7
    # A SHARED link is one for both directions, a SPLITDUPLEX link is two.
    network = Network(platform.graph)
    both = [network.transfer(0, 1, 1e6), network.transfer(3, 2, 1e6)]
    network.env.run(until=network.env.all_of(both))
    assert network.env.now == pytest.approx(0.02002 + 2e6 / 1e7)


def test_clusters(tmp_path):
    one = read(
        tmp_path, '<cluster id="c" prefix="n-" suffix=".me" radical="0-2,7" speed="1Gf" bw="125MBps" lat="50us"/>'
    )
    assert one.hosts == ("n-0.me", "n-1.me", "n-2.me", "n-7.me")
    assert lanes(one, 0, 3) == ["c_link_0_UP", "c_link_7_DOWN"]
    two = read(
        tmp_path,
        '<cluster id="c" prefix="" suffix="" radical="0-99" speed="1e9" bw="125e6" lat="5E-5" '
        'bb_bw="2.25e9" bb_lat="5E-4"/>',
    )
    assert lanes(two, 0, 99) == ["c_link_0_UP", "c_backbone", "c_link_99_DOWN"]
    assert Routes(two.graph).path_latency(3, 4) == pytest.approx(6e-4, rel=1e-15)
    assert Routes(two.graph).bottleneck(3, 4) == 125e6


BANDWIDTHS = {"1MBps": 1e6, "1": 1.0, "12.5e6": 12.5e6, "1Mbps": 125e3, "10Gbps": 1.25e9, "1KiBps": 1024.0}
BANDWIDTHS |= {"3 kBps": 3000.0, "0.1GBps": 1e8}


def same_links(a, b):
    def of(graph):
        return {(u, v): (link["latency"], link["bandwidth"]) for u, v, link in graph.edges(data=True)}

    return of(a) == of(b)


GRAPHS = {
    "star": star(5, 1e-3, 1.1e9),
    "tree": tree(9, 3, 1e-6, 1e9 / 3),
    "fat_tree": fat_tree(4, 1e-6, 1.25e9),
    "multi_gpu": multi_gpu_nodes(
        2, 3, intra_latency=2e-6, intra_bandwidth=3e11, nic_latency=6e-6, nic_bandwidth=2.5e10
    ),
    "wan": wan(['Zürich <&">', "B"], [[0, 0.1], [0.2, 0]], [[0, 1e6], [2e6, 0]], 2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_comes_back_link_by_link(tmp_path, name):
    write_platform(GRAPHS[name], tmp_path / "p.xml", routing="Dijkstra")
    again = read_platform(tmp_path / "p.xml")
    assert same_links(again.graph, GRAPHS[name])
    assert again.hosts == tuple(f"host:{i}" for i in range(len(again.hosts)))


def test_routes_are_those_written_though_others_are_shorter(tmp_path):
    links = "".join(
        f'<link id="{name}" bandwidth="1GBps" latency="{at}ms" sharing_policy="SHARED"/>'
        for at, name in enumerate("lmn", 1)
    )
    ways = [("A", "B", "lm"), ("A", "C", "ln"), ("B", "C", "lmn")]
    routes = ""
    for src, dst, way in ways:
        over = "".join(f'<link_ctn id="{one}"/>' for one in way)
        routes += f'<route src="{src}" dst="{dst}">{over}</route>'
    platform = read(tmp_path, f'<zone id="z" routing="Full">{HOSTS}{links}{routes}</zone>')
    # A node-link file of it has the routes as well.
    write_nodelink(platform.graph, tmp_path / "graph.json")
    for one in (platform, platform._replace(graph=read_nodelink(tmp_path / "graph.json"))):
        for src, dst, way in ways:
            a, b = (platform.hosts.index(end) for end in (src, dst))
            assert lanes(one, a, b) == list(way)
            assert lanes(one, b, a) == list(way[::-1])
            found = Routes(one.graph)
            assert found.candidates(a, b) == (found.route(a, b),)


@pytest.mark.parametrize("name", [*GRAPHS, "ring"])
def test_full_routes_keep_every_path_and_the_timing(tmp_path, name):
    graph = GRAPHS.get(name)
    graph = ring(6, 1e-3, 1e9) if graph is None else graph
    write_platform(graph, tmp_path / "p.xml", routes=Routes(graph, seed=3))
    body = (tmp_path / "p.xml").read_text()
    P = graph.graph["hosts"]
    assert body.count("<route ") == P * (P - 1)
    routes = Routes(graph, seed=3)
    again = read_platform(tmp_path / "p.xml")
    theirs = Routes(again.graph)
    for src in range(P):
        for dst in range(P):
            assert theirs.path_latency(src, dst) == pytest.approx(routes.path_latency(src, dst), rel=1e-12)
            assert theirs.bottleneck(src, dst) == routes.bottleneck(src, dst)
    schedule = alltoallv_pairwise(np.full((P, P), 1e5))
    expected = Network(graph, seed=3).time(schedule).finish
    assert Network(again.graph).time(schedule).finish == pytest.approx(expected, rel=1e-9)


def test_weather_is_written_as_profiles_and_read_back(tmp_path):
    graph = star(3, 1e-3, 1e9)
    weather = {
        (0, "switch"): Weather(bandwidth=steps([0, 1.5, 3], [1e9, 1e8 / 3, 2e9])),
        ("switch", 2): Weather(bandwidth=steps([0, 2], [5e8, 1e9]), latency=steps([0, 0.25], [1e-3, 0.1])),
    }
    write_platform(graph, tmp_path / "p.xml", weather, duration=10, routing="Dijkstra")
    again = read_platform(tmp_path / "p.xml")
    assert again.weather.keys() == weather.keys()
    for link, one in weather.items():
        for what in ("bandwidth", "latency"):
            mine, theirs = getattr(one, what), getattr(again.weather[link], what)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert [w.tolist() for w in mine.window(0, 10)] == [w.tolist() for w in theirs.window(0, 10)]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (
            "# comment\n% too\n\n1.0 0.001\n3.0 0.1\nLOOPAFTER 5.0\n",
            {0.5: 7, 1: 0.001, 3: 0.1, 8.5: 0.1, 9: 0.001, 11: 0.1},
        ),
        ("0 1\n5 2\n", {0: 1, 4.9: 1, 5: 2, 1e6: 2}),
        ("0 1\n5 2\nPERIODICITY 10\n", {0: 1, 5: 2, 10: 1, 15: 2, 10015: 2}),
        ("0 1\n5 2\nLOOPAFTER 0\n", {0: 1, 4.9: 1, 5: 1, 1000: 1}),
        ("2 1\n2 3\n", {0: 7, 2: 3}),
    ],
)
def test_profiles(tmp_path, text, at):
    (tmp_path / "x.profile").write_text(text)
    signal = read_link_profile(tmp_path / "x.profile", nominal=7)
    assert {t: signal.at(t) for t in at} == at


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.profile: has no dates"),
        ("1\n", "x.profile:1: must be a date and a value"),
        ("1 2\n0 1\n", "x.profile:2: must not be earlier than the date before (1), got 0"),
        ("1 -2\n", "x.profile:1: must be a finite number >= 0, got '-2'"),
        ("1 nan\n", "x.profile:1: is stochastic"),
        ("STOCHASTIC\nDET 1 UNIF 2 3\n", "x.profile:1: is stochastic"),
        ("0 1\n5 2\nPERIODICITY 3\n", "x.profile:3: repeats after 3 s, before its last date 5"),
        ("0 1\nLOOPAFTER 0\n", "x.profile:2: repeats after 0 s"),
        ("0 1\nLOOPAFTER 1\nPERIODICITY 5\n", "x.profile:3: repeats twice; LOOPAFTER stands in line 2"),
    ],
)
def test_profiles_refused(tmp_path, text, message):
    (tmp_path / "x.profile").write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        read_link_profile(tmp_path / "x.profile", 1.0)


LINK = '<link id="l" bandwidth="1GBps" latency="1us"/>'


def zone(*body):
    """A zone of full routes."""
    return f'<zone id="z" routing="Full">{"".join(body)}</zone>'


def link(name="l", **attributes):
    """A link of 1 byte a second, unless said otherwise."""
    own = " ".join(f'{key}="{one}"' for key, one in ({"bandwidth": "1Bps"} | attributes).items())
    return f'<link id="{name}" {own}/>'


def route(src, dst, *links, more=""):
    """A route over links."""
    return f'<route src="{src}" dst="{dst}" {more}>' + "".join(f'<link_ctn id="{one}"/>' for one in links) + "</route>"


def flat(radical, more=""):
    """A cluster."""
    return f'<cluster id="c" prefix="" suffix="" radical="{radical}" bw="1GBps" lat="0" {more}/>'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "p.xml:3: platform: has no hosts"),
        ('<zone id="z" routing="Vivaldi"/>', "zone.routing: 'Vivaldi' is not read"),
        ('<zone id="z" routing="full"/>', "did you mean 'Full'?"),
        ('<zone id="z"/>', "zone: has no attribute 'routing'"),
        (zone('<hots id="A"/>'), "<hots> is not read; did you mean 'host'?"),
        (zone('<host id="A"/>' * 2), "host.id: 'A' stands twice"),
        (zone(LINK, LINK), "link.id: 'l' stands twice"),
        (zone(link(bandwidth="1 Mo")), "link.bandwidth: '1 Mo' is not read"),
        (zone(link(bandwidth="0")), "link.bandwidth: must be > 0"),
        (zone(link(bandwidth="-1Bps")), "must be a finite number >= 0"),
        (zone(link(bandwidth="1e999Bps")), "must be a finite number >= 0"),
        (zone(link(latency="1Bps")), "link.latency: '1Bps' is not read"),
        (zone(link(state_file="x")), "links that fail end their transfers"),
        (zone(link(bandwidth_file="/etc/passwd")), "link.bandwidth_file: must lie beside the platform or below"),
        (zone(link(bandwidth_file="a/../../x")), "link.bandwidth_file: must lie beside the platform or below"),
        (zone(link(bandwidth_file="none.profile")), "none.profile: there is no such file"),
        (zone(HOSTS, LINK, route("A", "b", "l")), "route.dst: there is no 'b'; did you mean 'B'?"),
        (zone(HOSTS, LINK, route("A", "B", "m")), "link_ctn.id: there is no 'm'"),
        (zone(HOSTS, route("A", "B")), "route: has no links"),
        (zone(HOSTS, LINK, route("A", "B", "l"), route("B", "A", "l")), "there are two routes from host:"),
        (zone(HOSTS, link("f", sharing_policy="FATPIPE"), route("A", "B", "f")), "goes over 'f', a FATPIPE link"),
        (
            zone(
                *(HOSTS, LINK, link("m"), link("n"), route("A", "B", "l", "m"), route("A", "C", "l", "n")),
                route("B", "C", "l", "m", "l", more='symmetrical="no"'),
            ),
            "takes a link twice",
        ),
        (flat("0-3", 'topology="TORUS"'), "only flat clusters"),
        (flat("0-999999999"), "at most 100,000 hosts"),
        (flat("a-b"), "must be numbers and ranges such as 0-99"),
    ],
)
def test_platforms_refused(tmp_path, body, message):
    with pytest.raises(InputError) as refused:
        read(tmp_path, body)
    assert message in str(refused.value)
    assert ".xml:" in str(refused.value) or "profile" in str(refused.value)


BOMB = """<?xml version="1.0"?>
<!DOCTYPE platform [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;">]>
<platform version="4.1">&c;"""
EXTERNAL = """<!DOCTYPE platform [<!ENTITY x SYSTEM "file:///etc/passwd">]><platform version="4.1">&x;"""


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (BOMB, "declares its own document type"),
        (EXTERNAL, "declares its own document type"),
        ('<!DOCTYPE platform SYSTEM "http://localhost:1/x.dtd"><platform version="4.1">&x;', "uses an entity"),
        ('<platform version="4.1">&x;', "is not XML: undefined entity"),
        ('<platform version="4.1">' + "<zone>" * 100, "is nested more than 64 deep"),
        ('<platform version="4.1"><zone>', "is not XML: mismatched tag"),
        ("<platforms>", "is not XML"),
    ],
)
def test_hostile_xml(tmp_path, head, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path, "", head=head)


def test_write_refusals(tmp_path):
    graph = star(2, 1e-3, 1e9)
    some = {(0, "switch"): Weather(bandwidth=steps([0], [1e9]))}
    with pytest.raises(ValueError, match="weather needs a duration"):
        write_platform(graph, tmp_path / "p.xml", some)
    with pytest.raises(ValueError, match="there is weather for"):
        write_platform(graph, tmp_path / "p.xml", {(0, 1): Weather()}, duration=1)
    with pytest.raises(InputError, match="cannot be written"):
        write_platform(graph, tmp_path / "none" / "p.xml")
    odd = nx.DiGraph([(0, "a\n")], hosts=1)
    odd.edges[0, "a\n"].update(latency=0.0, bandwidth=1.0)
    with pytest.raises(ValueError, match="cannot stand in XML"):
        write_platform(odd, tmp_path / "p.xml")
