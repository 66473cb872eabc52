"""Docstrings of public functions and classes say what their parameters are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HELD = (
    *("simnet/verbs/library", "simnet/collectives", "simnet/topologies"),
    *(f"simnet/network/{one}.py" for one in ("network", "sharing", "stack", "transport")),
    *(f"simnet/sparsifier_models/{one}.py" for one in ("__init__", "base", "options")),
)
"""Folders and modules that users call; elsewhere annotations and first lines say it."""

FROM = 3
"""With as many parameters besides symbols, a function or a class says what each is, in a section or in its prose."""

SYMBOLS = {"M", "N", "P", "alpha", "beta", "c", "d", "k", "n", "t"}
"""Symbols that mean the same everywhere; see `simnet.cost_models.costs`."""

SHAPES = {"path", "paths"}
"""Methods that every regular topology has; `simnet.topologies.shapes` documents them."""


def undocumented(path):
    """Yield where a public function or class leaves out what its parameters are, and which."""
    for node in public(ast.parse(path.read_text()).body):
        made = node if isinstance(node, ast.FunctionDef) else own(node, "__init__")
        names = set() if made is None else set(parameters(made)) - SYMBOLS
        if len(names) < FROM or compiled(made):
            continue
        section = re.search(r"\nParameters\n-+\n(.*?)(?=\n\w+\n-+\n|\Z)", ast.get_docstring(node) or "", re.DOTALL)
        said = re.findall(r"^[\w*][\w, *]*", section[1], re.MULTILINE) if section else []
        prose = " ".join((ast.get_docstring(node) or "").split())
        said += names if "arameters are those of" in prose else re.findall(r"`(\w+)`", prose)
        missing = names - set(re.split(r"[, *]+", ", ".join(said)))
        if missing:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {', '.join(sorted(missing))}"


def public(body):
    """Yield functions and classes whose names have no underscore in front; no methods that may be a base's."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not (node.name.startswith("_") or node.name in SHAPES):
            if isinstance(node, ast.FunctionDef) or not node.bases:
                yield node
            if isinstance(node, ast.ClassDef) and not node.bases:
                yield from public(node.body)


def own(node, name):
    return next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def parameters(function):
    found = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return [one for one in found if one not in ("self", "cls") and not one.startswith("_")]


def compiled(function):
    """Whether a function is one of many steps of a compiled loop, whose module says what they work on."""
    said = map(ast.unparse, (*function.decorator_list, *(one.annotation or one for one in function.args.args[:1])))
    return any("compiled" in one or one == "State" for one in said if one)


def files(package):
    """Return the modules of a package but for commands, whose options have their help."""
    found = [ROOT / package] if package.endswith(".py") else sorted((ROOT / package).rglob("*.py"))
    return [one for one in found if one.parent.name != "commands" and one.stem != "commands"]


@pytest.mark.parametrize("package", HELD)
def test_parameters_are_documented(package):
    found = [one for path in files(package) for one in undocumented(path)]
    assert not found, "\n".join(found)
