"""Readers of measurements: what they read of each format, what they report, and that nothing makes them fall over."""

import cProfile
import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import benchmark_logs as logs
from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.base.rng import stream
from simnet.cost_models.calibration.readers import (
    LOG_FORMATS,
    TABLE_COLUMNS,
    bus_factor,
    kineto,
    log_format,
    read_measurements,
    read_tidy,
    tidy,
    total_bytes,
    write_tidy,
)
from simnet.cost_models.calibration.readers.conventions import (
    COLLECTIVES,
    bandwidth_factors,
    collective_name,
    mpi_convention,
    nccl_convention,
)
from simnet.cost_models.calibration.readers.tables import (
    LONGEST_TIME,
    SHORTEST_TIME,
    find_inconsistency,
    measurement_table,
    parse_printed,
)


def column(measured, name):
    return measured.rows[name].astype(object).where(measured.rows[name].notna(), None).tolist()


class TestNccl:
    def test_two_tests_with_noise_between_their_rows(self, tmp_path):
        measured = read_measurements(put(tmp_path, logs.NCCL))
        assert measured.kind == "nccl"
        assert not measured.problems
        rows = measured.rows
        assert rows["collective"].tolist() == ["all_reduce"] * 6 + ["all_gather"] * 4
        assert rows["nbytes"].tolist()[::2] == [1048576, 2097152, 4194304, 1048576, 2097152]
        assert rows["in_place"].tolist() == [False, True] * 5
        assert rows["seconds"].tolist()[:2] == [105.9e-6, 105.7e-6]
        assert rows["busbw"].tolist()[:2] == [14.85e9, 14.88e9]
        assert rows["ranks"].tolist() == [4] * 6 + [2] * 4
        assert rows["nodes"].tolist() == [2] * 6 + [1] * 4
        assert set(rows["ranks_per_node"]) == {2}
        assert rows["iterations"].tolist() == [20] * 6 + [50] * 4
        assert rows["run"].tolist() == ["1"] * 6 + ["2"] * 4
        assert rows["size_convention"].tolist() == ["vector"] * 6 + ["total"] * 4
        assert set(rows["algorithm"]) == {"ring"}
        assert rows["reduction"].tolist() == ["sum"] * 6 + [""] * 4
        assert rows["root"].isna().all()
        assert rows["wrong"].tolist()[:2] == [0, 0]
        assert math.isnan(rows["wrong"].iloc[-1])
        lines = logs.NCCL.splitlines()
        assert all(str(size) in lines[line - 1] for size, line in zip(rows["nbytes"], rows["line"], strict=True))

    def test_older_columns(self, tmp_path):
        measured = read_measurements(put(tmp_path, logs.NCCL_OLD))
        assert set(measured.rows["collective"]) == {"all_reduce"}, "bus above algorithm bandwidth"
        assert measured.rows["max_error"].tolist()[:2] == [2e-7, 2e-7]
        assert set(measured.rows["ranks"]) == {16}, "bus over algorithm bandwidth is 1.875"
        assert "no line says how many ranks; sizes, counts and bandwidths say 16" in measured.problems[0].message
        filled = read_measurements(put(tmp_path, logs.NCCL_OLD), facts={"ranks": 16, "nodes": 2})
        assert not filled.problems
        assert set(filled.rows["ranks_per_node"]) == {8}

    def test_times_of_version_1_are_in_milliseconds_and_those_of_a_table_below_it_are_not(self, tmp_path):
        rows = read_measurements(put(tmp_path, logs.NCCL_1 + logs.NCCL_OLD)).rows
        old, new = rows.iloc[:6], rows.iloc[6:]
        assert old["seconds"].tolist() == [52e-6, 51e-6, 504e-6, 502e-6, 1897e-6, 1894e-6]
        assert (old["nbytes"] / old["seconds"]).tolist() == pytest.approx(old["algbw"].tolist(), rel=0.01)
        assert (
            new["seconds"].tolist() == read_measurements(put(tmp_path, logs.NCCL_OLD, "b.log")).rows["seconds"].tolist()
        )

    @pytest.mark.parametrize("name", logs.ALL)
    def test_times_of_every_format_are_in_seconds(self, name, tmp_path):
        rows = read_measurements(put(tmp_path, logs.ALL[name]), facts={"ranks": 8, "nodes": 2}).rows
        assert rows["seconds"].between(1e-7, 1.0).all()

    def test_what_the_command_says_times_are(self, tmp_path):
        slowest = "$ ./all_reduce_perf -b 1M -a 3 -g 4\n" + logs.NCCL_OLD
        assert set(read_measurements(put(tmp_path, slowest)).rows["statistic"]) == {"max"}
        assert set(read_measurements(put(tmp_path, logs.NCCL)).rows["statistic"]) == {"mean"}

    def test_columns_that_a_collective_lacks(self, tmp_path):
        rows = read_measurements(put(tmp_path, logs.NCCL_EXCERPT)).rows
        assert rows["collective"].tolist() == ["all_gather"] * 4 + ["broadcast"] * 2
        assert column(read_measurements(put(tmp_path, logs.NCCL_EXCERPT)), "root") == [None] * 4 + [0] * 2
        assert rows["ranks"].tolist() == [8] * 6
        assert rows["wrong"].tolist()[4:] == [0, 0]

    def test_times_per_iteration_and_wrong_results(self, tmp_path):
        path = put(tmp_path, logs.NCCL_EACH)
        measured = read_measurements(path, facts={"ranks": 8})
        assert measured.rows["seconds_min"].tolist() == [18e-6, 18e-6, 18.5e-6, 18.5e-6]
        assert measured.rows["seconds_p99"].tolist()[0] == 24.5e-6
        assert [str(one) for one in measured.problems] == [f"{path}:7: in place: 2 elements of the result were wrong"]
        assert measured.rows["wrong"].tolist() == [0, 0, 0, 2]

    def test_labels_of_launchers_and_what_the_log_does_not_say(self, tmp_path):
        path = put(tmp_path, logs.RCCL_TAGGED)
        rows = read_measurements(path).rows
        assert set(rows["collective"]) == {"broadcast"}, "a root and no operation"
        pair = path.read_text().replace("none       0", "none      -1")
        with pytest.raises(InputError, match=r"b\.log:6: does not say which collective"):
            read_measurements(put(tmp_path, pair, "b.log"))
        assert rows["tool"].tolist() == ["rccl-tests"] * 2
        assert (rows["ranks"].tolist(), rows["root"].tolist()) == ([2, 2], [0, 0])
        labelled = "".join(f"0: {line}\n" for line in logs.NCCL.splitlines())
        pd.testing.assert_frame_equal(
            read_measurements(put(tmp_path, labelled)).rows.drop(columns="source"),
            read_measurements(put(tmp_path, logs.NCCL)).rows.drop(columns="source"),
        )

    @pytest.mark.parametrize(
        ("before", "after", "message"),
        [
            (
                "142.1   14.76",
                "142.1   41.76",
                "out of place: algorithm bandwidth is 41.76 GB/s, but 2.09715e+06 bytes",
            ),
            ("14.94   22.41", "14.94   26.14", "in place: bus bandwidth is 26.14 GB/s, but 1.5 times"),
        ],
    )
    def test_rows_that_contradict_themselves_are_reported_and_left_out(self, tmp_path, before, after, message):
        path = put(tmp_path, logs.NCCL.replace(before, after))
        measured = read_measurements(path)
        (problem,) = measured.problems
        assert message in problem.message
        assert (len(measured), problem.line, problem.dropped) == (9, 19, True)

    def test_a_row_that_was_cut_is_reported(self, tmp_path):
        path = put(tmp_path, logs.NCCL[: logs.NCCL.index("23.68")])
        measured = read_measurements(path)
        assert len(measured) == 4
        assert str(measured.problems[0]).startswith(f"{path}:20: the row has 2 numbers after type and operation")

    def test_noise_behind_a_whole_row_does_no_harm_and_inside_it_costs_the_row(self, tmp_path):
        noise = " node-two:24926:24999 [0] NCCL INFO Channel 00/02 :    0   1"
        behind = read_measurements(put(tmp_path, logs.NCCL.replace("22.41      0", "22.41      0" + noise)))
        assert (len(behind), behind.problems) == (10, ())
        inside = read_measurements(put(tmp_path, logs.NCCL.replace("14.76   22.14", "14.76" + noise)))
        assert (len(inside), [one.line for one in inside.problems]) == (8, [19])

    @given(
        rows=st.lists(
            st.tuples(
                st.integers(0, 36), st.floats(1, 1e7), st.floats(1, 1e7), st.sampled_from(["float", "half", "bfloat16"])
            ),
            min_size=1,
            max_size=8,
        ),
        name=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"]),
        ranks=st.integers(2, 64),
        old=st.booleans(),
        noise=st.booleans(),
    )
    def test_a_table_written_as_nccl_tests_does_is_read_back(self, tmp_path_factory, rows, name, ranks, old, noise):
        def number(value, width):
            power = len(str(math.ceil(value)))
            return f"{value:{width}.{2 if power < width - 2 else 1 if power < width - 1 else 0}f}"

        factor = bus_factor(name, ranks)
        lines = [f"# Collective test starting: {name}_perf"]
        lines += [f"#  Rank {k:2} Group  0 Pid {k} on host{k} device  0 [0x1] GPU" for k in range(ranks)]
        expected = []
        for power, first, second, dtype in rows:
            size = 2**power
            root = "" if old else "  0" if name == "broadcast" else " -1"
            line = (
                f"{size:12d} {size // 4:12d} {dtype:>8} {'sum' if 'reduce' in name else '' if old else 'none'} {root}"
            )
            for in_place, micros in ((False, first), (True, second)):
                bandwidth = size / micros / 1e3
                line += f" {number(micros, 7)} {number(bandwidth, 6)} {number(factor * bandwidth, 6)}   0"
                expected.append((size, in_place, float(number(micros, 7))))
            lines += [line, "host0:1:2 [0] NCCL INFO Channel 01 : 0 -> 1"] if noise else [line]
        folder = tmp_path_factory.mktemp("nccl")
        measured = read_measurements(put(folder, "\n".join(lines)), "nccl")
        assert not measured.problems
        found = measured.rows
        assert found["nbytes"].tolist() == [size for size, _, _ in expected]
        assert found["in_place"].tolist() == [in_place for _, in_place, _ in expected]
        np.testing.assert_allclose(1e6 * found["seconds"], [micros for _, _, micros in expected], rtol=1e-12)
        assert set(found["collective"]) == {name}
        assert set(found["ranks"]) == set(found["nodes"]) == {ranks}


