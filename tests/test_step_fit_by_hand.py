"""Fits of the step model by hand: none is nearer to data and to what is typical, and errors are what both tell."""

import numpy as np
import pytest

from simnet.calibration import Curve, Setting
from simnet.calibration.step_model import PARAMETERS, StepModel, fit_step_model, switched

NAMES = list(PARAMETERS)
SIZES = 2.0 ** np.arange(10, 28, 3)
NOISE = np.exp(0.1 * np.cos(2.0 * np.arange(6)))
# By what logarithms of parameters typically spread; those of MPI differ in three.
SPREAD = {
    "launch": 1.0, "inner_latency": 0.7, "outer_latency": 1.0, "inner_seconds_per_byte": 3.0,
    "outer_seconds_per_byte": 3.0, "gamma": 0.5, "ll128_latency_factor": 0.5, "simple_latency_factor": 1.0,
    "ll_byte_factor": 0.7, "ll128_byte_factor": 0.05, "tree_latency_factor": 0.2, "tree_byte_factor": 0.3,
    "peer_latency": 0.7, "peer_byte_factor": 0.3, "pair_byte_factor": 0.7, "switch_byte_factor": 0.05,
}  # fmt: skip
TYPICAL = {
    "inner_latency": 4e-7, "outer_latency": 5e-6, "gamma": 5e-14, "ll128_latency_factor": 1.8,
    "simple_latency_factor": 3.5, "ll_byte_factor": 3.0, "ll128_byte_factor": 128 / 120, "tree_latency_factor": 0.8,
    "tree_byte_factor": 1.6, "peer_latency": 8e-6, "peer_byte_factor": 1.1, "pair_byte_factor": 1.1,
    "switch_byte_factor": 1 / 0.85,
}  # fmt: skip
SPREAD_OF_MPI = SPREAD | {"launch": 0.5, "inner_latency": 2.0, "gamma": 1.5}
TYPICAL_OF_MPI = TYPICAL | {"inner_latency": 5e-7, "gamma": 1e-10}


def curve(*setting, latency, per_byte):
    return Curve(Setting(*setting), SIZES, NOISE * (latency + SIZES * per_byte))


def off_data(logs, curves, nccl):
    model = StepModel(nccl, tuple(np.exp(logs)))
    return np.concatenate([np.log(model.at(one.setting, one.sizes) / one.seconds) for one in curves])


def off_typical(logs, typical, spread, between):
    """Return how many spreads parameters are off; a peer goes with a step between nodes where there are any."""
    usual = np.log([typical[name] for name in NAMES])
    peer, step = NAMES.index("peer_latency"), NAMES.index("outer_latency")
    if between:
        usual[peer] = logs[step] + np.log(0.6)
    return (logs - usual) / [spread[name] for name in NAMES]


def slopes(function, logs):
    steps = np.eye(len(NAMES)) * 1e-4
    return np.column_stack([(function(logs + one) - function(logs - one)) / 2e-4 for one in steps])


