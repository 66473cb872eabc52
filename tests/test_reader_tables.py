"""Tables of measurements: limits, what rows must agree with, cells of CSV, what sizes and bandwidths mean."""

import math
from decimal import Decimal

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import conventions, read_tidy, tables, write_tidy
from simnet.cost_models.calibration.readers.tables import (
    PrintedNumber,
    RowCollector,
    find_inconsistency,
    measurement_table,
    mpi_row,
    parse_printed,
)
from simnet.cost_models.calibration.readers.tidy import csv_records

ROW = {"collective": "broadcast", "nbytes": 8, "seconds": 1.0}
REDUCE = {"collective": "all_reduce", "ranks": 8, "nbytes": 1000, "size_convention": "vector"}


def exact(value):
    return PrintedNumber(value, 0.0)


class TestCollector:
    def added(self, row, *, facts=None, **shown):
        out = RowCollector("a.log", "tidy", facts or {})
        out.add(ROW | row, 3, **shown)
        return out

    def test_what_is_printed_counts_where_the_row_says_nothing(self):
        shown = {"time": exact(2.0), "algbw": exact(4.0), "busbw": exact(4.0)}
        out = RowCollector("a.log", "tidy")
        out.add({"collective": "broadcast", "nbytes": 8}, 3, **shown)
        out.add({"collective": "broadcast", "nbytes": 8, "seconds": 1.0, "algbw": None, "busbw": 3.0}, 3)
        assert [[row[name] for name in ("seconds", "algbw", "busbw")] for row in out.rows] == [
            [2.0, 4.0, 4.0], [1.0, None, 3.0],
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [(None, "none"), (1, "1"), (math.nan, "nan"), (-1.0, "-1"), ("x" * 41, "x" * 40), (math.inf, "inf")],
    )
    def test_times_are_numbers_above_0(self, seconds, shown):
        for where, before in (("", ""), ("in place", "in place: ")):
            out = self.added({"seconds": seconds}, where=where)
            assert [str(one) for one in out.problems] == [
                f"a.log:3: {before}the time must be a number > 0, got {shown} (left out)"
            ]
            assert not out.rows

    def test_what_is_wrong_is_said_with_its_place(self):
        for row, said in (
            ({"seconds": 1e10}, "the time must be 1e-12 to 1e+09 s, got 1e+10 s"),
            ({"seconds": 1e9 + 0.5}, "the time must be 1e-12 to 1e+09 s, got 1e+09 s"),
            ({"collective": "all_redcue"}, "there is no collective 'all_redcue': did you mean 'all_reduce'?"),
            ({"collective": "allgather" + "_" * 40},
             f"there is no collective 'allgather{'_' * 31}': did you mean 'all_gather'?"),
            ({"nodes": 2, "seconds": 1e-8},
             "nothing can have been sent between 2 nodes in 1e-08 s; are there fewer elements than ranks?"),
        ):  # fmt: skip
            out = self.added(row, where="here")
            assert [(str(one), len(out.rows)) for one in out.problems] == [(f"a.log:3: here: {said} (left out)", 0)]

    def test_nodes_follow_from_facts_before_times_are_judged(self):
        facts = {"ranks": 8, "ranks_per_node": 4}
        assert not self.added({"seconds": 1e-8}, facts=facts).rows
        (row,) = self.added({}, facts=facts).rows
        assert (row["ranks"], row["nodes"], row["ranks_per_node"]) == (8, 2, 4)

    def test_facts_name_the_collective_where_the_row_does_not(self):
        for nothing in (None, ""):
            (row,) = self.added({"collective": nothing}, facts={"collective": "reduce"}).rows
            assert row["collective"] == "reduce"
        assert not self.added({"collective": ""}, facts={"collective": "bcast"}).rows

    def test_rows_that_contradict_themselves_are_dropped(self):
        out = self.added({}, where="x", time=exact(1.0), algbw=exact(9.0))
        (problem,) = out.problems
        assert problem.message == "x: algorithm bandwidth is 9e-09 GB/s, but 8 bytes in 1 s are 8e-09 GB/s"
        assert (problem.dropped, out.rows) == (True, [])

    def test_columns_of_numbers_hold_numbers_and_others_what_they_are(self):
        out = RowCollector("a.log", "some kind")
        for value in (1, "2.5", None, "x", 10**400):
            out.add(ROW | {"extra": value, "word": value}, 3)
        made = out.done({"extra": True, "word": False})
        assert made.kind == "some kind"
        assert [None if math.isnan(one) else one for one in made.rows["extra"]] == [1.0, 2.5, None, None, None]
        assert made.rows["word"].tolist() == [1, "2.5", None, "x", 10**400]
        assert str(made.rows["extra"].dtype) == "float64"
        assert list(out.done().rows) == list(tables.TABLE_COLUMNS)

    def test_readers_take_facts_and_drop_what_contradicts_itself(self, tmp_path):
        path = put(tmp_path, "collective,nbytes,seconds,algbw\nbroadcast,8,1.0,9.0\nbroadcast,8,1.0,8.0\n")
        assert read_tidy(path).rows["algbw"].tolist() == [8.0]
        assert read_tidy(str(path), facts={"ranks": 4}).rows["ranks"].tolist() == [4]