class TestNcclJson:
    def test_rows(self, tmp_path):
        measured = read_measurements(put(tmp_path, logs.nccl_json(), "out.json"))
        assert measured.kind == "nccl-json"
        rows = measured.rows
        assert rows["seconds"].tolist() == [1e-4, 1e-4]
        assert rows["statistic"].tolist() == ["max", "max"], "-a 3"
        assert rows["seconds_p50"].tolist()[1] == 99e-6
        assert rows[["algorithm", "protocol"]].values.tolist() == [["tree", "ll128"]] * 2
        assert rows[["ranks", "nodes", "ranks_per_node"]].values.tolist() == [[4, 2, 2]] * 2
        assert column(measured, "root") == [None, None]
        assert [one.message for one in measured.problems] == [
            "results[1].in_place: the time must be a number > 0, got none"
        ]

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_versions(self, tmp_path, version):
        data = json.loads(logs.nccl_json()) | {"version": version}
        assert len(read_measurements(put(tmp_path, json.dumps(data)))) == 2

    def test_no_secret_is_kept_or_shown(self, tmp_path):
        data = json.loads(logs.nccl_json())
        measured = read_measurements(put(tmp_path, json.dumps(data)))
        shown = measured.rows.to_csv() + repr(measured.rows.attrs) + "".join(map(str, measured.problems))
        assert "TOPSECRET" not in shown
        for broken in (
            {"version": "TOPSECRET"},
            {"results": {"TOPSECRET": 1}},
            {"results": ["TOPSECRET"]},
            {"results": [{"size": "TOPSECRET"}]},
        ):
            with pytest.raises(InputError) as caught:
                read_measurements(put(tmp_path, json.dumps(data | broken)))
            assert "TOPSECRET" not in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"results": [', r"a\.log:1: is not JSON, or was cut"),
            ('{"version": 3}', "results: must be a list, got nothing"),
            ('{"version": 4, "results": []}', "version: must be a whole number in 1..3, got 4"),
            ('{"version": "3", "results": []}', "version: must be a whole number in 1..3, got text"),
            ('{"version": 3, "results": []}', "does not say which collective"),
            ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
            ("{} {}", "must be a JSON object, got 2 of them"),
        ],
        ids=range(7),
    )
    def test_what_is_refused(self, tmp_path, text, message):
        with pytest.raises(InputError, match=message):
            read_measurements(put(tmp_path, text))


