"""Measuring: what is planned, how times are taken and summed up, what is written, and ranks of every kind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import killing
import needs
from commands import did, refused, timed
from rank_threads import Threads, run_ranks
from simnet.base.errors import InputError
from simnet.cluster.measure import benchmarks, facts, running, session
from simnet.cluster.measure.plan import COLLECTIVES, ELEMENT, Wanted, plan_curves
from simnet.cluster.measure.running import expected_result, measure_curves, operations_per_call, rank_content
from simnet.cluster.measure.session import Session, run_session
from simnet.cost_models.calibration.readers import read_measurements

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "calibrate"

SMALL = Wanted(smallest=64, largest=1024, factor=4)


# What is planned


@given(st.integers(2, 9), st.sampled_from(COLLECTIVES), st.floats(4, 1e6), st.floats(1.2, 64))
def test_sizes_are_of_whole_elements_and_near_those_that_are_wanted(ranks, collective, smallest, factor):
    wanted = Wanted([collective], smallest, 1e7, factor, [ranks], "none")
    (curve,) = plan_curves(wanted, [0] * ranks)
    assert all(one % ELEMENT == 0 for one in curve.sizes)
    assert list(curve.sizes) == sorted(set(curve.sizes))
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        assert all(one % (ELEMENT * ranks) == 0 for one in curve.sizes)
    assert abs(curve.sizes[-1] - 1e7) <= 1e7 * (factor - 1) / factor + ELEMENT * ranks


@pytest.mark.parametrize(
    ("options", "node_of", "says"),
    [
        ({"ranks": [3]}, [0] * 4, "allowed: 2, 4"),
        ({"smallest": 1}, [0, 0], "--sizes: must begin at 4 B"),
        ({"largest": 64}, [0, 0], "--sizes: must begin"),
        ({"factor": 1.0}, [0, 0], "--sizes: must grow"),
        ({"largest": 2**33}, [0, 0], "at most 8.59 GB"),
        # Only what goes in and what comes out would be 6 GiB.
        ({"smallest": 3 * 2**30, "largest": 3 * 2**30}, [0, 0], "at most 8.59 GB"),
        ({"smallest": 4, "largest": 2**30, "factor": 1.01}, [0, 0], "--sizes: are more than 1,000"),
        ({}, [0], "has one rank"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, node_of, says):
    with pytest.raises(InputError, match=says):
        plan_curves(Wanted(**options), node_of)


# Whether results are right


@pytest.mark.parametrize("ranks", [2, 3, 7, 126, 127, 128, 300])
def test_what_is_due_is_what_the_contents_of_all_ranks_make(ranks):
    part = 11
    length = part * ranks
    every = np.stack([rank_content(one, length) for one in range(ranks)])
    shares = np.stack([rank_content(one, part) for one in range(ranks)])
    for place in {0, 1, ranks - 1}:
        own = slice(place * part, (place + 1) * part)
        due = {
            "all_reduce": every.sum(axis=0, dtype=float),
            "reduce_scatter": every.sum(axis=0, dtype=float)[own],
            "all_gather": shares.ravel(),
            "alltoall": every[:, own].ravel(),
            "broadcast": every[0],
            "sendrecv": every[place - 1],
        }
        for name, right in due.items():
            found = expected_result(name, place, ranks, length)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, right, err_msg=name)


# How times are taken


class Clocked(Threads):
    """Ranks whose calls take known times on clocks of their own, the slower the later the rank."""

    local = threading.local()

    @classmethod
    def now(cls):
        return getattr(cls.local, "now", 0.0)

    def collective(self, name, out, into, group, root=0):
        super().collective(name, out, into, group, root)
        # A barrier has one element.
        if len(out) > 1:
            self.local.now = self.now() + 1e-3 * (1 + self.rank)

    def exchange(self, sends, receives):
        super().exchange(sends, receives)
        self.local.now = self.now() + 1e-4 * len(receives)


def measure_with(kind, ranks, wanted, monkeypatch=None, seconds=3.0):
    if monkeypatch is not None:
        monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=kind.now))
    planned = plan_curves(wanted, [0] * ranks)

    def work(one):
        found = measure_curves(one, planned, seconds, lambda text: None)
        own = {
            curve.group.ranks for curve in planned if one.rank in curve.group.ranks and "p2p" not in curve.collective
        }
        assert sorted(one.released) == sorted(own)
        return found

    return run_ranks(ranks, work, kind)


def test_the_slowest_rank_counts_and_messages_are_counted_singly(monkeypatch):
    every = measure_with(Clocked, 3, SMALL, monkeypatch)
    table = pd.DataFrame(every[0].rows)
    for one in every:
        pd.testing.assert_frame_equal(pd.DataFrame(one.rows), table)
    slowest = table[~table["collective"].isin(["sendrecv", "p2p_latency", "p2p_bw"])]
    np.testing.assert_allclose(slowest["seconds"], 1e-3 * slowest["ranks"])
    np.testing.assert_allclose(slowest["seconds_max"], slowest["seconds_min"])
    by = table.set_index("collective")["seconds"]
    np.testing.assert_allclose(by["sendrecv"], 1e-4)
    # Each rank receives once in a round trip, which is two messages; of 64 messages one way, the receiver gets all.
    np.testing.assert_allclose(by["p2p_latency"], 0.5e-4)
    np.testing.assert_allclose(by["p2p_bw"], 1e-4)
    assert operations_per_call("p2p_bw", 1024) == 64
    assert (table["wrong"] == 0).all()
    assert set(table["collective"]) == {*COLLECTIVES, "p2p_latency", "p2p_bw"}
    assert sorted(set(table["ranks"])) == [2, 3]


def test_wrong_results_are_counted():
    class Wrong(Threads):
        def collective(self, name, out, into, group, root=0):
            super().collective(name, out, into, group, root)
            if name == "alltoall" and self.rank == 1:
                into[3] += 1

    (found, *_) = measure_with(Wrong, 2, SMALL, seconds=0.5)
    assert {row["collective"]: row["wrong"] for row in found.rows if row["wrong"]} == {"alltoall": 1}


def test_a_collective_that_the_library_lacks_is_left_out(monkeypatch):
    class Lacking(Clocked):
        def collective(self, name, out, into, group, root=0):
            if name == "alltoall":
                raise RuntimeError("Backend does not support alltoall\nframe #0")
            super().collective(name, out, into, group, root)

    for found in measure_with(Lacking, 2, SMALL, monkeypatch):
        assert "alltoall" not in {row["collective"] for row in found.rows}
        assert found.left_out == ["alltoall, 2 ranks on 1 node: Backend does not support alltoall"]


def test_a_rank_that_is_lost_ends_the_others():
    class Lost(Threads):
        calls = 0

        def collective(self, name, out, into, group, root=0):
            self.calls += 1
            if self.rank == 2 and self.calls == 40:
                self.abort()
                raise SystemExit
            super().collective(name, out, into, group, root)

    said = []

    def work(one):
        try:
            measure_curves(one, plan_curves(SMALL, [0] * 3), 3.0, lambda text: None)
        except InputError as error:
            said.append(str(error))

    with pytest.raises(SystemExit):
        run_ranks(3, work, Lost)
    assert len(said) == 2
    assert all("the job broke off" in one for one in said)


# What is written


def test_settings_of_libraries_are_kept_and_secrets_are_not():
    found = facts.library_settings(
        {
            "NCCL_ALGO": "Ring",
            "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
            "NCCL_SOCKET_IFNAME": "^lo,docker",
            "NCCL_COMM_ID": "10.0.0.1:4000",
            "NCCL_DEBUG_FILE": "/home/ann/log",
            "GLOO_PEER": "node17.cluster.org",
            "UCX_X": "fe80::1ff:fe23",
            "UCX_API_KEY": "abc",
            **{f"NCCL_{word}": "abc" for word in ("TOKEN", "SECRET", "PASSWORD", "AUTH", "USER")},
            "FI_TEXT": "a\nb",
            "AWS_SECRET_ACCESS_KEY": "abc",
            "HOSTNAME": "node17",
            "MPICH_MASTER": "gpu-node-17",
            "I_MPI_NODES": "swan",
            "UCX_PEERS": "Goose4-ib0",
            "UCX_TLS": "rc,cuda",
        },
        ["goose4"],
    )
    assert found == {
        "FI_TEXT": "(set)",
        "GLOO_PEER": "(set)",
        "NCCL_ALGO": "Ring",
        "NCCL_COMM_ID": "(set)",
        "NCCL_DEBUG_FILE": "(set)",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "^lo,docker",
        "UCX_API_KEY": "(set)",
        **{f"NCCL_{word}": "(set)" for word in ("TOKEN", "SECRET", "PASSWORD", "AUTH", "USER")},
        "UCX_X": "(set)",
        "MPICH_MASTER": "(set)",
        "I_MPI_NODES": "(set)",
        "UCX_PEERS": "(set)",
        "UCX_TLS": "rc,cuda",
    }


class Node:
    """A node as the system describes it, in a folder."""

    def __init__(self, root):
        self.root = root

    def ethernet(self, name, speed="", slot="0000:01:00.0", state="up"):
        folder = self._card(f"net/{name}", slot, operstate=state)
        if speed:
            (folder / "speed").write_text(f"{speed}\n")
        return folder

    def infiniband(
        self, name, rate="400 Gb/sec (4X NDR)", slot="0000:02:00.0", port=1, kind="InfiniBand", state="4: ACTIVE"
    ):
        self._card(f"infiniband/{name}", slot)
        folder = self.root / "infiniband" / name / "ports" / str(port)
        folder.mkdir(parents=True)
        for file, text in (("state", state), ("rate", rate), ("link_layer", kind)):
            (folder / file).write_text(f"{text}\n")

    def _card(self, folder, slot, **files):
        made = self.root / folder
        made.mkdir(parents=True, exist_ok=True)
        (self.root / slot).mkdir(exist_ok=True)
        if slot and not (made / "device").exists():
            (made / "device").symlink_to(self.root / slot)
        for name, text in files.items():
            (made / name).write_text(f"{text}\n")
        return made


@needs.posix
def test_network_cards_that_are_up(tmp_path):
    node = Node(tmp_path)
    assert facts.describe_cards(tmp_path) == []
    node.ethernet("eth0", "10000")
    node.ethernet("eth1", "-1", state="down")
    (node.ethernet("docker0", "10000") / "device").unlink()
    assert facts.describe_cards(tmp_path) == ["eth0 10000 Mbit/s Ethernet"]
    node.infiniband("mlx5_0")
    node.infiniband("mlx5_1", state="1: DOWN")
    assert facts.describe_cards(tmp_path) == ["mlx5_0:1 400 Gb/sec InfiniBand"]


@needs.posix
@pytest.mark.parametrize(
    ("hca", "count"),
    [
        ("", 4),
        ("mlx5_1,mlx5_2", 2),
        ("=mlx5_1:1,mlx5_2:1", 2),
        ("=mlx5_1:1,mlx5_2:2", 0),
        ("mlx5", 0),
        ("=mlx5_8", 1),
        ("^mlx5_1", 3),
        ("^=mlx5_1,mlx5_2,mlx5_3,mlx5_4,nothing", 1),
        ("mlx5_1,bond0", 0),
        ("mlx5_1:x", 0),
    ],
)
def test_cards_of_infiniband_are_those_that_are_fastest_or_named(tmp_path, hca, count):
    """Four cards of 400 Gbit/s, one of 100 for storage, and one for management."""
    node = Node(tmp_path)
    for number in (1, 2, 3, 4):
        node.infiniband(f"mlx5_{number}", slot=f"0000:{number}2:00.0")
    node.infiniband("mlx5_8", rate="100 Gb/sec (4X EDR)", slot="0000:82:00.0")
    node.ethernet("eth0", "1000")
    assert facts.count_cards("nccl", {"NCCL_IB_HCA": hca}, tmp_path) == count
    assert facts.count_cards("nccl", {"NCCL_IB_HCA": hca, "NCCL_IB_DISABLE": "1"}, tmp_path) == 1
    assert facts.count_cards("nccl", {"NCCL_NET": "AWS Libfabric"}, tmp_path) == 0
    assert facts.count_cards("mpich", {}, tmp_path) == 0
    assert facts.count_cards("gloo", {}, tmp_path) == 1


@needs.posix
def test_cards_of_ethernet_are_those_that_are_fastest_or_named(tmp_path):
    def nccl(names=""):
        return facts.count_cards("nccl", {"NCCL_SOCKET_IFNAME": names}, tmp_path)

    def gloo(names=""):
        return facts.count_cards("gloo", {"GLOO_SOCKET_IFNAME": names}, tmp_path)

    node = Node(tmp_path)
    assert nccl() == gloo() == 0
    node.ethernet("eth0", "1000")
    node.ethernet("ens1", "25000", slot="0000:05:00.0")
    node.ethernet("ens2", "25000", slot="0000:06:00.0")
    assert (nccl(), nccl("^lo,docker"), nccl("ens"), nccl("=ens2"), nccl("e"), nccl("bond0")) == (2, 2, 2, 1, 0, 0)
    assert (gloo(), gloo("ens1"), gloo("ens"), gloo("ens1,ens2"), gloo("lo")) == (0, 1, 0, 0, 0)
    (node.ethernet("ens2") / "master").mkdir()
    assert (nccl(), nccl("=ens1")) == (0, 1)
    node.ethernet("virtual", slot="0000:07:00.0")
    assert (nccl("=virtual"), nccl("=virtual,ens1"), nccl()) == (1, 0, 0)


def joined(monkeypatch, tmp_path, ranks, of_node, **changes):
    """Carry out a session at ranks that are threads; returns what each said, and what the errors were."""
    of_rank = {}
    monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=Clocked.now))
    monkeypatch.setattr(session, "connect_ranks", lambda backend, patience: of_rank[threading.get_ident()])
    monkeypatch.setattr(facts.socket, "gethostname", lambda: of_node[of_rank[threading.get_ident()].rank])
    wanted = Wanted(["all_reduce", "broadcast"], 64, 256, 2)
    asked = Session(**{"out": tmp_path / "m.csv", "backend": "gloo", "wanted": wanted, "seconds": 9.0} | changes)
    said, errors = [], {}

    def work(one):
        of_rank[threading.get_ident()] = one
        try:
            return run_session(asked, said.append)
        except (InputError, SystemExit) as error:
            errors[one.rank] = error
            return None

    return run_ranks(ranks, work, Clocked), errors, said


def test_the_table_is_read_back_with_nodes_as_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("FI_BESIDE", "goose-ib0")
    lines, errors, said = joined(monkeypatch, tmp_path, 4, ["swan", "swan", "goose.pond.org", "goose.pond.org"])
    assert not errors
    assert lines[1:] == [[]] * 3
    assert lines[0] == [f"Written: {tmp_path / 'm.csv'}, 30 rows"]
    text = (tmp_path / "m.csv").read_text()
    assert "swan" not in text
    assert "goose" not in text
    assert "# ranks: 4 on 2 nodes, 2 on each\n" in text
    assert "# environment NCCL_ALGO: Ring\n" in text
    assert "# environment FI_BESIDE: (set)\n" in text
    found = read_measurements(tmp_path / "m.csv")
    assert found.problems == ()
    rows = found.rows
    shapes = set(rows[["collective", "ranks", "nodes", "ranks_per_node"]].itertuples(index=False, name=None))
    assert shapes == {
        *((name, 2, 1, 2) for name in ("all_reduce", "broadcast", "p2p_latency", "p2p_bw")),
        *((name, 2, 2, 1) for name in ("all_reduce", "broadcast", "p2p_latency", "p2p_bw")),
        *((name, 4, 2, 2) for name in ("all_reduce", "broadcast")),
    }
    assert len(rows) == 10 * 3
    assert (rows["seconds_min"] <= rows["seconds_p10"]).all()
    assert (rows["seconds_p10"] <= rows["seconds"]).all()
    assert (rows["seconds"] <= rows["seconds_p90"]).all()
    assert set(rows["tool"]) == {"gloo"}
    assert said[0] == "10 curves with 30 sizes, ranks 4 on 2 nodes, 2 on each: at most 9 s"
    assert len(said) == 11


def test_a_device_profile_is_measured_beside_the_table_or_neither_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "measure_device", lambda name, library, largest, budget: name)
    monkeypatch.setattr(session, "profile_yaml", lambda profile: f"name: {profile}\n")
    joined(monkeypatch, tmp_path, 2, ["a"] * 2, device=tmp_path / "d.yaml")
    assert (tmp_path / "d.yaml").read_text() == "name: d\n"

    def fails(*arguments, **options):
        raise InputError("torch finds no GPU")

    monkeypatch.setattr(session, "measure_device", fails)
    _, errors, _ = joined(monkeypatch, tmp_path, 2, ["a"] * 2, out=tmp_path / "n.csv", device=tmp_path / "e.yaml")
    assert "no GPU" in str(errors[0])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.yaml", "m.csv"]


# nccl-tests and OSU

NCCL = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1   100.00   10.49   10.49      0   100.00   10.49   10.49      0
"""
OSU = "# OSU MPI Allreduce Latency Test v7.5\n# Size       Avg Latency(us)\n8             2.50\n16            2.75\n"


