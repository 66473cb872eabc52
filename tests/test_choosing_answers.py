"""What answers of `simnet choose` say of small jobs, against runs of each exchange and choices on other links."""

import itertools
import json
import math
import re

import numpy as np
import pytest

from commands import did, refused
from looping import each
from simnet.base.units import format_bandwidth, format_seconds
from simnet.policies import Candidate, Fixed
from simnet.report.summary import interval_text
from simnet.scenario import load
from simnet.studies.choosing.forecast import (
    PAIRED,
    JobForecast,
    WholeJob,
    error_between,
    follows_gradients,
    usual_exchanges,
)
from simnet.studies.choosing.grids import Map
from simnet.studies.choosing.ranking import ranked_candidates, sampled_fields
from simnet.studies.choosing.whole_job import candidates_of
from simnet.training.job.running import run_policy

SMALL = {"job.parameters": "20000", "job.model": "null", "job.iterations": "4", "job.scale": "1",
         "job.overlap": "none"}  # fmt: skip
TWO = "exchanges={dense: {scheme: dense}, topk: {scheme: topk}}"
FIELDS = [*(f"{name}={value}" for name, value in SMALL.items()), "job.compute.mean=1 ms", TWO, "policies={}"]
THREE = ("--schemes", "topk,dense:algorithm=ring,fp16:algorithm=ring")
NODES = "multi_gpu_nodes:nodes=2,gpus_per_node=2,intra_latency=5us,intra_bandwidth=100GB/s,nic_latency=1ms,nic_bandwidth=1GB/s"  # noqa: E501
SLOW_WAN = ("--network", "fluctuating_wan", "--set", "seed=3")


def asked(*words, small=SMALL):
    sets = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    compute = () if "--compute" in words or not small else ("--compute", "1ms")
    return json.loads(did("choose", *sets, *compute, *words, "--json").stdout)


@pytest.mark.parametrize("words", [
    THREE,
    (*THREE, "--network", "fat_tree:k=4", "--set", "job.compute.spread=20%"),
    (*THREE, *SLOW_WAN, "--set", "job.iterations=60"),
    (*THREE, "--latency", "1us", "--bandwidth", "100Gbit/s"),
    ("--network", NODES, "--workers", 4),
], ids=["star", "fat-tree", "wan", "dense-wins", "nodes"])  # fmt: skip
def test_rows_agree_with_each_other(words):
    found = asked(*words)
    rows = found["rows"]
    best, last = rows[0], rows[-1]
    iterations = found["question"]["iterations"]
    assert [row["job_s"] for row in rows] == sorted(row["job_s"] for row in rows)
    assert sum(row["chance_to_be_fastest"] for row in rows) == pytest.approx(1)
    assert {"best": [best["exchange"]], "tied": found["tied_with"]} == {
        word: [row["exchange"] for row in rows if row["to_best"] == word] for word in ("best", "tied")
    }
    for row in rows:
        assert row["over_the_fastest"] == pytest.approx(row["job_s"] / best["job_s"] - 1)
        assert row["mean_iteration_s"] == pytest.approx(row["job_s"] / iterations)
        assert row["iteration_low_s"] == pytest.approx(row["low_s"] / iterations)
        assert row["iteration_high_s"] == pytest.approx(row["high_s"] / iterations)
        assert row["low_s"] <= row["job_s"] * (1 + 1e-12) <= row["high_s"] * (1 + 2e-12)
        assert row["iteration_5_percent_s"] <= row["iteration_95_percent_s"]
        assert row["mean_select_low_s"] <= row["mean_select_s"] <= row["mean_select_high_s"]
        parts = [row[f"mean_{one}_s"] for one in ("compute", "select", "communicate_and_wait")]
        assert sum(parts) == pytest.approx(row["mean_iteration_s"])
        assert row["iterations_simulated"] <= iterations
        assert 0 <= row["regret_of_job"] <= last["over_the_fastest"] + 1e-12
        assert row["memory_B"] == row["memory"]["peak_B"] or row["kind"] == "policy"
        if row["iterations_simulated"] == iterations:
            assert row["sampling_error_s"] == 0
    # Who is likely not the fastest is expected to lose, and the more the longer it takes.
    regrets = [row["regret_of_job"] for row in rows if row["chance_to_be_fastest"] < 0.5]
    assert all(one > 0 for one in regrets)
    assert all(later >= 0.98 * earlier for earlier, later in itertools.pairwise(regrets))
    assert best["regret_of_job"] < rows[1]["regret_of_job"]
    assert (
        interval_text(*(best[f"{name}_s"] for name in ("mean_iteration", "iteration_low", "iteration_high")))
        in found["answer"]
    )
    whole = [row["job_s"] for row in rows if row["kind"] in ("dense", "half")]
    sparse = [row["job_s"] for row in rows if row["kind"] == "sparse"]
    assert found["gain_over_dense"] == pytest.approx(min(whole) / min(sparse))


