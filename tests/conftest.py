"""Settings shared by all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, and no deadline: the machines that run the tests are shared and noisy.
settings.register_profile("simnet", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("simnet")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of fact sheets and measurements beside the repository; tests that need it skip without it."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared with the fact sheets is not beside this checkout")
    return folder
