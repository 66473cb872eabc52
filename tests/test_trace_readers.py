"""Traces and records of jobs: what kernels, calls and records say, calls of several ranks, objects in texts."""

import json

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.cost_models.calibration.readers import job_traces, read_measurements
from simnet.cost_models.calibration.readers.job_traces import WAITING_REMARK
from simnet.interchange.chakra import TraceNode


def known(row, *names):
    return tuple(None if pd.isna(row.get(one)) else row.get(one) for one in names)


def objects(folder, *entries, kind, between="\n", **options):
    """Read entries, each on a line of its own."""
    return read_measurements(
        put(folder, between.join(json.dumps(one) for one in entries), "a.json"), kind=kind, **options
    )


ARGS = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 5, "Out msg nelems": 5}
HEADER = {"id": "0x7", "rank": 1, "n_ranks": 4, "nnodes": 2}
OF = {"coll": "AllReduce", "coll_sn": 3, "coll_msg_size_bytes": 1000, "coll_exec_time_us": 10}
RECORD = {"name": "AllReduce", "size": 1000, "inPlace": 0, "time": "10.0", "algBw": "0.10", "busBw": "0.10"}
CALL = {"collective": "all_reduce", "ranks": 2, "nbytes": 8, "group": "dp", "sequence": 1, "tool": "pytorch"}
CALL |= {"statistic": "rank", "source": "job/a"}
KERNEL = {"cat": "kernel", "name": "ncclKernel", "dur": 10.0, "args": ARGS}


class TestKineto:
    def read(self, folder, *events, about=""):
        """Read events, the first of which stands on line 2."""
        text = f'{{{about}"traceEvents": [\n' + ",\n".join(map(json.dumps, events)) + "\n]}"
        return read_measurements(put(folder, text, "a.json"), kind="kineto")

    def test_kernels_say_themselves_what_they_do_before_calls_do(self, tmp_path):
        call = {"name": "record_param_comms", "cat": "cpu_op", "args": ARGS | {"External id": 1}}
        other = {"name": "record_param_comms", "cat": "cpu_op", "args": ARGS | {"External id": 2, "In msg nelems": 9}}
        own = KERNEL | {"args": ARGS | {"External id": 1, "In msg nelems": 7}}
        of_call = KERNEL | {"args": {"External id": 2}}
        measured = self.read(tmp_path, call, other, own, of_call)
        assert measured.rows["nbytes"].tolist() == [28, 36]
        # Kernels that say themselves what they do share the number of a call with none.
        measured = self.read(tmp_path, call, own, KERNEL | {"args": {"External id": 1}})
        assert measured.rows["nbytes"].tolist() == [28, 20]

    def test_kernels_that_say_too_little_are_counted_from_the_first(self, tmp_path):
        names = {"Collective name": "x" * 41}
        measured = self.read(
            tmp_path, KERNEL | {"args": {}}, KERNEL | {"args": ARGS | names}, KERNEL | {"args": {}}, KERNEL,
            *[KERNEL | {"args": {"External id": 3}}] * 999,
        )  # fmt: skip
        assert [(one.line, one.message, one.dropped) for one in measured.problems] == [
            (2, "a kernel does not say which collective it is of; 1,001 such kernels", True),
            (3, f"'{'x' * 40}' is no collective that is read; 1 such kernels", True), (None, WAITING_REMARK, False),
        ]  # fmt: skip


class TestInspector:
    def read(self, folder, *entries, **options):
        return objects(folder, *entries, kind="inspector", **options)

    def test_messages_stand_beside_collectives(self, tmp_path):
        of = {"p2p": "Send", "p2p_sn": 4, "p2p_msg_size_bytes": 8, "p2p_exec_time_us": 2}
        entries = [
            {"header": HEADER, "p2p_perf": of},
            {"header": HEADER, "p2p_perf": of, "coll_perf": OF},
        ]
        assert self.read(tmp_path, *entries).rows["collective"].tolist() == ["sendrecv", "all_reduce"]
        (row, _) = self.read(tmp_path, *entries).rows.to_dict("records")
        assert known(row, "nbytes", "sequence", "size_convention") == (8, 4, "message")


class TestRccl:
    def rows(self, folder, *records, **options):
        return objects(folder, *records, kind="rccl", **options).rows.to_dict("records")

    def test_fields(self, tmp_path):
        more = {"ranks": 2, "gpusPerRank": 1, "nodes": 1, "type": "float", "redop": "none", "wrong": "0", "numCycle": 3}
        (row,) = self.rows(tmp_path, RECORD | more)
        names = (
            "collective",
            "nbytes",
            "size_convention",
            "seconds",
            "algbw",
            "busbw",
            "ranks",
            "nodes",
            "wrong",
            "run",
        )
        assert known(row, *names) == ("all_reduce", 1000, "vector", 1e-5, 1e8, 1e8, 2, 1, 0.0, "3")
        assert known(row, "dtype", "reduction", "in_place", "statistic", "tool") == (
            "float",
            "",
            False,
            "mean",
            "rccl-tests",
        )
        (row,) = self.rows(tmp_path, RECORD | {"redop": "sum", "numCycle": "9" * 21})
        assert known(row, "reduction", "run", "ranks", "nodes", "wrong", "dtype") == (
            "sum",
            "9" * 20,
            None,
            None,
            None,
            "",
        )
        assert self.rows(tmp_path, RECORD)[0]["run"] == "1"

    def test_sides(self, tmp_path):
        for said, in_place in ((1, True), ("1", True), (" true", True), (True, True), (0, False), ("x", False)):
            assert self.rows(tmp_path, RECORD | {"inPlace": said})[0]["in_place"] is in_place


class TestChakra:
    def test_rows(self, tmp_path, monkeypatch):
        given = [
            (2, "a", "", 8, 1, ""), (3, "", "ODD", 8, 1, ""), (4, "", "ALL_REDUCE", -2, 1, ""),
            (5, "", "ALL_GATHER", 8, 250, "dp"), (6, "", "REDUCE_SCATTER", 2**62 + 1, 1, ""),
            (7, "", "BARRIER", -1, 1, ""),
        ]  # fmt: skip
        nodes = [
            TraceNode(number, name, "collective", micros, [], kind, nbytes, -1, 0, group)
            for number, name, kind, nbytes, micros, group in given
        ]
        monkeypatch.setattr(job_traces, "read_nodes", lambda path: iter(nodes))
        for name, rank in (("a.12.et", 12), ("a.3.et.gz", 3), ("a.et", None), ("12.et.txt", None)):
            measured = job_traces.read_chakra_collectives(tmp_path / name)
            assert [str(measured.rows[one].dtype) for one in ("sequence", "rank")] == ["float64"] * 2
            assert [one.message for one in measured.problems] == [
                "node 2: 'a' is no collective that is read", "node 3: 'ODD' is no collective that is read",
                "node 4: its size is -2 bytes", WAITING_REMARK,
            ]  # fmt: skip
            names = ("collective", "nbytes", "size_convention", "seconds", "group", "rank", "statistic", "tool")
            found = [known(row, *names) for row in measured.rows.to_dict("records")]
            assert found == [
                ("all_gather", 8, "per_rank", pytest.approx(250e-6), "dp", rank, "rank", "chakra"),
                ("reduce_scatter", 2**62, "total", pytest.approx(1e-6), "", rank, "rank", "chakra"),
                ("barrier", 0, "", pytest.approx(1e-6), "", rank, "rank", "chakra"),
            ]  # fmt: skip
