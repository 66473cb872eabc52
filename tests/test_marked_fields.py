"""The shared flags as fields of every scenario: what each sets, what it takes the place of, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import simnet
from commands import NO_PAGE, did, refused
from simnet.base.errors import InputError
from simnet.scenario.marked_fields import MARKED_FIELDS, Fields, overrides_of
from simnet.scenario.named_choices import network_taken_for
from test_interchange_nccl import H100

FEW = ("--set", "job.iterations=2", *NO_PAGE, "--jobs", "1", "--out", "run")
PLATFORM = """\
<platform version="4.1"><zone id="z" routing="Full">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/><link id="l" bandwidth="1GBps" latency="1ms"/>
<route src="a" dst="b"><link_ctn id="l"/></route></zone></platform>
"""
CLUSTER = "version: 1\nnetwork:\n  star: {hosts: 4, latency: 1e-5, bandwidth: 1e9}\n"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lock() -> str:
    return Path("run", "scenario.lock.yaml").read_text()


def given(name, **fields):
    """Return the resolved fields of a shipped scenario with marked fields."""
    return simnet.load(name, **fields).config


def test_the_fields_of_python_are_the_marked_ones():
    assert list(Fields.__annotations__) == [one.name for one in MARKED_FIELDS]
    assert {one.panel for one in MARKED_FIELDS} == {"Workload", "Network"}


@pytest.mark.parametrize(
    ("scenario", "short", "written"),
    [
        ("quickstart", "bandwidth=1Gbit/s", "star: {hosts: 4, latency: 2 ms, bandwidth: 1 Gbit/s}"),
        ("quickstart", "spread=7%", "spread: 0.07"),
        ("sharded_nodes", "latency=1 ms", "nic_latency: 1 ms"),
        ("two_level_nodes", "bandwidth=1Gbit/s", "nic_bandwidth: 1 Gbit/s"),
    ],
)
def test_set_takes_short_names_on_every_scenario(scenario, short, written):
    did("run", scenario, "--set", short, *FEW)
    assert written in lock()


def test_the_library_takes_marked_fields_and_the_command_runs_what_they_are():
    loaded = simnet.load("quickstart", density="1%", bandwidth=1.25e8, workers=3, compute=0.02, seed=5)
    fields = {"density": "1%", "bandwidth": 1.25e8, "workers": 3, "compute": 0.02, "seed": 5, "latency": None}
    options = [word for one in overrides_of("quickstart", fields) for word in ("--set", one)]
    did("run", "quickstart", *options, *FEW)
    assert lock().partition("\n")[2].replace("iterations: 2", "iterations: 80") == loaded.lock().replace(
        "report: true", "report: false"
    )


def test_schemes_take_the_place_of_exchanges_and_policies():
    did(
        "run", "quickstart", *FEW,
        *(word for one in overrides_of("quickstart", {"schemes": "topk,artopk:collective=tree,selection=var,dense"})
          for word in ("--set", one)),
    )  # fmt: skip
    policies = json.loads(Path("run", "summary.json").read_text())["policies"]
    assert set(policies) == {"topk", "artopk:collective=tree:selection=var", "dense"}
    every = given("compare", schemes="all")
    assert len(every.policies) > 30
    assert list(every.policies) == list(every.exchanges)


def test_a_model_is_a_name_a_size_or_a_file(tmp_path):
    assert given("base", model="gpt2").job.model == "gpt2"
    sized = given("base", model="25000000", compute="10 ms").job
    assert (sized.model, sized.parameters) == (None, 25_000_000)
    assert given("base", model="7B", compute="10 ms").job.parameters == 7_000_000_000


def test_a_network_is_a_family_a_platform_a_file_or_that_of_a_scenario(tmp_path):
    Path("platform.xml").write_text(PLATFORM)
    Path("topo.xml").write_text(f'<system version="1">\n{"".join(H100)}</system>\n')
    Path("cluster.yaml").write_text(CLUSTER)
    Path("own.yaml").write_text(simnet.load("fat_tree_64").to_yaml())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    expected = {
        "fat_tree:k=4": ("the topology fat_tree", "fat_tree"),
        "dgx-h100": ("the platform dgx-h100", "platform"),
        "platform.xml": ("read as a SimGrid platform, 2 hosts", "file"),
        "topo.xml:latency=2 us": ("read as an NCCL topology, 2 hosts", "file"),
        "cluster.yaml": ("read as a fabric file, 4 hosts", "file"),
        "own.yaml": ("the network of the scenario own", "fat_tree"),
        "incast": ("the network of the scenario incast", "star"),
    }
    for text, (said, kind) in expected.items():
        assert network_taken_for(text) == said
        loaded = simnet.load("quickstart", network=text, workers=2)
        assert loaded.config.network.topology.choice[0] == kind
        loaded.build()
        Path("saved.yaml").write_text(loaded.to_yaml())
        (folder / "saved.yaml").write_text(loaded.to_yaml())
        assert simnet.load(folder / "saved.yaml").lock() == loaded.lock()


def test_another_topology_keeps_a_workers_link_and_the_stack():
    found = given("quickstart", network="multi_gpu_nodes:gpus_per_node=2,intra_latency=5us,intra_bandwidth=800Gbit/s")
    nodes = found.network.topology.multi_gpu_nodes
    assert (nodes.nodes, nodes.nic_latency, nodes.nic_bandwidth) == (2, 2e-3, 1.25e9)
    assert found.network.weather == []
    own = simnet.load("quickstart", ["network.stack=gloo"], network="fat_tree:k=4", bandwidth="1Gbit/s").config.network
    assert (own.stack, own.topology.fat_tree.bandwidth, own.topology.fat_tree.latency) == ("gloo", 1.25e8, 2e-3)


def test_a_platform_has_as_many_nodes_as_hold_the_workers():
    assert [given("base", network="dgx-h100", workers=n).network.topology.platform.nodes for n in (2, 8, 9)] == [
        1,
        1,
        2,
    ]
    Path("node.yaml").write_text(
        "name: node\ndevices_per_node: 4\ngeneration: ampere\ninner: {link: pcie, rate: 32 GB/s}\n"
    )
    assert network_taken_for("node.yaml") == "the platform node.yaml"
    assert "inputs/" in simnet.load("base", network="node.yaml", workers=4).lock()
    with pytest.raises(InputError, match="nodes must be 1: nothing joins the nodes of "):
        simnet.load("base", network="node.yaml:nodes=2").build()


def test_sharding_takes_the_place_of_exchanges():
    found = given("base", model="gpt2", sharding="fsdp2:param_dtype=float32")
    assert found.job.sharding.way == "fsdp2"
    assert found.exchanges == {}
    assert list(found.policies) == ["fsdp2"]


def test_a_file_on_the_line_starts_where_the_user_stands(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.yaml").write_text(simnet.load("quickstart").to_yaml())
    Path("platform.xml").write_text(PLATFORM)
    simnet.load("job/job.yaml", network="platform.xml", workers=2).build()
    simnet.load("job/job.yaml", ["network.topology={file: platform.xml}", "workers=2"]).build()


TEXTS = """\
workers: 4
network: star:latency=2 ms,bandwidth=10 Gbit/s
job:
  model: 50000
  iterations: 2
  density: 5 %
  compute: 15 ms:spread=3 %
  gradients: synthetic:like=digits
  strategy: 'diloco:period=4,inner={sgd: {lr: 0.1}}'
