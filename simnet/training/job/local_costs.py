"""Local operations of a worker in an exchange: kernels of the scheme, or operations counted in a framework hook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from simnet import sparsifier_models
from simnet.cost_models.costs import hooks
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.sparsifier_models import Exchange, Sparsifier
from simnet.sparsifier_models.powersgd import near_square
from simnet.traces.source import as_matrices

# Schemes of `simnet.cluster.hooks`.
_OWN_HOOKS = frozenset(("dense", "fp16", "topk", "artopk", "exdyna", "oktopk"))
# Stages of each scheme in use, with what they depend on.
_HOOKED: WeakKeyDictionary[Sparsifier, tuple[Any, list[hooks.StageCost]]] = WeakKeyDictionary()


def scheme_hook(device: DeviceProfile, scheme: str) -> hooks.Hook | None:
    """Return the hook whose operations determine a scheme's local time; None if the scheme's kernels determine it."""
    # A profile may have measured the hook itself, or set one cost for everything. On a processor kernels are operations
    # of PyTorch, launches included, as which `simnet.cluster.hooks` runs its schemes.
    if device.implementation is None or not {f"hook_{scheme}_begin", "*"}.isdisjoint(device.methods):
        return None
    own = sparsifier_models.scheme(scheme).traits.hook if device.implementation == hooks.FRAMEWORK else None
    hook = own or hooks.hook_of(device.implementation, scheme)
    if device.implementation == hooks.FRAMEWORK and hook is not None and hooks.is_processor(device):
        return hook if hook.implementation == "torch" and scheme not in _OWN_HOOKS else None
    return hook


def local_operations(device: DeviceProfile, model: Sparsifier, exchange: Exchange) -> tuple[DeviceOp, ...]:
    """Return a worker's local operations in an exchange: those of the scheme's hook, or the scheme's kernels.

    Kernels of a scheme have those of the communication hook beside them where the device profile has measured these.
    """
    hook = scheme_hook(device, model.name)
    # A dense exchange of a sparse scheme, as while it warms up, has its own kernels.
    warms_up = not model.traits.sends_all and int(np.min(exchange.selected)) >= model.parameters
    if hook is None or warms_up:
        return exchange.kernels + _measured_hook(device, model, exchange)
    rounds = len(exchange.schedule.rounds)
    between = min((one.before for one in exchange.kernels if 0 < one.before < rounds), default=rounds)
    return hooks.hook_operations(hook_stages(device, hook, model), rounds, between)


def hook_stages(device: DeviceProfile, hook: hooks.Hook, model: Sparsifier) -> list[hooks.StageCost]:
    """Return the cost of each stage of a communication hook on the tensors that a scheme exchanges."""
    key = hook, model.density, device.name, device.memory_bandwidth, device.host, device.implementation
    if _HOOKED.get(model, (None,))[0] != key:
        assert device.implementation is not None
        _HOOKED[model] = key, hooks.stage_costs(hook, hooked_tensors(model), device, device.implementation)
    return _HOOKED[model][1]


def hooked_tensors(model: Sparsifier) -> hooks.HookedTensors:
    """Return the gradient tensors that a sparsifier's communication hook gets; those PowerSGD compresses are marked."""
    shapes = model.true_shapes or model.shapes or tuple((size,) for size in model.true_sizes)
    if not shapes:
        whole = model.true_parameters
        # PowerSGD makes a matrix of a gradient without layers.
        shapes = (near_square(whole) if model.name == "powersgd" else (whole,),)
    rank = int(getattr(model.options, "rank", 1))
    return hooked_shapes(shapes, rank)._replace(kept=float(model.k_of_model), workers=model.workers)


def hooked_shapes(shapes: Sequence[Sequence[int]], rank: int = 1) -> hooks.HookedTensors:
    """Return a worker's tensors as a hook gets them. Matrices are compressed if low-rank factors halve their size."""
    matrices = as_matrices(shapes)
    compressed = [len(one) > 1 and 2 * rank * sum(one) < math.prod(one) for one in matrices]
    sizes, sides = np.array([(math.prod(one), one[0]) for one in matrices], dtype=np.float64).T
    return hooks.HookedTensors(sizes, sides, np.array(compressed), float(sizes.sum()), 1, rank)


def _measured_hook(device: DeviceProfile, model: Sparsifier, exchange: Exchange) -> tuple[DeviceOp, ...]:
    entries, rounds = model.parameters * model.options.scale, len(exchange.schedule.rounds)
    does = (
        DeviceOp("begin", entries),
        DeviceOp("kept", model.density * entries),
        DeviceOp("end", entries, before=rounds),
        DeviceOp("came", np.asarray(exchange.stats["bytes_received"]) / 4, before=rounds),
    )
    named = (one._replace(method=f"hook_{model.name}_{one.method}") for one in does)
    return tuple(one for one in named if one.method in device.methods)
