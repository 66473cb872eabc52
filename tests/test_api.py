"""Public names stay for a release, or the changelog says what replaces them."""

import importlib
import json
import re
from pathlib import Path

import pytest

from simnet.verbs.app import all_verbs

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
RELEASED = json.loads((ROOT / "tests" / "golden" / "public_api.json").read_text(encoding="utf-8"))
"""Names of the last release by module; those of commands under ``commands``."""


def offered(module):
    if module == "commands":
        return set(all_verbs())
    found = vars(importlib.import_module(module))
    # A module without a list offers what it defines or imports from others of simnet.
    own = (
        name for name, one in found.items() if getattr(one, "__module__", "").startswith("simnet.") and name[0] != "_"
    )
    return set(found.get("__all__", own))


def replaced(changelog):
    """Return the names that a changelog replaces since the release: its points that go on with another name."""
    (text,) = re.findall(r"^## \[Unreleased\]\n(.*?)^## ", changelog, flags=re.DOTALL | re.MULTILINE)
    points = (re.findall(r"`([^`]+)`", one) for one in re.split(r"\n(?=- |\| )", text))
    return {names[0] for names in points if len(names) > 1}


def unexplained(module, names, changelog):
    """Return the released names that are gone without a replacement in the changelog."""
    known = replaced(changelog)
    return {one for one in set(RELEASED[module]) - names if not {one, f"{module}.{one}"} & known}


@pytest.mark.parametrize("module", RELEASED)
def test_the_page_lists_what_is_offered(module):
    (row,) = re.findall(rf"^\| `{re.escape(module)}` \|(.*)\|$", PAGE, flags=re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", row)) == offered(module)


@pytest.mark.parametrize("module", RELEASED)
def test_a_released_name_stays_or_has_a_replacement(module):
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not unexplained(module, offered(module), changelog)
