"""What results tell of trainings, for the tests of all that report it: against the iterations that they sum up."""

import pytest


def check_learnt(told, frames, target, computed):
    """Check the figures told of each policy, the reference first, whose workers computed for so many seconds."""
    needed = {name: 1 + int((frame["accuracy"] >= target).to_numpy().argmax()) for name, frame in frames.items()}
    for name, frame in frames.items():
        measured = frame.dropna(subset=["accuracy"])
        expected = {
            "loss": measured["loss"].iloc[-1],
            "accuracy": measured["accuracy"].iloc[-1],
            "best_loss": measured["loss"].min(),
            "best_accuracy": measured["accuracy"].max(),
            "iterations_to_target": needed[name],
            "time_to_target_s": frame["iteration_s"][: needed[name]].sum(),
            "statistical_efficiency": next(iter(needed.values())) / needed[name],
            "parallel_efficiency": computed / frame["iteration_s"].sum(),
        }
        assert {key: told[name][key] for key in expected} == pytest.approx(expected, rel=1e-9)
