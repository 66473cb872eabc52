"""Tables of measurements: limits, what rows must agree with, cells of CSV, what sizes and bandwidths mean."""

import math

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import conventions, read_tidy
from simnet.cost_models.calibration.readers.csv_tables import csv_records
from simnet.cost_models.calibration.readers.tables import PrintedNumber, find_inconsistency, measurement_table

REDUCE = {"collective": "all_reduce", "ranks": 8, "nbytes": 1000, "size_convention": "vector"}


def exact(value):
    return PrintedNumber(value, 0.0)


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


class TestTidy:
    def read(self, folder, *lines, **options):
        return read_tidy(put(folder, "\n".join(lines) + "\n", "a.csv"), **options)

    def refused(self, folder, *lines, **options):
        with pytest.raises(InputError) as error:
            self.read(folder, *lines, **options)
        return str(error.value).replace(f"{folder}/", "")

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
            (["seconds", "1", "1" * 131_073], "a.csv:3: is not CSV: field larger than field limit (131072)"),
        ],
    )  # fmt: skip
    def test_what_is_no_table_is_refused_by_line(self, lines, said):
        with pytest.raises(InputError) as error:
            list(csv_records(lines, ["seconds"], "a.csv")[2])
        assert str(error.value) == said


class TestConventions:
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
