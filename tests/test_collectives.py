"""Collectives: results on real arrays, the bytes they move, their rounds, and that schedule and execution agree."""

import tracemalloc
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from simnet import collectives
from simnet.collectives import direct, doubling, registry, ring, tree, two_levels
from simnet.collectives.program import ChunkProgram, ChunkStep
from simnet.schedule import Schedule

RANKS = range(1, 18)
LENGTHS = (0, 1, 7, 40)

ALLREDUCE = {
    "ring": ring.all_reduce,
    "binomial": tree.all_reduce,
    "binomial, 3 segments": lambda P: tree.all_reduce(P, segments=3),
    "chain, 4 segments": lambda P: tree.all_reduce(P, arity=1, segments=4),
    "binary": lambda P: tree.all_reduce(P, arity=2),
    "ternary, 5 segments": lambda P: tree.all_reduce(P, arity=3, segments=5),
    "recursive doubling": doubling.all_reduce,
    "rabenseifner": doubling.rabenseifner,
    "parameter server 0": direct.through_server,
    "parameter server last": lambda P: direct.through_server(P, server=P - 1),
    "hierarchical 1": lambda P: two_levels.two_levels(P, 1),
    "hierarchical 3": lambda P: two_levels.two_levels(P, 3),
    "hierarchical 4": lambda P: two_levels.two_levels(P, 4),
    "hierarchical 99": lambda P: two_levels.two_levels(P, 99),
}
ALLGATHER = {
    "auto": doubling.shortest,
    "ring": ring.all_gather,
    "recursive doubling": doubling.all_gather,
    "bruck": doubling.bruck,
}
# Each takes (P, root).
ROOTED = {
    "binomial": {},
    "chain, 4 segments": {"arity": 1, "segments": 4},
    "binary": {"arity": 2},
    "ternary, 3 segments": {"arity": 3, "segments": 3},
}
EVERY = {
    **{f"allreduce {name}": build for name, build in ALLREDUCE.items()},
    **{f"allgather {name}": build for name, build in ALLGATHER.items()},
    "reduce-scatter ring": ring.reduce_scatter,
    "reduce-scatter halving": doubling.halving,
    "all-to-all": direct.all_to_all,
    "broadcast": lambda P: tree.broadcast(P, root=P // 2),
    "broadcast chain, 4 segments": lambda P: tree.broadcast(P, arity=1, segments=4),
    "reduce": lambda P: tree.reduce(P, root=P // 3),
}


def data(P, n, seed=0):
    """Whole numbers as floats: sums are exact in every order."""
    return [np.random.default_rng([seed, r]).integers(-99, 99, n).astype(np.float64) for r in range(P)]


def only_own(chunks):
    """Buffers of an all-gather: rank r has chunk r, and nothing useful anywhere else."""
    bounds = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])])
    buffers = []
    for r, chunk in enumerate(chunks):
        buffer = np.full(bounds[-1], np.nan)
        buffer[bounds[r] : bounds[r + 1]] = chunk
        buffers.append(buffer)
    return buffers, bounds


def message_log(program, buffers, **options):
    log = []
    program.run(buffers, observe=lambda *message: log.append(message), **options)
    return log


def as_messages(schedule):
    columns = schedule.columns()
    return list(zip(*(columns[name].tolist() for name in ("round", "src", "dst", "nbytes")), strict=True))


