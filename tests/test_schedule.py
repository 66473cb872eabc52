"""Schedules: what the constructors refuse, byte counts, composition, repeated rounds, and the GOAL export."""

import re
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.collectives import allgather_ring
from simnet.schedule import Round, Schedule, merge_schedules


@st.composite
def schedules(draw, max_ranks=6):
    n_ranks = draw(st.integers(2, max_ranks))
    rounds = []
    for _ in range(draw(st.integers(0, 4))):
        pairs = draw(
            st.lists(
                st.tuples(st.integers(0, n_ranks - 1), st.integers(1, n_ranks - 1), st.integers(0, 1000)), max_size=6
            )
        )
        src = [s for s, _, _ in pairs]
        dst = [(s + step) % n_ranks for s, step, _ in pairs]
        seconds = st.just(0.0) | st.floats(0, 1)
        compute = draw(seconds | st.lists(seconds, min_size=n_ranks, max_size=n_ranks))
        rounds.append(Round(src, dst, [b for _, _, b in pairs], compute, draw(st.sampled_from(["", "reduce"]))))
    picks = draw(st.lists(st.integers(0, len(rounds) - 1), max_size=6)) if rounds else []
    return Schedule(n_ranks, [rounds[i] for i in picks])


def brute_bytes(schedule):
    sent, received = np.zeros(schedule.n_ranks), np.zeros(schedule.n_ranks)
    for one in schedule.rounds:
        for src, dst, nbytes in zip(one.src, one.dst, one.nbytes, strict=True):
            sent[src] += nbytes
            received[dst] += nbytes
    return sent, received


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([0, 1], [1], [1, 1]), "src and dst differ in length: 2 and 1"),
            (([0, 1], [1, 0], [1, 1, 1]), "src and nbytes differ in length: 2 and 3"),
            (([0, 1], [1, 0], [1, -2]), "nbytes must be finite and >= 0, but number 1 is -2"),
            (([0], [1], [np.nan]), "nbytes must be finite and >= 0, but number 0 is nan"),
            (([0], [1], [np.inf]), "nbytes must be finite and >= 0, but number 0 is inf"),
            (([0], [1], -3), "nbytes must be finite and >= 0, but number 0 is -3"),
            (([0, 2], [1, 2], [1, 1]), "rank 2 sends to itself in message 1"),
            (([0, -1], [1, 1], [1, 1]), "src must be >= 0, but number 1 is -1"),
            (([0], [-1], [1]), "dst must be >= 0, but number 0 is -1"),
            (([0.5], [1], [1]), "src must hold whole numbers, but number 0 is 0.5"),
            (([0, 0], [1, 1.5], [1, 1]), "dst must hold whole numbers, but number 1 is 1.5"),
            (([np.nan], [1], [1]), "src must hold whole numbers, but number 0 is nan"),
            (([[0]], [[1]], 1), "one-dimensional"),
            (([0], [1], [1], -1.0), "compute must be finite and >= 0, but is -1"),
            (([0], [1], [1], np.nan), "compute must be finite and >= 0, but is nan"),
            (([0], [1], [1], [0.0, np.inf]), "compute must be finite and >= 0, but number 1 is inf"),
            (([0], [1], [1], [[0.0, 1.0]]), "compute must be one-dimensional"),
        ],
    )
    def test_round(self, arguments, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            Round(*arguments)

    @pytest.mark.parametrize(("src", "dst"), [([0, 2], [1, 0]), ([1, 0], [0, 2])])
    def test_schedule(self, src, dst):
        with pytest.raises(ValueError, match="a round names rank 2, but there are 2 ranks"):
            Schedule(2, [Round(src, dst, 1)])
        with pytest.raises(ValueError, match="compute has 3 entries, but there are 2 ranks"):
            Schedule(2, [Round([0], [1], 1, compute=[1.0, 0.0, 1.0])])

    @pytest.mark.parametrize(
        ("ranks", "n_ranks", "message"),
        [
            ([0], 3, r"2 distinct ranks, got \[0\]"),
            ([1, 1], 3, r"distinct ranks, got \[1, 1\]"),
            ([0, 3], 3, r"0\.\.2, but number 1 is 3"),
            ([-1, 0], 3, r"0\.\.2, but number 0 is -1"),
        ],
    )
    def test_embed(self, ranks, n_ranks, message):
        with pytest.raises(ValueError, match=message):
            Schedule(2, [Round([0], [1], 1)]).embed(ranks, n_ranks)


@given(schedules())
def test_bytes_equal_a_sum_message_by_message(schedule):
    sent, received = brute_bytes(schedule)
    np.testing.assert_array_equal(schedule.bytes_sent(), sent)
    np.testing.assert_array_equal(schedule.bytes_received(), received)
    assert schedule.nbytes == sent.sum()
    assert schedule.n_messages == sum(len(one.src) for one in schedule.rounds)


@given(schedules(), st.floats(0, 1e6))
def test_scaled(schedule, factor):
    scaled = schedule.scaled(factor)
    np.testing.assert_allclose(scaled.columns()["nbytes"], schedule.columns()["nbytes"] * factor)
    for one, other in zip(schedule.rounds, scaled.rounds, strict=True):
        np.testing.assert_array_equal(one.compute, other.compute)
        assert one.phase == other.phase


@given(schedules(), st.data())
def test_concat_is_one_after_the_other(first, data):
    second = data.draw(schedules(max_ranks=first.n_ranks).filter(lambda s: s.n_ranks == first.n_ranks))
    both = first.concat(second)
    assert both.rounds == first.rounds + second.rounds
    np.testing.assert_array_equal(both.bytes_sent(), first.bytes_sent() + second.bytes_sent())
    assert both.concat(Schedule(first.n_ranks)) == both
    assert both.concat() == both
    assert first.concat(second, first, second) == both.concat(both)


@given(schedules(), st.data())
def test_embed_renames_ranks(schedule, data):
    n_ranks = schedule.n_ranks + data.draw(st.integers(0, 3))
    places = np.array(data.draw(st.permutations(range(n_ranks))))[: schedule.n_ranks]
    larger = schedule.embed(places, n_ranks)
    elsewhere = np.setdiff1d(np.arange(n_ranks), places)
    for before, after in (
        (schedule.bytes_sent(), larger.bytes_sent()),
        (schedule.bytes_received(), larger.bytes_received()),
    ):
        np.testing.assert_array_equal(after[places], before)
        assert not after[elsewhere].any()
    for one, moved in zip(schedule.rounds, larger.rounds, strict=True):
        work = np.broadcast_to(moved.compute, n_ranks)
        np.testing.assert_array_equal(work[places], np.broadcast_to(one.compute, schedule.n_ranks))
        assert not work[elsewhere].any()


@given(schedules(max_ranks=4), schedules(max_ranks=4), st.data())
def test_merged_schedules_run_side_by_side(first, second, data):
    n_ranks = first.n_ranks + second.n_ranks
    places = np.array(data.draw(st.permutations(range(n_ranks))))
    sets = [places[: first.n_ranks], places[first.n_ranks :]]
    both = merge_schedules([first, second], sets, n_ranks)
    longer = max(first, second, key=lambda one: len(one.rounds))
    phases = [one.phase for one in first.rounds + longer.rounds[len(first.rounds) :]]
    assert [one.phase for one in both.rounds] == phases
    for one, own in zip((first, second), sets, strict=True):
        np.testing.assert_array_equal(both.bytes_sent()[own], one.bytes_sent())
        np.testing.assert_array_equal(both.bytes_received()[own], one.bytes_received())
        np.testing.assert_allclose(both.compute()[own], one.compute())


@given(schedules())
def test_columns_hold_every_message_once(schedule):
    columns = schedule.columns()
    assert {len(column) for column in columns.values()} == {schedule.n_messages}
    for index, one in enumerate(schedule.rounds):
        rows = columns["round"] == index
        np.testing.assert_array_equal(columns["src"][rows], one.src)
        np.testing.assert_array_equal(columns["dst"][rows], one.dst)
        np.testing.assert_array_equal(columns["nbytes"][rows], one.nbytes)
        assert set(columns["phase"][rows].tolist()) <= {one.phase}


def test_work_is_added_before_rounds_and_after_the_last_one():
    ring = Round([0, 1, 2], [1, 2, 0], 8, compute=1e-3, phase="ring")
    schedule = Schedule(3, [ring] * 3)
    worked = schedule.with_work({0: 2e-3, 2: [0.0, 1.0, 0.0], 3: [0.5, 0.0, 0.0]})
    assert [np.broadcast_to(one.compute, 3).tolist() for one in worked.rounds] == [
        [3e-3] * 3, [1e-3] * 3, [1e-3, 1.001, 1e-3], [0.5, 0.0, 0.0],
    ]  # fmt: skip
    assert [(len(one), one.phase) for one in worked.rounds] == [(3, "ring")] * 3 + [(0, "")]
    np.testing.assert_array_equal(worked.bytes_sent(), schedule.bytes_sent())
    assert worked.rounds[1] is ring
    # Rounds keep the calls that they belong to.
    called = allgather_ring(3, 8.0)
    assert called.with_work({0: 1.0, 2: 1.0}).calls == called.calls
    assert len(called.calls) == 1
    # Who has nothing to do has no round for it.
    assert schedule.with_work({3: 0.0}) == schedule == schedule.with_work({})
    assert Schedule(2).with_work({0: 1.0}).rounds[0].compute == 1.0


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({4: 1.0}, r"work must stand before rounds 0..3, got \[4\]"),
        ({-1: 1.0}, r"work must stand before rounds 0..3, got \[-1\]"),
        ({0: -1.0}, "compute must be finite and >= 0, but is -1"),
        ({3: [1.0, 2.0]}, "compute"),
    ],
)
def test_work_elsewhere_is_refused(work, message):
    with pytest.raises(ValueError, match=message):
        Schedule(3, [Round([0], [1], 8)] * 3).with_work(work)