class TestAgreement:
    def said(self, time=None, algbw=None, busbw=None, **row):
        shown = [
            None if one is None else one if isinstance(one, PrintedNumber) else exact(one)
            for one in (time, algbw, busbw)
        ]
        return find_inconsistency(REDUCE | row, *shown)

    def test_size_over_time_is_algorithm_bandwidth_as_far_as_digits_tell(self):
        # 1000 bytes in 0.9 to 1.1 s are 909.1 to 1111.1 byte/s.
        for algbw, agrees in ((909.1, True), (1111.1, True), (909.0, False), (1111.2, False)):
            assert (self.said(PrintedNumber(1.0, 0.1), algbw) is None) is agrees
        assert self.said(PrintedNumber(1.0, 0.1), PrintedNumber(900.0, 9.1)) is None
        assert self.said(PrintedNumber(1.0, 0.1), PrintedNumber(900.0, 9.0)) is not None
        # A time that is no more than its digits leave open may be as short as any.
        for half in (1.0, 2.0):
            assert self.said(PrintedNumber(1.0, half), 1e12) is None
        assert self.said(PrintedNumber(1.0, 1.0), 499.0) is not None

    def test_bus_bandwidth_is_that_times_the_factor(self):
        # 1.75 times 990 to 1010, and 5 more: 1727.5 .. 1772.5
        for busbw, agrees in ((1772.4, True), (1772.6, False), (1727.6, True), (1727.4, False)):
            assert (self.said(None, PrintedNumber(1000.0, 10.0), PrintedNumber(busbw, 5.0)) is None) is agrees
        assert self.said(None, 4.0, PrintedNumber(0.0, 7.0)) is None
        assert self.said(None, 1e9, 1e9) == (
            "bus bandwidth is 1 GB/s, but 1.75 times the algorithm bandwidth is 1.75 GB/s (all_reduce, 8 ranks)"
        )

    def test_what_is_not_known_contradicts_nothing(self):
        assert self.said(1.0) is self.said(None, 5.0) is self.said(None, None, 5.0) is self.said(1.0, None, 5.0) is None
        assert self.said(1.0, 5.0, nbytes=None) is None
        assert self.said(1.0, 5.0, size_convention="per_rank", ranks=None) is None
        assert self.said(1.0, 1000.0, 5.0, ranks=None) is None
        assert self.said(1.0, 1000.0, 5.0, collective="barrier") is None
        assert self.said(1.0, 8000.0, size_convention="per_rank", collective="broadcast") is None

    def test_either_way_of_counting_a_gather_is_right_and_the_usual_one_is_told(self):
        for algbw, busbw, agrees in ((1000.0, 750.0, True), (750.0, 750.0, True), (1000.0, 1000.0, False)):
            assert (self.said(1.0, algbw, busbw, collective="gather", ranks=4) is None) is agrees
        assert self.said(1.0, 1e9, 1e9, collective="gather", ranks=4, nbytes=10**9) == (
            "bus bandwidth is 1 GB/s, but 0.75 times the algorithm bandwidth is 0.75 GB/s (gather, 4 ranks)"
        )


def test_rows_of_mpi_benchmarks_have_times_in_microseconds():
    cells = {"Iterations": "7", "Avg": "2.5", "Min": "x"}
    row = mpi_row("all_gather", 64, cells, "Iterations", {"Avg": "seconds", "Min": "seconds_min", "Max": "seconds_max"})
    assert row == {
        "collective": "all_gather", "nbytes": 64, "size_convention": "per_rank", "in_place": False, "statistic": "mean",
        "iterations": 7, "seconds": 2.5e-6,
    }  # fmt: skip
    assert mpi_row("reduce", 64, {}, "Iterations", {})["iterations"] is None


def test_tables_have_columns_of_their_own_behind():
    made = measurement_table([ROW | {"mine": 1}, dict(ROW)], ["mine"])
    assert list(made) == [*tables.TABLE_COLUMNS, "mine"]
    assert made["mine"].tolist()[0] == 1
    assert pd.isna(made["mine"][1])
    assert len(measurement_table([])) == 0


