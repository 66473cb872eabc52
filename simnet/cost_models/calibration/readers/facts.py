"""Facts that logs do not contain: stated for all logs or for a pattern of file names, or parsed from file names.

``ranks=16`` holds for every log. ``osu_*_n8.log:ranks=32`` holds for files so named, ``n8/*:ranks=32`` for those in a
folder of that name, where ``*`` stands for any characters and ``?`` for one. ``*_n{ranks}.log`` takes the number of
ranks from the name itself: all digits that stand together. Later facts override earlier ones; the log overrides both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.calibration.readers.tables import TABLE_COLUMNS, ColumnForm

MAX_PATTERN = 200
"""Characters of a pattern; it has at most eight stars."""

_ANY_NAME = re.compile(".*", re.DOTALL)
_PLAIN_FACT = re.compile(r"([A-Za-z_]\w{0,59})=(.{0,200})", re.DOTALL)
_FOR_SOME = re.compile(r"(.+):([A-Za-z_]\w{0,59})=(.{0,200})", re.DOTALL)
_FROM_NAME = re.compile(r"\{([A-Za-z_]\w{0,59})\}")


class FactRule(NamedTuple):
    """Facts, as column values, about the logs whose file names match a pattern."""

    text: str
    """The rule as the user wrote it."""

    pattern: re.Pattern[str]
    """Pattern for the full name of a log."""

    values: Mapping[str, Any]
    """Values by column; None stands for the text that the pattern's group of this name matches."""


@dataclass
class LogFacts:
    """Rules that state facts about logs: later rules override earlier ones; `fitted` has the indices of rules used."""

    rules: tuple[FactRule, ...] = ()
    fitted: set[int] = field(default_factory=set)

    def of(self, path: str | Path) -> dict[str, Any]:
        """Return the facts about a log, by column; raise InputError for an invalid value in the log's file name."""
        found: dict[str, Any] = {}
        name = Path(path).as_posix()[-2000:]
        for number, rule in enumerate(self.rules):
            if (fits := rule.pattern.fullmatch(name)) is None:
                continue
            self.fitted.add(number)
            for column, value in rule.values.items():
                found[column] = typed_fact(column, fits[column]) if value is None else value
        return found

    def refuse_idle(self) -> None:
        """Raise InputError if the pattern of a rule has matched no log."""
        for number, rule in enumerate(self.rules):
            if number not in self.fitted and rule.pattern is not _ANY_NAME:
                raise InputError(f"{rule.text[:120]!r} fits the name of no log", file="--fact")


def constant_facts(values: Mapping[str, Any]) -> LogFacts:
    """Return facts, by column, that hold for every log."""
    return LogFacts((FactRule("", _ANY_NAME, dict(values)),))


def parse_facts(texts: Iterable[str]) -> LogFacts:
    """Return facts parsed from texts such as ``ranks=16``, ``osu_*_n8.log:ranks=32`` or ``*_n{ranks}.log``."""
    rules: list[FactRule] = []
    for text in texts:
        plain, some = _PLAIN_FACT.fullmatch(text), _FOR_SOME.fullmatch(text)
        if plain is not None and (plain[1] in TABLE_COLUMNS or some is None):
            rules.append(FactRule(text, _ANY_NAME, {plain[1]: typed_fact(plain[1], plain[2])}))
        elif some is not None:
            rules.append(FactRule(text, _name_pattern(some[1], {}), {some[2]: typed_fact(some[2], some[3])}))
        elif columns := dict.fromkeys(_FROM_NAME.findall(text)):
            for column in columns:
                _form_of(column)
                if text.count(f"{{{column}}}") > 1:
                    raise InputError(f"names {column!r} twice: {text[:60]!r}", file="--fact")
            rules.append(FactRule(text, _name_pattern(text, columns), columns))
        else:
            allowed = "COLUMN=VALUE, PATTERN:COLUMN=VALUE or a pattern with {COLUMN}"
            raise InputError(f"must be {allowed}, got {text[:60]!r}", file="--fact")
    return LogFacts(tuple(rules))


def _form_of(column: str) -> ColumnForm:
    if column not in TABLE_COLUMNS:
        raise InputError(f"there is no column {column!r}; {suggest_names(column, TABLE_COLUMNS)}", file="--fact")
    return TABLE_COLUMNS[column]


def typed_fact(name: str, value: str) -> Any:
    """Return a fact's value, as a number in numeric columns; raise InputError for an invalid value."""
    form = _form_of(name)
    if form == "text":
        return value
    if value.isascii() and value.isdigit() and len(value) < 16:
        return int(value) if form == "whole" else float(value)
    raise InputError(f"must be a whole number, got {value[:40]!r}", file="--fact", field=name)


def _name_pattern(text: str, groups: Mapping[str, Any]) -> re.Pattern[str]:
    """Return the regular expression for a glob with ``{column}`` groups; it matches file names and ends of paths."""
    if len(text) > MAX_PATTERN or text.count("*") + len(groups) > 8:
        message = f"a pattern has at most {MAX_PATTERN} characters and eight stars or columns, got {text[:60]!r}"
        raise InputError(message, file="--fact")
    words = "|".join(re.escape(f"{{{column}}}") for column in groups if TABLE_COLUMNS[column] == "text")
    if words and (beside := re.search(rf"\*({words})|({words})\*", text)):
        word = beside[1] or beside[2]
        message = f"has a star beside {word}, so that nothing says where it begins or ends: {text[:60]!r}"
        raise InputError(message, file="--fact")
    pattern = re.sub(r"(\\\*)+", "\0", re.escape(text.replace("\\", "/"))).replace(r"\?", "[^/]")
    for column in groups:
        of_text = TABLE_COLUMNS[column] == "text"
        group = f"(?P<{column}>" + ("[^/]{1,60}?)" if of_text else r"(?<!\d)\d{1,15}(?!\d))")
        pattern = pattern.replace(re.escape(f"{{{column}}}"), group)
    # What follows a star is taken where it first stands, for good: else time grows with a power of the length.
    first, *middle = pattern.split("\0")
    last = "[^/]*" + middle.pop() if middle else ""
    return re.compile("(?:.*/)?" + first + "".join(f"(?>[^/]*?{part})" for part in middle) + last, re.DOTALL)