def frame_of(base, fields, label):
    run = load(base, fields).build()
    return run_policy(run.job, label, Fixed(run.candidates[label])).iterations


def means(frame, steps, workers):
    """Return the time of a step and its parts, and the bytes that a worker sends in it."""
    total, compute, select = (frame[f"{name}_s"].sum() / steps for name in ("iteration", "compute", "select"))
    sent = frame["bytes_sent_B"].sum() / workers / steps
    return pytest.approx([total, compute, select, total - compute - select, sent])


def means_in(row):
    names = ("iteration_s", "compute_s", "select_s", "communicate_and_wait_s", "bytes_sent_per_worker_B")
    return [row[f"mean_{name}"] for name in names]


def test_figures_of_a_row_are_those_of_a_run_of_it():
    fields = [*FIELDS, "job.compute.spread=30%", "job.iterations=37", "job.batch=16"]
    found = asked(*(word for one in fields for word in ("--set", one)))
    for row in [row for row in found["rows"] if row["exchange"] in ("dense", "topk")]:
        frame = frame_of("base", fields, row["exchange"])
        assert means_in(row) == means(frame, 37, 8)
        low, high = np.quantile(frame["iteration_s"], (0.05, 0.95), method="inverted_cdf")
        assert (row["iteration_5_percent_s"], row["iteration_95_percent_s"]) == (low, high)
        assert row["throughput"] == pytest.approx(16 * 8 / row["mean_iteration_s"])


@pytest.mark.parametrize(("words", "said"), [
    (("--schemes", "topk"), r"topk: 4\.16 ms \(.*\) an iteration\."),
    (THREE, r"topk: 4\.16 ms \(.*\) an iteration, 3\.63x before fp16:algorithm=ring; fastest with \d+ %\."),
    (("--schemes", "topk,dense:algorithm=ring"),
     r"topk: .* before dense:algorithm=ring; fastest with >99 %\."),
    ((), r"AG-Topk: 4\.16 ms .*, 73 % faster than the best dense exchange \(fp16 tree, 7\.21 ms\)\."),
    (("--schemes", "topk,dense:algorithm=ring", "--latency", "1us", "--bandwidth", "100Gbit/s"),
     r"dense:algorithm=ring: .* before topk; fastest with \d+ %; compression does not pay: topk takes \d+ % longer\."),
    (("--schemes", "topk,randomk,dgc,oktopk,dense", "--latency", "0s", "--bandwidth", "1Tbit/s", "--compute", "1s"),
     r"dense, randomk or topk \(and 1 more\): tied \(>99 %, .*\)\. dense: .*"),
    (("--set", "exchanges={a: {scheme: topk}, b: {scheme: topk}}"),
     r"a or b: 4\.16 ms .* an iteration, 73 % before .*"),
    (("--set", "exchanges={a: {scheme: topk}, b: {scheme: topk}}",
      "--set", "policies={a: {fixed: a}, b: {fixed: b}}"),
     r"a or b: tied, 4\.16 ms \(.*\) an iteration\."),
])  # fmt: skip
def test_the_answer_names_the_fastest_its_rivals_and_its_lead(words, said):
    assert re.fullmatch(said, asked(*words)["answer"])