def test_osu(tmp_path):
    path = put(tmp_path, logs.OSU)
    measured = read_measurements(path)
    rows = measured.rows
    names = ["all_gather", "all_reduce", "p2p_latency", "p2p_bw"]
    assert rows["collective"].tolist() == [name for name in names for _ in range(2)]
    assert rows["ranks"].tolist()[:4] == [8, 8, 16, 16]
    assert rows["nodes"].tolist()[:2] == [2, 2]
    assert rows.loc[1, ["seconds", "seconds_min", "seconds_max"]].tolist() == [12.79e-6, 9.45e-6, 15.7e-6]
    assert rows["size_convention"].tolist()[:3] == ["per_rank", "per_rank", "vector"]
    assert total_bytes(rows).tolist()[:3] == [8, 8192, 4]
    assert rows["seconds"].iloc[-2] == pytest.approx(1048576 / 2.048e9)
    assert [one.message for one in measured.problems] == ["1 elements of the result were wrong"]


def test_intel_mpi_benchmarks(tmp_path):
    measured = read_measurements(put(tmp_path, logs.IMB))
    rows = measured.rows
    assert rows["collective"].tolist() == ["all_reduce"] * 2 + ["p2p_latency"] * 3 + ["barrier"]
    assert rows["ranks"].tolist() == [144] * 2 + [2] * 3 + [16]
    assert rows.loc[1, ["seconds", "seconds_min", "seconds_max"]].tolist() == [11.69e-6, 4.5e-6, 18.59e-6]
    assert rows.loc[0, "dtype"] == "float"
    messages = [str(one) for one in measured.problems]
    assert "a.log:14: the row has 3 values, but there are 5 columns (left out)" in messages[0]
    assert "a.log:23: throughput is 999 MB/s" in messages[1]