def test_equality_sees_every_column():
    base = Round([0], [1], [5.0], 0.5, "a")
    others = [
        Round([1], [0], [5.0], 0.5, "a"),
        Round([0], [2], [5.0], 0.5, "a"),
        Round([0], [1], [6.0], 0.5, "a"),
        Round([0], [1], [5.0], 0.6, "a"),
        Round([0], [1], [5.0], 0.5, "b"),
    ]
    assert base == Round([0], [1], [5.0], 0.5, "a")
    assert all(base != other for other in others)
    assert Schedule(2, [base]) != Schedule(3, [base])


class Goal:
    """What a GOAL file says: per rank its operations in order and what each requires."""

    def __init__(self, text):
        lines = iter(text.splitlines())
        self.n_ranks = int(re.fullmatch(r"num_ranks (\d+)", next(lines))[1])
        self.operations = [{} for _ in range(self.n_ranks)]
        self.requires = [defaultdict(set) for _ in range(self.n_ranks)]
        for rank in range(self.n_ranks):
            assert next(lines) == f"rank {rank} {{"
            while (line := next(lines)) != "}":
                if match := re.fullmatch(r"(\w+) requires (\w+)", line):
                    # Labels are declared before they are used.
                    assert {match[1], match[2]} <= self.operations[rank].keys()
                    self.requires[rank][match[1]].add(match[2])
                else:
                    label, operation = re.fullmatch(
                        r"(\w+): (calc \d+|send \d+b to \d+ tag \d+|recv \d+b from \d+ tag \d+)", line
                    ).groups()
                    assert label not in self.operations[rank]
                    self.operations[rank][label] = operation
        assert next(lines, None) is None

    def messages(self, rank, verb):
        """(other rank, tag, bytes) of every send or receive."""
        pattern = rf"{verb} (\d+)b (?:to|from) (\d+) tag (\d+)"
        found = [re.fullmatch(pattern, operation) for operation in self.operations[rank].values()]
        return [(int(match[2]), int(match[3]), int(match[1])) for match in found if match]

    def ancestors(self, rank, label):
        todo, seen = [label], set()
        while todo:
            new = self.requires[rank][todo.pop()] - seen
            seen |= new
            todo += new
        return seen


