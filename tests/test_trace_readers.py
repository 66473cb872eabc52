"""Traces and records of jobs: what kernels, calls and records say, calls of several ranks, objects in texts."""

import gzip
import json

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import chakra, json_values, lines, read_measurements
from simnet.cost_models.calibration.readers.jobs import CALL_COLUMNS, WAITING_REMARK, merge_ranks
from simnet.cost_models.calibration.readers.tables import measurement_table
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

    def test_events_without_arguments_or_times_are_passed_over(self, tmp_path):
        odd = [KERNEL | {"args": 3}, 5, KERNEL | {"dur": "x"}, KERNEL | {"cat": 3}, KERNEL | {"name": 3}]
        measured = self.read(tmp_path, *odd[:4], KERNEL | {"name": "gemm", "args": {}}, odd[4], KERNEL)
        assert [known(row, "line", "nbytes", "seconds") for row in measured.rows.to_dict("records")] == [
            (7, 20, pytest.approx(1e-5)), (8, 20, pytest.approx(1e-5)),
        ]  # fmt: skip
        assert [str(one) for one in measured.problems] == [f"{tmp_path / 'a.json'}: {WAITING_REMARK}"]

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

    def test_calls_that_do_not_say_what_they_do_are_none(self, tmp_path):
        for args in ({"External id": 1}, ARGS, ARGS | {"External id": -1}):
            call = {"name": "record_param_comms", "cat": "cpu_op", "args": args}
            with pytest.raises(InputError, match="holds no measurement that can be read"):
                self.read(tmp_path, call)
        with pytest.raises(InputError, match="has collectives, but no kernel of them, and so no times; profile with"):
            self.read(tmp_path, {"name": "record_param_comms", "cat": "cpu_op", "args": ARGS | {"External id": 1}})

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

    def test_lists_of_events_alone_are_traces(self, tmp_path):
        path = put(tmp_path, "\n[\n" + json.dumps(KERNEL) + "\n]\n", "a.json")
        assert read_measurements(path, kind="kineto").rows["line"].tolist() == [3]
        with pytest.raises(InputError, match="is no trace of the PyTorch profiler: it has no list traceEvents"):
            read_measurements(put(tmp_path, '{"a": 1}', "a.json"), kind="kineto")


class TestInspector:
    def read(self, folder, *entries, **options):
        return objects(folder, *entries, kind="inspector", **options)

    def test_entries_that_say_nothing_are_passed_over_or_told(self, tmp_path):
        good = {"header": HEADER, "coll_perf": OF}
        odd = [3, {"header": HEADER}, {"coll_perf": OF}, {"header": 1, "coll_perf": OF},
               {"header": HEADER, "coll_perf": OF | {"coll": "x" * 41}}]  # fmt: skip
        lacking = [good | {"coll_perf": OF | {name: None}} for name in ("coll_msg_size_bytes", "coll_exec_time_us")]
        measured = self.read(tmp_path, *odd, *lacking, good)
        assert [(one.line, one.message) for one in measured.problems] == [
            (5, f"'{'x' * 40}' has no size and time that are read"),
            (6, "'AllReduce' has no size and time that are read"),
            (7, "'AllReduce' has no size and time that are read"), (None, WAITING_REMARK),
        ]  # fmt: skip
        (row,) = measured.rows.to_dict("records")
        names = ("collective", "nbytes", "size_convention", "sequence", "rank", "ranks", "nodes", "group", "statistic")
        assert known(row, *names) == ("all_reduce", 1000, "vector", 3, 1, 4, 2, "0x7", "rank")
        assert known(row, "tool", "seconds", "line") == ("nccl", pytest.approx(1e-5), 8)

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

    def test_ranks_are_processes_times_their_devices(self, tmp_path):
        for processes, each, ranks in ((2, 4, 8), (2, 1, 2), (2, 0, 2), (2, None, 2), (0, 4, None), (None, 4, None)):
            (row,) = self.rows(
                tmp_path, RECORD | {"name": "Broadcast", "ranks": processes, "gpusPerRank": each}
            )  # fmt: skip
            assert known(row, "ranks") == (ranks,)

    def test_sides(self, tmp_path):
        for said, in_place in ((1, True), ("1", True), (" true", True), (True, True), (0, False), ("x", False)):
            assert self.rows(tmp_path, RECORD | {"inPlace": said})[0]["in_place"] is in_place

    def test_records_that_say_too_little_are_passed_over_or_told_by_line(self, tmp_path):
        lacking = [{name: one for name, one in RECORD.items() if name != left} for left in RECORD]
        odd = [RECORD | {"name": "y" * 41}, RECORD | {"size": "1" * 21}]
        measured = objects(tmp_path, *lacking, *odd, RECORD, kind="rccl")
        assert [(one.line, one.message) for one in measured.problems] == [
            (7, f"'{'y' * 40}' of 1000 bytes is nothing that is read"),
            (8, f"'AllReduce' of {'1' * 20} bytes is nothing that is read"),
        ]  # fmt: skip
        assert measured.rows["line"].tolist() == [9]

    def test_tables_are_read_as_records(self, tmp_path):
        text = ",".join(RECORD) + "\n" + ",".join(map(str, RECORD.values())) + "\n"
        (row,) = read_measurements(put(tmp_path, text), kind="rccl").rows.to_dict("records")
        assert known(row, "collective", "line", "seconds") == ("all_reduce", 2, 1e-5)
        (row,) = read_measurements(put(tmp_path, f"\n [{json.dumps(RECORD)}]"), kind="rccl").rows.to_dict("records")
        assert row["line"] == 2


