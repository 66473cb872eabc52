"""A YAML file as plain values that still know their lines, and overrides on top of it.

The file is read as data from a stranger: its size is checked before it is read, tags other than those of plain YAML are
refused, and so are duplicate keys and aliases that multiply beyond measure.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from simnet.base.errors import InputError, SimnetError
from simnet.base.plugins import theirs
from simnet.base.reading import read_text

MAX_BYTES = 256 * 2**10
"""The largest scenario file that is read."""

MAX_VALUES = 50_000
"""The most values in a scenario, aliases expanded."""

MAX_DEPTH = 40
"""The deepest nesting."""

MAX_SHOWN = 30
"""Problems that are listed; the others are counted."""

Loc: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys of mappings and positions in lists, from the top."""

_TAG = "tag:yaml.org,2002:"


class Place(NamedTuple):
    """Where a value was written: a file and a line of it, or the option that set it."""

    file: str
    line: int | None


class Document:
    r"""The values of a scenario and where each was written.

    Parameters
    ----------
    text : str
        YAML.
    file : str
        The file it comes from, as the user named it.

    Raises
    ------
    InputError
        If it is not one YAML mapping of plain values, with file and line.

    Examples
    --------
    >>> document = Document("name: a\njob:\n  iterations: 3\n", "a.yaml")
    >>> document.data
    {'name': 'a', 'job': {'iterations': 3}}
    >>> document.set("job.iterations=4")
    >>> print(document.problem(("job", "iterations"), "is odd"))
    --set job.iterations=4: job.iterations: is odd
    >>> print(document.problem(("name",), "is short"))
    a.yaml:1: name: is short
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._places: dict[Loc, Place] = {}
        data = _Reader(file, self._places).read(text)
        if not isinstance(data, dict):
            raise InputError(
                f"must be a mapping with fields such as 'workers: 8', got {shown(data)}", file=file, line=1
            )
        self.data: dict[str, Any] = data

    def set(self, assignment: str) -> None:
        """Override a value: ``a.b.0.c=value``, the value in YAML.

        Raises
        ------
        InputError
            If there is no '=', or the way leads through something that has no fields or no such position.
        """
        option = f"--set {assignment}"
        way, equals, text = assignment.partition("=")
        parts = [part.strip() for part in way.split(".")]
        if not equals or not all(parts):
            raise InputError("must be written as field=value, e.g. --set job.iterations=50", file=option)
        value = _Reader(option, {}).read(text)
        node: Any = self.data
        loc: Loc = ()
        while True:
            key, used = _step(node, parts, loc, option)
            loc, parts = (*loc, key), parts[used:]
            if not parts:
                break
            if isinstance(node, dict) and node.get(str(key)) is None:
                node[str(key)] = {}
            node = node[key]
        node[key] = value
        self._places = {known: place for known, place in self._places.items() if known[: len(loc)] != loc}
        self._places[loc] = Place(option, None)

    def set_seed(self, seed: int) -> None:
        """Override the seed.

        Raises
        ------
        InputError
            If another option has set it already.
        """
        other = self._places.get(("seed",))
        if other is not None and other.line is None:
            raise InputError(f"the seed is set by {other.file} too; give one of them", file=f"--seed {seed}")
        self.data["seed"] = seed
        self._places[("seed",)] = Place(f"--seed {seed}", None)

    def problem(self, loc: Sequence[str | int], message: str) -> InputError:
        """Return the error that the value at `loc` is wrong, or missing, with file, line and field.

        Where the way to it leads through what is not written, the error is at the last part that is.
        """
        known, node, beyond = self._follow(loc)
        field = (*known, *beyond[:1]) if isinstance(node, dict) else known
        while known not in self._places:
            known = known[:-1]
        file, line = self._places[known]
        return InputError(message, file=file, line=line, field=dotted(field) or None)

    def found(self, loc: Sequence[str | int], default: object = None) -> object:
        """Return the value as it is written at `loc`, or `default` if none is."""
        _, node, beyond = self._follow(loc)
        return default if beyond else node

    def _follow(self, loc: Sequence[str | int]) -> tuple[Loc, Any, Loc]:
        """Return how far `loc` leads, what is there, and the rest of it; tags such as ``<list>`` are passed over."""
        node: Any = self.data
        known: Loc = ()
        beyond: Loc = ()
        for key in loc:
            if isinstance(key, str) and key.startswith("<"):
                continue
            inside = (isinstance(node, dict) and key in node) or (isinstance(node, list) and key in range(len(node)))
            if beyond or not inside:
                beyond = (*beyond, key)
            else:
                known, node = (*known, key), node[key]
        return known, node, beyond


class Findings:
    """What is wrong with a document, collected so that all of it can be said at once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: list[InputError] = []
        self._job: Loc = ()

    def of_job(self, label: str) -> Findings:
        """Return findings about another job: places in a scenario of its own are those where it stands in the file."""
        found = Findings(self._document)
        found._found, found._job = self._found, ("other_jobs", label)
        return found

    def __len__(self) -> int:
        return len(self._found)

    def add(self, loc: Loc, message: str) -> None:
        """Note that the value at `loc` is wrong."""
        self.take(self.problem(loc, message))

    def problem(self, loc: Loc, message: str) -> InputError:
        """Return the error that the value at `loc` is wrong."""
        if self._job and loc[0] != "memory":
            loc = (*self._job, "exchange", *loc[2:]) if loc[0] == "exchanges" else (*self._job, *loc)
        return self._document.problem(loc, message)

    def take(self, error: InputError) -> None:
        """Note an error; the same one a second time is dropped."""
        if str(error) not in map(str, self._found):
            self._found.append(error)

    def at(self, *loc: str | int) -> _At:
        """Return a context that notes a refusal by what is called within as a refusal of the value at `loc`."""
        return _At(self, loc)

    def refuse(self) -> None:
        """Raise what was found as one error, a line each, in the order of the file; nothing if there is nothing."""
        found = sorted(self._found, key=lambda one: (one.file or "", one.line or 0))
        if len(found) == 1:
            raise found[0]
        if found:
            lines = [str(one) for one in found[:MAX_SHOWN]]
            if len(found) > MAX_SHOWN:
                lines.append(f"... and {len(found) - MAX_SHOWN} more")
            raise InputError("\n  ".join([f"{len(found)} problems", *lines]))


