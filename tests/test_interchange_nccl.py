"""NCCL topology dumps: hand-written nodes of several kinds, their routes and bandwidths, and what is refused."""

import pytest

import simnet
from commands import did, refused, timed
from schedules import write_nodelink
from simnet.base.errors import InputError
from simnet.interchange.nccl import read_nccl_topology
from simnet.studies.assumptions import assumed_text
from simnet.topologies import Routes, star
from simnet.topologies.graphs import check_graph


def gpu(number, bus, links, sm=90):
    inner = "".join(f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>' for target, count, kind in links)
    return (
        f'<pci busid="{bus}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{number}" sm="{sm}" rank="{number}" gdr="1">{inner}</gpu></pci>\n'
    )


def card(name, bus, speed=400000, latency="0.000000"):
    return (
        f'<pci busid="{bus}" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="{name}" '
        f'dev="0" speed="{speed}" port="1" latency="{latency}" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>\n'
    )


def switch(bus, *inside):
    return f'<pci busid="{bus}" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">{"".join(inside)}</pci>\n'


def cpu(number, *inside, vendor='arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"'):
    return f'<cpu host_hash="0x1" numaid="{number}" affinity="ff" {vendor}>\n{"".join(inside)}</cpu>\n'


def read(tmp_path, *cpus, nodes=1, version="1", **options):
    path = tmp_path / "topo.xml"
    path.write_text(f'<system version="{version}">\n{"".join(cpus)}</system>\n')
    return read_nccl_topology(path, nodes, **({"latency": 1e-6} | options))


NVS = [("0000:05:00.0", 9, "0x068000"), ("0000:06:00.0", 9, "0x068000")]
H100 = [
    cpu(0, switch("0000:16:00.0", gpu(1, "0000:18:00.0", NVS), card("mlx5_0", "0000:19:00.0"))),
    cpu(1, switch("0000:96:00.0", gpu(0, "0000:98:00.0", NVS), card("mlx5_1", "0000:99:00.0", 200000))),
]


def kinds(graph, src, dst):
    routes = Routes(graph)
    return [graph.edges[routes.links[i]]["kind"] for i in routes.route(src, dst)]


def test_one_node_with_switches(tmp_path):
    graph = read(tmp_path, *H100)
    assert check_graph(graph) == 2
    assert kinds(graph, 0, 1) == ["nvlink", "nvlink"]
    assert Routes(graph).bottleneck(0, 1) == pytest.approx(18 * 20.6e9)
    # Device 0 hangs on processor 1.
    assert graph.edges[0, "node:0/pci:0000:96:00.0"]["bandwidth"] == 48e9
    assert graph.edges["node:0/cpu:0", "node:0/cpu:1"]["bandwidth"] == 40e9
    assert "fabric" not in graph


def test_several_nodes_leave_by_the_nearest_card(tmp_path):
    graph = read(tmp_path, *H100, nodes=3, network_latency=5e-6)
    assert check_graph(graph) == 6
    routes = Routes(graph)
    way = [routes.links[i] for i in routes.route(0, 4)]
    assert ("node:0/net:mlx5_1:1", "fabric") in way
    assert ("fabric", "node:2/net:mlx5_1:1") in way
    assert routes.bottleneck(0, 4) == 25e9
    assert routes.bottleneck(1, 3) == 48e9
    assert kinds(graph, 1, 3).count("nic") == 2
    assert routes.path_latency(0, 4) == pytest.approx(5e-6 + 1e-6 * (len(way) - 2))


def test_direct_nvlinks_and_defaults(tmp_path):
    bridge = [("0002:00:00.0", 12, "0x030200")]
    back = [("0001:00:00.0", 12, "0x030200")]
    first = (
        gpu(0, "0001:00:00.0", bridge, 80).replace("32.0 GT/s PCIe", "").replace('link_width="16"', 'link_width="0"')
    )
    nic = '<nic><net name="eth0" dev="0" speed="100000" port="0" latency="75" guid="0x0" maxconn="1" gdr="0"/></nic>'
    graph = read(
        tmp_path,
        cpu(0, first, nic, vendor='arch="x86_64" vendor="AuthenticAMD"'),
        cpu(1, gpu(1, "0002:00:00.0", back, 80), vendor='arch="x86_64" vendor="AuthenticAMD"'),
        nodes=2,
    )
    assert graph.edges[0, 1]["bandwidth"] == graph.edges[1, 0]["bandwidth"] == 240e9
    assert graph.edges[0, "node:0/cpu:0"]["bandwidth"] == 12e9
    assert graph.edges["node:0/cpu:0", "node:0/cpu:1"]["bandwidth"] == 16e9
    assert graph.edges["node:0/net:eth0:0", "fabric"]["latency"] == pytest.approx(75e-6)
    assert Routes(graph).bottleneck(1, 3) == 12.5e9


@pytest.mark.parametrize(
    ("what", "gigabytes"),
    [
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"', 6),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', 10),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 22),
        ('arch="ppc64" vendor=""', 32),
        ('arch="arm64" vendor="ARM"', 6),
    ],
)
def test_processors(tmp_path, what, gigabytes):
    graph = read(tmp_path, cpu(0, gpu(0, "a", []), vendor=what), cpu(1, gpu(1, "b", []), vendor=what))
    assert graph.edges["node:0/cpu:0", "node:0/cpu:1"]["bandwidth"] == gigabytes * 1e9
    assert kinds(graph, 0, 1) == ["pci", "sys", "pci"]


def test_nvlink_to_the_processor(tmp_path):
    node = cpu(0, switch("s", gpu(0, "a", [("x", 3, "0x068001")], 70)), vendor='arch="ppc64"')
    graph = read(tmp_path, node, cpu(1, gpu(1, "b", []), vendor='arch="ppc64"'))
    assert graph.edges[0, "node:0/cpu:0"]["bandwidth"] == 60e9
    assert kinds(graph, 0, 1) == ["nvlink", "sys", "pci"]


AMD = 'arch="x86_64" vendor="AuthenticAMD"'


@pytest.mark.parametrize(
    ("architecture", "gigabytes"), [("942", 48), ("gfx942", 48), ("950", 48), ("90a", 36), ("910", 36), ("906", 24)]
)
def test_gpus_of_rccl_are_joined_by_their_xgmi_links(tmp_path, architecture, gigabytes):
    def one(number):
        links = [(f"000{other}", 1, "0x120000") for other in range(3) if other != number]
        return (
            gpu(number, f"000{number}", links, 94)
            .replace("nvlink", "xgmi")
            .replace("<gpu", f'<gpu gcn="{architecture}"')
        )

    graph = read(
        tmp_path, "<!------------\n - (c) -\n------------>", cpu(0, *map(one, range(3)), vendor=AMD), version="2"
    )
    assert graph.edges[0, 2]["bandwidth"] == gigabytes * 1e9
    assert kinds(graph, 2, 1) == ["xgmi"]


def test_hosts_of_one_domain_are_apart_by_their_hash(tmp_path):
    switched = [("fffffff:ff:ff.0", 18, "0x068000")]
    first = [cpu(side, gpu(side, f"{side}a", switched, 100), card(f"m{side}", f"{side}b")) for side in (0, 1)]
    second = [one.replace('host_hash="0x1"', 'host_hash="0x2"') for one in first]
    graph = read(tmp_path, *first, *second)
    assert check_graph(graph) == 4
    assert [kinds(graph, 0, other) for other in (1, 2, 3)] == [["nvlink", "nvlink"]] * 3
    assert Routes(graph).bottleneck(0, 3) == pytest.approx(18 * 40.1e9)
    # Processors of a host are joined; hosts are by the network alone.
    assert graph.has_edge("node:0/host:1/cpu:0", "node:0/host:1/cpu:1")
    assert not graph.has_edge("node:0/cpu:0", "node:0/host:1/cpu:0")
    assert graph.has_edge("node:0/host:1/net:m0:1", "fabric")


def test_c2c_carries_what_goes_to_cards_and_virtual_machines_know_no_lanes(tmp_path):
    slow = gpu(0, "a", [], 121).replace("32.0 GT/s PCIe", "2.5 GT/s PCIe")
    nic = card("m", "b", 200000).replace('link_width="16"', 'link_width="4"')
    joined = slow.replace("</gpu>", '<c2c bw="43125" count="8"/></gpu>')
    for node, kind, gigabytes in ((slow, "pci", 3), (joined, "c2c", 12)):
        graph = read(tmp_path, cpu(0, node, nic, vendor='arch="arm64"'), nodes=2)
        assert kinds(graph, 0, 1)[0] == kind
        assert Routes(graph).bottleneck(0, 1) == gigabytes * 1e9
    unknown = gpu(0, "a", []).replace("32.0 GT/s PCIe", "Unknown").replace('link_width="16"', 'link_width="255"')
    graph = read(tmp_path, cpu(-1, unknown, card("m", "b").replace('speed="400000"', 'speed="-1"')), nodes=2)
    assert graph.edges[0, "node:0/cpu:-1"]["bandwidth"] == 12e9
    assert Routes(graph).bottleneck(0, 1) == 1.25e9


def test_partitions_share_the_links_of_their_gpu(tmp_path):
    links = [("b", 9, "0x030200")]
    halves = gpu(0, "a", links, 100).replace('<gpu dev="0"', '<gpu mlopart="0" dev="0"')
    other = halves[halves.index("<gpu") : halves.index("</pci>")].replace('mlopart="0" dev="0"', 'mlopart="1" dev="1"')
    graph = read(tmp_path, cpu(0, halves.replace("</pci>", f"{other}</pci>"), gpu(2, "b", [("a", 9, "0x030200")], 100)))
    assert check_graph(graph) == 3
    assert [kinds(graph, *pair) for pair in ((0, 1), (0, 2))] == [["pci", "pci"], ["pci", "nvlink"]]
    assert [Routes(graph).bottleneck(half, 2) for half in (0, 1)] == pytest.approx([9 * 40.1e9] * 2)


def test_what_is_not_known_is_said_once(tmp_path):
    strange = gpu(0, "a", []).replace("</gpu>", "<photonic/><photonic/></gpu>")
    graph = read(tmp_path, cpu(0, strange, card("m", "b").replace("</nic>", "<gin/><optics/></nic>")))
    said = "is not known and passed over: figures have nothing of what it joins"
    assert graph.graph["remarks"] == [f"<optics> in <nic> {said}", f"<photonic> in <gpu> {said}"]
    assert "remarks" not in read(tmp_path, *H100).graph
    # A job that saw a part of the GPUs: NCCL passes over the links to others, too.
    part = read(tmp_path, cpu(0, gpu(0, "a", [("b", 2, "0x030200"), ("c", 1, "0x030200")]), gpu(1, "b", [])))
    assert part.graph["remarks"] == ["links to GPUs that are not in the file are passed over: c"]
    assert Routes(part).bottleneck(0, 1) == 2 * 20.6e9
    run = simnet.load("quickstart", network=f"{tmp_path / 'topo.xml'}:latency=1us", workers=2)
    assert "GPUs that are not in the file" in assumed_text(run, run.build())


@pytest.mark.parametrize(
    ("collective", "workers", "nodes", "rate"),
    [
        ("all_reduce", 4, 1, 144e9),
        ("all_gather", 3, 1, 96e9),
        ("allreduce_ring", 4, 1, 48e9),
        # Nodes that stand idle change nothing; between whole nodes each link and each card carries a chain both ways.
        ("all_reduce", 4, 2, 144e9),
        ("all_reduce", 8, 2, 192e9),
    ],
)
def test_rings_over_the_links_of_a_mesh(tmp_path, collective, workers, nodes, rate):
    gpus = [gpu(g, f"g{g}", [(f"g{h}", 1, "0x120000") for h in range(4) if h != g]) for g in range(4)]
    joined = [one.replace("<nvlink", "<xgmi").replace("<gpu", '<gpu gcn="942"') for one in gpus]
    read(tmp_path, cpu(0, *(switch(f"s{g}", one, card(f"m{g}", f"c{g}")) for g, one in enumerate(joined))))
    asked = ("--network", tmp_path / "topo.xml", "--latency", "1us", "--workers", workers, "--size", "1GB")
    assert timed(collective, *asked, "--set", f"nodes={nodes}")["busbw_Bps"] == pytest.approx(rate, rel=0.01)


def test_latencies_are_asked_for_where_a_file_has_none(tmp_path):
    read(tmp_path, *H100)
    ring = ("time", "allreduce_ring", "--size", "1MB", "--workers", 4, "--network")
    assert "give latency (--latency 1us)" in refused(*ring, tmp_path / "topo.xml")
    assert "topo.xml --latency 1us" in " ".join(did("show", tmp_path / "topo.xml").stdout.split())
    assert "must be at most 2, the hosts" in refused(*ring, tmp_path / "topo.xml", "--latency", "1us")
    write_nodelink(star(5, 1e-3, 1e9), tmp_path / "star.json")
    assert "which says itself what its links are" in refused(*ring, tmp_path / "star.json", "--latency", "1us")


@pytest.mark.parametrize(
    ("collective", "channels", "used", "least", "most"),
    [
        # Eight cards of 50 GB/s, and NVLinks of 370.8 GB/s: 1 GiB took 4.39 ms on two such nodes.
        ("allreduce_ring", 8, 16, 4.3, 5.5),
        ("all_reduce", 8, 16, 4.3, 5.5),
        ("allreduce_ring:channels=1", 0, 2, 39, 43),
        ("allreduce_tree:arity=1,segments=64,channels=8", 8, 16, 5, 7),
        ("all_gather:bruck", 0, 16, 0, 99),
    ],
)
def test_a_ring_goes_over_each_card_and_the_share_of_cards_is_said(tmp_path, collective, channels, used, least, most):
    cards = [switch(f"s{g}", gpu(g, f"g{g}", [("x", 18, "0x068000")]), card(f"m{g}", f"c{g}")) for g in range(8)]
    read(tmp_path, cpu(0, *cards))
    said = ("--network", tmp_path / "topo.xml", "--latency", "1us", "--workers", 16, "--set", "nodes=2")
    summary = timed(collective, *said, "--size", "1GiB")
    assert least <= 1e3 * summary["time_s"] <= most
    assert f"over {used} of 16 network cards" in summary["answer"]
    assert (f"in {channels} channels" in summary["answer"]) == bool(channels)


@pytest.mark.parametrize(
    ("cpus", "options", "message"),
    [
        ([], {}, "topo.xml:1: system: has no GPUs"),
        ([], {"version": "3"}, "system.version: must be 1 (NCCL) or 2 (RCCL), got '3'"),
        (
            [cpu(0, switch("a", '<pci busid="b" class="0x030200"/>'))],
            {},
            "has no GPUs: a hint for NCCL (NCCL_TOPO_FILE)",
        ),
        ([cpu(0, gpu(0, "a", []).replace("</pci>", '<gpu dev="1" sm="90"/></pci>'))], {}, "no attribute 'mlopart'"),
        ([cpu(0, gpu(0, "a", []).replace("</gpu>", '<c2c bw="0" count="8"/></gpu>'))], {}, "c2c.bw: must be a whole"),
        ([cpu(0, gpu(0, "a", [])), cpu(0)], {}, "cpu.numaid: 'cpu:0' stands twice"),
        ([cpu(0, gpu(0, "a", []), gpu(1, "a", []))], {}, "pci.busid: 'pci:a' stands twice"),
        ([cpu(0, gpu(0, "a", [("a", 1, "0x030200")]))], {}, "nvlink.target: leads from a GPU to itself"),
        ([cpu(0, gpu(0, "a", [("b", 1, "0x0")]))], {}, "nvlink.tclass: leads to a device of class '0x0'"),
        ([cpu(0, gpu(0, "a", [("b", 0, "0x030200")]))], {}, "nvlink.count: must be a whole number in 1..1000, got '0'"),
        ([cpu(0, gpu(0, "a", []))], {"nodes": 2}, "has no network card"),
        ([cpu(0, gpu("x", "a", []))], {}, "gpu.dev: must be a whole number"),
        ([cpu(0, gpu(0, "a", []), card("m", "b", speed="fast"))], {}, "net.speed: must be a whole number"),
        ([cpu(0, gpu(0, "a", []), card("m", "b", latency="nan"))], {}, "net.latency: must be a finite number >= 0"),
        (["<cpu><gpu/></cpu>"], {}, "cpu: has no attribute 'numaid'"),
    ],
)
def test_refusals(tmp_path, cpus, options, message):
    with pytest.raises(InputError) as said:
        read(tmp_path, *cpus, **options)
    assert message in str(said.value)
    assert "topo.xml:" in str(said.value)