def test_a_scheme_of_the_user_that_takes_the_same_times_is_named_in_the_table():
    alike = "exchanges={mine: {scheme: topk}, my own: {scheme: topk}, third: {scheme: topk}, fourth: {scheme: topk}}"
    words = [word for one in (alike, *(f"{name}={value}" for name, value in SMALL.items())) for word in ("--set", one)]
    shown = did("choose", *words, "--compute", "1ms").stdout
    assert "\nmine (= my own, third, 1 more)" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    labels = [
        one.label for one in candidates_of(load("base", ["exchanges={AG-Topk: {scheme: dense}, b: {scheme: topk}}"]))
    ]
    assert labels[:2] == ["AG-Topk", "b"]
    # The usual one of that name is b, and no name stands for two.
    assert "AG-Topk (usual)" not in labels
    assert len({*labels}) == len(labels)


FLIPPING = ("--schemes", "topk,dense:algorithm=ring,artopk:collective=ring", "--set", "job.device=ideal",
            "--latency", "100us", "--density", "5%",
            "--set", "job.parameters=2000000", "--set", "job.scale=100")  # fmt: skip
SAID = {
    "latency": lambda value, side: format_seconds(value),
    "bandwidth": lambda value, side: format_bandwidth(value),
    "density": lambda value, side: f"a density of {100 * value:.3g} %",
    "workers": lambda value, side: f"{value + side:.0f} workers",
}
WORDS = {"latency": "latency={!r} s", "bandwidth": "bandwidth={!r} B/s", "density": "density={!r}",
         "workers": "workers={:.0f}"}  # fmt: skip


def test_what_flips_the_choice_is_what_choices_on_both_sides_say():
    found = asked(*FLIPPING)
    sides = {(one["quantity"], one["direction"]): one for one in found["flips"]}
    assert {quantity for quantity, _ in sides} == {*WORDS}
    for (quantity, direction), one in sides.items():
        step = 1.001 if direction == "up" else 1 / 1.001
        values = (one["value"] / step, one["value"] * step)
        if quantity == "workers":
            values = (one["value"] - 1, one["value"]) if direction == "up" else (one["value"] + 1, one["value"])
        axis = f"{quantity}={','.join(WORDS[quantity].format(value).partition('=')[2] for value in values)}"
        before, after = (row["exchange"] for row in asked(*FLIPPING, "--grid", axis, "--jobs", "1")["rows"])
        assert (before, after) == (found["decision"], one["exchange"])
        (part,) = (part for part in found["depends_on"].rstrip(".").split("; ") if part.startswith(one["exchange"]))
        low, _, high = part.partition("above")
        assert SAID[quantity](one["value"], 1 if direction == "down" else -1) in (low if direction == "down" else high)
    steady = asked("--schemes", "topk")
    assert steady["depends_on"].startswith("nothing near: ")
    off = "With links up to 2x off, topk stays first."
    assert off in steady["notes"]
    assert off not in asked("--schemes", "topk", "--link-uncertainty", "2")["notes"]


@pytest.mark.parametrize("factor", [1, 4, 60])
def test_the_cost_of_wrong_links_is_that_of_the_choice_on_every_pair_of_wrong_links(factor):
    """All pairs of a logarithmic grid, each by the job's closed form: of one bucket, and without kernels."""
    found = asked(*FLIPPING, "--link-uncertainty", factor)
    misjudged, nbytes = found["misjudged"], 8e6

    def seconds(label, alpha, rate):
        kept = 0.05 * nbytes
        sends = {"topk": (3, 2 * kept * 7), "dense:algorithm=ring": (14, nbytes * 14 / 8),
                 "artopk:collective=ring": (14 + 3, kept * (14 / 8 + 3))}[label]  # fmt: skip
        return 1e-3 + sends[0] * alpha + sends[1] / rate

    times = {row["exchange"]: row["mean_iteration_s"] for row in found["rows"]}
    assert times == pytest.approx({label: seconds(label, 1e-4, 1.25e9) for label in times}, rel=1e-3)
    factors = [factor ** (power / 10) for power in range(-10, 11)]
    pairs = [(1e-4 * one, 1.25e9 * other) for one in factors for other in factors]
    lost = [seconds(found["decision"], *pair) / min(seconds(label, *pair) for label in times) - 1 for pair in pairs]
    assert misjudged["worst_regret"] == pytest.approx(max(lost), rel=1e-3, abs=1e-9)
    assert misjudged["holds"] == pytest.approx(np.mean(np.array(lost) <= 1e-9))
    if max(lost) > 0:
        assert (misjudged["latency_s"], misjudged["bandwidth_Bps"]) == pytest.approx(pairs[int(np.argmax(lost))])
        best = min(times, key=lambda label: seconds(label, misjudged["latency_s"], misjudged["bandwidth_Bps"]))
        assert misjudged["exchange"] == best