class TestResults:
    @each("P", RANKS)
    @pytest.mark.parametrize("name", ALLREDUCE)
    def test_allreduce(self, name, P):
        program = ALLREDUCE[name](P)
        for n in LENGTHS:
            buffers = data(P, n)
            before = [one.copy() for one in buffers]
            for result in program.run(buffers):
                np.testing.assert_array_equal(result, np.sum(before, axis=0))
            np.testing.assert_array_equal(buffers, before)
            for result in program.run(buffers, op=np.maximum):
                np.testing.assert_array_equal(result, np.max(before, axis=0))

    @each("P", RANKS)
    @pytest.mark.parametrize("name", ALLGATHER)
    def test_allgather(self, name, P):
        program = ALLGATHER[name](P)
        for sizes in ([4] * P, [0] * P, [(3 * r) % 5 for r in range(P)]):
            chunks = [np.full(size, float(r)) for r, size in enumerate(sizes)]
            buffers, bounds = only_own(chunks)
            for result in program.run(buffers, bounds=bounds):
                np.testing.assert_array_equal(result, np.concatenate(chunks))

    @each("P", RANKS)
    @pytest.mark.parametrize("build", [ring.reduce_scatter, doubling.halving])
    def test_reduce_scatter(self, build, P):
        program = build(P)
        for n in LENGTHS:
            buffers, bounds = data(P, n), program.bounds(n)
            total = np.sum(buffers, axis=0)
            for r, result in enumerate(program.run(buffers)):
                own = slice(bounds[r], bounds[r + 1])
                np.testing.assert_array_equal(result[own], total[own])

    @each("P", RANKS)
    def test_alltoall(self, P):
        sizes = np.random.default_rng(P).integers(0, 4, (P, P))
        bounds = np.concatenate([[0], np.cumsum(sizes.ravel())])
        pieces = [np.full(size, float(index)) for index, size in enumerate(sizes.ravel())]
        buffers = [np.full(bounds[-1], np.nan) for _ in range(P)]
        for i in range(P):
            for index in range(i * P, (i + 1) * P):
                buffers[i][bounds[index] : bounds[index + 1]] = pieces[index]
        results = direct.all_to_all(P).run(buffers, bounds=bounds)
        for j in range(P):
            for index in range(j, P * P, P):
                np.testing.assert_array_equal(results[j][bounds[index] : bounds[index + 1]], pieces[index])

    @each("P", RANKS)
    @pytest.mark.parametrize("name", ROOTED)
    def test_broadcast_and_reduce_at_every_root(self, name, P):
        options = ROOTED[name]
        buffers = data(P, 13)
        for root in range(P):
            for result in tree.broadcast(P, root, **options).run(buffers):
                np.testing.assert_array_equal(result, buffers[root])
            result = tree.reduce(P, root, **options).run(buffers)[root]
            np.testing.assert_array_equal(result, np.sum(buffers, axis=0))

    def test_matrices_along_the_first_axis(self):
        buffers = [np.arange(12).reshape(6, 2) + r for r in range(4)]
        for result in ring.all_reduce(4).run(buffers):
            np.testing.assert_array_equal(result, np.sum(buffers, axis=0))


class TestBytes:
    @each("P", RANKS)
    @pytest.mark.parametrize("name", EVERY)
    def test_schedule_moves_what_the_execution_moves(self, name, P):
        program = EVERY[name](P)
        for n, dtype in ((0, np.float64), (1, np.float32), (41, np.int16)):
            bounds = program.bounds(n)
            schedule = program.schedule(np.diff(bounds) * np.dtype(dtype).itemsize)
            executed = message_log(program, [np.ones(n, dtype)] * P)
            assert as_messages(schedule) == executed
            assert len(schedule.rounds) == program.n_rounds

    @each("P", RANKS)
    @pytest.mark.parametrize("name", EVERY)
    def test_what_is_sent_arrives(self, name, P):
        program = EVERY[name](P)
        schedule = program.schedule(np.arange(program.n_chunks))
        assert schedule.bytes_sent().sum() == schedule.bytes_received().sum()

    @pytest.mark.parametrize("name", EVERY)
    def test_one_rank_has_nothing_to_send(self, name):
        assert EVERY[name](1).schedule(8, gamma=1.0) == Schedule(1)

    @given(st.integers(1, 17), st.lists(st.integers(0, 1000), min_size=17, max_size=17))
    def test_allgatherv_brings_everyone_the_rest(self, P, sizes):
        sizes = np.array(sizes[:P], dtype=float)
        for build in (collectives.allgatherv_auto, collectives.allgatherv_ring, collectives.allgatherv_bruck):
            np.testing.assert_array_equal(build(sizes).bytes_received(), sizes.sum() - sizes)
        schedule = collectives.allgatherv_recursive_doubling(sizes)
        # With a fold the odd rank's chunk goes to the even one, and the rest comes back.
        np.testing.assert_array_equal(schedule.bytes_received(), sizes.sum() - sizes)


