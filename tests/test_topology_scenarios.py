"""Every family of topologies in a scenario: the same graph as its builder makes, and a job that runs on it."""

from pathlib import Path

import networkx as nx
import pytest

from simnet.base.errors import InputError
from simnet.scenario import load, topology_parts
from simnet.studies.listing import networks
from simnet.topologies import dragonfly, fat_tree, multi_gpu_nodes, star, torus, wan_of_clusters

SCENARIO = """\
name: small
workers: 6
network:
  topology: {TOPOLOGY}
job: {parameters: 2000, iterations: 2, density: 0.01, compute: {mean: 10 ms}}
exchanges: {AG: {scheme: topk}}
policies: {AG: {fixed: AG}}
output: {report: false}
"""
FEW = {"groups": 2, "hosts_per_router": 1, "global_links": 1}
GPUS = {"intra_latency": 2e-6, "intra_bandwidth": 3e11, "nic_latency": 6e-6, "nic_bandwidth": 2.5e10}


@pytest.mark.parametrize(
    ("written", "graph"),
    [
        ("torus: {dims: [2, 4], latency: 1 us, bandwidth: 8 Gbit/s}", torus((2, 4), 1e-6, 1e9)),
        ("dragonfly: {routers: 2, latency: 1 us, bandwidth: 8 Gbit/s}", dragonfly(2, 1e-6, 1e9)),
        (
            "dragonfly: {routers: 3, latency: 1 us, bandwidth: 8 Gbit/s, groups: 2, hosts_per_router: 1, "
            "global_links: 1, global_latency: 2 us, global_bandwidth: 4 Gbit/s}",
            dragonfly(3, 1e-6, 1e9, **FEW, global_latency=2e-6, global_bandwidth=5e8),
        ),
        (
            "multi_gpu_nodes: {nodes: 3, gpus_per_node: 2, intra_latency: 2 us, intra_bandwidth: 300 GB/s, "
            "nic_latency: 6 us, nic_bandwidth: 200 Gbit/s, rails: true}",
            multi_gpu_nodes(3, 2, **GPUS, rails=True),
        ),
        (
            "multi_gpu_nodes: {nodes: 3, gpus_per_node: 2, intra_latency: 2 us, intra_bandwidth: 300 GB/s, "
            "nic_latency: 6 us, nic_bandwidth: 200 Gbit/s, rails: true, spines: 2, spine_bandwidth: 400 Gbit/s}",
            multi_gpu_nodes(3, 2, **GPUS, rails=True, spines=2, spine_bandwidth=5e10),
        ),
        (
            "wan_of_clusters: {sites: {Oregon: {fat_tree: {k: 4, latency: 1 us, bandwidth: 8 Gbit/s}}, "
            "Tokyo: {star: {hosts: 2, latency: 1 us, bandwidth: 8 Gbit/s}}}, latency: [[0, 50 ms], [60 ms, 0]], "
            "bandwidth: 1 Gbit/s, border_bandwidth: 80 Gbit/s, border_latency: 10 us}",
            wan_of_clusters(
                {"Oregon": fat_tree(4, 1e-6, 1e9), "Tokyo": star(2, 1e-6, 1e9)},
                latency=[[0, 50e-3], [60e-3, 0]],
                bandwidth=1.25e8,
                border_bandwidth=1e10,
                border_latency=1e-5,
            ),
        ),
    ],
)
@pytest.mark.parametrize("placement", ["packed", "spread"])
def test_scenario_has_the_graph_of_the_builder(tmp_path: Path, written, graph, placement):
    found = load(write(tmp_path, written), [f"network.placement={placement}"]).build().job.network(0).graph
    assert nx.utils.graphs_equal(found, graph)
    assert found.graph == graph.graph


def test_every_choice_of_the_schema_is_listed():
    listed = {row[0]: row[2] for row in networks()[1]}
    for name, field in topology_parts.Topology.model_fields.items():
        assert listed[name]
        assert field.default is None


CLUSTERS = (
    "wan_of_clusters: {sites: {Oregon: {ONE}, Tokyo: {star: {hosts: 3, latency: 1 us, bandwidth: 8 Gbit/s}}}, "
    "latency: 50 ms, bandwidth: 1 Gbit/s, border_bandwidth: 80 Gbit/s}"
)


def write(tmp_path: Path, topology: str) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO.replace("TOPOLOGY", topology))
    return path


def test_workers_are_spread_over_the_sites_and_weather_finds_them(tmp_path: Path):
    path = write(tmp_path, CLUSTERS.replace("ONE", "fat_tree: {k: 4, latency: 1 us, bandwidth: 8 Gbit/s}"))
    weather = "{links: Oregon<->Tokyo, bandwidth: {factor: 0.5}}, {links: 'site:Tokyo', latency: {factor: 2}}"
    run = load(path, ["network.placement=spread", f"network.weather=[{weather}]"]).build()
    assert run.job.placement == [0, 16, 1, 17, 2, 18]
    latency, bandwidth = run.job.network(0).path(0, 16)
    assert bandwidth == pytest.approx(1.25e8 / 2)
    assert latency == pytest.approx(0.1 + 3.5e-6)
    locked = tmp_path / "lock.yaml"
    locked.write_text(load(path).lock())
    assert nx.utils.graphs_equal(load(locked).build().job.network(0).graph, load(path).build().job.network(0).graph)


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ("star: {latency: 1 us, bandwidth: 8 Gbit/s}", r"a.yaml:4: .*sites.Oregon: needs star.hosts"),
        ("fat_tree: {k: 2, latency: 1 us, bandwidth: 0}", r"sites.Oregon.fat_tree.bandwidth: must be"),
        ("fattree: {k: 2}", r"sites.Oregon.fattree.*did you mean 'fat_tree'"),
        (
            "dragonfly: {routers: 3, latency: 0, bandwidth: 1 bps}",
            r"a.yaml:4: network.topology: site Oregon: hosts_per_router",
        ),
    ],
)
def test_what_is_wrong_with_a_site_is_said_of_it(tmp_path: Path, site, message):
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, CLUSTERS.replace("ONE", site))).build()
