"""The network of `simnet time`, from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simnet.base.errors import InputError
from simnet.studies import options


@dataclass(frozen=True)
class Target:
    """The network that times a schedule, by option of `simnet time`; None where not given."""

    scenario: str | Path | None = None
    topology: str | None = None
    platform: str | None = None
    hosts: int | None = None
    latency: str | None = None
    bandwidth: str | None = None
    set_: Sequence[str] | None = None
    stack: str | None = None
    seed: int | None = None
    iteration: int = 0

    def refuse_unused(self, command: str = "simnet time") -> None:
        """Raise InputError unless one network is named and all other options apply to it."""
        if sum(one is not None for one in (self.scenario, self.topology, self.platform)) != 1:
            raise InputError("needs a network: one of --scenario, --topology, --platform", file=command)
        options.only("--scenario", self.scenario is not None, {"--iteration": self.iteration})
        family = {"--hosts": self.hosts, "--bandwidth": self.bandwidth}
        options.only("--topology", self.topology is not None, family)
        options.only("--topology and --platform", self.scenario is None, {"--latency": self.latency})
