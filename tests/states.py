"""States of sparsifiers, for the tests of all schemes: saved, read again, and gone on from by a twin."""

import io

import numpy as np


def reread(state):
    """Return a state as it comes back from a file."""
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def same_state(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def assert_continues(model, twin, batches):
    """Restore a twin from what a model saves, and assert that from then on both do the same with the same gradients."""
    twin.restore(reread(model.save()))
    for gradients in batches:
        ours, theirs = model.exchange(gradients), twin.exchange(gradients)
        np.testing.assert_array_equal(ours.update, theirs.update)
        np.testing.assert_array_equal(model.residual, twin.residual)
        assert ours.schedule == theirs.schedule
        assert ours.stats.keys() == theirs.stats.keys()
        for name, value in ours.stats.items():
            np.testing.assert_array_equal(value, theirs.stats[name])
    assert (twin.density, twin.iteration) == (model.density, model.iteration)
