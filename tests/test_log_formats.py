"""Formats beside those of `test_readers`: traces of jobs, RDMA benchmarks, records, tables that lost their headings."""

import gzip
import json
from contextlib import suppress

import pandas as pd
import pytest

import benchmark_logs as logs
from benchmark_logs import put
from commands import did, refused
from simnet.base.errors import InputError
from simnet.base.rng import stream
from simnet.cost_models.calibration.readers import (
    bus_factor,
    parse_facts,
    read_logs,
    read_measurements,
    total_bytes,
)
from simnet.cost_models.calibration.readers.job_traces import WAITING_REMARK, merge_ranks
from simnet.cost_models.calibration.readers.kinds import log_format


def nccl_table(collective, ranks, *, reduction="sum", root=-1, header="", digits=2):
    """Return a table of nccl-tests of a collective over ranks, without a word of either."""
    shared = collective in ("all_gather", "reduce_scatter", "alltoall")
    lines = [header]
    for most, micros in ((2**20, 100.0), (2**26, 2000.0), (2**30, 30000.0)):
        count = most // 4 // (ranks if shared else 1)
        nbytes = 4 * count * (ranks if shared else 1)
        rate = nbytes / micros / 1e3
        numbers = f"{micros:.1f} {rate:.{digits}f} {rate * bus_factor(collective, ranks):.{digits}f} 0"
        lines.append(f"  {nbytes}  {count}  float  {reduction}  {root}  {numbers}  {numbers}")
    return "\n".join(lines) + "\n"


class TestNcclNumbers:
    @pytest.mark.parametrize("ranks", [2, 3, 8, 16, 60])
    @pytest.mark.parametrize(
        ("collective", "reduction", "root"),
        [
            ("all_reduce", "sum", -1),
            ("reduce_scatter", "sum", -1),
            ("all_gather", "none", -1),
            ("alltoall", "none", -1),
        ],
    )
    def test_ranks_follow_from_sizes_counts_and_bandwidths(self, tmp_path, collective, reduction, root, ranks):
        table = nccl_table(collective, ranks, reduction=reduction, root=root)
        facts = {} if reduction == "sum" else {"collective": collective}
        measured = read_measurements(put(tmp_path, table, "table.txt"), facts=facts)
        assert set(measured.rows["collective"]) == {collective}
        assert set(measured.rows["ranks"]) == {ranks}
        assert f"say {ranks}" in measured.problems[0].message
        assert not measured.problems[0].dropped

    def test_nccl_itself_says_ranks_first_and_nobody_else(self, tmp_path):
        info = "host:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks {} cudaDev 0\n"
        for header, follows in (("", True), ("# nranks 4\n", True), ("# nranks 4\n" + info + info, False)):
            found = read_measurements(
                put(tmp_path, nccl_table("all_reduce", 8, header=header.replace("{}", "8", 1).replace("{}", "4")))
            )
            assert set(found.rows["ranks"]) == {8}
            assert any("say 8" in one.message for one in found.problems) == follows

    def test_ranks_are_those_of_the_first_group_or_up_to_the_last_that_is_listed(self, tmp_path):
        def listed(*members):
            lines = [
                f"#  Rank  {rank} Group  {group} Pid 1 on  {host} device 0 [0] GPU" for rank, group, host in members
            ]
            (row, *_) = read_measurements(
                put(tmp_path, "\n".join([*lines, nccl_table("all_reduce", 2, digits=4)]))
            ).rows.to_dict("records")
            return row["ranks"], None if pd.isna(row["nodes"]) else row["nodes"]

        assert listed((0, 0, "a"), (1, 0, "b")) == (2, 2)
        assert listed((0, 0, "a"), (1, 0, "a")) == (2, 1)
        assert listed((0, 0, "a"), (1, 1, "a"), (2, 0, "b"), (3, 1, "b")) == (2, 2)
        # The list is cut: how many nodes there are it does not say.
        assert listed((1, 0, "a")) == (2, None)

    def test_ranks_that_digits_do_not_tell_stay_unknown(self, tmp_path):
        assert read_measurements(put(tmp_path, nccl_table("all_reduce", 5000))).rows["ranks"].isna().all()

    def test_a_broadcast_has_a_root_and_no_operation(self, tmp_path):
        assert set(
            read_measurements(put(tmp_path, nccl_table("broadcast", 4, reduction="none", root=0))).rows["collective"]
        ) == {"broadcast"}


