"""Training strategies: how workers update a model, and what they exchange after which training steps.

`create` makes a strategy by name. Its `Strategy.step` takes the gradients of one inner step, at its `parameters`, and
returns the exchanges that begin after it, each with the messages, and with how many inner steps later it must have
arrived. A strategy from elsewhere registers its class under the entry-point group ``simnet.strategies``. A class in a
file needs no package: its name is ``./my_strategy.py:Mine``.

=================  =============================================================================================
``dataparallel``   gradients are averaged after every inner step
``accumulation``   gradients of several inner steps are added up before
``localsgd``       parameters are averaged every H inner steps (local SGD, FedAvg)
``diloco``         pseudo-gradients are averaged every H inner steps, for an outer optimiser (DiLoCo)
``streaming``      the same by fragments of the model, while workers train on (streaming DiLoCo)
``delayed``        the outer step takes pseudo-gradients of the round before (overlapped DiLoCo)
``eager``          the same, but a worker's own of this round (eager DiLoCo)
``sparta``         a few parameters, drawn at random, are averaged after every inner step, perhaps with DiLoCo (SPARTA)
``sparseloco``     DiLoCo with a compressed exchange and a plain outer step (SparseLoCo, CCLoco, Templar)
``muloco``         DiLoCo with a compressed exchange and Nesterov's outer momentum (MuLoCo)
``demo``           signs of what is left of a compressed momentum (DeMo)
=================  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from simnet.base import plugins
from simnet.base.errors import check_choice
from simnet.base.quantities import check_value, parameter_hints
from simnet.strategies.base import StepResult, Strategy
from simnet.strategies.data_parallel import DataParallel, DeMo, GradientAccumulation, LocalSGD
from simnet.strategies.diloco import SPARTA, DelayedDiLoCo, DiLoCo, EagerDiLoCo, MuLoCo, SparseLoCo, StreamingDiLoCo
from simnet.strategies.optimisers import SGD, AdamW, Optimiser, SignDescent
from simnet.strategies.replicas import Averaging, Replicas, Sync

__all__ = [
    "SGD",
    "STRATEGIES",
    "AdamW",
    "Averaging",
    "Optimiser",
    "Replicas",
    "SignDescent",
    "StepResult",
    "Strategy",
    "Sync",
    "averages_by_scheme",
    "create",
    "names",
    "options",
    "strategy",
    "usable",
]

_CLASSES: tuple[type[Strategy], ...] = (
    *(DataParallel, GradientAccumulation, LocalSGD),
    *(DiLoCo, StreamingDiLoCo, DelayedDiLoCo, EagerDiLoCo),
    *(SPARTA, SparseLoCo, MuLoCo, DeMo),
)

STRATEGIES: dict[str, type[Strategy]] = {one.name: one for one in _CLASSES}
"""The strategies of this package, by name."""


def names() -> list[str]:
    """Return the sorted names that `create` accepts: strategies of this package and of plug-ins."""
    return sorted({*STRATEGIES, *plugins.plugin_names("strategies")})


def strategy(name: str) -> type[Strategy]:
    """Return a strategy's class by its name, or by file and class name, as in ``./my_strategy.py:Mine``.

    Names of this package take precedence; case, hyphens, underscores and blanks in them are ignored. Raises ValueError
    for an unknown or incomplete strategy, InputError for a file without the class.
    """
    return plugins.named_class("strategies", "strategy", name, STRATEGIES, Strategy)


def usable() -> dict[str, type[Strategy]]:
    """Return the strategy classes by name, sorted; warn about plug-in strategies that cannot be used."""
    return dict(sorted({**plugins.usable_plugins("strategies", strategy), **STRATEGIES}.items()))


def options(found: type[Strategy]) -> dict[str, Parameter]:
    """Return the options of a strategy by name: all parameters of its class except `replicas`."""
    return dict([*signature(found).parameters.items()][1:])


def averages_by_scheme(found: type[Strategy], given: Mapping[str, Any]) -> bool:
    """Return whether a strategy averages by a sparsification scheme; SPARTA does so only with a `period`."""
    known = options(found)
    period = known.get("period")
    return "averaging" in known and (period is None or given.get("period", period.default) is not None)


def create(name: str, replicas: Replicas, **given: Any) -> Strategy:
    """Return a strategy at the start of training. Its options are the parameters of its class.

    Raises ValueError for an unknown strategy or option, a missing option, or a value that is not allowed.

    Examples
    --------
    >>> import numpy as np
    >>> model = Replicas(workers=4, initial=np.zeros(6, np.float32))
    >>> create("streaming", model, fragments=1, periode=50)
    Traceback (most recent call last):
    ValueError: streaming: there is no option 'periode': did you mean 'period'? Allowed: averaging, delay, fragments, \
inner, mixing, outer, period
    """
    found = strategy(name)
    known = options(found)
    if lacking := [
        one for one, parameter in known.items() if parameter.default is parameter.empty and one not in given
    ]:
        raise ValueError(f"{name} has no default for {', '.join(lacking)}, as {name}:{lacking[0]}=...")
    try:
        for option in given:
            check_choice(option, "option", known)
        for option, hint in parameter_hints(found, list(given)).items():
            check_value(given[option], hint, option)
            if isinstance(known[option].default, SGD) and not isinstance(given[option], SGD):
                raise ValueError(f"{option} must be stochastic gradient descent (sgd), got {given[option]!r:.200}")
        return found(replicas, **given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
