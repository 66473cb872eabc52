"""The notebooks run as they stand, cell by cell, and are kept without what they put out."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import killing

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(one.name for one in FOLDER.glob("*.ipynb"))

LONG = {"my_scheme_against_ten.ipynb"}
"""Those that take 10 to 30 s of a processor; the site, which `test_docs.py` builds, runs all of them, too."""

SHOWN = """
import ast, json, sys
from pathlib import Path
names = {"__name__": "__main__"}
for number, cell in enumerate(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]):
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        ways = [way for way in ("_repr_html_", "_repr_png_") if hasattr(value, way)]
        assert value is None or hasattr(value, "to_frame") or any(getattr(value, way)() for way in ways), number
"""
"""Runs a notebook as a kernel does: what the last line of a cell gives is shown, as HTML or as a picture."""


def code(name):
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in LONG else ()) for one in NOTEBOOKS]
)
def test_it_runs_in_less_than_a_minute_of_a_processor(name, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHOWN, FOLDER / name],
        cwd=tmp_path, capture_output=True, text=True, timeout=killing.PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert list(tmp_path.iterdir()) == []
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_kept_without_output(name):
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code(name))


def test_the_first_page_names_all_of_them():
    page = (FOLDER.parent / "start.md").read_text(encoding="utf-8")
    assert set(re.findall(r"notebooks/(\w+\.ipynb)", page)) == set(NOTEBOOKS)


def test_examples_of_the_guide_run(capsys):
    guide = (FOLDER.parent / "api.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL):
        exec(compile(block, "api.md", "exec"), names)
