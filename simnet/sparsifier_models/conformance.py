"""Checks for tests: whether a scheme, built in or from a plug-in, behaves as `Sparsifier` requires.

`check` exchanges gradients with a scheme and looks at what comes back. It knows nothing of how a scheme works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from simnet.base.arrays import Floats
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.selection import Values

_EPS = float(np.finfo(np.float32).eps)
_TINY = float(np.finfo(np.float32).smallest_subnormal)


def check(make: Callable[[], Sparsifier], batches: Sequence[Values], rounding: float = 4.0) -> list[Exchange]:
    """Exchange each batch of gradients by the scheme that `make` creates; check and return the exchanges.

    If the scheme conserves mass, the sum of gradients at every index equals what was applied plus the residuals;
    otherwise the statistic ``lost`` must be the difference. All statistics must be finite and agree with the exchange.
    Arguments must not be modified. A second scheme from `make` must give the same exchanges, and so must a third that
    loads the saved state of the first after each exchange. As many bytes must arrive as leave, and a single worker must
    send none.

    Parameters
    ----------
    make : callable
        Returns a new scheme; all calls return equal ones.
    batches : sequence of ndarray of float32, shape (P, n)
        Gradients, one array for each exchange.
    rounding : float
        Roundings of float32, relative to the magnitudes summed, that each of P workers may add at an index.

    Raises
    ------
    AssertionError
        If the scheme breaks a promise; the message says which, and at which exchange.

    Examples
    --------
    >>> from simnet.sparsifier_models import create
    >>> rows = np.array([[4, 3, 1, 0], [0, 5, 1, -8]], dtype=np.float32)
    >>> len(check(lambda: create("topk", 2, 4, 0.5), [rows, rows]))
    2
    """
    model, twin, heir, owner, adder = (make() for _ in range(5))
    exchanges = []
    for step, gradients in enumerate(batches):
        given, before = gradients.copy(), model.residual
        add = partial(_add_rows, given)
        held = before.copy()
        try:
            exchange = model.exchange(gradients)
        except Exception as error:
            raise AssertionError(f"{model!r}, exchange {step} ends with {type(error).__name__}: {error}") from error
        wrong = [*_check_arrays(model, exchange)] or [*_check_counts(model, exchange)]
        assert not wrong, f"{model!r}, exchange {step}: " + "; ".join(wrong)
        problems = [
            *_check_unchanged(gradients, given, before, held),
            *_check_mass(model, given, held, exchange, rounding),
            *_check_statistics(model, exchange),
            *_check_messages(model, exchange),
            *_check_same("a second scheme made alike", model, exchange, twin, twin.exchange(gradients)),
            *_check_same("a scheme that took over the saved state", model, exchange, heir, heir.exchange(gradients)),
            *_check_same(
                "a scheme that may overwrite", model, exchange, owner, owner.exchange(given.copy(), overwrite=True)
            ),
            *_check_same("a scheme that adds them", model, exchange, adder, adder.exchange(add, overwrite=True)),
        ]
        if model.iteration != step + 1:
            problems.append(f"the iteration is {model.iteration} after it")
        assert not problems, f"{model!r}, exchange {step}: " + "; ".join(problems)
        heir = make()
        heir.restore({name: np.array(value) for name, value in model.save().items()})
        exchanges.append(exchange)
    return exchanges


def _add_rows(given: Values, rows: Values) -> None:
    rows += given


def _check_unchanged(gradients: Values, given: Values, before: Values, held: Values) -> Iterator[str]:
    if not np.array_equal(gradients, given):
        yield "the gradients given were changed"
    if not np.array_equal(before, held):
        yield "the residual handed out before was changed"


def _check_arrays(model: Sparsifier, exchange: Exchange) -> Iterator[str]:
    P, n = model.workers, model.parameters
    wanted: dict[str, tuple[Any, tuple[int, ...], Any]] = {
        "update": (exchange.update, (n,), np.float32), "selected": (exchange.selected, (P,), np.int64),
        "sent": (exchange.sent, (P,), np.float64), "residual": (model.residual, (P, n), np.float32),
    }  # fmt: skip
    for name, (found, shape, dtype) in wanted.items():
        if np.shape(found) != shape or getattr(found, "dtype", list) != dtype:
            yield f"the {name} is {getattr(found, 'dtype', 'no array')} of shape {np.shape(found)}"


def _check_counts(model: Sparsifier, exchange: Exchange) -> Iterator[str]:
    n, selected = model.parameters, exchange.selected
    if selected.min() < 0 or selected.max() > model.max_selected:
        yield f"a worker selected {selected.max()} entries, more than {model.max_selected}, or fewer than none"
    least = 0 if model.traits.transforms or model.traits.tracks else np.count_nonzero(exchange.update)
    if not least <= exchange.union <= n:
        yield f"the union of {exchange.union} is not between the entries of the update and n"


def _check_mass(
    model: Sparsifier, gradients: Values, before: Values, exchange: Exchange, rounding: float
) -> Iterator[str]:
    if not model.options.error_feedback:
        if model.residual.any():
            yield "something stays without error feedback"
        return
    P = model.workers
    decay, gain = model.traits.weights
    fresh, kept = gain * gradients.astype(np.float64), decay * before.astype(np.float64)
    corrected = fresh + kept
    missing = corrected.sum(axis=0) - P * exchange.update.astype(np.float64)
    missing -= model.residual.sum(axis=0, dtype=np.float64)
    # What is fresh and what was kept may cancel: each is rounded by its own magnitude.
    magnitudes = (np.abs(fresh) + np.abs(kept)).sum(axis=0) + np.abs(model.residual).sum(axis=0, dtype=np.float64)
    allowed = rounding * (P + 4) * _EPS * magnitudes + 4 * P * _TINY
    if model.traits.conserves:
        if (np.abs(missing) > allowed).any():
            index = int(np.argmax(np.abs(missing) - allowed))
            yield f"{missing[index]:g} of {corrected[:, index].sum():g} is neither applied nor kept at index {index}"
    elif not np.abs(exchange.stats["lost"] - _row_norm(missing)) <= _row_norm(allowed):
        yield f"the loss of {_row_norm(missing):g} is given as {exchange.stats['lost']:g}"


def _check_statistics(model: Sparsifier, exchange: Exchange) -> Iterator[str]:
    stats, P, n = exchange.stats, model.workers, model.parameters
    for name, value in stats.items():
        unbounded = name in ("threshold", "threshold_error", "threshold_exact")
        if np.isnan(value).any() or (not unbounded and np.isinf(value).any()):
            yield f"statistic {name} is not finite"
        if np.shape(value) not in ((), (P,)) and name in _COMMON:
            yield f"statistic {name} has shape {np.shape(value)}"
    if missing := _COMMON - set(stats):
        yield f"statistics {sorted(missing)} are missing"
        return
    if stats["density"] != exchange.union / n:
        yield f"the density {stats['density']} is not {exchange.union} of {n}"
    if not 1 <= np.max(np.asarray(stats["imbalance"])) <= P:
        yield f"the imbalance {stats['imbalance']} is not between 1 and P"
    if not np.allclose(stats["residual_norm"], np.sqrt(np.square(model.residual, dtype=np.float64).sum(axis=1))):
        yield "residual_norm is not the norm of the residual"
    if model.traits.searches_threshold and not {"threshold", "threshold_exact", "threshold_error"} <= set(stats):
        yield "the threshold is not among the statistics"
    for kernel in exchange.kernels:
        entries = np.asarray(kernel.entries, dtype=np.float64)
        if entries.shape not in ((), (P,)) or not np.isfinite(entries).all() or entries.min() < 0:
            yield f"kernel {kernel.method} goes through {kernel.entries} entries"
        if kernel.before not in range(len(exchange.schedule.rounds) + 1):
            yield f"kernel {kernel.method} runs before round {kernel.before} of {len(exchange.schedule.rounds)}"


def _check_messages(model: Sparsifier, exchange: Exchange) -> Iterator[str]:
    schedule = exchange.schedule
    if schedule.n_ranks != model.workers:
        yield f"the schedule is of {schedule.n_ranks} ranks"
        return
    sent, received = schedule.bytes_sent().sum(), schedule.bytes_received().sum()
    if not abs(sent - received) <= 1e-9 * sent:
        yield f"{sent:g} bytes leave and {received:g} arrive"
    if model.workers == 1 and schedule.n_messages:
        yield "one worker on its own sends messages"


def _check_same(what: str, model: Sparsifier, exchange: Exchange, other: Sparsifier, theirs: Exchange) -> Iterator[str]:
    if not np.array_equal(exchange.update, theirs.update):
        yield f"{what} applies another update"
    if exchange.schedule != theirs.schedule:
        yield f"{what} sends other messages"
    # Of the state, as a residual that was read is not overwritten. One that was read is there, if only of zeros.
    found = other.save()
    for name, one in model.save().items():
        if not (name.endswith("has_residual") or np.array_equal(one, found.get(name, np.zeros_like(one)))):
            yield f"{what} keeps another {name}"


def _row_norm(values: Floats) -> float:
    return float(np.sqrt(np.square(values).sum()))


_COMMON = {
    "density", "density_error", "update_density", "worker_density", "build_up", "duplicates", "imbalance", "gain",
    "worker_gain", "given_norm", "sent_norm", "residual_norm", "global_error", "bytes_sent", "bytes_received",
    "entries",
}  # fmt: skip
