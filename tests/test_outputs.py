"""Commands say what they said: the values frozen in golden/outputs; and what a difference looks like."""

import json
import math

import pytest

import outputs

COMMANDS = [one for one, asked in outputs.REQUESTS.items() if asked[:6] not in ("", "choose")]


@pytest.mark.long
@pytest.mark.parametrize("request_name", COMMANDS)
def test_a_command_says_what_it_said(request_name):
    before, now = outputs.frozen(request_name), outputs.said(request_name)
    found = "\n".join(outputs.differences(before, now, outputs.tolerance(request_name)))
    assert not found, f"{found}\nright? make guard-renew REQUESTS={request_name}"


def test_every_request_is_frozen_with_finite_values_and_nothing_else_is():
    assert {path.stem for path in outputs.FOLDER.iterdir()} == {*outputs.REQUESTS}
    for name in outputs.REQUESTS:
        assert any(type(value) is not str for value in outputs.frozen(name).values())
    assert sum(path.stat().st_size for path in outputs.FOLDER.iterdir()) <= 700_000


def test_a_difference_is_told_by_field_and_a_renamed_field_as_such():
    before = {"a.time_s": [1.0, 2.0], "a.nbytes": 8, "winner": "topk", "old": [1, 2.5], "lost": 3}
    after = {"a.time_s": [1.0, 2.02], "a.nbytes": 9, "winner": "dense", "now": [1, 2.5], "more": 4}
    assert list(outputs.differences(before, after)) == [
        "a.time_s[1]: 2.0 -> 2.02",
        "a.nbytes: 8 -> 9",
        "winner: topk -> dense",
        "renamed: old -> now",
        "lost: 3 -> gone",
        "more: new -> 4",
    ]
    assert not list(outputs.differences({"a": 1.0}, {"a": 1.0 + 1e-9}))
    assert list(outputs.differences({"a": 0.0}, {"a": math.nan}))
    assert list(outputs.differences({"a": [1]}, {"a": [1, 2]})) == ["a: 1 -> 2 values: [] -> [2]"]
    assert list(outputs.differences({"a": 1}, json.loads('{"a": null}'))) == ["a: 1 -> None"]