def programs(folder, monkeypatch, **texts):
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def printing(text):
    return f"echo ran with $RANKS as $* >&2\ncat <<'END'\n{text}END\n"


@needs.posix
def test_nccl_tests_are_run_by_the_launcher_and_read(tmp_path, monkeypatch):
    programs(
        tmp_path / "bin", monkeypatch, all_reduce_perf=printing(NCCL), osu_allreduce=printing(OSU),
        alltoall_perf="echo no devices; exit 3\n", broadcast_perf="echo nothing to read\n",
    )  # fmt: skip
    launch = "env RANKS={ranks}/{nodes}/{per_node}"
    done = did("measure", "-o", tmp_path / "m.csv", "--launch", launch, "--groups", "1x2,2x1")
    rows = read_measurements(tmp_path / "m.csv").rows
    assert set(rows["tool"]) == {"nccl-tests"}
    assert rows[["collective", "ranks", "nodes", "seconds"]].drop_duplicates().values.tolist() == [
        ["all_reduce", 2, 1, 1e-4], ["all_reduce", 2, 2, 1e-4],
    ]  # fmt: skip
    assert "alltoall_perf, 2 x 1 ranks: ended with 3: no devices" in done.stdout
    assert "broadcast_perf, 1 x 2 ranks: holds no measurements" in done.stdout
    log = (tmp_path / "m_logs" / "all_reduce_perf_2x1.log").read_text()
    assert "ran with 2/2/1 as -b 1024 -e 1073741824 -f 2 -g 1" in log
    assert "all_reduce_perf_1x2.log" in rows["source"][0]


