"""``simnet new``: template files for a scenario, scheme, topology, policy, strategy or question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from simnet.base.errors import InputError, check_choice
from simnet.base.file_io import explain_write_errors, write_new
from simnet.report.summary import Summary
from simnet.verbs.request import verb
from simnet.verbs.terminal import no_empty_folders

_SCHEMA = "scenario.schema.json"


class _Kind(NamedTuple):
    """Kind of template: where existing names are listed, whether it makes a package, and the command to run next."""

    taken: str
    package: bool
    next: str


KINDS: Mapping[str, _Kind] = {
    "scenario": _Kind("scenario:shipped", False, "simnet run {place}/{name}.yaml"),
    "scheme": _Kind("sparsifier_models:names", False, "simnet run --schemes topk,{place}/{name}.py:{kind}"),
    "topology": _Kind("topologies:names", True, "pip install -e {place}; simnet run {place}/{name}.yaml"),
    "policy": _Kind("scenario.schema:Policy.names", True, "pip install -e {place}; simnet run {place}/{name}.yaml"),
    "question": _Kind("studies.questions.question_file:questions", True, "simnet reproduce {place}"),
    "strategy": _Kind("strategies:names", False, "python -m pytest {place}/test_{name}.py"),
}
"""The kinds of template, by name."""


@verb
def new(kind: str, name: str, *, out: str | None = None, force: bool = False) -> Summary:
    """Write template files for a new scenario, scheme, topology, policy, strategy or question.

    Parameters
    ----------
    kind
        scenario, scheme, topology, policy, strategy or question.
    name
        Its name: small letters, digits and _.
    out
        Folder for the files; default: the current folder.
    force
        Overwrite existing files.

    Raises
    ------
    InputError
        If the name is in use or invalid, or files exist already.
    """
    check_choice(kind, "kind", KINDS, file="KIND")
    what, folder = KINDS[kind], Path(out or "")
    _check_name(name, EntryPoint("", f"simnet.{what.taken}", "").load()(), force)
    place = folder / name if what.package else folder
    written = _write_files(kind, name, place, force)
    shown = str(place) if place.is_absolute() else f"./{place}".removesuffix("/.")
    then = what.next.format(place=shown, name=name, kind=_class_name(name)).replace("././", "./")
    return Summary(answer=f"Written: {', '.join(map(str, written))}.", next=then)


def _check_name(name: str, known: Iterable[str], force: bool) -> None:
    """Raise InputError for a name that is not an identifier, is in use by simnet, or is an existing Python module."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InputError(
            f"must begin with a small letter, and have small letters, digits and _, got {name!r}", file="NAME"
        )
    if name in known:
        raise InputError(f"{name!r} comes with simnet, which keeps its names; take another one", file="NAME")
    if not force and find_spec(name) is not None:
        said = "is the name of a Python module that is there already; take another one"
        raise InputError(f"{name!r} {said}", file="NAME")


def _write_files(kind: str, name: str, place: Path, force: bool) -> list[Path]:
    """Write all template files of a kind into a folder, or none. `force` replaces existing files."""
    folder, texts = files("simnet") / "data" / "new" / kind, dict[Path, bytes | str]()
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        path = place / one.name.removesuffix(".txt").replace("my_name", name)
        texts[path] = one.read_text(encoding="utf-8").replace("my_name", name).replace("MyName", _class_name(name))
    from simnet.scenario import json_schema

    described = place / _SCHEMA
    if any(path.suffix == ".yaml" for path in texts):
        text = json.dumps(json_schema(), indent=2) + "\n"
        # The same schema may serve all scenarios of a folder.
        if not (described.is_file() and described.read_text(encoding="utf-8") == text):
            texts[described] = text
    with no_empty_folders(place):
        with explain_write_errors(place):
            place.mkdir(parents=True, exist_ok=True)
        write_new(texts, force)
    return list(texts)


def _class_name(name: str) -> str:
    """Return the CamelCase class name for a snake_case name."""
    return "".join(word.capitalize() for word in name.split("_"))
