"""MSCCL algorithms: rings written out by hand and by rule against our own collectives, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.collectives import allgather_ring, allreduce_ring
from simnet.interchange.msccl import read_msccl
from simnet.network import Network
from simnet.topologies import star


def step(s, kind, cnt=1, depid=-1, deps=-1):
    return (
        f'<step s="{s}" type="{kind}" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="{cnt}" depid="{depid}" '
        f'deps="{deps}" hasdep="0"/>'
    )


def block(number, send, recv, steps, channel=0):
    return f'<tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">\n{"".join(steps)}\n</tb>'


def algorithm(gpus, chunks, coll="allreduce"):
    inner = "\n".join(
        f'<gpu id="{i}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="0">\n{"".join(blocks)}</gpu>'
        for i, blocks in enumerate(gpus)
    )
    return (
        f'<algo name="x" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}" '
        f'inplace="0">\n{inner}</algo>'
    )


def read(tmp_path, text, nbytes=1200.0):
    (tmp_path / "a.xml").write_text(text)
    return read_msccl(tmp_path / "a.xml", nbytes)


def ring(P):
    """The all-reduce ring as one thread block per GPU: send, P - 2 reduce-sends, a reduce-copy-send, copy-sends."""
    gpus = []
    for i in range(P):
        kinds = ["s", *["rrs"] * (P - 2), "rrcs", *["rcs"] * (P - 2), "r"]
        gpus.append([block(0, (i + 1) % P, (i - 1) % P, [step(s, kind) for s, kind in enumerate(kinds)])])
    return algorithm(gpus, P)


@given(P=st.integers(2, 9))
def test_ring_allreduce(tmp_path_factory, P):
    schedule = read(tmp_path_factory.mktemp("msccl"), ring(P), nbytes=P * 1e6)
    own = allreduce_ring(P, P * 1e6)
    assert len(schedule.rounds) == len(own.rounds) == 2 * (P - 1)
    assert schedule.bytes_sent().tolist() == own.bytes_sent().tolist()
    graph = star(P, 1e-5, 1e9)
    assert Network(graph).time(schedule).finish == pytest.approx(Network(graph).time(own).finish, rel=1e-12)


def test_ring_allgather_on_separate_thread_blocks(tmp_path):
    P = 3
    gpus = []
    for i in range(P):
        # One thread block receives, another sends and waits for what it passes on.
        receiving = block(0, -1, (i - 1) % P, [step(0, "r"), step(1, "r")])
        sending = block(1, (i + 1) % P, -1, [step(0, "s"), step(1, "s", depid=0, deps=0)])
        gpus.append([receiving, sending])
    schedule = read(tmp_path, algorithm(gpus, P, "allgather"))
    own = allgather_ring(P, 400)
    assert [sorted(zip(a.src, a.dst, a.nbytes, strict=True)) for a in schedule.rounds] == [
        sorted(zip(b.src, b.dst, b.nbytes, strict=True)) for b in own.rounds
    ]
    assert {one.phase for one in schedule.rounds} == {"allgather"}


def test_new_format_and_local_steps(tmp_path):
    text = """<algo name="x" nchunksperloop="2" ngpus="2">
    <gpu id="1"><tb id="3" send="-1" recv="0" chan="1"><op step="0" type="nop"/><op step="1" type="r" cnt="2"/>
    <op step="2" type="cpy" cnt="2"/></tb></gpu>
    <gpu id="0"><tb id="5" send="1" recv="-1" chan="1"><op step="0" type="s" cnt="2"/></tb></gpu></algo>"""
    (only,) = read(tmp_path, text, nbytes=10).rounds
    assert (only.src.tolist(), only.dst.tolist(), only.nbytes.tolist()) == ([0], [1], [10.0])


def pair(sender, receiver, more=""):
    return algorithm([[block(0, 1, -1, sender)], [block(0, -1, 0, receiver) + more]], 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<algorithm/>", "a.xml:1: algorithm: is not the outermost element expected; did you mean 'algo'?"),
        ('<algo ngpus="2"/>', "algo: has no attribute 'nchunksperloop'"),
        ('<algo ngpus="0" nchunksperloop="1"/>', "algo.ngpus: must be a whole number in 1..65536, got '0'"),
        ('<algo ngpus="x" nchunksperloop="1"/>', "algo.ngpus: must be a whole number"),
        ('<algo ngpus="2" nchunksperloop="1"><gpu id="0"/></algo>', "has 1 GPUs, but ngpus is 2"),
        ('<algo ngpus="2" nchunksperloop="1"><gpu id="0"/><gpu id="0"/></algo>', "gpu.id: GPU 0 stands twice"),
        ('<algo ngpus="2" nchunksperloop="1"><gpu id="2"/></algo>', "gpu.id: must be a whole number in 0..1"),
        (pair([step(0, "s")], [step(0, "rr")]), "step.type: 'rr' is no step"),
        (pair([step(1, "s")], [step(0, "r")]), "expected 0"),
        (pair([step(0, "r")], [step(0, "r")]), "a step 'r' needs a peer, but its thread block has send=1 and recv=-1"),
        (pair([step(0, "s")], []), "a.xml:4: step: GPU 1 has no receive for this send of GPU 0 on channel 0"),
        (pair([], [step(0, "r")]), "GPU 0 has no send for this receive of GPU 1"),
        (pair([step(0, "s", 2)], [step(0, "r", 1)]), "receives 1 chunks, but line 4 sends 2"),
        (pair([step(0, "s", 0)], [step(0, "r", 0)]), "step.cnt: must be a whole number in 1.."),
        (
            pair([step(0, "s", depid=4, deps=0)], [step(0, "r")]),
            "waits for step 0 of thread block 4, which GPU 0 has not",
        ),
        (algorithm([[block(0, 0, -1, [step(0, "s")])]], 1), "GPU 0 is its own peer"),
        (
            algorithm(
                [[block(0, 1, 1, [step(0, "r"), step(1, "s")])], [block(0, 0, 0, [step(0, "r"), step(1, "s")])]], 1
            ),
            "steps wait for each other in a circle",
        ),
    ],
)
def test_refusals(tmp_path, text, message):
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert message in str(refused.value)
    assert "a.xml:" in str(refused.value)


@pytest.mark.parametrize("nbytes", [-1, float("nan"), float("inf"), True, "1"])
def test_size(tmp_path, nbytes):
    with pytest.raises(ValueError, match="nbytes must be a finite number >= 0"):
        read(tmp_path, ring(2), nbytes)
