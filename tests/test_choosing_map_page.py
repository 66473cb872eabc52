"""The page of a map says what `simnet choose` says, at every point that it has, and is inert whatever names are."""

import dataclasses
import json
import random
import re
from functools import partial

import numpy as np
import pytest

import commands
from simnet.base.units import seconds
from simnet.cost_models.evidence import conditions
from simnet.report.drawing import Plot
from simnet.report.html import map_report
from simnet.studies.choosing import cost_models, map_page, output
from simnet.studies.choosing.maps import axis, draw_map
from simnet.studies.choosing.problem import problem_from_flags
from simnet.studies.choosing.request import ChooseRequest
from test_report import HOSTILE, Page

did = partial(commands.did, "choose")

WIDE = ("latency=100us:80ms", "bandwidth=1Mbit/s:10Gbit/s")


def page(problem, names=("latency", "bandwidth"), ranges=WIDE, cells=9):
    """What a page shows of a problem."""
    texts = dict(one.split("=") for one in ranges)
    x, y = (map_page.points(axis(name, texts.get(name), cells), problem) for name in names)
    return map_page.page_data(problem, x, y, map_page.weighed(problem, x, y)), x, y


def rows(shown, cell):
    """The table of a cell as it is shown."""
    width = 1 + len(shown["headings"])
    each = (cell[start : start + width] for start in range(3, len(cell), width))
    return [(shown["choices"][label][0], *(shown["texts"][one] for one in texts)) for label, *texts in each]


def printed(decision):
    """The same as the command prints it."""
    return [output.cells(decision, row) for row in decision.rows]


def test_what_was_asked_stands_on_the_page_as_the_command_prints_it(tmp_path):
    asked = ("--workers", 6, "--latency", "3 ms", "--bandwidth", "400 Mbit/s")
    ranges = [word for one in WIDE for word in ("--range", one)]
    did(*asked, "--map", "latency,bandwidth", *ranges, "--cells", 5, "--out", tmp_path / "m")
    seen = Page((tmp_path / "m.html").read_text(encoding="utf-8"))
    shown = json.loads(next(text for text in seen.scripts if text.startswith("{")))
    said = did(*asked).stdout
    cell = shown["cells"][shown["own"]]
    take, warning = (shown["texts"][one] for one in cell[:2])
    assert take.startswith("Take ")
    assert take in said.splitlines()
    assert warning in said.splitlines()
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for label, *texts in rows(shown, cell):
        (line,) = (one for one in lines if re.match(rf"{label} \d", one))
        assert line.startswith(" ".join((label, *filter(None, texts))))
        # Without scripts, too.
        assert all(text in seen.text for text in texts)
    assert take in seen.text
    assert warning in seen.text


def test_every_point_says_what_asking_there_alone_says():
    flags = ChooseRequest(workers=5, density=0.02, latency=2e-3, bandwidth=2e7)
    shown, x, y = page(problem_from_flags(flags))
    cells = [(row, column) for row in range(len(y.values)) for column in range(len(x.values))]
    own = divmod(shown["own"], len(x.values))
    assert (x.values[own[1]], y.values[own[0]]) == (flags.latency, flags.bandwidth)
    for row, column in [*random.Random(0).sample(cells, 6), own]:
        alone = dataclasses.replace(flags, latency=float(x.values[column]), bandwidth=float(y.values[row]))
        decision = problem_from_flags(alone).answer()
        cell = shown["cells"][row * len(x.values) + column]
        assert rows(shown, cell) == printed(decision)
        assert [shown["texts"][one] for one in cell[:2] if one >= 0] == output.recommendation_lines(decision)
        assert cell[2] == pytest.approx(0 if decision.tied_with else decision.margin, rel=5e-3)


def test_points_are_those_of_the_map_and_what_was_asked():
    problem = problem_from_flags(ChooseRequest(latency=2.5e-3))
    whole = axis("latency", "1ms:100ms", 200)
    own = map_page.points(whole, problem)
    assert len(own.values) == map_page.CELLS + 1
    assert set(own.values) - set(whole.values) == {2.5e-3}
    assert (np.diff(own.values) > 0).all()
    assert own.values[[0, -1]].tolist() == whole.values[[0, -1]].tolist()


def test_what_was_asked_outside_of_the_range_is_said_to_be_outside(tmp_path):
    ranges = ["--range", "latency=1ms:2ms", "--range", "bandwidth=1Mbit/s:2Mbit/s"]
    did("--latency", "5 ms", "--map", "latency,bandwidth", *ranges, "--cells", 3, "--out", tmp_path / "m")
    seen = Page((tmp_path / "m.html").read_text(encoding="utf-8"))
    assert json.loads(next(text for text in seen.scripts if text.startswith("{")))["own"] is None
    assert "9 points were computed over latency 1 ms to 2 ms and bandwidth 1 Mbit/s to 2 Mbit/s" in seen.text
    assert "what was asked lies outside of them" in seen.text


