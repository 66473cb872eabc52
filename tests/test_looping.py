"""Many cases in one test: all of them run, and it fails if any does."""

import pytest

from looping import each


def test_all_cases_run_and_those_that_fail_are_named():
    ran = []

    @each("a, b", [(1, 2), (2, 2), (3, 2), (4, 4)])
    def body(a, b):
        ran.append(a)
        if a == 1:
            pytest.fail("as said")
        assert a == b

    with pytest.raises(pytest.fail.Exception, match="as said") as failed:
        body()
    assert ran == [1, 2, 3, 4]
    assert failed.value.__notes__ == ["2 of 4 cases fail: a=1, b=2; a=3, b=2"]


def test_no_cases_are_refused():
    with pytest.raises(AssertionError, match="there are no values of x"):
        each("x", [])


def test_a_case_that_skips_fails_and_those_after_it_run():
    ran = []

    @each("x", range(3))
    def body(x):
        ran.append(x)
        if x == 1:
            pytest.skip("no such thing")

    with pytest.raises(AssertionError, match="one case may not skip the others: no such thing"):
        body()
    assert ran == [0, 1, 2]
