"""What is fuzzed: for each reader, how its input is made in an empty folder, and how it is read from there."""

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save

import benchmark_logs
import jobs
import schedules
import simnet
import tables
from fuzz import mutations, run_folders
from scenario_texts import SMALL
from simnet import topologies
from simnet.base.yaml_loader import load_yaml, yaml_text
from simnet.collectives import allreduce_ring
from simnet.cost_models.calibration import readers as logs
from simnet.cost_models.calibration.cost_model_file import load_cost_model
from simnet.cost_models.calibration.platform import load_platform
from simnet.cost_models.costs.devices import load_device
from simnet.interchange import calibrated_network, chakra, goal, kinds, messages_csv
from simnet.interchange.simgrid_writing import write_platform
from simnet.network.weather.files import trace_csv
from simnet.policies import Fixed
from simnet.scenario import load
from simnet.studies.choosing import policy_file
from simnet.traces import recorded
from simnet.traces.files import ReadArchive
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.running import run_policy

ROOT = Path(simnet.__file__).parents[1]


class Reader(NamedTuple):
    """What makes an input, from draws and into an empty folder, and what reads it."""

    make: Callable[[Any, Path], object]
    read: Callable[[Path], object]


def _text(sample, name, read):
    """Return a reader of one text, which is mutated as such."""

    def make(random, folder):
        (folder / name).write_bytes(mutations.text(random, sample(random)).encode(errors="surrogatepass"))

    return Reader(make, lambda folder: read(folder / name))


def _content(sample, name, read):
    """Return a reader of one file of bytes."""

    def make(random, folder):
        (folder / name).write_bytes(mutations.content(random, sample(random)))

    return Reader(make, lambda folder: read(folder / name))


def _yaml(texts, name, read):
    """Return a reader of YAML, of which values are mutated, or the text."""

    @cache
    def samples(short):
        return [(text, load_yaml(text, name).value) for text in (map(_shortened, texts()) if short else texts())]

    def make(random, folder):
        found, value = random.choice(samples(random.random() < 0.9))
        if random.random() < 0.5:
            # JSON is YAML, and holds all that a mutation may make.
            found = json.dumps(mutations.value(random, value), indent=random.choice([None, 1]))
            found = found.replace("NaN", ".nan").replace("Infinity", ".inf")
        else:
            found = mutations.text(random, found)
        (folder / name).write_bytes(found.encode(errors="surrogatepass"))

    return Reader(make, lambda folder: read(folder / name))


def _shortened(text):
    """Return a file with as many values, its prose cut and its numbers rounded: to read it takes as long as it is."""

    def short(value):
        if isinstance(value, dict):
            return {key: short(one) for key, one in value.items()}
        if isinstance(value, list):
            return [short(one) for one in value]
        return float(f"{value:.3g}") if isinstance(value, float) else value[:30] if isinstance(value, str) else value

    return yaml_text(short(load_yaml(text, "sample").value), width=100)


def _shipped(folder, *names):
    """Return what gives the files of these names that come with simnet."""
    return lambda: [(ROOT / folder / f"{one}.yaml").read_text(encoding="utf-8") for one in names]


def _scenarios():
    folder = ROOT / "simnet" / "scenarios"
    found = [(folder / f"{name}.yaml").read_text(encoding="utf-8") for name in ("quickstart", "moo_wan")]
    return [SMALL, SMALL, *found]


def _read_scenario(path):
    loaded = load(path)
    return loaded.lock()


@cache
def _fabrics():
    from simnet.cost_models.calibration import Curve, Setting, calibrate
    from simnet.cost_models.calibration.cost_model import specified_cost_model
    from simnet.cost_models.calibration.cost_model_file import cost_model_yaml

    sizes = 2.0 ** np.arange(10, 16)
    curves = [Curve(Setting("all_reduce", ranks), sizes, ranks * 1e-5 + sizes * 1e-9) for ranks in (4, 8)]
    network = "network:\n  star: {hosts: 4, latency: 0.001, bandwidth: 1e+9}\n"
    return [
        cost_model_yaml(calibrate(curves)),
        cost_model_yaml(specified_cost_model(load_platform("dgx-h100"))),
        f"version: 2\n{network}",
    ]


