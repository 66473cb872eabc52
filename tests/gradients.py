"""Gradients of kinds that schemes stumble over, for the tests of all of them."""

import numpy as np
from hypothesis import strategies as st

from simnet.traces.comparing import top_k_support, worker_support_overlap

KINDS = ["normal", "heavy", "sparse", "ties", "zero", "constant", "alike", "one worker"]


@st.composite
def jobs(draw, longest=3000, kinds=KINDS):
    """Workers, parameters, density, kind of gradients and seed."""
    return (
        draw(st.integers(1, 17)),
        draw(st.one_of(st.integers(1, 40), st.integers(1, longest))),
        draw(st.one_of(st.sampled_from([1e-9, 0.01, 0.25, 0.5, 1.0]), st.floats(1e-3, 1))),
        draw(st.sampled_from(kinds)),
        draw(st.integers(0, 2**31 - 1)),
    )


def f32(rows):
    return np.array(rows, dtype=np.float32)


def gradients_of(kind, workers, parameters, seed):
    """Return gradients of one kind, float32 of shape (P, n); a normal distribution unless the kind says otherwise."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((workers, parameters))
    match kind:
        case "normal":
            pass
        case "heavy":
            rows = rng.standard_cauchy((workers, parameters))
        case "sparse":
            rows *= rng.random((workers, parameters)) < 0.1
        case "ties":
            rows = rng.integers(-2, 3, (workers, parameters))
        case "zero":
            rows *= 0
        case "constant":
            rows[:] = -0.1
        case "alike":
            rows[:] = rows[0]
        case "tiny":
            rows *= 1e-38
        case "large":
            rows *= 1e30
        case "huge":
            rows *= 1e36
        case "one worker":
            rows[1:] = 0
        case "one entry":
            rows[:, 1:] = 0
        case _:
            raise ValueError(f"there is no kind {kind!r} of gradients")
    return f32(rows)


def compression_gain(gradients, density):
    """Return the share of the squared norm that top-k keeps, mean over workers; 1 for a zero gradient."""
    squares = np.square(gradients, dtype=np.float64)
    kept, total = np.where(top_k_support(gradients, density), squares, 0.0).sum(axis=1), squares.sum(axis=1)
    return float(np.mean(np.divide(kept, total, out=np.ones_like(total), where=total > 0)))


def build_up(gradients, density):
    """Return the entries that any worker selects, over k."""
    selected = top_k_support(gradients, density)
    return float(selected.any(axis=0).sum() / selected[0].sum())


def overlap_between_workers(gradients, density):
    """Return the share of k that two workers select both, mean over pairs."""
    return worker_support_overlap(top_k_support(gradients, density))
