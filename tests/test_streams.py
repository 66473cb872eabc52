"""What workers compute beside an exchange: slices of the backward pass and kernels that queue, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import AG, Source, check_split, job_on
from simnet import topologies
from simnet.base.errors import StalledError
from simnet.base.jit_threshold import JitThreshold
from simnet.cost_models.costs.devices import (
    CollectiveSlowdown,
    DeviceProfile,
    KernelMethod,
    SideStreamSlowdown,
    load_device,
)
from simnet.network import Network, Stack, engine_selection
from simnet.network.program import Computing
from simnet.policies import Candidate, Fixed, Ramp
from simnet.schedule import Round, Schedule
from simnet.training.job.job import Compute, Overlap
from simnet.training.job.running import run_policy

LATENCY, BANDWIDTH = 1.0, 1e3


def pair(**options):
    """Return two hosts between which 1000 bytes take 2 s."""
    return Network(topologies.star(2, LATENCY, BANDWIDTH), **options)


def swap(compute=0.0):
    return Round([0, 1], [1, 0], 1000.0, compute)


def part(*merges, unpack=0.0):
    """Return a schedule of swaps, with work before each but the first, and work after the last."""
    rounds = [swap(), *(swap(merge) for merge in merges)]
    return Schedule(2, [*rounds, Round([], [], [], unpack)] if unpack else rounds)


def timed(parts, ready, select, network=None, deaths=None, **options):
    """Return the timing of parts that would be ready at times, with seconds to select them, on equal ranks."""
    given = [(one, when) for one, when in zip(parts, ready, strict=True)]
    computing = Computing(np.repeat(np.array(select, dtype=float)[:, np.newaxis], 2, axis=1), **options)
    return (network or pair()).time(given, computing=computing, messages=True, origin=0.0, deaths=deaths)


def test_selection_delays_the_slices_to_come():
    # Slices of 4 and 6 s, 1 s to select each: 0-4, select -5, 5-11, select -12; swaps 5-7 and 12-14.
    timing = timed([part(), part()], [4, 10], [1, 1])
    assert timing.messages.start == pytest.approx([5, 5, 12, 12])
    assert timing.finish == pytest.approx(14)
    assert timing.computed.done == pytest.approx([12, 12])
    assert timing.computed.slices == pytest.approx([10, 10])


def test_a_merge_waits_for_the_slice_that_runs_and_goes_before_the_selection_behind_it():
    # The first swap ends at 7, while the slice of 5-11 runs; the merge runs 11-11.5, then the selection until 12.5.
    timing = timed([part(0.5), part()], [4, 10], [1, 1])
    assert timing.messages.start[::2] == pytest.approx([5, 11.5, 13.5])
    assert timing.computed.begun["select"][:, 0] == pytest.approx([4, 11.5])
    assert timing.computed.done == pytest.approx([12.5, 12.5])
    assert timing.finish == pytest.approx(15.5)


def test_what_unpacks_a_bucket_queues_but_does_not_hold_up_the_messages_of_the_next():
    # The swap ends at 7; unpacking waits for the selection of 6-9 and runs 9-9.5, beside the second swap of 9-11.
    timing = timed([part(unpack=0.5), part(unpack=0.25), part()], [4, 5, 5], [1, 3, 1])
    assert timing.computed.begun["unpack"][:, 0] == pytest.approx([9, 11, np.nan], nan_ok=True)
    assert timing.messages.start[::2] == pytest.approx([5, 9, 11])
    # It is waited for at the end.
    late = timed([part(), part(unpack=7.0)], [1, 2], [0, 0])
    assert late.finish == pytest.approx(12)
    assert late.rank_compute == pytest.approx([7, 7])


def test_a_side_stream_slows_slices_and_kernels_while_both_run():
    # 4-6 both run: 1 s of selection at factor 2, 2 / 1.25 of the slice's 6 s; the rest of that alone, until 10.4.
    timing = timed([part(), part()], [4, 10], [1, 1], side_stream=(1.25, 2.0))
    assert timing.computed.ended["slice"][:, 0] == pytest.approx([4, 10.4])
    assert timing.computed.ended["select"][:, 0] == pytest.approx([6, 11.4])
    assert timing.messages.start[::2] == pytest.approx([6, 11.4])
    assert timing.computed.slices == pytest.approx([10.4, 10.4])


def test_slices_are_slower_while_messages_of_a_part_are_under_way():
    # The swap of 4-6 lets 2 / 1.6 of the slice's 6 s pass: the slice ends at 10.75.
    timing = timed([part(), part()], [4, 10], [0, 0], beside=[1.6, 1.0])
    assert timing.computed.ended["slice"][:, 0] == pytest.approx([4, 10.75])
    assert timing.messages.start[::2] == pytest.approx([4, 10.75])
    # Of the last part it is no matter: no slice is left.
    assert timed([part(), part()], [4, 10], [0, 0], beside=[1.0, 1.6]).finish == pytest.approx(12)


seconds = st.floats(0.01, 3.0) | st.just(0.0)


@st.composite
def exchanges(draw):
    """Parts with work between their rounds, when they would be ready, and seconds to select each."""
    count = draw(st.integers(1, 4))
    parts = [part(*draw(st.lists(seconds, max_size=2)), unpack=draw(seconds)) for _ in range(count)]
    ready = np.cumsum(draw(st.lists(seconds, min_size=count, max_size=count)))
    select = draw(st.lists(seconds, min_size=count, max_size=count))
    side = draw(st.none() | st.tuples(st.floats(1, 2), st.floats(1, 2)))
    return parts, ready, select, {"side_stream": side, "beside": draw(st.sampled_from([1.0, 1.5]))}


@settings(max_examples=40)
@given(given=exchanges())
def test_no_bucket_is_selected_before_it_is_computed_nor_sent_before_it_is_selected(given):
    parts, ready, select, options = given
    timing = timed(parts, ready, select, **options)
    computed = timing.computed
    first = np.cumsum([0, *(one.n_messages for one in parts)])[:-1]
    for number, (position, when) in enumerate(zip(first, ready, strict=True)):
        ended = computed.ended["slice"][number]
        assert (ended >= when - 1e-9).all()
        begun = computed.begun["select"][number]
        assert (np.isnan(begun) | (begun >= ended - 1e-9)).all()
        sent = timing.messages.sent[position : position + 2]
        assert (sent >= ended + select[number] - 1e-9).all()
    # On one stream nothing runs beside anything else.
    busy = [(computed.begun[what][:, 0], computed.ended[what][:, 0]) for what in computed.begun if what != "unpack"]
    begun, ended = (np.concatenate([one[end] for one in busy]) for end in (0, 1))
    own = timing.work.rank == 0
    begun, ended = np.append(begun, timing.work.begun[own]), np.append(ended, timing.work.ended[own])
    lasts = ended > begun
    if options["side_stream"] is None:
        order = np.argsort(begun[lasts], kind="stable")
        assert (begun[lasts][order][1:] >= ended[lasts][order][:-1] - 1e-9).all()
        work = sum(float(np.max(one.compute)) for schedule in parts for one in schedule.rounds)
        slices = computed.slices[0]
        assert (ended - begun)[lasts].sum() == pytest.approx(slices + sum(select) + work)


@settings(max_examples=15)
@given(given=exchanges())
def test_compiled_and_interpreted_streams_are_the_same_to_the_last_bit(given):
    parts, ready, select, options = given
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_selection, "loop_is_loaded", lambda: False)
        for many in (0, 10**9):
            patch.setattr(engine_selection, "_interpreted", JitThreshold(many, many, bool))
            network = pair(engine="fluid")
            told.append(timed(parts, ready, select, network, **options))
            assert network._timing._compiled == (not many)
    one, other = told
    assert np.array_equal(one.left, other.left)
    for what in one.computed.begun:
        assert np.array_equal(one.computed.begun[what], other.computed.begun[what], equal_nan=True)
        assert np.array_equal(one.computed.ended[what], other.computed.ended[what], equal_nan=True)
    assert all(np.array_equal(mine, yours) for mine, yours in zip(one.split, other.split, strict=True))


@pytest.mark.parametrize(
    ("ready", "computing", "message"),
    [
        ([2, 1], Computing(np.zeros((2, 2))), "no schedule may be ready before the one before it"),
        ([1, 2], Computing(np.zeros((1, 2))), r"of shape \(2, 2\)"),
        ([1, 2], Computing(np.zeros((2, 2)), beside=[1.0]), "a factor for each schedule or for all"),
    ],
)
def test_computing_that_does_not_fit_the_schedules_is_refused(ready, computing, message):
    with pytest.raises(ValueError, match=message):
        pair().time(list(zip([part(), part()], ready, strict=True)), computing=computing)


def test_one_selection_of_the_whole_gradient_goes_as_without_streams():
    """A single part, whatever works between its rounds, is gated once and needs no stream."""
    timing = timed([part(0.5, 0.25, unpack=1.0)], [4], [1], pair(engine="vectorised"))
    assert timing.finish == pytest.approx(4 + 1 + 3 * 2 + 0.75 + 1)


def before_messages(schedule, hosts):
    """Return a schedule whose ranks do software for 0.5 s before each round with messages."""
    return schedule.with_work({number: 0.5 for number, one in enumerate(schedule.rounds) if len(one)})


@pytest.mark.parametrize("engine", ["vectorised", "fluid"])
def test_software_before_rounds_is_told_apart_from_work(engine):
    # Software until 0.5, a swap, work 2.5-2.75, software -3.25, a swap, work 5.25-6.25.
    network = pair(engine=engine, software=before_messages)
    timing = network.time(part(0.25, unpack=1.0), messages=True)
    host = timing.software.of_ranks(timing.messages)
    for found, expected in ((timing.work, [2.5, 2.75, 5.25, 6.25]), (host, [0, 0.5, 2.75, 3.25])):
        own = found.rank == 0
        assert np.sort(np.append(found.begun[own], found.ended[own])) == pytest.approx(expected)
    assert np.array(timing.split) == pytest.approx(np.tile([[5.0], [1.25], [0.0]], 2))


def test_messages_after_kernels_wait_for_software_and_kernels_do_not():
    # Slices 0-4 and 5-11, selections 4-5 and 11.25-12.25. Software -5.5, a swap, work 11-11.25, software -11.75, a swap
    # until 13.75, software -14.25, a swap.
    timing = timed([part(0.25), part()], [4, 10], [1, 1], pair(software=before_messages))
    assert timing.messages.start[::2] == pytest.approx([5.5, 11.75, 14.25])
    assert timing.computed.done == pytest.approx([12.25, 12.25])
    assert timing.finish == pytest.approx(16.25)


# Jobs.


def profile(**streams):
    """Return a device that takes 1 ms for a selection and 0.5 ms for a scatter, whatever their length."""
    methods = {name: KernelMethod(0.0, 0.0, source="made up") for name in ("gather", "norm", "scan", "*")}
    methods |= {
        "topk": KernelMethod(1e-3, 0.0, source="made up"),
        "scatter": KernelMethod(2.5e-4, 0.0, source="made up"),
    }
    return DeviceProfile("toy", "none", "made up", 1e9, methods, **streams)


def overlapped(device, *, workers=2, stack="ideal", sizes=(100, 100), density=0.1):
    network = Network(topologies.star(workers, 1e-4, 1e9), stack=stack)
    one = job_on(
        network, workers, 2, source=Source(workers, sizes), overlap=Overlap(300.0, 0.5), compute=Compute(0.01),
        density=[Ramp(1, density, density)],
    )  # fmt: skip
    return replace(one, device=device)


def rows(result, iteration=0, worker=0):
    """Return what a worker did in an iteration, in ms since that began: (resource, what, from, to) in order of time."""
    spans = result.spans[(result.spans["iteration"] == iteration) & (result.spans["worker"] == worker)]
    begun = 1e3 * result.iterations["start_s"][iteration]
    return [
        (resource, what, pytest.approx(1e3 * start - begun), pytest.approx(1e3 * finish - begun))
        for resource, what, start, finish in spans.sort_values(["start_s", "resource"], kind="stable")[
            ["resource", "what", "start_s", "finish_s"]
        ].itertuples(index=False)
    ]


def test_a_job_of_two_buckets_by_hand():
    # Forward pass and half of the backward pass 7.5 ms, the other half 2.5 ms; 1.25 ms to select, an exchange of
    # 0.1 ms, and 0.25 ms to put together, for the first bucket between the slice that runs and the selection behind it.
    result = run_policy(overlapped(profile()), "p", Fixed(AG), timeline=2)
    check_split(result)
    for iteration in (0, 1):
        assert rows(result, iteration) == [
            ("compute", "compute", 0, 7.5),
            ("compute", "select", 7.5, 8.75),
            ("compute", "compute", 8.75, 11.25),
            ("network", "overlapped", 8.75, 8.85008),
            ("compute", "select", 11.25, 11.5),
            ("compute", "select", 11.5, 12.75),
            ("network", "communicate", 12.75, 12.85008),
            ("compute", "select", 12.85008, 13.10008),
        ]


def test_a_job_with_a_side_stream_by_hand():
    # The first selection and the second slice both run from 7.5 ms on, at half speed: until 10 ms, and 11.25 ms. The
    # first bucket is put together meanwhile, 10.1 to 10.6 ms, which slows the slice that is left.
    result = run_policy(
        overlapped(profile(side_stream=SideStreamSlowdown(2.0, 2.0, "made up"))), "p", Fixed(AG), timeline=1
    )
    check_split(result)
    assert rows(result) == [
        ("compute", "compute", 0, 7.5),
        ("compute", "compute", 7.5, 11.5),
        ("side stream", "select", 7.5, 10),
        ("network", "overlapped", 10, 10.10008),
        ("side stream", "select", 10.10008, 10.60008),
        ("side stream", "select", 11.5, 12.75),
        ("network", "communicate", 12.75, 12.85008),
        ("compute", "select", 12.85008, 13.10008),
    ]
    # The backward pass took 1.5 ms longer, which the exchange cost.
    assert result.workers["compute_s"].to_numpy() == pytest.approx(10e-3)


def test_copies_are_part_of_selecting_and_software_of_the_host_has_a_row_of_its_own():
    methods = {
        "*": KernelMethod(1e-3, 0, "made up"),
        "copy_out": KernelMethod(2e-3, 0, "made up"),
        "copy_in": KernelMethod(3e-3, 0, ""),
    }
    device = DeviceProfile("toy", "toy", "made up", 1e9, methods)
    slow = Stack("taken", before=0.25e-3, after=0.5e-3)
    one = job_on(Network(topologies.star(2, 1e-4, 1e9), stack=slow), 2, 1, source=Source(2), device=device)
    # Twenty entries of eight bytes take 0.1 ms and 160 ns.
    result = run_policy(one, "p", Fixed(AG), timeline=1)
    assert rows(result)[1:] == [
        ("compute", "select", 10, 14),
        ("host thread", "software", 14, 14.25),
        ("network", "communicate", 14, 14.35016),
        ("compute", "wait", 14.35016, 14.85016),
        ("host thread", "software", 14.35016, 14.85016),
        ("compute", "select", 14.85016, 15.85016),
    ]
    result = run_policy(one, "p", Fixed(Candidate("Ok-Topk", "oktopk", {"wire": "released"})), timeline=1)
    check_split(result)
    assert set(result.spans["resource"]) == {"compute", "host thread", "network"}
    # Out behind two scans and a gather of 3 ms; in, two scatters, and out again before a scan; in before all else.
    work = [one[2:] for one in rows(result) if one[:2] == ("compute", "select")][1:]
    assert work == [(11.850004, 16.850004), (19.200008, 27.200008), (28.900156, 34.900156)]
    paper = run_policy(one, "p", Fixed(Candidate("Ok-Topk", "oktopk", {"wire": "paper"})), timeline=1)
    copied = result.workers["select_s"] - paper.workers["select_s"]
    # Out and in around the split of the gradient, and around the gathering of the sums.
    assert copied.to_numpy() == pytest.approx(10e-3)


@pytest.mark.parametrize(
    ("stack", "scheme", "slower"), [("nccl", "dense", 0.25), ("tcp", "dense", 0.0), ("nccl", "topk", 0.0)]
)
def test_a_dense_collective_of_nccl_takes_a_share_of_the_device(stack, scheme, slower):
    fast = replace(load_device("ideal"), beside_collectives=CollectiveSlowdown(2.0, "made up"))
    one = overlapped(fast, stack=stack, sizes=(100_000, 100_000))
    result = run_policy(one, "p", Fixed(Candidate(scheme, scheme)), timeline=1)
    check_split(result)
    sent = result.messages[(result.messages["iteration"] == 0) & (result.messages["start_s"] < 9e-3)]
    under_way = sent["finish_s"].max() - sent["start_s"].min()
    assert under_way > 1e-4
    computing = result.spans[(result.spans["iteration"] == 0) & (result.spans["what"] == "compute")]
    took = (computing["finish_s"] - computing["start_s"]).groupby(computing["worker"]).sum() - 0.01
    assert took.to_numpy() == pytest.approx(under_way / 2 if slower else 0.0, abs=1e-9)
    assert result.workers["compute_s"].to_numpy() == pytest.approx(0.01)


@pytest.mark.parametrize("engine", ["vectorised", "fluid"])
def test_once_their_own_streams_are_done_ranks_communicate_or_compute_or_wait(engine):
    both = timed([part(), part(unpack=7.0)], [1, 2], [0, 0], pair(engine=engine))
    # Streams are done at 2, and the second swap at 5, before what unpacks it.
    assert (both.rank_communicate.tolist(), both.rank_compute.tolist()) == ([3, 3], [7, 7])
    # From 5 on rank 0 merges for 3 s, for which rank 1 waits; a message takes 1 s to leave, and 1 s more to arrive.
    one_way = Schedule(2, [Round([], [], [], [3.0, 0.0]), Round([0], [1], 1000.0)])
    timing = timed([one_way], [4], [1], pair(engine=engine))
    assert timing.rank_communicate.tolist() == [1, 2]
    assert timing.rank_compute.tolist() == [3, 0]
    assert timing.rank_wait.tolist() == [0, 3]


def test_who_waits_for_a_failed_worker_has_stopped_once_its_own_stream_is_done():
    # Rank 1 fails in the first swap; rank 0 computes and selects until 12.
    with pytest.raises(StalledError) as stalled:
        timed([part(0.5), part()], [4, 10], [1, 1], deaths={1: 5.5})
    assert stalled.value.elapsed == pytest.approx(12)
    with pytest.raises(StalledError) as stalled:
        timed([part(), part()], [4, 10], [1, 1], deaths={1: 5.5})
    assert stalled.value.elapsed == pytest.approx(12)


@pytest.mark.parametrize("patience", [None, 0.5])
@pytest.mark.parametrize("side", [None, SideStreamSlowdown(1.3, 2.0, "made up")])
def test_overlapped_jobs_whose_workers_fail_add_up(patience, side):
    one = replace(
        overlapped(profile(side_stream=side), workers=4), failures={1: 0.009, 3: 0.013}, patience=patience,
        compute=Compute(0.01, spread=0.3),
    )  # fmt: skip
    for scheme in ("topk", "gtopk", "oktopk", "dense"):
        result = run_policy(one, "p", Fixed(Candidate(scheme, scheme)), timeline=2)
        assert result.interruptions
        check_split(result)
        for _, own in result.spans.groupby(["iteration", "worker", "resource"]):
            own = own.sort_values("start_s")
            assert (own["start_s"].to_numpy()[1:] >= own["finish_s"].to_numpy()[:-1] - 1e-9).all()