class TestTidy:
    def test_columns_and_their_types(self, tmp_path):
        measured = read_measurements(put(tmp_path, logs.TIDY))
        assert measured.kind == "tidy"
        assert not measured.problems
        assert measured.rows["site"].tolist() == ["Bergen"] * 3
        assert column(measured, "in_place") == [False, None, None]
        assert column(measured, "line") == [3, 4, 5]
        assert list(measured.rows)[: len(TABLE_COLUMNS)] == list(TABLE_COLUMNS)

    @given(
        rows=st.lists(
            st.fixed_dictionaries(
                {
                    "collective": st.sampled_from([*COLLECTIVES, "ag_topk"]),
                    "nbytes": st.integers(0, 2**62),
                    "seconds": st.floats(1e-9, 1e6),
                },
                optional={
                    "algorithm": st.sampled_from(["ring", "tree", 'odd "name", with commas']),
                    "ranks": st.integers(1, 10**6),
                    "root": st.integers(0, 9),
                    "in_place": st.booleans(),
                    "seconds_min": st.floats(0, 1e6),
                    "wrong": st.floats(0, 1e9),
                    "iteration": st.integers(0, 1000),
                    "source": st.just("somewhere.log"),
                    "line": st.integers(1, 10**6),
                    "size_convention": st.sampled_from(["vector", "per_rank"]),
                },
            ),
            min_size=1,
            max_size=10,
        ),
        extra=st.lists(st.one_of(st.floats(-1e9, 1e9), st.none()), min_size=10, max_size=10),
    )
    def test_what_is_written_is_read_back_to_the_last_bit(self, tmp_path_factory, rows, extra):
        path = tmp_path_factory.mktemp("tidy") / "a.csv"
        first = measurement_table(rows)
        first["link_bandwidth"] = pd.Series(extra[: len(rows)], dtype=float)
        write_tidy(first, path)
        again = read_tidy(path).rows
        for at, row in enumerate(rows):
            for name, value in row.items():
                assert again.loc[at, name] == value
        if first["link_bandwidth"].notna().any():
            np.testing.assert_array_equal(again["link_bandwidth"], first["link_bandwidth"])
        write_tidy(again, path)
        pd.testing.assert_frame_equal(read_tidy(path).rows, again)

    @pytest.mark.parametrize("name", [name for name in logs.ALL if name not in ("tidy", "wide")])
    def test_rows_of_other_formats_survive(self, tmp_path, name):
        first = read_measurements(put(tmp_path, logs.ALL[name])).rows
        write_tidy(first, tmp_path / "a.csv")
        again = read_measurements(tmp_path / "a.csv")
        assert not [one for one in again.problems if one.dropped]
        without = ["line"] if name == "nccl-json" else []
        pd.testing.assert_frame_equal(again.rows.drop(columns=without), first.drop(columns=without))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("collective,nbytes,second\na,1,1\n", r"a\.csv:1: has no column 'seconds'; did you mean 'second'\?"),
            ("collective,nbytes,seconds,seconds\n", "column 'seconds' stands twice"),
            ("collective,nbytes,seconds,=x\n", "column 4 is named '=x'"),
            ("collective,nbytes,seconds\na,1\n", r"a\.csv:2: has 2 values, but there are 3 columns"),
            ("collective,nbytes,seconds\na,-1,1\n", r"a\.csv:2: nbytes: must be a whole number in 0"),
            ("collective,nbytes,seconds\na,1.5,1\n", "nbytes: must be a whole number"),
            ("collective,nbytes,seconds\na,,1\n", "nbytes: must be a whole number >= 0"),
            ("collective,nbytes,seconds\na,1,fast\n", "seconds: must be a finite number >= 0, got 'fast'"),
            ("collective,nbytes,seconds\na,1,1e999\n", "seconds: must be a finite number"),
            ("collective,nbytes,seconds\na,1,0\n", r"a\.csv:2: holds no measurement .* must be a number > 0"),
            ("collective,nbytes,seconds,ranks\na,1,1,0\n", "ranks: must be a whole number in 1.."),
            ("collective,nbytes,seconds,in_place\na,1,1,perhaps\n", "in_place: must be true or false"),
            ("collective,nbytes,seconds,size_convention\na,1,1,totl\n", "did you mean 'total'"),
            ('collective,nbytes,seconds\n"a,1,1\n', r"a\.csv:2: is not CSV"),
            ("collective,nbytes,seconds\n", "holds no measurement"),
            ("collective,nbytes,seconds" + ",a" * 200 + "\n", "has 203 columns; at most 100"),
            ("collective,nbytes,seconds\n" + "," * 70_000, r"a\.csv:2: is longer than 65,536 characters"),
            (f"collective,nbytes,seconds\n{'a' * 300},1,1\n", "collective: is longer than 200 characters"),
        ],
    )
    def test_what_is_refused(self, tmp_path, text, message):
        with pytest.raises(InputError, match=message):
            read_measurements(put(tmp_path, text, "a.csv"), "tidy")

    def test_a_column_that_is_nearly_known_is_mentioned(self, tmp_path):
        measured = read_measurements(put(tmp_path, "collective,nbytes,seconds,in_plase\nall_reduce,1,1,true\n"))
        assert "did you mean 'in_place'?" in measured.problems[0].message