class TestTidy:
    def read(self, folder, *lines, **options):
        return read_tidy(put(folder, "\n".join(lines) + "\n", "a.csv"), **options)

    def refused(self, folder, *lines, **options):
        with pytest.raises(InputError) as error:
            self.read(folder, *lines, **options)
        return str(error.value).replace(f"{folder}/", "")

    def test_other_columns_are_numbers_if_all_of_their_cells_are(self, tmp_path):
        rows = self.read(tmp_path, "# mine", "collective,nbytes,seconds,site,cards", "reduce,8,1.0,7,2",
                         "reduce,8,1.0,x,", "reduce,8,1.0,8,3").rows  # fmt: skip
        assert rows["site"].tolist() == ["7", "x", "8"]
        assert rows["cards"].tolist()[::2] == [2.0, 3.0]
        assert math.isnan(rows["cards"][1])
        assert rows["line"].tolist() == [3, 4, 5]

    def test_names_that_are_nearly_known_are_said(self, tmp_path):
        measured = self.read(tmp_path, "# one", "# two", "collective,nbytes,seconds,in_plase", "reduce,8,1.0,true")
        assert [str(one).replace(f"{tmp_path}/", "") for one in measured.problems] == [
            "a.csv:3: column 'in_plase' is not known and kept as it is; did you mean 'in_place'?"
        ]
        # 'algorithms' shares 9 of 9 and 10 letters, 2 * 9 / 19 = 0.95; 'ranked' 4 of 5 and 6 of 'ranks', 8 / 11 = 0.73.
        assert (
            "'algorithm'"
            in self.read(tmp_path, "collective,nbytes,seconds,algorithms", "reduce,8,1.0,x").problems[0].message
        )
        assert not self.read(tmp_path, "collective,nbytes,seconds,ranked", "reduce,8,1.0,x").problems

    def test_facts_stand_for_columns_that_are_needed(self, tmp_path):
        facts = {"collective": "all_gather", "nbytes": 64, "size_convention": "per_rank"}
        (row,) = self.read(tmp_path, "seconds,ranks", "1.0,4", facts=facts).rows.to_dict("records")
        assert (row["collective"], row["nbytes"], row["size_convention"]) == ("all_gather", 64, "per_rank")
        (row,) = self.read(tmp_path, "seconds,nbytes", "1.0,8", facts={"collective": "all_gather"}).rows.to_dict(
            "records"
        )
        assert row["size_convention"] == "total"
        assert self.refused(tmp_path, "seconds,collective", "1.0,reduce") == (
            "a.csv:1: has no column 'nbytes'; Given: collective, seconds"
        )

    def test_conventions_are_those_of_nccl_tests_where_none_is_said(self, tmp_path):
        rows = self.read(tmp_path, "collective,nbytes,seconds,size_convention", "all_gather,8,1.0,",
                         "all_gather,8,1.0,per_rank", "ag_topk,8,1.0,").rows  # fmt: skip
        assert rows["size_convention"].tolist() == ["total", "per_rank", ""]
        long = "x" * 41
        assert self.refused(
            tmp_path, "collective,nbytes,seconds,size_convention", f"reduce,8,1.0,{long}"
        ) == f"a.csv:2: is '{'x' * 40}'; Allowed: message, per_pair, per_rank, total, vector"  # fmt: skip

    def test_bandwidths_of_0_are_those_of_too_few_digits(self, tmp_path):
        rows = self.read(tmp_path, "collective,nbytes,seconds,algbw,busbw", "reduce,8,1.0,0.0,0",
                         "reduce,8,1.0,8.0,8.0").rows  # fmt: skip
        assert rows["algbw"].tolist() == [0.0, 8.0]
        assert "algorithm bandwidth is 9e-09 GB/s" in self.refused(
            tmp_path, "collective,nbytes,seconds,algbw", "reduce,8,1.0,9.0"
        )

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ([""], "a.csv:1: is empty"), (["# only", "# remarks"], "a.csv:1: is empty"),
            (["# one", "a,a"], "a.csv:2: column 'a' stands twice"),
            (["a,b,1c"], "a.csv:1: column 3 is named '1c'; allowed are letters, digits and _, from a letter on"),
            (["a" * 61],
             f"a.csv:1: column 1 is named '{'a' * 60}'; allowed are letters, digits and _, from a letter on"),
            (["a," * 100 + "a"], "a.csv:1: has 101 columns; at most 100 are read"),
            (["# one", "a,b"], "a.csv:2: has no column 'seconds'; Given: a, b"),
            (["seconds", "1", "1,2"], "a.csv:3: has 2 values, but there are 1 columns"),
            (["seconds", "# no", "", '"1'], "a.csv:4: is not CSV: unexpected end of data"),
            (["seconds", "1", "1" * 65_537], "a.csv:3: is longer than 65,536 characters"),
        ],
    )  # fmt: skip
    def test_what_is_no_table_is_refused_by_line(self, lines, said):
        with pytest.raises(InputError) as error:
            list(csv_records(lines, ["seconds"], "a.csv")[2])
        assert str(error.value) == said

    def test_rows_stand_with_their_lines_and_without_what_guards_them(self):
        lines = ["# remark", " b , a\r", "", "1,'=2\r", " ", "#3,4", '"5,6",7']
        line, names, records = csv_records(iter(lines), ["a"], "a.csv")
        assert (line, names) == (2, ["b", "a"])
        assert list(records) == [(4, {"b": "1", "a": "=2"}), (7, {"b": "5,6", "a": "7"})]

    @pytest.mark.parametrize(
        ("column", "said"),
        [
            ("ranks", "must be a whole number in 1..10000000"), ("nodes", "must be a whole number in 1..10000000"),
            ("ranks_per_node", "must be a whole number in 1..10000000"),
            ("root", f"must be a whole number in 0..{2**62}"),
            ("in_place", "must be true or false"), ("algbw", "must be a finite number >= 0"),
        ],
    )  # fmt: skip
    def test_cells_that_are_refused_are_shown(self, tmp_path, column, said):
        assert self.refused(tmp_path, f"collective,nbytes,seconds,{column}", f"reduce,8,1.0,{'x' * 41}") == (
            f"a.csv:2: {column}: {said}, got '{'x' * 40}'"
        )

    def test_flags_are_words_or_digits(self, tmp_path):
        words = ("true", "True", "1", "false", "FALSE", "0", "", " ")
        rows = self.read(
            tmp_path, "collective,nbytes,seconds,in_place", *(f"reduce,8,1.0,{one}" for one in words)
        ).rows  # fmt: skip
        assert [None if pd.isna(one) else one for one in rows["in_place"]] == [True] * 3 + [False] * 3 + [None] * 2

    def test_columns_that_are_needed_must_be_written_and_are_if_they_are_empty(self, tmp_path):
        with pytest.raises(
            ValueError, match="rows must have columns collective, nbytes, seconds; missing: nbytes, seconds"
        ):
            write_tidy(pd.DataFrame({"collective": ["reduce"]}), tmp_path / "a.csv")
        rows = pd.DataFrame({"mine": [0.0, None], "seconds": [1.0, 2.0], "nbytes": [8, 9], "tool": ["", None]})
        write_tidy(rows.assign(collective="", seconds_min=[0.0, math.nan]), tmp_path / "a.csv", ["by hand"])
        assert (tmp_path / "a.csv").read_bytes() == (
            b"# by hand\ncollective,nbytes,seconds,seconds_min,mine\n,8,1,0,0\n,9,2,,\n"
        )
        with pytest.raises(InputError, match=r"cannot be written: Is a directory"):
            write_tidy(rows.assign(collective=""), tmp_path)