def read(path: str | Path) -> Document:
    """Read a scenario file.

    Raises
    ------
    InputError
        If it cannot be read, is too large, or is not one YAML mapping of plain values.
    """
    return Document(read_text(Path(path), MAX_BYTES), str(path))


def dotted(loc: Sequence[str | int]) -> str:
    """Return the way to a value as people write it.

    Examples
    --------
    >>> dotted(("network", "weather", 0, "links"))
    'network.weather[0].links'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def shown(value: object) -> str:
    """Return a value found, in a length that fits a message."""
    return "nothing" if value is None else reprlib.repr(value)


class _At:
    """See `Findings.at`."""

    def __init__(self, findings: Findings, loc: Loc) -> None:
        self._findings, self._loc = findings, loc

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is not None and not isinstance(error, ValueError | OverflowError):
            error = theirs(error)
        if isinstance(error, InputError):
            # It stands in another file, such as a trace; say who asked for that.
            asked = str(self._findings.problem(self._loc, "")).removesuffix(": ")
            self._findings.take(InputError(f"{error} (needed by {asked})"))
        elif isinstance(error, SimnetError | ValueError | OverflowError):
            self._findings.add(self._loc, str(error))
        return error is None or isinstance(error, SimnetError | ValueError | OverflowError)


def _step(node: Any, parts: list[str], loc: Loc, option: str) -> tuple[str | int, int]:
    """Return the next key on the way of an override, and of how many parts it is made: names may contain dots."""
    if isinstance(node, list):
        if not (parts[0].isascii() and parts[0].isdigit() and int(parts[0]) < len(node)):
            allowed = f"a position from 0 to {len(node) - 1}" if node else "nothing: it is empty"
            raise InputError(f"{dotted(loc)} is a list; allowed: {allowed}, got '{parts[0]}'", file=option)
        return int(parts[0]), 1
    if not isinstance(node, dict):
        raise InputError(f"{dotted(loc)} is {shown(node)}, which has no field '{parts[0]}'", file=option)
    for used in range(len(parts), 0, -1):
        if ".".join(parts[:used]) in node:
            return ".".join(parts[:used]), used
    return parts[0], 1


def _whole(text: str) -> int:
    """Read a whole number of YAML 1.2: decimal, 0x or 0o."""
    digits = text.replace("_", "").lower()
    base = {"0x": 16, "0o": 8}.get(digits.lstrip("+-")[:2], 10)
    return int(digits, base)


def _real(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


class _Reader:
    """Turns the nodes of a YAML text into plain values, and notes the place of each."""

    def __init__(self, file: str, places: dict[Loc, Place]) -> None:
        self._file = file
        self._places = places
        self._values = 0

    def read(self, text: str) -> Any:
        node = self._compose(text)
        return None if node is None else self._value(node, ())

    def _compose(self, text: str) -> Node | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an anchor that is used twice
                node: Node | None = YAML(typ="safe", pure=True).compose(text)
        except RecursionError:
            raise InputError(f"is nested more than {MAX_DEPTH} deep", file=self._file) from None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = " ".join(str(part) for part in (error.context, error.problem) if part)
            raise InputError(f"is not YAML: {message}", file=self._file, line=mark.line + 1 if mark else None) from None
        except Exception as error:  # the parser has further ways of giving up on what is not YAML
            raise InputError(
                f"is not YAML: {str(error).splitlines()[0] if str(error) else error!r}", file=self._file
            ) from None
        return node

    def _value(self, node: Node, loc: Loc) -> Any:
        line = node.start_mark.line + 1
        self._places.setdefault(loc, Place(self._file, line))
        self._values += 1
        if self._values > MAX_VALUES:
            self._refuse(node, f"has more than {MAX_VALUES:,} values, aliases expanded")
        if len(loc) > MAX_DEPTH:
            self._refuse(node, f"is nested more than {MAX_DEPTH} deep")
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, loc)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self._value(item, (*loc, position)) for position, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        return self._refuse(node, f"has the tag {node.tag!r}; a scenario holds plain values only")

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._refuse(key_node, "has a mapping or list as a key; keys are names")
            self._scalar(key_node)  # refuses tags
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in found:
                raise InputError(
                    f"is given twice, first on line {lines[key]}", file=self._file, line=line, field=dotted((*loc, key))
                )
            lines[key] = line
            self._places[(*loc, key)] = Place(self._file, line)
            found[key] = self._value(value_node, (*loc, key))
        return found

    def _scalar(self, node: ScalarNode) -> Any:
        tag, text = str(node.tag), str(node.value)
        try:
            if tag in (f"{_TAG}str", f"{_TAG}timestamp"):
                return text
            if tag == f"{_TAG}null":
                return None
            if tag == f"{_TAG}bool":
                return text.lower() == "true"
            if tag == f"{_TAG}int":
                return _whole(text)
            if tag == f"{_TAG}float":
                return _real(text)
        except ValueError:
            self._refuse(node, f"is not a number: {shown(text)}")
        if tag == f"{_TAG}merge":
            self._refuse(node, "'<<' is not supported; repeat the fields, or alias the whole value")
        return self._refuse(node, f"has the tag {tag!r}; a scenario holds plain values only")

    def _refuse(self, node: Node, message: str) -> NoReturn:
        raise InputError(message, file=self._file, line=node.start_mark.line + 1)
