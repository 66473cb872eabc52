"""``simnet new``: files to start from, for a scenario and for what others can add to simnet."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from simnet.base.errors import InputError
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Force

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Its name: small letters, digits and _.")]
Folder: TypeAlias = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where the files shall lie; default: here.", show_default=False)
]

_SCHEMA = "scenario.schema.json"


def new_scenario(name: Name, out: Folder = Path(), force: Force = False) -> None:
    """Write a commented scenario to start from, with the schema by which editors check and complete it."""
    _check_name(name, completion.scenarios(), force)
    _write_files("scenario", name, out, force)
    terminal.say(f"Next: simnet run {out / name}.yaml")


def new_scheme(name: Name, out: Folder = Path(), force: Force = False) -> None:
    """Write a scheme in a file of its own to start from, with a test."""
    _check_name(name, completion.schemes(), force)
    _write_files("scheme", name, out, force)
    path = str(out / f"{name}.py")
    named = path if out.is_absolute() else f"./{path}"
    terminal.say(
        f"Next: simnet compare --schemes topk,{named}:{_class_name(name)} --workers 2,8 --set job.iterations=10"
    )
    terminal.say(f"Test: python -m pytest {out / f'test_{name}.py'}")


def new_topology(name: Name, out: Folder = Path(), force: Force = False) -> None:
    """Write a package with a topology to start from, with a test and a scenario on it."""
    _check_name(name, completion.topologies(), force)
    _write_package("topology", name, out, force)


def new_policy(name: Name, out: Folder = Path(), force: Force = False) -> None:
    """Write a package with a policy to start from, with a test and a scenario under it."""
    from simnet.scenario import schema

    _check_name(name, ["fixed", *schema.Policy.parts()], force)
    _write_package("policy", name, out, force)


def new_strategy(name: Name, out: Folder = Path(), force: Force = False) -> None:
    """Write a training strategy in a file of its own to start from, with a test."""
    from simnet import strategies

    _check_name(name, strategies.names(), force)
    _write_files("strategy", name, out, force)
    terminal.say(f"Test: python -m pytest {out / f'test_{name}.py'}")


def _check_name(name: str, known: list[str], force: bool) -> None:
    """Refuse a name that is none, that simnet has, or that Python has for something else."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InputError(
            f"must begin with a small letter, and have small letters, digits and _, got {name!r}", file="NAME"
        )
    if name in known:
        raise InputError(f"{name!r} comes with simnet, which keeps its names; take another one", file="NAME")
    if not force and find_spec(name) is not None:
        raise InputError(
            f"{name!r} is the name of a Python module that is there already; take another one", file="NAME"
        )


def _write_package(kind: str, name: str, out: Path, force: bool) -> None:
    """Write a package, and say how it is used."""
    place = out / name
    _write_files(kind, name, place, force)
    terminal.say(f"Next: pip install -e {place if place.is_absolute() else f'./{place}'}")
    terminal.say(f"      simnet run {place / name}.yaml")
    terminal.say(f"      simnet schema > {place / _SCHEMA}    # then editors know {name}, too")
    terminal.say(f"Test: python -m pytest {place}")


def _write_files(kind: str, name: str, place: Path, force: bool) -> None:
    """Write the files of a kind into a folder, all of them or none, where none is, unless by force."""
    from simnet.base.writing import explain_write_errors, write_new

    folder, texts = files("simnet") / "data" / "new" / kind, {}
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        path = place / one.name.removesuffix(".txt").replace("my_name", name)
        texts[path] = one.read_text(encoding="utf-8").replace("my_name", name).replace("MyName", _class_name(name))
    schema = place / _SCHEMA
    if any(path.suffix == ".yaml" for path in texts):
        from simnet.scenario import json_schema

        text = json.dumps(json_schema(), indent=2) + "\n"
        # The same schema may serve all scenarios of a folder.
        if not (schema.is_file() and schema.read_text(encoding="utf-8") == text):
            texts[schema] = text
    with terminal.no_empty_folders(place):
        with explain_write_errors(place):
            place.mkdir(parents=True, exist_ok=True)
        write_new(texts, force)
    terminal.say(f"Written: {', '.join(map(str, texts))}")


def _class_name(name: str) -> str:
    """Return the name of a class that is called so."""
    return "".join(word.capitalize() for word in name.split("_"))
