"""Tables and remarks: which cells may be empty, what is shown of long ones, how many remarks are listed."""

import csv

import pytest

from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import read_tidy, write_tidy
from simnet.cost_models.calibration.readers.shaped import read_shaped
from simnet.cost_models.calibration.readers.tables import (
    measurement_table,
)
from simnet.cost_models.calibration.readers.wide import read_wide
from simnet.cost_models.calibration.summary import problem_lines, read_rows
from simnet.cost_models.calibration.topology_links import place_ranks

HEADS = ("stack", "collective", "N", "latency_ms", "rate_mbit", "size_bytes", "seconds", "rep", "params", "profile")
CELLS = ("mpich", "bcast", "3", "5", "100", "9", "1", "2", "64", "eager")


def shaped(folder, **changed):
    cells = dict(zip(HEADS, CELLS, strict=True)) | changed
    path = folder / "mine.csv"
    path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
    return read_shaped(path).rows


class TestShaped:
    def test_units_are_those_of_the_names(self, tmp_path):
        (row,) = shaped(tmp_path).to_dict("records")
        wanted = {
            "collective": "broadcast", "ranks": 3, "link_latency": 0.005, "link_bandwidth": 12.5e6, "nbytes": 9,
            "seconds": 1.0, "iteration": 2, "parameters": 64.0, "profile": "eager", "tool": "mpich",
            "size_convention": "vector", "statistic": "max",
        }  # fmt: skip
        assert {name: row[name] for name in wanted} == wanted

    @pytest.mark.parametrize("name", ["N", "size_bytes", "latency_ms", "rate_mbit"])
    @pytest.mark.parametrize("text", ["", "x"])
    def test_what_is_needed_must_be_there(self, tmp_path, name, text):
        with pytest.raises(InputError, match=rf"mine.csv:2: {name}: must be a .*number.*, got '{text}'"):
            shaped(tmp_path, **{name: text})

    @pytest.mark.parametrize("name", ["rep", "params"])
    def test_what_is_not_may_be_empty_but_nothing_else(self, tmp_path, name):
        column = {"rep": "iteration", "params": "parameters"}[name]
        assert shaped(tmp_path, **{name: ""})[column].isna().all()
        with pytest.raises(InputError, match=f"mine.csv:2: {name}: must be a .*number.*, got 'x'"):
            shaped(tmp_path, **{name: "x"})

    def test_numbers_beside_are_in_units_of_their_own(self, tmp_path):
        named = {
            "latency_ms": ("link_latency", 3e-3), "rate_mbit": ("link_bandwidth", 3 * 125e3), "params": ("parameters",
            3.0),
            "cr": ("density", 3.0), "t_after_bcast_s": ("seconds_after_broadcast", 3.0), "t_start_s": ("began", 3.0),
            "start_skew_s": ("start_skew", 3.0), "since_change_s": ("since_change", 3.0),
            "straddles_change": ("straddles_change", 3.0),
        }  # fmt: skip
        (row,) = shaped(tmp_path, **dict.fromkeys(named, "3")).to_dict("records")
        assert {column: row[column] for column, _ in named.values()} == dict(named.values())
        assert "density" not in shaped(tmp_path)
        assert str(shaped(tmp_path, params="")["parameters"].dtype) == "float64"


def test_names_of_shipped_measurements_are_told_from_files(tmp_path):
    unknown = "there is no such file, and no shipped measurements 'shaped_glo'; did you mean 'shaped_gloo'"
    with pytest.raises(InputError, match=unknown):
        read_rows("shaped_glo", {})
    for path in (str(tmp_path / "none"), "none.csv"):
        with pytest.raises(InputError) as refused:
            read_rows(path, {})
        assert "no shipped measurements" not in str(refused.value)


def test_twenty_remarks_are_listed():
    for count, more in ((20, []), (21, ["  and 1 more, which --json lists"])):
        head, *lines = problem_lines(["a.log:1: is cut"] * count)
        assert head == f"{count} remarks on the logs:"
        assert lines == ["  a.log:1: is cut"] * 20 + more
    assert problem_lines(["a.log:1: is cut"])[0] == "1 remark on the logs:"
    assert problem_lines([]) == []


@pytest.mark.parametrize("value", ["x" * 41, "00000", "4097", "9999999", ""])
def test_ranks_per_node_are_whole_and_at_most_4096(value):
    with pytest.raises(InputError) as refused:
        place_ranks("multi_gpu_nodes", [f"gpus_per_node={value}"])
    assert str(refused.value) == f"--network: gpus_per_node: must be a whole number in 1..4096, got {value[:40]!r}"
    assert place_ranks("multi_gpu_nodes", ["gpus_per_node=4096"]).each == 4096