def _read_fabric(path):
    try:
        found = load_cost_model(path).predict("all_reduce", 4, 1e5)
        assert 0 <= found.low <= found.seconds <= found.high
    finally:
        calibrated_network.read_fabric_network(path)


@cache
def _policy_table():
    return tables.made_table().text()


def _make_policy_table(random, folder):
    found = _policy_table()
    if random.random() < 0.7:
        found = json.dumps(mutations.value(random, json.loads(found)))
    else:
        found = mutations.text(random, found)
    (folder / "a.json").write_bytes(found.encode(errors="surrogatepass"))


# Recordings


def _description(random):
    layers = [{"name": "weight", "shape": [4, 2]}, {"name": "bias", "shape": [4]}]
    found = {
        "version": 1,
        "name": "a",
        "workers": 3,
        "steps": 10,
        "layers": layers,
        "points": [{"step": 0}, {"step": 3}],
    }
    if random.random() < 0.3:
        found["per_worker"] = True
    return found


def _arrays(random, workers):
    draws = np.random.default_rng(random.randrange(2**32))
    kind = random.choice(["f4", "f2"])
    return {
        name: draws.normal(size=(workers, *shape)).astype(kind) for name, shape in (("weight", (4, 2)), ("bias", (4,)))
    }


def _mutated_arrays(random, arrays):
    """Return arrays of which some are renamed, left out or changed."""
    found = dict(arrays)
    for name in arrays:
        how = random.random()
        if how < 0.1:
            found[random.choice(mutations.TEXTS[:-2]).replace("\ud800", "")] = found.pop(name)
        elif how < 0.15:
            del found[name]
        elif how < 0.5:
            found[name] = mutations.array(random, found[name])
    return found


def _tensors(arrays):
    """Return a safetensors file."""
    return save({name: np.ascontiguousarray(one) for name, one in arrays.items()})


