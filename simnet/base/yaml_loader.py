"""YAML files as plain values with line numbers, for scenarios, devices and platforms.

Files are untrusted: non-plain tags, non-string keys, duplicate keys, deep nesting, excessive aliases, and over-long
numbers are rejected. `simnet.base.file_io` limits the size.
"""

from __future__ import annotations

import io
import re
import reprlib
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from simnet.base.errors import InputError, suggest_names

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

MAX_DEPTH = 40
"""Maximum nesting."""

MAX_REPEATED = 50_000
"""Maximum number of values that aliases stand for."""

MAX_KEY = 200
"""Maximum characters of a key."""

MAX_DIGITS = 300
"""Maximum characters of a number; every such integer fits a float."""

Loc: TypeAlias = tuple[str | int, ...]
"""Path of a value: keys and list positions from the top."""

M = TypeVar("M", bound="BaseModel")

_TAG = "tag:yaml.org,2002:"
# The parser does not say where.
_BEYOND_UNICODE = re.compile(r"\\U(?!000|0010)[0-9A-Fa-f]{8}")
_TRUTH = {"true": True, "false": False}


class YamlDocument(NamedTuple):
    """The content of a YAML text as plain values (dict, list, str, number, bool, None), with the line of each value."""

    value: Any
    lines: dict[Loc, int]
    file: str

    def line(self, loc: Sequence[str | int]) -> int:
        r"""Return the line of the value at the path `loc`; if nothing is there, the line of the last value on the path.

        Examples
        --------
        >>> found = load_yaml("a: 1\nb:\n  - {c: 2}\n  - c: 3\n", "some.yaml")
        >>> found.line(["b", 1, "c"]), found.line(["b", 0, "d"]), found.line(["d"])
        (4, 3, 1)
        """
        known = tuple(loc)
        while known not in self.lines and known:
            known = known[:-1]
        return self.lines.get(known, 1)

    def refuse(self, message: str, *loc: str | int) -> NoReturn:
        """Raise InputError for the value at the path `loc`, with file, line and field."""
        raise InputError(message, file=self.file, line=self.line(loc), field=field_path(loc) or None)

    def validated(self, kind: type[M], names: Iterable[str] = ()) -> M:
        """Return the content as a pydantic model; InputError, which may suggest one of `names`, if it is invalid."""
        from pydantic import ValidationError

        try:
            return kind.model_validate(self.value)
        except ValidationError as error:
            raise validation_refusal(error, self.file, self, names) from None


def load_yaml(text: str, file: str) -> YamlDocument:
    """Return the content of a YAML text; InputError, with the line, if a value is not plain or exceeds a limit.

    Examples
    --------
    >>> load_yaml("a: [1, 2]", "some.yaml").value
    {'a': [1, 2]}
    >>> load_yaml("a: !secret 1", "some.yaml")
    Traceback (most recent call last):
    simnet.base.errors.InputError: some.yaml:1: has the tag '!secret'; only plain values are read
    """
    return _NodeReader(file).read(text)


def load_yaml_mapping(text: str, file: str, what: str) -> YamlDocument:
    """Return the content of a YAML text that must be a mapping; InputError, which calls it `what`, for other content.

    Examples
    --------
    >>> load_yaml_mapping("- 1", "some.yaml", "a platform")
    Traceback (most recent call last):
    simnet.base.errors.InputError: some.yaml:1: is not a platform: it has no fields
    """
    found = load_yaml(text, file)
    if not isinstance(found.value, dict):
        raise InputError(f"is not {what}: it has no fields", file=file, line=1)
    return found


_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
    "multiple_of": ("multiple_of", "a multiple of"),
}
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping from names",
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type"), "a mapping"),
}
UNKNOWN_FIELD = ("unexpected_keyword_argument", "extra_forbidden")
"""Types of pydantic's errors about a field that there is not."""