GATHER = ("all_gather", 8, 8, "ring")
# Seven steps of 5 us between nodes leave a launch of what is above, three tenths at the least, 30 us at the most.
CASES = {
    "launch is what steps leave": (True, [curve(*GATHER, latency=6e-5, per_byte=2e-10)], lambda a: a - 3.5e-5),
    "launch is three tenths": (True, [curve(*GATHER, latency=4e-5, per_byte=2e-10)], lambda a: 0.3 * a),
    "launch is 30 us": (True, [curve(*GATHER, latency=2e-4, per_byte=2e-10)], lambda a: 3e-5),
    # Of both algorithms, a tree has the fewest steps: fourteen of 0.4 us inside nodes and two between them.
    "the way with the fewest steps": (
        True, [curve("all_reduce", 16, 2, latency=3e-5, per_byte=2e-11)], lambda a: a - 14 * 4e-7 - 2 * 5e-6,
    ),
    # Of both curves, send-receive has the fewer steps: one.
    "the curve with the fewest steps": (
        True,
        [curve(*GATHER, latency=6e-5, per_byte=2e-10), curve("sendrecv", 8, 8, latency=2e-5, per_byte=3e-10)],
        lambda a: a - 5e-6,
    ),
    "on one node": (True, [curve("all_gather", 8, 1, "ring", latency=2e-5, per_byte=3e-12)], lambda a: a - 7 * 4e-7),
    "peers": (True, [curve("alltoall", 16, 4, latency=8e-5, per_byte=1e-10)], lambda a: 3e-5),
    # Half of a step, which is that of the middle one of three curves: a fourth, an eighth and a sixteenth of 80 us.
    "half a step of mpi": (
        False,
        [curve("all_gather", ranks, ranks, "ring", latency=8e-5, per_byte=2e-9) for ranks in (4, 8, 16)],
        lambda a: NOISE[0] * (8e-5 + 1024 * 2e-9) / 8 / 2,
    ),
    # Of sixty-three steps and a call the latter hardly shows.
    "a call of mpi is half a step": (
        False,
        [curve("all_gather", 64, 64, "ring", latency=8e-5, per_byte=2e-9)],
        lambda a: NOISE[0] * (8e-5 + 1024 * 2e-9) / 64 / 2,
    ),
    "on one node and between nodes": (
        True,
        [curve("all_gather", 8, 1, "ring", latency=2e-5, per_byte=3e-12), curve(*GATHER, latency=6e-5, per_byte=2e-10)],
        lambda a: a - 7 * 4e-7,
    ),
    "a call of mpi takes 30 us": (False, [curve(*GATHER, latency=8e-4, per_byte=2e-9)], lambda a: 3e-5),
}  # fmt: skip


def typical_of(nccl, curves, launch):
    """Return what is typical; of seconds per byte, nine tenths of the data have more for each byte that is moved."""
    moved = {"all_gather": lambda p: (p - 1) / p, "all_reduce": lambda p: 1 / 8, "sendrecv": lambda p: 1.0}
    # Of an all-to-all of four nodes of four, twelve bytes of sixteen leave the node, and three stay.
    moved["alltoall"] = lambda p: 15 / 16
    each = [one.seconds / one.sizes / moved[one.setting.collective](one.setting.ranks) for one in curves]
    per_byte = float(np.quantile(np.concatenate(each), 0.1))
    found = dict.fromkeys(("inner_seconds_per_byte", "outer_seconds_per_byte"), per_byte)
    found["launch"] = launch(min(one.seconds.min() for one in curves))
    if nccl:
        return TYPICAL | found
    steps = [one.seconds[0] / one.setting.ranks for one in curves]
    return TYPICAL_OF_MPI | found | {"outer_latency": float(np.median(steps))}


@pytest.mark.parametrize("case", CASES)
def test_no_other_value_of_a_parameter_is_nearer_to_data_and_to_what_is_typical(case):
    nccl, curves, launch = CASES[case]
    typical, spread = typical_of(nccl, curves, launch), SPREAD if nccl else SPREAD_OF_MPI
    between = any(one.setting.nodes > 1 for one in curves)
    found = np.log(fit_step_model(curves, nccl).values)

    def cost(logs):
        data = off_data(logs, curves, nccl)
        # What is one spread from typical costs as much as errors of 2 % everywhere; above 10 % errors count linearly.
        prior = 0.02 * np.sqrt(len(data)) * off_typical(logs, typical, spread, between)
        return (np.sqrt(1 + (np.concatenate([data, prior]) / 0.1) ** 2) - 1).sum()

    for name, ahead in zip(NAMES, 0.02 * np.eye(len(NAMES)), strict=True):
        less, here, more = cost(found - ahead), cost(found), cost(found + ahead)
        at_bound = name in ("ll_byte_factor", "ll128_byte_factor") and ahead @ found < 1e-5
        # Where the parabola through the three is least.
        nearest = 0.01 * (less - more) / (less - 2 * here + more)
        assert abs(nearest) < 2e-3 or (at_bound and nearest < 0), name


