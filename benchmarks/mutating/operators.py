"""Mutants of a source file: those of Cosmic Ray that a person could have written by mistake, and three kinds more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

Place = tuple[int, int]

_SWAPPED = (("Lt", "LtE"), ("Gt", "GtE"), ("Lt", "GtE"), ("Gt", "LtE"), ("Eq", "NotEq"), ("Is", "IsNot"))
_OTHERS = (("Add", "Sub"), ("Mul", "Div"), ("FloorDiv", "Div"), ("BitAnd", "BitOr"), ("LShift", "RShift"))
_PLAIN = (
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_USub_UAdd", "ReplaceBinaryOperator_Pow_Mul"),
    "ReplaceBinaryOperator_Mod_FloorDiv",
)
# Parents of what is an operator: a star also marks arguments, and a slash what is before it.
_SUMS = {"arith_expr", "term", "power", "expr", "and_expr", "xor_expr", "shift_expr"}


class _Words(Operator):  # type: ignore[misc]
    """Put one word in place of another."""

    words: ClassVar[dict[str, str]] = {}

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        if node.type in ("operator", "name") and node.value in self.words:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = self.words[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class ReplaceAugmented(_Words):
    """Add in place where something is withdrawn, and so on."""

    words: ClassVar = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}


class ReplaceFunction(_Words):
    """Take the least for the greatest, and so on."""

    words: ClassVar = {
        **{"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax"},
        **{"argmax": "argmin", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any"},
    }


class RemoveCall(Operator):  # type: ignore[misc]
    """Leave a call out whose result nobody takes."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        """Yield where such calls are."""
        if node.type == "simple_stmt" and node.children[0].type in ("atom_expr", "power"):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the statement without the call."""
        before = node.get_first_leaf().prefix
        node.children[0] = parso.parse(before + "pass")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return no examples; they are for Cosmic Ray's own tests."""
        return ()


def _operators() -> dict[str, Operator]:
    provider = OperatorProvider()
    names = list(_PLAIN)
    for kind, pairs in (("Comparison", _SWAPPED), ("Binary", _OTHERS)):
        for one, other in pairs:
            names += [f"Replace{kind}Operator_{one}_{other}", f"Replace{kind}Operator_{other}_{one}"]
    own = {one.__name__: one() for one in (ReplaceAugmented, ReplaceFunction, RemoveCall)}
    return {name: provider[name]() for name in names} | own


OPERATORS = _operators()
"""Operators by name."""


class Mutant(NamedTuple):
    """One change of one file.

    Parameters
    ----------
    file : str
        Path in the repository.
    operator : str
        See `OPERATORS`.
    occurrence : int
        Which of the places where it could be applied.
    line : int
        Line of that place.
    span : tuple of int
        First and last line of the statement, without the statements inside.
    """

    file: str
    operator: str
    occurrence: int
    line: int
    span: tuple[int, int]

    def text(self, source: str) -> str:
        """Return the mutated source."""
        made: str = MutationVisitor.mutate_code(source, OPERATORS[self.operator], self.occurrence)
        return made


def changed_line(source: str, mutated: str) -> tuple[int, str, str]:
    r"""Return number, text and new text of the first line in which two sources differ, without indentation.

    Examples
    --------
    >>> changed_line("a = 1\nb = 2", "a = 1\nb = 3")
    (2, 'b = 2', 'b = 3')
    """
    pairs = zip(source.splitlines(), mutated.splitlines(), strict=False)
    return next((at, one.strip(), other.strip()) for at, (one, other) in enumerate(pairs, 1) if one != other)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return the mutants of a file; none of what `_left_out` has."""
    left_out, spans = _left_out(source), _spans(source)
    found = []
    nodes = list(ast_nodes(get_ast(source)))
    for name, operator in OPERATORS.items():
        occurrence = -1
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                occurrence += 1
                star = node.type == "operator" and name.startswith("ReplaceBinary") and node.parent.type not in _SUMS
                if not star and not any(first <= start < last for first, last in left_out):
                    found.append(Mutant(file, name, occurrence, start[0], spans.get(start[0], (start[0], start[0]))))
    return sorted(found, key=lambda one: (one.line, one.operator, one.occurrence))


def _spans(source: str) -> dict[int, tuple[int, int]]:
    """Return the first and last line of the statement on each line, without the statements inside."""
    spans = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            inner = getattr(node, "body", None)
            last = inner[0].lineno - 1 if inner else node.end_lineno or node.lineno
            spans.update(dict.fromkeys(range(node.lineno, max(last, node.lineno) + 1), (node.lineno, last)))
    return spans


def _left_out(source: str) -> list[tuple[Place, Place]]:
    """Return the spans of what has no effect when it runs.

    Annotations, decorators, what is there for type checkers only; ``strict`` of `zip`, which asserts what sound code
    keeps; and the -1 in ``reshape(-1)``, for which any negative number does.
    """
    spans = []
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts += [node.returns, *node.decorator_list]
        if isinstance(node, ast.ClassDef):
            parts += node.decorator_list
        if isinstance(node, ast.arg | ast.AnnAssign):
            parts.append(node.annotation)
        if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name):
            parts += [node.value] if node.annotation.id == "TypeAlias" else []
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            parts.append(node)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            parts += [one for one in ast.walk(node) if isinstance(one, ast.UnaryOp) and ast.unparse(one) == "-1"]
        shown: Any
        for shown in filter(None, parts):
            spans += [((shown.lineno, shown.col_offset), (shown.end_lineno, shown.end_col_offset))]
    return spans
