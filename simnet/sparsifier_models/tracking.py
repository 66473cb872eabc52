"""Gradient tracking (EF21): workers send compressed changes of their trackers, and share the mean of all trackers.

A worker's tracker g_i approaches its gradient, or momentum: each exchange adds their compressed difference.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from simnet.sparsifier_models.base import Sparsifier
from simnet.sparsifier_models.options import Decay, Options
from simnet.sparsifier_models.selection import Values

_STATES = ("tracked", "velocity", "second")


class TrackingOptions(Options):
    """Options of schemes in which each worker has a tracker, a running approximation of its gradient (EF21).

    Parameters
    ----------
    momentum : {"none", "published", "heavy_ball", "double"}
        What is tracked: the gradient; v = (1 - eta) v + eta g, as published (EF21-M); v = eta v + g, as released
        (heavy ball); or u = eta u + v of the latter (double momentum).
    eta : float
        The factor, in (0, 1].
    start : {"dense", "zero"}
        Whether the first exchange is dense, and trackers begin with what it brings, as published; or they begin with
        zero, as in the released code with momentum.
    """

    momentum: Literal["none", "published", "heavy_ball", "double"] = "none"
    eta: Decay = 0.5
    start: Literal["dense", "zero"] = "dense"


class Tracking(Sparsifier, memory_factor=(1.9, 8.0), state=("begun", *_STATES)):
    """Base of schemes that compress changes of trackers, which are running approximations of workers' gradients.

    There is no residual. The difference between the mean gradient and the mean tracker is only corrected as far as
    later gradients resemble this one, so mass is not conserved: ``lost`` is the norm of P times that difference.

    Statistics of its own: ``distance``, shape (P,), of each tracker to what it follows.
    """

    tracked: Values
    velocity: Values
    second: Values

    def _set_up(self) -> None:
        self.begun = False
        followed = self._following()
        there = 0 if followed is None else {"none": 1, "double": 3}.get(followed.momentum, 2)
        self.tracked, self.velocity, self.second = (
            np.zeros((self.workers, self.parameters if which < there else 0), dtype=np.float32)
            for which in range(len(_STATES))
        )

    def _following(self) -> TrackingOptions | None:
        """Return the options if the scheme tracks gradients, else None."""
        options = self.options
        assert isinstance(options, TrackingOptions)
        return options if options.error_feedback else None

    def _option_traits(self) -> dict[str, Any]:
        tracks = self._following() is not None
        return {"keeps_residual": not tracks, "conserves": not tracks, "tracks": tracks}

    @property
    def starts_dense(self) -> bool:
        """Whether the next exchange is dense, to initialise the trackers."""
        options = self._following()
        return options is not None and options.start == "dense" and not self.begun

    def _follow(self, rows: Values) -> None:
        """Replace gradients, in place, by their averages with momentum, which the trackers approximate."""
        options = self._following()
        if options is None or options.momentum == "none":
            return
        eta, velocity = np.float32(options.eta), np.empty_like(self.velocity)
        for row, old, new in zip(rows, self.velocity, velocity, strict=True):
            if options.momentum == "published":
                new[:] = row if self.starts_dense else (1 - eta) * old + eta * row
            else:
                new[:] = eta * old + row
            row[:] = new
        self.velocity = velocity
        if options.momentum == "double":
            self.second = eta * self.second
            self.second += velocity
            rows[:] = self.second

    def _track(self, tracked: Values) -> Values:
        """Store the workers' gradient estimates `tracked`, shape (P, n), and return the mean over workers."""
        self.begun, self.tracked = True, tracked
        return np.asarray(np.add.reduce(tracked, axis=0) / np.float32(self.workers))

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a worker stores, by name, for the whole model."""
        found = super().held_bytes()
        return found | {"mean": found["tracked"]} if self.traits.tracks else found
