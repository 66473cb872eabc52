"""Networks from calibrations: which nodes ranks are on, links that are found again, and fabric files as topologies."""

import numpy as np
import pandas as pd
import pytest

from commands import did, refused
from simnet import collectives, topologies
from simnet.base.errors import InputError
from simnet.cost_models.calibration import Curve, Setting, load_cost_model
from simnet.cost_models.calibration.readers import write_tidy
from simnet.cost_models.calibration.readers.tables import measurement_table
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel, fit_step_model
from simnet.cost_models.calibration.topology_links import Placement, fill_nodes_of, fit_topology_links, place_ranks
from simnet.interchange.calibrated_network import read_fabric_network
from simnet.interchange.kinds import kind_of, read_network
from simnet.network import Network

SIZES = 2.0 ** np.arange(8, 26, 2)
RINGS = {
    "all_reduce": collectives.allreduce_ring,
    "all_gather": lambda p, size: collectives.allgather_ring(p, size / p),
}


def simulated(graph, hosts, nodes, name="all_reduce"):
    network = Network(graph)
    seconds = [network.time(RINGS[name](hosts, size)).finish for size in SIZES]
    return Curve(Setting(name, hosts, nodes, "ring"), SIZES, np.array(seconds))


@pytest.mark.parametrize(("latency", "bandwidth"), [(1e-3, 12.5e6), (2e-5, 1.25e9), (5e-6, 2.5e10)])
def test_a_star_is_found_again_from_its_times(latency, bandwidth):
    curves = [
        simulated(topologies.star(hosts, latency, bandwidth), hosts, hosts, name) for hosts in (4, 8) for name in RINGS
    ]
    found = fit_topology_links(place_ranks("star", {}), fit_step_model(curves, nccl=False), curves)
    star = found.parameters["star"]
    assert star["hosts"] == 8
    assert star["latency"] == pytest.approx(latency, rel=0.15)
    assert star["bandwidth"] == pytest.approx(bandwidth, rel=0.05)
    assert not found.undetermined
    again = [simulated(topologies.build("star", **star), 8, 8, name) for name in RINGS]
    for one, name in zip(again, RINGS, strict=True):
        truth = simulated(topologies.star(8, latency, bandwidth), 8, 8, name)
        np.testing.assert_allclose(one.seconds, truth.seconds, rtol=0.15)


def test_nodes_of_several_gpus_are_found_again_and_what_was_not_seen_is_said():
    graph = {n: topologies.multi_gpu_nodes(n, 4, intra_latency=2e-6, intra_bandwidth=2e11, nic_latency=8e-6,
                                           nic_bandwidth=2.5e10) for n in (1, 2)}  # fmt: skip
    curves = [simulated(graph[n], 4 * n, n, name) for n in (1, 2) for name in RINGS]
    found = fit_topology_links(place_ranks("multi_gpu_nodes", {}), fit_step_model(curves, nccl=True), curves)
    made = found.parameters["multi_gpu_nodes"]
    assert (made["nodes"], made["gpus_per_node"]) == (2, 4)
    assert made["intra_bandwidth"] == pytest.approx(2e11, rel=0.2)
    assert made["nic_bandwidth"] == pytest.approx(2.5e10, rel=0.2)
    between = [one for one in curves if one.setting.nodes > 1]
    part = fit_topology_links(place_ranks("multi_gpu_nodes", {}), fit_step_model(between, nccl=True), between)
    assert "inner_seconds_per_byte" in part.undetermined
    inside = [one for one in curves if one.setting.nodes == 1]
    alone = fit_topology_links(place_ranks("multi_gpu_nodes", {}), fit_step_model(inside, nccl=True), inside)
    assert alone.parameters["multi_gpu_nodes"]["nodes"] == 1
    assert {"outer_latency", "outer_seconds_per_byte"} <= set(alone.undetermined)


@pytest.mark.parametrize("smallest", [8.0, 2.0**16, 2.0**24])
def test_latencies_are_what_a_step_costs_beside_its_bytes_whatever_the_smallest_size(smallest):
    values = {
        **dict.fromkeys(PARAMETERS, 1.0), "launch": 1e-4, "inner_latency": 2e-6, "outer_latency": 5e-5,
        "inner_seconds_per_byte": 1e-11, "outer_seconds_per_byte": 1e-9, "gamma": 1e-30, "ll_byte_factor": 1e9,
    }  # fmt: skip
    steps = StepModel(False, tuple(values.values()))
    curves = [Curve(Setting("all_reduce", 8, 2, "ring"), smallest * np.array([1, 2]), np.ones(2))]
    star = fit_topology_links(place_ranks("star", {}), steps, curves).parameters["star"]
    assert (star["latency"], star["bandwidth"]) == pytest.approx((5e-5, 1e9), rel=1e-9)
    alone = [Curve(Setting("all_reduce", 8, 1, "ring"), curves[0].sizes, np.ones(2))]
    star = fit_topology_links(place_ranks("star", {}), steps, alone).parameters["star"]
    assert (star["latency"], star["bandwidth"]) == pytest.approx((2e-6, 1e11), rel=1e-9)
    nodes = fit_topology_links(place_ranks("multi_gpu_nodes", {}), steps, curves).parameters["multi_gpu_nodes"]
    assert (nodes["intra_latency"], nodes["nic_latency"]) == pytest.approx((2e-6, 4.8e-5), rel=1e-9)