exchanges: {AG: topk, tree: {artopk: {collective: tree}}}
policies:
  AG: fixed:AG
  tree: {fixed: tree}
"""


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("network.topology.star.bandwidth=1 Gbit/s", "network.topology.star.bandwidth", 1.25e8),
        ("bandwidth=1 Gbit/s", "network.topology.star.bandwidth", 1.25e8),
        ("job.strategy.period=7", "job.strategy.period", 7),
        ("strategy=diloco:period=9", "job.strategy.period", 9),
        ("job.compute.spread=1 %", "job.compute.spread", 0.01),
        ("exchanges.AG.allgather=ring", "exchanges.AG.allgather", "ring"),
        ("network.stack=gloo:posts_ahead=false", "network.stack.posts_ahead", False),
        ("network.jitter=exponential:mean=1 ms", "network.jitter.exponential.mean", 1e-3),
        ("job.gradients=train:model=mlp,batch=8", "job.gradients.train.batch", 8),
    ],
)
def test_a_field_of_a_choice_that_is_text_can_be_set(override, key, value):
    text = TEXTS.replace("  model: 50000\n", "") if "train" in override else TEXTS
    Path("that.yaml").write_text(text)
    found = simnet.load("that.yaml", [override]).config
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("network: stra:latency=1 ms", "that.yaml:2: network: there is no such file, and no topology, platform or"),
        ("network: {topology: fat_tree:k=3}", "that.yaml:2: network.topology.fat_tree"),
        ("network: star:latency=2 ms,latency=1 ms", "gives the option latency twice"),
        ("network: star:latency=2 ms,bandwidth=10", "that.yaml:2: network.topology.star.bandwidth: 10 has no unit"),
    ],
)
def test_a_wrong_text_is_refused_where_it_stands(text, said):
    Path("that.yaml").write_text(TEXTS.replace("network: star:latency=2 ms,bandwidth=10 Gbit/s", text))
    assert said in refused("run", "that.yaml", *FEW)


def test_files_in_a_scenario_start_at_the_scenario(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "platform.xml").write_text(PLATFORM)
    text = TEXTS.replace("workers: 4", "workers: 2").replace("star:latency=2 ms,bandwidth=10 Gbit/s", "platform.xml")
    (folder / "job.yaml").write_text(text)
    assert simnet.load("job/job.yaml").build().job.source.workers == 2


def test_an_archive_of_gradients_on_a_fat_tree_is_ranked_as_its_conversion():
    draw = np.random.default_rng(0)
    np.savez("g.npz", **{f"{step:06d}/fc": draw.standard_normal((2, 400)).astype(np.float32) for step in (0, 9)})
    fields = {"network": "fat_tree:k=4", "compute": "15 ms", "workers": 2, "schemes": "topk,dense"}
    did("convert", "g.npz", "mine")
    for gradients in ("g.npz", "mine"):
        loaded = simnet.load("base", ["job.iterations=2"], gradients=gradients, **fields)
        assert [*loaded.build().policies] == ["topk", "dense"]
    assert loaded.build().job.source.parameters == 400
    assert simnet.load("base", ["job.scale=4"], gradients="mine", **fields).build().job.source.parameters == 100


def test_what_is_set_inside_a_marked_field_stays_beside_it():
    """The options of a scheme that the line names, in whichever order the two stand on it."""
    inside = ["exchanges.spardl.teams=2"]
    assert simnet.load("base", inside, schemes="spardl,dense").config.exchanges["spardl"].options["teams"] == 2
    told = simnet.load("quickstart", ["network.topology.star.latency=3 ms"], network="star:bandwidth=1Gbit/s")
    assert told.config.network.topology.star.latency == pytest.approx(3e-3)
    assert told.config.network.topology.star.bandwidth == pytest.approx(1.25e8)
