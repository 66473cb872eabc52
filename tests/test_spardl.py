"""SparDL: published vectors, an independent round-by-round reference, messages, adaptive h, conservation, refusals."""

import csv
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradients import gradients_of, jobs
from looping import each
from simnet.sparsifier_models import spar_reduce_scatter as short_blocks
from simnet.sparsifier_models.spar_reduce_scatter import (
    AdaptiveBudget,
    Entries,
    ReducedBlocks,
    adapted,
    add,
    merged,
    srs_rounds,
    srs_route,
    started,
)
from simnet.sparsifier_models.spardl import SparDL, SparDLOptions
from simnet.sparsifier_models.wire import in_order

GOLDEN = Path(__file__).parent / "golden" / "spardl"
SRS, SAG, AG = "spar-reduce-scatter", "spar-all-gather", "all-gather"


def table(name):
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def log2_up(n):
    return math.ceil(math.log2(n))


def divisors(P):
    return [d for d in range(1, P + 1) if P % d == 0]


def messages_of(model, k_b, h, u):
    """The messages of an exchange in which u[b] entries of block b are left of all teams."""
    return in_order(model.workers, *model._steps(k_b, h, u, 0))[0]


def bytes_of(schedule, phase):
    """Bytes that each rank sends in a phase."""
    sent = np.zeros(schedule.n_ranks)
    for one in schedule.rounds:
        if one.phase == phase:
            np.add.at(sent, one.src, one.nbytes)
    return sent


@st.composite
def team_jobs(draw, longest=300, teams=divisors):
    """Workers, teams, parameters, density, kind of gradients and seed."""
    workers, *rest = draw(jobs(longest))
    return (workers, draw(st.sampled_from(teams(workers))), *rest)


# The schedule of Spar-Reduce-Scatter


@each("T", range(2, 33))
def test_distances_and_bags_are_those_of_the_released_code(T):
    expected = [
        (int(row["distance_g"]), int(row["blocks_in_sending_bag_m"]))
        for row in table("spardl_srs_schedule.csv")
        if int(row["P_or_T"]) == T
    ]
    assert expected
    assert srs_rounds(T) == expected


@each("T", range(1, 65))
def test_every_block_reaches_its_owner_with_each_contribution_exactly_once(T):
    # held[w][b]: whose contributions to block b worker w has, and how often.
    held = [[Counter([w]) for _ in range(T)] for w in range(T)]
    routes = {b: [] for b in range(T)}
    for g, m in srs_rounds(T):
        mail = []
        for w in range(T):
            sent = {(w + g + x) % T for x in range(m)}
            received = {(w + x) % T for x in range(m)}
            assert not sent & received
            for b in sent:
                mail.append(((w + g) % T, b, held[w][b]))
                routes[b].append((w, (w + g) % T))
                held[w][b] = None
        for w, b, contributions in mail:
            held[w][b] = held[w][b] + contributions
    assert len(srs_rounds(T)) == (log2_up(T) if T > 1 else 0)
    assert sum(m for _, m in srs_rounds(T)) == T - 1
    for w in range(T):
        assert held[w][w] == Counter(range(T))
        assert [b for b in range(T) if held[w][b] is not None] == [w]
        assert sorted(routes[w]) == sorted(srs_route(T, w))


# The worked example: 6 workers, 12 entries


def tiny():
    columns = [[float(row[f"input_w{w}"]) for row in table("spardl_golden_tiny_p6.csv")] for w in range(6)]
    return np.array(columns, dtype=np.float32)


def test_all_messages_of_the_worked_example():
    gradients, found = tiny(), set()
    rounds = {g: i for i, (g, _) in enumerate(srs_rounds(6))}

    def line(*numbers):
        return tuple(f"{number:.2f}" for number in numbers)

    for b in range(6):
        rows = gradients[:, 2 * b : 2 * b + 2]
        reduced = ReducedBlocks(gradients, np.array([b]), 1, 2)
        reduced.reduce(1, np.array([1]))
        for src, dst in [*srs_route(6, b), (b, None)]:
            held = rows[src].copy()
            for message in reduced.received[(b - src) % 6]:
                add(held, Entries(message.columns, message.values))
            _, (index,), (value,) = reduced.sent[(b - src) % 6]
            if dst is None:
                found.add(("own cut", "", "", src, b, *line(*held, value), 2 * b + index))
            else:
                g = (dst - src) % 6
                found.add(("SRS", rounds[g], (b - dst) % 6, src, b, *line(*held, value), 2 * b + index))
    expected = set()
    for row in table("spardl_golden_tiny_p6_messages.csv"):
        numbers = line(*(float(row[name]) for name in ("held_0", "held_1", "sent_value")))
        number, substep = (int(row[name]) if row[name] else "" for name in ("round", "substep"))
        src, block, index = (int(row[name]) for name in ("src", "block", "sent_index_global"))
        expected.add((row["phase"], number, substep, src, block, *numbers, index))
    assert len(expected) == 36
    assert found == expected


