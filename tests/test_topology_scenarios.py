"""Every family of topologies in a scenario: the same graph as its builder makes, and a job that runs on it."""

from pathlib import Path

import networkx as nx
import pytest

from simnet.listing import topologies_
from simnet.scenario import load, schema
from topologies import dragonfly, multi_gpu_nodes, torus

SCENARIO = """\
name: small
workers: 6
network:
  topology: {TOPOLOGY}
job:
  parameters: 2000
  iterations: 2
  density: 0.01
  compute: {mean: 10 ms}
exchanges:
  AG: {scheme: topk}
policies:
  AG: {fixed: AG}
output: {report: false}
"""
GPUS = {"intra_latency": 2e-6, "intra_bandwidth": 3e11, "nic_latency": 6e-6, "nic_bandwidth": 2.5e10}


@pytest.mark.parametrize(
    ("written", "graph"),
    [
        ("torus: {dims: [2, 4], latency: 1 us, bandwidth: 8 Gbit/s}", torus((2, 4), 1e-6, 1e9)),
        ("dragonfly: {routers: 2, latency: 1 us, bandwidth: 8 Gbit/s}", dragonfly(2, 1e-6, 1e9)),
        (
            "dragonfly: {routers: 3, latency: 1 us, bandwidth: 8 Gbit/s, groups: 2, hosts_per_router: 1, "
            "global_links: 1, global_latency: 2 us, global_bandwidth: 4 Gbit/s}",
            dragonfly(
                3,
                1e-6,
                1e9,
                groups=2,
                hosts_per_router=1,
                global_links=1,
                global_latency=2e-6,
                global_bandwidth=5e8,
            ),
        ),
        (
            "multi_gpu_nodes: {nodes: 3, gpus_per_node: 2, intra_latency: 2 us, intra_bandwidth: 300 GB/s, "
            "nic_latency: 6 us, nic_bandwidth: 200 Gbit/s, rails: true}",
            multi_gpu_nodes(3, 2, **GPUS, rails=True),
        ),
    ],
)
@pytest.mark.parametrize("placement", ["packed", "spread"])
def test_scenario_has_the_graph_of_the_builder(tmp_path: Path, written, graph, placement):
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO.replace("TOPOLOGY", written))
    found = load(path, [f"network.placement={placement}"]).build().job.network(0).graph
    assert nx.utils.graphs_equal(found, graph)
    assert found.graph == graph.graph


def test_every_choice_of_the_schema_is_listed():
    listed = {row[0]: row[2] for row in topologies_()[1]}
    for name, field in schema.Topology.model_fields.items():
        assert name == "registered" or listed[name]
        assert field.default is None