def test_the_next_step_can_be_taken():
    """It is asked as it stands: a grid of the bandwidth, a decade to each side, or another where there is none."""
    for words, start in (
        (THREE, "--grid bandwidth=1Gbit/s:100Gbit/s:9:log"),
        ((*THREE, "--network", "fat_tree:k=4"), "--grid bandwidth=1Gbit/s,10Gbit/s,100Gbit/s"),
        (("--schemes", "topk,dense", *SLOW_WAN, "--set", "job.iterations=600"), "--exact"),
        ((*THREE, "--workers", "1"), "--grid workers=2,4,8"),
    ):
        said = asked(*words)["next"].partition("   ")[0]
        assert said == start
        if "," in said:
            again = said.split()
            assert len(asked(*words, *again, "--jobs", "1")["rows"]) == 3


def test_cells_of_a_grid_are_choices_by_themselves():
    found = asked(*THREE, "--grid", "bandwidth=0.1,10,400Gbit/s", "--grid", "density=1%,30%", "--jobs", "1")
    rows = found["rows"]
    assert len(rows) == 6
    firsts = [row["exchange"] for row in rows]
    for label in {*firsts}:
        assert f"{label} in {firsts.count(label)}" in found["answer"]
    for row in rows:
        alone = asked(*THREE, f"--bandwidth={row['bandwidth_Bps']} B/s", f"--density={row['density']}")
        first, second = alone["rows"][:2]
        for name in ("exchange", "mean_iteration_s", "iteration_low_s", "iteration_high_s", "chance_to_be_fastest"):
            assert row[name] == first[name]
        assert (row["runner_up"], row["margin"]) == (second["exchange"], second["over_the_fastest"])
        assert row["tied_with"] == alone["tied_with"]
        assert row["times_s"] == {one["exchange"]: one["mean_iteration_s"] for one in alone["rows"]}
        assert (row["lead"] == "tied") == bool(alone["tied_with"])
    assert found["evidence"]
    shown = did("choose", *THREE, "--set", "job.scale=1000", "--grid", "device=v100,a100-torch2.6", "--grid",
                "density=1%,30%", "--jobs", "1").stdout  # fmt: skip
    assert re.search(r"^a100-torch2.6 +30\.0 ", shown, re.MULTILINE)
    assert "[%]" in shown
    one = asked("--schemes", "topk", "--grid", "workers=2,3", "--grid", "latency=1,2,3us", "--jobs", "1")
    assert one["answer"] == "topk is first in all 6 cells."
    assert all(row["runner_up"] is row["margin"] is row["lead"] is None for row in one["rows"])
    assert [(row["workers"], row["latency_s"]) for row in one["rows"]] == [
        (workers, latency) for workers in (2, 3) for latency in (1e-6, 2e-6, 3e-6)
    ]


def test_a_cell_that_is_refused_is_named_and_others_stay():
    large = ("--set", "job.parameters=100000000", "--set", "job.scale=5000")
    found = asked(*THREE, *large, "--grid", "device_memory=600MB,64GB", "--jobs", "1")
    assert [("refused" in row, row.get("exchange")) for row in found["rows"]] == [(True, None), (False, "topk")]
    assert len(found["notes"]) == 1
    assert "no exchange is left" in found["notes"][0]
    assert found["answer"] == "topk is first in all 1 cells."
    for words, said in (
        (("--grid", "device_memory=1kB,2kB"), "no exchange is left"),
        (("--grid", "seed=1:65:65"), "has 65 cells, more than the 64 that are simulated"),
        (("--grid", "latency=1us:1ms:201", "--grid", "bandwidth=1:2Gbit/s:200"), "has 40,200 cells, at most 40,000"),
        (("--grid", "seed=1,2", "--link-uncertainty", "2"), "not for a grid"),
    ):
        assert said in refused("choose", *THREE, *words, "--jobs", "1")