class TestConventions:
    FACTORS = (
        ("all_reduce", ((1.0, 1.5),)), ("all_gather", ((1.0, 0.75),)), ("reduce_scatter", ((1.0, 0.75),)),
        ("all_gatherv", ((1.0, 0.75),)), ("broadcast", ((1.0, 1.0),)), ("reduce", ((1.0, 1.0),)),
        ("sendrecv", ((1.0, 1.0),)), ("hypercube", ((0.75, 1.0),)), ("barrier", ((1.0, None),)),
        *((name, ((1.0, 0.75), (0.75, 1.0)))
          for name in ("gather", "gatherv", "scatter", "scatterv", "alltoall", "alltoallv")),
    )  # fmt: skip

    @pytest.mark.parametrize(("name", "factors"), FACTORS)
    def test_bandwidths_of_four_ranks(self, name, factors):
        assert conventions.bandwidth_factors(name, 4) == factors
        assert conventions.bus_factor(name, 4) == (1.0 if name == "hypercube" else factors[0][1])
        for ranks in (None, 0, -1):
            assert conventions.bandwidth_factors(name, ranks) == ((1.0, None),)
        # One rank sends nothing to others.
        assert conventions.bandwidth_factors("all_gather", 1) == ((1.0, 0.0),)

    @pytest.mark.parametrize(
        ("facts", "filled"),
        [
            ({"ranks": 16, "nodes": 2}, {"ranks_per_node": 8}), ({"ranks": 16, "nodes": 3}, {}),
            ({"ranks": 16, "nodes": 0}, {}), ({"ranks": 16, "nodes": -2}, {}),
            ({"ranks": 1, "nodes": 1}, {"ranks_per_node": 1}),
            ({"ranks": 16, "ranks_per_node": 8}, {"nodes": 2}), ({"ranks": 16, "ranks_per_node": 3}, {}),
            ({"ranks": 16, "ranks_per_node": 0}, {}), ({"ranks": 2, "ranks_per_node": 1}, {"nodes": 2}),
            ({"ranks": 16, "nodes": 2, "ranks_per_node": 4}, {}), ({"nodes": 2}, {}), ({"ranks_per_node": 2}, {}),
            ({"ranks": 16}, {}), ({}, {}), ({"ranks": None, "nodes": 2}, {}),
            ({"ranks": "16", "ranks_per_node": 2}, {}), ({"ranks": "16", "nodes": 2}, {}),
        ],
    )  # fmt: skip
    def test_nodes_and_ranks_of_each_follow_from_each_other(self, facts, filled):
        assert conventions.fill_nodes(facts) == filled

    def test_sizes_as_nccl_tests_counts_them(self):
        for convention, factor in (
            ("vector", 1),
            ("total", 1),
            ("per_rank", 3),
            ("per_pair", 3),
            ("message", 1),
            ("", 1),
        ):
            assert conventions.total_size(10, convention, 3) == 10 * factor
            assert conventions.total_size(10, convention, None) == (10 if factor == 1 else None)
        rows = measurement_table(
            [{"nbytes": 10, "size_convention": one, "ranks": 3} for one in ("per_rank", "per_pair", "message")]
        )
        assert conventions.total_bytes(rows).tolist() == [30, 30, 10]
        rows["ranks"] = pd.Series([None, 3, None], dtype="Int64")
        assert [None if math.isnan(one) else one for one in conventions.total_bytes(rows)] == [None, 30, 10]

    def test_conventions_of_mpi_and_of_nccl(self):
        both = {
            "all_reduce": ("vector", "vector"), "all_gather": ("per_rank", "total"),
            "alltoall": ("per_pair", "total"), "alltoallv": ("per_pair", "total"), "reduce_scatter": ("total", "total"),
            "gather": ("per_rank", "total"), "scatterv": ("per_rank", "total"), "hypercube": ("total", "total"),
            "p2p_bw": ("message", "message"), "put_latency": ("message", "message"), "barrier": ("", ""),
            "ag_topk": ("", ""),
        }  # fmt: skip
        assert {one: (conventions.mpi_convention(one), conventions.nccl_convention(one)) for one in both} == both

    def test_names_are_found_in_texts_if_there_is_one(self):
        texts = {"nccl_allgather.log": "all_gather", "All-Reduce": "all_reduce",
                 "bcast broadcast": "broadcast", "reduce-scatter": "reduce_scatter",
                 "all to allv": "alltoallv", "xreduce": None,
                 "reduce1": "reduce", "reduces": None, "all_reduce all_gather": None, "": None}  # fmt: skip
        assert {one: conventions.named_collective(one) for one in texts} == texts
        for longer, name in ((0, "bcast"), (1, None)):
            found = conventions.named_collective(" " * (4091 + longer) + "bcast")
            assert found == (None if name is None else "broadcast")

    def test_misspelt_names_are_near_those_that_are_meant(self):
        # 'redcue' shares 5 letters in order with 'reduce': 2 * 5 / 12 = 0.83, and 'all_redcue' 9 of 10: 0.9.
        names = {"all_redcue": "all_reduce", "redcue": "", "allreduce": "all_reduce", "all_reduce": "", "mine": "",
                 "pingpong": "p2p_latency", "broadcasts": "broadcast"}  # fmt: skip
        assert {one: conventions.misspelt_collective(one) for one in names} == names


def test_numbers_are_printed_in_units_of_powers_of_ten():
    for text, power, value, half in (("12", 9, 12e9, 5e8), ("1.25", -6, 1.25e-6, 5e-9), ("1E2", 0, 100.0, 50.0),
                                     ("+2.e-3", 0, 0.002, 5e-4), ("0", -6, 0.0, 5e-7)):  # fmt: skip
        found = parse_printed(f" {text} ", power)
        assert found == (float(Decimal(text).scaleb(power)), half)
        assert found.value == value
    assert parse_printed("1e300", 9) is None
    assert parse_printed("9e308", 0) is None
    assert parse_printed("0e999", 0) is None
