"""What a process needs to read a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.scenario.finding import find

if TYPE_CHECKING:
    from simnet.scenario.scenario import Scenario


@dataclass(frozen=True)
class Source:
    """A scenario by its path and overrides, as of `load`; some of its policies; `later` is added to the seed."""

    path: str | Path
    overrides: Sequence[str] = ()
    seed: int | None = None
    policies: Sequence[str] | None = None
    later: int = 0

    def load(self) -> Scenario:
        """Read the scenario."""
        # Whether there is a file is known before all that a scenario may hold is loaded.
        path = find(self.path)
        from simnet.scenario.scenario import load

        loaded = load(path, self.overrides, self.seed)
        loaded = loaded if self.policies is None else loaded.only(self.policies)
        return loaded.with_seed(loaded.config.seed + self.later)
