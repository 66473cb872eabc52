"""A send is over when it has left: programs of sends and receives against timelines by hand and by dependencies."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

import commands
import needs
from simnet.base.errors import InputError
from simnet.interchange import chakra
from simnet.interchange.chakra import read_chakra
from simnet.interchange.goal import read_goal
from simnet.network import Network
from simnet.topologies import star
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.traced import read_traced_step

COMP, SEND, RECV = 4, 5, 6


def node(number: int, kind: int, needs: list[int], peer: int = 0, nbytes: int = 0, micros: int = 0) -> bytes:
    end = "dst" if kind == SEND else "src"
    fields = chakra._varint_field(7, micros)
    if kind != COMP:
        for name, value in ((f"comm_{end}", peer), ("comm_size", nbytes), ("comm_tag", 0)):
            fields += chakra._encode_attribute(name, chakra._INT64, value)
    return chakra._encode_node(number, f"n{number}", kind, needs, fields)


def traces(folder: Path, *ranks: list[bytes]) -> Path:
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(chakra._encode_packet(chakra._encode_text(1, "0.0.4")) + b"".join(nodes))
    return folder / "t"


def goal(folder: Path, *ranks: str) -> Path:
    """Write GOAL text; operations of a rank are separated by semicolons."""
    bodies = "".join(f"rank {rank} {{\n{body.replace('; ', chr(10))}\n}}\n" for rank, body in enumerate(ranks))
    (folder / "a.goal").write_text(f"num_ranks {len(ranks)}\n{bodies}")
    return folder / "a.goal"


ALPHA, RATE = 1e-5, 1e9
FACING = "s: send 1000000b to {0}; r: recv 1000000b from {0}; r requires s"
LAST = "s0: recv 100000b from 1; s1: recv 100000b from 1"
MIDDLE = (
    "r0: recv 100000b from 0; s0: send 100000b to 2; s0 requires r0; r1: recv 100000b from 0; r1 requires s0; "
    "s1: send 100000b to 2; s1 requires r1"
)
# By hand, with 1e5 B = 0.1 ms: name, ranks, rounds and when each rank is done [s].
TIMELINES = {
    "facing": ((FACING.format(1), FACING.format(0)), 1, (1.01e-3, 1.01e-3)),
    # schedgen's pipelinedringdep, whose first rank sends all at once: segments leave one after another.
    "pipelined chain": (("send 100000b to 1; send 100000b to 1", MIDDLE, LAST), 3, (0.2e-3, 0.31e-3, 0.32e-3)),
    # Rank 1 takes the messages in the other order; the first has long been there.
    "received in another order": (
        ("a: send 1000000b to 1 tag 1; b: send 100000b to 1 tag 2; b requires a",
         "b: recv 100000b from 0 tag 2; a: recv 1000000b from 0 tag 1; a requires b"),
        2, (1.1e-3, 1.11e-3),
    ),
    # The receive is posted at once, and waited for after an answer.
    "posted beforehand": (
        ("l: recv 100000b from 1; s: send 100000b to 1", "r: recv 100000b from 0; s: send 100000b to 0; s requires r"),
        2, (0.22e-3, 0.21e-3),
    ),
    # schedgen's linear barrier: the second round begins when all have come, over a work of no length.
    "linear barrier": (
        ("d: calc 0; a: recv 1000b from 1; b: recv 1000b from 2; d requires a; d requires b; "
         "c: send 1000b to 1; c requires d; e: send 1000b to 2; e requires d",
         "send 1000b to 0; recv 1000b from 0", "send 1000b to 0; recv 1000b from 0"),
        2, (14e-6, 24e-6, 24e-6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMELINES)
def test_programs_take_as_long_as_by_hand(tmp_path: Path, name: str) -> None:
    ranks, rounds, expected = TIMELINES[name]
    schedule = read_goal(goal(tmp_path, *ranks))
    assert len(schedule.rounds) == rounds
    timing = Network(star(len(ranks), ALPHA, RATE)).time(schedule)
    assert timing.rank_finish == pytest.approx(expected, rel=1e-9)


def test_a_ring_as_schedgen_writes_it_and_as_msccl_is_converted(tmp_path: Path) -> None:
    """Six steps of four ranks; sends wait for the receive before only, or receives for the send before, too."""
    ring = []
    for rank in range(4):
        there, back = (rank + 1) % 4, (rank - 1) % 4
        steps = [f"s{one}: send 262144b to {there}; r{one}: recv 262144b from {back}" for one in range(6)]
        ring.append("; ".join([*steps, *(f"s{one} requires r{one - 1}" for one in range(1, 6))]))
    schedule = read_goal(goal(tmp_path, *ring))
    nodes = [
        [node(at, RECV if at % 2 else SEND, [at - 1] * (at > 0), (rank + (-1) ** at) % 4, 262144) for at in range(12)]
        for rank in range(4)
    ]
    prefix = traces(tmp_path, *nodes)
    assert read_chakra(prefix) == schedule
    assert (len(schedule.rounds), schedule.n_messages) == (6, 24)
    network = Network(star(4, 1e-6, 1e10))
    assert network.time(schedule).duration == pytest.approx(6 * (1e-6 + 262144 / 1e10), rel=1e-9)
    step = read_traced_step(prefix)
    assert PlacedStep(step.graph, network).time(step.seconds()).duration == pytest.approx(163.2864e-6, rel=1e-9)


def test_shared_programs_and_traces() -> None:
    cases, links = needs.shared() / "cases", ("--network", "star:latency=1us,bandwidth=10GB/s")
    found = commands.timed(cases / "traces" / "ring_of_four", *links)
    assert (found["rounds"], found["messages"], found["bytes_B"]) == (6, 24, 24 * 262144)
    assert found["time_s"] == pytest.approx(163.2864e-6, rel=1e-9)
    assert commands.did("step", cases / "traces" / "ring_of_four", *links).stdout.startswith("163 us a step")
    said = commands.did("step", cases / "traces" / "root_left_out", *links).stdout
    assert re.search(r"compute +- +- +100 +100\n", said)
    assert re.search(r"all_reduce +1 +1\.05 ", said)
    assert "passed over 4 dependencies on nodes outside of the trace" in " ".join(said.split())
    slower = ("--network", "star:latency=10us,bandwidth=8Gbit/s")
    assert commands.timed(cases / "send_then_receive.goal", *slower)["time_s"] == pytest.approx(1.01e-3, rel=1e-9)
    said = commands.refused("time", cases / "free_operation.goal", *slower)
    assert "free_operation.goal:7: does not wait for a (line 4)" in said
    assert "--loose accepts that" in said


def test_a_model_of_transformers_is_shown_and_asked_for_its_time() -> None:
    model = needs.shared() / "cases" / "models" / "hf_config.json"
    assert "a model of 1,235,814,400 parameters in 146 tensors" in " ".join(commands.did("show", model).stdout.split())
    said = commands.refused("choose", "--model", model, "--workers", 8)
    assert said.startswith("error: --model: job.compute: is missing: how long hf_config.json computes on V100")
    assert "base.yaml" not in said


RECEIVING = "r: recv 8b from {0}; s: send 8b to {0}; s requires r"


@pytest.mark.parametrize(
    ("ranks", "stack", "circle"),
    [
        (FACING, "openmpi", "r (line 4) of rank 0, s (line 3) of rank 0, r (line 9) of rank 1, s (line 8) of rank 1; on"
         " this stack a send of more than 65.5 kB waits"),
        (FACING, "gloo", "a send of more than 0 B waits"),
        (FACING.replace("1000000", "65536"), "openmpi", ""),
        (FACING, "tcp", ""),
        (RECEIVING, "ideal", "s (line 4) of rank 0, r (line 3) of rank 0, s (line 9) of rank 1, r (line 8) of rank 1"),
    ],
)  # fmt: skip
def test_only_deadlocks_are_refused_and_named(tmp_path: Path, ranks: str, stack: str, circle: str) -> None:
    path = goal(tmp_path, *(ranks.format(peer) for peer in (1, 0)))
    asked = ("time", path, "--stack", stack, "--bandwidth", "8Gbit/s", "--latency", "10us")
    if not circle:
        assert commands.did(*asked).stdout.startswith("a.goal: ")
        return
    said = commands.refused(*asked)
    assert "deadlock, ranks wait for each other in a circle: " in said
    assert circle in said


def test_traces_wait_for_receives_above_the_eager_limit(tmp_path: Path) -> None:
    prefix = traces(tmp_path, *([node(0, SEND, [], peer, 900), node(1, RECV, [0], peer, 900)] for peer in (1, 0)))
    assert len(read_traced_step(prefix, eager_limit=900).graph.calls) == 2
    why = "deadlock, nodes wait for each other in a circle: node 0 of rank 1 with node 1 of rank 0, node 0 of rank 0"
    with pytest.raises(InputError, match=re.escape(why)):
        read_traced_step(prefix, eager_limit=899)
    with pytest.raises(InputError, match=r"t\.0\.et: node 1: deadlock, .*: n1 \(node 1\) of rank 0, n0 \(node 0\) of"):
        read_chakra(prefix, eager_limit=899)


def test_dependencies_on_nodes_that_converters_leave_out(tmp_path: Path) -> None:
    notes: list[str] = []
    prefix = traces(
        tmp_path, [node(3, COMP, [1, 2], micros=5), node(4, SEND, [3, 1], 1, 8)], [node(9, RECV, [8], 0, 8)]
    )
    assert read_chakra(prefix, notes=notes).compute().tolist() == [5e-6, 0.0]
    said = "passed over 4 dependencies on nodes outside of the trace, as node 3 of t.0.et on node 1"
    assert [*notes, *read_traced_step(prefix).notes] == [said, said]


class _Program:
    """A random program of messages without bytes and of work, with what its dependencies say of its times."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.ranks = draw.randint(2, 4)
        self.ops: dict[int, list[tuple[str, int, int]]] = {rank: [] for rank in range(self.ranks)}
        for tag in range(draw.randint(1, 6)):
            src, dst = draw.sample(range(self.ranks), 2)
            self.ops[src].append(("send", dst, tag))
            self.ops[dst].append(("recv", src, tag))
        self.after: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        likely = (0.2, 0.1, 0.5)[seed % 3]
        for rank, ops in self.ops.items():
            ops += [("calc", draw.choice([0, 1_000_000, 3_000_000]), -1) for _ in range(draw.randint(0, 2))]
            draw.shuffle(ops)
            for at, one in enumerate(ops):
                # Work of a rank is done in turn, so that no order is left open.
                requires = [other for other in range(at) if one[0] == ops[other][0] == "calc"]
                starts = []
                for other in range(at):
                    chance = draw.random()
                    near = 0.9 if seed % 3 == 1 and other == at - 1 else likely
                    requires += [other] * (chance < near)
                    starts += [other] * (near <= chance < near + 0.05)
                self.after[rank, at] = requires, starts

    def write(self, folder: Path) -> Path:
        ranks = []
        for rank, ops in self.ops.items():
            text = [
                f"o{at}: calc {peer}" if kind == "calc" else f"o{at}: {kind} 0b {way} {peer} tag {tag}"
                for at, (kind, peer, tag) in enumerate(ops)
                for way in ("to" if kind == "send" else "from",)
            ]
            for at in range(len(ops)):
                requires, starts = self.after[rank, at]
                text += [f"o{at} requires o{one}" for one in requires] + [f"o{at} irequires o{one}" for one in starts]
            ranks.append("; ".join(text))
        return goal(folder, *ranks)

    def finish(self, rendezvous: bool) -> list[float] | None:
        """Return when each rank is done [s], over a latency of 1 ms; None if some operation never starts."""
        begun: dict[tuple[int, int], float] = {}
        ended: dict[tuple[int, int], float] = {}
        other = {
            (rank, at): (peer, self.ops[peer].index(("recv" if kind == "send" else "send", rank, tag)))
            for rank, ops in self.ops.items()
            for at, (kind, peer, tag) in enumerate(ops)
            if kind != "calc"
        }
        before = -1
        while before != (before := len(begun) + len(ended)):
            for (rank, at), (requires, starts) in self.after.items():
                kind, work, _ = self.ops[rank][at]
                op, needed, started = (rank, at), [(rank, one) for one in requires], [(rank, one) for one in starts]
                if op not in begun and all(one in ended for one in needed) and all(one in begun for one in started):
                    begun[op] = max([0.0, *(ended[one] for one in needed), *(begun[one] for one in started)])
                if op not in begun or op in ended:
                    continue
                if kind == "calc":
                    ended[op] = begun[op] + work * 1e-9
                elif (there := begun.get(other[op], math.inf)) < math.inf or (kind == "send" and not rendezvous):
                    leaves = max(begun[op], there) if rendezvous else begun[op if kind == "send" else other[op]]
                    ended[op] = leaves if kind == "send" else max(begun[op], leaves + 1e-3)
        if len(ended) < len(self.after):
            return None
        return [max((ended[rank, at] for at in range(len(ops))), default=0.0) for rank, ops in self.ops.items()]


def test_random_programs_take_as_long_as_their_dependencies_say(tmp_path: Path) -> None:
    exact, bounds, refused = 0, 0, 0
    for seed in [*range(500), 2347]:
        program = _Program(seed)
        path, expected = program.write(tmp_path), program.finish(rendezvous=False)
        if program.finish(rendezvous=True) is None:
            with pytest.raises(InputError, match="deadlock"):
                read_goal(path, strict=False, eager_limit=-1)
        else:
            read_goal(path, strict=False, eager_limit=-1)
        if expected is None:
            with pytest.raises(InputError, match="deadlock"):
                read_goal(path, strict=False)
            refused += 1
            continue
        network = Network(star(program.ranks, 1e-3, 1e9))
        found = network.time(read_goal(path, strict=False)).rank_finish
        assert (found >= np.array(expected) - 1e-12).all(), seed
        bounds += 1
        try:
            strict = read_goal(path)
        except InputError:
            continue
        assert network.time(strict).rank_finish == pytest.approx(expected, abs=1e-12), seed
        exact += 1
    assert min(exact, bounds, refused) > 40
