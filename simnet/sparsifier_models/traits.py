"""Traits: what a scheme declares about itself, such as that it keeps residuals, for use by other modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from simnet.cost_models.costs.hooks import Hook
from simnet.sparsifier_models.wire import UNCODED, Codes

Cost: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a scheme, such as whether it keeps residuals, that other modules query.

    A class gives those that differ from its base as keywords, ``class Topk(Gathered, separable=True)``, and has all of
    them as `Sparsifier.traits`. Those that follow from options come from `Sparsifier._option_traits`.

    Parameters
    ----------
    keeps_residual : bool
        If true, what an exchange does not send may become the residual.
    conserves : bool
        If true, error feedback keeps all that is not applied; else the statistic ``lost`` says how much is neither.
    weights : (float, float)
        Decay and gain: g_e = decay * residual + gain * gradient. ``conserves`` and ``lost`` refer to g_e. A scheme
        whose gain is not 1 reads gradients.
    sends_all : bool
        If true, every entry is sent, whatever the density.
    rounds_down : bool
        If true, k is floor(c n), one at least, in every mode.
    disjoint : bool
        If true, no two workers can select the same entry, so that all of them together select k.
    searches_threshold : bool
        If true, entries are selected by a threshold that need not be the k-th magnitude.
    transforms : bool
        If true, coefficients of a transform are sent, each of which changes several entries of the update.
    tracks : bool
        If true, the update has entries that were not sent now: of trackers, or of steps between exchanges.
    reads_gradients : bool
        If true, an exchange looks at the gradients without residuals, which then cannot hold their sums.
    memory_factor : (float, float)
        Upper bounds on the memory of an exchange that sends few entries, in addition to the gradients with residuals:
        in gradients of all workers, and in gradients of one. If all entries are sent, up to four times the former in
        addition.
    auxiliary_state : tuple of str
        Attributes, arrays with a row for each worker, that hold what it keeps back beside the residual. They follow the
        residual.
    moments : tuple of str
        Arrays of its state that an optimiser would hold, which then has no memory of its own.
    state, history : tuple of str
        Attributes, arrays and numbers, that the next exchange depends on, next to residual, density and iteration;
        ``history`` are arrays whose first axis grows. A class has those of its base as well. Exchanges replace arrays,
        and do not change them.
    is_restartable : bool
        If true, the scheme can start again, such as after workers left: its first exchange is no different from later
        ones.
    period : int
        Number of exchanges after which an adaptation starts again, such as thresholds that are reused in between.
    fixed_volume : bool
        If true, messages depend on the density, and on whose turn it is, alone: not on the gradients.
    separable : bool
        If true, the scheme processes each worker's gradient without those of others and without side effects, so
        gradients may be `simnet.base.rows.Rows`. Never inherited.
    by_tensors : bool
        If true, the scheme works on rows and columns of tensors, so it cannot run on a part of a gradient that cuts
        through them.
    overlaps : bool
        If true, an implementation is known that exchanges each bucket of PyTorch's DistributedDataParallel as soon as
        the backward pass has made it, without delaying the backward pass.
    is_third_party : bool
        If true, it is no scheme of simnet, so that its selections are checked and counted. Set for each class.
    codes : Codes
        How it can encode indices and values; by default it cannot.
    released_widths : (int, int)
        Bytes of a value and of an index on the wire ``released``.
    hook : simnet.cost_models.costs.hooks.Hook, optional
        Operations of its implementation, where ``data/hook_operations.csv`` has none.
    costs : tuple of function
        Its closed-form costs, functions of `simnet.cost_models.costs`.
    """

    keeps_residual: bool = True
    conserves: bool = True
    weights: tuple[float, float] = (1.0, 1.0)
    sends_all: bool = False
    rounds_down: bool = False
    disjoint: bool = False
    searches_threshold: bool = False
    transforms: bool = False
    tracks: bool = False
    reads_gradients: bool = True
    memory_factor: tuple[float, float] = (0.2, 6.0)
    auxiliary_state: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    is_restartable: bool = True
    period: int = 1
    fixed_volume: bool = False
    separable: bool = False
    by_tensors: bool = False
    overlaps: bool = False
    is_third_party: bool = False
    codes: Codes = UNCODED
    released_widths: tuple[int, int] = (4, 8)
    hook: Hook | None = None
    costs: tuple[Cost, ...] = ()
