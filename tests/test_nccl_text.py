"""Logs of nccl-tests: what a row is, what lines say of tables below them, and what the numbers alone tell."""

import math

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import nccl_text, read_measurements
from simnet.cost_models.calibration.readers.nccl_text import TableCells, parse_row

SIDE = "100.0 10.49 10.49 0"
ROW = f"1048576 262144 float sum -1 {SIDE} {SIDE}"
"""Two ranks or a broadcast: bus is algorithm bandwidth, and 1048576 bytes in 100 us are 10.48576 GB/s."""


def found(folder, *lines, name="a.log", **options):
    return read_measurements(put(folder, "\n".join(lines), name), kind="nccl", **options)


def known(measured, *names):
    rows = measured.rows[list(names)]
    return [tuple(None if pd.isna(one) else one for one in row) for row in rows.itertuples(index=False)]


class TestRow:
    @pytest.mark.parametrize(
        ("text", "root", "reduction", "sides"),
        [
            (f"sum -1 {SIDE} {SIDE}", None, "sum", 2), (f"sum 0 {SIDE} {SIDE}", 0, "sum", 2),
            (f"none 7 {SIDE} {SIDE}", 7, "", 2), (f"{SIDE} {SIDE}", None, "", 2), (f"sum {SIDE}", None, "sum", 1),
            # Without a root, a first time that is a whole number is no root.
            ("100 10.49 10.49 0 100 10.49 10.49 0", None, "", 2), ("sum 100 10.49 10.49 0", None, "sum", 1),
            (f"sum {SIDE} 1 2 3 4 {SIDE} 1 2 3 4", None, "sum", 2),
            (f"sum 3 {SIDE} 1 2 3 4 {SIDE} 1 2 3 4", 3, "sum", 2),
            (f"sum -1 {SIDE} 2026-03-01 10:00:00", None, "sum", 1), (f"sum -1 {SIDE} {SIDE} a: NCCL", None, "sum", 2),
        ],
    )  # fmt: skip
    def test_whole_rows(self, text, root, reduction, sides):
        cells = parse_row(f"  1048576  262144  float  {text}")
        assert cells[:5] == (1048576, 262144, "float", reduction, root)
        assert len(cells.sides) == sides
        assert [words[1:4] for _, words in cells.sides] == [["10.49", "10.49", "0"]] * sides
        assert [in_place for in_place, _ in cells.sides] == [False, True][:sides]

    @pytest.mark.parametrize(
        ("text", "has", "most"),
        [
            ("", 0, 8), ("sum", 0, 8), ("sum 1.0 2.0 3.0", 3, 8), (f"sum 0.5 {SIDE}", 5, 8),
            (f"sum 0.5 {SIDE} {SIDE}", 9, 8), (f"{SIDE} {SIDE} 1 2", 10, 16), (f"sum -1 {SIDE} {SIDE} 1 2 3", 12, 16),
            (f"sum {SIDE} noise", 4, 8), (f"(null) {SIDE}", 0, 8),
        ],
    )  # fmt: skip
    def test_damaged_rows_are_told_by_their_numbers(self, text, has, most):
        assert parse_row(f"8 2 float {text}") == (
            f"the row has {has} numbers after type and operation; a whole one {most}, or {most + 1} with root"
        )

    def test_headers_say_how_many_numbers_each_side_has(self):
        assert parse_row("8 2 float sum -1 1.0 2.0 3.0", 3).sides == [(False, ["1.0", "2.0", "3.0"])]
        assert "a whole one 6, or 7 with root" in parse_row("8 2 float sum -1 1.0 2.0 3.0 4.0", 3)
        assert [len(words) for _, words in parse_row(f"8 2 float {SIDE} 1 2 3 4", 8).sides] == [8]

    def test_one_side_behind_a_gap_is_in_place(self):
        for spaces, in_place in ((23, False), (24, True)):
            assert parse_row(f"8 2 float sum{' ' * spaces}{SIDE}").sides[0][0] is in_place

    @pytest.mark.parametrize("rest", ["1 2 3 4", "sum 1 2 3 4"])
    def test_types_that_are_not_known_have_four_numbers_at_least_and_no_word_between(self, rest):
        assert isinstance(parse_row(f"8 2 fp4 {rest}"), TableCells)
        assert parse_row(f"8 2 fp4 {rest.removesuffix(' 4')}") is None
        assert parse_row(f"8 2 fp4 {rest} five") is None


