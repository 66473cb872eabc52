"""Calibration: models recover what made the data, the file comes back as it went, intervals cover, strangers' files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import did, refused
from commands import timed as time_said
from hand_made import times_of_ways
from simnet import collectives
from simnet.base.errors import InputError
from simnet.base.rng import stream
from simnet.cost_models.calibration import Curve, Setting, calibrate, choose_models, cost_model_yaml, load_cost_model
from simnet.cost_models.calibration.crossval import MIXTURE_NAME, mean_log_error
from simnet.cost_models.calibration.curves import (
    CURVE_FITS,
    MIXED_MODELS,
    CurveModel,
    fit_adjacent,
    fit_line,
    fit_log_log,
    fit_piecewise,
)
from simnet.cost_models.calibration.predictor import fit_predictor
from simnet.cost_models.calibration.rank_scaling import scale_over_ranks
from simnet.cost_models.calibration.readers import write_tidy
from simnet.cost_models.calibration.readers.tables import measurement_table
from simnet.cost_models.calibration.step_model import (
    PARAMETERS,
    PROTOCOLS,
    StepModel,
    count_schedule,
    fit_step_model,
    has_switch_reduction,
    undetermined_parameters,
)
from simnet.cost_models.evidence.intervals import HeldOut, bin_of, half_widths
from simnet.policies import Candidate
from simnet.scenario import load
from simnet.schedule import Round, Schedule
from simnet.studies import job_totals
from simnet.studies.choosing.ranking import ranked_candidates
from simnet.studies.job_totals import call_errors

SIZES = 2.0 ** np.arange(10, 27)
TRUTH = StepModel(False, (1e-5, 1e-6, 2e-5, 1e-11, 1e-9, 1e-12, 2.0, 3.0, 2.5, 1.1, 1.0, 1.0, 1e-5, 1.0, 1.0, 1.2))
NCCL = (8e-6, 6e-7, 6e-6, 3e-12, 2e-11, 5e-14, 2.0, 4.0, 4.0, 1.07, 0.8, 1.6, 4e-6, 1.1, 1.1, 1.18)


def covered(held, bins):
    """Return which held-out measurements are inside intervals of given widths."""
    below, above = np.array(bins)[bin_of(np.concatenate([one.sizes for one in held]))].T
    log_errors = -np.concatenate([one.log_errors for one in held])
    return (-below <= log_errors) & (log_errors <= above)


def timed(model: StepModel, setting: Setting, sizes=SIZES) -> Curve:
    return Curve(setting, sizes, model.at(setting, sizes))


def ring(collective: str, ranks: int, nodes: int | None = None) -> Curve:
    return timed(TRUTH, Setting(collective, ranks, ranks if nodes is None else nodes, "ring"))


def nccl(collective: str, ranks: int, nodes: int, switch: bool = False, sizes=SIZES) -> Curve:
    return timed(StepModel(True, NCCL, (), switch), Setting(collective, ranks, nodes), sizes)


def off(model, curve: Curve) -> float:
    """Return the largest logarithm of what a model says of a curve over its times."""
    return np.abs(np.log(model.at(curve.setting, curve.sizes) / curve.seconds)).max()


def read_again(fabric, path):
    """Return a cost model as its file has it."""
    path.write_text(cost_model_yaml(fabric))
    return load_cost_model(path)


@given(latency=st.floats(1e-7, 1e-1), per_byte=st.floats(1e-12, 1e-6))
@settings(max_examples=30, deadline=None)
def test_the_line_is_recovered(latency, per_byte):
    seconds = latency + per_byte * SIZES
    assert np.allclose(fit_line(SIZES, seconds).at(SIZES), seconds, rtol=2e-3)


def test_outliers_hardly_move_the_line():
    seconds = 1e-5 + 1e-9 * SIZES
    wild = seconds.copy()
    wild[5] *= 10
    assert np.abs(np.log(fit_line(SIZES, wild).at(SIZES) / seconds)).max() < 0.15


def test_breakpoints_are_found_where_they_are():
    seconds = np.select(
        [SIZES < 2**14, SIZES < 2**20], [1e-5 + 2e-9 * SIZES, 1e-4 + 1e-10 * SIZES], 1e-3 + 5e-11 * SIZES
    )
    starts = [start for start, *_ in fit_piecewise(SIZES, seconds).segments]
    assert len(starts) == 3
    assert 2**13 < starts[1] <= 2**14
    assert 2**19 < starts[2] <= 2**20


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_every_model_is_positive_and_finite_everywhere_and_adjacent_goes_through_all(seed, count):
    random = np.random.default_rng(seed)
    sizes = np.unique(random.integers(1, 10**9, count)).astype(float)
    seconds = np.exp(random.uniform(-12, 2, len(sizes)))
    for name, model in CURVE_FITS.items():
        found = model(sizes, seconds).at([1.0, *sizes, 1e12])
        assert np.isfinite(found).all(), name
        assert (found > 0).all(), name
    assert np.allclose(fit_adjacent(sizes, seconds).at(sizes), seconds, rtol=1e-6)


@pytest.mark.parametrize("power", [0.0, 0.7, 2.0])
def test_beyond_the_sizes_measured_powers_of_the_size_go_on(power):
    beyond = np.array([SIZES[0] / 64, SIZES[-1] * 64])
    assert np.allclose(fit_log_log(SIZES, 1e-9 * SIZES**power).at(beyond), 1e-9 * beyond**power)


def test_where_two_protocols_cross_the_faster_one_holds():
    # They cross at 100,000 bytes, with two measured sizes or more on either side.
    def faster(sizes):
        return np.minimum(1e-6 + 1e-9 * sizes, 9.1e-5 + 1e-10 * sizes)

    asked = np.exp(np.linspace(np.log(SIZES[0]), np.log(SIZES[-1]), 500))
    assert np.allclose(fit_piecewise(SIZES, faster(SIZES)).at(asked), faster(asked), rtol=1e-6)


def test_one_wild_size_does_not_move_the_stretches_around_it():
    seconds = 1e-5 + 1e-9 * SIZES
    wild = seconds * np.where(np.arange(len(SIZES)) == 8, 5.0, 1.0)
    others = np.delete(SIZES, 8)
    assert np.allclose(fit_piecewise(SIZES, wild).at(others), np.delete(seconds, 8), rtol=1e-6)
    assert np.allclose(fit_piecewise(SIZES, wild).at(SIZES[8]), wild[8])


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_costs_are_those_of_the_schedule(ranks):
    ring_cost = count_schedule("all_reduce", "ring", ranks, 0)
    schedule = collectives.allreduce_ring(ranks, 1.0)
    assert ring_cost.outer == len(schedule.rounds)
    assert ring_cost.outer_bytes == pytest.approx(schedule.bytes_sent().max())
    gather = count_schedule("all_gather", "ring", ranks, 0)
    assert (gather.outer, gather.outer_bytes) == (ranks - 1, pytest.approx((ranks - 1) / ranks))


def test_parameters_of_one_collective_predict_another_and_more_ranks():
    fitted = fit_step_model([ring("all_reduce", 4), ring("all_reduce", 8)], nccl=False)
    for other in (ring("all_gather", 8), ring("all_reduce", 16), ring("all_gather", 16)):
        assert off(fitted, other) < 0.08
    known = dict(zip(PARAMETERS, fitted.values, strict=True))
    error = dict(zip(PARAMETERS, fitted.errors, strict=True))
    assert known["outer_latency"] == pytest.approx(2e-5, rel=0.05)
    assert known["outer_seconds_per_byte"] == pytest.approx(1e-9, rel=0.1)
    # Nothing was sent inside a node, so nothing is known of it.
    assert error["inner_latency"] > 3 * error["outer_latency"]


@pytest.mark.parametrize("ranks", [2, 6, 16, 37])
def test_short_reduce_scatters_and_all_to_alls_take_logarithmically_many_steps(ranks):
    bruck = count_schedule("alltoall", "bruck", ranks, 0)
    assert bruck.outer == np.ceil(np.log2(ranks))
    # A block travels once for each bit of its distance.
    assert bruck.outer_bytes == pytest.approx(sum(away.bit_count() for away in range(ranks)) / ranks)
    halving = count_schedule("reduce_scatter", "recursive_halving", ranks, 0)
    gathered = collectives.allgather_recursive_doubling(ranks, 1 / ranks)
    assert halving.outer == len(gathered.rounds)
    assert halving.reduced == pytest.approx(halving.outer_bytes)
    if ranks in (2, 16):
        assert halving.outer_bytes == pytest.approx((ranks - 1) / ranks)


def test_short_collectives_of_mpi_follow_from_all_reduce():
    truth = StepModel(False, (1e-6, 5e-7, 2e-6, 1e-11, 1e-10, 2e-10, 2, 2, 3, 1.1, 1, 1, 1e-5, 1, 1, 1.2))
    sizes = 2.0 ** np.arange(8, 28, 2)
    pinned = [
        Setting("all_reduce", ranks, ranks, name) for ranks in (16, 64) for name in ("ring", "recursive_doubling", "")
    ]
    fitted = fit_step_model([timed(truth, one, sizes) for one in pinned], nccl=False)
    for name in ("all_gather", "reduce_scatter", "alltoall"):
        assert off(fitted, timed(truth, Setting(name, 32, 32), sizes[:5])) < 0.1, name


def test_what_a_peer_costs_goes_with_what_a_step_between_nodes_costs():
    def slow(factor):
        values = np.array(NCCL)
        values[list(PARAMETERS).index("outer_latency")] *= factor
        curves = [Setting("all_reduce", 4 * nodes, nodes) for nodes in (2, 8, 32)]
        model = StepModel(True, tuple(values))
        return fit_step_model([timed(model, one) for one in curves], nccl=True)

    asked = Setting("alltoall", 32, 8)
    assert slow(4).at(asked, [1024.0]) > 2.5 * slow(1).at(asked, [1024.0])


def test_each_protocol_is_the_fastest_somewhere_and_a_pinned_one_is_the_only_one():
    model = StepModel(True, NCCL)
    sizes = 2.0 ** np.arange(3, 34)
    ways = times_of_ways(model, Setting("all_gather", 16, 2), sizes)
    names = list(ways)
    fastest = [names[place] for place in np.argmin(list(ways.values()), axis=0)]
    assert list(dict.fromkeys(fastest)) == ["ring, LL", "ring, LL128", "ring, Simple"]
    for protocol in PROTOCOLS:
        pinned = times_of_ways(model, Setting("all_gather", 16, 2, protocol=protocol), sizes)
        assert list(pinned) == [f"ring, {protocol}"]
        assert np.array_equal(pinned[f"ring, {protocol}"], ways[f"ring, {protocol}"])
    # What the library chooses among is never slower than a single one, but for the rounding of the corner.
    assert (model.at(Setting("all_gather", 16, 2), sizes) <= np.min(list(ways.values()), axis=0) * (1 + 1e-12)).all()


def test_latency_of_trees_grows_with_the_logarithm_and_of_rings_with_the_ranks():
    model = StepModel(True, NCCL)
    small = {
        (name, nodes): float(model.at(Setting("all_reduce", 4 * nodes, nodes, name, "LL"), [8.0])[0])
        for name in ("ring", "tree")
        for nodes in (4, 8, 16)
    }
    trees = np.diff([small["tree", nodes] for nodes in (4, 8, 16)])
    rings = np.diff([small["ring", nodes] for nodes in (4, 8, 16)])
    assert trees[1] == pytest.approx(trees[0], rel=1e-6)
    assert rings[1] == pytest.approx(2 * rings[0], rel=1e-6)


def test_nccl_of_other_collectives_and_ranks_follows_from_all_reduce():
    fitted = fit_step_model([nccl("all_reduce", 8 * nodes, nodes) for nodes in (1, 2, 4, 16)], nccl=True)
    assert not fitted.switch
    large = SIZES[SIZES >= 2**24]
    for name, nodes in (("all_reduce", 8), ("all_gather", 4), ("reduce_scatter", 8), ("alltoall", 4)):
        assert off(fitted, nccl(name, 8 * nodes, nodes, sizes=large)) < 0.2, name


def test_in_switch_reduction_is_seen_and_not_taken_for_the_speed_of_a_ring():
    sizes = 2.0 ** np.arange(20, 34)
    curve = nccl("all_reduce", 8, 1, switch=True, sizes=sizes)
    assert has_switch_reduction([curve])
    assert not has_switch_reduction([Curve(curve.setting, sizes, 1.5 * curve.seconds)])
    assert off(fit_step_model([curve], nccl=True), nccl("all_gather", 8, 1, sizes=sizes[-4:])) < 0.1


@given(
    st.floats(1e-6, 1e-4),
    st.floats(1e-6, 1e-5),
    st.floats(1e-12, 1e-9),
    st.sampled_from(["tree", "ring"]),
    st.sampled_from([4, 8, 32]),
)
@settings(max_examples=30, deadline=None)
def test_scaled_over_ranks_are_the_laws_of_algorithms(launch, step, per_byte, law, asked):
    def curve(nodes):
        steps = np.log2(nodes) if law == "tree" else nodes - 1
        return CurveModel(segments=((0.0, launch + steps * step, per_byte * 2 * (nodes - 1) / nodes),))

    known = [2, 16, 64]
    sizes = np.array([1e3, 1e9])
    found = scale_over_ranks(
        [Setting("all_reduce", n, n) for n in known],
        [curve(n).at for n in known],
        Setting("all_reduce", asked, asked),
        sizes,
        chunked=False,
    )
    assert np.abs(np.log(found / curve(asked).at(sizes))).max() < 0.06


@pytest.mark.parametrize("inside", [150e9, 400e9])
def test_two_nodes_go_along_a_tree_where_one_node_and_many_show_that_it_is_faster(inside):
    network = 90e9
    sizes = np.array([2.0**30])

    def curve(ranks, nodes):
        ring = 2 * (ranks - 1) / ranks / (inside if nodes == 1 else network)
        tree = max(1 / network, 1 / (0.46 * inside)) if nodes == 2 else np.inf
        return CurveModel(segments=((0.0, 2e-5, min(ring, tree)),))

    known = [Setting("all_reduce", 4 * nodes, nodes) for nodes in (1, 8, 32)]
    shapes = [curve(one.ranks, one.nodes).at for one in known]
    asked = Setting("all_reduce", 8, 2)
    found = scale_over_ranks(known, shapes, asked, sizes, chunked=False, nccl=True)
    assert found == pytest.approx(curve(8, 2).at(sizes), rel=0.15)
    ring = Setting("all_reduce", 8, 2, "Ring")
    assert scale_over_ranks(known, shapes, ring, sizes, chunked=False, nccl=True) > found * 1.2


def test_along_a_ring_switch_points_are_at_the_same_size_per_rank():
    def curve(ranks):
        # The protocol changes at 64 KiB a rank.
        return CurveModel(segments=((0.0, ranks * 1e-6, 4e-10), (ranks * 65536.0, ranks * 8e-6, 1e-10)))

    sizes = 2.0 ** np.arange(10, 30)
    known = [8, 128]
    settings_ = [Setting("all_gather", ranks, ranks) for ranks in known]
    found = scale_over_ranks(
        settings_, [curve(ranks).at for ranks in known], Setting("all_gather", 32, 32), sizes, chunked=True
    )
    assert np.abs(np.log(found / curve(32).at(sizes))).max() < 0.05


def test_a_time_that_is_longer_than_with_more_to_do_was_disturbed():
    known = [Setting("all_reduce", 4 * nodes, nodes) for nodes in (4, 16, 64)]
    usual = [CurveModel(segments=((0.0, 1e-5, 1e-10 * (1 - 1 / one.ranks)),)).at for one in known]
    asked, sizes = Setting("all_reduce", 32, 8), np.array([2.0**30])
    disturbed = [usual[0], CurveModel(segments=((0.0, 1e-5, 1e-9),)).at, usual[2]]
    found = [scale_over_ranks(known, shapes, asked, sizes, chunked=False) for shapes in (usual, disturbed)]
    assert found[1] == pytest.approx(found[0], rel=0.11)


def test_cross_validation_takes_what_made_the_data():
    straight = [Curve(Setting("gather", 4), SIZES, 1e-5 + 1e-9 * SIZES)]
    assert choose_models(straight).curve_model == "line"
    jumps = np.where(SIZES < 2**18, 1e-5 + 1e-9 * SIZES, 3e-3 + 1e-10 * SIZES)
    assert choose_models([Curve(Setting("gather", 4), SIZES, jumps)]).curve_model == "piecewise"


def test_each_curve_has_the_models_that_predict_it():
    random = np.random.default_rng(2)
    sizes = np.linspace(1e6, 1e9, 200)
    noisy = (1e-5 + 1e-9 * sizes) * np.exp(random.normal(0, 0.1, 200))
    bent = 1e-5 + 1e-9 * SIZES + 1e-6 * SIZES**0.5
    curves = [Curve(Setting("gather", 4), sizes, noisy), Curve(Setting("gather", 8), SIZES, bent)]
    found = choose_models(curves, wide=False)
    # Through noise a line is best, along a smooth bend a curve through all points.
    assert "adjacent" not in found.weights[curves[0].setting]
    assert "line" not in found.weights[curves[1].setting]
    for weights in found.weights.values():
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) > 0
    assert mean_log_error(found.by_curve_model[MIXTURE_NAME]) <= 1.02 * min(
        mean_log_error(found.by_curve_model[name]) for name in MIXED_MODELS
    )


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_intervals_cover_what_they_promise(coverage):
    random = np.random.default_rng(1)
    sizes = np.exp(random.uniform(np.log(1e3), np.log(1e9), 4000))
    # Short messages scatter more, and errors are not symmetric.
    log_errors = random.gamma(2.0, np.where(sizes < 1e5, 0.1, 0.01))
    held = HeldOut(Setting("gather", 4), sizes, np.ones(4000), np.exp(log_errors))
    first = HeldOut(held.setting, sizes[:1000], held.predicted[:1000], held.measured[:1000])
    rest = HeldOut(held.setting, sizes[1000:], held.predicted[1000:], held.measured[1000:])
    inside = covered([rest], half_widths([first], coverage))
    short = sizes[1000:] < 6e4
    assert coverage - 0.03 < inside.mean() < 1
    assert coverage - 0.05 < inside[short].mean()


def test_a_fabric_file_comes_back(tmp_path):
    fabric = calibrate([ring("all_reduce", p) for p in (4, 8, 16)], sources=["a & b: !!c.log"], topology="star")
    again = read_again(fabric, tmp_path / "fabric.yaml")
    assert cost_model_yaml(again) == cost_model_yaml(fabric)
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


def test_more_nodes_than_were_measured_are_an_extrapolation():
    fabric = calibrate([ring("all_reduce", p, nodes=p // 8) for p in (8, 16, 64)])
    assert fabric.predict("all_reduce", 32, 1e5, strict=True) == fabric.predict("all_reduce", 32, 1e5, nodes=4)
    for ranks, nodes in [(8, 8), (16, 1), (32, 32), (64, 16)]:
        found = fabric.predict("all_reduce", ranks, 1e5, nodes=nodes)
        assert found.extrapolates
        assert f"{ranks} ranks on {nodes} node{'s' * (nodes > 1)}, measured" in found.why
        with pytest.raises(InputError, match="extrapolation"):
            fabric.predict("all_reduce", ranks, 1e5, nodes=nodes, strict=True)
    unknown = calibrate([ring("all_reduce", p, nodes=0) for p in (8, 16)])
    assert not unknown.predict("all_reduce", 8, 1e5).extrapolates
    assert "is not known" in unknown.predict("all_reduce", 8, 1e5, nodes=2).why


def test_what_the_data_do_not_tell_is_said_whatever_their_scatter():
    setting, sizes = Setting("all_reduce", 16, 2), 2.0 ** np.arange(10, 31)
    for scatter in (1e-4, 0.03):
        noise = np.exp(scatter * stream(3, "scatter").normal(size=len(sizes)))
        fitted = fit_step_model([Curve(setting, sizes, (5e-5 + sizes * 1e-11) * noise)], nccl=True)
        unknown = undetermined_parameters(fitted)
        assert {"peer_latency", "peer_byte_factor", "pair_byte_factor", "switch_byte_factor"} <= set(unknown)
        assert "outer_seconds_per_byte" not in unknown


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("version: 2", "version: 1", "version: must be 2"),
        ("ranks: 4", "ranks: -4", "ranks"),
        ("coverage: 0.9", "coverage: 1.5", "coverage"),
        ("model: ", "modell: ", "modell|model"),
        ("collective: all_reduce", "collective: [1, 2]", "collective"),
        ("steps:", "steps: !!python/object:os.system {}\nx:", "has the tag"),
        ("curves:", "curves: []\nrest:", "curves|rest"),
        ("gamma:", "gama:", "gama"),
    ],
)
def test_broken_fabric_files_are_refused_with_the_field(tmp_path, before, after, said):
    text = cost_model_yaml(calibrate([ring("all_reduce", 4), ring("all_reduce", 8)]))
    assert before in text
    path = tmp_path / "fabric.yaml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=said):
        load_cost_model(path)


def rows(count: int = 6) -> pd.DataFrame:
    return measurement_table(
        [
            {"collective": "all_reduce", "ranks": 4, "nbytes": 1024 * 2**step, "seconds": 1e-4 * (1 + step) * factor}
            | {"in_place": place, "size_convention": "vector", "variant": variant}
            for step in range(count)
            for place in (True, False)
            for variant, factor in (("a", 1.0), ("b", 3.0))
        ],
    )


@pytest.mark.parametrize("largest", [2**12, 2**15, 2**18, 2**24])
@pytest.mark.parametrize("bandwidth", [1e9, 1e10, 1e11])
def test_beyond_the_sizes_measured_intervals_hold_what_bandwidth_may_do(largest, bandwidth):
    sizes = 2.0 ** np.arange(3, np.log2(largest) + 1)
    fabric = calibrate([Curve(Setting("all_reduce", 8), sizes, 2e-5 + sizes / bandwidth)])
    for nbytes in largest * 4.0 ** np.arange(1, 7):
        found, truth = fabric.predict("all_reduce", 8, float(nbytes)), 2e-5 + nbytes / bandwidth
        assert found.low * (1 - 1e-9) <= truth <= found.high * (1 + 1e-9)
    # What grows with the size goes on to; of what does not, hardly anything is known.
    bytes_over_latency = largest / bandwidth / 2e-5
    assert bytes_over_latency < 2 or found.high / found.low < 1.1
    assert bytes_over_latency > 0.1 or found.high / found.low > 100


def test_far_beyond_the_sizes_measured_flat_times_grow_halfway_between_not_and_with_the_size():
    sizes, setting = 2.0 ** np.arange(4, 24, 2), Setting("all_reduce", 4)
    model = fit_predictor([Curve(setting, sizes, np.full(10, 1e-4))])
    growth = np.array([1.0, 1e4, 1e6, 0.1])
    found = model.within(setting, sizes[-1] * growth)
    assert found.seconds == pytest.approx(1e-4 * np.sqrt(np.maximum(growth, 1)))
    assert found.least == pytest.approx(1e-4)
    assert found.most == pytest.approx(1e-4 * np.maximum(growth, 1))
    # Sizes asked together take as long as each alone.
    uneven = fit_predictor([Curve(setting, sizes, 1e-5 + sizes * 1e-12)])
    alone = [uneven.at(setting, one)[0] for one in sizes[-1] * growth]
    assert uneven.at(setting, sizes[-1] * growth) == pytest.approx(alone)


def test_where_the_step_model_does_not_fit_large_collectives_are_drawn_to_the_rule_of_the_bus_factor():
    sizes = 2.0 ** np.arange(10, 31, 2)
    fits = nccl("all_reduce", 16, 2, sizes=sizes)
    # No algorithm has times that go up and down so; the bus bandwidth of a collective has what it is.
    odd = Curve(fits.setting, sizes, fits.seconds * np.where(np.arange(sizes.size) % 4 < 2, 1.0, 2.5))
    asked = Setting("reduce_scatter", 16, 2)
    for curve, drawn in ((fits, False), (odd, True)):
        model = calibrate([curve]).model
        stepped, found = model.steps.at(asked, sizes), model.at(asked, sizes)
        ruled = curve.seconds / 2
        nearer = np.abs(np.log(found / ruled)) < 0.9 * np.abs(np.log(stepped / ruled))
        assert nearer[sizes > 2**23].mean() > 0.5 if drawn else not nearer.any()
        assert found[sizes < 2**14] == pytest.approx(stepped[sizes < 2**14], rel=0.02)


def on_cards(number: float, ranks: int, nodes: int) -> Curve:
    return timed(StepModel(True, NCCL, cards=number), Setting("all_reduce", ranks, nodes), 2.0 ** np.arange(10, 31, 2))


@pytest.mark.parametrize("number", [1.0, 2.0, np.inf])
def test_several_numbers_of_ranks_a_node_tell_its_cards(number):
    fabric = calibrate([on_cards(number, *one) for one in [(4, 4), (8, 8), (16, 4), (32, 8)]])
    assert fabric.model.steps.cards == fabric.model.cards[0].number == number
    asked = on_cards(number, 16, 8)
    assert np.abs(np.log(fabric.model.at(asked.setting, asked.sizes) / asked.seconds)).max() < np.log(1.3)


def test_cards_do_not_matter_where_as_many_ranks_are_on_a_node():
    fabric = calibrate([on_cards(1.0, 16, 4)])
    assert fabric.model.by_cards(Setting("all_reduce", 64, 16), [2.0**30]) == []
    assert fabric.model.by_cards(Setting("all_reduce", 4, 1), [2.0**30]) == []


def test_what_is_not_measured_inside_a_node_is_not_the_rate_of_the_card(tmp_path: Path):
    one_card = StepModel(True, (*NCCL[:4], 1e-10, *NCCL[5:]), cards=1.0)
    truth, one_gb = timed(one_card, Setting("all_reduce", 8, 1), np.array([1e9])), np.array([1e9])
    several = [timed(one_card, Setting("all_reduce", 8 * n, n), 2.0 ** np.arange(3, 31)) for n in (2, 4)]
    for curves in (several[:1], several):
        found = calibrate(curves).predict("all_reduce", 8, 1e9, nodes=1).corrected()
        assert found.low < truth.seconds[0] < found.high
        assert truth.seconds[0] / 2 < found.seconds < truth.seconds[0] * 2
        assert "inside a node nothing was measured" in found.why
    columns = {"tool": "nccl-tests", "collective": "all_reduce", "ranks": 16, "nodes": 2}
    log, out = tmp_path / "log.csv", tmp_path / "mine.yaml"
    each = zip(several[0].sizes, several[0].seconds, strict=True)
    write_tidy(measurement_table([columns | {"nbytes": int(size), "seconds": time} for size, time in each]), log)
    nodes = "multi_gpu_nodes:gpus_per_node=8"
    said = did("calibrate", log, "-o", out, "--network", nodes).output
    assert "Inside a node nothing was measured: add a log of one node" in said
    assert f"choose --network {out}" in "".join(said.split("\n")).replace(" " * 12, "")
    assert load_cost_model(out).network["multi_gpu_nodes"]["intra_bandwidth"] > 1e11
    for known_links in (f"{nodes},intra_bandwidth=417GB/s", "dgx-h100"):
        assert "Inside a node" not in did("calibrate", log, "-o", out, "--force", "--network", known_links).output
        known = load_cost_model(out)
        assert known.network["multi_gpu_nodes"]["intra_bandwidth"] == pytest.approx(0.8 * 417e9, rel=0.1)
        assert known.times(truth.setting, one_gb).seconds == pytest.approx(truth.seconds, rel=0.15)
    ring_rate = (2 * 15 / 16 * several[0].sizes / several[0].seconds).max()
    assert known.network["multi_gpu_nodes"]["nic_bandwidth"] >= 0.999 * ring_rate
    # No time of a call is below its bound: both follow from the curve.
    for size in ("64 kB", "1 GB", "50 GB"):
        found = time_said("allreduce_ring", "--network", out, "--workers", 16, "--size", size)
        assert 0.9 * found["time_s"] * (size != "64 kB") <= found["lower_bound_s"] <= found["time_s"]
        assert found["low_s"] <= found["time_s"] < found["high_s"]
    # Jobs have the errors of their calls, and exchanges over two levels whose messages inside nodes are none between.
    loaded, ring = load("base", network=str(out), workers=16), Candidate("ring", "dense", {"algorithm": "ring"})
    job = loaded.build().job
    ((_, errors),) = call_errors(job, [ring]).items()
    name = job_totals.off_alike(ring)
    call = load_cost_model(out).predict("all_reduce", 16, 4.0 * job.source.true_parameters)
    assert errors == (call.kind, *(pytest.approx(end / call.seconds, rel=1e-3) for end in (call.low, call.high)))
    total = job_totals.JobTotal(
        "ring", 0.0, {name: job_totals.Spent(2.0, 0.0, 0.0, 0.0, 30.0)}, "ideal", 0.0, {name: errors}
    )
    assert total.messages_within(name) == (errors.kind, 2 * errors.low, 2 * errors.high)
    links = dict.fromkeys(("latency_s", "bandwidth_Bps"), np.ones(1))
    assert "errors are those of calls on mine.yaml" in job_totals.evidence_of_job(job, [links]).because
    ranked = ranked_candidates(loaded, loaded.build())
    two_levels = [one.options["ranks_per_node"] for one in ranked if one.scheme.startswith("two_level/")]
    assert set(two_levels) == {8}
    inside = Schedule(16, [Round(np.arange(16), np.arange(16) ^ 1, 1e8)])
    assert job.network(0).time(inside).duration < 1e8 / 1e11


def test_a_log_becomes_a_fabric_on_the_command_line(tmp_path: Path):
    log, out = tmp_path / "log.csv", tmp_path / "fabric.yaml"
    write_tidy(rows(), log)

    said = did("calibrate", log, "-o", out).output
    assert "--where variant=a" in said
    assert "(chosen)" in said
    refused("calibrate", log, "-o", out)
    on = ("--network", out, "--size", "8 KiB", "--workers")
    assert "(90 %) [us]" in did("time", "all_reduce", *on, 4).output
    assert "did you mean 'ring'" in refused("time", "all_reduce:rig", *on, 4)
    assert [time_said("all_reduce", *on, ranks)["evidence"] for ranks in (4, 64)] == ["measured", "extrapolated"]