@needs.posix
def test_osu_is_run_where_nccl_tests_are_not_installed(tmp_path, monkeypatch):
    programs(tmp_path / "bin", monkeypatch, osu_allreduce=printing(OSU), osu_latency=printing(OSU))
    did("measure", "-o", tmp_path / "m.csv", "--launch", "env", "--groups", "1x4", "--what", "all_reduce",
        "--sizes", "8B:16B")  # fmt: skip
    rows = read_measurements(tmp_path / "m.csv").rows
    assert rows[["ranks", "nbytes", "seconds"]].values.tolist() == [[4, 8, 2.5e-6], [4, 16, 2.75e-6]]
    assert "as -m 8:16" in (tmp_path / "m_logs" / "osu_allreduce_1x4.log").read_text()


@needs.posix
def test_a_program_that_hangs_is_given_up_and_nothing_is_left_behind(tmp_path, monkeypatch):
    pid = tmp_path / "bin" / "pid"
    programs(tmp_path / "bin", monkeypatch, all_reduce_perf=f"sleep 600 & echo $! > {pid}\nwait\n")
    said = refused("measure", "-o", tmp_path / "m.csv", "--launch", "env", "--groups", "1x2", "--budget", "1 s", "-q")
    assert "all_reduce_perf, 1 x 2 ranks: took longer than 1 s" in said
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bin"]
    assert killing.is_gone(int(pid.read_text()))


