"""What make demo and make test install: every package with its version and hashes, all that pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {"demo": [], "test": PYPROJECT["project"]["optional-dependencies"]["dev"]}


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return version and number of hashes of each package of a lock."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    found = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        head, *hashes = entry.split("\\\n")
        package, _, version = head.partition(";")[0].strip().partition("==")
        assert all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}\s*", one) for one in hashes), package
        found[canonicalize_name(package)] = (version, len(hashes))
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_each_package_has_the_version_of_constraints_and_hashes(name: str) -> None:
    constraints = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    constraints = {canonicalize_name(one): version for one, version in constraints.items()}
    for package, (version, hashes) in locked(name).items():
        assert hashes > 0, package
        assert constraints.get(package, version) == version, package


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_all_that_is_asked_for(name: str) -> None:
    found = locked(name)
    build = (ROOT / "requirements" / "build.in").read_text().splitlines()
    asked = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"], *LOCKS[name]]
    for one in [*asked, *(line for line in build if not line.startswith("#"))]:
        wanted = Requirement(one)
        version, _ = found[canonicalize_name(wanted.name)]
        assert version in wanted.specifier, one
    for one in PYPROJECT["build-system"]["requires"]:
        assert one in build
