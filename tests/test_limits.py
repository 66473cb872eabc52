"""Magnitudes: every reader, every builder and every field of a scenario refuses the same ones, with the place.

A number is put at each place of a file that has one. What lies within the bounds of its quantity is read, and an
exchange on it has a finite time; anything else is refused with the file, the place, the number found and what is
allowed.
"""

import json
import math
import re
import warnings
from typing import Annotated

import networkx as nx
import numpy as np
import pytest
from annotated_types import Gt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands import did, refused
from simnet import collectives, topologies
from simnet.base.errors import InputError, SimnetError
from simnet.base.quantities import Bandwidth, Rate, Seconds, Size, bounds_error
from simnet.cost_models.calibration.readers import read_measurements as read_measured
from simnet.cost_models.costs.devices import DeviceOp, load_device
from simnet.interchange import kinds
from simnet.interchange.simgrid import read_link_profile
from simnet.network import ConstantLoad, Network, OnOffFlow, Sharing, Stack
from simnet.network.transport import Incast
from simnet.network.weather import Weather, constant, trace_csv
from simnet.schedule import Round

MAGNITUDES = (1e305, 1e300, 2e18, 2e12, 1.5e6, 1.0, 1e-13, 1e-300, 0.0, -1.0, math.nan, math.inf, -math.inf)
SCHEDULE = collectives.allreduce_ring(2, 1000.0)


def timed(network, schedule=SCHEDULE):
    """Return how long a schedule takes, which is finite, or refused."""
    try:
        took = network.time(schedule).duration
    except SimnetError:
        return
    assert math.isfinite(took)
    assert took >= 0


def of_weather(folder, text):
    path = folder / "link.csv"
    path.write_text(text)
    weather = trace_csv(path)
    graph = topologies.star(2, 1e-3, 1e6)
    timed(Network(graph, dict.fromkeys(graph.edges, weather)))


def of_device(folder, text):
    path = folder / "device.yaml"
    path.write_text(text)
    took = load_device(path).seconds([DeviceOp("topk", 1e9, launches=1000)], 2)
    assert np.isfinite(took).all()


def of_network(name):
    def read(folder, text):
        path = folder / name
        path.write_text(text)
        found = kinds.read_network(path)
        timed(Network(found.graph, found.weather))

    return read


def of_schedule(name):
    def read(folder, text):
        path = folder / name
        path.write_text(text)
        timed(Network(topologies.star(2, 1e-3, 1e6)), kinds.read_schedule(path)[1])

    return read


def of_profile(folder, text):
    path = folder / "link.profile"
    path.write_text(text)
    graph = topologies.star(2, 1e-3, 1e6)
    timed(Network(graph, {next(iter(graph.edges)): Weather(read_link_profile(path, 1e6), None)}))


WEATHER = "time_s,bandwidth_Bps,latency_s\n0,{bandwidth},{latency}\n{time},1e6,1e-3\n"
DEVICE = (
    "name: a\ndevice: b\nsource: c\nmemory_bandwidth: {bandwidth}\n"
    "methods:\n  topk: {{launch: {latency}, bytes_per_entry: {size}, source: d}}\n"
)
NODELINK = (
    '{{"directed": false, "graph": {{}}, "nodes": [{{"id": 0}}, {{"id": 1}}], '
    '"edges": [{{"source": 0, "target": 1, "latency": {latency}, "bandwidth": {bandwidth}}}]}}'
)
PLATFORM = (
    '<platform version="4.1"><zone id="z" routing="Full"><host id="A" speed="1Gf"/><host id="B" speed="1Gf"/>'
    '<link id="1" bandwidth="{bandwidth}" latency="{latency}"/>'
    '<route src="A" dst="B"><link_ctn id="1"/></route></zone></platform>'
)
CLUSTER = (
    '<platform version="4.1"><zone id="w" routing="Full"><cluster id="c" prefix="n" suffix="" radical="0-1" speed="1Gf"'
    ' bw="{bandwidth}" lat="{latency}" bb_bw="{rate}" bb_lat="{seconds}"/></zone></platform>'
)
FABRIC = "version: 1\nnetwork:\n  star: {{hosts: 2, latency: {latency}, bandwidth: {bandwidth}}}\ncurves: []\n"
MESSAGES = "round,src,dst,nbytes_B\n0,0,1,{size}\n"
PROFILE = "0 1000\n{time} {rate}\n"
RIGHT = {"bandwidth": "1e6", "rate": "1e6", "latency": "1e-3", "seconds": "1e-3", "time": "5", "size": "1000"}
# Reader, text, and what stands at each place.
PLACES = [
    (of_weather, WEATHER, {"bandwidth": Rate, "latency": Seconds, "time": Annotated[Seconds, Gt(0)]}),
    (of_device, DEVICE, {"bandwidth": Bandwidth, "latency": Seconds, "size": Size}),
    (of_network("graph.json"), NODELINK, {"bandwidth": Bandwidth, "latency": Seconds}),
    (of_network("platform.xml"), PLATFORM, {"bandwidth": Bandwidth, "latency": Seconds}),
    (of_network("cluster.xml"), CLUSTER, {"bandwidth": Bandwidth, "latency": Seconds, "rate": Bandwidth}),
    (of_network("fabric.yaml"), FABRIC, {"bandwidth": Bandwidth, "latency": Seconds}),
    (of_schedule("messages.csv"), MESSAGES, {"size": Size}),
    (of_profile, PROFILE, {"time": Seconds, "rate": Rate}),
]
CASES = [(read, text, place, quantity) for read, text, places in PLACES for place, quantity in places.items()]
NAMES = [f"{text.splitlines()[0][:20].strip()} {place}" for _, text, place, _ in CASES]