def test_a_column_of_which_one_row_knows_is_missing_in_the_others():
    late = {"protocol": "LL", "ranks": 4, "algbw": 2.5, "in_place": True}
    made = measurement_table([{"seconds": 1e-3}, {"seconds": 2e-3, **late}, {"seconds": 3e-3, "tool": None}])
    assert list(made) == list(TABLE_COLUMNS)
    assert {name: made.loc[1, name] for name in late} == late
    kinds = {"text": "object", "whole": "Int64", "number": "float64", "flag": "boolean"}
    assert [str(kind) for kind in made.dtypes] == [kinds[form] for form in TABLE_COLUMNS.values()]
    for name in [*late, "nodes", "busbw", "root"]:
        assert made.loc[0, name] == "" if TABLE_COLUMNS[name] == "text" else pd.isna(made.loc[0, name])
    made.loc[0, "nodes"] = 3
    assert made["root"].isna().all()


def test_both_sides_in_a_row(tmp_path):
    measured = read_measurements(put(tmp_path, logs.WIDE))
    assert measured.kind == "wide"
    assert not measured.problems
    rows = measured.rows
    assert rows["in_place"].tolist() == [False, True, False]
    assert rows["nbytes"].tolist() == [1048576, 1048576, 8192]
    assert rows["seconds"].tolist() == [1e-4, 101e-6, 25.6e-6]
    assert rows["nodes"].tolist() == [2, 2, 2]
    assert rows["variant"].tolist() == ["a"] * 3
    assert rows["run"].tolist() == ["1", "1", "2"]
    assert rows["seconds_max"].tolist()[2] == 30e-6


def test_a_misspelt_collective_is_refused_with_the_nearest_name(tmp_path):
    rows = "collective,nbytes,seconds\nall_redcue,8,1e-5\nag_topk,8,1e-5\nall_gather,8,1e-5\n"
    measured = read_measurements(put(tmp_path, rows, "a.csv"))
    assert measured.rows["collective"].tolist() == ["ag_topk", "all_gather"]
    assert "a.csv:2: there is no collective 'all_redcue': did you mean 'all_reduce'?" in str(measured.problems[0])
    with pytest.raises(InputError, match=r"a.csv:2: holds no .*'allreduce': did you mean 'all_reduce'"):
        read_measurements(put(tmp_path, "collective,nbytes,seconds\nallreduce,8,1e-5\n", "a.csv"))


