"""A YAML file as plain values with their lines, and overrides on top of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from simnet.base.errors import InputError, SimnetError
from simnet.base.plugins import name_author
from simnet.base.reading import read_text
from simnet.base.yaml_loader import Loc, field_path, load_yaml, shorten_value
from simnet.scenario.choice_text import opened_text
from simnet.scenario.network_choice import read_network_text

MAX_BYTES = 256 * 2**10
"""The largest scenario file that is read."""

MOST_BYTES = 1800
"""The length of a list of problems [byte]; those that it does not hold are counted."""


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
        data, lines = load_yaml(text, file)
        if not isinstance(data, dict):
            raise InputError(
                f"must be a mapping with fields such as 'workers: 8', got {shorten_value(data)}", file=file, line=1
            )
        self.data: dict[str, Any] = data
        self._places = {loc: Place(file, line) for loc, line in lines.items()}

    def set(self, assignment: str) -> None:
        """Override a value: ``a.b.0.c=value``, the value in YAML. InputError: no "=", or no such position."""
        option = getattr(assignment, "option", f"--set {assignment}")
        way, equals, text = assignment.partition("=")
        parts = [part.strip() for part in way.split(".")]
        if not equals or not all(parts):
            raise InputError("must be written as field=value, e.g. --set job.iterations=50", file=option)
        value = load_yaml(text, option).value
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

    def open_texts(self) -> None:
        """Write texts as mappings where they may stand for more than one choice, or for a file."""
        for *way, last in (("network",), ("network", "topology"), ("exchanges",)):
            holder = self.found(way)
            if isinstance(holder, dict) and isinstance(holder.get(last), str):
                try:
                    holder[last] = self._opened(holder[last], (*way, last))
                except InputError as error:
                    raise self.problem((*way, last), str(error)) from None

    def _opened(self, text: str, loc: Loc) -> Any:
        """Return the text of a choice as a mapping; another text as it is."""
        folder = Path(self.file).parent
        if loc == ("exchanges",):
            # It reads scenarios itself.
            from simnet.scenario.named_exchanges import named_exchanges

            found = named_exchanges(text, None, folder)
            return {one.label: {"scheme": one.scheme, **one.options} for one in found}
        if loc in (("network",), ("network", "topology")):
            network = read_network_text(text, folder)
            return network if len(loc) == 1 else network["topology"]
        return opened_text(text, loc)

    def set_seed(self, seed: int) -> None:
        """Override the seed. InputError: another option has set it already."""
        other = self._places.get(("seed",))
        if other is not None and other.line is None:
            raise InputError(f"the seed is set by {other.file} too; give one of them", file=f"--seed {seed}")
        self.data["seed"] = seed
        self._places[("seed",)] = Place(f"--seed {seed}", None)

    def problem(self, loc: Sequence[str | int], message: str) -> InputError:
        """Return an error for the value at `loc`, with file, line and field.

        If it is not in the file, the error is at the last part of `loc` that is.
        """
        known, node, beyond = self._follow(loc)
        # Below a text that is a choice, places are those of the mapping that it stands for.
        field = (*known, *beyond[: None if isinstance(node, str) else 1]) if isinstance(node, dict | str) else known
        while known not in self._places:
            known = known[:-1]
        file, line = self._places[known]
        return InputError(message, file=file, line=line, field=field_path(field) or None)

    def found(self, loc: Sequence[str | int], default: object = None) -> object:
        """Return the value at `loc` in the file, or `default`."""
        _, node, beyond = self._follow(loc)
        return default if beyond else node

    def _follow(self, loc: Sequence[str | int]) -> tuple[Loc, Any, Loc]:
        """Return how far `loc` leads, the value there, and the rest of it; tags such as ``<list>`` are skipped."""
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
    """Errors in a document, collected to be reported together."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: list[InputError] = []
        self._elsewhere: set[str] = set()
        self._job: Loc = ()

    def of_job(self, label: str) -> Findings:
        """Return findings about another job, whose places in a scenario of its own become those in the file."""
        found = Findings(self._document)
        found._found, found._elsewhere, found._job = self._found, self._elsewhere, ("other_jobs", label)
        return found

    def __len__(self) -> int:
        return len(self._found)

    def add(self, loc: Loc, message: str) -> None:
        """Report an error at `loc`."""
        self.take(self.problem(loc, message))

    def problem(self, loc: Loc, message: str) -> InputError:
        """Return an error for the value at `loc`."""
        if self._job and loc[0] != "memory":
            loc = (*self._job, "exchange", *loc[2:]) if loc[0] == "exchanges" else (*self._job, *loc)
        return self._document.problem(loc, message)

    def take(self, error: InputError) -> None:
        """Report an error, once."""
        if str(error) not in map(str, self._found):
            self._found.append(error)

    def take_elsewhere(self, error: InputError, loc: Loc) -> None:
        """Report an error in a file that the value at `loc` needs, once, whoever else needs that file."""
        if str(error) not in self._elsewhere:
            self._elsewhere.add(str(error))
            asked = str(self.problem(loc, "")).removesuffix(": ")
            self.take(InputError(f"{error} (needed by {asked})"))

    @contextmanager
    def at(self, *loc: str | int) -> Iterator[None]:
        """Report an error raised within as one of the value at `loc`."""
        try:
            yield
        except InputError as error:
            # It stands in another file, such as a trace; say who asked for that.
            self.take_elsewhere(error, loc)
        except (SimnetError, ValueError, OverflowError) as error:
            self.add(loc, str(error))
        except Exception as error:
            if not isinstance(named := name_author(error), SimnetError):
                raise
            self.add(loc, str(named))

    def refuse(self) -> None:
        """Raise the collected errors as one, a line each, in the order of the file."""
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


def read(path: str | Path) -> Document:
    """Read a scenario file. InputError: unreadable, too large, or not one YAML mapping of plain values."""
    return Document(read_text(Path(path), MAX_BYTES), str(path))


def _override_step(node: Any, parts: list[str], loc: Loc, option: str) -> tuple[str | int, int]:
    """Return the next key of an override, and its number of parts: names may contain dots."""
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