@pytest.mark.parametrize("names", [("density", "workers"), ("model", "latency"), ("bandwidth", "density")])
def test_a_page_goes_over_any_two_quantities(names):
    problem = problem_from_flags(ChooseRequest())
    shown, *_ = page(problem, names, ["workers=2:16"] if "workers" in names else [], cells=4)
    assert shown["own"] is not None
    assert rows(shown, shown["cells"][shown["own"]]) == printed(problem.answer())
    for one in (shown["x"], shown["y"]):
        assert len(one["marks"]) > 1
        assert all(one["values"][0] * 0.999 <= value <= one["values"][-1] * 1.001 for value, _ in one["marks"])


def test_simulated_points_are_simulated_once(monkeypatch):
    asked = []
    own = cost_models.by_simulation

    def by_simulation(*arguments, **more):
        simulate = own(*arguments, **more)
        return lambda choice, point: (
            asked.append((choice.label, point.latency, point.bandwidth)) or simulate(choice, point)
        )

    monkeypatch.setattr(cost_models, "by_simulation", by_simulation)
    problem = problem_from_flags(ChooseRequest(simulate=True, workers=3, parameters=10**6), over=True)
    made = draw_map(problem, axis("latency", WIDE[0].partition("=")[2], 3), axis("bandwidth", "1Mbit/s:10Gbit/s", 3))
    assert len(asked) == 9 * len(problem.among)
    shown, x, y = page(problem, cells=3)
    assert len(asked) == len(set(asked)) == len(x.values) * len(y.values) * len(problem.among)
    across, up = (np.flatnonzero(np.isin(all_.values, some.values)) for all_, some in ((x, made.x), (y, made.y)))
    winners = [[shown["cells"][row * len(x.values) + column][3] for column in across] for row in up]
    assert winners == made.which.tolist()


def test_points_beyond_what_was_measured_are_called_extrapolated_and_no_others():
    problem = problem_from_flags(ChooseRequest(workers=4))
    shown, x, y = page(problem, ranges=("latency=1us:1s", "bandwidth=100kbit/s:10Gbit/s"), cells=20)
    told = np.array([cell[1] >= 0 for cell in shown["cells"]]).reshape(len(y.values), len(x.values))
    inside_x, inside_y = (
        (low <= one.values) & (one.values <= high)
        for one, (low, high) in ((x, conditions.LATENCY), (y, conditions.BANDWIDTH))
    )
    assert inside_x.any()
    assert inside_y.any()
    assert (told == ~(inside_y[:, np.newaxis] & inside_x)).all()
    # An error that somebody gives is no extrapolation.
    assert all(cell[1] == -1 for cell in page(problem_from_flags(ChooseRequest(error=0.1)), cells=3)[0]["cells"])


@pytest.mark.parametrize(
    ("flags", "extrapolated"),
    [
        ({}, False),
        ({"workers": 9}, True),
        ({"latency": seconds("90 ms")}, True),
        ({"bandwidth": 1.3e7}, True),
        ({"workers": 8, "gpus_per_node": 2}, True),
        ({"simulate": True}, False),
        ({"simulate": True, "workers": 16}, True),
    ],
)
def test_a_decision_says_that_it_extrapolates(flags, extrapolated):
    asked = ChooseRequest(**{"workers": 4, "latency": 1e-3, "bandwidth": 1.25e7, "parameters": 10**5} | flags)
    decision = problem_from_flags(asked).answer()
    assert any(one.startswith("Extrapolated: ") for one in output.recommendation_lines(decision)) == extrapolated
    assert (output.figures(problem_from_flags(asked), decision)["extrapolated"] != []) == extrapolated


def test_hostile_names_are_names():
    shown, *_ = page(problem_from_flags(ChooseRequest()), cells=2)
    shown["choices"] = [[HOSTILE[number % len(HOSTILE)], one[1]] for number, one in enumerate(shown["choices"])]
    shown["texts"] = [f"{one}</script><!--" for one in shown["texts"]]
    made = map_report(HOSTILE[0], "</p><img src=x onerror=y>", Plot("map", HOSTILE[3], "", b"", b"<svg/>"), shown)
    seen = Page(made)
    assert not seen.open
    # The data, what pages share, and the map.
    assert seen.tags.count("script") == 3
    assert seen.tags.count("img") == 1
    assert json.loads(seen.scripts[0])["choices"] == [list(one) for one in shown["choices"]]
    assert not re.search(r"https?://|@import", made)