def written(value):
    return repr(value) if math.isfinite(value) else {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]


def judge(folder, read, text, place, quantity, value):
    """Hold a reader to the bounds of what it reads."""
    wrong = bounds_error(value, quantity)
    filled = text.format(**RIGHT | {place: written(value)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not wrong:
            read(folder, filled)
            return
        with pytest.raises(InputError) as refusal:
            read(folder, filled)
    assert refusal.value.file is not None
    said = str(refusal.value)
    if math.isfinite(value):
        assert f"{value:g}" in said or repr(value) in said, said
        assert value <= 0 or wrong.partition(",")[0] in said, said


@pytest.mark.parametrize("value", MAGNITUDES)
@pytest.mark.parametrize(("read", "text", "place", "quantity"), CASES, ids=NAMES)
def test_files_hold_what_scenario_fields_hold(tmp_path, read, text, place, quantity, value):
    judge(tmp_path, read, text, place, quantity, value)


@pytest.mark.slow
@settings(derandomize=False, max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=st.sampled_from(CASES), value=st.floats())
def test_any_number_at_any_place_is_read_or_refused(tmp_path, case, value):
    judge(tmp_path, *case, value)


@pytest.mark.parametrize("value", [value for value in MAGNITUDES if math.isfinite(value)])
@pytest.mark.parametrize(
    ("field", "unit", "quantity"),
    [
        ("network.topology.star.bandwidth", "B/s", Bandwidth),
        ("network.topology.star.latency", "s", Seconds),
        ("network.overhead.send", "s", Seconds),
        ("job.update", "s", Seconds),
    ],
)
def test_fields_of_a_scenario_have_the_same_bounds(tmp_path, field, unit, quantity, value):
    given = "run", "quickstart", "--quiet", "--set", f"{field}={value!r} {unit}", "--set", "job.iterations=2"
    if not bounds_error(value, quantity):
        did(*given, "--out", tmp_path / "out")
        return
    message = refused(*given, "--out", tmp_path / "out")
    assert f"{field}: must be" in message or (value < 0 and "is negative" in message)


@pytest.mark.parametrize("least", [1e-12, 1e18])
def test_at_the_bounds_themselves_all_is_finite(tmp_path, least):
    """A job on the slowest and on the fastest links, with weather that makes them slower still."""
    slowest = least < 1
    weather = "network.weather=[{links: all, bandwidth: {steps: {at: [0 s, 1 s], factors: [100 %, 0.0000000001 %]}}}]"
    did(
        *("run", "quickstart", "--quiet", "--out", tmp_path / "out", "--set", "job.iterations=2", "--set", weather),
        *("--set", f"network.topology.star.bandwidth={least!r} B/s"),
        *("--set", f"network.topology.star.latency={1e12 if slowest else 0} s"),
    )
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "NaN" not in json.dumps(told)
    assert "Infinity" not in json.dumps(told)


@pytest.mark.parametrize("value", MAGNITUDES)
@pytest.mark.parametrize(
    ("make", "quantity"),
    [
        (lambda v: topologies.star(2, v, 1e6), Seconds),
        (lambda v: topologies.star(2, 1e-3, v), Bandwidth),
        (lambda v: topologies.ring(4, v, 1e6), Seconds),
        (lambda v: topologies.fat_tree(4, 1e-3, v), Bandwidth),
        (lambda v: topologies.torus((2, 2), 1e-3, v), Bandwidth),
        (lambda v: topologies.wan(["a", "b"], v, 1e6, workers_per_site=1), Seconds),
        (lambda v: Round([0], [1], [v]), Size),
        (lambda v: Round([0], [1], [1.0], v), Seconds),
        (lambda v: Network(topologies.star(2, 1e-3, 1e6), send_overhead=v), Seconds),
        (lambda v: Network(topologies.star(2, 1e-3, 1e6)).transfer(0, 1, v), Size),
        (lambda v: Network(topologies.star(2, 1e-3, 1e6), sharing=Sharing(buffer=v)), Seconds),
        (lambda v: Network(topologies.star(2, 1e-3, 1e6), stack=Stack("taken", before=v)), Seconds),
        (lambda v: Incast(buffer=v), Size),
        (lambda v: _beside(ConstantLoad((0, "switch"), v)), Rate),
        (lambda v: _beside(OnOffFlow(0, 1, constant(1.0), v)), Bandwidth),
    ],
)
def test_python_has_the_same_bounds(make, quantity, value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not bounds_error(value, quantity) or (quantity is Bandwidth and value == math.inf):
            made = make(value) if math.isfinite(value) else None
            if isinstance(made, nx.DiGraph):
                timed(Network(made), collectives.allreduce_ring(made.graph["hosts"], 1e3))
            elif isinstance(made, Network):
                timed(made)
            return
        with pytest.raises(ValueError, match=r"must be"):
            make(value)


def _beside(traffic):
    graph = topologies.star(2, 1e-3, 1e6)
    if isinstance(traffic, ConstantLoad):
        traffic = ConstantLoad(next(iter(graph.edges)), traffic.rate)
    return Network(graph, background=[traffic])


def test_measured_logs_report_what_is_out_of_bounds(tmp_path):
    rows = ["collective,nbytes,seconds,ranks,size_convention"]
    rows += [f"all_reduce,8,{seconds},2,vector" for seconds in ("1e-5", "1e300", "1e-300", "0")]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    measured = read_measured(tmp_path / "a.csv")
    assert len(measured.rows) == 1
    told = "\n".join(map(str, measured.problems))
    for expected in ("the time must be", "1e+300", "1e-300"):
        assert expected in told


@pytest.mark.parametrize("value", [1e305, 1e-300])
def test_commands_refuse_files_without_traceback(tmp_path, value):
    (tmp_path / "link.csv").write_text(WEATHER.format(**RIGHT | {"bandwidth": value}))
    weather = f"network.weather=[{{links: all, trace: {{file: {tmp_path / 'link.csv'}}}}}]"
    message = refused("run", "quickstart", "--out", tmp_path / "out", "--set", weather)
    assert re.search(r"link.csv:2: bandwidth: must be (<= 1e\+18|>= 1e-12), got '1e[+-]?30[05]'", message), message
    (tmp_path / "device.yaml").write_text(DEVICE.format(**RIGHT | {"bandwidth": value}))
    device = f"job.device={tmp_path / 'device.yaml'}"
    message = refused("run", "quickstart", "--out", tmp_path / "out", "--set", device)
    assert re.search(r"device.yaml:4: memory_bandwidth: must be (<= 1e\+18|>= 1e-12), got 1e", message), message
    (tmp_path / "graph.json").write_text(NODELINK.format(**RIGHT | {"bandwidth": value}))
    what = "time", "allreduce_ring", "--workers", 2, "--size", "1 kB"
    message = refused(*what, "--network", tmp_path / "graph.json")
    assert re.search(r"bandwidth of the link host:0 -> host:1 must be (<= 1e\+18|>= 1e-12)", message), message