def test_more_of_osu(tmp_path):
    measured = read_measurements(put(tmp_path, logs.OSU_MORE))
    rows = measured.rows
    names = [*["alltoall"] * 2, "scatterv", "p2p_bw", "p2p_latency", "put_latency", "gather", "broadcast"]
    assert rows["collective"].tolist() == names
    assert rows["variant"].tolist() == [*["non-blocking"] * 2, "", "620 pairs", "several pairs", "", "non-blocking", ""]
    assert rows["ranks"].tolist() == [8, 8, 8, 1240, 2048, 2, 4, 4]
    assert rows["seconds"].tolist()[:3] == [5.18e-6, 5.1e-6, 1.73e-6]
    assert rows["seconds"].tolist()[3] == pytest.approx(1024 * 620 / 124e9), "each pair has its share"
    assert rows["seconds"].tolist()[6:] == [7.25e-6, 3.5e-6], "tables without headings"
    assert rows["run"].drop_duplicates().index.tolist() == [0, *range(2, 8)], "each table is a run of its own"
    assert total_bytes(rows).tolist()[2] == 8192, "scatterv: what a rank gets, times ranks"
    (left,) = measured.problems
    assert (left.line, left.dropped) == (29, True)
    assert "'neighborhood allgather latency' is no collective that is read" in left.message


@pytest.mark.parametrize(
    ("name", "facts", "text", "collective"),
    [
        ("osu_allreduce_n8.log", {}, "8   12.41\n16  13.5\n", "all_reduce"),
        ("run.txt", {"tool": "osu", "collective": "all_gather"}, "8   12.41\n16  13.5\n", "all_gather"),
        ("osu_bw.out", {}, "1048576  12000.00\n", "p2p_bw"),
        ("imb_bcast.txt", {}, "  8  1000  4.5  18.59  11.69\n", "broadcast"),
        ("bcast.txt", {"tool": "imb"}, "#bytes #repetitions t[usec] Mbytes/sec\n 8 1000 4.5 1.78\n", "broadcast"),
    ],
)
def test_tables_without_headings_where_the_tool_is_known(tmp_path, name, facts, text, collective):
    path = put(tmp_path, text, name)
    rows = read_measurements(path, facts=facts).rows
    assert set(rows["collective"]) == {collective}
    assert (rows["seconds"] > 0).all()
    with pytest.raises(InputError, match="holds no measurement"):
        read_measurements(put(tmp_path, text, "nameless.txt"))


def test_kineto(tmp_path):
    path = put(tmp_path, logs.kineto(), "rank0.json")
    measured = read_measurements(path)
    rows = measured.rows
    assert measured.kind == "kineto"
    assert rows["collective"].tolist() == ["all_gather", "all_reduce"]
    assert rows["nbytes"].tolist() == [4096, 1024], "nccl-tests counts the whole of an all-gather"
    assert rows["seconds"].tolist() == pytest.approx([120.5e-6, 40e-6])
    assert rows["ranks"].tolist() == [2, 2]
    assert rows["sequence"].tolist()[0] == 5
    assert [(one.message, one.dropped) for one in measured.problems] == [
        ("a kernel does not say which collective it is of; 1 such kernels", True),
        (WAITING_REMARK, False),
    ]
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    pd.testing.assert_frame_equal(read_measurements(packed).rows.drop(columns="source"), rows.drop(columns="source"))