class TestChakra:
    def test_rows(self, tmp_path, monkeypatch):
        given = [
            (2, "a", "", 8, 1, ""), (3, "", "ODD", 8, 1, ""), (4, "", "ALL_REDUCE", -2, 1, ""),
            (5, "", "ALL_GATHER", 8, 250, "dp"), (6, "", "REDUCE_SCATTER", 2**62 + 1, 1, ""),
            (7, "", "BARRIER", -1, 1, ""),
        ]  # fmt: skip
        nodes = [
            TraceNode(number, name, "collective", micros, [], kind, nbytes, -1, 0, group, -1)
            for number, name, kind, nbytes, micros, group in given
        ]
        monkeypatch.setattr(chakra, "read_nodes", lambda path: iter(nodes))
        for name, rank in (("a.12.et", 12), ("a.3.et.gz", 3), ("a.et", None), ("12.et.txt", None)):
            measured = chakra.read_chakra_collectives(tmp_path / name)
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

    @pytest.mark.parametrize(
        ("head", "is_one"),
        [
            (b"\x07\n\x051.0.0", True), (b"\x07\n\x061.0.0", False), (b"\x09\n\x051.0.0\x12\x00", True),
            (b"\x08\n\x051.0.0\x12", True),
            (b"\x08\n\x051.0.0\x13", False), (b"\x06\n\x051.0.0\x12", False), (b"\x08\n\x0610.0.0", True),
            (b"\x10\n\x0e1234.1234.1234", True), (b"\x10\n\x0f1234.1234.12345", False), (b"\x07\n\x041.0.", False),
            # 0x87 0x00 is 7, 0x88 0x01 is 8 + 128: seven bits of each byte, the least first.
            (b"\x80\x01\n\x051.0.0\x12", True), (b"\x87\x00\n\x051.0.0", True), (b"\x88\x01\n\x051.0.0\x12", True),
            (b"\x88\x01\n\x051.0.0", False),
            (b"\x87\x80\x80\x80\x00\n\x051.0.0", True), (b"\x87\x80\x80\x80\x80\x00\n\x051.0.0", False), (b"", False),
        ],
    )  # fmt: skip
    def test_heads(self, head, is_one):
        assert chakra.is_chakra(head) is is_one


class TestCalls:
    def over(self, *rows):
        made = merge_ranks(measurement_table([CALL | one for one in rows], list(CALL_COLUMNS)))
        return [known(row, "rank", "seconds", "statistic") for row in made.to_dict("records")], made

    def test_the_shortest_time_of_a_call_stands_where_it_stood(self):
        found, made = self.over(
            {"rank": 0, "seconds": 3.0}, {"rank": 0, "seconds": 5.0, "sequence": 2}, {"rank": 1, "seconds": 2.0},
            {"rank": 1, "seconds": 6.0, "sequence": 2}, {"rank": 1, "seconds": 1.0, "sequence": None},
            {"rank": 0, "seconds": 4.0, "sequence": 3}, {"rank": None, "seconds": 9.0},
        )  # fmt: skip
        assert found == [
            (0, 5.0, "min"), (1, 2.0, "min"), (1, 1.0, "rank"), (0, 4.0, "rank"), (None, 9.0, "rank"),
        ]  # fmt: skip
        assert made.index.tolist() == [1, 2, 4, 5, 6]
        assert list(made) == list(measurement_table([], list(CALL_COLUMNS)))

    @pytest.mark.parametrize(
        ("name", "value"),
        [("tool", "nccl"), ("collective", "reduce"), ("ranks", 3), ("nodes", 1), ("nbytes", 9), ("group", "tp"),
         ("sequence", 2), ("source", "other/a")],
    )  # fmt: skip
    def test_calls_that_differ_are_two(self, name, value):
        found, _ = self.over({"rank": 0, "seconds": 3.0}, {"rank": 1, "seconds": 2.0, name: value})
        assert found == [(0, 3.0, "rank"), (1, 2.0, "rank")]

    def test_calls_of_one_number_go_by_their_order_and_of_one_rank_all_stay(self):
        found, _ = self.over(*({"rank": rank, "seconds": seconds} for rank, seconds in
                               ((0, 5.0), (0, 1.0), (1, 4.0), (1, 2.0), (1, 3.0))))  # fmt: skip
        assert found == [(0, 1.0, "min"), (1, 4.0, "min"), (1, 3.0, "rank")]
        alone = measurement_table([CALL | {"rank": 0, "seconds": one} for one in (2.0, 1.0)], list(CALL_COLUMNS))
        assert merge_ranks(alone) is alone
        without = alone.drop(columns="group")
        assert merge_ranks(without) is without
        # Of two that took as long, the first stays.
        found, _ = self.over({"rank": 0, "seconds": 3.0}, {"rank": 1, "seconds": 3.0})
        assert found == [(0, 3.0, "min")]


