"""XML files as trees with line numbers. External entities are not fetched, and entity declarations are errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import read_text

MAX_BYTES = 64 * 2**20
"""The largest XML file that is read."""

MAX_ELEMENTS = 1_500_000
"""The most elements of an XML file that are read (some 1 GB)."""

MAX_DEPTH = 64
"""Elements inside each other, at most."""


@dataclass
class Element:
    """An element of an XML file: attributes as written, children, and the file and line where it begins."""

    tag: str
    attributes: dict[str, str]
    file: str
    line: int
    children: list[Element] = field(default_factory=list)

    def refuse(self, message: str, attribute: str | None = None) -> NoReturn:
        """Raise InputError with `message` and the file and line of the element."""
        name = self.tag if attribute is None else f"{self.tag}.{attribute}"
        raise InputError(message, file=self.file, line=self.line, field=name)

    def get(self, attribute: str) -> str:
        """Return the value of an attribute; if it is missing, InputError with the nearest existing name."""
        if attribute not in self.attributes:
            given = suggest_names(attribute, self.attributes) if self.attributes else "there are none"
            self.refuse(f"has no attribute {attribute!r}; {given}".replace("Allowed:", "Given:"))
        return self.attributes[attribute]

    def whole(self, attribute: str, low: int, high: int, default: int | None = None) -> int:
        """Return an attribute as an integer in low .. high, or `default` if missing; InputError if invalid."""
        if default is not None and attribute not in self.attributes:
            return default
        text = self.get(attribute).strip()
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and low <= int(text) <= high):
            self.refuse(f"must be a whole number in {low}..{high}, got {text[:40]!r}", attribute)
        return int(text)

    def choice(self, attribute: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return an attribute whose value must be one of `allowed`, or `default` if missing; InputError if invalid."""
        text = self.get(attribute) if default is None else self.attributes.get(attribute, default)
        if text not in allowed:
            self.refuse(f"{text[:40]!r} is not read; {suggest_names(text, allowed)}", attribute)
        return text

    def each(self, tag: str) -> Iterator[Element]:
        """Yield the children whose tag is `tag`."""
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """Yield the element and all elements below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()


def _without_comments(text: str) -> str:
    """Return XML text without comments, with line numbers kept; RCCL's comments contain "--", which XML forbids."""
    parts, at = [], 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        parts += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end + 3
    return "".join([*parts, text[at:]])


def read_xml(path: str | Path, root: Iterable[str]) -> Element:
    """Read an XML file of limited size whose root element is one of `root`.

    A document type declaration may name an external definition, which is not fetched; it may declare nothing itself.
    """
    text, name = _without_comments(read_text(Path(path), MAX_BYTES)), str(path)
    parser = expat.ParserCreate()
    top: list[Element] = []
    open_elements: list[Element] = []
    left = MAX_ELEMENTS

    def refuse(message: str) -> NoReturn:
        raise InputError(message, file=name, line=parser.CurrentLineNumber)

    def doctype(_name: str, _system: str | None, _public: str | None, has_internal_subset: bool) -> None:
        if has_internal_subset:
            refuse("declares its own document type; only a reference to an external one is accepted")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            refuse(f"has more than {MAX_ELEMENTS:,} elements, the most that are read")
        one = Element(tag, attributes, name, parser.CurrentLineNumber)
        if len(open_elements) == MAX_DEPTH:
            refuse(f"is nested more than {MAX_DEPTH} deep")
        (open_elements[-1].children if open_elements else top).append(one)
        open_elements.append(one)

    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = lambda *_: refuse("declares an entity, which is not accepted")
    parser.SkippedEntityHandler = lambda *_: refuse("uses an entity that it does not declare")
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        message = f"is not XML: {expat.ErrorString(error.code)}"
        raise InputError(message, file=name, line=error.lineno) from None
    allowed = sorted(root)
    if top[0].tag not in allowed:
        top[0].refuse(f"is not the outermost element expected; {suggest_names(top[0].tag, allowed)}")
    return top[0]