def test_nccl_inspector(tmp_path):
    for text in (
        logs.INSPECTOR,
        "\n".join(json.dumps(json.loads(one), indent=2) for one in logs.INSPECTOR.split("\n")),
    ):
        measured = read_measurements(put(tmp_path, text))
        rows = measured.rows
        assert measured.kind == "inspector"
        assert rows["collective"].tolist() == ["all_gather", "sendrecv"]
        assert total_bytes(rows).tolist() == [4 * 2**20, 4096], "an all-gather is counted by what a rank contributes"
        assert rows["seconds"].tolist() == pytest.approx([100e-6, 12e-6])
        assert (rows["ranks"].tolist(), rows["nodes"].tolist()) == ([4, 4], [2, 2])
        assert "TOPSECRET" not in rows.to_csv()
        assert "'Odd' has no size and time" in measured.problems[0].message


@pytest.mark.parametrize("csv", [False, True])
def test_records_of_rccl_tests(tmp_path, csv):
    measured = read_measurements(put(tmp_path, (logs.RCCL_CSV if csv else logs.RCCL_JSON)))
    rows = measured.rows
    assert measured.kind == "rccl"
    assert rows["in_place"].tolist() == [False, True]
    assert rows["seconds"].tolist() == [60.5e-6] * 2
    assert (rows["ranks"].tolist(), rows["nodes"].tolist()) == ([8, 8], [2, 2])
    wrong = (logs.RCCL_CSV if csv else logs.RCCL_JSON).replace("30.330711", "17.331835")
    with pytest.raises(InputError, match=r"bus bandwidth is 17\.332 GB/s, but 1\.75 times"):
        read_measurements(put(tmp_path, wrong))


def chakra(*calls, metadata=b""):
    """Return a Chakra trace with a node of computation and collective nodes of a kind, size [byte] and time [us]."""

    def number(value):
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes([value])

    def block(field, content):
        return number(field << 3 | 2) + number(len(content)) + content

    def attribute(name, field, value):
        inside = number(field << 3) + number(value) if isinstance(value, int) else block(field, value)
        return block(10, block(1, name) + inside)

    parts = [
        metadata or block(1, b"1.0.0"),
        number(1 << 3) + number(1) + number(3 << 3) + number(4) + number(7 << 3) + number(9),
    ]
    for node, (kind, size, micros) in enumerate(calls, 2):
        fixed = number(1 << 3) + number(node) + number(3 << 3) + number(7) + number(7 << 3) + number(micros)
        parts.append(
            fixed
            + attribute(b"comm_type", 9, kind)
            + attribute(b"comm_size", 9, size)
            + attribute(b"pg_name", 29, b"dp")
        )
    return b"".join(number(len(part)) + part for part in parts)


def test_chakra(tmp_path):
    path = tmp_path / "job.3.et"
    path.write_bytes(chakra((0, 1 << 20, 250), (2, 4096, 30), (99, 1, 1)))
    assert log_format(path) == "chakra"
    measured = read_measurements(path, facts={"ranks": 8})
    rows = measured.rows
    assert rows["collective"].tolist() == ["all_reduce", "all_gather"]
    assert total_bytes(rows).tolist() == [1 << 20, 8 * 4096]
    assert rows["seconds"].tolist() == pytest.approx([250e-6, 30e-6])
    assert (rows["rank"].tolist(), rows["group"].tolist()) == ([3, 3], ["dp", "dp"])
    assert "node 4: '' is no collective that is read" in measured.problems[0].message
    packed = tmp_path / "job.4.et"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_measurements(packed, facts={"ranks": 8})) == 2


def kind_of_chakra(path):
    """Return the kind of a file; None where it is taken for a text, which this one may not be."""
    try:
        return log_format(path)
    except InputError:
        return None