class TestKinds:
    @pytest.mark.parametrize("name", logs.ALL)
    def test_content_tells_and_the_name_does_not(self, tmp_path, name):
        path = put(tmp_path, logs.ALL[name], "a.xml")
        kind = name.split()[0]
        assert log_format(path) == kind
        pd.testing.assert_frame_equal(read_measurements(path, kind).rows, read_measurements(path).rows)

    def test_a_folder_has_a_data_csv(self, tmp_path):
        with pytest.raises(InputError, match=r"is a folder without a data\.csv"):
            read_measurements(tmp_path)
        put(tmp_path, logs.WIDE, "data.csv")
        assert read_measurements(tmp_path).kind == "wide"

    def test_what_is_none_is_refused(self, tmp_path):
        for text in ("", "a,b\n1,2\n", "hello\n", "<xml/>"):
            with pytest.raises(InputError, match="holds no measurements in a format that is read: chakra, imb"):
                read_measurements(put(tmp_path, text))
        with pytest.raises(InputError, match="unknown format 'osux'; did you mean 'osu'"):
            read_measurements(tmp_path / "a.log", "osux")
        with pytest.raises(ValueError, match="unknown column 'rank'; did you mean 'ranks'"):
            read_measurements(tmp_path / "a.log", facts={"rank": 3})
        with pytest.raises(InputError, match="there is no such file"):
            read_measurements(tmp_path / "none")
        with pytest.raises(InputError, match="cannot be read"):
            read_measurements("a" * 5000)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (logs.NCCL.encode("utf-16"), "is not UTF-8 text"),
            (logs.NCCL.replace("2097152        524288", "\0\0").encode(), r"a\.log:19: holds a NUL byte"),
            (b"#\n" * 2_000_002, "has more than 2,000,000 lines"),
            (b"0" * (64 * 2**20 + 1), "is larger than 67,108,864 bytes"),
        ],
        ids=["UTF-16", "NUL", "lines", "size"],
    )
    def test_what_is_damaged_or_too_large_is_refused(self, tmp_path, content, message):
        with pytest.raises(InputError, match=message):
            read_measurements(put(tmp_path, content))


class TestConventions:
    def test_bus_factors_are_those_of_nccl_tests(self):
        n = 6
        for name, factor in {
            "all_reduce": 2 * (n - 1) / n,
            "reduce_scatter": (n - 1) / n,
            "all_gather": (n - 1) / n,
            "alltoall": (n - 1) / n,
            "broadcast": 1,
            "reduce": 1,
            "sendrecv": 1,
        }.items():
            assert bus_factor(name, n) == pytest.approx(factor)
            assert bandwidth_factors(name, n)[0] == (1.0, bus_factor(name, n))
        assert bus_factor("barrier", n) is None

    def test_every_collective_has_one_name_and_a_convention(self):
        for name in COLLECTIVES:
            assert collective_name(name) == name
            assert collective_name(name.replace("_", "").title()) == name
            if name != "barrier":
                assert nccl_convention(name)
                assert mpi_convention(name)

    @given(
        size=st.integers(1, 10**12),
        micros=st.floats(0.1, 1e8),
        name=st.sampled_from(["all_reduce", "all_gather", "broadcast", "alltoall"]),
        ranks=st.integers(2, 4096),
        digits=st.integers(0, 4),
    )
    def test_rounding_is_no_contradiction_and_a_tenth_is(self, size, micros, name, ranks, digits):
        shown = f"{micros:.{digits}f}"
        bandwidth = size / micros / 1e3
        row = {"collective": name, "ranks": ranks, "nbytes": size, "size_convention": nccl_convention(name)}
        time, algbw = parse_printed(shown, -6), parse_printed(f"{bandwidth:.{digits}f}", 9)
        busbw = parse_printed(f"{bandwidth * bus_factor(name, ranks):.{digits}f}", 9)
        assert find_inconsistency(row, time, algbw, busbw) is None
        exact, tenth = parse_printed(f"{micros:.9e}", -6), parse_printed(f"{1.1 * bandwidth:.9e}", 9)
        assert "algorithm bandwidth" in find_inconsistency(row, exact, tenth, None)
        right = parse_printed(f"{bandwidth:.9e}", 9)
        wrong = parse_printed(f"{1.1 * bus_factor(name, ranks) * bandwidth:.9e}", 9)
        if name != "alltoall":
            assert "bus bandwidth" in find_inconsistency(row, exact, right, wrong)