@pytest.mark.parametrize(("x", "y", "words"), [
    (("latency", 1e-6, 1e-2), ("bandwidth", 1e7, 1e11), ()),
    (("workers", 2, 40), ("density", 1e-3, 0.5), ()),
    (("density", 1e-3, 0.9), ("latency", 1e-6, 1e-3), ("--set", "job.overlap.bucket=100 kB", "--compute", "3ms")),
], ids=["links", "workers", "overlap"])  # fmt: skip
def test_cells_of_a_map_are_choices_by_themselves(x, y, words):
    units = {"latency": "s", "bandwidth": "B/s", "workers": "", "density": ""}
    keys = {"latency": "latency_s", "bandwidth": "bandwidth_Bps"}
    sizes, axes = (13, 11), []
    for (name, low, high), size in zip((x, y), sizes, strict=True):
        linear = name == "workers"
        axes += ["--grid", f"{name}={low}{units[name]}:{high}{units[name]}:{size}{'' if linear else ':log'}"]
        axes = [one.replace(":40:13", ":38:13") for one in axes]
    small = dict(list(SMALL.items())[:-1]) if words else SMALL
    fields = ("--schemes", "topk,dense:algorithm=ring,artopk:collective=ring", *words)
    found = asked(*fields, *axes, small=small)
    assert not found["simulated"]
    assert len(found["rows"]) == found["cells"] == 143
    firsts = [row["exchange"] for row in found["rows"]]
    assert found["shares"] == pytest.approx({label: firsts.count(label) / 143 for label in {*firsts}})
    for row in found["rows"][::35]:
        there = [("--set", WORDS[name].format(row[keys.get(name, name)])) for name, *_ in (x, y)]
        alone = asked(*fields, *itertools.chain(*there), small=small)["rows"]
        assert row["iteration_s"] == pytest.approx(alone[0]["mean_iteration_s"], rel=0.02)
        assert row["margin"] == pytest.approx(alone[1]["over_the_fastest"], abs=0.03)
        if row["margin"] > 0.02:
            assert row["exchange"] == alone[0]["exchange"]


def test_a_map_that_is_simulated_has_the_choices_of_its_cells():
    fields = ("--schemes", "topk,randomk,dense:algorithm=ring")
    found = asked(*fields, "--grid", "latency=1us:10ms:9:log", "--grid", "bandwidth=10Mbit/s,100Gbit/s", "--jobs", "1")
    assert found["simulated"]
    assert "16 of 18 cells are simulated" in found["answer"]
    assert len({row["latency_s"] for row in found["rows"]}) == 8
    assert {row["latency_s"] for row in found["rows"]} >= {1e-6, 1e-2}
    for row in found["rows"][::5]:
        alone = asked(*fields, f"--latency={row['latency_s']!r} s", f"--bandwidth={row['bandwidth_Bps']!r} B/s")["rows"]
        assert row["iteration_s"] == alone[0]["mean_iteration_s"]
        assert row["margin"] == pytest.approx(alone[1]["over_the_fastest"])


