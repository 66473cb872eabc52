"""What mutation testing goes by: areas that have files, and explanations of lines that are there."""

import tomllib
from pathlib import Path

from mutating.areas import AREAS, files

ROOT = Path(__file__).parents[1]


def test_every_area_has_files_and_no_file_is_in_two():
    found = files(ROOT)
    assert all(found[name] for name in AREAS)
    listed = [one for every in found.values() for one in every]
    assert len(listed) == len(set(listed))


def test_lines_of_survivors_that_are_explained_are_there():
    entries = tomllib.loads((ROOT / "benchmarks/mutating/explained.toml").read_text())["survivor"]
    for one in entries:
        assert one["old"] in [line.strip() for line in (ROOT / one["file"]).read_text().splitlines()], one
        assert one["new"] != one["old"]
        assert one["why"]