def test_what_only_begins_like_a_chakra_trace_is_none(tmp_path):
    path = tmp_path / "a.et"
    for begins in (b" \n 1.2.3\n# Size\n", b"\x08\n\x051.0.0", b"\x07\n\x061.0.0\n", b"\x09\n\x051.0.0\n\x00"):
        path.write_bytes(begins)
        assert kind_of_chakra(path) is None, begins
    long = b"\n\x051.0.0\x12" + b"\x80\x01" + bytes(128)
    for metadata in (long, long[:8] + b"\x02\x0a\x00", b"\n\x0610.0.0"):
        path.write_bytes(chakra((0, 1 << 20, 250), metadata=metadata))
        assert kind_of_chakra(path) == "chakra"
        assert len(read_measurements(path, facts={"ranks": 8})) == 1


def test_damaged_chakra_traces_are_read_or_refused(tmp_path):
    draws, content, path = stream(0, "damaged traces"), chakra(*[(0, 1 << 20, 250)] * 20), tmp_path / "a.et"
    for _ in range(300):
        damaged = bytearray(content[: draws.integers(1, len(content))])
        for at in draws.integers(0, len(damaged), 3):
            damaged[at] ^= 1 << int(draws.integers(0, 8))
        path.write_bytes(bytes(damaged))
        with suppress(InputError):
            assert (read_measurements(path, "chakra").rows["seconds"] > 0).all()


def test_traces_of_all_ranks_tell_the_shortest_time_of_each_call(tmp_path):
    for rank, micros in enumerate((120.5, 80.25)):
        put(tmp_path, logs.kineto(rank=rank, micros=micros), f"rank{rank}.json")
    rows = read_logs(tmp_path).rows
    gathers = rows[rows["collective"] == "all_gather"]
    assert gathers["seconds"].tolist() == pytest.approx([80.25e-6])
    assert gathers["statistic"].tolist() == ["min"]
    assert (rows["collective"] == "all_reduce").sum() == 2, "calls without a number stay apart"
    assert len(merge_ranks(rows)) == len(rows)


def test_packed_bombs_and_nested_traces_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("simnet.cost_models.calibration.readers.lines.MAX_TRACE_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20) + b"]}"))
    with pytest.raises(InputError, match="is larger than 1,048,576 bytes when unpacked"):
        read_measurements(path)
    path.write_bytes(gzip.compress(logs.kineto().encode())[:-20])
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_measurements(path)
    with pytest.raises(InputError, match="nested too deeply"):
        read_measurements(put(tmp_path, '{"traceEvents": [' + "[" * 200_000))
    with pytest.raises(InputError, match=r"a\.log:1: is not JSON, or was cut"):
        read_measurements(put(tmp_path, logs.kineto()[:-200]))