def _other_tensors(random, file):
    """Return a safetensors file with a mutated header, and with as many bytes as it says."""
    size = struct.unpack("<Q", file[:8])[0]
    header, body = json.loads(file[8 : 8 + size]), file[8 + size :]
    for one in [header] if random.random() < 0.3 else list(header.values()):
        if isinstance(one, dict) and random.random() < 0.6:
            one |= {"dtype": random.choice(["F16", "BF16", "F32", "F64", "I8", "U8", "BOOL", "F8_E4M3", "X"])}
        if isinstance(one, dict) and "shape" in one and random.random() < 0.4:
            one["shape"] = random.choice([one["shape"][::-1], [*one["shape"], 1], [0], [2**40, 2**30], [], [-1]])
    if random.random() < 0.4:
        header = mutations.value(random, header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    ends = (
        [one.get("data_offsets") for one in header.values() if isinstance(one, dict)]
        if isinstance(header, dict)
        else []
    )
    ends = [one[1] for one in ends if isinstance(one, list) and len(one) == 2 and isinstance(one[1], int)]
    length = max([*ends, 0]) if random.random() < 0.5 else len(body)
    body = (body + bytes(1 << 12))[: min(max(length, 0), len(body) + (1 << 12))]
    return struct.pack("<Q", len(text)) + text + body


def _make_recording(random, folder):
    """Write a trace, mutated in one of its files: arrays, the header in front of them, bytes, or the description."""
    found = _description(random)
    files = [
        f"{point['step']:06d}" + ("" if worker is None else f".{worker:04d}")
        for point in found["points"]
        for worker in (range(3) if found.get("per_worker") else [None])
    ]
    mutated = random.choice([*files, *files, "trace"])
    how = random.choice(["arrays", "arrays", "header", "header", "bytes"])
    for name in files:
        arrays = _arrays(random, 1 if found.get("per_worker") else 3)
        file = _tensors(_mutated_arrays(random, arrays) if (name, how) == (mutated, "arrays") else arrays)
        if name == mutated and how == "header":
            file = _other_tensors(random, file)
        elif name == mutated and how == "bytes":
            file = mutations.content(random, file)
        (folder / f"{name}.safetensors").write_bytes(file)
    if mutated == "trace":
        found = mutations.value(random, found)
    (folder / "trace.json").write_text(json.dumps(found), encoding="utf-8")


def _read_recording(folder):
    source = recorded(folder, scale=2)
    for iteration in (0, 5):
        source.gradients(iteration)
    recorded(folder).recorded(0)


def _make_archive(random, folder):
    """Write an npz archive: valid as a zip, some of its members mutated; of one in ten the zip, too."""
    found, buffer = _description(random), io.BytesIO()
    found.pop("per_worker", None)
    packing = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    mutated = random.choice([*range(len(found["points"])), "trace"])
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", packing) as archive:
        warnings.simplefilter("ignore")  # a name that stands twice
        if mutated == "trace" or random.random() < 0.5:
            told = mutations.value(random, found) if mutated == "trace" else found
            archive.writestr("trace.json", json.dumps(told))
        for place, point in enumerate(found["points"]):
            how = random.choice(["arrays", "header", "bytes", "name"]) if place == mutated else ""
            arrays = _arrays(random, 3)
            step = random.choice([str(point["step"]), "999999999999", "x"]) if how == "name" else f"{point['step']:06d}"
            for name, one in (_mutated_arrays(random, arrays) if how == "arrays" else arrays).items():
                member = io.BytesIO()
                np.lib.format.write_array(member, one, allow_pickle=False)
                content = member.getvalue()
                if how == "header":
                    content = _other_header(random, content)
                elif how == "bytes":
                    content = mutations.content(random, content)
                archive.writestr(f"{step}/{name}.npy", content)
        if random.random() < 0.05:
            archive.writestr("zeros/x.npy", bytes(1 << 20))
    file = buffer.getvalue()
    (folder / "a.npz").write_bytes(mutations.content(random, file) if random.random() < 0.1 else file)


def _other_header(random, content):
    """Return an array of .npy with another header of the length that it says."""
    size = struct.unpack("<H", content[8:10])[0]
    header = mutations.text(random, content[10 : 10 + size].decode("latin1"), 2).rstrip("\n")
    header = random.choice([header, header, "{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }", "(" * 60_000])
    header = (header + "\n").encode("latin1", "replace")[:65_535]
    return content[:8] + struct.pack("<H", len(header)) + header + content[10 + size :]


def _read_archive(folder):
    found = ReadArchive(folder / "a.npz")
    for point in range(len(found.info.points)):
        found.recorded(point)


# Checkpoints


class _KilledError(Exception):
    pass


def _job():
    return jobs.job_on(jobs.star(), iterations=4)


@cache
def _checkpoint():
    """Return the files of a job's checkpoint after two iterations."""

    def progress(done):
        if done == 2:
            raise _KilledError

    with TemporaryDirectory() as folder:
        with suppress(_KilledError):
            kept = Checkpoint(Path(folder, "it"), "it", every=0)
            run_policy(_job(), "p", Fixed(jobs.AG), checkpoint=kept, progress=progress)
        return {one.name: one.read_bytes() for one in Path(folder).iterdir()}


def _make_checkpoint(random, folder):
    """Write a checkpoint whose files are mutated, some or all of them."""
    for name, content in _checkpoint().items():
        (folder / name).write_bytes(mutations.content(random, content) if random.random() < 0.7 else content)


def _read_checkpoint(folder):
    kept = Checkpoint(folder / "it", "it")
    kept.done()
    run_policy(_job(), "p", Fixed(jobs.AG), checkpoint=kept)


# Schedules and networks


def _written(write, name, **more):
    """Return what chooses the text of a schedule or network that simnet wrote."""

    @cache
    def files():
        with TemporaryDirectory() as folder:
            write(Path(folder, name))
            return [one.read_bytes() for one in sorted(Path(folder).iterdir())]

    return lambda random: random.choice(files())


def _as_text(sample):
    return lambda random: sample(random).decode()


MSCCL = """<algo name="pair" nchunksperloop="4" ngpus="2" coll="allgather">
<gpu id="0"><tb id="0" send="1" recv="-1" chan="0"><step s="0" type="s" cnt="2"/></tb></gpu>
<gpu id="1"><tb id="0" send="-1" recv="0" chan="0"><step s="0" type="r" cnt="2"/></tb></gpu>
</algo>"""
WEATHER = "time_s,bandwidth_Mbit_s,latency_ms\n0,80,10\n# a remark\n60,8,25\n61.5,9e1,2\n"
NCCL = """<system version="2"><cpu numaid="0" host_hash="0x1" arch="arm64">
<pci busid="a" link_width="16"><gpu dev="0" sm="90" gcn="942"><xgmi target="b" count="1" tclass="0x120000"/>
<c2c bw="43125" count="8"/></gpu></pci><pci busid="b"><gpu dev="1" sm="90" mlopart="0"/></pci>
<nic><net name="m" dev="0" speed="400000" port="1" latency="1.5"/></nic></cpu></system>"""
ZOO = """<graphml><key id="N" for="node" attr.name="Latitude" attr.type="double"/>
<key id="E" for="node" attr.name="Longitude" attr.type="double"/>
<key id="S" for="edge" attr.name="LinkSpeedRaw" attr.type="double"/><graph edgedefault="undirected">
<node id="0"><data key="N">52.4</data><data key="E">4.9</data></node><node id="1"><data key="N">46</data>
<data key="E">6</data></node><edge source="0" target="1"><data key="S">1e10</data></edge></graph></graphml>"""
GML = """graph [ node [ id 0 Latitude 1.5 Longitude 2 ] node [ id 1 Latitude 3 Longitude 4 ]
edge [ source 0 target 1 LinkSpeedRaw 9 ] ]"""
RING = allreduce_ring(3, 1 << 10)
STAR = topologies.star(3, 1e-3, 1e6)


def _read_schedule(path):
    return kinds.read_schedule(path, nbytes=1e6, strict=False)


def _read_log(path):
    return logs.read_measurements(path, facts={"ranks": 4, "collective": "all_reduce"})


READERS = {
    "scenario": _yaml(_scenarios, "a.yaml", _read_scenario),
    "device": _yaml(
        _shipped("simnet/data/devices", "ideal", "artopk-tables", "v100-torch1.5", "a100-torch2.6"),
        "a.yaml",
        load_device,
    ),
    "platform": _yaml(
        _shipped(
            "simnet/cost_models/calibration/platforms",
            "dgx-1",
            "dgx-h100",
            "aws-p3dn",
            "h100-sockets",
            "oci-mi300x",
            "gb200-nvl72",
        ),
        "a.yaml",
        load_platform,
    ),
    "fabric": _yaml(_fabrics, "a.yaml", _read_fabric),
    "policy table": Reader(_make_policy_table, lambda folder: policy_file.load_policy(folder / "a.json")),
    "recording": Reader(_make_recording, _read_recording),
    "archive": Reader(_make_archive, _read_archive),
    "checkpoint": Reader(_make_checkpoint, _read_checkpoint),
    "run": Reader(run_folders.make, run_folders.read),
    "weather": _text(lambda _: WEATHER, "a.csv", trace_csv),
    "goal": _text(_as_text(_written(lambda path: goal.write_goal(RING, path), "a")), "a.goal", _read_schedule),
    "chakra": _content(
        _written(lambda path: chakra.write_chakra(RING, path), "a"), "a.0.et", lambda one: _read_schedule(one.parent)
    ),
    "msccl": _text(lambda _: MSCCL, "a.xml", _read_schedule),
    "messages": _text(
        _as_text(_written(lambda path: messages_csv.write_messages(RING, path), "a")), "a.csv", _read_schedule
    ),
    "nodelink": _text(
        _as_text(_written(lambda path: schedules.write_nodelink(STAR, path), "a")), "a.json", kinds.read_network
    ),
    "nccl": _text(lambda _: NCCL, "a.xml", lambda path: kinds.read_network(path, "nccl", nodes=2, latency=1e-6)),
    "graphml": _text(
        lambda random: random.choice([ZOO, GML]), "a.graphml", lambda path: kinds.read_network(path, "graphml")
    ),
    "simgrid": _text(_as_text(_written(lambda path: write_platform(STAR, path), "a.xml")), "a.xml", kinds.read_network),
    **{
        f"log: {name}": _text(lambda _, text=text: text, "a.log", _read_log)
        for name, text in benchmark_logs.ALL.items()
    },
}