class TestLines:
    def look(self, *lines, **context):
        """Return what differs from the start once lines were looked at."""
        start = vars(nccl_text._TableContext(**context))
        one = nccl_text._TableContext(**context)
        for line in lines:
            nccl_text._read_context(line, one)
        return {name: value for name, value in vars(one).items() if value != start[name]}

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("# nThread 1 warmup iters: 5 iters: 20 agg iters: 1 validation", {"iterations": 20}),
            ("# iters: 123456789012", {"iterations": 123456789012}), ("# warmup iters: 5 agg iters: 1", {}),
            ("#  Rank  3 Group  1 Pid 7 on  a device 0", {"groups": {1: {3}}, "hosts": {1: {"a"}}}),
            ("#  Rank  99999999 Pid 7 on a device", {"groups": {0: {10**7}}, "hosts": {0: {"a"}}}),
            ("## x.log | all_gather nranks=8 nnodes=2",
             {"collective": "all_gather", "stated_ranks": 8, "stated_nodes": 2}),
            ("## x nranks=8", {"stated_ranks": 8}), ("## nranks=10000001 nnodes=10000001", {}),
            ("## nranks=10000000 nnodes=10000000", {"stated_ranks": 10**7, "stated_nodes": 10**7}),
            ("h:1 [0] NCCL INFO comm 0x1 rank 0 nranks 16 cudaDev", {"stated_ranks": 16}),
            ("comm 0x1 rank 0 nranks 16 cudaDev", {}),
            ("export NCCL_ALGO=Ring NCCL_PROTO=LL128", {"choices": {"algorithm": "ring", "protocol": "ll128"}}),
            ("NCCL_ALGO set by environment to Tree", {"choices": {"algorithm": "tree"}}), ("NCCL_ALGO=Ring,Tree", {}),
            ("$ ./all_reduce_perf -b 8 -a 3", {"collective": "all_reduce", "statistic": "max"}),
            ("$ ./all_reduce_perf --average=0 -b 8", {"collective": "all_reduce", "statistic": "rank0"}),
            ("$ ./all_reduce_perf -b 8", {"collective": "all_reduce"}),
            ("$ ./all_reduce_perf; ./all_reduce_perf", {"collective": "all_reduce"}),
            ("$ ./all_reduce_perf; ./all_gather_perf", {}), ("# Collective test concluded: all_reduce_perf", {}),
            ("# Collective test starting: all_reduce_perf", {"collective": "all_reduce"}),
            ("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong", {"width": 4}),
            ("# size count type time algbw busbw error time algbw busbw error", {"width": 4, "counts_wrong": False}),
            ("# bytes N type op time algbw busbw res time algbw busbw res",
             {"width": 4, "counts_wrong": False, "unit": -3}),
            ("# size count type redop root time algbw busbw #wrong timestamp", {"width": 4}),
            ("# size count type redop root time algbw busbw", {"width": 3, "counts_wrong": False}),
            ("# size time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv%",
             {"width": 8}),
        ],
    )  # fmt: skip
    def test_what_a_line_says(self, line, said):
        assert self.look(line) == said

    def test_later_lines_count_more_but_for_what_nccl_says_of_ranks(self):
        assert self.look("h NCCL INFO comm 0x1 nranks 16 a", stated_ranks=8) == {}
        assert self.look("$ ./all_reduce_perf -a 3", "$ ./all_gather_perf") == {"collective": "all_gather"}
        assert self.look("# bytes N type op time algbw busbw", "# size time algbw busbw #wrong") == {"width": 4}
        assert self.look("NCCL_ALGO=Ring", "NCCL_PROTO=LL", "NCCL_ALGO=Tree") == {
            "choices": {"algorithm": "tree", "protocol": "ll"}
        }

    @pytest.mark.parametrize(
        ("groups", "hosts", "ranks", "nodes"),
        [
            ({}, {}, 64, 8), ({0: {0, 1, 2}}, {0: {"a", "b"}}, 3, 2), ({0: {0, 5}}, {0: {"a", "b"}}, 6, None),
            ({1: {1, 3, 5}, 0: {0, 2}}, {1: {"a", "b", "c"}, 0: {"a"}}, 2, 1),
        ],
    )  # fmt: skip
    def test_ranks_and_nodes_are_those_of_the_first_group(self, groups, hosts, ranks, nodes):
        one = nccl_text._TableContext(groups=groups, hosts=hosts, stated_ranks=64, stated_nodes=8, iterations=5)
        assert one.facts() == {"ranks": ranks, "nodes": nodes, "iterations": 5}


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