class TestFolders:
    LOG = "# OSU MPI Broadcast Latency Test v7.5\n# Size  Avg Latency(us)\n8 2.5\n16 2.75\n"

    def folder(self, tmp_path):
        for name in ("n2/osu_bcast_a.log", "n4/osu_bcast_a.log", "n4/osu_bcast_n8.log"):
            put(tmp_path / "runs", self.LOG, name)
        put(tmp_path / "runs", "two days of work\n", "notes.txt")
        put(tmp_path / "runs", "# OSU MPI Reduce Latency Test v7.5\n# Size  Avg Latency(us)\n", "n4/empty.log")
        put(tmp_path / "runs", self.LOG, ".hidden/osu_bcast.log")
        return tmp_path / "runs"

    def test_facts_by_name_and_folder(self, tmp_path):
        folder = self.folder(tmp_path)
        facts = parse_facts(["nodes=1", "n2/*:ranks=2", "n4/*:ranks=4", "osu_*_n8.log:ranks=8", "osu_*:tool=osu"])
        found = read_logs(folder, facts)
        assert found.rows["ranks"].tolist() == [2, 2, 4, 4, 8, 8]
        assert set(found.rows["nodes"]) == {1}
        left = {one.file.removeprefix(str(folder)): one.message for one in found.problems}
        assert left["/notes.txt"] == "holds no measurements in a format that is read"
        assert "holds no measurement that can be read" in left["/n4/empty.log"]
        facts.refuse_idle()
        named = read_logs(folder, parse_facts(["n{ranks}/*", "osu_{collective}_n{ranks}.log"]))
        assert named.rows["ranks"].tolist() == [2, 2, 4, 4, 8, 8]

    def test_a_folder_is_one_command(self, tmp_path):
        folder = self.folder(tmp_path)
        for ranks in (2, 4):
            put(
                folder,
                self.LOG.replace("16 2.75", "".join(f"{1 << k} {2.5 + 2**k / 4000}\n" for k in range(4, 20))),
                f"n{ranks}/more.log",
            )
        out = tmp_path / "fabric.yaml"
        said = did(
            "calibrate", folder, "-o", out, "--fact", "n{ranks}/*", "--fact", "*_n8.log:ranks=8", "--wide"
        ).output
        said = " ".join(said.split())
        assert "notes.txt: holds no measurements in a format that is read (left out)" in said
        assert "3 curves" in said
        said = refused("calibrate", folder, "-o", out, "--force", "--fact", "m{ranks}/*")
        assert "--fact: 'm{ranks}/*' fits the name of no log" in said

    def test_rows_without_a_place_are_said_by_file_and_line(self, tmp_path):
        rows = "".join(f"{1 << k} {2.5 + 2**k / 4000}\n" for k in range(4, 20))
        log = put(
            tmp_path, "mpirun -np 4 osu_bcast\n" + self.LOG + rows + self.LOG.replace("8 2.5", "0 1.5"), "bcast.log"
        )
        said = did("calibrate", log, "-o", tmp_path / "fabric.yaml", "--wide").output
        said = " ".join(said.split())
        assert "bcast.log:24: 1 rows from here on have 0 bytes (left out)" in said
        bare = put(tmp_path, self.LOG, "bare.log")
        said = refused("calibrate", bare, "-o", tmp_path / "none.yaml")
        assert "no row has a size above 0 and a number of ranks" in said


OF_ONE_RANK = {f"{name}.log": logs.printed(f"one_rank_{name}") for name in ("nccl", "osu", "imb")}
OF_ONE_RANK["tidy.csv"] = "collective,ranks,nodes,nbytes,seconds\nall_reduce,1,1,4096,5e-6\nall_reduce,1,1,65536,6e-6\n"
"""Logs of benchmarks that ran on one rank."""


@pytest.mark.parametrize("name", OF_ONE_RANK)
def test_tests_of_one_rank_are_no_measurements_of_a_cluster(name, tmp_path):
    alone, fabric = tmp_path / name, tmp_path / "fabric.yaml"
    alone.write_text(OF_ONE_RANK[name])
    facts = ["--fact", f"{name}:ranks=1"] if name.startswith("osu") else []
    said = refused("calibrate", alone, *facts, "-o", fabric)
    assert "a test of one rank: nothing went over a link, so they say nothing of several ranks" in said
    assert not fabric.exists()

    # Beside others they are left out.
    others = tmp_path / "others.csv"
    others.write_text("collective,ranks,nodes,nbytes,seconds\n" + "".join(
        f"all_reduce,4,2,{size},{1e-5 + size * 1e-9}\n" for size in (1024, 4096, 65536, 1048576)
    ))  # fmt: skip
    figures = json.loads(did("calibrate", alone, others, *facts, "-o", fabric, "--json").stdout)
    assert (figures["rows_read"], figures["curves"]) == (4, 1)
    assert ["of a test of one rank" in one for one in figures["problems"]] == [True]


def test_several_tests_of_one_rank_each_are_told_as_a_missing_mpi(shared, tmp_path):
    said = refused("calibrate", shared / "cases" / "one_rank_each.log", "-o", tmp_path / "fabric.yaml")
    assert "4 tests of one rank each (nccl-tests built without MPI; make MPI=1): nothing went over a link" in said
