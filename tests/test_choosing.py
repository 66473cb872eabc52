"""Choosing offline: closed forms against the network, the decision against brute force, the command as users run it."""

import itertools
import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commands
from looping import each
from simnet import sparsifier_models, topologies
from simnet.cost_models.costs import models
from simnet.cost_models.costs.devices import DeviceProfile, KernelMethod, load_device
from simnet.network import Network
from simnet.scenario import load
from simnet.studies.choosing.choices import choices
from simnet.studies.choosing.cost_models import by_closed_form, by_simulation, selecting
from simnet.studies.choosing.decision import QUANTITIES, decide, fastest
from simnet.studies.choosing.maps import axis, draw_map
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.problem import problem_from_flags, problem_from_scenario
from simnet.studies.choosing.request import ChooseRequest
from simnet.studies.choosing.sampled_exchanges import SampledExchanges, sample
from simnet.validate.published import table_vi

IDEAL = load_device("ideal")
ALPHA, BANDWIDTH = 1e-3, 1e8
GPU = load_device("artopk-tables")

points = st.builds(
    OperatingPoint,
    workers=st.integers(2, 128),
    parameters=st.integers(10**4, 10**9),
    density=st.floats(1e-4, 0.3),
    latency=st.floats(1e-6, 0.2),
    bandwidth=st.floats(1e6, 5e10),
    per_node=st.just(1),
    inner_latency=st.just(0.0),
    inner_bandwidth=st.just(math.inf),
)


def simulated(choice, point):
    network = Network(topologies.star(int(point.workers), latency=point.latency, bandwidth=point.bandwidth))
    return float(by_simulation([(network, 0.0)], IDEAL)(choice, point).communicate)


@each("workers", [*range(1, 18), 32])
@pytest.mark.parametrize("choice", choices(), ids=lambda one: one.label)
def test_closed_forms_are_what_the_network_says(choice, workers):
    point = OperatingPoint(workers, 20_000, 0.05, ALPHA, BANDWIDTH)
    found, expected = simulated(choice, point), float(choice.communicate(point))
    exact = workers & (workers - 1) == 0 or choice.label in ("dense ring", "fp16 ring", "AG-Topk", "ART-ring")
    # Who has passed the indices on need not wait for them to be there: at most a level of the tree for each level.
    saved = ALPHA * math.log2(workers) if choice.label.startswith("ART-tree") else 0.0
    off = 1e-9 if exact else 0.15
    assert (expected - saved) * (1 - off) <= found <= expected * (1 + off)


@pytest.mark.parametrize("choice", choices(), ids=lambda one: one.label)
@each("workers", [2, 3, 5, 6, 9, 12, 17, 21, 33])
@pytest.mark.parametrize("rate", [1e5, 1e7, 1e9])
def test_intervals_of_closed_forms_hold_the_mean_over_who_broadcasts(choice, workers, rate):
    point = OperatingPoint(workers, 2560, 0.05, ALPHA, rate)
    network = Network(topologies.star(workers, latency=ALPHA, bandwidth=rate))
    candidate = choice.candidate
    model = sparsifier_models.create(candidate.scheme, workers, 2560, 0.05, **candidate.options)
    gradients = np.random.default_rng(0).standard_normal((workers, 2560)).astype(np.float32)
    turns = workers if choice.label.startswith("ART") else 1
    found = np.mean([network.time(model.exchange(gradients).schedule).finish for _ in range(turns)])
    estimate = by_closed_form(IDEAL, 0.05)(choice, point)
    assert float(estimate.least) <= found <= float(estimate.most)


