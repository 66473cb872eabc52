"""Commands ``simnet validate`` and ``simnet reproduce``.

They are registered in the entry-point group ``simnet.commands``, as commands of other packages are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simnet.base.errors import InputError, check_choice
from simnet.base.file_io import refuse_existing, stage_files
from simnet.base.progress import track_progress
from simnet.report.summary import Column, Plot, Summary, percent
from simnet.verbs import terminal
from simnet.verbs.request import USUAL_FOLDER, Overrides, Words, refuse_given, set_texts, verb, word_list
from simnet.verbs.run import run

if TYPE_CHECKING:
    from simnet.validate.evaluation import Evaluation
    from simnet.validate.reproduction.table import Reproduction, Row

_DRAWN = (".svg", ".png")

JOBS, LOCAL = "jobs", "local"
"""Special words in place of measurements."""

_OFF = (Column("median", "median", "percent"), Column("p90", "p90", "percent"))


@verb
def validate(
    *sources: str,
    against: str | None = None,
    split: Words | None = None,
    fact: Sequence[str] = (),
    check: bool = False,
    set: Overrides = (),
) -> Summary:
    """Compare predictions with measurements.

    Times of collectives are left out in parts and predicted from the rest, or all are compared with a fabric file or a
    platform. Iterations of a job, logged by `simnet.cluster.hooks`, are compared with its scenario.

    Parameters
    ----------
    sources
        Logs, logs of a job, jobs, local, or names.

        Names are those of `simnet list measured`, by default all; jobs are training jobs, local is compression.
    against
        A fabric file, platform or scenario.

        With job.yaml:skip=5 the first five iterations do not count.
    split
        Leave out sizes, ranks, collectives or links.

        By default each in turn.
    fact
        Facts missing in the logs: ranks=16, '*_n{ranks}.log'.
    check
        Exit with code 1 if a figure is worse than recorded.

    Raises
    ------
    SimnetError
        If something is wrong with the measurements or with what is given.
    """
    splits = word_list(split)
    of_times = {"--split": splits, "--fact": fact, "--check": check}
    if JOBS in sources:
        refuse_given({**of_times, "--against": against, "--set": set}, "measurements, not for the shipped jobs")
        return _shipped_jobs()
    if LOCAL in sources:
        refuse_given({**of_times, "--against": against, "--set": set}, "measurements, not for local costs")
        return _local_costs()
    if len(sources) == 1 and _is_job(Path(sources[0])):
        refuse_given(of_times, "times of collectives")
        if against is None:
            raise InputError("is missing: the scenario of the job", file="--against")
        return _job(Path(sources[0]), against, set_texts(set))
    refuse_given({"--set": set}, "the scenario of a job")
    return _measurements(sources, against, splits, fact, check)


def _is_job(folder: Path) -> bool:
    """Return whether a folder, or one of its subfolders, has logs of a job's ranks."""
    return folder.is_dir() and any(next(folder.glob(one), None) for one in ("rank_*.csv", "*/rank_*.csv"))


