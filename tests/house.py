"""Size and words of the source: lines of code and docstrings by folder, long functions, names of one word.

`python tests/house.py` prints the table; `tests/test_house.py` holds the budgets; `make lint` runs `house.py words`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

BUDGETS = {
    "base": (("base",), 1_500),
    "topologies": (("topologies",), 1_500),
    "schedule, collectives": (("schedule.py", "collectives"), 900),
    "cost models": (("costs", "calibration", "evidence", "cost_models"), 5_000),
    "network": (("network",), 6_300),
    "traces": (("traces",), 2_700),
    "sparsifier_models": (("sparsifier_models",), 6_200),
    "interchange": (("interchange",), 1_900),
    "training, strategies, policies": (("job", "parallel", "advise", "training", "strategies", "policies"), 5_400),
    "scenario": (("scenario",), 2_300),
    "report": (("report",), 2_200),
    "studies": (("studies",), 5_784),
    "verbs": (("commands", "library", "verbs"), 1_400),
    "cluster": (("hooks", "measure", "cluster"), 1_700),
    "validate": (("validate",), 4_000),
    "other": ((), 400),
}
"""Groups of folders and files of the package, with the most lines of code of each; what no group names is other."""

MOST_CODE_LINES, MOST_DOCSTRING_LINES, MOST_TEST_LINES = 53_000, 17_000, 52_000
MOST_FUNCTION_LINES, MOST_PARAMETERS, MOST_FILE_LINES = 60, 8, 500

AVOIDED_NAMES = frozenset(
    (
        "told",
        "of",
        "beside",
        "whole",
        "kept",
        "moved",
        "held",
        "left",
        "taken",
        "made",
        "given",
        "said",
        "shown",
        "drawn",
        "known",
        "alone",
        "within",
        "lest",
    )
)
"""Names that say nothing where they are used."""

AVOIDED_PHRASES = re.compile(
    r"\b(lest|beside|told|tells?|whoever|made anew|goes on|go on|of which|as it is|what it was|nobody|lets? go)\b", re.I
)
"""Phrases that no first line of a docstring has."""


class Module(NamedTuple):
    """A file of the package: its path there, its syntax tree, and its lines of code and of docstrings."""

    path: Path
    tree: ast.Module
    code: frozenset[int]
    docstrings: frozenset[int]
    lines: int

    @property
    def group(self) -> str:
        """The group of `BUDGETS` that it is counted in."""
        return next((name for name, (parts, _) in BUDGETS.items() if self.path.parts[0] in parts), "other")


def modules() -> Iterator[Module]:
    """Yield the modules of the package, sorted by path."""
    package = ROOT / "simnet"
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        docstrings = frozenset(
            line
            for node in ast.walk(tree)
            for one in (node.body if isinstance(getattr(node, "body", None), list) else ())
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
            for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)
        )
        code = frozenset(
            line
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in _BLANK
            for line in range(token.start[0], token.end[0] + 1)
        )
        yield Module(path.relative_to(package), tree, code - docstrings, docstrings, text.count("\n"))


_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def definitions(module: Module) -> Iterator[Definition]:
    """Yield the functions and classes at the level of a module."""
    yield from (one for one in module.tree.body if isinstance(one, Definition))


def functions(module: Module) -> Iterator[tuple[str, int, int]]:
    """Yield each function with its place, lines of code, and number of parameters without self and cls."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            lines = len(module.code & frozenset(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            yield (
                f"{module.path}:{node.lineno} {node.name}",
                lines,
                len([one for one in names if one not in ("self", "cls")]),
            )


def is_single_word(name: str) -> bool:
    """Return whether a name in snake case or camel case is one word."""
    return len(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)) <= 1


def unclear(module: Module) -> Iterator[str]:
    """Yield the public names, and first lines of docstrings, that have words to avoid."""
    for one in definitions(module):
        place = f"simnet/{module.path}:{one.lineno}"
        if not one.name.startswith("_"):
            if one.name in AVOIDED_NAMES:
                yield f"{place}: {one.name} says nothing where it is used"
            first = (ast.get_docstring(one) or "").partition("\n")[0]
            if found := AVOIDED_PHRASES.search(first):
                yield f"{place}: {one.name}: {found[0]!r} in {first!r}"


def main() -> None:
    """Print lines by group and what other budgets count, or with ``words`` unclear names and first lines."""
    if "words" in sys.argv:
        sys.exit("\n".join(one for module in modules() for one in unclear(module)) or None)
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    long_functions, wide, files, names, found = [], [], [], [], []
    for module in modules():
        counted[module.group].update(code=len(module.code), docstrings=len(module.docstrings))
        long_functions += [one for one in functions(module) if one[1] > MOST_FUNCTION_LINES]
        wide += [one for one in functions(module) if one[2] > MOST_PARAMETERS]
        files += [str(module.path)] * (module.lines > MOST_FILE_LINES)
        names += [one.name for one in definitions(module)]
        found += unclear(module)
    print(f"{'group':32}{'code':>8}{'at most':>9}{'docstrings':>12}")
    for name, (_, most) in BUDGETS.items():
        print(f"{name:32}{counted[name]['code']:8,}{most:9,}{counted[name]['docstrings']:12,}")
    total = sum(counted.values(), Counter())
    print(f"{'sum':32}{total['code']:8,}{sum(most for _, most in BUDGETS.values()):9,}{total['docstrings']:12,}")
    repeated = [name for name, count in Counter(one for one in names if one[0] != "_").items() if count > 1]
    print(
        f"functions over {MOST_FUNCTION_LINES} lines: {len(long_functions)}; "
        f"with over {MOST_PARAMETERS} parameters: {len(wide)}"
    )
    print(f"files over {MOST_FILE_LINES} lines: {len(files)}; names of one word: {_share(names):.0%}")
    print(f"public names of two modules: {len(repeated)}; unclear names and first lines: {len(found)}")
    if "--all" in sys.argv:
        print(
            *(f"{place}: {lines} lines, {count} parameters" for place, lines, count in [*long_functions, *wide]),
            sep="\n",
        )
        print(*files, *sorted(repeated), *found, sep="\n")


def _share(names: list[str]) -> float:
    return sum(is_single_word(one.strip("_")) for one in names) / len(names)


if __name__ == "__main__":
    main()
