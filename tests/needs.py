"""What a test may need that a machine lacks: a test is skipped for one of these reasons and for no other.

A reason may say more after a colon. Packages are not among them: a test that needs torch, mpi4py or distributed is
marked `extras`, and ``make test-extras`` installs them.
"""

import os
import sys
from pathlib import Path

import pytest

from simnet.base.native import NativeModule

REASONS: set[str] = set()


def reason(what: str, more: str | None = None) -> str:
    """Return the reason of a skip, and allow it."""
    REASONS.add(f"needs {what}")
    return f"needs {what}" + (f": {more}" if more else "")


def _unless(there: bool, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=reason(what))


linux = _unless(sys.platform == "linux", "Linux")
posix = _unless(os.name == "posix", "POSIX")
another_user = _unless(not hasattr(os, "geteuid") or os.geteuid() != 0, "a user other than root")

_SHARED = reason("the folder ../shared")
_COMPILED = reason("loops that numba compiles")


def compiled(loops: NativeModule | None) -> NativeModule:
    """Return loops; skip the test where numba is told not to compile, and there are none."""
    if loops is None:
        pytest.skip(_COMPILED)
    return loops


def shared() -> Path:
    """Return the folder of fact sheets and measurements beside the repository; skip the test without it."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(_SHARED)
    return folder