class TestPublishedCounts:
    """Rounds and volumes as the literature states them."""

    M = 1000.0

    @each("P", RANKS)
    def test_ring(self, P):
        allreduce = collectives.allreduce_ring(P, self.M)
        assert len(allreduce.rounds) == 2 * (P - 1)
        np.testing.assert_allclose(allreduce.bytes_sent(), 2 * (P - 1) / P * self.M)
        np.testing.assert_allclose(allreduce.bytes_received(), 2 * (P - 1) / P * self.M)
        scatter = collectives.reduce_scatter_ring(P, self.M)
        assert len(scatter.rounds) == P - 1
        np.testing.assert_allclose(scatter.bytes_sent(), (P - 1) / P * self.M)
        gather = collectives.allgather_ring(P, self.M)
        assert len(gather.rounds) == P - 1
        np.testing.assert_allclose(gather.bytes_sent(), (P - 1) * self.M)

    @each("P", [1, 2, 4, 8, 16])
    def test_powers_of_two(self, P):
        doubling = collectives.allreduce_recursive_doubling(P, self.M)
        assert len(doubling.rounds) == log2(P)
        np.testing.assert_allclose(doubling.bytes_sent(), self.M * log2(P))
        rabenseifner = collectives.allreduce_rabenseifner(P, self.M)
        assert len(rabenseifner.rounds) == 2 * log2(P)
        np.testing.assert_allclose(rabenseifner.bytes_sent(), 2 * (P - 1) / P * self.M)
        gather = collectives.allgather_recursive_doubling(P, self.M)
        assert [one.nbytes.max() for one in gather.rounds] == [self.M * 2**k for k in range(int(log2(P)))]
        np.testing.assert_allclose(gather.bytes_sent(), (P - 1) * self.M)

    @each("P", RANKS)
    def test_bruck(self, P):
        schedule = collectives.allgather_bruck(P, self.M)
        assert len(schedule.rounds) == ceil(log2(P))
        np.testing.assert_allclose(schedule.bytes_sent(), (P - 1) * self.M)

    @each("P", RANKS)
    def test_binomial(self, P):
        for root in range(P):
            broadcast = collectives.broadcast_binomial(P, self.M, root)
            reduction = collectives.reduce_binomial(P, self.M, root)
            assert len(broadcast.rounds) == len(reduction.rounds) == ceil(log2(P))
            received = np.full(P, self.M)
            received[root] = 0
            np.testing.assert_array_equal(broadcast.bytes_received(), received)
            np.testing.assert_array_equal(reduction.bytes_sent(), received)
        tree = collectives.allreduce_tree(P, self.M)
        assert len(tree.rounds) == 2 * ceil(log2(P))
        assert tree.nbytes == 2 * (P - 1) * self.M

    @each("P", RANKS)
    @each("arity", [1, 2, 3, 20])
    @each("segments", [1, 2, 7])
    def test_kary_and_segmented(self, P, arity, segments):
        depth = 0
        while sum(arity**level for level in range(depth + 1)) < P:
            depth += 1
        extra = segments - 1 if P > 1 else 0
        options = {"arity": arity, "segments": segments}
        broadcast = collectives.broadcast_tree(P, self.M, **options)
        allreduce = collectives.allreduce_tree(P, self.M, **options)
        assert len(broadcast.rounds) == depth + extra
        assert len(allreduce.rounds) == 2 * depth + extra
        np.testing.assert_allclose(broadcast.nbytes, (P - 1) * self.M)
        np.testing.assert_allclose(allreduce.nbytes, 2 * (P - 1) * self.M)
        for one in broadcast.rounds:
            assert np.bincount(one.src).max() <= arity
            np.testing.assert_allclose(one.nbytes, self.M / segments)

    @each("P", RANKS)
    def test_alltoall(self, P):
        schedule = collectives.alltoall_pairwise(P, self.M)
        assert len(schedule.rounds) == P - 1
        np.testing.assert_array_equal(schedule.bytes_sent(), (P - 1) * self.M)
        assert len({(s, d) for _, s, d, _ in as_messages(schedule)}) == P * (P - 1)

    @each("P", range(2, 18))
    def test_parameter_server(self, P):
        for server in range(P):
            schedule = collectives.parameter_server(P, self.M, server=server)
            assert [len(one) for one in schedule.rounds] == [P - 1, P - 1]
            others = np.full(P, self.M)
            others[server] = (P - 1) * self.M
            np.testing.assert_array_equal(schedule.bytes_sent(), others)
            np.testing.assert_array_equal(schedule.bytes_received(), others)

    @each("P", RANKS)
    @each("group_size", [1, 2, 3, 4, 8, 20])
    def test_hierarchical(self, P, group_size):
        schedule = collectives.hierarchical(P, self.M, group_size=group_size)
        leaders = len(range(0, P, group_size))
        between = collectives.allreduce_ring(leaders, self.M)
        np.testing.assert_allclose(schedule.nbytes, between.nbytes + 2 * (P - leaders) * self.M)
        columns = schedule.columns()
        crossing = columns["src"] // group_size != columns["dst"] // group_size
        assert not (columns["src"][crossing] % group_size).any()
        assert not (columns["dst"][crossing] % group_size).any()
        assert columns["nbytes"][crossing].sum() == pytest.approx(between.nbytes)