def test_a_map_names_in_each_cell_the_fastest_and_those_as_fast():
    seconds = np.array([[[1.0, 2.0, 3.0], [5.0, 4.0, 2.0]], [[1.0005, 1.0, 3.1], [4.0, 4.0, 9.0]]])
    made = Map([Candidate("a", "topk"), Candidate("b", "dense")],
               {"bandwidth": np.array([1.0, 2.0, 3.0]), "density": np.array([0.1, 0.2])}, seconds)  # fmt: skip
    rows = made.rows()
    assert [row["exchange"] for row in rows] == ["a and b, tied", "b", "a", "b", "a and b, tied", "a"]
    assert [row["iteration_s"] for row in rows] == [1.0, 1.0, 3.0, 4.0, 4.0, 2.0]
    assert [row["margin"] for row in rows] == pytest.approx([0.0005, 1.0, 0.1 / 3, 0.25, 0.0, 3.5])
    assert [(row["bandwidth_Bps"], row["density"]) for row in rows[2:4]] == [(3.0, 0.1), (1.0, 0.2)]
    assert list(made.shares().items()) == [("a and b, tied", 2 / 6), ("b", 2 / 6), ("a", 2 / 6)]
    alone = Map(made.among[:1], made.values, seconds[:1])
    assert [row["margin"] for row in alone.rows()] == [None] * 6


SIZES = [(model, density) for model in ("resnet18", "resnet50", "gpt2", "7B") for density in ("1%", "0.01%", "30%")]


@pytest.mark.parametrize(("model", "density"), [*SIZES, (20000, "1%"), (2_000_000, "0.01%")])
def test_gradients_are_scaled_down_until_drawing_them_is_cheap_and_buckets_still_select(model, density):
    size = f"job.model={model}" if isinstance(model, str) else f"job.model=null,job.parameters={model}"
    fields = [*size.split(","), f"job.density={density}", "job.compute.mean=1 ms", "job.iterations=7"]
    given = load("base", fields)
    job = given.build().job
    made = load("base", [*fields, *sampled_fields(given)]).build().job
    buckets = min(len(job.source.layers) or 1, job.source.true_parameters * 4 / 26_214_400 + 2)
    least = 10 * buckets / float(density.rstrip("%")) * 100
    entries, before = made.source.parameters, job.source.parameters
    assert made.source.true_parameters == pytest.approx(job.source.true_parameters)
    if least <= before <= max(2**18, least):
        assert entries == before
    else:
        assert job.source.true_parameters / entries == pytest.approx(
            max(job.source.true_parameters / max(25_557, least), 1), abs=0.51, rel=0.001
        )
    assert made.iterations == (1 if job.source.true_parameters > 10**9 else 7)


@pytest.mark.parametrize(("fields", "iterations"), [
    ([], 7),
    (["exchanges.g={scheme: gaussiank}"], 300),
    (["exchanges.g={scheme: gaussiank}", "job.iterations=500"], 500),
    (["exchanges.g={scheme: gaussiank}", "job.density=[{iterations: 3, from: 0.1, to: 0.01}, {at: 0.01}]"], 7),
    (["exchanges.g={scheme: gaussiank}", "network.topology={star: {latency: 1 ms, bandwidth: 1 Gbit/s}}",
      "network.weather=[{links: all, bandwidth: {steps: {at: [0 s, 1 s], factors: [1, 0.5], period: 2 s}}}]"], 7),
    (["job.model=7B"], 1),
    (["job.model=7B", "job.iterations=1"], 1),
    (["job.model=7B", "job.density=[{iterations: 3, from: 0.1, to: 0.01}, {at: 0.01}]"], 7),
])  # fmt: skip
def test_iterations_are_those_that_schemes_need_to_settle_where_nothing_changes(fields, iterations):
    given = [*(f"{name}={value}" for name, value in SMALL.items() if "7B" not in str(fields)), "job.compute.mean=1 ms",
             "job.iterations=7", *fields]  # fmt: skip
    loaded = load("base", given)
    assert load("base", [*given, *sampled_fields(loaded)]).build().job.iterations == iterations


def test_candidates_are_those_of_fixed_policies_or_the_usual_ones_beside_the_own():
    def labels(*fields):
        loaded = load("base", [*fields])
        return [one.label for one in ranked_candidates(loaded, loaded.build())]

    two = "exchanges={a: {scheme: topk, allgather: ring}, b: {scheme: dgc}}"
    usual = [one.label for one in usual_exchanges()]
    assert labels(two, "policies={b: {fixed: b}}") == ["b"]
    assert labels(two, "policies={x: {fixed: b}, y: {fixed: a}}") == ["b", "a"]
    assert labels(two) == labels(two, "policies={b: {fixed: b}, f: {flexible: {among: [a, b]}}}") == ["a", "b", *usual]
    nodes = labels(two, "network.topology={multi_gpu_nodes: {nodes: 2, gpus_per_node: 4, intra_latency: 5 us,"
                   "intra_bandwidth: 100 GB/s, nic_latency: 1 ms, nic_bandwidth: 1 GB/s}}")  # fmt: skip
    assert any(label.startswith("two-level") for label in nodes)
    assert not any(label.startswith("two-level") for label in usual)


