"""What answers of `simnet choose` say of small jobs, against runs of each exchange and choices on other links."""

import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest

import outputs
from commands import did, invoke, refused
from simnet.base.progress import report_progress
from simnet.policies import Candidate, Fixed
from simnet.report.summary import interval_text
from simnet.scenario import load
from simnet.studies.assumptions import FORMATS
from simnet.studies.choosing.grids import Map
from simnet.studies.choosing.ranking import sampled_fields
from simnet.studies.choosing.whole_job import candidates_of
from simnet.training.job.running import run_policy
from simnet.verbs import terminal

SMALL = {"job.parameters": "20000", "job.model": "null", "job.iterations": "4", "job.scale": "1",
         "job.overlap": "none"}  # fmt: skip
TWO = "exchanges={dense: {scheme: dense}, topk: {scheme: topk}}"
FIELDS = [*(f"{name}={value}" for name, value in SMALL.items()), "job.compute.mean=1 ms", TWO, "policies={}"]
THREE = ("--schemes", "topk,dense:algorithm=ring,fp16:algorithm=ring")


def asked(*words, small=SMALL):
    sets = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    compute = () if "--compute" in words or not small else ("--compute", "1ms")
    return json.loads(did("choose", *sets, *compute, *words, "--json").stdout)


@pytest.mark.parametrize("words", [
    THREE,
    (*THREE, "--network", "fat_tree:k=4", "--set", "job.compute.spread=20%"),
    (*THREE, "--network", "fluctuating_wan", "--set", "seed=3", "--set", "job.iterations=60"),
    (*THREE, "--latency", "1us", "--bandwidth", "100Gbit/s"),
    ("--network", "dgx-h100", "--workers", 16),
], ids=["star", "fat-tree", "wan", "dense-wins", "nodes"])  # fmt: skip
def test_rows_agree_with_each_other(words):
    found = asked(*words)
    rows, iterations = found["rows"], found["question"]["iterations"]
    best = rows[0]
    assert [row["job_s"] for row in rows] == sorted(row["job_s"] for row in rows)
    assert sum(row["chance_to_be_fastest"] for row in rows) == pytest.approx(1)
    assert {"best": [best["exchange"]], "tied": found["tied_with"]} == {
        word: [row["exchange"] for row in rows if row["to_best"] == word] for word in ("best", "tied")
    }
    for row in rows:
        assert row["over_the_fastest"] == pytest.approx(row["job_s"] / best["job_s"] - 1)
        each = [row[name] for name in ("mean_iteration_s", "iteration_low_s", "iteration_high_s")]
        assert each == pytest.approx([row[name] / iterations for name in ("job_s", "low_s", "high_s")])
        assert row["low_s"] <= row["job_s"] * (1 + 1e-12) <= row["high_s"] * (1 + 2e-12)
        assert row["mean_select_low_s"] <= row["mean_select_s"] <= row["mean_select_high_s"]
        parts = [row[f"mean_{one}_s"] for one in ("compute", "select", "communicate_and_wait")]
        assert sum(parts) == pytest.approx(row["mean_iteration_s"])
        most = row["high_s"] / min(other["low_s"] for other in rows if other is not row) - 1
        assert 0 <= row["regret_of_job"] <= min(rows[-1]["over_the_fastest"], max(most, 0.0)) + 1e-12
        assert row["sampling_error_s"] == 0 or row["iterations_simulated"] < iterations
    rivals = [row for row in rows if row["chance_to_be_fastest"] < 0.5]
    assert all(row["regret_of_job"] > 0 for row in rivals)
    for earlier, later in itertools.pairwise(rivals):
        # Of equal jobs each has draws of its own.
        equal = later["job_s"] < earlier["job_s"] * (1 + 1e-9)
        assert later["regret_of_job"] >= (0.95 if equal else 0.98) * earlier["regret_of_job"]
    tied = rows[1]["job_s"] < best["job_s"] * (1 + 1e-9)
    assert best["regret_of_job"] < rows[1]["regret_of_job"] * (1.05 if tied else 1)
    assert (
        interval_text(*(best[f"{one}_s"] for one in ("mean_iteration", "iteration_low", "iteration_high")))
        in (found["answer"])
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


@pytest.mark.parametrize(("words", "said"), [
    (("--schemes", "topk,randomk,dgc,oktopk,dense", "--latency", "0s", "--bandwidth", "1Tbit/s", "--compute", "1s"),
     r"dense, randomk or topk \(and 1 more\): tied \(>99 %, .*\)\. dense: .*"),
    (("--set", "exchanges={a: {scheme: topk}, b: {scheme: topk}}",
      "--set", "policies={a: {fixed: a}, b: {fixed: b}}"),
     r"a or b: tied, 4\.16 ms \(.*\) an iteration\."),
])  # fmt: skip
def test_the_answer_names_all_that_are_tied(words, said):
    assert re.fullmatch(said, asked(*words)["answer"])


def test_a_scheme_of_the_user_that_takes_the_same_times_is_named_in_the_table(tmp_path):
    alike = "exchanges={mine: {scheme: topk}, my own: {scheme: topk}, third: {scheme: topk}, fourth: {scheme: topk}}"
    words = [word for one in (alike, *(f"{name}={value}" for name, value in SMALL.items())) for word in ("--set", one)]
    shown = did("choose", *words, "--compute", "1ms", "--out", tmp_path / "page.html").stdout
    assert "\nmine (= my own, third, 1 more)" in shown
    assert "<td>mine (= my own, third, 1 more)</td>" in (tmp_path / "page.html").read_text()
    own = "exchanges={AG-Topk: {scheme: dense}, b: {scheme: topk}}"
    labels = [one.label for one in candidates_of(load("base", [own]))]
    assert labels[:2] == ["AG-Topk", "b"]
    assert "AG-Topk (usual)" not in labels


FLIPPING = ("--schemes", "topk,dense:algorithm=ring,artopk:collective=ring", "--set", "job.device=ideal",
            "--latency", "100us", "--set", "job.parameters=2000000", "--set", "job.scale=100")  # fmt: skip
WORDS = {"latency": "{!r} s", "bandwidth": "{!r} B/s", "density": "{!r}", "workers": "{:.0f}"}


@pytest.mark.parametrize("density", ["5%", "2%"])
def test_what_flips_the_choice_is_what_choices_on_both_sides_say(density):
    request = (*FLIPPING, "--density", density)
    found = asked(*request)
    assert {one["quantity"] for one in found["flips"]} == {*WORDS}
    for one in found["flips"]:
        quantity, direction = one["quantity"], one["direction"]
        step = 1.001 if direction == "up" else 1 / 1.001
        values = (one["value"] / step, one["value"] * step)
        if quantity == "workers":
            values = (one["value"] - 1, one["value"]) if direction == "up" else (one["value"] + 1, one["value"])
        axis = f"{quantity}={','.join(map(WORDS[quantity].format, values))}"
        before, after = (row["exchange"] for row in asked(*request, "--grid", axis, "--jobs", "1")["rows"])
        assert (before, after) == (found["decision"], one["exchange"])
        (part,) = (part for part in found["depends_on"].rstrip(".").split("; ") if part.startswith(one["exchange"]))
        low, _, high = part.partition("above")
        workers = f"{one['value'] + (1 if direction == 'down' else -1):.0f} workers"
        said = workers if quantity == "workers" else FORMATS[quantity](one["value"])
        assert f"{'a density of ' * (quantity == 'density')}{said}" in (low if direction == "down" else high)


@pytest.mark.parametrize("factor", [1, 4, 60])
def test_the_cost_of_wrong_links_is_that_of_the_choice_on_every_pair_of_wrong_links(factor):
    """All pairs of a logarithmic grid, each by the job's closed form: of one bucket, and without kernels."""
    found = asked(*FLIPPING, "--density", "5%", "--link-uncertainty", factor)
    misjudged, nbytes, kept = found["misjudged"], 8e6, 4e5
    assert ("With links up to" in found["depends_on"]) == (factor > 1)

    def seconds(label, alpha, rate):
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
        assert misjudged["exchange"] == min(times, key=lambda label: seconds(label, *pairs[int(np.argmax(lost))]))


def test_cells_of_a_grid_are_choices_by_themselves():
    found = asked(*THREE, "--grid", "bandwidth=0.1,10,400Gbit/s", "--grid", "density=1%,30%", "--jobs", "1")
    firsts = Counter((row["exchange"], *row["tied_with"]) for row in found["rows"])
    assert all(f"{' or '.join(tied)} in {count} of 6 cells" in found["answer"] for tied, count in firsts.items())
    for row in found["rows"]:
        alone = asked(*THREE, f"--bandwidth={row['bandwidth_Bps']} B/s", f"--density={row['density']}")
        first, second = alone["rows"][:2]
        for name in ("exchange", "mean_iteration_s", "iteration_low_s", "iteration_high_s", "chance_to_be_fastest"):
            assert row[name] == first[name]
        assert (row["runner_up"], row["margin"]) == (second["exchange"], second["over_the_fastest"])
        assert row["tied_with"] == alone["tied_with"]
        assert row["times_s"] == {one["exchange"]: one["mean_iteration_s"] for one in alone["rows"]}
        assert (row["lead"] == "tied") == bool(alone["tied_with"])
    over = asked(*THREE, "--grid", "bandwidth=100Mbit/s,400Gbit/s", "--jobs", "1")["evidence"]
    assert re.match(r"measured in 1 of 2 cells, extrapolated in 1: here .*400 Gbit/s", over)


def test_cells_in_which_nothing_fits_are_rows_unless_all_are_such():
    said = invoke("choose", *THREE, "--grid", "job.device_memory=1kB,1GB", "--jobs", "1", "--json")
    first, second = (found := json.loads(said.stdout))["rows"]
    assert (said.exit_code, "of the 1 kB of a device" in first["refused"]) == (1, True)
    assert re.fullmatch(f"{second['exchange']} in 1 of 2 cells, .* result: 1 kB: no exchange is left.", found["answer"])
    words = ("--model", "resnet18", "--schemes", "dense", "--compute", "1ms", "--jobs", "1")
    assert "of the 1 MB of a device" in refused("choose", *words, "--grid", "job.device_memory=1MB,2MB")


def test_a_map_names_in_each_cell_the_fastest_and_those_as_fast():
    seconds = np.array([[[1.0, 2.0, 3.0], [5.0, 4.0, 2.0]], [[1.0005, 1.0, 3.1], [4.0, 4.0, 9.0]]])
    values = {"bandwidth": np.array([1.0, 2.0, 3.0]), "density": np.array([0.1, 0.2])}
    rows = (made := Map([Candidate("a", "topk"), Candidate("b", "dense")], values, seconds)).rows()
    assert [row["exchange"] for row in rows] == ["a and b, tied", "b", "a", "b", "a and b, tied", "a"]
    assert [row["iteration_s"] for row in rows] == [1.0, 1.0, 3.0, 4.0, 4.0, 2.0]
    assert [row["margin"] for row in rows] == pytest.approx([0.0005, 1.0, 0.1 / 3, 0.25, 0.0, 3.5])
    assert [(row["bandwidth_Bps"], row["density"]) for row in rows[2:4]] == [(3.0, 0.1), (1.0, 0.2)]
    assert list(made.shares().items()) == [("a and b, tied", 2 / 6), ("b", 2 / 6), ("a", 2 / 6)]
    alone = Map(made.among[:1], made.values, seconds[:1])
    assert [row["margin"] for row in alone.rows()] == [None] * 6


SIZES = [(model, density) for model in ("resnet18", "resnet50", "gpt2", "7B") for density in ("1%", "0.01%", "30%")]

SIZES += [(20_000, "1%"), (200_000, "1%"), (400_000, "1%"), (5 * 10**8, "1%"), (2 * 10**9, "1%"), (2_000_000, "0.01%")]


@pytest.mark.parametrize(("model", "density"), SIZES)
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


def test_rarer_exchanges_take_the_step_times_of_their_runs_and_are_not_ranked():
    found = asked("--set", TWO, "--strategy", "diloco", "--grid", "strategy.period=5,3", "--set", "policies={}")
    rarer = {row["exchange"]: row for row in found["rows"] if row["to_best"] == "not ranked"}
    every = found["rows"][0]
    assert found["decision"] == every["exchange"] == "topk"
    assert [*rarer] == [f"diloco:period={period}, {label}" for period in (5, 3) for label in ("topk", "dense")]
    for period in (5, 3):
        for label in ("topk", "dense"):
            frame = frame_of("base", [*FIELDS, f"job.strategy={{name: diloco, period: {period}}}"], label)[:1]
            row = rarer[f"diloco:period={period}, {label}"]
            assert means_in(row) == means(frame, period, 8)
            assert row["iteration_low_s"] <= row["mean_iteration_s"] < row["iteration_high_s"]
            assert (row["steps_per_exchange"], row["iterations_simulated"]) == (period, 1)
            assert row["over_the_fastest"] == pytest.approx(row["mean_iteration_s"] / every["mean_iteration_s"] - 1)
            assert "chance_to_be_fastest" not in row


@pytest.mark.parametrize("name", [one for one in outputs.REQUESTS if one.startswith("choose")])
def test_a_choice_says_what_it_said_and_how_far_it_is(name, monkeypatch):
    shares = []
    monkeypatch.setattr(terminal, "report_progress", lambda _: report_progress(lambda share, *_: shares.append(share)))
    found = "\n".join(outputs.differences(outputs.frozen(name), outputs.said(name)))
    assert not found, f"{found}\nright? make guard-renew REQUESTS={name}"
    assert shares == sorted(shares)
    assert all(0 < one <= 1 for one in shares)