def validation_message(one: ErrorDetails, got: str, names: Iterable[str] | None, fields: Iterable[str] = ()) -> str:
    """Return the message of a pydantic error in plain words.

    `got` is the value as text. For an unknown field the message suggests the nearest of `names`; where a mapping is
    allowed, it lists the `fields` of that mapping.
    """
    kind, context, within = one["type"], one.get("ctx", {}), ", ".join(fields)
    if kind == "value_error":
        return str(context["error"])
    if kind in ("missing", "missing_argument"):
        return "is missing"
    if kind in UNKNOWN_FIELD:
        close = "" if names is None else f"; {suggest_names(str(one['loc'][-1]), names)}"
        return f"there is no such field{close}"
    if kind in _BOUNDS:
        name, sign = _BOUNDS[kind]
        return f"must be {sign} {context[name]:g}, got {got}"
    if kind in ("too_short", "too_long"):
        return f"has {context['actual_length']} entries, needs at least {context.get('min_length', 0)}"
    wanted = _WANTED.get(kind)
    within = f"{' with' if wanted == 'a mapping' else ', or a mapping with'} {within}" if within else ""
    if kind == "literal_error":
        allowed = [name.strip(" '") for name in context["expected"].replace(" or ", ",").split(",")]
        return f"there is no such choice, got {got}; {suggest_names(got[1:-1], allowed)}{within}"
    if wanted is not None:
        return f"must be {wanted}{within}, got {got}"
    return f"{one['msg'].replace('Input should be', 'must be')}, got {got}"


def validation_refusal(
    error: ValidationError, file: str | None = None, read: YamlDocument | None = None, names: Iterable[str] = ()
) -> InputError:
    """Return pydantic's first error as an InputError with its line; it suggests one of `names` for an unknown field."""
    # A field that is not there tells more than the one that is missing for it.
    first, *_ = sorted(error.errors(include_url=False), key=lambda one: one["type"] not in UNKNOWN_FIELD)
    suggests = first["type"] == "unexpected_keyword_argument" or (read is None and len(first["loc"]) == 1)
    message = validation_message(first, shorten_value(first["input"]), names if suggests else None)
    line = None if read is None else read.line(first["loc"])
    return InputError(message, file=file, line=line, field=field_path(first["loc"]) or None)


def yaml_text(value: object, width: int) -> str:
    r"""Return plain values as YAML text of width `width`: innermost collections on one line, mappings in their order.

    Examples
    --------
    >>> yaml_text({"b": {"x": 1, "y": [1, 2]}, "a": [3]}, width=80)
    'b:\n  x: 1\n  y: [1, 2]\na: [3]\n'
    """
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = width
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


def dotted_key(path: str) -> str:
    """Return the path of a field as ``--set`` takes it, with dots in place of brackets.

    Examples
    --------
    >>> dotted_key("network.weather[0].bandwidth")
    'network.weather.0.bandwidth'
    """
    return re.sub(r"\[(\d+)\]", r".\1", path)


