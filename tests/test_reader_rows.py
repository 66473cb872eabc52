"""Tables and remarks: which cells may be empty, what is shown of long ones, how many remarks are listed."""

import pytest

from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import read_tidy
from simnet.cost_models.calibration.readers.csv_tables import read_shaped, read_wide

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


class TestTidy:
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