def test_result_and_residuals_of_the_worked_example():
    golden = np.load(GOLDEN / "spardl_golden_tiny_p6.npz")
    model = SparDL(6, 12, 0.5)
    exchange = model.exchange(tiny())
    assert exchange.update.tobytes() == golden["result"][0, 0].tobytes()
    np.testing.assert_array_equal(model.residual, golden["residual"][0].reshape(6, 12))
    np.testing.assert_array_equal(exchange.stats["h"], golden["h"][0])
    # Worker 3 dropped 0.32 at 8, which was selected; it sent 1.45 at 9, which was not, and has it back.
    assert model.residual[3, 8] == pytest.approx(0.32)
    assert model.residual[3, 9] == np.float32(1.45)
    assert np.flatnonzero(exchange.update).tolist() == [0, 2, 5, 6, 8, 11]
    assert exchange.selected.tolist() == [1] * 6


@pytest.mark.parametrize(("teams", "sag"), [(1, "bruck"), (2, "bruck"), (4, "recursive")])
def test_residuals_without_in_procedure_ones_are_local_where_selected_and_global_elsewhere(teams, sag):
    gradients = gradients_of("normal", 8, 203, 5)
    kept, updates = {}, {}
    for residual in ("global", "end", "local"):
        model = SparDL(8, 203, 0.1, teams=teams, sag=sag, residual=residual)
        updates[residual], kept[residual] = model.exchange(gradients.copy()).update, model.residual
    np.testing.assert_array_equal(updates["end"], updates["global"])
    expected = np.where(updates["end"] != 0, kept["local"], kept["global"])
    np.testing.assert_array_equal(kept["end"], expected)
    assert (kept["end"] != kept["global"]).any()
    assert (kept["end"] != kept["local"]).any()


# Golden runs of the released code


RUNS = {row["run"]: row for row in table("MANIFEST.csv")}
SMALL = ["p6_n600_d1", "p6_n600_d2", "p8_n1003_d1", "r_p4_d1"]
LARGE = sorted(set(RUNS) - set(SMALL))


