"""Table of a paired comparison of policies over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.report.paired import START_COLUMNS, Estimate, contest, estimate, exactly

_NOTHING = Estimate(math.nan, math.nan, math.nan)
_COMPARED = (
    *("s", "low_s", "high_s", "more_s", "more_low_s", "more_high_s"),
    *("rank", "tied", "least_with", "compared"),
)


def comparison(
    rows: pd.DataFrame, by: Sequence[str], column: str, *, policy: str = "policy", bound: str | None = None
) -> pd.DataFrame:
    """Return a row per group and policy: mean over seeds, difference from the fastest, rank and ties.

    The comparison uses the seeds with the largest number of values in the group, and the settled policies that have a
    value with all of these seeds.

    For a column ``iteration_s`` there are ``iteration_s`` (mean) with ``_low`` and ``_high``, ``iteration_more_s``
    (mean difference from the first) with the same, ``iteration_rank`` (from 1; missing for policies not compared),
    ``iteration_tied`` (the first policy and those tied with it), and the numbers of seeds ``iteration_least_with`` and
    ``iteration_compared``.

    Examples
    --------
    >>> rows = pd.DataFrame({"seed": [1, 1, 2, 2, 3, 3], "policy": ["a", "b"] * 3,
    ...     "iteration_s": [2.0, 2.5, 3.0, 3.5, 5.0, 5.5]})
    >>> found = comparison(rows, [], "iteration_s").set_index("policy")
    >>> found[["iteration_more_s", "iteration_tied"]].to_numpy().tolist()
    [[0.0, True], [0.5, False]]
    """
    stem = column.removesuffix("_s")
    found: list[dict[str, Any]] = []
    for key, group in rows.groupby(list(by), sort=False) if by else [((), rows)]:
        names = list(dict.fromkeys(group[policy]))
        values = group.pivot(index="seed", columns=policy, values=column)[names].astype(np.float64)
        counts = values.notna().sum(axis=1)
        values_compared = values[counts == counts.max()]
        aside = {bound, *(group.loc[group["unsettled"] != "", policy] if "unsettled" in group else ())}
        whole = {name: one.to_numpy() for name, one in values_compared.items() if one.notna().all()}
        rivals = {name: one for name, one in whole.items() if name not in aside}
        starts: dict[str, Floats] = {}
        if START_COLUMNS[0] in group:
            each = group.set_index([policy, "seed"])
            off = each[list(START_COLUMNS)].sub(each[column], axis=0).astype(np.float64).fillna(0.0)
            starts = {name: off.loc[name].loc[values_compared.index].to_numpy().T for name in rivals}
        won = contest(rivals, starts) if rivals and len(values_compared) else None
        for name in names:
            place, least, mean, more = None, None, _NOTHING, _NOTHING
            took_part = won is not None and name in rivals
            there = (values_compared if took_part else values)[name].dropna()
            if len(there):
                mean = estimate(there)
            if won is not None and took_part:
                more = won.differences.get(name, exactly(0.0))
                place, least = won.order.index(name) + 1, won.fastest_in[name]
            tied = won is not None and name in (won.policy, *won.tied_with)
            cells = (*mean, *more, place, tied, least, len(values_compared) if took_part else 0)
            own = {f"{stem}_{end}": value for end, value in zip(_COMPARED, cells, strict=True)}
            found.append(dict(zip(by, key, strict=True)) | {policy: name} | own)
    table = pd.DataFrame(found)
    return table.astype({f"{stem}_{name}": "Int64" for name in ("rank", "least_with")})