@pytest.mark.parametrize("which", range(len(choices(4))), ids=[one.label for one in choices(4)])
@each("workers, per_node", [(8, 8), (4, 8), (16, 2), (16, 4), (16, 8), (24, 8), (64, 8), (24, 6), (12, 3)])
def test_closed_forms_know_that_nodes_share_a_card(which, workers, per_node):
    choice = choices(per_node)[which]
    inner = 5e-6, 1e11
    point = OperatingPoint(workers, 10**6, 0.01, 5e-5, 1.25e9, per_node, *inner)
    graph = topologies.multi_gpu_nodes(
        -(-workers // per_node),
        per_node,
        intra_latency=inner[0],
        intra_bandwidth=inner[1],
        nic_latency=5e-5 - inner[0],
        nic_bandwidth=1.25e9,
    )
    # By gradients of other seeds other workers broadcast, within a node of others or not.
    rehearsals = [SampledExchanges(seed=seed) for seed in range(8 if "VAR" in choice.label else 1)]
    found = [by_simulation([(Network(graph), 0.0)], IDEAL, sampled=one)(choice, point) for one in rehearsals]
    # Of AR-Topk the closed form is a mean over the workers that broadcast, and a reduction begins before that ends.
    off = 0.35 if "ART" in choice.label else 0.08
    simulated = np.mean([float(one.communicate) for one in found])
    assert float(choice.communicate(point)) == pytest.approx(simulated, rel=off)


@pytest.mark.parametrize("choice", choices(), ids=lambda one: one.label)
@each("workers", [2, 3, 6, 8])
def test_within_one_node_intervals_are_those_of_its_links(choice, workers):
    # Between nodes it would take a thousand times as long.
    node = OperatingPoint(workers, 10**6, 0.01, 5e-3, 1e8, 8, 5e-6, 1e11)
    star = OperatingPoint(workers, 10**6, 0.01, 5e-6, 1e11)
    found, expected = (by_closed_form(IDEAL)(choice, point) for point in (node, star))
    assert 0 < float(found.least) == pytest.approx(float(expected.least))
    assert float(found.most) == pytest.approx(float(expected.most))
    decide(choices(8), node, by_closed_form(IDEAL), varies=())


@pytest.mark.parametrize("choice", choices(4), ids=lambda one: one.label)
@each("workers", [1, 2, 5, 8])
def test_what_selecting_costs_is_what_the_schemes_report(choice, workers):
    if choice.label.startswith("two-level") and workers == 5:
        # Nodes of four do not divide them.
        workers = 12
    point = OperatingPoint(workers, 100_000, 0.01, ALPHA, BANDWIDTH)
    kernels = sample(choice, point).kernels
    for profile in (GPU, load_device("v100-torch2.6")):
        found = selecting(choice, point, profile)
        for time, end in zip(found, (None, "low", "high"), strict=True):
            assert float(time) == pytest.approx(profile.seconds(kernels, workers, end).max(), rel=0.02)


IN_STEP = [one for one in choices(every=True) if one.label in ("gtopk", "spardl", "qsgd", "signsgd", "topka")]
SLOW = DeviceProfile("slow", "none", "made up", 1e7, {"*": KernelMethod(3e-3, 10.0, "made up")})


@pytest.mark.parametrize("choice", IN_STEP, ids=lambda one: one.label)
@each("workers", [2, 3, 4, 5, 7, 8, 12, 16, 17])
def test_closed_forms_and_simulation_agree_about_work_between_messages(choice, workers):
    # Trees and all-gathers are as their formulas have them at powers of two.
    if choice.label in ("gtopk", "topka") and workers & (workers - 1):
        return
    k = 40 * workers
    point = OperatingPoint(workers, 100 * k, 0.01, ALPHA, BANDWIDTH)
    simulated = by_simulation([(Network(topologies.star(workers, ALPHA, BANDWIDTH)), 0.0)], SLOW)(choice, point)
    closed = by_closed_form(SLOW)(choice, point)
    assert float(simulated.seconds) == pytest.approx(float(closed.seconds), rel=1e-9)
    # Nobody works as long as that in vain.
    assert float(closed.select) > 10 * float(closed.communicate)


@pytest.mark.parametrize("choice", choices(), ids=lambda one: one.label)
def test_parts_carry_what_is_sent(choice):
    # By the bus factors of nccl-tests, the bytes that leave a rank follow from the collectives.
    point = OperatingPoint(8, 100_000, 0.01, ALPHA, BANDWIDTH)
    sent = sample(choice, point).schedule.bytes_sent().sum()
    share = {"all_gather": 7, "broadcast": 7, "all_reduce": 14}
    assert sent == pytest.approx(
        sum(share[part.collective] * float(part.nbytes) for part in choice.collective_calls(point))
    )


def test_table_vi_36_of_36():
    rows = table_vi()
    labels = {"AG": "AG-Topk", "ART-ring": "ART-ring", "ART-tree": "ART-tree"}
    among = [one for one in choices() if one.label in labels.values()]
    cells = list(rows.groupby(["parameters", "bandwidth_Gbps", "density"]))
    for (parameters, rate, density), cell in cells:
        published = labels[cell.loc[cell["published_ms"].idxmin(), "collective"]]
        point = OperatingPoint(8, parameters, density, 1e-3, rate * 1.25e8)
        assert decide(among, point, by_closed_form(IDEAL)).best.choice.label == published
    assert len(cells) == 36


@settings(max_examples=25, deadline=None)
@given(point=points, error=st.floats(0, 1))
def test_the_decision_is_the_fastest_and_says_how_sure(point, error):
    cost_model = by_closed_form(GPU, error)
    decision = decide(choices(), point, cost_model)
    times = {one.label: float(cost_model(one, point).seconds) for one in choices()}
    assert decision.best.seconds == min(times.values()) == times[decision.best.choice.label]
    assert [row.seconds for row in decision.rows] == sorted(times.values())
    assert all(row.low <= row.seconds <= row.high for row in decision.rows)
    assert sum(row.chance for row in decision.rows) == pytest.approx(1)
    assert all(row.expected_regret >= 0 for row in decision.rows)
    assert not decision.sure or decision.best.chance >= 0.95
    assert decision.regret.worst >= 0
    assert 0 < decision.regret.holds <= 1
    assert (decision.regret.holds == 1) == (decision.regret.worst == 0)
    assert decision.elasticities["latency"] >= 0 >= decision.elasticities["bandwidth"]
    assert abs(decision.elasticities["latency"]) <= 1 + 1e-9


@settings(max_examples=25, deadline=None)
@given(point=points)
def test_another_exchange_is_fastest_where_selecting_costs_as_much_more_or_less_as_is_said(point):
    decision = decide(choices(), point, by_closed_form(GPU))

    def first(factor):
        return min(decision.rows, key=lambda row: row.communicate + factor * row.select).choice.label

    above = [flip.value for flip in decision.selection_flips if flip.up]
    below = [flip.value for flip in decision.selection_flips if not flip.up]
    for flip in decision.selection_flips:
        assert first(flip.value * (1 + 1e-6 if flip.up else 1 - 1e-6)) == flip.label
    for factor in (
        *np.geomspace(1, min(above, default=1e9) * (1 - 1e-6), 5),
        *np.linspace(max(below, default=0), 1, 5)[1:],
    ):
        assert first(factor) == decision.best.choice.label


@settings(max_examples=25, deadline=None)
@given(point=points)
def test_flips_are_where_the_decision_changes(point):
    cost_model = by_closed_form(GPU)
    decision = decide(choices(), point, cost_model)
    among = [row.choice for row in decision.rows]
    for flip in decision.flips:
        own = getattr(point, flip.quantity)
        assert (flip.value > own) == flip.up
        found, _ = fastest(among, point.at(flip.quantity, np.array([flip.value])), cost_model)
        assert among[int(found[0])].label == flip.label != decision.best.choice.label
        if flip.quantity == "workers":
            between = np.arange(own, flip.value, 1 if flip.up else -1)
        else:
            between = np.geomspace(own, flip.value, 7)[:-1]
        held, _ = fastest(among, point.at(flip.quantity, between), cost_model)
        assert not held[0]
        assert not held[-1] or flip.quantity != "workers"


@settings(max_examples=20, deadline=None)
@given(point=points, factor=st.floats(1.1, 10))
def test_more_latency_or_less_bandwidth_is_never_faster(point, factor):
    cost_model = by_closed_form(GPU)
    best = decide(choices(), point, cost_model, varies=()).best.seconds
    slower = (point.at("latency", point.latency * factor), point.at("bandwidth", point.bandwidth / factor))
    for one in slower:
        assert decide(choices(), one, cost_model, varies=()).best.seconds >= best


def test_chances_go_by_intervals():
    point = OperatingPoint(8, 25_557_032, 0.01, 1e-3, 1.25e9)
    # Of trees closed forms say the most, so that they may be faster whatever the error.
    exact = [one for one in choices() if one.slack is None]
    wide, learnt, narrow = (decide(exact, point, by_closed_form(IDEAL, error)) for error in (0.5, None, 0.01))
    assert wide.best.chance < learnt.best.chance < narrow.best.chance
    assert (wide.sure, narrow.sure) == (False, True)
    assert wide.best.expected_regret > narrow.best.expected_regret


def test_what_software_is_off_by_it_is_off_by_for_all_choices():
    point = OperatingPoint(8, 25_557_032, 0.01, 1e-3, 1.25e9)
    best, other = decide(choices(), point, by_closed_form(IDEAL)).rows[:2]
    # Intervals overlap far, but what is left out makes both of them longer.
    assert other.low < best.high
    assert best.chance > 3 * other.chance


def test_votes_change_what_the_messages_are_not_off_by():
    star, var = (one for one in choices() if one.label.startswith("ART-ring"))
    decision = decide([star, var], OperatingPoint(8, 25_557_032, 0.01, 1e-3, 1.25e9), by_closed_form(IDEAL))
    assert [row.chance for row in decision.rows] == [1.0, 0.0]


def test_simulation_has_no_regret_by_construction():
    graph = topologies.fat_tree(4, latency=1e-5, bandwidth=1.25e8, oversubscription=4.0)
    cost_model = by_simulation([(Network(graph), 0.0)], IDEAL)
    point = OperatingPoint(16, 10**6, 0.05, 4e-5, 1.25e8)
    decision = decide(choices(), point, cost_model, varies=())
    assert decision.best.seconds == min(float(cost_model(one, point).seconds) for one in choices())
    assert decision.regret is None


def test_simulation_takes_the_mean_over_the_moments():
    slow, fast = (Network(topologies.star(4, latency=1e-3, bandwidth=rate)) for rate in (1e7, 1e8))
    point, choice = OperatingPoint(4, 10**5, 0.1, 1e-3, 1e8), choices()[0]
    each = [float(by_simulation([(one, 0.0)], IDEAL)(choice, point).seconds) for one in (slow, fast)]
    both = by_simulation([(slow, 0.0), (fast, 5.0)], IDEAL)(choice, point)
    assert float(both.seconds) == pytest.approx(np.mean(each))
    # What links change by is no error.
    alone = by_simulation([(Network(topologies.star(4, latency=1e-3, bandwidth=1e8)), 0.0)], IDEAL)(choice, point)
    assert both.high / both.seconds == pytest.approx(alone.high / alone.seconds)


def gain_in_iteration_time(device, name, workers, latency, rate, density, per_node, batches, label):
    """How many times as long an iteration takes with an overlapped dense exchange as with a sparse one."""
    profile = models.load_model(name)
    compute = profile.compute * batches
    inner = (5e-6, 1e11) if per_node > 1 else ()
    point = OperatingPoint(workers, profile.parameters, density, latency, rate, per_node, *inner)
    backward = compute * profile.backward_fraction
    rows = decide(choices(per_node), point, by_closed_form(device), varies=(), backward=backward).rows
    dense = min(row.left for row in rows if row.choice.kind != "sparse")
    sparse = min(row.seconds for row in rows if row.choice.kind == "sparse" and row.choice.label.startswith(label))
    return (compute + dense) / (compute + sparse)


@pytest.mark.parametrize("profile", ["v100-torch1.5", "v100-torch2.6"])
def test_compression_rarely_pays_in_data_centres_and_nearly_always_over_wide_areas(profile):
    # S. Agarwal et al., MLSys 2022, arXiv 2103.00543: in 6 of more than 200 settings, against an overlapped all-reduce.
    # There top-k goes over an all-gather; machines of 4 V100, and models and batches that fill them.
    device = load_device(profile)
    centre = [
        gain_in_iteration_time(device, name, workers, 2e-5, rate * 1.25e8, density, per_node, 4, "AG")
        for name, workers, rate, density, per_node in itertools.product(
            ("resnet50", "bert-base"), (8, 16, 32, 64, 96), (10, 25, 50, 100), (0.01, 0.1, 0.2), (1, 4)
        )
    ]
    assert len(centre) >= 200
    assert np.mean(np.array(centre) > 1) <= 0.05
    wide = [
        gain_in_iteration_time(device, name, workers, latency, rate * 1.25e8, density, 1, 1, "")
        for name, workers, latency, rate, density in itertools.product(
            ("resnet50", "bert-base"), (2, 4, 8, 16), (0.02, 0.05, 0.1), (0.05, 0.1, 0.5, 1), (0.001, 0.01)
        )
    ]
    assert np.mean(np.array(wide) > 1.1) >= 0.95


@settings(max_examples=8, deadline=None)
@given(names=st.permutations(["latency", "bandwidth", "density", "workers", "model"]))
def test_a_map_is_the_decision_cell_by_cell(names):
    problem = problem_from_flags(ChooseRequest(workers=8, density=0.02))
    x, y = (axis(name, None, 6) for name in names[:2])
    made = draw_map(problem, x, y)
    assert made.which.shape == (len(y.values), len(x.values))
    for row, column in itertools.product(range(len(y.values)), range(len(x.values))):
        point = problem.point.at(x.quantity.field, x.values[column]).at(y.quantity.field, y.values[row])
        decision = decide(problem.among, point, problem.cost_model, varies=())
        assert made.seconds[row, column] == pytest.approx(decision.best.seconds, rel=1e-12)
        assert made.runner_up[row, column] == pytest.approx(decision.rows[1].seconds, rel=1e-12)
    assert len(made.table()) == made.which.size
    assert sum(made.shares().values()) == pytest.approx(1)


def test_a_scenario_is_asked_at_the_median_of_its_links():
    problem = problem_from_scenario(load("fluctuating_wan"), ChooseRequest())
    assert problem.trajectory is not None
    assert float(problem.point.bandwidth) == pytest.approx(float(np.median(problem.trajectory.bandwidth)))


did, refused = (partial(one, "choose") for one in (commands.did, commands.refused))


def test_first_use_works_on_defaults():
    result = did("--parameters", "25M")
    words = ("AG-Topk", "ART-ring", "fp16 ring", "Compression pays", "is faster from a latency of")
    for word in (*words, "device v100-torch2.6", "If selecting cost other than v100-torch2.6 says"):
        assert word in result.output


def test_json_says_all_that_the_table_says():
    result = did("--json", "--workers", "16", "--parameters", "11689512", "--density", "1 %", "--latency", "20 ms")
    found = json.loads(result.stdout)
    assert found["decision"] == found["ranking"][0]["exchange"]
    assert found["question"]["density"] == 0.01
    assert {one["quantity"] for one in found["flips"]} <= set(QUANTITIES)
    assert all(one["low_s"] <= one["exchange_s"] <= one["high_s"] for one in found["ranking"])
    assert all(one["bytes_sent_by_busiest_B"] > 0 for one in found["ranking"])
    assert found["compression_pays"] == (found["gain_over_dense_of_exchange"] > 1)
    assert found["question"]["device"] == "v100-torch2.6"
    for one in found["ranking"]:
        assert one["select_low_s"] <= one["select_s"] <= one["select_high_s"]
    assert all((one["factor"] > 1) == (one["direction"] == "up") for one in found["selection_flips"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workers", "1"],
        ["--density", "1"],
        ["--latency", "0 s", "--workers", "3"],
        ["--parameters", "1M", "--workers", "1"],
    ],
)
@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_limits_are_answered(arguments, json_):
    result = did(*arguments, *json_)
    assert "nan" not in result.output.casefold()


def test_two_runs_say_the_same():
    point = ("--all", "--json", "--workers", 4, "--parameters", "25M")
    assert did(*point).stdout == did(*point).stdout


@pytest.mark.parametrize("scenario", ["quickstart", "fluctuating_wan"])
@pytest.mark.parametrize("more", [(), ("--simulate",)])
def test_scenarios_can_be_asked(scenario, more):
    result = did(scenario, "--json", *more)
    assert json.loads(result.stdout)["ranking"]


def test_a_map_is_drawn_and_written(tmp_path):
    name = tmp_path / "wan"
    arguments = ("--map", "latency,bandwidth", "--range", "latency=1ms:100ms", "--cells", "20", "--out", str(name))
    did(*arguments)
    assert {one.name for one in tmp_path.iterdir()} == {f"wan.{ending}" for ending in ("png", "svg", "csv", "html")}
    lines = (tmp_path / "wan.csv").read_text().splitlines()
    assert lines[0] == "latency_ms,bandwidth_Gbit_per_s,exchange,exchange_s,margin"
    assert len(lines) == 401
    refused(*arguments)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    did(*arguments, "--force")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


@pytest.mark.parametrize("about", [["--workers", "5"], ["quickstart"]])
def test_exchanges_that_are_named_are_weighed_as_their_equals_are(about):
    named = "artopk:collective=tree:selection=var,topk"
    four = ("--set", "job.iterations=4", "--json")
    found = json.loads(did(*about, *four, "--schemes", named).stdout)["ranking"]
    usual = json.loads(did(*about, *four).stdout)["ranking"]
    equals = {"artopk:collective=tree:selection=var": ["ART-tree VAR"], "topk": ["AG-Topk", "AG"]}
    assert {row["exchange"] for row in found} == set(equals)
    for row in found:
        (equal,) = (one for one in usual if one["exchange"] in equals[row["exchange"]])
        assert {"job_s", "exchange_s"} & set(row)
        parts = ("communicate_and_wait_s", "mean_communicate_and_wait_s", "select_s", "mean_select_s")
        assert all(row[key] == equal[key] for key in ("job_s", "exchange_s", *parts) if key in row)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet51"], "did you mean 'resnet50'"),
        (["--density", "2"], "> 0 and at most 1"),
        (["--density", "many"], "must be a fraction"),
        (["--latency", "10 Gbit/s"], "--latency"),
        (["--bandwidth", "0"], "--bandwidth"),
        (["--device", "v10"], "did you mean 'v100-torch1.5'"),
        (["--topology", "star", "--parameters", "1M"], "is only for --simulate"),
        (["--topology", "fattree"], "there is no topology"),
        (["--simulate", "--workers", "100000"], "at most 4,096"),
        (["--schemes", "artopk:colective=tree"], "did you mean 'collective'"),
        (["--schemes", "topk", "--all"], "either names or --all"),
        (["--schemes", "topk:", "--fabric", "shaped_openmpi"], "OPTION=VALUE"),
        (["--parameters", "1M", "--schemes", "hardthreshold:threshold=1"], "name a scenario"),
        (["--schemes", "oktopk", "--map", "latency,bandwidth"], "oktopk is found by sampling"),
        (["--parameters", "1M", "--schemes", "oktopk", "--gpus-per-node", "4"], "know nothing of nodes"),
        (["--schemes", "exdyna:raise_factor=1.01", "--set", "job.iterations=4"], "has not settled"),
        (["--map", "latency"], "needs two quantities"),
        (["--map", "latency,latency"], "latency twice"),
        (["--map", "latency,bandwith"], "did you mean 'bandwidth'"),
        (["--map", "latency,density", "--range", "workers=1:2"], "no axis of the map"),
        (["--map", "latency,density", "--range", "density=0.1:2"], "from 1e-12 to 1"),
        (["--map", "density,model", "--range", "model=1e6:inf"], "from 1 to 1e+13"),
        (["--map", "density,workers", "--range", "workers=0.2:8"], "from 1 to 1e+06"),
        (["--map", "density,model", "--range", "model=resnet18:2"], "must be a number"),
        (["--map", "latency,bandwidth", "--all"], "is not for --map"),
        (["--map", "latency,bandwidth", "--out", "/"], "must end with a name"),
        (["--map", "latency,bandwidth", "--json"], "is only for a decision"),
        (["--bandwidth", "1e-300 bit/s", "--json"], "from 1 to 1e+18"),
        (["--latency", "1e300 s"], "from 0 to 1e+06"),
        (["--gpus-per-node", "4", "--topology", "ring"], "--gpus-per-node"),
        (["quickstart", "--map", "latency,density", "--simulate", "--latency", "1 us"], "takes the links of"),
        (["quickstart", "--map", "latency,density", "--simulate"], "does not heed it"),
        (["--cells", "50", "--range", "latency=1:2"], "is only for --map"),
        (["--gpus-per-node", "3", "--workers", "8"], "must divide the 8 workers"),
        (["--inner-latency", "1 us"], "--gpus-per-node"),
        (["--parameters", "10", "--model", "resnet18"], "either --model or --parameters"),
        (["no_such_scenario"], "there is no such file"),
        (["quickstart", "--model", "resnet18"], "is only for flags alone"),
        (["--fabric", "no.yaml"], "no.yaml"),
        (["--fabric", "no.yaml", "--latency", "1 ms"], "--latency"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(arguments, message):
    assert message in refused(*arguments)


def test_a_fabric_answers_for_its_cluster(tmp_path):
    fabric = tmp_path / "fabric.yaml"
    where = ["--where", "link_latency=0.001", "--where", "link_bandwidth=12500000.0"]
    commands.did("calibrate", "shaped_openmpi", *where, "-o", fabric)
    result = did("--fabric", str(fabric), "--model", "resnet18", "--json")
    found = json.loads(result.stdout)
    assert found["question"]["latency_s"] is None
    assert all(0 < one["low_s"] <= one["exchange_s"] <= one["high_s"] for one in found["ranking"])
    # On 100 Mbit/s nothing beats sending a hundredth.
    assert found["compression_pays"]
    assert math.isfinite(found["gain_over_dense_of_exchange"])
