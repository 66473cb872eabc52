"""Calibration: models recover what made the data, the file comes back as it went, intervals cover, strangers' files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simnet import collectives
from simnet.errors import InputError
from validate.calibration import Curve, Setting, calibrate, choose, load_fabric, written
from validate.calibration.crossval import Held, folds
from validate.calibration.curves import chosen_rows, curves_of, differing
from validate.calibration.intervals import BINS, UNKNOWN, covered, widest, widths
from validate.calibration.per_step import PARAMETERS, Steps, fit_steps
from validate.calibration.predictor import fit
from validate.calibration.shapes import FITS, five_anchors, interpolated, line, piecewise, three_segments
from validate.calibration.steps import costs, like_nccl, through_schedule
from validate.readers import write_tidy
from validate.readers.tables import table

SIZES = 2.0 ** np.arange(10, 27)
TRUTH = Steps(False, (1e-5, 1e-6, 2e-5, 1e-11, 1e-9, 1e-12, 3.0, 2.5, 1.1))


def ring(collective: str, ranks: int) -> Curve:
    setting = Setting(collective, ranks, ranks, "ring")
    return Curve(setting, SIZES, TRUTH.at(setting, SIZES))


@given(latency=st.floats(1e-7, 1e-1), per_byte=st.floats(1e-12, 1e-6))
@settings(max_examples=30, deadline=None)
def test_the_line_is_recovered(latency, per_byte):
    seconds = latency + per_byte * SIZES
    assert np.allclose(line(SIZES, seconds).at(SIZES), seconds, rtol=2e-3)


def test_outliers_hardly_move_the_line():
    seconds = 1e-5 + 1e-9 * SIZES
    wild = seconds.copy()
    wild[5] *= 10
    assert np.abs(np.log(line(SIZES, wild).at(SIZES) / seconds)).max() < 0.15


def test_breakpoints_are_found_where_they_are():
    seconds = np.select(
        [SIZES < 2**14, SIZES < 2**20], [1e-5 + 2e-9 * SIZES, 1e-4 + 1e-10 * SIZES], 1e-3 + 5e-11 * SIZES
    )
    starts = [start for start, *_ in piecewise(SIZES, seconds).segments]
    assert len(starts) == 3
    assert 2**13 < starts[1] <= 2**14
    assert 2**19 < starts[2] <= 2**20


def test_three_segments_are_recovered():
    x = np.log(SIZES)
    logs = 0.1 * (x - x[0]) + 0.6 * np.maximum(x - x[5], 0) + 0.3 * np.maximum(x - x[11], 0)
    assert np.allclose(three_segments(SIZES, np.exp(logs)).at(SIZES), np.exp(logs), rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_every_model_is_positive_and_finite_everywhere(seed, count):
    random = np.random.default_rng(seed)
    sizes = np.unique(random.integers(1, 10**9, count)).astype(float)
    seconds = np.exp(random.uniform(-12, 2, len(sizes)))
    for name, model in FITS.items():
        found = model(sizes, seconds).at([1.0, *sizes, 1e12])
        assert np.isfinite(found).all(), name
        assert (found > 0).all(), name


def test_interpolation_and_anchors_go_through_their_points():
    seconds = 1e-5 + 1e-9 * SIZES * (1 + 0.3 * np.sin(np.arange(len(SIZES))))
    assert np.allclose(interpolated(SIZES, seconds).at(SIZES), seconds)
    anchors = np.array(five_anchors(SIZES, seconds).points)
    assert set(anchors[:, 0]) <= set(SIZES)
    assert len(anchors) == 5


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_costs_are_those_of_the_schedule(ranks):
    ring_cost = through_schedule("all_reduce", "ring", ranks, 0)
    schedule = collectives.allreduce_ring(ranks, 1.0)
    assert ring_cost.outer == len(schedule.rounds)
    assert ring_cost.outer_bytes == pytest.approx(schedule.bytes_sent().max())
    gather = through_schedule("all_gather", "ring", ranks, 0)
    assert (gather.outer, gather.outer_bytes) == (ranks - 1, pytest.approx((ranks - 1) / ranks))


def test_steps_inside_and_between_nodes_are_told_apart():
    one_node = through_schedule("all_reduce", "recursive_doubling", 8, 1)
    two_nodes = through_schedule("all_reduce", "recursive_doubling", 8, 2)
    assert (one_node.inner, one_node.outer) == (3, 0)
    assert (two_nodes.inner, two_nodes.outer) == (2, 1)
    # All four ranks of a node send their vector to the other node.
    assert two_nodes.outer_bytes == pytest.approx(4)


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"]),
    st.integers(1, 64),
    st.integers(1, 16),
)
@settings(deadline=None)
def test_counts_of_steps_are_never_negative(collective, nodes, per_node):
    if nodes * per_node < 2:
        return
    for one in like_nccl(collective, "", nodes * per_node, nodes):
        assert min(one) >= 0
        assert one.inner + one.outer > 0


def test_parameters_of_one_collective_predict_another_and_more_ranks():
    fitted = fit_steps([ring("all_reduce", 4), ring("all_reduce", 8)], nccl=False)
    for other in (ring("all_gather", 8), ring("all_reduce", 16), ring("all_gather", 16)):
        assert np.abs(np.log(fitted.at(other.setting, SIZES) / other.seconds)).max() < 0.05
    known = dict(zip(PARAMETERS, fitted.values, strict=True))
    error = dict(zip(PARAMETERS, fitted.errors, strict=True))
    assert known["outer_latency"] == pytest.approx(2e-5, rel=0.05)
    assert known["outer_seconds_per_byte"] == pytest.approx(1e-9, rel=0.1)
    # Nothing was sent inside a node, so nothing is known of it.
    assert error["inner_latency"] > 3 * error["outer_latency"]


def test_cross_validation_takes_what_made_the_data():
    straight = [Curve(Setting("gather", 4), SIZES, 1e-5 + 1e-9 * SIZES)]
    assert choose(straight).form == "line"
    jumps = np.where(SIZES < 2**18, 1e-5 + 1e-9 * SIZES, 3e-3 + 1e-10 * SIZES)
    assert choose([Curve(Setting("gather", 4), SIZES, jumps)]).form == "piecewise"


@given(st.integers(1, 40))
def test_every_size_but_the_smallest_is_held_out_once(count):
    held = folds(Curve(Setting("gather", 4), np.arange(1.0, count + 1), np.ones(count)))
    if held:
        assert np.sum(held, axis=0).tolist() == [0] + [1] * (count - 1)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_intervals_cover_what_they_promise(coverage):
    random = np.random.default_rng(1)
    sizes = np.exp(random.uniform(np.log(1e3), np.log(1e9), 4000))
    # Short messages scatter more, and errors are not symmetric.
    off = random.gamma(2.0, np.where(sizes < 1e5, 0.1, 0.01))
    held = Held(Setting("gather", 4), sizes, np.ones(4000), np.exp(off))
    first = Held(held.setting, sizes[:1000], held.predicted[:1000], held.measured[:1000])
    rest = Held(held.setting, sizes[1000:], held.predicted[1000:], held.measured[1000:])
    inside = covered([rest], widths([first], coverage))
    short = sizes[1000:] < 6e4
    assert coverage - 0.03 < inside.mean() < 1
    assert coverage - 0.05 < inside[short].mean()


def test_without_anything_held_out_the_interval_is_wide():
    assert widths([], 0.9) == [(UNKNOWN, UNKNOWN)] * len(BINS)


def test_a_fabric_file_comes_back(tmp_path):
    fabric = calibrate([ring("all_reduce", p) for p in (4, 8, 16)], sources=["a & b: !!c.log"], topology="star")
    path = tmp_path / "fabric.yaml"
    path.write_text(written(fabric))
    again = load_fabric(path)
    assert written(again) == written(fabric)
    for collective, ranks, size in [("all_reduce", 8, 1e5), ("all_reduce", 12, 1e6), ("all_gather", 32, 1e7)]:
        assert again.predict(collective, ranks, size) == fabric.predict(collective, ranks, size)


def test_extrapolation_is_marked_and_refused_when_strict():
    fabric = calibrate([ring("all_reduce", p) for p in (4, 8, 16)])
    assert not fabric.predict("all_reduce", 8, 1e5).extrapolates
    assert not fabric.predict("all_reduce", 12, 1e5).extrapolates
    for collective, ranks, size in [("all_reduce", 8, 1.0), ("all_reduce", 32, 1e5), ("all_gather", 8, 1e5)]:
        found = fabric.predict(collective, ranks, size)
        assert found.extrapolates
        assert found.low <= found.seconds <= found.high
        with pytest.raises(InputError, match="extrapolation"):
            fabric.predict(collective, ranks, size, strict=True)
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        fabric.predict("al_reduce", 8, 1e5)


@pytest.mark.parametrize("nbytes", [0.0, -1.0, float("nan"), float("inf")])
def test_sizes_that_are_none_are_refused(nbytes):
    with pytest.raises(InputError, match="finite number of bytes > 0"):
        calibrate([ring("all_reduce", 4)]).predict("all_reduce", 4, nbytes)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("version: 1", "version: 2", "version: must be 1"),
        ("ranks: 4", "ranks: -4", "ranks"),
        ("coverage: 0.9", "coverage: 1.5", "coverage"),
        ("model: ", "modell: ", "modell|model"),
        ("collective: all_reduce", "collective: [1, 2]", "collective"),
        ("steps:", "steps: !!python/object:os.system {}\nx:", "tags"),
        ("model: ", "model: &a ", "anchors"),
        ("curves:", "curves: []\nrest:", "curves|rest"),
        ("gamma:", "gama:", "gama"),
    ],
)
def test_broken_fabric_files_are_refused_with_the_field(tmp_path, before, after, said):
    text = written(calibrate([ring("all_reduce", 4), ring("all_reduce", 8)]))
    assert before in text
    path = tmp_path / "fabric.yaml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=said):
        load_fabric(path)


@given(st.integers(0, 10**6), st.sampled_from(["cut", "drop", "twice", "noise"]))
@settings(max_examples=60, deadline=None)
def test_mutated_fabric_files_load_or_are_refused(tmp_path_factory, seed, kind):
    random = np.random.default_rng(seed)
    lines = _TEXT.splitlines(keepends=True)
    place = int(random.integers(len(lines)))
    if kind == "cut":
        text = _TEXT[: int(random.integers(len(_TEXT)))]
    elif kind == "drop":
        text = "".join(lines[:place] + lines[place + 1 :])
    elif kind == "twice":
        text = "".join([*lines[:place], lines[place], *lines[place:]])
    else:
        at = int(random.integers(len(_TEXT)))
        text = _TEXT[:at] + chr(int(random.integers(32, 127))) + _TEXT[at + 1 :]
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    path.write_text(text)
    try:
        fabric = load_fabric(path)
        found = fabric.predict("all_reduce", 4, 1e5)
    except InputError:
        return
    assert 0 <= found.low <= found.seconds <= found.high


_TEXT = written(calibrate([Curve(Setting("all_reduce", p), SIZES[::4], 1e-5 + 1e-9 * SIZES[::4]) for p in (4, 8)]))


def rows(count: int = 6) -> pd.DataFrame:
    return table(
        [
            {"collective": "all_reduce", "ranks": 4, "nbytes": 1024 * 2**step, "seconds": 1e-4 * (1 + step) * factor}
            | {"in_place": place, "size_convention": "vector", "variant": variant}
            for step in range(count)
            for place in (True, False)
            for variant, factor in (("a", 1.0), ("b", 3.0))
        ],
        extra=["variant"],
    )


def test_rows_are_chosen_by_side_and_column():
    found = chosen_rows(rows(), {"variant": "a"})
    assert len(found) == 6
    assert not found["in_place"].any()
    assert differing(rows()) == {"variant": ["a", "b"]}
    assert differing(found) == {}
    (curve,) = curves_of(found)
    assert curve.seconds.tolist() == pytest.approx([1e-4 * (1 + step) for step in range(6)])
    with pytest.raises(InputError, match="did you mean 'variant'"):
        chosen_rows(rows(), {"varian": "a"})
    with pytest.raises(InputError, match="Allowed: a, b"):
        chosen_rows(rows(), {"variant": "zzz"})


def test_repetitions_count_by_their_median():
    many = pd.concat([rows().assign(seconds=value) for value in (1.0, 2.0, 9.0)])
    assert set(np.concatenate([one.seconds for one in curves_of(many)])) == {2.0}


def test_ranks_between_and_outside_go_their_own_ways():
    curves = [ring("all_reduce", ranks) for ranks in (4, 16)]
    between, outside = Setting("all_reduce", 8, 8, "ring"), Setting("all_reduce", 64, 64, "ring")

    def found(setting, across, beyond):
        return fit(curves, across=across, beyond=beyond).at(setting, SIZES)

    inside = {way: found(between, way, "steps") for way in ("interpolated", "steps", "blended")}
    assert np.allclose(inside["blended"] ** 2, inside["interpolated"] * inside["steps"])
    assert np.array_equal(found(between, "steps", "interpolated"), inside["steps"])
    assert not np.allclose(found(outside, "steps", "interpolated"), found(outside, "steps", "steps"))
    # The model of steps made the data: a ring takes as many steps as it has ranks, which no power law of two points is.
    assert np.abs(np.log(found(outside, "steps", "steps") / ring("all_reduce", 64).seconds)).max() < 0.1


def test_intervals_of_other_collectives_are_those_of_the_worst():
    random = np.random.default_rng(3)
    sizes = np.full(100, 1e3)
    held = [
        Held(Setting(name, 4), sizes, np.ones(100), np.exp(random.normal(0, spread, 100)))
        for name, spread in (("all_gather", 0.01), ("alltoall", 0.5))
    ]
    assert widest(held, 0.9)[0] == widths(held[1:], 0.9)[0]


def test_what_has_no_algorithm_costs_nothing_known():
    assert costs(Setting("gather", 8), nccl=True) == ()
    assert fit_steps([Curve(Setting("gather", 8), SIZES, SIZES)], nccl=False) is None


def test_a_log_becomes_a_fabric_on_the_command_line(tmp_path: Path):
    from typer.testing import CliRunner

    from simnet.cli import app

    log, out = tmp_path / "log.csv", tmp_path / "fabric.yaml"
    write_tidy(rows(), log)
    call = CliRunner()
    done = call.invoke(app, ["calibrate", str(log), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "--where variant=a" in done.output
    assert "<- chosen" in done.output
    assert call.invoke(app, ["calibrate", str(log), "-o", str(out)]).exit_code == 2
    done = call.invoke(app, ["predict", str(out), "all_reduce", "--ranks", "4", "--size", "8 KiB"])
    assert done.exit_code == 0, done.output
    assert "90 % interval" in done.output
    refused = call.invoke(app, ["predict", str(out), "all_reduce", "--ranks", "64", "--size", "8 KiB", "--strict"])
    assert refused.exit_code == 2
    assert "extrapolation" in refused.output