class TestObjects:
    def test_objects_stand_with_their_lines(self):
        for text, found in (
            ('[{"a": 1},\n\n 3, {"a": 2}]\n{"a": 3}', [(1, {"a": 1}), (3, {"a": 2})]), ("[]", []), ("", []),
            ('\n{"a": 1}\n{"a": 2}', [(2, {"a": 1}), (3, {"a": 2})]), ('[[{"a": 1}]]', []), (" \n", []),
            ('"x" {"a": []}', [(1, {"a": []})]),
        ):  # fmt: skip
            assert list(json_values.json_objects(text, "a.json")) == found
        text = '\n{"x": [\n\n{"a": 1}\n]}'
        assert list(json_values.json_objects(text, "a.json", text.index("[") + 1)) == [(4, {"a": 1})]

    def test_whole_numbers_of_twenty_digits_are_whole(self):
        ((_, found),) = json_values.json_objects(f'{{"a": {"1" * 20}, "b": {"1" * 21}, "c": 1.5}}', "a.json")
        assert [type(one) for one in found.values()] == [int, float, float]
        assert found["a"] == int("1" * 20)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"a": 1}\n{"a"', "a.json:2: is not JSON, or was cut: "),
            ("\n\n" + "[" * 100_000, "a.json:3: is nested too deeply"),
        ],
    )  # fmt: skip
    def test_what_is_no_json_is_told_by_line(self, text, said):
        with pytest.raises(InputError) as error:
            list(json_values.json_objects(text, "a.json"))
        assert str(error.value).startswith(said)

    def test_so_many_objects_are_read(self, monkeypatch):
        assert json_values.MAX_OBJECTS == 10**7
        monkeypatch.setattr(json_values, "MAX_OBJECTS", 2)
        assert len(list(json_values.json_objects("{}\n{}\n", "a.json"))) == 2
        with pytest.raises(InputError, match=r"a\.json:3: has more than 2 objects, the most that are read"):
            list(json_values.json_objects("{}\n{}\n{}\n", "a.json"))


class TestLines:
    def test_limits_in_bytes(self):
        assert (lines.MAX_BYTES, lines.MAX_TRACE_BYTES, lines.HEAD_BYTES) == (67_108_864, 536_870_912, 65_536)

    def test_heads_are_unpacked_and_cut(self, tmp_path):
        path = tmp_path / "a"
        for content in (b"x" * 65_537, gzip.compress(b"x" * 65_537)):
            path.write_bytes(content)
            assert lines.read_head(path) == b"x" * 65_536
            assert lines.read_lines(path) == [lines.read_trace(path)] == ["x" * 65_537]
        path.write_bytes(gzip.compress(b"x" * 10_000)[:-9])
        assert lines.read_head(path) == b""
        assert lines.read_head(tmp_path) == b""

    def test_lines_without_nul_and_not_too_many(self, tmp_path, monkeypatch):
        assert lines.MAX_LINES == 2_000_000
        monkeypatch.setattr(lines, "MAX_LINES", 2)
        assert lines.read_lines(put(tmp_path, "a\n\nb")) == ["a", "", "b"]
        with pytest.raises(InputError, match="has more than 2 lines, the most that are read"):
            lines.read_lines(put(tmp_path, "a\n\nb\n"))
        for text, line in (("\0", 1), ("a\n\0\0", 2), ("a\nb\nc\n\0", 4)):
            with pytest.raises(InputError, match=rf"a\.log:{line}: holds a NUL byte"):
                lines.read_lines(put(tmp_path, text))

    def test_lines_without_what_stands_before_them(self):
        for line, left in (
            ("\x1b[1;31mred\x1b[0m", "red"), ("[1,0]<stderr>:x", "x"), ("12: x", "x"), ("12:x", "12:x"),
            ("2026-03-01T10:00:00.5Z x", "x"), ("x\r", "x"), ("12: 13: x", "13: x"), ("", ""),
        ):  # fmt: skip
            assert lines.bare_line(line) == left
        assert lines.bare_line("x" * 5000) == "x" * 4096
