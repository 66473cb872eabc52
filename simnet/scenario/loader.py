"""Reader of YAML files that keeps line numbers, applies overrides, and reports errors with positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from pydantic import ValidationError

from simnet.base.errors import InputError, SimnetError
from simnet.base.file_io import read_text
from simnet.base.plugins import name_author, refusal_text
from simnet.base.quantities import Notation
from simnet.base.yaml_loader import (
    UNKNOWN_FIELD,
    Loc,
    dotted_key,
    field_path,
    load_yaml,
    shorten_value,
    validation_message,
)
from simnet.scenario import schema
from simnet.scenario.choice_text import kind_fields, named_fields
from simnet.scenario.fields import is_file
from simnet.scenario.named_choices import named_exchanges, read_network_text
from simnet.scenario.parts import Kinds, Named, Part, alternatives, field_names

MAX_BYTES = 256 * 2**10
"""Maximum size of a scenario file [byte]."""

MOST_BYTES = 1800
"""Maximum length of a list of errors [byte]; further errors are only counted."""


# The shipped scenario that is taken where the user names none.
_UNWRITTEN = Path(__file__).parents[1] / "scenarios" / "base.yaml"

T = TypeVar("T")


class Place(NamedTuple):
    """Where a value of a scenario was set: file and line, or the command-line option (without a line)."""

    file: str
    line: int | None


class Document:
    r"""Values of a scenario file, with the position of each value.

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
        read = load_yaml(text, file)
        if not isinstance(read.value, dict):
            read.refuse(f"must be a mapping with fields such as 'workers: 8', got {shorten_value(read.value)}")
        self.data: dict[str, Any] = read.value
        self._places = {loc: Place(file, line) for loc, line in read.lines.items()}

    def set(self, assignment: str) -> None:
        """Override a value by ``a.b.0.c=value``, in YAML; InputError without "=" or if there is no such position.

        Relative paths of files start in the working directory.
        """
        option = getattr(assignment, "option", f"--set {assignment}")
        way, equals, text = assignment.partition("=")
        parts = [part.strip() for part in dotted_key(way).split(".")]
        if not equals or not all(parts):
            raise InputError("must be written as field=value, e.g. --set job.iterations=50", file=option)
        value = self._from_here(load_yaml(text, option).value)
        node: Any = self.data
        loc: Loc = ()
        while True:
            key, used = _override_step(node, parts, loc, option)
            loc, parts = (*loc, key), parts[used:]
            if not parts:
                break
            if isinstance(node, dict) and node.get(str(key)) is None:
                node[str(key)] = {}
            if isinstance(node[key], str):
                node[key] = self._opened(node[key], loc)
            node = node[key]
        node[key] = value
        self._places = {known: place for known, place in self._places.items() if known[: len(loc)] != loc}
        self._places[loc] = Place(option, None)

    def _from_here(self, value: Any) -> Any:
        """Return a value in which relative file paths are made absolute from the working directory."""
        if isinstance(value, dict):
            return {key: self._from_here(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._from_here(one) for one in value]
        name, colon, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
        path = Path(name)
        if "\0" in name or len(name) > 250 or not (path.suffix or "/" in name):
            return value
        # A rate such as 25Gbit/s has no suffix.
        missing = path.suffix[1:].isalpha() and is_file(name) and not (Path(self.file).parent / path).exists()
        return f"{path.absolute()}{colon}{rest}" if missing or path.exists() else value

    def open_texts(self) -> None:
        """Replace networks, topologies and exchanges given as texts ``NAME:option=value`` by mappings."""
        for *way, last in (("network",), ("network", "topology"), ("exchanges",)):
            holder = self.found(way)
            if isinstance(holder, dict) and isinstance(holder.get(last), str):
                holder[last] = self._opened(holder[last], (*way, last))

    def _opened(self, text: str, loc: Loc) -> Any:
        """Return a short form such as ``fat_tree:k=8`` as the mapping it stands for, and any other text unchanged."""
        folder, part = Path(self.file).parent, part_at(loc)
        try:
            if loc == ("exchanges",):
                return named_exchanges(text, folder)
            if loc in (("network",), ("network", "topology")):
                network = read_network_text(text, folder)
                return network if len(loc) == 1 else network["topology"]
            if part is not None and issubclass(part, Named):
                return named_fields(text, part.named, part.names())
            return kind_fields(text, ()) if part is not None and issubclass(part, Kinds) else text
        except (InputError, ValueError) as error:
            raise self.problem(loc, str(error)) from None

    def set_seed(self, seed: int) -> None:
        """Override the seed; InputError if another option has set the seed already."""
        other = self._places.get(("seed",))
        if other is not None and other.line is None:
            raise InputError(f"the seed is set by {other.file} too; give one of them", file=f"--seed {seed}")
        self.data["seed"] = seed
        self._places[("seed",)] = Place(f"--seed {seed}", None)

    def problem(self, loc: Sequence[str | int], message: str, cause: str = "") -> InputError:
        """Return an InputError with file, line and field of the value at `loc`, or of the field `cause` within it.

        If the file lacks the value, the error names the deepest part of `loc` that the file has. For a shipped
        scenario, which the user did not write, it names the option that caused the error if that is known; for the
        default scenario it otherwise names no place.
        """
        known, node, beyond = self._follow(loc)
        # Below a text that is a choice, places are those of the mapping that it stands for.
        field = (*known, *beyond[: None if isinstance(node, str) else 1]) if isinstance(node, dict | str) else known
        known = (*known, cause) if (*known, cause) in self._places else known
        while known not in self._places:
            known = known[:-1]
        place: tuple[str | None, int | None] = self._places[known]
        if place[1] is not None and self.is_shipped:
            option = self._causing_option(known)
            if option is not None or Path(self.file) == _UNWRITTEN:
                place = option, None
        return InputError(message, file=place[0], line=place[1], field=field_path(field) or None)

    def _causing_option(self, loc: Loc) -> str | None:
        options = {at: one.file for at, one in self._places.items() if one.line is None}
        parts = ({one for at, one in options.items() if at[:end] == loc[:end]} for end in range(len(loc), -1, -1))
        near: set[str] = next(filter(None, parts), set())
        return near.pop() if len(near) == 1 else None

    def found(self, loc: Sequence[str | int], default: object = None) -> object:
        """Return the value at `loc` in the file, or `default`."""
        _, node, beyond = self._follow(loc)
        return default if beyond else node

    @property
    def is_shipped(self) -> bool:
        """Whether the file comes with simnet."""
        return _UNWRITTEN.parent in Path(self.file).resolve().parents

    def is_overridden(self, loc: Loc) -> bool:
        """Return whether an option, and not the file, set the value at `loc`."""
        above = (loc[:end] for end in range(len(loc), 0, -1))
        return next((self._places[at].line is None for at in above if at in self._places), False)

    def _follow(self, loc: Sequence[str | int]) -> tuple[Loc, Any, Loc]:
        """Return the part of the path `loc` that exists in the document, the value there, and the rest of the path."""
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
    """Errors found in a scenario document, collected so that one message reports them all."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: list[InputError] = []
        self._elsewhere: set[str] = set()
        self._job: Loc = ()

    def of_job(self, label: str) -> Findings:
        """Return a collector for another job of the scenario; error positions start at that job."""
        found = Findings(self._document)
        found._found, found._elsewhere, found._job = self._found, self._elsewhere, ("other_jobs", label)
        return found

    def __len__(self) -> int:
        return len(self._found)

    def add(self, loc: Loc, message: str) -> None:
        """Collect an error in the value at `loc`."""
        self.take(self.problem(loc, message))

    def problem(self, loc: Loc, message: str) -> InputError:
        """Return an InputError for the value at `loc`."""
        if self._job and loc[0] != "memory":
            loc = (*self._job, "exchange", *loc[2:]) if loc[0] == "exchanges" else (*self._job, *loc)
        return self._document.problem(loc, message)

    def take(self, error: InputError) -> None:
        """Collect an error, unless an equal error was collected before."""
        if str(error) not in map(str, self._found):
            self._found.append(error)

    @contextmanager
    def at(self, *loc: str | int) -> Iterator[None]:
        """Collect errors raised inside the ``with`` block as errors of the value at `loc`."""
        try:
            yield
        except InputError as error:
            # It stands in another file, such as a trace; say once who asked for that, whoever else does.
            if str(error) not in self._elsewhere:
                self._elsewhere.add(str(error))
                asked = str(self.problem(loc, "")).removesuffix(": ")
                # The traces of `simnet step FOLDER` are named on the line.
                self.take(error if asked.startswith("--sharding") else InputError(f"{error} (needed by {asked})"))
        except (SimnetError, ValueError, OverflowError) as error:
            self.add(loc, refusal_text(error))
        except Exception as error:
            if not isinstance(named := name_author(error), SimnetError):
                raise
            self.add(loc, str(named))

    def attempt(self, loc: Loc, make: Callable[..., T], *given: Any) -> T | None:
        """Return ``make(*given)``; if the call raises, collect the error for the value at `loc`, and return None."""
        found = None
        with self.at(*loc):
            found = make(*given)
        return found  # noqa: RET504  # None, if that went wrong

    def refuse(self) -> None:
        """Raise the collected errors, if any, as one InputError with a line for each, in file order."""
        found = sorted(self._found, key=lambda one: (one.file or "", one.line or 0))
        if len(found) == 1:
            raise found[0]
        if found:
            lines = [str(one) for one in found]
            ends = accumulate(len(line.encode()) for line in lines)
            fitting = max(1, sum(end < MOST_BYTES for end in ends))
            if len(found) > fitting:
                lines[fitting:] = [f"... and {len(found) - fitting} more"]
            raise InputError("\n  ".join([f"{len(found)} problems", *lines]))


def read_scenario(path: str | Path) -> Document:
    """Read a scenario file; InputError if it is unreadable, too large, or not one YAML mapping of plain values."""
    return Document(read_text(Path(path), MAX_BYTES), str(path))


def _override_step(node: Any, parts: list[str], loc: Loc, option: str) -> tuple[str | int, int]:
    """Return the key or list position that an override addresses next, and the number of dotted parts it spans."""
    if isinstance(node, list):
        if not (parts[0].isascii() and parts[0].isdigit() and int(parts[0]) < len(node)):
            allowed = f"a position from 0 to {len(node) - 1}" if node else "nothing: it is empty"
            raise InputError(f"{field_path(loc)} is a list; allowed: {allowed}, got '{parts[0]}'", file=option)
        return int(parts[0]), 1
    if not isinstance(node, dict):
        raise InputError(f"{field_path(loc)} is {shorten_value(node)}, which has no field '{parts[0]}'", file=option)
    for used in range(len(parts), 0, -1):
        if ".".join(parts[:used]) in node:
            return ".".join(parts[:used]), used
    return parts[0], 1


# Marks of one part, or of several by name; whether that is a mapping from names.
_FORMS: dict[str | int, bool] = {"<one>": False, "<several>": True}


def problems(document: Document, error: ValidationError) -> list[InputError]:
    """Return pydantic's validation errors as InputErrors with file, line, field, value and allowed values."""
    found = []
    for one in error.errors(include_url=False):
        loc = one["loc"]
        above, part = part_at(loc[:-1]), part_at(loc)
        got = shorten_value(document.found(loc, one.get("input")))
        names, fields = above.names() if above else None, field_names(part) if part else ()
        is_label = loc[0] == "policies" and isinstance(document.found(loc[:-1]), str)
        remedy = EXAMPLES[loc[:1]] if is_label else _remedy(one["type"], loc, above)
        # A key that is wrong is marked; a blank one stands nowhere.
        place = loc[: -1 if str(loc[-2]).strip() else -2] if loc[-1:] == ("[key]",) else loc
        message = validation_message(one, got, None if remedy else names, fields)
        cause = getattr(one.get("ctx", {}).get("error"), "field", "")
        found.append(document.problem(place, f"{message}; write {remedy}" if remedy else message, cause))
    return found


EXAMPLES: Mapping[Loc, str] = {
    ("workers",): "workers: 8",
    ("job",): "job: {model: resnet50, density: 1%, iterations: 100}",
    ("network",): "network: star:latency=1ms,bandwidth=10Gbit/s",
    ("network", "topology"): "topology: star:latency=1ms,bandwidth=10Gbit/s",
    ("exchanges",): "exchanges: topk,dense",
    ("policies",): "policies: {AG: {fixed: AG}}",
}
"""What to write at places where a scenario must have something, or where it is in another form."""

# Parts in which a field is looked for that stands in the wrong one, and names that people take for others.
_SCOPES: Sequence[Loc] = ((), ("job",), ("network",), ("network", "topology", "star"))
_MEANT: Mapping[object, Loc] = {"schemes": ("exchanges",), "type": ("network", "topology")}


def _remedy(kind: str, loc: Loc, above: type[Part] | None) -> str:
    """Return what to write for a missing, misplaced or malformed field, as a hint for an error; "" if unknown."""
    name = loc[-1]
    if kind in ("missing", "missing_argument") and above is not None and loc not in EXAMPLES:
        written = above.model_fields[name].metadata if name in above.model_fields else ()
        return next((f"{name}: {one.examples[0]}" for one in written if isinstance(one, Notation)), "")
    if kind in ("missing", "missing_argument", "dict_type"):
        return EXAMPLES.get(loc, "")
    if kind not in UNKNOWN_FIELD:
        return ""
    if name in _MEANT:
        return EXAMPLES[_MEANT[name]]
    inside = [(*loc[:-1], one) for one in (above.names() if above else ())]
    parts = ((scope, part_at(scope)) for scope in (*inside, *_SCOPES) if scope != loc[:-1])
    there = next((scope for scope, part in parts if part is not None and name in part.names()), None)
    if there is None:
        return ""
    there = there[len(loc) - 1 :] if there in inside else there
    return "".join(f"{one}: {{" for one in there) + f"{name}: ..." + "}" * len(there) + " at the top" * (not there)


def part_at(loc: Sequence[str | int]) -> type[Part] | None:
    """Return the scenario part class that describes the mapping at `loc`; None if there is no such class."""
    parts: list[Any] = [schema.Config]
    for step in loc:
        if step in _FORMS:
            parts = [part for part in parts if (get_origin(part) is dict) == _FORMS[step]]
        if isinstance(step, str) and step.startswith("<"):
            continue
        found: list[Any] = []
        for part in parts:
            if isinstance(part, type) and issubclass(part, Kinds):
                part = part.with_registered([str(step)])
            if isinstance(part, type) and issubclass(part, Part):
                by_name = {field.alias or name: field.annotation for name, field in part.model_fields.items()}
                found += alternatives(by_name.get(str(step)))
            elif get_origin(part) in (list, dict):
                found += alternatives(get_args(part)[-1])
        parts = found
    return next((part for part in parts if isinstance(part, type) and issubclass(part, Part)), None)