def _measurements(
    sources: Sequence[str], against: str | None, split: Sequence[str] | None, fact: Sequence[str], check: bool
) -> Summary:
    """Compare measured collective times with predictions of models fitted to other times, or of a cluster file."""
    from simnet.cost_models.calibration.measured import datasets
    from simnet.cost_models.calibration.readers.tables import parse_facts
    from simnet.validate import evaluation

    if against is not None:
        refuse_given({"--split": split, "--check": check}, "what is left out, which --against does without")
    for name in split or ():
        check_choice(name, "split", evaluation.SPLITS, file="--split")
    names, splits = [*sources] or list(datasets()), list(split or evaluation.SPLITS)
    if not {*names} <= {*datasets()}:
        refuse_given({"--check": check}, "shipped measurements")
    facts = parse_facts(fact)
    found = [
        evaluation.evaluate(name, facts, splits)
        if against is None
        else evaluation.compare_measurements(against, name, facts)
        for name in track_progress(names)
    ]
    facts.refuse_idle()
    figures = [one.figures() for one in found]
    rows = [row for one, plain in zip(found, figures, strict=True) for row in _error_rows(one, plain["splits"])]
    worse = [
        line
        for one in figures if check
        for line in evaluation.worse_figures(one, evaluation.recorded_figures(one["dataset"], splits))
    ]  # fmt: skip
    return Summary(
        answer=_errors_said(rows, worse),
        columns=(
            Column("dataset", "measurements", "text"),
            Column("left_out", "predicted", "text"),
            Column("count", "count", "number", priority=2),
            *_OFF,
            Column("worst", "worst", "percent", priority=1),
            Column("inside", "inside", "chance", priority=1),
            Column("rival", "next best model", "text", priority=3),
            Column("rival_median", "its median", "percent", priority=3),
        ),
        rows=rows,
        evidence="measured: relative errors of predictions for left-out measurements" if rows else "",
        depends_on="; ".join(worse),
        details={"datasets": figures},
        plots={"predicted": lambda: evaluation.draw_evaluation(found[0])} if len(found) == 1 else {},
        notes=[line for one in found for line in one.notes()],
        exit_code=int(bool(worse)),
    )