class TestNames:
    """What schedules say of themselves, for reports and for calibrations that count calls."""

    @pytest.mark.parametrize("one", registry.built_in(), ids=lambda one: one.name)
    def test_a_schedule_is_one_call_of_its_collective(self, one):
        # Trees of one segment are binomial, a server is no collective of a library, and `auto` is one of two.
        named = {"broadcast_tree": "binomial", "reduce_tree": "binomial"}.get(one.name, one.algorithm)
        for P in (6, 8):
            schedule = one.function(P, 480.0, **dict.fromkeys(one.needs, 2))
            algorithm = {6: "bruck", 8: "recursive_doubling"}[P] if one.algorithm == "auto" else named
            calls = [] if one.name == "parameter_server" else [(0, len(schedule.rounds), one.operation, algorithm)]
            assert [call[:4] for call in schedule.calls] == calls

    def test_calls_of_a_chain_begin_where_their_rounds_do_and_have_the_bytes_of_a_rank(self):
        ring, pairs = collectives.allreduce_ring(4, 8), collectives.alltoall_pairwise(4, 10)
        chain = ring.concat(pairs, ring)
        assert [(one.first, one.rounds, one.nbytes) for one in chain.calls] == [(0, 6, 8), (6, 3, 40), (9, 6, 8)]
        assert [one.nbytes for one in chain.scaled(0.5).calls] == [4, 20, 4]
        with pytest.raises(ValueError, match="factor must be >= 0 and finite"):
            chain.scaled(-0.5)

    @each(
        "build, phases",
        [
            (lambda: collectives.allreduce_ring(3, 9.0), ["reduce-scatter"] * 2 + ["all-gather"] * 2),
            (lambda: collectives.allreduce_tree(4, 9.0), ["reduce"] * 2 + ["broadcast"] * 2),
            # The first segment comes down while others still go up.
            (
                lambda: collectives.allreduce_tree(4, 9.0, segments=3),
                ["reduce"] * 2 + ["reduce and broadcast"] * 2 + ["broadcast"] * 2,
            ),
            (
                lambda: collectives.allreduce_tree(3, 9.0, arity=1, segments=2),
                ["reduce"] * 2 + ["reduce and broadcast"] + ["broadcast"] * 2,
            ),
            (lambda: collectives.reduce_tree(5, 9.0, segments=2), ["reduce"] * 4),
            (lambda: collectives.broadcast_tree(5, 9.0, arity=2), ["broadcast"] * 2),
            (
                lambda: collectives.hierarchical(4, 9.0, group_size=2),
                ["reduce", "reduce-scatter", "all-gather", "broadcast"],
            ),
            (lambda: collectives.allreduce_recursive_doubling(3, 9.0), ["fold", "recursive doubling", "unfold"]),
            (lambda: collectives.reduce_scatter_recursive_halving(3, 9.0), ["fold", "recursive halving", "unfold"]),
            (lambda: collectives.allreduce_rabenseifner(3, 9.0), ["fold", "reduce-scatter", "all-gather", "unfold"]),
            (lambda: collectives.parameter_server(3, 9.0), ["push", "pull"]),
        ],
    )
    def test_rounds_say_what_they_are_part_of_and_compute_nothing_without_gamma(self, build, phases):
        schedule = build()
        assert [one.phase for one in schedule.rounds] == phases
        assert not schedule.compute().any()


