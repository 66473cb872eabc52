"""Figures of gradient traces: what one is like, and how close synthetic gradients come to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from simnet.report.drawing import COLOURS, Plot, canvas, plot, scale

_REAL, _SYNTHETIC = "#333333", COLOURS[0]


def closeness_plot(figures: Mapping[str, Any]) -> Plot:
    """Plot gain, build-up, overlap and threshold of a trace next to those of synthetic gradients.

    The figures are what `simnet.traces.comparing.compare_with_synthetic` returns.
    """
    with canvas(9, 6.4, 2, 2) as (figure, ((gain, build_up), (overlap, drift))):
        curve = figures["curve"]
        gain.plot(curve["density"], curve["real"], color=_REAL, label="recorded")
        gain.plot(curve["density"], curve["synthetic"], color=_SYNTHETIC, linestyle="--", label="synthetic")
        gain.set(title="compression gain", xlabel="density", ylim=(0, 1.05))
        scale(gain.xaxis, np.array(curve["density"]))
        _draw_pairs(build_up, figures, "build_up", f"build-up, {figures['workers']} workers")
        _draw_pairs(overlap, figures, "overlap_workers", "overlap between workers")
        for one, colour in zip(figures["thresholds"], COLOURS * 20, strict=False):
            label = f"density {one['density']:g}"
            drift.plot(figures["steps"], one["real"], color=colour, marker=".", label=label)
            drift.plot(figures["steps"], one["synthetic"], color=colour, linestyle="--")
        drift.set(title="threshold over the first (dashed: synthetic)", xlabel="iteration", ylim=(0, None))
        for axes in (gain, build_up, overlap, drift):
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        return plot("fit", "Recorded and synthetic gradients", "Top-k of fresh gradients, means over steps.", figure)


def description_plot(figures: Mapping[str, Any]) -> Plot:
    """Return the scales of the layers, and what top-k selects at each density.

    The figures are what `simnet.traces.comparing.describe_trace` returns.
    """
    with canvas(9, 3.6, 1, 2) as (figure, (scales, selected)):
        layers = [one for one in figures["layers"] if one["rms"]]
        scales.scatter(range(len(layers)), [one["rms"] for one in layers], s=14, color=COLOURS[0])
        scales.set(title="root mean square of each layer", xlabel="layer", ylabel="gradient")
        if layers:
            scale(scales.yaxis, np.array([one["rms"] for one in layers]))
        density = [one["density"] for one in figures["densities"]]
        names = {
            "gain": "compression gain",
            "overlap_workers": "overlap between workers",
            "overlap_time": "overlap over time",
        }
        for (key, label), colour in zip(names.items(), COLOURS, strict=False):
            values = [one[key] for one in figures["densities"]]
            if all(value is not None for value in values):
                selected.plot(density, values, color=colour, marker=".", label=label)
        selected.set(title="what top-k selects", xlabel="density", ylim=(0, 1.05))
        scale(selected.xaxis, np.array(density))
        selected.legend()
        return plot("trace", "A gradient trace", "Means over recorded steps.", figure)


def _draw_pairs(axes: Axes, figures: Mapping[str, Any], name: str, title: str) -> None:
    known = [one for one in figures["densities"] if one[name]["real"] is not None]
    for side, colour, line in (("real", _REAL, "-"), ("synthetic", _SYNTHETIC, "--")):
        label = "recorded" if side == "real" else side
        values = [one[name][side] for one in known]
        axes.plot([one["density"] for one in known], values, line, color=colour, marker=".", label=label)
    axes.set(title=title, xlabel="density", ylim=(0, None))
    scale(axes.xaxis, np.array([one["density"] for one in known]))