@pytest.mark.parametrize("case", ["launch is what steps leave", "on one node", "half a step of mpi"])
def test_errors_are_what_data_with_their_scatter_and_typical_spreads_tell(case):
    nccl, curves, _ = CASES[case]
    fitted = fit_step_model(curves, nccl)
    found, spread = np.log(fitted.values), SPREAD if nccl else SPREAD_OF_MPI
    off = off_data(found, curves, nccl)
    # Of normal errors the median of absolute ones is 0.6745 standard deviations; large ones tell less.
    noise = np.median(np.abs(off)) / 0.6745
    data = slopes(lambda logs: off_data(logs, curves, nccl), found) / noise
    data *= (1 + (off / 0.1) ** 2)[:, None] ** -0.75
    between = any(one.setting.nodes > 1 for one in curves)
    prior = slopes(lambda logs: off_typical(logs, dict.fromkeys(NAMES, 1.0), spread, between), found)
    wanted = np.sqrt(np.diag(np.linalg.inv(data.T @ data + prior.T @ prior)))
    assert fitted.errors == pytest.approx(wanted, rel=1e-3)


def test_data_without_scatter_are_taken_to_scatter_by_a_millionth():
    # Bytes of a ring inside a node at their typical cost, which the largest sizes tell, and that of seven steps.
    sizes = 2.0 ** np.arange(10, 61, 5)
    seconds = 3e-5 + 7 * 3.5 * 4e-7 + 7 / 8 * sizes * 1e-11
    exact = fit_step_model([Curve(Setting("all_gather", 8, 1, "ring", "Simple"), sizes, seconds)], nccl=True)
    error = dict(zip(NAMES, exact.errors, strict=True))["inner_seconds_per_byte"]
    # Some of the eleven sizes are bytes alone, and each tells their cost to a millionth.
    assert 1e-6 / np.sqrt(11) < error < 1e-6


def test_twenty_sizes_of_a_curve_count_evenly_spread():
    sizes = 2.0 ** np.linspace(10, 28, 39)
    seconds = 6e-5 + sizes * 2e-10
    even, setting = np.arange(39) % 2 == 0, Setting(*GATHER)
    few = fit_step_model([Curve(setting, sizes[even], seconds[even])], nccl=True)
    many = fit_step_model([Curve(setting, sizes, np.where(even, seconds, 1.0))], nccl=True)
    assert few == many
    for place in (0, 1, 18, 19):
        other = seconds[even] * np.where(np.arange(20) == place, 1.3, 1.0)
        assert fit_step_model([Curve(setting, sizes[even], other)], nccl=True).values != few.values


@pytest.mark.parametrize(("factor", "bound"), [(50.0, 1.5), (0.02, -1.5)])
def test_factors_near_one_are_within_one_and_a_half_in_logarithms(factor, bound):
    values = dict.fromkeys(NAMES, 1.0) | TYPICAL | {"launch": 1e-5, "inner_seconds_per_byte": 1e-11}
    values |= {"outer_seconds_per_byte": 1e-10, "tree_byte_factor": factor}
    odd = StepModel(True, tuple(values[name] for name in NAMES))
    settings = [Setting("all_reduce", 8 * n, n, way, "Simple") for n in (2, 8) for way in ("tree", "ring")]
    found = fit_step_model([Curve(one, SIZES, odd.at(one, SIZES)) for one in settings], nccl=True)
    assert found.values[NAMES.index("tree_byte_factor")] == pytest.approx(np.exp(bound), rel=1e-3)


def test_switches_are_looked_for_where_nccl_is_counted_alone_and_cards_as_told():
    sizes = np.array([1e6, 1e9])
    curves = [
        Curve(Setting("all_reduce", 8, 1), sizes, sizes / 270e9),
        Curve(Setting("all_reduce", 16, 2), sizes, sizes),
    ]
    assert switched(curves)
    assert (fit_step_model(curves, True).switch, fit_step_model(curves, False).switch) == (True, False)
    assert fit_step_model(curves, True, 3.0).cards == 3.0