def replay(run, folder):
    """The exchanges of a golden run, each compared bit for bit."""
    row, golden = RUNS[run], np.load(folder / f"{run}.npz")
    P, d, n = int(row["P"]), int(row["d"]), int(row["n"])
    model = SparDL(P, n, float(row["density"]), teams=d, compat="released")
    counts, exchanges = [], []
    for t, gradients in enumerate(np.load(folder / f"{run}.in.npy")):
        exchange = model.exchange(gradients)
        np.testing.assert_array_equal(exchange.update.view(np.uint32), golden["result"][t, 0, :n].view(np.uint32))
        np.testing.assert_array_equal(model.residual, golden["residual"][t].reshape(P, -1)[:, :n])
        np.testing.assert_array_equal(exchange.stats["h"], golden["h"][t])
        counts.append(np.count_nonzero(exchange.update))
        assert exchange.union == counts[-1]
        exchanges.append(exchange)
    assert " ".join(map(str, counts)) == row["nnz_result_per_iter"]
    assert model.k == (P // d) * int(row["k_block"])
    return exchanges


def check_bytes(run, exchanges):
    rows = [row for row in table("spardl_reference_bytes.csv") if row["run"] == run]
    assert len(rows) == len(exchanges)
    for row, exchange in zip(rows, exchanges, strict=True):
        compare_bytes(row, exchange.schedule)


def compare_bytes(row, schedule):
    for phase, name in ((SRS, "SRS"), (SAG, "SAG"), (AG, "AG")):
        sent = bytes_of(schedule, phase)
        assert sent.sum() == int(row[f"{name}_payload_bytes_all_ranks"])
        assert sent.max() == int(row[f"{name}_payload_bytes_max_rank"])


@pytest.mark.parametrize("run", SMALL)
def test_small_golden_runs_and_their_bytes(run):
    check_bytes(run, replay(run, GOLDEN))


@pytest.mark.parametrize("run", LARGE)
def test_large_golden_runs_and_their_bytes(run, shared):
    check_bytes(run, replay(run, shared / "papers" / "data" / "spardl_golden"))


def reference_rows():
    """Rows of the reference with the entries of the final all-gather, by block, where they are known."""
    trace = {
        (row["run"], row["iter"], row["rank"]): int(row["nnz_after_cut"]) for row in table("spardl_bsag_h_trace.csv")
    }
    for row in table("spardl_reference_bytes.csv"):
        T = int(row["P"]) // int(row["d_teams"])
        gathered = [trace.get((row["run"], row["iter"], str(w))) for w in range(T)]
        if row["d_teams"] == "1":
            gathered = [int(row["k_block"])] * T
        yield row, None if None in gathered else np.array(gathered)


def test_bytes_of_every_reference_row_follow_from_k_h_and_what_is_left_after_the_cut():
    complete = 0
    for row, gathered in reference_rows():
        P, d, n = int(row["P"]), int(row["d_teams"]), int(row["n"])
        model = SparDL(P, n, float(row["density"]), teams=d, compat="released")
        k_b, T = int(row["k_block"]), P // d
        assert model.k == T * k_b
        assert -(-n // T) == int(row["block_len_c"])
        h = np.array([int(one) for one in row["h_per_rank"].split()])
        assert (h == np.tile(h[:T], d)).all()
        if d == 1:
            assert (h == k_b).all()
        schedule = messages_of(model, k_b, h[:T], np.zeros(T, np.int64) if gathered is None else gathered)
        if gathered is not None:
            complete += 1
            compare_bytes(row, schedule)
            continue
        # Without its gradients only the last phase of such a run is not known.
        assert bytes_of(schedule, SRS).sum() == int(row["SRS_payload_bytes_all_ranks"])
        assert bytes_of(schedule, SAG).sum() == int(row["SAG_payload_bytes_all_ranks"])
        assert bytes_of(schedule, SAG).max() == int(row["SAG_payload_bytes_max_rank"])
        assert int(row["AG_payload_bytes_max_rank"]) <= 8 * (T - 1) * k_b
    assert complete > 130


# Short blocks, many at once


UNEVEN = np.array([0.0, -0.0, 1.0, -1.0, 2.0, 1e-44, -1e-40, 3e30, 0.5], dtype=np.float32)


@given(team_jobs(60), st.booleans(), st.sampled_from(["global", "local"]), st.sampled_from([1, 64, 1 << 22]))
@settings(deadline=None, max_examples=100)
def test_blocks_in_batches_sorted_together_give_what_they_give_one_after_the_other(job, recursive, residual, held):
    P, d, n, density, _, seed = job
    # Ties, zeros of both signs, denormals and large numbers.
    rounds = np.random.default_rng(seed).choice(UNEVEN, (2, P, n))
    sag = "auto" if recursive else "bruck"
    outcomes = []
    for together in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(short_blocks, "_SHORT", 1 << 10 if together else 0)
            patch.setattr(short_blocks, "_HELD", held if together else 1)
            model = SparDL(P, n, density, teams=d, sag=sag, residual=residual)
            found = []
            for gradients in rounds:
                one = model.exchange(gradients)
                found += [one.update, model.residual, one.selected, one.sent, *one.stats.values()]
                found += [part for each in one.schedule.rounds for part in (each.src, each.dst, each.nbytes)]
        outcomes.append([np.asarray(part).tobytes() for part in found])
    assert outcomes[0] == outcomes[1]


# An independent model, round by round over all blocks, with real padding


class Reference:
    """All workers' blocks dense, all messages of a round at once, as the paper describes it."""

    def __init__(self, P, d, n, rho, *, recursive, adapt="released"):
        self.P, self.d, self.n, self.T = P, d, n, P // d
        self.c = -(-n // self.T)
        self.k_b = max(1, int(self.c * rho))
        self.recursive = recursive
        self.bruck = d > 1 and not recursive
        self.residual = np.zeros((P, self.T, self.c), dtype=np.float32)
        h = max(1, int(self.c * rho / d)) if self.bruck else self.k_b
        step = int((self.c * rho - h) / 100)
        if adapt == "fixed":
            step = max(1, step)
        self.state = [[h, step, False] for _ in range(self.T)]

    def top(self, block, k):
        return np.sort(np.argsort(-np.abs(block), kind="stable")[:k])

    def exchange(self, gradients):
        P, T, c, k_b = self.P, self.T, self.c, self.k_b
        a = np.zeros((P, T * c), dtype=np.float32)
        a[:, : self.n] = gradients
        a = a.reshape(P, T, c) + self.residual
        dense, left = a.copy(), a.copy()
        L = log2_up(T) if T > 1 else 0
        for i in range(L):
            g = 2 ** (L - 1 - i)
            m = T - 2 ** (L - 1) if i == 0 else g
            mail = []
            for p in range(P):
                t, w = divmod(p, T)
                for b in ((w + g + x) % T for x in range(m)):
                    j = self.top(dense[p, b], k_b)
                    mail.append((t * T + (w + g) % T, b, j, dense[p, b, j]))
                    left[p, b] = dense[p, b]
                    left[p, b, j] = 0
            for p, b, j, values in mail:
                dense[p, b, j] += values
        self.h = np.array([self.state[p % T][0] for p in range(P)])
        own = []
        for p in range(P):
            w = p % T
            j = self.top(dense[p, w], int(self.h[p]))
            own.append(dict(zip(j.tolist(), dense[p, w, j], strict=True)))
            left[p, w] = dense[p, w]
            left[p, w, j] = 0
        self.u = np.zeros(P, dtype=np.int64)
        result = np.zeros((T, c), dtype=np.float32)
        residual = a.copy()
        for w in range(T):
            holders = range(w, P, T)
            final = self.recurse(own, w, left) if self.recursive else self.gather([own[p] for p in holders], w)
            for j, value in final.items():
                result[w, j] = value / np.float32(P)
                residual[:, w, j] = left[:, w, j]
            if self.bruck:
                self.move(w)
        self.residual = residual
        return result.reshape(-1)[: self.n]

    def cut(self, entries):
        kept = sorted(entries, key=lambda j: (-abs(entries[j]), j))[: self.k_b]
        return {j: entries[j] for j in kept}

    def sum(self, *blocks):
        total = {}
        for block in blocks:
            for j, value in block.items():
                total[j] = np.float32(total.get(j, np.float32(0)) + value)
        return total

    def gather(self, blocks, w):
        total = self.sum(*blocks)
        self.u[w :: self.T] = len(total)
        return self.cut(total)

    def recurse(self, own, w, left):
        held = {t: own[t * self.T + w] for t in range(self.d)}
        origins = {t: {t} for t in held}
        distance = self.d // 2
        self.u[w :: self.T] = self.k_b
        while distance:
            sums = {t: self.sum(held[t], held[t ^ distance]) for t in held}
            held = {t: self.cut(sums[t]) for t in held}
            origins = {t: origins[t] | origins[t ^ distance] for t in held}
            for t in held:
                # All that summed up the same teams have dropped the same.
                sharing = sum(origins[other] == origins[t] for other in held)
                for j in sums[t].keys() - held[t].keys():
                    left[t * self.T + w, w, j] += sums[t][j] / np.float32(sharing)
                self.u[t * self.T + w] = len(sums[t])
            distance //= 2
        for t in held:
            assert held[t] == held[0]
        return held[0]

    def move(self, w):
        h, step, flag = self.state[w]
        u = int(self.u[w])
        if (u > self.k_b) != (step > 0):
            lowest = h == 1 and step < 0
            step, flag = (step if lowest else 2 * step, False) if flag else (step, True)
        else:
            step, flag = math.trunc(-step / 2) if abs(step) > 1 else -step, False
        self.state[w] = [max(h + step, self.k_b // self.d, 1), step, flag]


def compare_with_reference(job, sag):
    workers, teams, parameters, density, kind, seed = job
    adapt = ("released", "fixed")[seed % 2]
    model = SparDL(workers, parameters, density, teams=teams, sag=sag, adapt=adapt)
    reference = Reference(workers, teams, parameters, density, recursive=sag == "recursive", adapt=adapt)
    for step in range(4):
        gradients = gradients_of(kind, workers, parameters, seed + step)
        exchange = model.exchange(gradients)
        np.testing.assert_array_equal(exchange.update, reference.exchange(gradients))
        np.testing.assert_array_equal(model.residual, reference.residual.reshape(workers, -1)[:, :parameters])
        np.testing.assert_array_equal(exchange.stats["h"], np.minimum(reference.h, reference.c))
        np.testing.assert_array_equal(exchange.stats["block_union"], reference.u)


@settings(max_examples=80)
@given(team_jobs(longest=200))
def test_one_team_or_several_with_bsag_do_what_the_reference_does(job):
    compare_with_reference(job, "bruck")


@given(team_jobs(longest=200, teams=lambda P: [d for d in divisors(P) if d & (d - 1) == 0]))
def test_teams_with_rsag_do_what_the_reference_does(job):
    compare_with_reference(job, "recursive")


# The adaptive h of B-SAG


def test_h_follows_from_u_as_in_the_released_code():
    rows = table("spardl_bsag_h_trace.csv")
    runs = {(row["run"], row["rank"]): [] for row in rows}
    for row in rows:
        runs[row["run"], row["rank"]].append(
            {name: int(value) for name, value in row.items() if name not in ("run", "density")}
        )
    assert len({run for run, _ in runs}) == 4
    reversals = 0
    for (run, _), trace in runs.items():
        density = next(float(row["density"]) for row in rows if row["run"] == run)
        d, k_b = trace[0]["d"], trace[0]["k_block"]
        state = started(1, trace[0]["block_len_c"] * density, d, least_step=0)
        for row in trace:
            assert state.h.tolist() == [row["h_used"]]
            assert state.step.tolist() == [row["step_before"]]
            assert state.flag.tolist() == [bool(row["inertia_before"])]
            assert row["nnz_after_cut"] == min(row["union_size_u"], k_b)
            state = adapted(state, np.array([row["union_size_u"]]), k_b, d)
            assert state.h.tolist() == [row["h_next"]]
            reversals += int(state.step[0]) * row["step_before"] < 0
    assert reversals > 50


def test_the_released_h_is_frozen_for_small_blocks_and_the_fixed_one_fills_them():
    # 2 teams of 4: c = 500, k_b = 50, h = 25 at the start, and (50 - 25) / 100 is 0.
    # The workers have much in common, so that the union of 2 h entries stays far below 50.
    models = [SparDL(8, 2000, 0.1, teams=2, **one) for one in ({}, {"compat": "released"}, {"adapt": "fixed"})]
    unions = []
    for step in range(25):
        rng = np.random.default_rng(step)
        rows = rng.standard_t(3, 2000) + 0.5 * rng.standard_normal((8, 2000))
        frozen, released, fixed = (model.exchange(rows.astype(np.float32)) for model in models)
        assert frozen.stats["h"].tolist() == released.stats["h"].tolist() == [25] * 8
        np.testing.assert_array_equal(frozen.update, released.update)
        unions.append((frozen.union, fixed.union))
    assert unions[0] == (110, 110)
    last = np.array(unions[-10:])
    assert last[:, 0].max() < 0.85 * 200
    assert last[:, 1].mean() > 0.95 * 200
    assert max(union for _, union in unions) == models[2].k == 200
    assert ((fixed.stats["h"] > 25) & (fixed.stats["h"] < 50)).all()


@settings(max_examples=100)
@given(st.integers(1, 300), st.integers(2, 17), st.floats(0, 1), st.integers(60, 200))
def test_h_settles_where_the_union_is_about_k_b(k_b, d, overlap, iterations):
    # A union of d h entries less what coincides; it grows with h.
    state = started(1, float(k_b), d, least_step=1)
    for _ in range(iterations):
        u = np.maximum(state.h, (state.h * (1 + (d - 1) * (1 - overlap))).astype(np.int64))
        state = adapted(state, u, k_b, d)
        assert state.h.min() >= max(1, k_b // d)
        assert abs(int(state.step[0])) <= 2 * k_b + 2
    target = max(1, k_b // d, k_b / (1 + (d - 1) * (1 - overlap)))
    assert state.h[0] <= 2 * target + 8


def test_at_its_least_h_stays_and_its_step_does_not_run_away():
    # 8 teams, one entry per block: even h = 1 is too much if all entries differ.
    state = started(1, 1.0, 8, least_step=1)
    for _ in range(300):
        state = adapted(state, np.array([8]), 1, 8)
    assert state == AdaptiveBudget(np.array([1]), np.array([-1]), state.flag)
    assert adapted(state, np.array([1]), 1, 8).h.tolist() == [2]


def test_a_new_density_starts_h_anew():
    model, fresh = (SparDL(4, 4000, density, teams=2, adapt="fixed") for density in (0.1, 0.02))
    for step in range(6):
        model.exchange(gradients_of("normal", 4, 4000, step))
    model.density = 0.02
    for step in range(6):
        gradients = gradients_of("normal", 4, 4000, step)
        model.residual = fresh.residual
        ours, theirs = model.exchange(gradients), fresh.exchange(gradients)
        assert ours.stats["h"].tolist() == theirs.stats["h"].tolist()
        np.testing.assert_array_equal(ours.update, theirs.update)
    # Without the restart h would have come from 100 on.
    assert ours.stats["h"].max() < 40


# State


def test_h_is_part_of_the_state():
    model = SparDL(4, 4000, 0.1, teams=2)
    for step in range(5):
        model.exchange(gradients_of("normal", 4, 4000, step))
    state = model.save()
    assert state["h"].min() > 100
    assert {"h", "step", "flag", "k_block"} <= set(state)
    assert not {"h", "step"} & set(SparDL(4, 4000, 0.1).save())
    with pytest.raises(ValueError, match="there is an unknown flag, an unknown h"):
        SparDL(4, 4000, 0.1).restore(state)


@pytest.mark.parametrize("teams", [1, 4])
def test_sums_that_overflow_on_the_way_are_refused_though_they_cancel_in_the_end(teams):
    # Workers 0 and 2 meet first, and so do 1 and 3.
    model = SparDL(4, 16, 0.25 / teams, teams=teams, sag="auto")
    gradients = np.zeros((4, 16), dtype=np.float32)
    gradients[:, 0] = [-3e38, 3e38, -3e38, 3e38]
    with pytest.raises(ValueError, match="sum over the workers overflows float32"):
        model.exchange(gradients)
    assert not model.residual.any()
    entries = Entries(np.array([1]), np.array([3e38], dtype=np.float32))
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="sum over the workers overflows float32"):
        merged([entries, entries], 2)


# Refusals


def test_the_number_of_teams_divides_the_workers():
    with pytest.raises(ValueError, match=r"teams must divide the 12 workers, got 5\. Allowed: 1, 2, 3, 4, 6, 12"):
        SparDL(12, 100, 0.1, teams=5)
    with pytest.raises(ValueError, match="teams must be a whole number >= 1, got 0"):
        SparDLOptions(teams=0)


def test_rsag_needs_a_power_of_two():
    with pytest.raises(ValueError, match=r"needs a power of two of teams, got 3\. Allowed: auto, bruck"):
        SparDL(12, 100, 0.1, teams=3, sag="recursive")
    gradients = gradients_of("normal", 12, 600, 0)
    for teams, like in ((3, "bruck"), (4, "recursive")):
        auto, other = (SparDL(12, 600, 0.1, teams=teams, sag=sag).exchange(gradients) for sag in ("auto", like))
        assert auto.schedule == other.schedule


def test_too_small_a_density_is_one_entry_a_block_or_an_error_as_released():
    assert SparDL(4, 100, 1e-9).k == 4
    with pytest.raises(ValueError, match=r"keeps 0 entries of a block of 25, .* needs 1: density must be >= 0.04"):
        SparDL(4, 100, 0.039, compat="released")
    assert SparDL(4, 100, 0.04, compat="released").k == 4
    with pytest.raises(ValueError, match=r"keeps 3 entries of a block of 50, .* needs 2|needs 4"):
        SparDL(8, 100, 0.06, teams=4, compat="released")
    model = SparDL(4, 100, 0.1, compat="released")
    model.density = 0.01
    with pytest.raises(ValueError, match=r"density must be >= 0\.04"):
        model.exchange(gradients_of("normal", 4, 100, 0))