@given(schedule=schedules())
def test_goal_reparsed(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("goal") / "schedule.goal"
    schedule.to_goal(path)
    goal = Goal(path.read_text())
    assert goal.n_ranks == schedule.n_ranks

    sends = sorted((rank, *message) for rank in range(goal.n_ranks) for message in goal.messages(rank, "send"))
    receives = sorted(
        (peer, rank, tag, nbytes) for rank in range(goal.n_ranks) for peer, tag, nbytes in goal.messages(rank, "recv")
    )
    columns = schedule.columns()
    expected = sorted(
        zip(
            columns["src"].tolist(),
            columns["dst"].tolist(),
            range(schedule.n_messages),
            columns["nbytes"].tolist(),
            strict=True,
        )
    )
    # The tag of a message is its number: no receive can match another message.
    assert sends == receives == expected

    for rank in range(goal.n_ranks):
        in_round = defaultdict(set)
        for label, operation in goal.operations[rank].items():
            number = int(label[1:])
            index = number if label[0] == "c" else int(columns["round"][number])
            if operation.startswith("calc"):
                work = np.broadcast_to(schedule.rounds[index].compute, schedule.n_ranks)[rank]
                assert operation == f"calc {round(float(work) * 1e9)}"
            in_round[index].add(label)
        done = set()
        for index in sorted(in_round):
            for label in in_round[index]:
                # All of the rank's earlier rounds come first, and its messages of one round do not wait for each other.
                assert goal.ancestors(rank, label) - {f"c{index}"} == done
            done |= in_round[index]
