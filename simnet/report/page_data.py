"""Chart data of the page of a run: columns per policy, thinned for long runs, as JSON that is safe in a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simnet.report.answers import ranking
from simnet.report.drawing import policy_looks
from simnet.report.figures import choice_colours
from simnet.report.run_summary import RunSummary, ranked, with_exploration
from simnet.report.summary import json_value
from simnet.report.timeline import RecordedTimeline, message_sample

POINTS = 2_000
"""Maximum number of points of a line; longer runs are thinned."""

_DIGITS = 7
# What ends a script, and what ends a line of one but not of JSON.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page_data(
    summary: RunSummary, iterations: pd.DataFrame, recorded: RecordedTimeline | None = None
) -> dict[str, Any]:
    """Return the chart data of the page: iterations by policy, choices, training results, recorded messages.

    Returns
    -------
    dict
        `policies`, each with its name, its colour (None for the bound) and the columns of its iterations: number,
        start [s], time [s], choice as an index into `choices`, bandwidth [byte/s] and latency [s], and the elapsed time
        after the iteration [s]. If a point stands for `stretch` iterations, its time is their mean, `low` and `high`
        are the extremes, its choice is the most used one, and other values are those of the first. Lags are measured
        from the policy `reference`; `learnt` has losses and accuracies, `kept` the recorded messages.
    """
    trained = with_exploration(iterations)
    frames = {str(name): frame for name, frame in trained.groupby("policy", sort=False) if len(frame)}
    choices = list(dict.fromkeys(str(choice) for choice in trained["choice"]))
    bound = summary["bound"]
    looks = policy_looks(iterations["policy"], bound)
    of_choices = choice_colours(frames, choices, looks)
    longest = max((len(frame) for frame in frames.values()), default=0)
    stretch = -(-longest // POINTS) if longest > POINTS else 1
    whole = [name for name in ranking(summary) if name in frames and ranked(summary["policies"][name])]
    return {
        "policies": [
            {"name": name, "colour": None if name == bound else looks[name]["color"]}
            | _iteration_columns(frame, choices, stretch)
            for name, frame in frames.items()
        ],
        "choices": [[one, of_choices[one]] for one in choices],
        "reference": bound if bound in whole else next(iter(whole), None),
        "stretch": stretch,
        "learnt": {name: _learning_points(frame) for name, frame in frames.items()} if "accuracy" in trained else {},
        "kept": {"policies": {}, "routes": {}, "links": []} if recorded is None else message_sample(recorded),
    }


def embedded(data: Any) -> str:
    r"""Return data as JSON that is safe in an HTML script element; floats have seven digits, non-finite ones are null.

    Examples
    --------
    >>> embedded(["</script><!--", 0.1 + 0.2])
    '["\\u003c/script\\u003e\\u003c!--",0.3]'
    """
    rounded = json_value(data, lambda one: float(f"{one:.{_DIGITS}g}"))
    text = json.dumps(rounded, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return text


def _iteration_columns(frame: pd.DataFrame, choices: Sequence[str], stretch: int) -> dict[str, list[Any]]:
    first = np.arange(0, len(frame), stretch)
    start, seconds = (frame[name].to_numpy(dtype=np.float64) for name in ("start_s", "iteration_s"))
    code = pd.Categorical(frame["choice"].astype(str), categories=list(choices)).codes.astype(np.intp)
    lengths = np.diff(np.append(first, len(frame)))
    columns = {
        "iteration": frame["iteration"].to_numpy()[first].tolist(),
        "start": start[first].tolist(),
        "time": (np.add.reduceat(seconds, first) / lengths).tolist(),
        "choice": _most_used(code, first, len(choices)),
        "bandwidth": frame["bandwidth_Bps"].to_numpy(dtype=np.float64)[first].tolist(),
        "latency": frame["latency_s"].to_numpy(dtype=np.float64)[first].tolist(),
        "after": (start + seconds - start[0])[first + lengths - 1].tolist(),
    }
    if stretch > 1:
        columns["low"] = np.minimum.reduceat(seconds, first).tolist()
        columns["high"] = np.maximum.reduceat(seconds, first).tolist()
    return columns


def _most_used(code: NDArray[np.intp], first: NDArray[np.intp], count: int) -> list[int]:
    counts = np.zeros((len(first), count), np.intp)
    np.add.at(counts, (np.searchsorted(first, np.arange(len(code)), side="right") - 1, code), 1)
    return [int(one) for one in counts.argmax(axis=1)]


def _learning_points(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return loss and accuracy at each evaluation, with iterations done and time elapsed [s]."""
    measured = np.flatnonzero(frame["accuracy"].notna().to_numpy())
    measured = measured[:: max(1, -(-len(measured) // POINTS))]
    rows = frame.iloc[measured]
    ends = rows["start_s"] + rows["iteration_s"] - float(frame["start_s"].iloc[0])
    return {
        "done": (measured + 1).tolist(),
        "after": ends.tolist(),
        **{name: rows[name].to_numpy(dtype=np.float64).tolist() for name in ("loss", "accuracy")},
    }
