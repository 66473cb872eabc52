"""Explanations of terms in reports and in the glossary, and of labels of gradient exchanges such as AG-Topk."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from simnet.base.file_io import read_shipped_rows


class Term(NamedTuple):
    """A glossary entry: term, other spellings, "x" if reports use it, the scheme if it names one, and meaning."""

    term: str
    also: str
    report: str
    type: str
    meaning: str


@cache
def all_terms() -> tuple[Term, ...]:
    """Return all terms: terms of reports first, then terms of the glossary, then labels of exchanges."""
    return tuple(Term(**row) for row in read_shipped_rows("data/terms.csv"))


def find_term(word: str) -> Term | None:
    """Return the term with this spelling; case, hyphens, underscores and blanks do not matter.

    Examples
    --------
    >>> find_term("art_ring").type, find_term("exposed").term
    ('artopk:collective=ring', 'exposed communication')
    """
    return _spellings().get(_plain(word))


def explain(word: str) -> str:
    """Return a sentence that explains a term of reports or the glossary, or a label; "" for an unknown word.

    Examples
    --------
    >>> explain("AG-Topk")
    'AG-Topk is topk, the largest entries of each worker, by all-gather.'
    """
    found = find_term(word)
    if found is None:
        return ""
    return f"{found.term} is {found.type}, {found.meaning}." if found.type else f"{found.term}: {meaning(word)}"


def meaning(word: str) -> str:
    """Return the meaning of a term or label as plain text; "" for an unknown word."""
    found = find_term(word)
    return "" if found is None else found.meaning.replace("`", "")


@cache
def _spellings() -> dict[str, Term]:
    return {_plain(word): one for one in all_terms() for word in (one.term, *one.also.split("; ")) if word}


def _plain(word: str) -> str:
    return word.casefold().replace("-", " ").replace("_", " ")
