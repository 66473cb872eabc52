"""What every variant of a scheme exchanges, as one number for each kind of result: frozen in ``golden/outputs``."""

from functools import partial

import numpy as np

from gradients import gradients_of
from simnet.sparsifier_models.conformance import _COMMON
from simnet.sparsifier_models.traits import Traits
from variants import EVERY, label, made

# Workers, parameters, density, more options, and kinds of gradients: of unlike workers, of one entry each, of one
# worker on its own, of a sample of a model whose messages are as the released code has them, of another in codes, and
# with nearly all entries.
JOBS = (
    (6, 360, 0.05, {}, ("normal", "heavy", "sparse", "normal", "one worker")),
    (5, 9, 0.1, {}, ("normal", "sparse", "heavy")),
    (1, 40, 0.2, {}, ("normal", "heavy")),
    (4, 240, 0.03, {"scale": 10.0, "wire": "released"}, ("heavy", "normal", "one worker", "zero", "normal")),
    (6, 300, 0.04, {"scale": 7.3, "wire": "paper"}, ("one worker", "normal", "heavy")),
    (3, 50, 0.9, {}, ("sparse", "heavy", "normal")),
)
UNTOLD = ("codes", "costs", "hook", "memory_factor")


def exchanged(variant):
    """Return what a variant exchanges in each of the jobs, by field: lists with a number for each job."""
    own, usual = (vars(one) for one in (made(variant, 4, 240, 0.03).traits, Traits()))
    fields = {f"{label(variant)}: traits": str({a: own[a] for a in own if a not in UNTOLD and own[a] != usual[a]})}
    for number, (workers, parameters, density, more, kinds) in enumerate(JOBS):
        model = made(variant, workers, parameters, density, **more)
        if number == 4:
            model = made(variant, workers, parameters, density, **more, **_coded(model, EVERY.index(variant)))
        found = {f"first {name}": checksum(value) for name, value in _state(model)}
        for step, kind in enumerate(kinds):
            rows = gradients_of(kind, workers, parameters, step) * np.arange(1, workers + 1)[:, None] ** 0.5
            given = rows.astype(np.float32)
            add = partial(np.add, given)
            exchange = model.exchange((lambda into, add=add: add(into, out=into)) if step % 2 else given)
            for name, value in (*_parts(model, exchange), *_state(model)):
                found[name] = found.get(name, 0.0) + (step + 1) * checksum(value)
        for name, value in found.items():
            fields.setdefault(f"{label(variant)}: {name}", [None] * len(JOBS))[number] = float(f"{value:.9g}")
    return fields


def _coded(model, number):
    """Return codes that a scheme can send, others for each variant, and shapes of the tensors of the whole model."""
    codes = model.traits.codes
    options = {
        name: one[number % len(one)] for name, one in (("indices", codes.indices), ("values", codes.values)) if one
    }
    shapes = [(7 * shape[0], *shape[1:]) if at != 1 else (*shape, 7) for at, shape in enumerate(model.shapes)]
    return options | ({"true_shapes": shapes} if shapes else {})


def _state(model):
    for name, value in sorted(model.save().items()):
        if value.dtype.kind in "fiu" and name not in ("shape", "density", "iteration"):
            yield f"state {name}", value


def _parts(model, exchange):
    messages, kernels = exchange.schedule.columns(), [one for kernel in exchange.kernels for one in kernel.passes]
    yield "update", exchange.update
    yield "selected", np.append(exchange.selected, exchange.union)
    yield "sent", exchange.sent
    yield "messages", [(1 + messages[name]) * messages["nbytes"] for name in ("round", "src", "dst")]
    yield "kernels", [one.launches * one.segments * np.mean(one.entries) for one in kernels]
    yield "rounds of kernels", [1 + one.before for one in kernels]
    yield "entries", exchange.stats["entries"]
    yield "common", [np.mean(exchange.stats[name]) for name in sorted(_COMMON)]
    yield "held", [*model.held_bytes().values()]
    yield from ((name, value) for name, value in exchange.stats.items() if name not in _COMMON)
    if exchange.replicas is not None:
        yield "replicas", exchange.replicas


def checksum(value):
    """Return a sum in which every number has a weight of its own, and counts by its logarithm if it is large."""
    flat = np.nan_to_num(np.asarray(value, np.float64).ravel(), posinf=-1.0)
    return float(np.arcsinh(1e3 * flat) @ (1 + np.modf(np.arange(1, flat.size + 1) * 0.6180339887)[0]))


def all_exchanged():
    """Return what all variants exchange, by field."""
    return {field: value for variant in EVERY for field, value in exchanged(variant).items()}
