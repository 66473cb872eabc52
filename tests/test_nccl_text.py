"""Logs of nccl-tests: what a row is, what lines say of tables below them, and what the numbers alone tell."""

import math

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import read_measurements

SIDE = "100.0 10.49 10.49 0"
ROW = f"1048576 262144 float sum -1 {SIDE} {SIDE}"
"""Two ranks or a broadcast: bus is algorithm bandwidth, and 1048576 bytes in 100 us are 10.48576 GB/s."""


def found(folder, *lines, name="a.log", **options):
    return read_measurements(put(folder, "\n".join(lines), name), kind="nccl", **options)


def known(measured, *names):
    rows = measured.rows[list(names)]
    return [tuple(None if pd.isna(one) else one for one in row) for row in rows.itertuples(index=False)]


class TestTables:
    LIST = tuple(f"#  Rank  {rank} Group  0 Pid 7 on  host{rank // 2} device 0" for rank in range(4))
    HEAD = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"

    def test_fields(self, tmp_path):
        measured = found(tmp_path, "$ ./broadcast_perf -a 2", *self.LIST, "# iters: 20", self.HEAD,
                         ROW.replace("sum -1", "none 1"))  # fmt: skip
        wanted = {
            "collective": "broadcast", "nbytes": 1048576, "size_convention": "vector", "dtype": "float",
            "reduction": "", "root": 1, "seconds": 1e-4, "statistic": "min", "algbw": 10.49e9,
            "busbw": 10.49e9, "ranks": 4, "nodes": 2,
            "ranks_per_node": 2, "iterations": 20, "wrong": 0.0, "tool": "nccl-tests", "run": "1", "line": 8,
        }  # fmt: skip
        for row, in_place in zip(measured.rows.to_dict("records"), (False, True), strict=True):
            assert {name: row[name] for name in wanted} == wanted
            assert row["in_place"] is in_place
            assert math.isnan(row["max_error"])
            assert math.isnan(row["seconds_min"])

    def test_who_says_which_collective_counts_in_order(self, tmp_path):
        # Numbers tell an all-reduce: sum without root, and the count is that of the whole.
        facts = {"collective": "reduce", "ranks": 2}
        assert known(found(tmp_path, ROW, facts=facts), "collective", "ranks") == [("all_reduce", 2)] * 2
        named = found(tmp_path, ROW, name="bcast.log", facts=facts)
        assert set(named.rows["collective"]) == {"broadcast"}
        said = found(tmp_path, "$ ./sendrecv_perf", ROW, name="bcast.log", facts=facts)
        assert set(said.rows["collective"]) == {"sendrecv"}
        pair = ROW.replace("sum", "none")
        assert set(found(tmp_path, pair, facts=facts).rows["collective"]) == {"reduce"}
        with pytest.raises(InputError, match=r"a\.log:3: does not say which collective this is"):
            found(tmp_path, "", "noise", pair, pair, facts={"ranks": 2})

    def test_each_table_is_a_run_and_its_rows_stand_in_order(self, tmp_path):
        measured = found(
            tmp_path, "$ ./all_reduce_perf", *self.LIST[:2], ROW, "$ ./broadcast_perf", ROW, ROW, self.HEAD, ROW,
        )  # fmt: skip
        assert known(measured, "run", "line", "collective")[::2] == [
            ("1", 4, "all_reduce"), ("2", 6, "broadcast"), ("2", 7, "broadcast"), ("3", 9, "broadcast"),
        ]  # fmt: skip

    def test_what_is_said_below_a_table_is_not_of_it(self, tmp_path):
        below = ("NCCL_ALGO=Tree", "$ ./reduce_perf -a 3", "# Using devices", *self.LIST[:3])
        measured = found(tmp_path, "NCCL_ALGO=Ring", "$ ./broadcast_perf", *self.LIST[:2], ROW, *below, ROW)
        names = ("collective", "algorithm", "statistic", "ranks")
        assert known(measured, *names)[::2] == [("broadcast", "ring", "mean", 2), ("reduce", "tree", "max", 3)]
        # A list of devices ends a table, even where nothing else does.
        measured = found(tmp_path, "$ ./broadcast_perf", *self.LIST[:2], ROW, "# Using devices", *self.LIST[2:], ROW)
        assert known(measured, "ranks", "nodes", "run")[::2] == [(2, 1, "1"), (4, 2, "2")]

    def test_the_library_is_told_by_any_line(self, tmp_path):
        measured = found(tmp_path, "$ ./broadcast_perf", ROW, "RCCL version 2.18")
        assert set(measured.rows["tool"]) == {"rccl-tests"}

    def test_rows_that_are_cut_and_sides_that_contradict_themselves_are_told_by_line(self, tmp_path):
        wrong = f"1048576 262144 float sum -1 {SIDE} 100.0 20.49 10.49 0"
        measured = found(tmp_path, "$ ./broadcast_perf", "8 2 float sum 1.0", wrong)
        (cut, other) = measured.problems
        assert (cut.line, cut.dropped, cut.message[:21]) == (2, True, "the row has 1 numbers")
        assert (other.line, other.message[:33]) == (3, "in place: algorithm bandwidth is ")
        assert known(measured, "in_place") == [(False,)]

    def test_times_of_the_cpu_are_none_of_the_collective(self, tmp_path):
        head = self.HEAD.replace("time", "cputime")
        measured = found(tmp_path, "# nThread 1", head, ROW, "# nThread 1", self.HEAD, ROW)
        assert (set(measured.rows["line"]), [one.line for one in measured.problems if one.dropped]) == ({6}, [3])
        with pytest.raises(InputError, match=r"a\.log:2: .* cputime is the time of the CPU, .* run without -C 1"):
            found(tmp_path, head, ROW)

    @pytest.mark.parametrize("table", ["| {} |", "{}"])
    def test_cells_of_markdown_and_csv(self, tmp_path, table):
        between = " | " if "|" in table else ","
        lines = [table.format(between.join(one.split())) for one in (self.HEAD.strip("# "), "--- " * 13, ROW)]
        measured = read_measurements(put(tmp_path, "\n".join(lines), "all_reduce.txt"))
        assert known(measured, "nbytes", "seconds", "ranks", "in_place") == [
            (1048576, 1e-4, 2, False), (1048576, 1e-4, 2, True),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("cell", "head", "wrong", "error"),
        [
            ("3", "#wrong", 3.0, None), ("0", "#wrong", 0.0, None), ("2e-07", "#wrong", None, 2e-7),
            ("0.5", "#wrong", None, 0.5), ("3e+00", "#wrong", 3.0, None), ("0e-07", "#wrong", None, 0.0),
            ("N/A", "#wrong", None, None), ("0", "error", None, 0.0),
        ],
    )  # fmt: skip
    def test_the_fourth_number_counts_wrong_elements_or_is_an_error(self, tmp_path, cell, head, wrong, error):
        row = f"1048576 262144 float sum -1 100.0 10.49 10.49 {cell}"
        measured = found(tmp_path, "$ ./broadcast_perf", f"# size time algbw busbw {head}", row)
        assert known(measured, "wrong", "max_error") == [(wrong, error)]

    def test_times_of_iterations(self, tmp_path):
        row = f"1048576 262144 float sum -1 {SIDE} 90.0 120.0 N/A 5.0"
        head = "# size time algbw busbw #wrong i_min i_max i_p99 i_cv%"
        measured = found(tmp_path, "$ ./broadcast_perf", head, row)
        assert known(measured, "seconds_min", "seconds_max", "seconds_p99") == [(9e-5, 1.2e-4, None)]
        measured = found(tmp_path, "$ ./broadcast_perf", head, row.replace("N/A", "110"))
        assert known(measured, "seconds_p99") == [(1.1e-4,)]

    def test_ranks_that_numbers_tell_are_said(self, tmp_path):
        # Eight ranks: 1048576 bytes are 8 times 32768 elements of 4 bytes each.
        gather = "1048576 32768 float none -1 100.0 10.49 9.18 0"
        measured = found(tmp_path, "$ ./all_gather_perf", gather)
        assert [str(one) for one in measured.problems] == [
            f"{tmp_path / 'a.log'}:2: no line says how many ranks; sizes, counts and bandwidths say 8"
        ]
        assert known(measured, "ranks", "nodes") == [(8, None)]
        assert not found(tmp_path, "$ ./all_gather_perf", gather, facts={"ranks": 8}).problems
        measured = found(tmp_path, "$ ./all_gather_perf", *self.LIST[:3], "## of 3", self.HEAD, gather, gather)
        assert [(one.line, one.message) for one in measured.problems] == [
            (7, "the list of ranks is cut; sizes, counts and bandwidths say 8")
        ]
        assert known(measured, "ranks", "nodes") == [(8, None)] * 2
        stated = found(tmp_path, "## all_gather nranks=4 nnodes=2", gather, gather)
        assert known(stated, "ranks", "nodes", "ranks_per_node") == [(8, 2, 4)] * 2
