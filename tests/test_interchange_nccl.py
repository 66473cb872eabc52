"""NCCL topology dumps: hand-written nodes of several kinds, their routes and bandwidths, and what is refused."""

import pytest

from simnet.base.errors import InputError
from simnet.interchange.nccl import read_nccl_topology
from simnet.topologies import Routes
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


@pytest.mark.parametrize(
    ("cpus", "options", "message"),
    [
        ([], {}, "topo.xml:1: system: has no GPUs"),
        ([], {"version": "2"}, "system.version: must be 1, got '2'"),
        ([cpu(0), cpu(0)], {}, "cpu.numaid: 'cpu:0' stands twice"),
        ([cpu(0, gpu(0, "a", []), gpu(1, "a", []))], {}, "pci.busid: 'pci:a' stands twice"),
        ([cpu(0, gpu(0, "a", [("b", 1, "0x030200")]))], {}, "nvlink.target: there is no GPU at 'b'"),
        ([cpu(0, gpu(0, "a", [("a", 1, "0x030200")]))], {}, "nvlink.target: leads from a GPU to itself"),
        ([cpu(0, gpu(0, "a", [("b", 1, "0x0")]))], {}, "nvlink.tclass: leads to a device of class '0x0'"),
        ([cpu(0, gpu(0, "a", [("b", 0, "0x030200")]))], {}, "nvlink.count: must be a whole number in 1..1000, got '0'"),
        ([cpu(0, gpu(0, "a", []))], {"nodes": 2}, "has no network card"),
        ([cpu(0, gpu("x", "a", []))], {}, "gpu.dev: must be a whole number"),
        ([cpu(0, gpu(0, "a", []), card("m", "b", speed="fast"))], {}, "net.speed: must be a whole number"),
        ([cpu(0, gpu(0, "a", []), card("m", "b", latency="nan"))], {}, "net.latency: must be a finite number >= 0"),
        (["<cpu/>"], {}, "cpu: has no attribute 'numaid'"),
    ],
)
def test_refusals(tmp_path, cpus, options, message):
    with pytest.raises(InputError) as refused:
        read(tmp_path, *cpus, **options)
    assert message in str(refused.value)
    assert "topo.xml:" in str(refused.value)
