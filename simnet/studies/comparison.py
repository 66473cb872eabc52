"""Schemes side by side: the fields that make each exchange of a scenario a policy of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from simnet.scenario import load
from simnet.scenario.named_exchanges import named_exchanges


def each_fixed(
    scenario: str | Path, schemes: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None
) -> list[str]:
    """Return the fields, as of ``--set``, that make every exchange a fixed policy without deaths.

    Examples
    --------
    >>> each_fixed("quickstart", ["topk"])[1]
    'policies={"topk": {"fixed": "topk"}}'
    """
    fields: list[str] = []
    if schemes:
        found = named_exchanges(schemes)
        labels = [one.label for one in found]
        exchanges = {one.label: {"scheme": one.scheme, **one.options} for one in found}
        fields.append("exchanges=" + json.dumps(exchanges))
    # What the user sets may be about these exchanges.
    fields += overrides
    if not schemes:
        labels = load(scenario, [*fields, "policies={}"], seed).config.choices
    fields.append("policies=" + json.dumps({name: {"fixed": name} for name in labels}))
    # Means over iterations want all workers in all of them. Those that leave and come back are another matter.
    job = load(scenario, [*fields], seed).config.job
    return [*fields, *(["job.deaths=null", "job.on_death=null"] if job.deaths is not None else [])]
