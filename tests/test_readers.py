"""Readers of measurements: what they read of each format, what they report, and that nothing makes them fall over."""

import cProfile
import json
import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmark_logs as logs
from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.base.rng import stream
from simnet.cost_models.calibration.readers import (
    LOG_FORMATS,
    bus_factor,
    read_measurements,
    read_tidy,
    total_bytes,
    write_tidy,
)
from simnet.cost_models.calibration.readers.conventions import COLLECTIVES, bandwidth_factors
from simnet.cost_models.calibration.readers.kinds import log_format
from simnet.cost_models.calibration.readers.tables import LONGEST_TIME, SHORTEST_TIME, measurement_table


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
        assert rows["seconds"].between(1e-7, 11.0).all()

    def test_what_the_log_does_not_say(self, tmp_path):
        path = put(tmp_path, logs.RCCL_TAGGED)
        rows = read_measurements(path).rows
        assert set(rows["collective"]) == {"broadcast"}, "a root and no operation"
        pair = path.read_text().replace("none       0", "none      -1")
        with pytest.raises(InputError, match=r"b\.log:6: does not say which collective"):
            read_measurements(put(tmp_path, pair, "b.log"))
        assert rows["tool"].tolist() == ["rccl-tests"] * 2
        assert (rows["ranks"].tolist(), rows["root"].tolist()) == ([2, 2], [0, 0])

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
    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_versions(self, tmp_path, version):
        data = json.loads(logs.NCCL_JSON) | {"version": version}
        assert len(read_measurements(put(tmp_path, json.dumps(data)))) == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"results": [', r"a\.log:1: is not JSON, or was cut"),
            ('{"results": [{"size": 8}]}', "is JSON of no tool that is read"),
            ('{"version": 3}', "results: must be a list, got nothing"),
            ('{"version": 4, "results": []}', "version: must be a whole number in 1..3, got 4"),
            ('{"version": "3", "results": []}', "version: must be a whole number in 1..3, got text"),
            ('{"version": 3, "results": []}', "does not say which collective"),
            ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
            ("{} {}", "must be a JSON object, got 2 of them"),
        ],
        ids=range(8),
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
    assert "a.log:14: the row has 3 values under 5 columns: its size or its time is no number (left out)" in messages[0]
    assert "a.log:23: throughput is 999 MB/s" in messages[1]


class TestTidy:
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
            ("collective,nbytes,seconds,size_convention\na,1,1,totl\n", "did you mean 'total'"),
            ('collective,nbytes,seconds\n"a,1,1\n', r"a\.csv:2: is not CSV"),
            ("collective,nbytes,seconds\n", "holds no measurement"),
            ("collective,nbytes,seconds" + ",a" * 200 + "\n", "has 203 columns; at most 100"),
            (f"collective,nbytes,seconds\n{'a' * 300},1,1\n", "collective: is longer than 200 characters"),
        ],
    )
    def test_what_is_refused(self, tmp_path, text, message):
        with pytest.raises(InputError, match=message):
            read_measurements(put(tmp_path, text, "a.csv"), "tidy")

    def test_a_column_that_is_nearly_known_is_mentioned(self, tmp_path):
        measured = read_measurements(put(tmp_path, "collective,nbytes,seconds,in_plase\nall_reduce,1,1,true\n"))
        assert "did you mean 'in_place'?" in measured.problems[0].message


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


class TestKinds:
    @pytest.mark.parametrize("name", logs.ALL)
    def test_content_tells_and_the_name_does_not(self, tmp_path, name):
        path = put(tmp_path, logs.ALL[name], "a.xml")
        kind = name.split()[0]
        assert log_format(path) == kind
        pd.testing.assert_frame_equal(read_measurements(path, kind).rows, read_measurements(path).rows)

    def test_what_is_none_is_refused(self, tmp_path):
        for text in ("", "a,b\n1,2\n", "hello\n", "<xml/>"):
            with pytest.raises(InputError, match="holds no measurements in a format that is read: chakra, deepspeed"):
                read_measurements(put(tmp_path, text))
        with pytest.raises(InputError, match="there is no format 'osux': did you mean 'osu'"):
            read_measurements(tmp_path / "a.log", "osux")
        with pytest.raises(ValueError, match="there is no column 'rank': did you mean 'ranks'"):
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
