"""``simnet list``: the schemes, policies, networks, models and scenarios of simnet and its plug-ins."""

from __future__ import annotations

from simnet.base.errors import check_choice
from simnet.report.summary import Column, Summary, table_columns
from simnet.studies.listing import LISTS, listing
from simnet.verbs.request import verb


@verb
def list_(kind: str | None = None) -> Summary:
    """List schemes, policies, networks, models, scenarios, ...

    Parameters
    ----------
    kind
        Kind to list, such as schemes; default: all kinds.

    Raises
    ------
    InputError
        If there is no such kind.

    Examples
    --------
    >>> list_("stacks").best
    'ideal'
    """
    if kind is None:
        rows = [{"kind": one, "what_is_listed": what.lists} for one, what in LISTS.items()]
        return Summary(answer=f"simnet lists {len(rows)} kinds of items.", columns=table_columns("list"), rows=rows,
                       next="simnet list KIND; simnet show NAME describes one")  # fmt: skip
    check_choice(kind, "list", LISTS, file="KIND")
    headings, found = listing(kind)
    names = [one.replace(" ", "_") for one in headings]
    columns = [
        Column(name, text, "phrase" if place else "text", place * (place > 1))
        for place, (name, text) in enumerate(zip(names, headings, strict=True))
    ]
    rows = [dict(zip(names, one, strict=True)) for one in found]
    return Summary(answer=f"{len(rows)} {kind}.", columns=columns, rows=rows, next=f"simnet show {rows[0][names[0]]}")
