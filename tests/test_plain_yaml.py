"""The one reader of YAML: what it refuses, with file and line and in few words, for each kind of file that is YAML."""

import contextlib
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.base.yaml_loader import MAX_KEY, load_yaml, yaml_text
from simnet.cost_models.calibration.cost_model_file import load_cost_model
from simnet.cost_models.calibration.platform import load_platform
from simnet.cost_models.costs.devices import load_device
from simnet.interchange.calibrated_network import read_fabric_network
from simnet.scenario import load

READERS = [load, load_device, load_platform, load_cost_model, read_fabric_network]

TENFOLD = "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdef"))
# A text, the line that is wrong and what is said; LINE is the number of the first line.
HOSTILE = [
    ("? {a: 1}\n: 3", 1, "as a key"),
    ("? [1, 2]\n: 3", 1, "as a key"),
    ("[1, 2]: 3", 1, "as a key"),
    ("&a [1]: {*a : 1}", 1, "as a key"),
    (f"{'k' * 10_000}: 1", None, ""),
    (f"? {'k' * 10_000}\n: 1", None, ""),
    ("a: 1\nb: 2\na: 3", 3, "a: is given twice, first on line LINE"),
    ("a:\n  b: {c: 1, c: 2}", 2, "a.b.c: is given twice"),
    (f"a: {'9' * 9_000}", 1, "is not a number"),
    (f"a: 0x{'f' * 9_000}", 1, "is not a number"),
    (f"a: 0o{'7' * 9_000}", 1, "is not a number"),
    (f"a: {'9' * 309}", 1, ""),
    (f"a: 0.{'1' * 9_000}", 1, ""),
    ("a: !!int twelve", 1, "is not a number"),
    (f"a: &a [x, x, x, x, x, x, x, x, x, x]\n{TENFOLD}", None, "aliases for more than"),
    ("a: &a [*a]", 1, "nested more than"),
    (f"a: *{'n' * 9_000}", 1, "is not YAML"),
    (f"a: !{'t' * 9_000} 1", 1, "has the tag"),
    ("a: 1\nb: !secret 2", 2, "has the tag '!secret'"),
    ("a: !!python/object/apply:os.system [true]", 1, "has the tag"),
    ("a: !!bool perhaps", 1, ""),
    ("a: &x 1\n<<: {b: 2}", 2, "'<<' is not supported"),
    ("a: &a {b: 1}\nc: {<<: *a}", 2, "'<<' is not supported"),
    ("a: " + "[" * 5_000, 1, "nested more than"),
    ("a: " + "[" * 60 + "]" * 60, 1, "nested more than"),
    ("a: " + "{a: " * 1_500, 1, "nested more than"),
    ("".join(f"{' ' * depth}- a:\n" for depth in range(0, 100, 2)), None, "nested more than"),
    ("a: [1, 2", 1, "is not YAML"),
    ("a: 1\n\tb: 2", 2, "is not YAML"),
    ("a: 1\n---\nb: 1", None, ""),
    ("%YAML 1.1\n---\na: yes", None, ""),
    ("a: 1\nb: \x07", 2, "is not YAML"),
    ("a: \x00", 1, "is not YAML"),
    ('a: "\\UFFFFFFFF"', 1, ""),
    ('a: "\\uD800"', 1, ""),
    ("a: 'b", 1, "is not YAML"),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize(("text", "line", "said"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused_with_file_and_line_in_few_words(tmp_path, reader, text, line, said) -> None:
    path, first = tmp_path / "a.yaml", 1
    if reader is read_fabric_network:
        # It reads the part of a file that is of the network.
        text, first = "network:\n" + "\n".join(f" {one}" for one in text.split("\n")), 2
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        reader(path)
    assert str(refused.value).startswith(f"{path}:")
    assert said.replace("LINE", str(first)) in str(refused.value)
    assert refused.value.line == line + first - 1 if line else isinstance(refused.value.line, int)
    assert len(str(refused.value).encode()) < 2000


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.__name__)
def test_what_is_wrong_with_long_values_is_said_in_few_words(tmp_path: Path, reader) -> None:
    path = tmp_path / "a.yaml"
    for value in ("ü" * 9_000, f"[{'x, ' * 9_000}]"):
        fields = "".join(f"{name}: {value}\n" for name in ("name", "version", "network", "job", "methods", "inner"))
        path.write_text(fields)
        with pytest.raises(InputError) as refused:
            reader(path)
        assert len(str(refused.value).encode()) < 2000
        path.write_text("".join(f"{'k' * MAX_KEY}{number}: 1\n".replace("k", "", 3) for number in range(90)))
        with pytest.raises(InputError) as refused:
            reader(path)
        assert len(str(refused.value).encode()) < 2000


@pytest.mark.parametrize("line", [1, 2, 7])
@pytest.mark.parametrize("wrong", ["[1]: 2", "a: !b 1", "a: \x00", 'a: "\\UFFFFFFFF"', f"a: {'9' * 400}", "a: *b"])
def test_the_line_is_that_of_the_fault(line: int, wrong: str) -> None:
    text = "".join(f"field{number}: 1\n" for number in range(1, line)) + wrong
    with pytest.raises(InputError) as refused:
        load_yaml(text, "a.yaml")
    assert refused.value.line == line


def test_values_are_those_of_yaml_1_2() -> None:
    text = "[yes, true, FALSE, 010, 0o10, 0x1f, -3, 1_000, 1e3, -.inf, .nan, ~, null, 2026-01-02, '7', 1:30]"
    found = load_yaml(text, "a.yaml").value
    assert math.isnan(found.pop(10))
    assert found == ["yes", True, False, 10, 8, 31, -3, 1000, 1000.0, -math.inf, None, None, "2026-01-02", "7", "1:30"]


# ruamel.yaml writes three kinds of line breaks that it reads as blanks, and a key `?a` in braces that it reads as `a`.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="?\x85\u2028\u2029"), max_size=10)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@given(PLAIN)
def test_what_is_written_is_read(value: object) -> None:
    with contextlib.suppress(InputError):
        text = yaml_text(value, width=80)
        assert load_yaml(text, "a.yaml").value == value
