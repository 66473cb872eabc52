"""Of long texts in logs and options, so many characters are shown in messages and kept in tables."""

import json
import re

import pytest

from benchmark_logs import put
from simnet.base.errors import InputError
from simnet.cost_models.calibration import load_cost_model
from simnet.cost_models.calibration.curves import chosen_rows
from simnet.cost_models.calibration.readers import read_measurements, read_tidy, tables
from simnet.cost_models.calibration.readers.conventions import misspelt_collective, named_collective
from simnet.cost_models.calibration.readers.facts import parse_facts
from simnet.cost_models.calibration.readers.shaped import read_shaped
from simnet.cost_models.calibration.readers.tables import RowCollector
from simnet.cost_models.calibration.readers.wide import read_wide
from simnet.cost_models.calibration.summary import read_rows
from simnet.cost_models.calibration.topology_links import place_ranks

LONG = "Q" * 500


def shown(call, *given):
    """Return how many Qs a refusal shows at once."""
    with pytest.raises(InputError) as refused:
        call(*given)
    return max(map(len, re.findall("Q+", str(refused.value).replace("/", ""))))


def csv(folder, **cells):
    path = folder / "a.csv"
    path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{{ranks}}{{ranks}}{LONG}", 60 - 14), (LONG, 60), (f"ranks={LONG[:50]}", 40), (f"{LONG}:ranks=3", 60),
        (f"*{{collective}}{LONG[:150]}", 60 - 13),
    ],
)  # fmt: skip
def test_of_facts(text, wanted):
    assert shown(parse_facts, [text]) == wanted


def test_of_facts_that_fit_no_log_120():
    assert shown(parse_facts([f"{LONG[:190]}:ranks=3"]).refuse_idle) == 120


def test_of_options_and_names():
    assert shown(place_ranks, "star", [LONG]) == 60
    assert shown(place_ranks, "multi_gpu_nodes", [f"gpus_per_node={LONG}"]) == 40
    assert shown(place_ranks, "Q/" * 110) == 100
    assert shown(read_rows, LONG[:80], {}) == 60
    assert shown(read_measurements, "/" + LONG) == 199


def test_thirty_values_of_a_column_are_offered():
    rows = tables.measurement_table(
        [{"collective": "broadcast", "algorithm": f"a{at:02}", "nbytes": 8} for at in range(40)]
    )
    with pytest.raises(InputError) as refused:
        chosen_rows(rows, {"algorithm": "zzzzzz"}, False)
    assert "a29" in str(refused.value)
    assert "a30" not in str(refused.value)


def test_of_a_version_forty(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"version: {LONG}\n")
    assert shown(load_cost_model, path) == 40


class TestTidy:
    @pytest.mark.parametrize("name", ["size_convention", "in_place", "ranks", "root", "busbw"])
    def test_cells(self, tmp_path, name):
        cells = {"collective": "broadcast", "nbytes": "8", "seconds": "1.0", name: LONG[:150]}
        assert shown(read_tidy, csv(tmp_path, **cells)) == 40

    def test_names_of_columns(self, tmp_path):
        cells = {"collective": "broadcast", "nbytes": "8", "seconds": "1.0"}
        assert shown(read_tidy, csv(tmp_path, **cells, **{LONG: "1"})) == 60
        assert LONG[:60] in read_tidy(csv(tmp_path, **cells, **{LONG[:60]: "1"})).rows


def test_of_both_sides_in_a_row(tmp_path):
    cells = {"collective": LONG, "nranks": "8", "size_bytes": "1000", "time_us_oop": "100"}
    kept = {"variant": 120, "run": 120, "algo": 60, "proto": 60, "dtype": 60, "op": 60}
    (row,) = read_wide(csv(tmp_path, **cells, **dict.fromkeys(kept, LONG[:120]) | {"variant": LONG})).rows.to_dict(
        "records"
    )
    columns = {"algo": "algorithm", "proto": "protocol", "op": "reduction"}
    assert {name: len(row[columns.get(name, name)]) for name in kept} == kept
    assert len(row["collective"]) == 60
    (row,) = read_wide(csv(tmp_path, **cells, algo=LONG[:121])).rows.to_dict("records")
    assert row["algorithm"] == ""


@pytest.mark.parametrize("named", ["collective", "method"])
def test_of_measurements_on_links(tmp_path, named):
    cells = {"N": "3", "latency_ms": "5", "rate_mbit": "100", "size_bytes": "9", "seconds": "1", named: LONG}
    (row,) = read_shaped(csv(tmp_path, **cells, algorithm=LONG, stack=LONG, profile=LONG)).rows.to_dict("records")
    assert [len(row[name]) for name in ("collective", "algorithm", "tool", "profile")] == [60] * 4


def test_of_what_is_not_read_in_traces(tmp_path):
    record = {"name": LONG, "size": "7" * 30, "inPlace": 0, "time": 1.0, "algBw": 1.0, "busBw": 1.0}
    good = record | {"name": "broadcast", "size": 8, "numCycle": LONG, "algBw": 0.01, "busBw": 0.01, "time": 0.8}
    found = read_measurements(
        put(tmp_path, "[" + json.dumps(record) + ",\n" + json.dumps(good) + "]", "a.json"), kind="rccl"
    )
    assert [one.message for one in found.problems][:1] == [f"{LONG[:40]!r} of {'7' * 20} bytes is nothing that is read"]
    assert found.rows["run"].tolist() == [LONG[:20]]


def test_of_names_of_collectives():
    assert misspelt_collective("all_redcue" + "_" * 500) == ""
    for before, found in ((4086, "all_reduce"), (4087, None), (5000, None)):
        assert named_collective("." * before + "all_reduce") == found
    out = RowCollector("a.log", "tidy")
    name = "all_reduc" + "e" * 2
    out.add({"collective": name, "nbytes": 8, "seconds": 1.0}, 1)
    assert [one.message for one in out.problems] == [f"there is no collective {name!r}: did you mean 'all_reduce'?"]
    out.add({"collective": "broadcast", "nbytes": 8, "seconds": LONG}, 2)
    assert out.problems[-1].message == f"the time must be a number > 0, got {LONG[:40]}"
    spelt = "all-reduce" + "-" * 60
    out.add({"collective": spelt, "nbytes": 8, "seconds": 1.0}, 3)
    assert out.problems[-1].message == f"there is no collective {spelt[:40]!r}: did you mean 'all_reduce'?"
