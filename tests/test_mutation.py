"""What mutation testing goes by: areas that have files."""

from pathlib import Path

from mutating.areas import AREAS, files

ROOT = Path(__file__).parents[1]


def test_every_area_has_files_and_no_file_is_in_two():
    found = files(ROOT)
    assert all(found[name] for name in AREAS)
    listed = [one for every in found.values() for one in every]
    assert len(listed) == len(set(listed))
