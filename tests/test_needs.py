"""A test is skipped only for want of what a machine may lack, and the end of a run counts them by reason."""

from pathlib import Path

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import needs

@pytest.mark.parametrize("folder", [1, 2])
def test_lacks_the_folder(folder):
    pytest.skip(needs.reason("the folder ../shared", "it is elsewhere"))

def test_lacks_a_package():
    pytest.skip("torch is not installed")

@pytest.mark.xfail
def test_fails_as_expected():
    assert False
"""


def test_a_skip_for_another_reason_fails_and_others_are_counted(pytester):
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(TESTS)
    done = pytester.runpytest("-p", "no:cacheprovider")
    done.assert_outcomes(skipped=2, failed=1, xfailed=1)
    done.stdout.fnmatch_lines(["skipped for a reason * torch is not installed"])
    done.stdout.fnmatch_lines(["2 skipped", "  2 needs the folder ../shared"])