NOISE = [
    b"node-1:12:13 [0] NCCL INFO Channel 00/02 :    0   1",
    b"srun: error: node-7: task 3: Exited with exit code 1",
    b"\x1b[1m",
    b"1024 256 float sum -1 1e300 1e300 1e300 0 1e-300 0 0 0",
    b"-1 -1 float sum -1 -1 -1 -1 -1",
    b"9" * 300 + b" 1 float sum -1 1 1 1 0",
    b"# OSU MPI Allreduce Latency Test",
    b"# Benchmarking Allreduce",
    b"\xc3\xa9\xe2\x80\xa8",
    b"{",
    b"#",
    b"[[[[",
    b"\r",
    b"\xff\0",
]
WORDS = [b"nan", b"1e308", b"1e-308", b"-5", b"0", b"inf", b"0x1", b"1_0", b"9" * 400, b"true", b"null", b'"', b","]


def damaged(draws, content):
    """Return a log, up to four times cut, shuffled, doubled, with flipped bits, noise or odd words in it."""
    for how in draws.integers(0, 9, draws.integers(1, 5)):
        if not content:
            break
        i, j = sorted(draws.integers(0, len(content), 2).tolist())
        lines = content.split(b"\n")
        if how == 0:
            content = content[:j]
        elif how == 1:
            content = content[i:]
        elif how == 2:
            content = b"\n".join(lines[k] for k in draws.permutation(len(lines)))
        elif how == 3:
            content = content + content[i:j]
        elif how == 4:
            flipped = bytearray(content)
            for at in draws.integers(0, len(content), 5):
                flipped[at] ^= 1 << int(draws.integers(0, 8))
            content = bytes(flipped)
        elif how == 5:
            for at in draws.integers(0, len(lines) + 1, 5):
                lines.insert(at, NOISE[draws.integers(0, len(NOISE))])
            content = b"\n".join(lines)
        elif how == 6:
            content = content[:i] + content[j:]
        elif how == 7:
            words = content.split(b" ")
            for at in draws.integers(0, len(words), 3):
                words[at] = WORDS[draws.integers(0, len(WORDS))]
            content = b" ".join(words)
        else:
            at = draws.integers(0, len(lines))
            lines[at] *= int(draws.integers(2, 50))
            content = b"\n".join(lines)
    return content