class TestTidy:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.5, "0.5"), (10.0, "1e+1"), (0.0001, "0.0001"), (0.00001, "1e-5"), (12345.5, "12345.5"),
            (123456.5, "1.234565e+5"), (1234.0, "1234"), (1.0, "1"), (0.00012, "0.00012"), (0.0000123, "1.23e-5"),
        ],
    )  # fmt: skip
    def test_numbers_are_written_by_their_digits(self, tmp_path, seconds, text):
        write_tidy(
            measurement_table([{"collective": "broadcast", "nbytes": 8, "seconds": seconds}]), tmp_path / "a.csv"
        )
        assert (tmp_path / "a.csv").read_text().splitlines()[1] == f"broadcast,8,{text}"

    def test_flags_texts_and_remarks(self, tmp_path):
        first, second = {"in_place": True, "ranks": 3}, {"in_place": False, "algorithm": "a,b"}
        rows = measurement_table(
            [{"collective": name, "nbytes": 8, "seconds": 0.5} | one for name, one in (("=x", first), ("y", second))]
        )
        write_tidy(rows.assign(site="here"), tmp_path / "a.csv", ["one", "two"])
        head, *lines = (tmp_path / "a.csv").read_text().splitlines()[2:]
        assert (tmp_path / "a.csv").read_text().startswith("# one\n# two\n")
        assert head.split(",")[-1] == "site"
        cells = [dict(zip(head.split(","), next(csv.reader([one])), strict=True)) for one in lines]
        assert [one["in_place"] for one in cells] == ["true", "false"]
        assert [one["ranks"] for one in cells] == ["3", ""]
        assert [one["algorithm"] for one in cells] == ["", "a,b"]
        assert cells[0]["collective"] == "'=x"
        assert "nodes" not in cells[0]

    @pytest.mark.parametrize(
        ("column", "text", "value"),
        [
            ("ranks", "8.0", 8), ("ranks", " 8 ", 8), ("ranks", "10000000", 10**7), ("ranks", "10000001", None),
            ("nodes", "0", None), ("root", "0", 0), ("root", str(2**62), 2**62), ("root", str(2**62 + 1), None),
            ("in_place", "TRUE", True), ("in_place", "0", False), ("in_place", "2", None),
            ("algorithm", "x" * 200, "x" * 200), ("algorithm", "x" * 201, None), ("busbw", "-1", None),
            ("seconds_min", "0", 0.0),
        ],
    )  # fmt: skip
    def test_what_cells_may_hold(self, tmp_path, column, text, value):
        path = tmp_path / "a.csv"
        path.write_text(f"collective,nbytes,seconds,{column}\nbroadcast,8,1.0,{text}\n")
        if value is not None:
            assert read_tidy(path).rows[column].tolist() == [value]
            return
        with pytest.raises(InputError, match=f"a.csv:2: {column}: "):
            read_tidy(path)


class TestBothSidesInARow:
    HEADS = ("collective", "nranks", "size_bytes", "time_us_oop", "time_us_ip")

    def read(self, folder, **cells):
        cells = dict(zip(self.HEADS, ("broadcast", "8", "1000", "100", ""), strict=True)) | cells
        path = folder / "a.csv"
        path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
        return read_wide(path)

    def test_fields(self, tmp_path):
        (row,) = self.read(
            tmp_path, total_bytes="2000", algo="ring", proto="none", dtype="float", op="s|m", nranks="8", nnodes="2",
            n_iter="20", time_min_us="90", time_max_us="110", time_p50_us="99", run="3", err_oop="2",
            ranks_per_node="0",
        ).rows.to_dict("records")  # fmt: skip
        wanted = {
            "collective": "broadcast", "nbytes": 2000, "seconds": 1e-4, "algorithm": "ring", "protocol": "",
            "dtype": "float", "reduction": "", "ranks": 8, "nodes": 2, "iterations": 20, "seconds_min": 9e-5,
            "seconds_max": 1.1e-4, "seconds_p50": 9.9e-5, "run": "3", "wrong": 2.0, "in_place": False,
            "statistic": "mean", "tool": "",
        }  # fmt: skip
        assert {name: row[name] for name in wanted} == pytest.approx(wanted)

    def test_each_side_that_has_a_time_is_a_row(self, tmp_path):
        for cells, found in (
            ({}, [(False, 1e-4)]), ({"time_us_ip": "50"}, [(False, 1e-4), (True, 5e-5)]),
            ({"time_us_oop": " ", "time_us_ip": "50"}, [(True, 5e-5)]),
        ):  # fmt: skip
            rows = self.read(tmp_path, **cells).rows
            assert list(zip(rows["in_place"], rows["seconds"], strict=True)) == found

    def test_rates_that_are_printed_must_agree_unless_they_are_0(self, tmp_path):
        assert self.read(tmp_path, algbw_gbs_oop="0.010").rows["algbw"].tolist() == [1e7]
        assert self.read(tmp_path, algbw_gbs_oop="0.00", busbw_gbs_oop="0.0").rows["busbw"].tolist() == [0.0]
        with pytest.raises(InputError, match=r"out of place: algorithm bandwidth is 0\.02 GB/s"):
            self.read(tmp_path, algbw_gbs_oop="0.020")
        with pytest.raises(InputError, match=r"out of place: bus bandwidth is 0\.02 GB/s"):
            self.read(tmp_path, algbw_gbs_oop="0.010", busbw_gbs_oop="0.020")