class TestSegments:
    @each("P", RANKS)
    @each("segments", [1, 2, 5])
    def test_follow_each_other_a_round_apart_and_turn_at_the_root(self, P, segments):
        levels, extra = ceil(log2(P)), segments - 1 if P > 1 else 0
        assert len(collectives.broadcast_tree(P, 60.0, segments=segments).rounds) == levels + extra
        assert len(collectives.reduce_tree(P, 60.0, segments=segments).rounds) == levels + extra
        assert len(collectives.allreduce_tree(P, 60.0, segments=segments).rounds) == 2 * levels + extra

    def test_programs_reduce_to_the_first_rank_unless_told(self):
        for build in (tree.reduce, tree.broadcast):
            assert as_messages(build(5).schedule(1.0)) == as_messages(build(5, 0).schedule(1.0))


class TestRelabelling:
    @each("P", RANKS)
    def test_another_root_is_a_turn_of_the_ranks(self, P):
        for root in range(P):
            turned = (np.arange(P) + root) % P
            expected = collectives.broadcast_tree(P, 10, arity=2, segments=2).embed(turned, P)
            assert collectives.broadcast_tree(P, 10, root, arity=2, segments=2) == expected

    def test_rounds_of_a_step_move_the_same_chunks_unless_told(self):
        sizes, step = np.arange(1.0, 4.0), ChunkStep([0], [1])
        assert [one.tolist() for one in (step.first, step.count, step.reduce)] == [[0], [1], [False]]
        assert (step.times, step.stride, step.phase) == (1, 0, "")
        for stride, moved in ((None, [2.0] * 4), (1, [2.0, 3.0, 1.0, 2.0]), (-1, [2.0, 1.0, 3.0, 2.0])):
            options = {} if stride is None else {"stride": stride}
            program = ChunkProgram(2, 3, [ChunkStep([0], [1], first=1, times=4, **options)])
            assert [float(one.nbytes[0]) for one in program.schedule(sizes).rounds] == moved


class TestGamma:
    """Work of reducing: seconds per byte, between the round that brought the bytes and the next."""

    @each("P", RANKS)
    @pytest.mark.parametrize("name", EVERY)
    def test_work_is_the_bytes_reduced(self, name, P):
        program = EVERY[name](P)
        sizes = np.arange(program.n_chunks) + 1.0
        schedule, plain = program.schedule(sizes, gamma=0.25), program.schedule(sizes)
        assert as_messages(schedule) == as_messages(plain)

        reducing = [step for step in program.steps for _ in range(step.times)]
        due = np.zeros(P)
        for index, one in enumerate(schedule.rounds):
            np.testing.assert_allclose(np.broadcast_to(one.compute, P), due)
            due = np.zeros(P)
            if index < len(reducing):
                flags = reducing[index].reduce
                due = 0.25 * np.bincount(one.dst[flags], weights=one.nbytes[flags], minlength=P)
        assert not due.any()

    def test_last_reduction_needs_no_message(self):
        last = collectives.allreduce_recursive_doubling(4, 8, gamma=0.5).rounds[-1]
        assert (len(last), last.compute) == (0, 4.0)

    def test_ring_still_is_a_handful_of_rounds(self):
        schedule = collectives.allreduce_ring(64, 64, gamma=0.5)
        assert len({id(one) for one in schedule.rounds}) <= 4
        assert [one.compute for one in schedule.rounds] == [0.0] + [0.5] * 63 + [0.0] * 62


class TestSize:
    def test_equal_rounds_are_one_object(self):
        schedule = collectives.allreduce_ring(1024, 1e8)
        assert (len(schedule.rounds), len({id(one) for one in schedule.rounds})) == (2046, 2)
        assert len({id(one) for one in collectives.allgatherv_ring(np.full(1024, 7.0)).rounds}) == 1

    def test_ring_of_16384_ranks(self):
        tracemalloc.start()
        schedule = collectives.allreduce_ring(16384, 1e8)
        sent = schedule.bytes_sent()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        np.testing.assert_allclose(sent, 2 * 16383 / 16384 * 1e8)
        assert schedule.n_messages == 2 * 16383 * 16384
        assert peak < 16 * 2**20