@needs.posix
def test_a_launcher_can_end_its_ranks_and_is_killed_if_it_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "_ENDING", 1.0)
    asked, pid = tmp_path / "bin" / "asked", tmp_path / "bin" / "pid"
    stubborn = f"trap 'echo yes > {asked}' TERM\necho $$ > {pid}\nwhile :; do sleep 0.1; done\n"
    programs(tmp_path / "bin", monkeypatch, all_reduce_perf=stubborn)
    refused("measure", "-o", tmp_path / "m.csv", "--launch", "env", "--groups", "1x2", "--budget", "1 s", "-q")
    assert asked.read_text() == "yes\n"
    assert killing.is_gone(int(pid.read_text()))


@needs.posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_ended_ends_what_it_has_launched(number, tmp_path, monkeypatch):
    pid = tmp_path / "bin" / "pid"
    programs(
        tmp_path / "bin", monkeypatch, all_reduce_perf=f"sleep 600 & echo $! > {pid}.new\nmv {pid}.new {pid}\nwait\n"
    )
    command = ["measure", "-o", tmp_path / "m.csv", "--launch", "env", "--groups", "1x2", "-q"]
    with killing.start(command) as process:
        killing.await_that(pid.exists, process)
        os.kill(process.pid, number)
        assert process.wait(killing.PATIENCE) == 128 + number
    assert killing.is_gone(int(pid.read_text()))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bin"]


