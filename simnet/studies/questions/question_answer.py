"""Answer to an open question: a comparison of series, such as policies, in each setting of a grid.

The grid gives settings; within each, *series* (the policies, or the values of one axis) are compared. All series of a
seed meet the same gradients and weather, so their differences are paired seed by seed.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice
from simnet.base.units import finite
from simnet.report.paired import TIE, Estimate, contest, estimate
from simnet.report.summary import Column, Plot, Summary, Unit, common_unit, interval_text, percent, with_unit
from simnet.studies.fastest import GridTimes, axis_heads, group_places, value_text, where_fastest
from simnet.studies.questions.question_file import QUESTION_FILE, SERIES, ColumnComparison, Question
from simnet.studies.sweeping.answer import GridAnswer
from simnet.studies.sweeping.grid import AxisColumn, moving_together

# Measured in training whether or not what is exchanged has settled.
_TRAINED = (
    *("accuracy", "worst_worker_accuracy", "best_accuracy", "loss", "best_loss"),
    *("iterations_to_target", "time_to_target_s"),
)


class Effect(NamedTuple):
    """Difference between two series, such as policies, in a setting of a grid, with its 95 % interval.

    It is relative (0.1 is 10 % more), or of a share the difference in percentage points over 100.
    """

    setting: tuple[Any, ...]
    difference: Estimate


def answer_question(question: Question, found: GridAnswer) -> Summary:
    """Return the answer to a question, computed from the cells of its grid.

    Raises
    ------
    InputError
        If the question names a series or a column that the cells do not have.
    """
    left_out = {"", found.bound} - {name for one in question.compare for name in one.series}
    table = found.cells[~found.cells["policy"].isin(left_out)]
    table = table.map(lambda value: value.strip("'\"") if isinstance(value, str) else value)
    factors = _factors(table, question.grid)
    table = table.assign(**{one.name: one.values for one in factors.values()})
    check_choice(question.series, "axis", factors, file=QUESTION_FILE, field="series")
    series = factors[question.series]
    settings = [one for one in factors.values() if one is not series and len({*one.values}) > 1]
    names = list(dict.fromkeys(map(series.text, series.values)))
    sentences, columns, rows = list[str](), list(axis_heads(settings)), dict[tuple[Any, ...], dict[str, Any]]()
    effects: dict[str, list[dict[str, Any]]] = {}
    numbered = series.numeric and not series.unit
    shown = list(dict.fromkeys(one.column for one in question.compare))
    for one in question.compare:
        values = _values(table, one, series, settings)
        column = with_unit(Column(one.column, one.label, one.unit))
        new = not any(each.name.endswith(f" {one.column}") for each in columns)
        for name in names if new else ():
            own, ends = f"{name} {one.column}", (f"{name} {one.column} low", f"{name} {one.column} high")
            heading = f"{series.heading} {name}" if numbered else name
            heading += f" {one.label}" if len(shown) > 1 else ""
            columns.append(Column(own, heading, column.unit, interval=ends, interval_of="95 %"))
            for setting, each in values.items():
                row = rows.setdefault(setting, dict(zip([axis.name for axis in settings], setting, strict=True)))
                row |= dict(zip((own, *ends), _mean(each.get(name)), strict=True))
        if one.against:
            compared = _effects(one, values, names, column.unit)
            sentences += [
                _effect_text(f"{series.heading} {name}" if numbered else name, one, each, settings, len(values))
                for name, each in compared.items()
            ]
            effects |= {
                f"{name}, {one.label}": [{"setting": list(one.setting), **one.difference._asdict()} for one in each]
                for name, each in compared.items()
            }
        elif one.reach is not None:
            sentences.append(_reach_text(one, values, names, settings, column.unit))
        else:
            sentences.append(f"{one.label.capitalize()}: {_least(values, settings, column.unit)}")
    if lost := int(found.cells["status"].isin(["refused", "failed"]).sum()):
        sentences.append(f"{lost} of {len(found.cells)} results are missing.")
    return Summary(
        answer=" ".join(sentences),
        columns=columns,
        rows=[*rows.values()],
        evidence=f"{found.evidence}. Over {question.seeds} seeds, paired by seed; 95 % intervals (Student t)",
        assumed="; ".join(filter(None, (found.assumed, question.limits))),
        details={"question": question.question, "source": question.source, "effects": effects, **found.details},
        plots={"question": lambda: _figure(question, settings, columns, [*rows.values()])},
        notes=found.notes,
        exit_code=found.exit_code,
    )


def questions_page(found: Mapping[str, Summary]) -> str:
    """Return a Markdown page with questions, their answers, and links to figures in the same folder."""
    text = "# Open questions\n"
    for name, one in found.items():
        text += f"\n## {one.details['question']}\n\n{one.answer}\n\n![{one.details['question']}]({name}.svg)\n\n"
        text += f"Why it is open: {one.details['source']}. Evidence: {one.evidence}. Assumed: {one.assumed}. "
        text += f"`simnet reproduce {name}` runs it.\n"
    return text


def _factors(table: pd.DataFrame, grid: Mapping[str, str]) -> dict[str, AxisColumn]:
    """Return the axes of a grid, and the policies, as columns by name. Axes that vary together share a column."""
    found, at = dict[str, AxisColumn](), 1
    for label, text in grid.items():
        end = at + len(moving_together(text))
        found[label] = _joint_axis(table.iloc[:, at:end], label)
        at = end
    return found | {SERIES: AxisColumn(SERIES, table[SERIES].tolist())}


def _joint_axis(fields: pd.DataFrame, label: str) -> AxisColumn:
    """Join axes that vary together into one column of texts; an axis that follows from earlier ones is left out."""
    apart = [
        name
        for at, name in enumerate(fields.columns)
        if not at or len(fields.iloc[:, : at + 1].drop_duplicates()) > len(fields.iloc[:, :at].drop_duplicates())
    ]
    first, *others = apart
    if not others:
        return AxisColumn(str(first), fields[first].tolist(), label)
    texts = [", ".join(map(str, row)) for row in zip(*(fields[name].tolist() for name in apart), strict=True)]
    return AxisColumn(label, texts, label)


def _values(
    table: pd.DataFrame, one: ColumnComparison, series: AxisColumn, settings: Sequence[AxisColumn]
) -> dict[tuple[Any, ...], dict[str, Floats]]:
    """Return the values of a column for all seeds, by setting and by series, without series that lack a seed."""
    check_choice(one.column, "column", table.columns.tolist(), file=QUESTION_FILE, field="compare")
    counts = table["status"].eq("done") | (
        table["status"].eq("unsettled") & (one.column in _TRAINED or not one.settled)
    )
    numbers = table[one.column].where(counts).astype("float64")
    table = table.assign(value=numbers, name=list(map(series.text, series.values)))
    by = [axis.name for axis in settings]
    found: dict[tuple[Any, ...], dict[str, Floats]] = {}
    for setting, group in table.groupby(by, sort=False) if by else [((), table)]:
        each = group.pivot_table(index="seed", columns="name", values="value", aggfunc="first", dropna=False)
        # A mean of only those seeds that reached a target would be too short.
        found[setting] = {str(name): own.to_numpy() for name, own in each.items() if np.isfinite(own).all()}
    return found


def _mean(values: Floats | None) -> tuple[float | None, float | None, float | None]:
    """Return a mean and the ends of its interval. The ends are None for fewer than two values, the mean for none."""
    mean, low, high = map(finite, estimate(np.empty(0) if values is None else values))
    return mean, low, high


def _least(
    values: Mapping[tuple[Any, ...], Mapping[str, Floats]], settings: Sequence[AxisColumn], unit: Unit | None
) -> str:
    """Return a text that says which series has the least value in which setting."""
    cells = []
    for setting, each in values.items():
        won = contest(each) if each else None
        first = [] if won is None else [won.policy, *won.tied_with]
        cells.append(GridTimes(setting, {name: float(one.mean()) for name, one in each.items()}, first))
    return where_fastest(cells, settings, "", unit or "number") or "no series has a value in every seed."


def _reach_text(
    one: ColumnComparison,
    values: Mapping[tuple[Any, ...], Mapping[str, Floats]],
    names: Sequence[str],
    settings: Sequence[AxisColumn],
    unit: Unit | None,
) -> str:
    """Return a sentence on which series first reaches the value `one.reach`, and on which axis that depends."""
    reach, higher = one.reach or 0.0, one.better == "higher"
    first: dict[tuple[Any, ...], int] = {}
    for setting, each in values.items():
        first[setting] = len(names)
        while first[setting]:
            mean, low, high = _mean(each.get(names[first[setting] - 1]))
            worst = mean if low is None else low if higher else high
            if worst is None or (worst < reach if higher else worst > reach):
                break
            first[setting] -= 1

    def places(axis: int, value: Any) -> list[int]:
        return sorted({at for setting, at in first.items() if setting[axis] == value})

    def spread(axis: int) -> int:
        found = [places(axis, setting[axis]) for setting in first]
        return sum(each[-1] - each[0] for each in found)

    telling = min(range(len(settings)), key=spread, default=None)
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for setting, at in first.items():
        starts = [at] if telling is None else places(telling, setting[telling])
        reached = [names[at] for at in starts if at < len(names)]
        texts = [f"from {' or '.join(reached)} on"] * bool(reached) + ["nowhere"] * (len(names) in starts)
        groups.setdefault(" or ".join(texts), []).append(setting)
    where = group_places([*groups.values()], settings, len(first))
    parts = [f"{text} {at}".rstrip() for text, at in zip(groups, where, strict=True)]
    goal = percent(reach) if unit in ("percent", "chance") else interval_text(reach, unit=unit or "number")
    return f"{one.label.capitalize()} is {goal} or {one.better} {'; '.join(parts)}."


def _effects(
    one: ColumnComparison,
    values: Mapping[tuple[Any, ...], Mapping[str, Floats]],
    names: Sequence[str],
    unit: Unit | None,
) -> dict[str, list[Effect]]:
    """Estimate how much each series, such as a policy, differs from the best reference series in the same setting."""
    for name in (*one.against, *one.series):
        check_choice(name, "series", names, file=QUESTION_FILE, field="compare")
    compared = one.series or [name for name in names if name not in one.against]
    sign = 1.0 if one.better == "lower" else -1.0
    found: dict[str, list[Effect]] = {name: [] for name in compared}
    for setting, each in values.items():
        rivals = [each[name] for name in one.against if name in each]
        if not rivals:
            continue
        base = min(rivals, key=lambda values: sign * float(values.mean()))
        for name in [name for name in compared if name in each]:
            if unit in ("percent", "chance"):
                difference = estimate(each[name] - base, len(compared))
            else:
                difference = Estimate(*map(math.expm1, estimate(np.log(each[name] / base), len(compared))))
            found[name].append(Effect(setting, difference))
    return found


def _effect_text(
    name: str, one: ColumnComparison, effects: Sequence[Effect], settings: Sequence[AxisColumn], total: int
) -> str:
    """Return a sentence that says by how much a series is better, in which settings, and in which it is not."""
    rival = " or ".join(one.against) if len(one.against) < 3 else f"the best of {len(one.against)} others"
    if not effects:
        return f"{name} against {rival}: nothing to compare."
    worse = {"lower": "higher", "higher": "lower"}[one.better]
    sign = 1.0 if one.better == "lower" else -1.0
    groups: dict[str, list[Effect]] = {one.better: [], worse: [], "": []}
    for effect in effects:
        low, high = sorted(sign * end for end in effect.difference[1:])
        near = abs(effect.difference.mean) < TIE
        groups["" if near else one.better if high < 0 else worse if low > 0 else ""].append(effect)
    known = {way: members for way, members in groups.items() if members}
    places = group_places([[effect.setting for effect in members] for members in known.values()], settings, total)
    points = with_unit(Column(one.column, one.label, one.unit)).unit in ("percent", "chance")
    parts = []
    for (way, members), where in zip(known.items(), places, strict=True):
        # Whether an interval still admits a difference of more than 1 %.
        unsure = any(abs(end) > 0.01 for one in members for end in one.difference[1:])
        difference = f"no difference that {'these seeds show' if unsure else 'matters'}"
        parts.append(f"{f'{way} by {_size(members, points)}' if way else difference} {where}".rstrip())
    if len(effects) < total:
        parts.append(f"not compared in {total - len(effects)} of {total} cells, where a seed has no value")
    return f"{name} against {rival}: {one.label} {'; '.join(parts)}."


def _size(effects: Sequence[Effect], points: bool) -> str:
    """Return the differences between two series as text: their range over settings, and the ends of the intervals."""
    means = sorted(abs(one.difference.mean) for one in effects)
    ends = sorted(abs(end) for one in effects for end in one.difference[1:])
    unit = " points" if points else " %"
    between = " to ".join(dict.fromkeys(map(_hundreds, (means[0], means[-1]))))
    return f"{between}{unit} (95 %: {_hundreds(ends[0])} to {_hundreds(ends[-1])})"


def _hundreds(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 1 else f"{100 * share:.2g}"


_PANELS_IN_A_ROW, _WRAP = 4, 28


def _figure(
    question: Question, settings: Sequence[AxisColumn], columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> Plot:
    """Draw the first column's means and intervals over the longest numeric axis, in a panel per value of other axes."""
    # Without an axis of numbers, settings stand one below the other.
    from simnet.report.drawing import COLOURS, canvas, draw_table, plot, scale

    columns = [one for one in columns[len(settings) :] if one.name.endswith(f" {question.compare[0].column}")]
    across = max((one for one in settings if one.numeric), key=lambda one: len({*one.values}), default=None)
    if across is None:
        rows = [{**row, "setting": ", ".join(one.text(row[one.name]) for one in settings)} for row in rows]
        columns = [Column("setting", "setting", "text"), *columns]
        return draw_table(Summary(answer=question.question, columns=columns, rows=rows))._replace(name="question")
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        others = [value_text(row[one.name], one) for one in settings if one is not across]
        panels.setdefault(", ".join(others), []).append(row)
    known = [row[one.name] for one in columns for row in rows if row.get(one.name) is not None]
    unit, factor = common_unit(columns[0].unit or "number", known)
    values = list[Any](dict.fromkeys(across.values))
    width = min(len(panels), _PANELS_IN_A_ROW)
    height = -(-len(panels) // width)
    size = max(2.6 * width, 6.4), max(2.5 * height, 3.2) + 0.8
    with canvas(*size, height, width, squeeze=False, sharex=True, sharey=True) as (figure, grid):
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes, (title, group) in zip(grid.flat, panels.items(), strict=False):
            for one, colour in zip(columns, itertools.cycle(COLOURS), strict=False):
                low, high = one.interval or ("", "")
                there = [row for row in group if row.get(one.name) is not None]
                middle = np.array([row[one.name] for row in there]) / factor
                ends = np.array([[row.get(low), row.get(high)] for row in there], dtype=np.float64).T / factor
                off = np.nan_to_num(np.abs(ends - middle)) if there else None
                places = [values.index(row[across.name]) for row in there]
                name = one.heading.removesuffix(f" {question.compare[0].label}")
                axes.errorbar(places, middle, off, fmt="o-", color=colour, markersize=4, elinewidth=1, label=name)
            axes.set_title(textwrap.fill(title, _WRAP), fontsize=8)
        axes.set_xticks(range(len(values)), [across.text(one).replace(" ", "\n") for one in values])
        if columns[0].unit not in ("percent", "chance"):
            scale(grid.flat[0].yaxis, np.array(known, dtype=np.float64) / factor)
        figure.supylabel(f"{question.compare[0].label} [{unit}]" if unit else question.compare[0].label)
        figure.supxlabel(across.heading)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        asked = textwrap.fill(question.question, int(12 * size[0]))
        figure.legend(handles, labels, loc="outside upper left", ncols=3, title=asked, alignment="left")
        return plot("question", question.question, question.source, figure)