@each("seed", range(30))
def test_the_error_between_samples_is_that_of_changes_of_their_speeds(seed):
    """Of speeds a second apart: a change falls anywhere within the longer of the two stretches around it."""
    random = np.random.default_rng(seed)
    blocks = [(random.integers(1, 4, count), random.integers(1, 4, count)) for count in (PAIRED, PAIRED + 7)]
    rows = [
        JobForecast(Candidate(str(place), "topk"),
                    {"iteration_s": seconds.astype(float), "stands_for": stands_for.astype(float),
                     "expected_s": random.random(len(seconds)) + 50}, int(stands_for.sum()), 0.0)
        for place, (seconds, stands_for) in enumerate(blocks)
    ]  # fmt: skip
    speeds = [np.repeat(1 / seconds, seconds * stands_for) for seconds, stands_for in blocks]
    last = min(map(len, speeds))
    ends = sorted(
        {int(end) for seconds, stands_for in blocks for end in np.cumsum(seconds * stands_for) if end <= last}
    )
    stretches = list(itertools.pairwise([0, *ends]))
    squares = 0.0
    for (begin, middle), (_, end) in itertools.pairwise(stretches):
        gaps = [speeds[1][second] - speeds[0][second] for second in (middle - 1, middle)]
        squares += (gaps[1] - gaps[0]) ** 2 / 2 * max(middle - begin, end - middle) ** 2
    alone = math.hypot(rows[0].error, rows[1].error)
    paired = math.sqrt(squares) * rows[1].seconds / rows[1].iterations
    assert error_between(*rows) == pytest.approx(min(paired, alone))
    few = JobForecast(Candidate("few", "topk"), {name: one[:9] for name, one in rows[0].sample.items()}, 20, 0.0)
    assert error_between(few, rows[1]) == pytest.approx(math.hypot(few.error, rows[1].error))
    assert error_between(rows[0], rows[0]) == 0


def test_rows_are_tied_within_the_sampling_error_or_a_thousandth():
    def row(label, seconds, spread=0.0):
        expected = 1 + spread * np.linspace(-1, 1, 40)
        sample = {"iteration_s": np.full(40, seconds), "stands_for": np.full(40, 2.0), "expected_s": expected}
        return JobForecast(Candidate(label, "topk"), sample, 80, 0.0)

    first, alike, off = row("a", 1.0), row("b", 1.0009), row("c", 1.002)
    assert [WholeJob((first, alike, off)).tied(one) for one in (first, alike, off)] == [False, True, False]
    assert WholeJob((first, alike, off), alike={"a": ["d"]}).tied_with == ["d", "b"]
    # Without all iterations the two are told apart by twice the error of their difference.
    few = JobForecast(first.candidate, {name: one[:9] for name, one in row("a", 1.0, 0.4).sample.items()}, 80, 0.0)
    error = error_between(few, off)
    assert error > 0
    for seconds, tied in ((few.seconds + 1.9 * error, True), (few.seconds + 2.1 * error, False)):
        assert WholeJob((few, row("c", seconds / 80))).tied(row("c", seconds / 80)) == tied


def test_what_is_free_or_cannot_be_made_is_weighed_all_the_same():
    found = asked("--schemes", "dense", "--workers", "1", "--compute", "0s", "--set", "job.device=ideal")
    assert [(row["job_s"], row["over_the_fastest"]) for row in found["rows"]] == [(0, 0)]
    assert not follows_gradients(Candidate("teams", "spardl", {"teams": 3}))
    assert follows_gradients(Candidate("g", "gaussiank"))
