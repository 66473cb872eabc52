"""Pictures of reproductions: published values and simnet's on the same axes.

``published_data/axes.csv`` says of each part of a row's text whether it names a panel, a series or a place on an axis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from simnet.report.compared_values import ComparedValue, Value, draw_compared_values
from simnet.report.drawing import plot
from simnet.report.summary import Plot
from simnet.validate.published import read_published
from simnet.validate.reproduction.table import Interval, Reproduction, Row

# Maximum number of contradictions that a caption names.
_NAMED = 6


def picture(one: Reproduction, rows: Sequence[Row]) -> Plot:
    """Return the picture of a reproduction, with its caption."""
    title, text = f"{one.paper}, {one.place}: {one.title}", caption(one, rows)
    return plot(one.name, title, text, draw_compared_values(title, text, compared_values(one.name, rows)))


def caption(one: Reproduction, rows: Sequence[Row]) -> str:
    """Return the text below a picture: values that contradict published ones, and the note on conditions."""
    found = [row.what for row in rows if row.contradicts]
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    against = f"{len(found)} of {len(rows)} values contradict: {'; '.join(found[:_NAMED])}{more}." if found else ""
    return f"{against or 'No value contradicts.'} {one.note}"


def compared_values(name: str, rows: Sequence[Row]) -> list[ComparedValue]:
    """Return the rows of a reproduction, each with panel, series and axis position in the picture."""
    forms = read_published("axes.csv").query("name == @name").fillna("").to_dict("records")
    found = []
    for row in rows:
        form = next((one for one in forms if re.match(one["begins"], row.what)), {"parts": "x", "axis": ""})
        words, roles = row.what.split(", "), form["parts"].split()
        pairs = [*zip(words, roles + roles[-1:] * len(words), strict=False)]
        panel, series, x = (", ".join(word for word, role in pairs if role == one) for one in ("panel", "series", "x"))
        if not form["axis"]:
            remark = f"({row.published})" * (isinstance(row.published, str) and not isinstance(row.ours, str))
            x = ", ".join(filter(None, (x, series, remark)))
        place = (row.unit, panel, series, x, str(form["axis"]))
        found.append(ComparedValue(row.what, _ends(row.published), _ends(row.ours), row.kind, row.contradicts, *place))
    return found


def _ends(value: float | str | Interval) -> Value:
    if isinstance(value, str):
        return value
    if not isinstance(value, Interval) or value.low == value.high:
        return [value.low if isinstance(value, Interval) else float(value)] * 3
    return [one for one in (value.low, value.middle, value.high) if not math.isnan(one)]
