"""Many small cases in one test: pytest spends milliseconds on a test, which is more than the body of some takes."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import islice
from typing import Any

import pytest


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the body of a test for every value, as `pytest.mark.parametrize` does, but as one test.

    All values are tried; the first failure is raised, and a note says which values fail. What a test gets from a
    fixture is the same for all values, so this is not for tests that write to `tmp_path` or patch something.
    """
    arguments = [name.strip() for name in names.split(",")]
    cases = [dict(zip(arguments, value if len(arguments) > 1 else (value,), strict=True)) for value in values]
    assert cases, f"there are no values of {names}"

    def loop(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def body(*given: Any, **others: Any) -> None:
            failures = []
            for case in cases:
                try:
                    test(*given, **others, **case)
                except (Exception, pytest.fail.Exception) as failure:
                    failures.append((case, failure))
            if failures:
                (_, first) = failures[0]
                said = "; ".join(", ".join(f"{k}={v!r}" for k, v in case.items()) for case, _ in islice(failures, 20))
                first.add_note(f"{len(failures)} of {len(cases)} cases fail: {said}{' ...' * (len(failures) > 20)}")
                raise first

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in arguments]
        body.__signature__ = signature.replace(parameters=kept)
        return body

    return loop
