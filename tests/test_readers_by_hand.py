"""Tables and remarks by hand: which cells may be empty, what is shown of long ones, how many remarks are listed."""

import pytest

from simnet.base.errors import InputError
from simnet.calibration.readers.conventions import collective
from simnet.calibration.readers.nccl_text import ELEMENT_BYTES
from simnet.calibration.readers.shaped import read_shaped
from simnet.calibration.summary import problem_lines, rows_of
from simnet.calibration.topology_links import placed

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

    def test_of_long_cells_forty_characters_are_shown(self, tmp_path):
        for name in ("rep", "params"):
            with pytest.raises(InputError, match=f"got '{'x' * 40}'$"):
                shaped(tmp_path, **{name: "x" * 41})


def test_names_of_shipped_measurements_are_told_from_files(tmp_path):
    unknown = "there is no such file, and no shipped measurements 'shaped_glo'; did you mean 'shaped_gloo'"
    with pytest.raises(InputError, match=unknown):
        rows_of("shaped_glo", {})
    for path in (str(tmp_path / "none"), "none.csv"):
        with pytest.raises(InputError) as refused:
            rows_of(path, {})
        assert "no shipped measurements" not in str(refused.value)


def test_types_of_nccl_have_as_many_bytes_as_their_bits_say():
    words = {"char": 8, "half": 16, "bfloat16": 16, "int": 32, "float": 32, "double": 64}
    for name, nbytes in ELEMENT_BYTES.items():
        bits = words.get(name) or (8 if name.startswith(("f8", "fp8")) else int("".join(filter(str.isdigit, name))))
        assert 8 * nbytes == bits, name


def test_names_of_collectives_have_at_most_eighty_characters():
    for longer, found in ((0, "all_reduce"), (1, None)):
        assert collective("_" * (70 + longer) + "all_reduce") == found
        assert collective("mpi_" + "_" * (66 + longer) + "all_reduce") == found


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
        placed("multi_gpu_nodes", [f"gpus_per_node={value}"])
    assert str(refused.value) == f"--set: gpus_per_node: must be a whole number in 1..4096, got {value[:40]!r}"
    assert placed("multi_gpu_nodes", ["gpus_per_node=4096"]).each == 4096
