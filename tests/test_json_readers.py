"""Measurements in JSON, an object at a time: what each says, to the last field and message."""

import json
from types import MappingProxyType

import pandas as pd
import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import nccl_text, read_measurements


def known(row, *names):
    return tuple(None if pd.isna(row.get(one)) else row.get(one) for one in names)


class TestNccl:
    SIDE = MappingProxyType({"time": 100.0, "alg_bw": 10.24, "bus_bw": 10.24})
    ARGS = ("/opt/all_gather_perf", "-a", "2")

    def read(self, folder, *results, args=ARGS, **fields):
        data = {"version": 3, "args": list(args), "results": list(results)} | fields
        return read_measurements(put(folder, json.dumps(data), "a.json"))

    def one(self, folder, *, side="out_of_place", body=None, fields=None, **result):
        result = {"size": 1024000, side: dict(self.SIDE if body is None else body)} | result
        return self.read(folder, result, **(fields or {})).rows.to_dict("records")

    def test_fields(self, tmp_path):
        body = {"time": 100.0, "nwrong": "3"}
        (row,) = self.one(tmp_path, body=body, type="float", redop="none", root=-1, actual_iterations=7)
        names = ("collective", "nbytes", "seconds", "wrong", "dtype", "reduction", "root", "iterations", "in_place")
        assert known(row, *names) == ("all_gather", 1024000, 1e-4, 3.0, "float", "", None, 7, False)
        assert known(row, "tool", "run") == ("nccl-tests", "1")
        (row,) = self.one(tmp_path, side="in_place", body={"time": "50"}, redop="sum", root=0)
        assert known(row, "seconds", "in_place", "reduction", "root", "iterations") == (5e-5, True, "sum", 0, None)
        with pytest.raises(InputError, match=r"in_place\.cpu_time is the time of the CPU, .* run without -C 1"):
            self.one(tmp_path, side="in_place", body={"cpu_time": "50"})
        (row,) = self.one(tmp_path, fields={"config": {"iterations": 20}})
        assert row["iterations"] == 20

    def test_bandwidths_are_in_gigabytes_a_second(self, tmp_path):
        (row,) = self.one(tmp_path, body={"time": 100.0, "alg_bw": 10.24, "bus_bw": "8.96"})
        assert known(row, "algbw", "busbw") == (10.24e9, 8.96e9)

    @pytest.mark.parametrize(
        ("args", "statistic"),
        [
            (("all_gather_perf",), "mean"), (("all_gather_perf", "-a", "0"), "rank0"),
            (("all_gather_perf", "--average", "2"), "min"), (("all_gather_perf", "-a", "3"), "max"),
            (("all_gather_perf", "-a"), "mean"), (("all_gather_perf", "-a", "7"), "mean"),
        ],
    )  # fmt: skip
    def test_what_is_averaged_is_told_by_the_command(self, tmp_path, args, statistic):
        (row,) = self.read(tmp_path, {"size": 8, "out_of_place": {"time": 10.0}}, args=args).rows.to_dict("records")
        assert row["statistic"] == statistic

    def test_the_environment_pins_algorithm_and_protocol_alone(self, tmp_path):
        fields = {"env": ["NCCL_ALGO=Ring", "NCCL_PROTO=LL", "NCCL_ALGOS=Tree", 3], "devices": []}
        (row,) = self.one(tmp_path, fields=fields)
        assert known(row, "algorithm", "protocol", "ranks") == ("ring", "ll", None)

    def test_what_is_wrong_is_told_by_its_place(self, tmp_path):
        good = {"size": 1024000, "out_of_place": dict(self.SIDE)}
        found = self.read(
            tmp_path, 3, {"size": -1}, {"size": 1.5, "out_of_place": dict(self.SIDE)}, {"size": 8, "in_place": [1]},
            good, {"size": 1024000, "out_of_place": dict(self.SIDE) | {"alg_bw": 11.0}},
            {"size": 8, "out_of_place": {"time": True}},
        )  # fmt: skip
        assert len(found.rows) == 1
        assert [one.message for one in found.problems] == [
            "results[0] must be an object, got 3",
            "results[1].size must be a whole number >= 0, got -1",
            "results[2].size must be a whole number >= 0, got 1.5",
            "results[3].in_place must be an object, got a list",
            "results[5].out_of_place: algorithm bandwidth is 11 GB/s, but 1.024e+06 bytes in 0.0001 s are 10.24 GB/s",
            "results[6].out_of_place: the time must be a number > 0, got none",
        ]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "a.json: must be a JSON object, got 0 of them"),
            ("{}\n{}", "a.json: must be a JSON object, got 2 of them"),
            ('{"a":\n', "a.json:2: is not JSON, or was cut: Expecting value"),
        ],
    )  # fmt: skip
    def test_what_is_no_object_is_refused_by_line(self, tmp_path, text, said):
        with pytest.raises(InputError) as error:
            nccl_text.load_nccl_json(put(tmp_path, text, "a.json"))
        assert str(error.value) == f"{tmp_path}/{said}"


class TestKineto:
    def read(self, folder, *events, rank=3):
        trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": list(events)}
        return read_measurements(put(folder, json.dumps(trace), "a.json"))

    def kernel(self, micros=10.0, name="ncclKernel", **args):
        said = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "In msg nelems": 5,
            "Out msg nelems": 7,
            "Group size": 4,
        }
        given = {key.replace("_", " "): value for key, value in args.items()}
        return {"cat": "kernel", "name": name, "dur": micros, "args": said | given}

    def test_kernels_that_say_too_little_are_counted_by_why(self, tmp_path):
        found = self.read(
            tmp_path, self.kernel(), self.kernel(Collective_name="warm up"), self.kernel(Collective_name="warm up"),
            self.kernel(dtype="Odd"), self.kernel(In_msg_nelems=None), self.kernel(Collective_name=""),
        )  # fmt: skip
        said = [one.message for one in found.problems if one.dropped]
        assert said == [
            "'warm up' is no collective that is read; 2 such kernels",
            "a kernel of 'allreduce' has no number and no type of elements; 2 such kernels",
            "a kernel does not say which collective it is of; 1 such kernels",
        ]
        assert len(found.rows) == 1

    def test_calls_stand_for_kernels_of_their_number_if_there_is_one(self, tmp_path):
        call = {"name": "record_param_comms", "cat": "cpu_op", "args": self.kernel()["args"] | {"External id": 9}}
        alone = {"cat": "Kernel", "name": "ncclKernel", "dur": 20.0, "args": {"External id": 9}}
        other = {"cat": "kernel", "name": "gemm", "dur": 30.0, "args": {"External id": 9}}
        (row,) = self.read(tmp_path, call, alone, other).rows.to_dict("records")
        assert known(row, "seconds", "collective") == (pytest.approx(2e-5), "all_reduce")
        with pytest.raises(InputError, match="no kernel of them, and so no times"):
            self.read(tmp_path, call, other)
        with pytest.raises(InputError, match="holds no measurement"):
            self.read(tmp_path, call, alone, alone)
