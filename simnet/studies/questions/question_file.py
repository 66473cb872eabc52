"""Files of open questions: schema, search and validation.

A question is a folder with a file ``question.yaml``, and a scenario of its own where no shipped one serves.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from simnet.base.file_io import read_text
from simnet.base.yaml_loader import load_yaml_mapping
from simnet.report.summary import Unit

QUESTION_FILE = "question.yaml"
"""The file that makes a folder a question."""

SERIES = "policy"
"""The series of a question that names none: the policies of its scenario."""

MAX_BYTES = 64 * 2**10
"""Maximum size of a question file [byte]."""

_Text = Annotated[str, Field(max_length=2000)]


class _FilePart(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnComparison(_FilePart):
    """Comparison of a column of ``sweep.csv`` between series, such as policies.

    With `against`, each of `series` (default: all others) is compared with the best of the named series of the same
    setting. With `reach`, the answer says from which series on, in their order, the column is as good as that value.
    Without either, the answer says which series has the least value in which setting. Cells that have not settled count
    only for results of training, or where `settled` is false.
    """

    column: _Text
    label: _Text
    unit: Unit | None = None
    better: Literal["lower", "higher"] = "lower"
    reach: float | None = None
    settled: bool = True
    against: list[_Text] = []
    series: list[_Text] = []


class Question(_FilePart):
    """Open question, as its file states it: a scenario, a grid over it, and the columns to compare.

    `grid` has a text as ``--grid`` takes it for each axis, by the axis's name in the answer. `limits` says in words for
    which cases the answer does not hold by its setup, such as small models. `long` leaves a question that takes an hour
    out of ``--all``.
    """

    question: _Text
    source: _Text
    scenario: _Text
    policies: list[_Text] | None = None
    set: dict[str, Any] = {}
    grid: Annotated[dict[_Text, _Text], Field(max_length=6)] = {}
    seeds: Annotated[int, Field(ge=3, le=100)] = 5
    series: _Text = SERIES
    compare: Annotated[list[ColumnComparison], Field(min_length=1, max_length=6)]
    limits: _Text = ""
    long: bool = False


def questions() -> dict[str, Path]:
    """Return the folders of the questions that come with simnet, by name."""
    folder = Path(str(files("simnet"))) / "data" / "questions"
    return {one.parent.name: one.parent for one in sorted(folder.glob(f"*/{QUESTION_FILE}"))}


def find_question(name: str) -> Path | None:
    """Return the folder of a question, given its name or the path of a folder; None if there is none."""
    own = Path(name)
    return own if (own / QUESTION_FILE).is_file() else questions().get(name)


def read_question(folder: Path) -> Question:
    """Return the question in a folder. A relative path of its scenario starts at that folder.

    Raises
    ------
    InputError
        If the file is malformed, with its line.
    """
    file = folder / QUESTION_FILE
    found = load_yaml_mapping(read_text(file, MAX_BYTES), str(file), "a question").validated(Question)
    own = folder / found.scenario
    return found.model_copy(update={"scenario": str(own)}) if own.is_file() else found