class TestRefusals:
    @pytest.mark.parametrize("one", registry.built_in(), ids=lambda one: one.name)
    @each(
        "n_ranks, nbytes, message",
        [
            (0, 1, "n_ranks must be a whole number >= 1, got 0"),
            (-3, 1, "n_ranks must be a whole number >= 1"),
            (2.0, 1, "n_ranks must be a whole number"),
            (True, 1, "n_ranks must be a whole number"),
            (4, -1, "finite and >= 0"),
            (4, np.nan, "finite and >= 0"),
            (4, np.inf, "finite and >= 0"),
            (4, [1, 2, 3, 4], "nbytes must be one number"),
        ],
    )
    def test_ranks_and_bytes(self, one, n_ranks, nbytes, message):
        with pytest.raises(ValueError, match=message):
            one.function(n_ranks, nbytes, **dict.fromkeys(one.needs, 2))

    @each("sizes", [[[1, 2, 3], [4, 5, 6]], [1, 2], [[]], 4])
    def test_bytes_of_pairs_that_are_no_square_matrix(self, sizes):
        with pytest.raises(ValueError, match="sizes must be a square matrix, got shape"):
            collectives.alltoallv_pairwise(sizes)

    def test_numbers_of_ranks_are_told_apart(self):
        assert [P for P in range(-2, 70) if registry.POWERS_OF_TWO.among(P)] == [1, 2, 4, 8, 16, 32, 64]
        assert [P for P in range(-2, 4) if registry.ANY.among(P)] == [1, 2, 3]

    def test_options(self):
        for call in (
            lambda: collectives.broadcast_binomial(4, 1, root=4),
            lambda: collectives.reduce_binomial(4, 1, root=-1),
            lambda: collectives.parameter_server(4, 1, server=4),
            lambda: collectives.parameter_server(4, 1, server=-1),
            lambda: collectives.allreduce_tree(4, 1, arity=0),
            lambda: collectives.allreduce_tree(4, 1, segments=0),
            lambda: collectives.hierarchical(4, 1, group_size=0),
            lambda: collectives.allreduce_ring(4, 1, gamma=-1.0),
            lambda: collectives.allreduce_ring(4, 1, gamma=np.nan),
        ):
            with pytest.raises(ValueError, match="must be"):
                call()

    def test_program_and_run(self):
        program = ring.all_reduce(2)
        with pytest.raises(ValueError, match="2 ranks need as many buffers, got 3"):
            program.run([np.ones(2)] * 3)
        with pytest.raises(ValueError, match="one shape and dtype"):
            program.run([np.ones(2), np.ones(3)])
        with pytest.raises(ValueError, match="one shape and dtype"):
            program.run([np.ones(2), np.ones(2, np.float32)])
        for bounds in ([0, 2], [0, 1, 3], [1, 1, 2], [0, 3, 2]):
            with pytest.raises(ValueError, match="bounds must rise from 0 to 2"):
                program.run([np.ones(2)] * 2, bounds=bounds)
        with pytest.raises(ValueError, match="one size or 2"):
            program.schedule([1, 2, 3])
        for count in (-1, 3):
            with pytest.raises(ValueError, match=r"chunks outside 0\.\.2"):
                ChunkProgram(2, 2, [ChunkStep([0], [1], count=count)])
        for counts in ([-1, 1], [1, 3]):
            with pytest.raises(ValueError, match=r"chunks outside 0\.\.2"):
                ChunkProgram(2, 2, [ChunkStep([0, 1], [1, 0], count=counts)])
        for src, dst in (([-1], [0]), ([0], [2]), ([0, 1], [1, -1]), ([0, -1], [1, 0]), ([2, 0], [0, 1])):
            with pytest.raises(ValueError, match=r"rank outside 0\.\.1"):
                ChunkProgram(2, 2, [ChunkStep(src, dst)])


@settings(max_examples=50)
@given(st.integers(2, 17), st.data())
def test_messages_of_a_round_read_what_was_there_before(P, data):
    """A ring of stores shifts the buffers, whatever the order of its messages."""
    order = np.array(data.draw(st.permutations(range(P))))
    program = ChunkProgram(P, 1, [ChunkStep(order, (order + 1) % P)])
    results = program.run([np.array([r]) for r in range(P)])
    assert [int(one[0]) for one in results] == [(r - 1) % P for r in range(P)]