def _error_rows(one: Evaluation, splits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table row per split of the data: relative errors of simnet's predictions, and of the best baseline's."""
    from simnet.validate.evaluation import TITLES

    rows = []
    for split, found in splits.items():
        models = {name: each["all"] for name, each in found["models"].items() if each["all"] is not None}
        ours = models.pop("ours")
        rival = min(models, key=lambda name: models[name]["median"], default=None)
        rows.append(
            {"dataset": one.name, "left_out": TITLES[split], **ours, "inside": found["coverage"],
             "asked_inside": one.coverage, "rival": rival,
             "rival_median": None if rival is None else models[rival]["median"]}
        )  # fmt: skip
    return rows


def _errors_said(rows: Sequence[Mapping[str, Any]], worse: Sequence[str]) -> str:
    if not rows:
        return (
            "Nothing can be left out: that takes 4 sizes, or 2 numbers of ranks or collectives; or, for --split links, "
            "the columns link_latency and link_bandwidth, and a setting whose hosts all have the same."
        )
    medians = [percent(end(row["median"] for row in rows)) for end in (min, max)]
    within = " to ".join(dict.fromkeys(medians))
    bad = f"; {len(worse)} figures are worse than recorded" if worse else ""
    return f"Predictions are off by {within} in the median, over {sum(row['count'] for row in rows):,} of them{bad}."


def _shipped_jobs() -> Summary:
    from simnet.validate.jobs import report

    both = report.shipped_jobs()
    found = report.job_figures(both)
    kinds = (("total", "whole iteration"), ("messages", "messages alone"), ("unseen", "predicted before measuring"))
    judged = f"{found['right']} of {found['judged']}"
    return Summary(
        answer=f"{found['jobs']} jobs in {found['settings']} settings: iterations are off by "
        f"{percent(found['total']['median'])} in the median; the fastest exchange is right in {judged}.",
        columns=(Column("part", "part", "text"), *_OFF),
        rows=[{"part": title, **{key: found[name][key] for key in ("median", "p90")}}
              for name, title in kinds],
        evidence=f"measured: {percent(found['inside'])} of the iterations are inside their 90 % interval",
        next="--out jobs.md   a page of all settings",
        details={"jobs": found},
        writers={".md": lambda path: _write(path, report.job_section())},
    )  # fmt: skip


def _local_costs() -> Summary:
    """Compare measured times of gradient reducers and DDP hooks with times predicted from their operations."""
    from simnet.cost_models.calibration.summary import error_quantiles
    from simnet.validate.local_costs import local_cost_errors, reducer_jobs

    errors, jobs = local_cost_errors(), reducer_jobs()
    gpu, whole = errors["device"] != "cpu", errors["stage"] == "all"
    parts = {
        "whole reduces, GPUs": errors[gpu & whole],
        "their stages": errors[gpu & ~whole],
        "whole hooks, processor": errors[~gpu],
        "reduces at 10 Gbit/s": jobs,
        "their iterations": jobs.assign(error=jobs["iteration_error"]),
    }
    rows = [
        {"part": part, **error_quantiles(one["error"].abs().to_numpy()),
         "inside": float(one["inside"].mean()) if "inside" in one else None}
        for part, one in parts.items()
    ]  # fmt: skip
    off = error_quantiles(parts["whole reduces, GPUs"]["error"].abs().to_numpy())
    return Summary(
        answer=f"Local costs are off by {percent(off['median'])} in the median on GPUs, {percent(off['worst'])} at "
        "most of a whole reduce; two prices of a host count, and none of a scheme.",
        columns=(Column("part", "part", "text"), Column("count", "count", "number"), *_OFF,
                 Column("worst", "worst", "percent"), Column("inside", "inside", "chance")),
        rows=rows,
        evidence="measured: reducers on three GPUs with PyTorch 1.7, each by prices of the others; hooks of "
        "PyTorch 2.13 on a processor. On a GPU with PyTorch 2 none was ever measured.",
        details={"local_costs": errors.to_dict("records"), "reducer_jobs": jobs.to_dict("records")},
    )  # fmt: skip


def _job(logs: Path, against: str, overrides: Sequence[str]) -> Summary:
    """Compare the logs of a job with the prediction of its scenario."""
    from simnet.scenario import load
    from simnet.scenario.choice_text import read_choice
    from simnet.studies.iteration import predict_job
    from simnet.validate.jobs import comparing, tables

    name, given = read_choice(against)
    skip = given.pop("skip", comparing.SKIPPED)
    if given or type(skip) is not int or skip < 0:
        raise InputError("takes one option, skip=N, of iterations at the beginning", file="--against")
    measured = tables.over_ranks(tables.read_job_logs(logs))
    loaded = load(name, overrides)
    found = comparing.compare_iterations(measured, predict_job(loaded, tables.policies_of(measured, loaded)), skip)
    figures, (first, *others) = found.figures(), [*found.sentences(), ""]
    renamed = {"measured": "measured_s", "predicted": "predicted_s", "low": "low_s", "high": "high_s"}
    totals = [percent(abs(one["error"])) for one in figures["parts"] if one["part"] == "total"]
    return Summary(
        answer=" ".join(one for one in (f"Iterations are off by {', '.join(totals)}.", first) if one),
        columns=(
            Column("policy", "policy", "text"),
            Column("part", "part", "text"),
            Column("measured_s", "measured"),
            Column("predicted_s", "predicted", interval=("low_s", "high_s")),
            Column("error", "error", "percent"),
            Column("inside", "inside", "chance"),
        ),
        rows=[{renamed.get(key, key): value for key, value in one.items()} for one in figures.pop("parts")],
        evidence="measured: medians over iterations",
        details=figures,
        notes=[one for one in others if one],
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@verb
def reproduce(
    *names: str,
    all: bool = False,
    check: bool = False,
    figures: bool = False,
    jobs: int | None = 1,
    out: str | Path | None = None,
    force: bool = False,
) -> Summary:
    """Compare published figures with simnet's, or answer an open research question.

    Parameters
    ----------
    names
        Names of reproductions, or of questions; default: all fast reproductions.

        `simnet list questions` has the questions; a folder with a question.yaml is one too.
    all
        Include slow reproductions and questions.
        Takes half an hour on two cores; a question of an hour is left out.
    check
        Exit with code 1 if a value is outside its tolerance, or changed.
    figures
        Draw published values and simnet's, and answers; --out is the folder.

        By default it is runs/papers. --out picture.svg is the picture of one name.
    jobs
        Number of parallel processes for questions.
        It does not change results. The default is one per CPU core; in Python one.
    out
        File for the answer, or folder for figures or the cells of a question.
        A killed question resumes from its folder; in Python nothing is written by default.
    force
        Overwrite existing files, and repeat finished cells.

    Raises
    ------
    SimnetError
        If there is none of a name.
    """
    from simnet.studies.questions.question_file import find_question, questions, read_question

    if names and all:
        raise InputError("is either names or --all", file="simnet reproduce")
    folders = {name: found for name in names if (found := find_question(name)) is not None}
    if folders and (others := {*names} - {*folders}):
        one, other = next(iter(folders)), min(others)
        raise InputError(f"takes questions alone: {one!r} is a question, {other!r} is not", file="simnet reproduce")
    one_question = len(folders) == 1 and not figures
    place = Path(USUAL_FOLDER, "papers") if out is None or out == USUAL_FOLDER else Path(out)
    folder_only = figures or place != Path(USUAL_FOLDER, "papers")
    wrong = len({*names}) != 1 if place.suffix in _DRAWN else folder_only and figures == bool(place.suffix)
    if wrong and not one_question:
        raise InputError("must be a file, a folder with --figures, or .svg or .png for one name", file="--out")
    if figures or place.suffix:
        refuse_existing([place], force, (*_DRAWN, ".md"))
    if folders:
        refuse_given({"--check": check}, "reproductions, not for questions")
        answer = _answered(folders, jobs, USUAL_FOLDER if figures else out, force)
        if one_question:
            return _saved(answer, out, force)
    else:
        answer = _reproduced(names, all, check, figures)
    if all:
        answer = _joined(
            answer,
            _answered(
                {name: one for name, one in questions().items() if not read_question(one).long},
                jobs,
                out and USUAL_FOLDER,
                force,
            ),
        )
    if figures and not place.suffix:
        _write_pictures(answer, place, force)
    return _saved(answer, out, force)


def _reproduced(names: Sequence[str], slow: bool, check: bool, figures: bool) -> Summary:
    """Return published values compared with simnet's, for the named reproductions, by default for all fast ones."""
    from simnet.validate.reproduction import MISSING, REPRODUCTIONS, page, reproduction
    from simnet.validate.reproduction.table import KINDS, values_text

    wanted = [reproduction(name) for name in dict.fromkeys(names)]
    every = wanted or [one for one in REPRODUCTIONS.values() if slow or not one.slow]
    found = {one.name: None if one.needs() else one.rows() for one in track_progress(every, 0.5 if figures else 1.0)}
    contradicting, counted = page.reproduction_summary(found)
    problems = _changed(found) if check else []
    missing = [f"{name} is left out: it {REPRODUCTIONS[name].needs()}." for name, rows in found.items() if rows is None]
    others = [] if names or slow else [name for name, one in REPRODUCTIONS.items() if one.slow]
    columns, rows = (page.value_table if len(found) == 1 else page.outcome_table)(found)
    papers = {one.paper for one in every}
    return Summary(
        answer=f"{'; '.join(problems)}. {counted}" if problems else counted,
        columns=columns,
        rows=rows,
        evidence=contradicting,
        next=f"--all has {len(others)} more, in minutes; simnet reproduce NAME has every value" if others else "",
        details={
            "reproductions": [REPRODUCTIONS[name].figures(one) for name, one in found.items()],
            "slow": others,
            "missing": [one._asdict() for one in MISSING],
        },
        plots={name: partial(_picture, REPRODUCTIONS[name], one) for name, one in found.items() if one},
        notes=[
            *missing,
            *(REPRODUCTIONS[name].note for name in found if len(found) == 1),
            *(f"{kind}: {meaning}." for kind, meaning in KINDS.items()),
            *(f"Left out: {one.paper}, {one.what}: {one.why}." for one in MISSING if one.paper in papers),
        ],
        writers={
            ".csv": lambda path: _write(path, values_text(found)),
            ".md": lambda path: _write(path, page.page(found)),
        },
        exit_code=int(bool(problems)),
    )


def _write_pictures(answer: Summary, place: Path, force: bool) -> None:
    """Write the pictures of an answer, and a page that shows them, into a folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with stage_files([place], force, (*_DRAWN, ".md")) as staged:
        folder = staged / place.name
        folder.mkdir()
        answer.writers[".md"](folder / "index.md")
        for name in track_progress(answer.plots):
            drawn = answer.plot(name)
            for kind in _DRAWN:
                drawn.save(folder / f"{name}{kind}")
    terminal.say(f"wrote {place}")


def _picture(one: Reproduction, rows: Sequence[Row]) -> Plot:
    from simnet.validate.reproduction.pictures import picture

    return picture(one, rows)


def _saved(answer: Summary, out: str | Path | None, force: bool) -> Summary:
    """Return an answer; if `out` is a file rather than a folder, first write the answer to it."""
    if out is not None and Path(out).suffix:
        answer.save(out, force=force)
        terminal.say(f"wrote {out}")
    return answer


def _answered(folders: Mapping[str, Path], jobs: int | None, out: str | Path | None, force: bool) -> Summary:
    """Answer open research questions by simulation; return the answer to one, or a table of answers to several."""
    from simnet.studies.questions.question_answer import questions_page

    found = {folder.resolve().name: _open_question(folder, jobs, out, force) for folder in folders.values()}
    first, *others = found.values()
    table = Summary(
        answer=f"{len(found)} open questions are answered.",
        columns=[Column("name", "question", "text"), Column("answer", "answer", "text")],
        rows=[{"name": name, "answer": one.answer} for name, one in found.items()],
        details={"questions": {name: one.details for name, one in found.items()}},
    )
    return replace(
        table if others else first,
        plots={name: one.plot for name, one in found.items()},
        writers={".md": lambda path: _write(path, questions_page(found))},
        exit_code=max(one.exit_code for one in found.values()),
    )


def _joined(papers: Summary, answers: Summary) -> Summary:
    """Return the answer on reproduced papers, extended by the answers to open questions."""

    def pages(path: Path) -> None:
        answers.writers[".md"](path)
        text = path.read_text(encoding="utf-8")
        papers.writers[".md"](path)
        _write(path, f"{path.read_text(encoding='utf-8')}\n{text}")

    return replace(
        papers,
        details={**papers.details, **answers.details},
        plots={**papers.plots, **answers.plots},
        notes=[*papers.notes, *(f"{row['name']}: {row['answer']}" for row in answers.rows)],
        writers={**papers.writers, ".md": pages},
        exit_code=max(papers.exit_code, answers.exit_code),
    )


def _open_question(folder: Path, jobs: int | None, out: str | Path | None, force: bool) -> Summary:
    """Run the grid of simulations that the folder of an open question describes, and return the answer."""
    from simnet.studies.questions.question_answer import answer_question
    from simnet.studies.questions.question_file import QUESTION_FILE, read_question
    from simnet.studies.sweeping.answer import GridAnswer

    asked, fields = read_question(folder), {"name": folder.resolve().name}
    place = None if out is None else USUAL_FOLDER if Path(out).suffix else out
    axes, seeds = list(asked.grid.values()), asked.seeds
    if not axes:
        axes, seeds = [f"seed={','.join(map(str, range(seeds)))}"], 1
    try:
        found = run(asked.scenario, policies=asked.policies, seeds=seeds, grid=axes, set={**asked.set, **fields},
                    jobs=jobs, out=place, force=force)  # fmt: skip
    except InputError as error:
        raise InputError(str(error), file=str(folder / QUESTION_FILE)) from None
    assert isinstance(found, GridAnswer)
    return answer_question(asked, found)


def _changed(found: Mapping[str, Sequence[Row] | None]) -> list[str]:
    """Return messages on values that unexpectedly pass or fail their tolerance, or differ from the reference values."""
    from simnet.validate.reproduction.table import changed

    outside = [f"{name}: {row.what}" for name, rows in found.items() for row in rows or () if row.fails]
    others = [f"{name}: {what}" for name, rows in found.items() if rows for what in changed(name, rows)]
    told = (("Outside its tolerance", outside), ("Changed", others))
    return [f"{said}: {'; '.join(values)}" for said, values in told if values]


for _verb, _example in ((validate, "h100_cluster01_multi --split sizes"), (reproduce, "artopk-table-vi --check")):
    vars(_verb).update(panel="Check", example=_example)
