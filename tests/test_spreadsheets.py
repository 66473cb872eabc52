"""Tables that people open in a spreadsheet: no text is a formula there, and simnet reads what it has written."""

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commands import did
from simnet.base.spreadsheets import guard_cell, guard_table, unguard_cell
from simnet.cost_models.calibration.readers import read_tidy, write_tidy
from simnet.interchange.messages_csv import read_messages, write_messages
from simnet.schedule import Round, Schedule

ROOT = Path(__file__).parents[1]
STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
CELLS = st.text(max_size=5) | st.builds(str.__add__, st.sampled_from([*STARTS, "'=", "''@", "'"]), st.text(max_size=5))


@given(CELLS)
@example("=1+1")
@example("'=1+1")
def test_no_text_begins_as_a_formula_and_each_comes_back(text: str) -> None:
    assert guard_cell(text)[:1] not in list(STARTS)
    assert unguard_cell(guard_cell(text)) == text.replace("\r", "\n")
    if text[:1] not in [*STARTS, "'"] and "\r" not in text:
        assert guard_cell(text) == text


@given(st.lists(st.tuples(CELLS, st.integers() | st.floats(allow_nan=False)), min_size=1), CELLS)
def test_a_table_has_its_numbers_and_no_formula(rows: list[tuple[str, float]], heading: str) -> None:
    table = pd.DataFrame(rows, columns=[heading, "number"])
    before = table.copy(deep=True)
    read = list(csv.reader(io.StringIO(guard_table(table).to_csv(index=False), newline="")))
    assert not [row for row in read if row[0][:1] in list(STARTS)]
    assert [unguard_cell(row[0]) for row in read] == [
        one.replace("\r", "\n") for one in (heading, *(text for text, _ in rows))
    ]
    assert [float(row[1]) for row in read[1:]] == [float(number) for _, number in rows]
    pd.testing.assert_frame_equal(table, before)


def test_ordinary_tables_keep_their_bytes() -> None:
    table = pd.DataFrame({"policy": ["a", "it's", "a=b", None], "x": [-1.0, 2.5, float("nan"), 0.0]})
    assert guard_table(table).to_csv() == table.to_csv()


def test_files_of_a_run_hold_no_formula(small: str) -> None:
    text = Path(small).read_text().replace("policies:\n", "policies:\n  '=HYPERLINK(\"x\")': {fixed: dense}\n", 1)
    assert "HYPERLINK" in text
    Path(small).write_text(text)
    did("run", small, "--out", "out")
    written = Path("out/iterations.csv").read_text()
    assert "'=HYPERLINK" in written
    assert not re.search(r'(^|,|\n)"?=', written)
    assert '=HYPERLINK("x")' in set(pd.read_parquet("out/iterations.parquet")["policy"])


@pytest.mark.parametrize("name", ["=A1", "'=A1", "@ring", "-", "ring"])
def test_measurements_and_messages_come_back(tmp_path: Path, name: str) -> None:
    rows = pd.DataFrame(
        {
            "collective": ["all_reduce"],
            "ranks": [4],
            "nbytes": [8],
            "seconds": [1e-5],
            "algorithm": [name],
            "site": [name],
        }
    )
    write_tidy(rows, tmp_path / "a.csv")
    assert not re.search(r"(^|,)[=+@-]", (tmp_path / "a.csv").read_text(), re.MULTILINE)
    found = read_tidy(tmp_path / "a.csv").rows
    assert found["algorithm"].tolist() == found["site"].tolist() == [name]
    for sizes in ([10, 20], [10.5, 20]):  # read as columns, and row by row
        schedule = Schedule(2, [Round([0, 1], [1, 0], sizes, phase=name)])
        write_messages(schedule, tmp_path / "m.csv")
        assert not re.search(r"(^|,)[=+@-]", (tmp_path / "m.csv").read_text(), re.MULTILINE)
        assert read_messages(tmp_path / "m.csv") == schedule


def test_every_table_that_commands_write_is_guarded() -> None:
    for path in (ROOT / "simnet").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        if name == "simnet/base/spreadsheets.py":
            continue
        for match in re.finditer(r".*\.to_csv\(|.*csv\.writer\(", text):
            assert "guard_" in (text if "csv.writer" in match[0] else match[0]), f"{name}: {match[0]}"