@needs.posix
def test_programs_share_the_time_and_what_one_had_printed_by_then_is_kept(tmp_path, monkeypatch):
    unended = "2097152 524288 float sum -1 200.00 10.49 10.49 0 200.00 10.49 10.49 0"
    hanging = "exec sleep 600\n"
    begun = f"echo '{NCCL}'\nprintf '{unended}'\n{hanging}"
    programs(
        tmp_path / "bin", monkeypatch, all_reduce_perf=begun, alltoall_perf=hanging, broadcast_perf=printing(NCCL)
    )  # fmt: skip
    began = time.monotonic()
    done = did("measure", "-o", tmp_path / "m.csv", "--launch", "env", "--groups", "1x2", "--budget", "6 s")
    assert time.monotonic() - began < 12
    # Lines break where the path of the folder has them do.
    said = " ".join(done.stdout.split())
    assert "all_reduce_perf, 1 x 2 ranks: took longer than 2 s, its share of --budget, but for what it had" in said
    # The broadcast takes next to nothing of its share.
    share = re.search(r"alltoall_perf, 1 x 2 ranks: took longer than (\S+) s, its share of --budget", said)
    assert 3 < float(share[1]) <= 4
    rows = read_measurements(tmp_path / "m.csv").rows
    assert set(rows["collective"]) == {"all_reduce", "broadcast"}
    assert set(rows["nbytes"]) == {2**20}