@pytest.mark.parametrize("many", [900, pytest.param(6000, marks=pytest.mark.slow)])
def test_damaged_logs_are_read_or_refused_and_nothing_else(tmp_path, many):
    """Logs of `benchmark_logs`, and as benchmarks printed them, where they are beside this checkout.

    Reading takes calls in proportion to the length: some thousands for a table, however short, and at most two a byte.
    They are counted of every fourth log, as counting takes as long as reading.
    """
    measured = Path(__file__).parents[2] / "shared" / "measured"
    made = [text.encode() for text in logs.ALL.values()]
    real = [path.read_bytes() for path in sorted(measured.glob("*/raw.log"))] or made
    path = tmp_path / "damaged.log"
    draws, good, refusals = stream(0, "damaged logs"), 0, []
    for place in range(many):
        originals = real if place % 3 == 0 else made
        content = damaged(draws, originals[draws.integers(0, len(originals))])
        kind = draws.choice([None] * (len(LOG_FORMATS) // 2) + list(LOG_FORMATS))
        facts = {"ranks": 16, "collective": "all_reduce"} if place % 2 else None
        path.write_bytes(content)
        work = cProfile.Profile(builtins=False, subcalls=False)
        if place % 4 == 0:
            work.enable()
        try:
            rows = read_measurements(path, kind, facts=facts).rows
            good += 1
            assert ((rows["seconds"] >= SHORTEST_TIME) & (rows["seconds"] <= LONGEST_TIME)).all()
            assert (rows["nbytes"] >= 0).all()
            assert "TOPSECRET" not in rows.to_csv()
        except InputError as error:
            refusals.append(str(error))
        finally:
            work.disable()
        assert sum(one.callcount for one in work.getstats()) < 20_000 + 5 * len(content)
    assert good > many / 10
    assert all(str(path) in one and len(one) < 1500 for one in refusals)


def test_sizes_on_links_are_those_of_mpi_and_of_a_method_what_a_rank_sends(tmp_path):
    head = "{},N,latency_ms,rate_mbit,size_bytes,seconds\n"
    rows = [("allgather", 4 * 100), ("bcast", 100), ("allreduce", 100), ("alltoall", 4 * 100)]
    for column, wanted in (("collective", rows), ("method", [("ag", 100), ("art", 100)])):
        text = "".join(f"{name},4,1,100,100,0.5\n" for name, _ in wanted)
        found = read_measurements(put(tmp_path, head.format(column) + text)).rows
        assert total_bytes(found).tolist() == [nbytes for _, nbytes in wanted]


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(100.0)
@example(0.0)
def test_numbers_are_written_by_the_fewest_digits_and_come_back(value):
    cell = tidy._format_cell(value)
    digits = cell.partition("e")[0].lstrip("-").lstrip("0").replace(".", "").lstrip("0")
    assert float(cell) == value
    assert digits == np.format_float_scientific(abs(value), trim="-").partition("e")[0].replace(".", "").strip("0")


def test_elements_have_as_many_bytes_as_their_name_says():
    in_c = {"char": "int8", "int": "intc", "float": "single", "complexfloat": "csingle", "complexdouble": "cdouble"}
    for name, nbytes in kineto._SIZES.items():
        bits = re.search(r"\d+", name)
        assert nbytes == (int(bits[0]) // 8 if bits else np.dtype(in_c.get(name, name)).itemsize), name


def test_times_that_none_can_have_are_left_out(tmp_path):
    text = "collective,ranks,nbytes,seconds\nall_reduce,8,1,1e-13\nall_reduce,8,2,1e10\nall_reduce,8,4,1e-5\n"
    measured = read_measurements(put(tmp_path, text))
    assert len(measured) == 1
    assert [str(one) for one in measured.problems] == [
        f"{tmp_path / 'a.log'}:{line}: the time must be 1e-12 to 1e+09 s, got {shown} s (left out)"
        for line, shown in ((2, "1e-13"), (3, "1e+10"))
    ]


def test_collectives_that_sent_nothing_between_nodes_are_left_out(tmp_path):
    # 8 elements among 32 ranks: each gathers none, and the call returns at once.
    rows = "all_gather,32,32,32,2.8e-08\nall_gather,32,32,1024,1e-05\nall_gather,32,1,32,2.8e-08\n"
    measured = read_measurements(put(tmp_path, f"collective,ranks,nodes,nbytes,seconds\n{rows}"))
    assert measured.rows["nodes"].tolist() == [32, 1]
    assert [(one.line, "32 nodes in 2.8e-08 s" in one.message) for one in measured.problems] == [(2, True)]


@given(content=st.binary(max_size=200), kind=st.sampled_from([None, *LOG_FORMATS]))
def test_anything_is_refused_by_an_error_for_people(tmp_path_factory, content, kind):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_measurements(path, kind)


@pytest.mark.parametrize(
    "line",
    [
        " " * 4000,
        "#" * 4000,
        "# " * 2000,
        "1" * 4000,
        "1 " * 2000,
        "#OSU MPI" * 500,
        "# nranks=" * 400,
        "NCCL INFO nranks " * 200,
        "1 1 float" + " " * 4000,
        "#repetitions" + " " * 4000,
        "#" + " " * 3000 + "#bytes",
        "# Rank 1 Group " * 250,
        "mpiexec-" * 500,
    ],
    ids=range(13),
)
@pytest.mark.parametrize("kind", ["nccl", "osu", "imb"])
def test_long_lines_take_no_longer_than_their_length(tmp_path, kind, line):
    path = put(tmp_path, (line + "\n") * 200)
    before = time.process_time()
    with pytest.raises(InputError):
        read_measurements(path, kind)
    assert time.process_time() - before < 5


def test_measurements_beside_the_repository_agree_with_their_logs(shared):
    folder = shared / "measured"
    found = sorted(folder.glob("*/raw.log"))
    for log in found:
        raw, csv = read_measurements(log), read_measurements(log.parent)
        assert not raw.problems
        keys = ["collective", "ranks", "nbytes", "in_place", "seconds", "algbw", "busbw"]
        ours = raw.rows[keys].sort_values(keys, ignore_index=True)
        theirs = csv.rows[keys].sort_values(keys, ignore_index=True)
        pd.testing.assert_frame_equal(ours, theirs)
    wide = [read_measurements(csv) for csv in sorted(folder.glob("*/data.csv")) if log_format(csv) == "wide"]
    dropped = [str(one) for measured in wide for one in measured.problems if one.dropped]
    # Eight elements gathered among 32 ranks: nothing was sent.
    assert all("nothing can have been sent" in one for one in dropped)
    assert len(dropped) <= 4
