"""Words of earlier versions, and what says the same now; read only where a word is not known."""

from __future__ import annotations

from collections.abc import Mapping

OLD_VERBS: Mapping[str, str] = {}
"""Verbs, each with the line that asks the same."""

OLD_OPTIONS: Mapping[str, str] = {
    "--collective": "the collective itself, as 'allreduce_ring:group_size=4'",
    "--output": "--out",
    "--show": "simnet show NAME",
}
"""Options, of whichever verb, each with the words that say the same."""