@needs.posix
@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ("mpirun -n {rank}", "has {rank}; allowed: {ranks}, {nodes}"),
        ("mpirun 'a", "is no command"),
        ("bash -c '{program} -d cuda'", "--launch: has {program} inside of a word"),
        ("time {program} {program}", "--launch: has {program} inside of a word or twice"),
        ("no_such_launcher", "no_such_launcher cannot be started"),
    ],
)
def test_launchers_that_make_no_sense_are_refused(launch, says, tmp_path, monkeypatch):
    programs(tmp_path / "bin", monkeypatch, all_reduce_perf=printing(NCCL))
    assert says in refused("measure", "-q", "-o", tmp_path / "m.csv", "--launch", launch, "--groups", "1x2")
    assert not (tmp_path / "m.csv").exists()


# Real ranks


def ended_well(command, folder, **environment):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=killing.PATIENCE,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def from_measuring_to_choosing(folder, ranks):
    """Look at what a script of the example has left: a table, a calibrated cluster that answers."""
    rows = read_measurements(folder / "measured.csv").rows
    assert set(rows["collective"]) == {"all_reduce", "all_gather", "p2p_latency", "p2p_bw"}
    assert (rows["wrong"] == 0).all()
    assert sorted(set(rows["ranks"])) == sorted({2, ranks})
    one = rows[(rows["collective"] == "all_gather") & (rows["ranks"] == ranks)].iloc[-1]
    on = ("--network", folder / "fabric.yaml", "--workers", ranks, "--size", f"{one['nbytes']} B")
    found = timed("all_gather", *on)
    assert found["evidence"] == "measured"
    seconds = found["time_s"]
    # Times between processes that share processors with others are not much better known.
    assert one["seconds_min"] / 2 < seconds < one["seconds_max"] * 2
    chosen = did("choose", "--network", folder / "fabric.yaml", "--device", folder / "measured.yaml")
    assert chosen.exit_code == 0


