"""Sparsifiers: hand-worked vectors, brute-force references, conservation of mass, messages, state, every refusal."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradients import KINDS as COMMON_KINDS
from gradients import f32, gradients_of, jobs
from looping import each
from simnet.cost_models.costs.devices import load_device
from simnet.sparsifier_models import SCHEMES, create
from simnet.sparsifier_models.artopk import WINDOW, windowed_mean
from simnet.sparsifier_models.selection import entries_kept, top_k
from simnet.sparsifier_models.topk import bracket
from variants import made, variants_of

EPS = float(np.finfo(np.float32).eps)

VARIANTS = variants_of("dense", "randomk", "topk", "lwtopk", "mstopk", "artopk")
variants = st.sampled_from(VARIANTS)
KINDS = [*COMMON_KINDS, "tiny", "huge"]


# How many entries are kept


def test_entries_kept_is_the_ceiling_of_the_decimal_number():
    # 0.07 * 100 and 0.29 * 100 are not whole in binary.
    assert [entries_kept(c, 100) for c in (0.07, 0.29, 0.291, 1.0)] == [7, 29, 30, 100]
    assert entries_kept(np.float32(0.5), 3) == 2


@given(st.integers(1, 10_000), st.integers(1, 10**8))
def test_entries_kept_of_hundredths_of_per_cent(c, n):
    assert entries_kept(c / 10_000, n) == -(-c * n // 10_000)


def test_k_of_the_released_code_rounds_down_to_one_at_least():
    assert create("topk", 2, 100, 0.019, compat="released").k == 1
    assert create("topk", 2, 100, 0.019).k == 2
    assert create("topk", 2, 100, 0.0001, compat="released").k == 1
    assert create("topk", 2, 100, 0.0001).k == 1


# Vectors worked by hand


def test_topk_by_hand():
    # Two workers keep 2 of 5. Union {0, 1, 3}: worker 0 sends 5 and -4, worker 1 sends 6 and 3.
    model = create("topk", 2, 5, 0.4)
    first = model.exchange(f32([[5, -4, 1, 0, 2], [2, 6, 0, 3, 1]]))
    np.testing.assert_array_equal(first.update, f32([2.5, 1, 0, 1.5, 0]))
    np.testing.assert_array_equal(model.residual, f32([[0, 0, 1, 0, 2], [2, 0, 0, 0, 1]]))
    np.testing.assert_array_equal(first.selected, [2, 2])
    assert first.union == 3
    assert first.stats["density"] == 0.6
    assert first.stats["update_density"] == 0.6
    assert first.stats["build_up"] == 1.5
    np.testing.assert_array_equal(first.stats["threshold"], [4, 3])
    np.testing.assert_allclose(first.stats["worker_gain"], [41 / 46, 45 / 50])
    assert first.stats["gain"] == pytest.approx((41 + 45) / (46 + 50))
    np.testing.assert_allclose(first.stats["residual_norm"], np.sqrt([5, 5]))
    assert first.stats["global_error"] == pytest.approx(np.sqrt(5))
    # With the residual: worker 0 has [0, 0, 2, 1, 3], worker 1 [2, 1, 0, 0, 1]; of the two 1s the first goes.
    second = model.exchange(f32([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]]))
    np.testing.assert_array_equal(second.update, f32([1, 0.5, 1, 0, 1.5]))
    np.testing.assert_array_equal(model.residual, f32([[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]))


def test_lwtopk_by_hand():
    # Layers of 3 and 2, density 0.34: ceil(1.02) = 2 and ceil(0.68) = 1 entries.
    model = create("lwtopk", 1, 5, 0.34, layers=(("a", 3), ("b", 2)))
    exchange = model.exchange(f32([[1, 9, 8, 0, -3]]))
    assert model.k == 3
    np.testing.assert_array_equal(exchange.update, f32([0, 9, 8, 0, -3]))
    np.testing.assert_array_equal(model.residual, f32([[1, 0, 0, 0, 0]]))
    assert exchange.stats["threshold"] == 3


def test_dense_by_hand_flushes_the_residual_it_was_handed():
    model = create("dense", 2, 2, 0.01)
    model.residual = f32([[1, 0], [0, 5]])
    exchange = model.exchange(f32([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(exchange.update, f32([2.5, 5.5]))
    assert not model.residual.any()
    assert exchange.stats["gain"] == exchange.stats["density"] == exchange.stats["build_up"] == 1
    assert exchange.kernels == ()


# Conservation of mass, and what holds for every scheme


@settings(max_examples=120)
@given(variants, jobs(200, KINDS))
def test_statistics_are_finite_and_follow_from_before_and_after(variant, job):
    workers, parameters, density, kind, seed = job
    model = made(variant, workers, parameters, density)
    gradients = gradients_of(kind, workers, parameters, seed)
    exchange = model.exchange(gradients)
    stats = exchange.stats
    assert all(np.isfinite(one).all() for name, one in stats.items() if name != "threshold")
    # The smallest magnitude of no entry is infinite; of several schemes' workers only the broadcaster counts.
    some = exchange.selected > 0 if "broadcaster" not in stats else True
    assert np.array_equal(np.isfinite(stats.get("threshold", some)), some)
    total = (gradients.astype(np.float64) ** 2).sum(1)
    kept = (model.residual.astype(np.float64) ** 2).sum(1)
    # What is sent and what is kept share no entry, so that their squares add up.
    np.testing.assert_allclose(exchange.sent + kept, total, rtol=1e-12)
    np.testing.assert_allclose(stats["residual_norm"], np.sqrt(kept), rtol=1e-12)
    np.testing.assert_allclose(stats["sent_norm"], np.sqrt(exchange.sent))
    assert ((stats["worker_gain"] >= 0) & (stats["worker_gain"] <= 1 + 1e-12)).all()
    assert 0 <= stats["gain"] <= 1 + 1e-12
    if not total.any():
        assert stats["gain"] == 1
    assert 0 <= stats["update_density"] <= stats["density"] == exchange.union / parameters <= 1
    assert stats["build_up"] <= workers


@given(variants, jobs(200, KINDS))
def test_density_one_is_the_mean(variant, job):
    workers, parameters, _, kind, seed = job
    if variant == ("mstopk", {"compat": "released"}):
        variant = ("mstopk", {})
    model = made(variant, workers, parameters, 1.0)
    gradients = gradients_of(kind, workers, parameters, seed)
    mean = gradients.astype(np.float64).mean(0)
    spread = np.abs(gradients.astype(np.float64)).mean(0)
    assert (np.abs(model.exchange(gradients).update - mean) <= (workers + 2) * EPS * spread + 1e-44).all()
    assert not model.residual.any()


SYMMETRIC = [("dense", {}), ("randomk", {}), ("topk", {}), ("lwtopk", {}), ("artopk", {"selection": "var"})]


@given(st.sampled_from(SYMMETRIC), st.integers(1, 17), st.integers(3, 100), st.integers(0, 99))
def test_the_order_of_the_workers_does_not_matter(variant, workers, parameters, seed):
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((workers, parameters)).astype(np.float32)
    order = rng.permutation(workers)
    model, twin = (made(variant, workers, parameters, 0.3) for _ in range(2))
    ours, theirs = model.exchange(gradients), twin.exchange(gradients[order])
    np.testing.assert_allclose(ours.update, theirs.update, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.residual[order], twin.residual)
    assert ours.union == theirs.union


# Top-k and MSTopk


@settings(max_examples=100)
@given(jobs(200, KINDS))
def test_topk_is_the_mean_of_the_sorted_selections(job):
    workers, parameters, density, kind, seed = job
    gradients = gradients_of(kind, workers, parameters, seed)
    exchange = create("topk", workers, parameters, density).exchange(gradients)
    k = entries_kept(density, parameters)
    expected, union = np.zeros(parameters), set()
    for row in gradients:
        kept = np.argsort(-np.abs(row), kind="stable")[:k]
        expected[kept] += row[kept].astype(np.float64) / workers
        union |= set(kept.tolist())
    allowed = (workers + 1) * EPS * np.abs(gradients.astype(np.float64)).mean(0) + 1e-44
    assert (np.abs(exchange.update - expected) <= allowed).all()
    assert exchange.union == len(union)


@settings(max_examples=100)
@given(st.integers(2, 300), st.floats(0.001, 0.999), st.sampled_from(KINDS), st.integers(0, 999))
def test_mstopk_sends_all_above_and_a_contiguous_run_of_the_band(n, share, kind, seed):
    values = gradients_of(kind, 1, n, seed)[0]
    model = create("mstopk", 1, n, share, seed=seed)
    k, magnitude = model.k, np.abs(values)
    chosen = model._select(values, 0)
    assert chosen.size == np.unique(chosen).size == k
    if k == n:
        return
    low, high = (np.float32(one) for one in bracket(magnitude, k))
    above, band = magnitude >= high, np.flatnonzero((magnitude >= low) & (magnitude < high))
    assert set(np.flatnonzero(above)) <= set(chosen.tolist())
    run = np.flatnonzero(np.isin(band, chosen))
    assert run.size == k - np.count_nonzero(above)
    assert (np.diff(run) == 1).all()


def test_mstopk_is_top_k_where_magnitudes_are_far_enough_apart():
    rng = np.random.default_rng(1)
    values = (rng.permutation(1000) * rng.choice([-1, 1], 1000)).astype(np.float32)
    chosen = create("mstopk", 1, 1000, 0.05)._select(values, 0)
    np.testing.assert_array_equal(chosen, top_k(values, 50))


def test_the_released_mstopk_sometimes_sends_one_entry_less():
    # All magnitudes equal: the run of k = 3 among 4 starts at 0 or 1, in the released code also at 2.
    sizes, starts = [], set()
    for compat in ("paper", "released"):
        model = create("mstopk", 1, 4, 0.75, compat=compat)
        for iteration in range(60):
            model.iteration = iteration
            chosen = model._select(np.ones(4, dtype=np.float32), 0)
            sizes.append(chosen.size)
            starts.add((compat, int(chosen[0])))
    assert set(sizes[:60]) == {3}
    assert set(sizes[60:]) == {2, 3}
    assert starts == {("paper", 0), ("paper", 1), ("released", 0), ("released", 1), ("released", 2)}


# Random-k


def test_randomk_draws_the_same_entries_for_all_or_for_each():
    gradients = np.ones((6, 1000), dtype=np.float32)
    shared = create("randomk", 6, 1000, 0.1).exchange(gradients)
    assert shared.union == 100
    assert shared.stats["gain"] == pytest.approx(0.1)
    own = create("randomk", 6, 1000, 0.1, shared=False).exchange(gradients)
    # The union of independent draws is n (1 - (1 - c)^P) = 469 on average, with a deviation below 16.
    assert 400 < own.union < 540


def test_randomk_visits_every_entry_alike_and_depends_on_the_seed():
    model = create("randomk", 1, 50, 0.2, error_feedback=False)
    hits = sum(model.exchange(np.ones((1, 50), dtype=np.float32)).update for _ in range(1000))
    assert (np.abs(hits - 200) < 5 * np.sqrt(1000 * 0.2 * 0.8)).all()
    ones = np.ones((1, 50), dtype=np.float32)
    one, same, other = (create("randomk", 1, 50, 0.2, seed=seed).exchange(ones).update for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


# AR-Topk


def algorithm_1(gradients, c, mode):
    """AR-Topk as Algorithm 1 has it, on gradients of shape (steps, N, n): the update and residuals of each step."""
    _, N, n = gradients.shape
    residual = np.zeros((N, n), dtype=np.float32)
    k = int(np.ceil(c * n))
    for i, gradient in enumerate(gradients, start=1):
        G = gradient + residual
        ix = [sorted(range(n), key=lambda j, r=r: (-abs(G[r, j]), j))[:k] for r in range(N)]
        if mode == "star":
            source = i % N
        else:
            var = [float(np.sum(np.square(G[r, ix[r]], dtype=np.float64))) for r in range(N)]
            source = var.index(max(var))
        g = [G[r, ix[source]] for r in range(N)]
        residual = G.copy()
        residual[:, ix[source]] = 0
        update = np.zeros(n)
        update[ix[source]] = np.sum(g, axis=0, dtype=np.float64) / N
        yield update, residual


@given(
    st.integers(1, 17), st.integers(1, 60), st.sampled_from([0.05, 0.25, 1.0]), st.sampled_from(["star", "var"]),
    st.sampled_from(["ring", "tree"]), st.integers(0, 999),
)  # fmt: skip
def test_artopk_is_algorithm_1(workers, parameters, density, selection, collective, seed):
    gradients = np.random.default_rng(seed).standard_t(2, (4, workers, parameters)).astype(np.float32)
    model = create("artopk", workers, parameters, density, selection=selection, collective=collective)
    for gradient, (update, residual) in zip(gradients, algorithm_1(gradients, density, selection), strict=True):
        exchange = model.exchange(gradient)
        np.testing.assert_array_equal(model.residual, residual)
        np.testing.assert_allclose(exchange.update, update, rtol=1e-5, atol=1e-5)
        assert exchange.stats["build_up"] == 1


def test_var_takes_the_first_of_equal_norms():
    rows = f32([[1, 2, 0], [3, 1, 0], [0, -1, 3], [0, 0, 3]])
    exchange = create("artopk", 4, 3, 0.5, selection="var").exchange(rows)
    np.testing.assert_array_equal(exchange.stats["criterion"], [5, 10, 10, 9])
    assert exchange.stats["broadcaster"] == 1
    zeros = create("artopk", 4, 3, 0.5, selection="var").exchange(np.zeros((4, 3), dtype=np.float32))
    assert zeros.stats["broadcaster"] == 0


def test_released_var_smooths_raw_norms_and_starts_with_worker_0():
    rng = np.random.default_rng(0)
    model = create("artopk", 3, 20, 0.1, selection="var", compat="released")
    norms = []
    for step in range(40):
        gradients = (rng.standard_normal((3, 20)) * [[1], [2], [3]]).astype(np.float32)
        norms.append(np.linalg.norm(gradients.astype(np.float64), axis=1))
        broadcaster = model.exchange(gradients).stats["broadcaster"]
        if step < WINDOW - 1:
            assert broadcaster == 0
        else:
            weights = np.array([0.999**age for age in range(25, 0, -1)])
            expected = weights @ np.array(norms[-25:]) / weights.sum()
            assert broadcaster == np.argmax(expected) == 2


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.integers(1, 6), st.floats(0, 0.9))
def test_windowed_mean(values, size, decay):
    result = float(windowed_mean(np.array(values), size, decay))
    if len(values) < size:
        assert result == 0
    else:
        recent = values[-size:][::-1]
        weights = [(1 - decay) ** age for age in range(1, size + 1)]
        assert result == pytest.approx(sum(map(np.multiply, weights, recent)) / sum(weights), abs=1e-9)


def test_released_star_selects_at_the_broadcasting_worker_only():
    gradients = gradients_of("normal", 4, 100, 0)
    released = create("artopk", 4, 100, 0.1, compat="released")
    released.iteration = 2
    exchange = released.exchange(gradients)
    assert exchange.selected.tolist() == [0, 0, 10, 0]
    seconds = load_device("artopk-tables").seconds(exchange.kernels, 4)
    assert seconds[2] > 0
    assert seconds[[0, 1, 3]].tolist() == [0, 0, 0]
    paper = create("artopk", 4, 100, 0.1)
    paper.iteration = 1
    same = paper.exchange(gradients)
    assert same.selected.tolist() == [10] * 4
    np.testing.assert_array_equal(same.update, exchange.update)


@pytest.mark.parametrize("compat", ["paper", "released"])
@pytest.mark.parametrize("selection", ["star", "var"])
def test_staleness_counts_exchanges_since_a_worker_broadcast(selection, compat):
    model = create("artopk", 5, 60, 0.1, selection=selection, compat=compat)
    last = np.full(5, -1)
    for step in range(40):
        stats = model.exchange(gradients_of("heavy", 5, 60, step)).stats
        last[int(stats["broadcaster"])] = step
        np.testing.assert_array_equal(stats["staleness"], step - last)
        if selection == "star":
            assert sorted(stats["staleness"].tolist()) == sorted(min(one, step + 1) for one in range(5))


@pytest.mark.parametrize("compat", ["paper", "released"])
def test_the_gain_and_its_change_are_smoothed(compat):
    model = create("artopk", 3, 50, 0.1, compat=compat)

    def smoothed(values):
        weights = np.array([0.99**age for age in range(5, 0, -1)])
        return weights @ np.array(values[-5:]) / weights.sum() if len(values) >= 5 else 0

    gains = []
    for step in range(20):
        if step == 12:
            model.density, gains = 0.4, []
        stats = model.exchange(gradients_of("normal", 3, 50, step)).stats
        gains.append(stats["gain"] if compat == "paper" else stats["worker_gain"][int(stats["broadcaster"])] ** 0.5)
        changes = [abs(after - before) / before for before, after in pairwise(gains)]
        assert stats["gain_change"] == pytest.approx(changes[-1] if changes else 0)
        assert stats["smoothed_gain"] == pytest.approx(smoothed(gains))
        assert stats["smoothed_gain_change"] == pytest.approx(smoothed(changes))
    assert stats["smoothed_gain_change"] > 0


# Messages (fact sheet 2.4)

P, N_ENTRIES, C, K = 8, 1000, 0.05, 50


def sizes(exchange):
    """Bytes of the messages by round, as a set for each."""
    return [sorted(set(one.nbytes.tolist())) for one in exchange.schedule.rounds]


def exchanged(name, **options):
    return create(name, P, N_ENTRIES, C, **options).exchange(gradients_of("normal", P, N_ENTRIES, 3))


def test_widths_can_be_set():
    exchange = exchanged("topk", value_bytes=2, index_bytes=3)
    assert sizes(exchange)[0] == [5 * K]


def test_messages_keep_the_calls_that_they_belong_to():
    def calls(name, **options):
        return [(one.operation, one.first, one.rounds) for one in exchanged(name, **options).schedule.calls]

    assert calls("topk") == [("all_gather", 0, 3)]
    assert calls("artopk") == [("broadcast", 0, 3), ("all_reduce", 3, 14)]
    # What is merged on its way up a tree is sent from worker to worker, and only its way down is one call.
    assert calls("gtopk") == [("broadcast", 3, 3)]


# Refusals


def test_overflow_is_refused():
    model = create("topk", 1, 4, 0.25)
    model.exchange(f32([[3e38, 3e38, 0, 0]]))
    with pytest.raises(ValueError, match="worker 0 is too large with its residual at index 1"):
        model.exchange(f32([[0, 3e38, 0, 0]]))
    np.testing.assert_array_equal(model.residual, f32([[0, 3e38, 0, 0]]))
    with pytest.raises(ValueError, match="sum over the workers overflows float32 at index 0"):
        create("dense", 2, 2).exchange(f32([[3e38, 0], [3e38, 0]]))


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (np.zeros((2, 4), dtype=np.float32), r"shape \(2, 3\), got \(2, 4\)"),
        (np.zeros(6, dtype=np.float32), r"shape \(2, 3\), got \(6,\)"),
        (np.zeros((2, 3)), "float32, got float64"),
        ([[0.0] * 3] * 2, "float32, got list"),
    ],
)
def test_gradients_and_residuals_of_another_shape_or_type_are_refused(gradients, message):
    model = create("topk", 2, 3)
    with pytest.raises(ValueError, match=message):
        model.exchange(gradients)
    with pytest.raises(ValueError, match=message):
        model.residual = gradients


def test_residuals_that_are_not_finite_or_not_wanted_are_refused():
    with pytest.raises(ValueError, match="residual of worker 1 is inf at index 0"):
        create("topk", 2, 2).residual = f32([[0, 0], [np.inf, 0]])
    without = create("topk", 2, 2, error_feedback=False)
    without.residual = np.zeros((2, 2), dtype=np.float32)
    with pytest.raises(ValueError, match="topk without error feedback keeps no residual"):
        without.residual = f32([[1, 0], [0, 0]])


@pytest.mark.parametrize("density", [0, -0.1, 1.0001, np.nan, np.inf, "0.1", None, True])
def test_densities_outside_0_to_1_are_refused(density):
    with pytest.raises(ValueError, match="density must be > 0 and <= 1"):
        create("topk", 2, 10, density)
    model = create("topk", 2, 10, 0.5)
    with pytest.raises(ValueError, match="density must be > 0 and <= 1"):
        model.density = density
    assert model.density == 0.5


@each("field, sizes", [("workers", (0, 10)), ("workers", (True, 10)), ("parameters", (2, 0)), ("parameters", (2, 1.5))])
def test_sizes_that_are_no_whole_numbers_from_1_on_are_refused(field, sizes):
    with pytest.raises(ValueError, match=f"{field} must be a whole number >= 1, got "):
        create("topk", *sizes, 0.5)


def test_a_foreign_state_is_refused():
    model = create("artopk", 2, 10, 0.5)
    state = model.save()
    with pytest.raises(ValueError, match="this is a state of artopk, not of topk"):
        create("topk", 2, 10).restore(state)
    with pytest.raises(ValueError, match="this is a state of topk, not of artopk"):
        model.restore(create("topk", 2, 10).save())
    with pytest.raises(ValueError, match="no state of artopk: there is an unknown windows"):
        model.restore({**state, "windows": state["window"]})
    with pytest.raises(ValueError, match="this is a state of topk, not of mstopk"):
        create("mstopk", 2, 10).restore(create("topk", 2, 10).save())
    with pytest.raises(ValueError, match=r"shape \(2, 10\), but there are 2 workers and 11 parameters"):
        create("artopk", 2, 11).restore(state)
    with pytest.raises(ValueError, match="there is no iteration"):
        model.restore({name: value for name, value in state.items() if name != "iteration"})


# The registry


def test_every_scheme_says_what_it_is():
    for name, found in SCHEMES.items():
        assert found.name == name
        assert found.paper
        assert found.__doc__
        documented = "".join(one.__doc__ or "" for one in found.option_type.__mro__)
        assert all(field.name in documented for field in dataclasses.fields(found.option_type))
