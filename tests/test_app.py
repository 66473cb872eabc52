"""The line: words become arguments of functions, answers are printed, and what is wrong is told in one line."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

import pytest
from typing_extensions import Unpack

from simnet.base.errors import InputError
from simnet.report.summary import Column, Summary
from simnet.scenario import load
from simnet.scenario.marked_fields import Fields
from simnet.verbs import app
from simnet.verbs.request import Overrides, Words


def rank(
    scenario: str = "base",
    *,
    exact: bool = False,
    goal: str | None = None,
    policies: Words = (),
    set: Overrides = (),
    **fields: Unpack[Fields],
) -> Summary:
    """Rank exchanges.

    Parameters
    ----------
    scenario
        A scenario.
    exact
        Simulate all.
    goal
        What to reach.
    policies
        These alone.
    """
    if goal == "x":
        raise InputError("must be a share, got 'x'", file="--goal")
    given = {"scenario": scenario, "exact": exact, "goal": goal, "policies": policies, "set": list(set), **fields}
    rows = [{"exchange": "AG", "iteration_s": 0.0449, "low_s": 0.038, "high_s": 0.0565}]
    columns = [Column("exchange", "exchange", "text"), Column("iteration_s", "iteration", interval=("low_s", "high_s"))]
    return Summary(answer="AG: 44.9 ms.", columns=columns, rows=rows, evidence="assumed", details={"given": given})


@pytest.fixture(autouse=True)
def _one_verb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    verb = app.Verb("Ask", "Rank exchanges.", "base --density 1%", "test_app:rank")
    monkeypatch.setattr(app, "VERBS", {})
    monkeypatch.setattr(app, "_registered_verbs", lambda: {"rank": verb})
    return


def said(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = app.run_line(words)
    return code, out.getvalue(), err.getvalue()


def test_words_of_a_line_are_the_arguments_of_the_function() -> None:
    line = (
        "rank quickstart --exact --density 1% --workers 16 --set job.iterations=5 --set seed=3 --policies AG,flexible"
    )
    code, text, _ = said(*line.split(), "--json")
    assert code == 0
    given = json.loads(text)["given"]
    assert given["scenario"] == "quickstart"
    assert given["exact"] is True
    assert given["goal"] is None
    assert given["set"] == ["job.iterations=5", "seed=3"]
    assert given["policies"] == "AG,flexible"
    assert (given["density"], str(given["workers"])) == ("1%", "16")
    assert "bandwidth" not in given


def test_the_answer_comes_first_and_its_table_has_the_interval() -> None:
    _, text, _ = said("rank")
    first, *_, last = text.strip().split("\n")
    assert first == "AG: 44.9 ms."
    assert "44.9 (38.0-56.5)" in text
    assert last == "Evidence    assumed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnk"], "error: there is no verb 'rnk': "),
        (["rank", "--densty", "1%"], "error: rank has no option --densty: "),
        (["rank", "--output", "x"], "error: --output is now --out"),
        (["rank", "--goal", "x"], "error: --goal: must be a share, got 'x'"),
        (["rank", "--quiet", "--verbose"], "error: --quiet: is either --quiet or --verbose"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_right_word(words: list[str], message: str) -> None:
    code, text, error = said(*words)
    assert (code, text) == (2, "")
    assert error.splitlines()[-1 if "--verbose" in words else 0].startswith(message)
    assert "rank" in error or "--" in error


def test_a_short_help_fits_a_screen_and_the_long_one_explains_each_option() -> None:
    code, short, _ = said("rank", "-h")
    assert code == 0
    assert len(short.splitlines()) <= 24
    assert max(map(len, short.splitlines())) <= 80
    assert "Simulate all." in short
    assert "--density" in short
    _, long, _ = said("rank", "--help")
    assert all(one in long for one in ("Simulate all.", "--density", "Workload", "Network", "Output", "Example: "))


def test_a_request_is_saved_as_a_scenario_and_an_answer_as_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ("rank", "--density", "2%", "--set", "job.iterations=7", "--save-scenario", "a.yaml", "-o", "a.csv")
    code, _, error = said(*line)
    assert (code, error) == (0, "wrote a.yaml\nwrote a.csv\n")
    saved = load("a.yaml")
    assert (saved.config.job.iterations, saved.config.job.density) == (7, load("base", density="2%").config.job.density)
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "exchange,iteration_s,low_s,high_s"
    assert said(*line)[0] == 2
    assert said(*line, "--force")[0] == 0
    assert said(*line, "--force", "--goal", "90%")[2].splitlines()[0] == "wrote a.yaml; scenarios do not store --goal"


def test_there_are_twelve_verbs_and_at_most_55_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    verbs = app.all_verbs()
    assert len(verbs) == 12
    options = {one.names.split(",")[0].split(" ")[0] for name in verbs for one in app.verb_options(name)}
    assert len({one for one in options if one.startswith("--")}) <= 55


def test_all_verbs_stand_in_their_panels_with_a_line_each() -> None:
    code, text, _ = said("--help")
    assert code == 0
    assert "Ask        rank       Rank exchanges." in text
    assert max(map(len, text.splitlines())) <= 80