class TestPlaces:
    def test_nodes_come_from_the_topology_only_where_logs_do_not_say_them(self):
        rows = pd.DataFrame(
            {"ranks": [16, 6, 16], "nodes": [None, None, 16], "ranks_per_node": [None] * 3}, dtype="Int64"
        )
        made = fill_nodes_of(rows, place_ranks("multi_gpu_nodes", {"gpus_per_node": 8}))
        assert made["nodes"].tolist() == [2, 1, 16]
        assert made["ranks_per_node"].tolist()[:2] == [8, 6]
        assert fill_nodes_of(rows, place_ranks("star", {}))["nodes"].tolist() == [16, 6, 16]
        assert fill_nodes_of(rows, Placement("multi_gpu_nodes", None)) is rows

    @pytest.mark.parametrize(
        ("name", "given", "message"),
        [
            ("starr", {}, "did you mean 'star'"),
            ("star", {"gpus_per_node": 8}, "is not for --network star"),
            ("multi_gpu_nodes", {"intra_bandwidth": "fast"}, "intra_bandwidth: .*'fast'"),
            ("multi_gpu_nodes", {"gpus_per_node": 0}, r"must be a whole number in 1\.\."),
            ("multi_gpu_nodes", {"gpus": 8}, "allowed: gpus_per_node=N"),
        ],
    )
    def test_what_is_refused(self, name, given, message):
        with pytest.raises(InputError, match=message):
            place_ranks(name, given)


class TestFabricAsTopology:
    GOOD = "# ours\nversion: 1\nnetwork:\n  star: {hosts: 4, latency: 0.001,\n    bandwidth: 1e+9}\ncurves: []\n"

    def test_the_network_is_read_and_may_have_other_numbers_of_nodes(self, tmp_path):
        (tmp_path / "f.yaml").write_text(self.GOOD)
        assert kind_of(tmp_path / "f.yaml") == "fabric"
        assert read_network(tmp_path / "f.yaml").graph.graph["hosts"] == 4
        assert read_network(tmp_path / "f.yaml", nodes=9).graph.graph["hosts"] == 9
        with pytest.raises(ValueError, match="latency is only for an NCCL"):
            read_network(tmp_path / "f.yaml", latency=1.0)

    @pytest.mark.parametrize(
        ("before", "after", "message"),
        [
            ("network", "netwrk", "network: is missing: add --network"),
            ("network:\n", "network:x\n", "is no"),
            ("star: {", "tree: {", "there is no 'tree' in a fabric file"),
            ("hosts: 4, ", "", "must have hosts, latency, bandwidth"),
            ("hosts: 4", "hosts: 4.5", "network.star: hosts must be a whole number"),
            ("hosts: 4", "hosts: 4000000000", "at most"),
            ("hosts: 4", "hosts: -4", "hosts"),
            ("0.001", "fast", "network.star: latency must be a number"),
            ("0.001", ".nan", "latency"),
            ("0.001", "-1", "latency"),
            ("0.001", "!!python/name:os.system x", ":4: has the tag"),
            ("1e+9}", "1e+9", "is not YAML"),
            ("star: {hosts: 4, latency: 0.001,\n    bandwidth: 1e+9}", "[]", "must be one topology"),
            (
                "star: {hosts: 4, latency: 0.001,\n    bandwidth: 1e+9}",
                "[" * 5000,
                ":4: is nested more than 40 deep",
            ),
        ],
    )
    def test_what_is_refused(self, tmp_path, before, after, message):
        (tmp_path / "f.yaml").write_text(self.GOOD.replace(before, after))
        with pytest.raises(InputError, match=message):
            read_fabric_network(tmp_path / "f.yaml")

    def test_from_logs_to_a_network_that_times_schedules(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        curves = [simulated(topologies.star(hosts, 1e-4, 1e9), hosts, 0) for hosts in (4, 8)]
        common = {"collective": "all_reduce", "algorithm": "ring"}
        rows = [
            common | {"ranks": one.setting.ranks, "nbytes": int(size), "seconds": time}
            for one in curves
            for size, time in zip(one.sizes, one.seconds, strict=True)
        ]
        write_tidy(measurement_table(rows), tmp_path / "device")
        done = did("calibrate", "./device", "-o", "f.yaml", "--network", "star", "--wide")
        assert "network: star, hosts 8" in done.output
        assert load_cost_model("f.yaml").network["star"]["hosts"] == 8
        assert {one.setting.nodes for one in load_cost_model("f.yaml").model.known} == {4, 8}
        did("time", "allreduce_ring", "--network", "f.yaml", "--workers", "8", "--size", "1 MiB")
        topology = f"network.topology={{file: {{path: {tmp_path / 'f.yaml'}, nodes: 8}}}}"
        few = ["--set", "job.iterations=2", "--set", topology, "--policies", "AG"]
        did("run", "quickstart", *few, "--out", "out", "-q")
        wrong = refused("calibrate", "./device", "-o", "g.yaml", "--network", "star:gpus_per_node=8")
        assert "is not for --network star; allowed: gpus_per_node=N and intra_bandwidth=RATE" in wrong