def field_path(loc: Sequence[str | int]) -> str:
    """Return the path of a field as text for messages, with list indices in brackets.

    Examples
    --------
    >>> field_path(("network", "weather", 0, "links"))
    'network.weather[0].links'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def shorten_value(value: object) -> str:
    """Return a value as text short enough for a message; "nothing" for None.

    Examples
    --------
    >>> shorten_value(None), shorten_value("x" * 100)
    ('nothing', "'xxxxxxxxxxxx...xxxxxxxxxxxxx'")
    """
    return "nothing" if value is None else reprlib.repr(value)


class _NodeReader:
    """Converts YAML nodes into plain values and records their lines."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[Loc, int] = {}
        self._seen: set[int] = set()
        self._repeated = 0

    def read(self, text: str) -> YamlDocument:
        node = self._compose(text)
        return YamlDocument(None if node is None else self._value(node, ()), self._lines, self._file)

    def _compose(self, text: str) -> Node | None:
        self._refuse_other_versions(text)
        yaml: Any = YAML(typ="safe", pure=True)
        yaml.max_depth = MAX_DEPTH + 1  # counted from the top, which is at depth 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an anchor that is used twice
                node: Node | None = yaml.compose(text)
        except MaxDepthExceededError as error:
            raise self._too_deep(error.problem_mark.line + 1) from None
        except RecursionError:
            raise self._too_deep(None) from None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = " ".join(str(part) for part in (error.context, error.problem) if part)
            raise InputError(f"is not YAML: {message}", file=self._file, line=mark.line + 1 if mark else None) from None
        except ReaderError as error:
            line, character = text.count("\n", 0, error.position) + 1, chr(error.character)
            message = f"is not YAML: the character {character!r} is not allowed"
            raise InputError(message, file=self._file, line=line) from None
        except Exception as error:  # the parser has further ways of giving up on what is not YAML
            message = str(error).splitlines()[0] if str(error) else repr(error)
            beyond = _BEYOND_UNICODE.search(text)
            at = None if beyond is None else text.count("\n", 0, beyond.start()) + 1
            raise InputError(f"is not YAML: {message}", file=self._file, line=at) from None
        return node

    def _refuse_other_versions(self, text: str) -> None:
        """Reject YAML 1.1, in which `yes` is true and 010 is 8."""
        for at, line in enumerate(io.StringIO(text), 1):
            if line.startswith("%YAML") and line.split()[1:2] != ["1.2"]:
                raise InputError(f"is {shorten_value(line.strip())}; YAML 1.2 is read", file=self._file, line=at)
            if line.strip() and line[0] not in "#%":
                return

    def _too_deep(self, line: int | None) -> InputError:
        return InputError(f"is nested more than {MAX_DEPTH} deep", file=self._file, line=line)

    def _value(self, node: Node, loc: Loc) -> Any:
        self._lines.setdefault(loc, node.start_mark.line + 1)
        # What is met a second time is what an alias stands for.
        self._repeated += id(node) in self._seen
        self._seen.add(id(node))
        if self._repeated > MAX_REPEATED:
            self._refuse(node, f"has aliases for more than {MAX_REPEATED:,} values")
        if len(loc) > MAX_DEPTH:
            raise self._too_deep(node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, loc)
        if not (isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq"):
            self._refuse_tag(node)
        return [self._value(item, (*loc, position)) for position, item in enumerate(node.value)]

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._refuse(key_node, "has a mapping or list as a key; keys are names")
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if len(key) > MAX_KEY:
                self._refuse(
                    key_node, f"has a key of {len(key):,} characters, {shorten_value(key)}; at most {MAX_KEY} are read"
                )
            self._scalar(key_node)  # refuses tags
            way = (*loc, key)
            if key in found:
                message = f"is given twice, first on line {self._lines[way]}"
                raise InputError(message, file=self._file, line=line, field=field_path(way))
            self._lines[way] = line
            found[key] = self._value(value_node, way)
        return found

    def _scalar(self, node: ScalarNode) -> Any:
        tag, text = str(node.tag), str(node.value)
        if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
            self._refuse(node, "has half a character, which no file can hold")
        if tag in (f"{_TAG}str", f"{_TAG}timestamp"):
            return text
        if tag == f"{_TAG}null":
            return None
        if tag == f"{_TAG}bool" and text.lower() in _TRUTH:
            return _TRUTH[text.lower()]
        if tag in (f"{_TAG}int", f"{_TAG}float"):
            return self._number(node, tag == f"{_TAG}int")
        if tag == f"{_TAG}merge":
            self._refuse(node, "'<<' is not supported; repeat the fields, or alias the whole value")
        return self._refuse_tag(node)

    def _number(self, node: ScalarNode, is_int: bool) -> float:
        """Return the number of a YAML 1.2 scalar: a decimal, 0x or 0o integer, or a float."""
        text = str(node.value)
        if len(text) > MAX_DIGITS:
            self._refuse(node, f"is not a number of at most {MAX_DIGITS} characters: {shorten_value(text)}")
        plain = text.replace("_", "").lower()
        base = {"0x": 16, "0o": 8}.get(plain.lstrip("+-")[:2], 10)
        try:
            found = int(plain, base) if is_int else float(plain.replace(".inf", "inf").replace(".nan", "nan"))
            float(found)
        except (ValueError, OverflowError):
            self._refuse(node, f"is not a number: {shorten_value(text)}")
        return found

    def _refuse_tag(self, node: Node) -> NoReturn:
        self._refuse(node, f"has the tag {shorten_value(str(node.tag))}; only plain values are read")

    def _refuse(self, node: Node, message: str) -> NoReturn:
        raise InputError(message, file=self._file, line=node.start_mark.line + 1)
