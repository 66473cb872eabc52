"""From the policies of a scenario to those that decide."""

from __future__ import annotations

from simnet.base import plugins
from simnet.policies import Fixed, Flexible, Monitor, OneStepOracle, Policy
from simnet.policies.moo import DensitySearch, Moo
from simnet.scenario import schema
from simnet.scenario.resolve import candidates
from simnet.training.advise.policy import Advised


def labels_of(policy: schema.Policy) -> list[str]:
    """Return the names of what a policy of a resolved scenario may take."""
    kind, part = policy.choice
    return [part] if kind == "fixed" else list(part.among)


def build_policy(config: schema.Config, given: schema.Policy) -> Policy:
    """Build a policy of a resolved scenario."""
    kind, part = given.choice
    known = candidates(config)
    among = [known[label] for label in labels_of(given)]
    if kind == "fixed":
        return Fixed(among[0])
    if kind == "oracle":
        return OneStepOracle(among)
    if kind == "advise":
        advised: Policy = part.build(Advised, candidates=among)
        return advised
    if kind not in ("flexible", "moo"):
        policy: Policy = part.build(candidates=among, **({"seed": config.seed} if part.takes("seed") else {}))
        if lacks := [one for one in ("candidates", "reset", "shortlist") if not hasattr(policy, one)]:
            raise plugins.return_error(part.function, policy, f"a policy: it lacks {', '.join(lacks)}")
        return policy
    monitor = part.build(Monitor, seed=config.seed)
    if kind == "moo":
        return Moo(among, monitor, part.build(DensitySearch))
    flexible: Policy = part.build(Flexible, candidates=among, monitor=monitor)
    return flexible