QUICK = {"BUDGET": "8 s", "LARGEST": "64KiB"}
FEW = ("--what", "links,all_reduce,all_gather,device")


@pytest.mark.extras
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_script_for_torchrun_goes_from_measuring_to_choosing(tmp_path, ranks):
    done = ended_well(["bash", EXAMPLE / "torchrun.sh", ranks, *FEW], tmp_path, **QUICK)
    assert "sizes left out" in done.stdout
    assert "Take " in done.stdout
    from_measuring_to_choosing(tmp_path / "calibrated", ranks)


SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || exit 1; done
"""


@pytest.mark.extras
def test_the_script_for_slurm_goes_from_measuring_to_choosing(tmp_path):
    (tmp_path / "bin").mkdir()
    # The bus bandwidth of four ranks; the job has a table, and not each of its ranks.
    printed = (
        f"#!/bin/sh\n[ $SLURM_PROCID = 0 ] || exit 0\ncat <<'END'\n{NCCL.replace('10.49      0', '15.73      0')}END\n"
    )
    slurms = {"srun": SRUN, "scontrol": "#!/bin/sh\necho 127.0.0.1\necho elsewhere\n", "all_reduce_perf": printed}
    for name, text in slurms.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = QUICK | {"BACKEND": "gloo", "PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"}
    slurm = {"SLURM_NTASKS": "4", "SLURM_NNODES": "1", "SLURM_JOB_ID": f"{os.getpid()}", "SLURM_JOB_NODELIST": "n[1-2]"}
    ended_well(["bash", EXAMPLE / "slurm.sh", *FEW], tmp_path, **environment, **slurm)
    folder = tmp_path / f"calibrated_{os.getpid()}"
    from_measuring_to_choosing(folder, 4)
    assert read_measurements(folder / "nccl_tests.csv").rows[["ranks", "nodes"]].values.tolist() == [[4, 1]] * 2


@pytest.mark.extras
def test_mpi_is_measured(tmp_path):
    launcher = [Path(sys.executable).with_name("mpiexec"), "-n", "3", sys.executable, "-m", "simnet.cluster.measure"]
    ended_well([*launcher, "--backend", "mpi", "--sizes", ":16KiB", "--budget", "10 s", "-o", "m.csv"], tmp_path)
    rows = read_measurements(tmp_path / "m.csv").rows
    assert set(rows["collective"]) == {*COLLECTIVES, "p2p_latency", "p2p_bw"}
    assert set(rows["tool"]) == {"mpich"}
    assert set(rows["profile"]) == {"default"}
    assert (rows["wrong"] == 0).all()


def children():
    """Yield the processes of this machine, each with its parent."""
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with suppress(OSError):
                yield int(one.name), int((one / "stat").read_text().rpartition(")")[2].split()[1])


@needs.linux
@pytest.mark.extras
def test_a_rank_that_is_killed_ends_the_command_without_a_file(tmp_path):
    command = ["measure", "-o", tmp_path / "m.csv", "--processes", "3", "--budget", "100 s", "--sizes", ":64KiB"]
    with killing.start(command, stderr=subprocess.PIPE, text=True) as process:
        # The first line is there when all ranks have met.
        assert "curves with" in process.stderr.readline()
        began = time.monotonic()
        server = [one for one, parent in children() if parent == process.pid]
        ranks = [one for one, parent in children() if parent in server]
        assert len(ranks) == 3
        os.kill(ranks[1], signal.SIGKILL)
        said = process.stderr.read()
        assert process.wait(killing.PATIENCE) == 2, said
    assert "error: " in said
    assert "Traceback" not in said
    assert time.monotonic() - began < 60
    assert not (tmp_path / "m.csv").exists()
    killing.await_end(process.pid)
