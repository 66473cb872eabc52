"""A decision for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from simnet import sparsifier_models
from simnet.base.units import (
    NOT_DETERMINED,
    WIDEST,
    determined,
    finite,
    format_bandwidth,
    format_bytes,
    format_seconds,
    format_within,
    interval_figures,
)
from simnet.policies import Candidate
from simnet.report import learning, run_setup, wording
from simnet.report.cost_summary import throughput_sentences
from simnet.report.paired import fastest
from simnet.report.tables import empty_table
from simnet.report.wording import ahead
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.decision import Decision, Flip, Row
from simnet.studies.choosing.memory_filter import HEADING, NOTHING, Held
from simnet.studies.choosing.operating_point import FORMATS, OperatingPoint
from simnet.studies.choosing.problem import Problem
from simnet.studies.choosing.sampled_exchanges import KEPT_EACH, kept_each, ratio, sample
from simnet.studies.codes import costs_told

HEADINGS = (
    "exchange", "time", "from", "to", "over the\nfastest", "chance to\nbe fastest", "regret of\nexchange",
    "commu-\nnicate", "select", "sent by\na worker",
)  # fmt: skip
"""Of the table."""

_MOST_BYTES_ASKED = 1024
# A correction of less is not worth a sentence.
_FAR_OFF = 0.02


def ranking(problem: Problem, decision: Decision, held: Held = NOTHING) -> Table:
    """Return the choices as a table, the fastest first, with what has not settled last, and what a worker holds."""
    sent = sent_bytes(problem, decision)
    table = empty_table(title(problem), [*HEADINGS, *([HEADING] if held.each else [])], ["exchange"])
    for place, row in enumerate(decision.rows):
        label = row.choice.label
        own = [format_bytes(sent[label]) if label in sent else "", *([held.cell(label)] if held.each else [])]
        table.add_row(*map(Text, (*cells(decision, row), *own)), style="bold" if place == 0 else "")
    for label in held.unsettled:
        own = [held.cell(label)] if held.each else []
        table.add_row(*map(Text, (label, "", "", "", "not settled", "", "", "", "", "", *own)))
    return table


def cells(decision: Decision, row: Row) -> tuple[str, ...]:
    """Return what the table says of a choice, but for what is sent, under `HEADINGS`."""
    more, tied = decision.over(row), row.choice.label in decision.tied_with
    return (
        row.choice.label,
        format_seconds(row.seconds),
        *(map(format_seconds, (row.low, row.high)) if determined(row.low, row.high) else ("-", "-")),
        "tied" if tied else f"+{100 * more:.3g} %" if row is not decision.best and math.isfinite(more) else "",
        share(row.chance),
        share(row.expected_regret),
        format_seconds(row.communicate),
        format_within(row.select, row.select_low, row.select_high),
    )


def title(problem: Problem) -> str:
    """Return what is asked, on one line."""
    point = problem.point
    links = ""
    if not math.isnan(float(point.latency)):
        links = f", {format_seconds(float(point.latency))}, {format_bandwidth(float(point.bandwidth))}"
        links += f" a node of {point.per_node} GPUs" if point.per_node > 1 else ""
    gradient = f"{format_bytes(float(point.dense_bytes))} gradient, density {100 * float(point.density):.3g} %"
    begin = "" if problem.barrier is None else f"; {run_setup.barrier_note(problem.barrier)}"
    return f"{problem.title}, {gradient}{links}; {problem.method}; device {problem.device.name}{begin}"


def sentences(problem: Problem, decision: Decision, held: Held = NOTHING) -> list[str]:
    """Return the decision in words: what, by how much, whether compression pays, what would flip it or is ruled out."""
    best = decision.best
    said = recommendation_lines(decision)
    if len(decision.rows) == 1 and held.unsettled:
        said.insert(0, sole_recommendation(best.choice.label))
    if best.seconds == 0:
        return said + held.sentences()
    ranges = decision.starts.around({row.choice.label: row.seconds for row in decision.rows})
    winners = [best.choice.label, *decision.tied_with]
    said += wording.entering_apart(ranges, winners, decision.starts.not_sampled)
    said += undetermined((row.choice.label, row.low, row.high) for row in decision.rows)
    gain = decision.gain_over_dense()
    if not math.isnan(gain):
        sparse, dense = (
            next(row.choice.label for row in decision.rows if (row.choice.kind == "sparse") == wanted)
            for wanted in (True, False)
        )
        text = (
            f"Compression pays: {sparse} is {gain:.3g} times as fast as {dense}"
            if gain > 1
            else f"Compression does not pay: {sparse} takes {1 / gain:.3g} times as long as {dense}"
        )
        if problem.passes.backward > 0:
            beside = decision.gain_over_dense(overlapped=True)
            times = f"{beside:.3g} times as fast" if beside > 1 else f"{1 / beside:.3g} times as long"
            backward = format_seconds(problem.passes.backward)
            text += f"; beside {backward} of backward pass, what is left of them is {times}"
        said.append(f"{text}.")
    if problem.passes.backward > 0 and len(decision.rows) > 1:
        said.append(_overlap_line(decision))
    if settled := [row.choice.candidate for row in decision.rows if row.choice.follows_gradients]:
        labels = ", ".join(one.label for one in settled)
        said.append(
            f"What workers send by {labels} follows the gradients; such times are means over a settled period of "
            "exchanges of synthetic ones."
        )
        said += few_kept(kept_each(decision.point), settled, corrected=True)
    said += flips_told(decision.flips)
    said.append(_selection_line(problem, decision))
    if decision.elasticities:
        parts = ", ".join(f"{name} {value:+.2f}" for name, value in decision.elasticities.items())
        said.append(f"One per cent more of each changes the time of {best.choice.label} by, in per cent: {parts}.")
    regret = decision.regret
    if regret is not None and regret.factor > 1:
        where = f"{format_seconds(regret.latency)} and {format_bandwidth(regret.bandwidth)}"
        text = f"If latency and bandwidth are off by up to {regret.factor:g} times, "
        if regret.worst > 0:
            text += (
                f"{best.choice.label} stays fastest in {100 * regret.holds:.0f} % of the range; at worst it is "
                f"{100 * regret.worst:.3g} % slower than {regret.label}, at {where}."
            )
        else:
            text += f"{best.choice.label} stays fastest."
        said.append(text)
    if not problem.passes.compute:
        said.append("Ranked is an exchange by itself: how long workers compute is not known; --compute says it.")
    rates = {row.choice.label: problem.passes.throughput(row.seconds) for row in decision.rows}
    said += throughput_sentences(rates, "computing and then exchanging")
    said += problem.passes.notes
    exchanges = [one.candidate for one in problem.among]
    said += costs_told(problem.device, exchanges, int(problem.point.workers))
    return [*said, learning.IGNORED, *held.sentences()]


def _overlap_line(decision: Decision) -> str:
    """Say that exchanges are ranked as after the backward pass, and who would be first if they overlapped it."""
    left = {row.choice.label: row.left if _can_overlap(row.choice.candidate) else row.seconds for row in decision.rows}
    first, here = fastest(left), decision.best.choice.label
    said = "Overlap: none; ranked is an exchange that begins after the backward pass. In DDP's buckets during it"
    if here in first:
        return f"{said} the first place would be the same."
    lead = ahead(left[here] / left[first[0]]) if left[first[0]] > 0 else "all of its time"
    return f"{said} {first[0]} would be fastest, {lead} before {here}."


def _can_overlap(exchange: Candidate) -> bool:
    return bool(sparsifier_models.scheme(exchange.scheme).traits.overlaps)


def recommendation_lines(decision: Decision) -> list[str]:
    """Return what to take, how likely that is right and by how much, and whether that is extrapolated."""
    best = decision.best
    if best.seconds == 0:
        return [f"{best.choice.label} takes no time: there is nothing to choose."]
    said = []
    if len(decision.rows) > 1:
        margin = lead(decision.tied_with, decision.margin, decision.rows[1].choice.label)
        others = {row.choice.label: row.chance for row in decision.rows[1:]}
        said.append(advice(best.choice.label, best.chance, best.expected_regret, margin, others, sure=best.sure))
    return said + extrapolated(decision)


def extrapolated(decision: Decision) -> list[str]:
    """Return whose times go beyond what errors were learnt from, and what that is; nothing if none does."""
    beyond = [row for row in decision.rows if row.beyond]
    if not beyond:
        return []
    every = len(beyond) == len(decision.rows)
    of = "" if every else f" of {', '.join(row.choice.label for row in beyond)}"
    return [
        f"Extrapolated: errors{of} were learnt from {beyond[0].beyond}; how far times are off beyond that is not known."
    ]


def lead(tied: Sequence[str], margin: float, second: str) -> str:
    """Return by which fraction a choice is before the second, or which others it is tied with, in words.

    Examples
    --------
    >>> lead([], 0.106, "ART-tree"), lead(["local", "AG"], 0.0, "local")
    ('10.6 % before ART-tree', 'tied with local and AG')
    """
    return f"tied with {wording.listed(tied)}" if tied else f"{100 * margin:.3g} % before {second}"


def advice(label: str, chance: float, regret: float, margin: str, others: Mapping[str, float], *, sure: bool) -> str:
    """Return what to take, and how likely that is right.

    Examples
    --------
    >>> advice("ART-ring", 0.973, 0.0011, "12 % before AG-Topk", {"AG-Topk": 0.027}, sure=True)
    'Take ART-ring: fastest with 97 %, expected regret 0.11 %; 12 % before AG-Topk.'
    >>> advice("ART-ring", 0.6, 0.02, "1 % before AG-Topk", {"AG-Topk": 0.38, "dense": 0.02}, sure=False)
    'Take ART-ring, but not for sure: fastest with 60 %, expected regret 2 %; 1 % before AG-Topk. AG-Topk with 38 %.'
    """
    doubt = "" if sure else ", but not for sure"
    said = f"Take {label}{doubt}: fastest with {share(chance)}, expected regret {share(regret)}; {margin}."
    if doubt and others:
        other = max(others, key=lambda one: others[one])
        said += f" {other} with {share(others[other])}."
    return said


def sole_recommendation(label: str) -> str:
    """Return what to take where nothing else has settled."""
    return f"Take {label}: no other exchange has settled."


def few_kept(each: float, among: Sequence[Candidate], *, corrected: bool) -> list[str]:
    """Warn if workers of a sample keep few entries for each other.

    Examples
    --------
    >>> few_kept(1.4, [Candidate("ok", "oktopk")], corrected=True)[0].startswith("A sample in which")
    True
    >>> few_kept(40.0, [Candidate("ok", "oktopk")], corrected=True)
    []
    """
    found = {one.label: ratio(one.scheme, "messages", each) for one in among if each < KEPT_EACH}
    off = {label: one for label, one in found.items() if abs(one.middle - 1) >= _FAR_OFF}
    if not off:
        return []
    parts = ", ".join(f"{label} {one.middle:.2g} times" for label, one in off.items())
    return [
        f"A sample in which a worker keeps {each:.2g} entries for each worker has regions less even than those of the "
        f"model. By what rehearsals of more entries took, messages {'count' if corrected else 'would take'}: {parts}"
        f"{'' if corrected else ' as long; a lower scale says it'}."
    ]


def undetermined(intervals: Iterable[tuple[str, float, float]]) -> list[str]:
    """Name the choices whose interval is not determined.

    Examples
    --------
    >>> undetermined([("AG", 1.0, 2.0), ("ART", 1e-3, 5e5)])
    ['Interval and regret of ART are not determined by these data: the ends are more than 100 times apart.']
    """
    names = [name for name, low, high in intervals if not determined(low, high)]
    if not names:
        return []
    return [
        f"Interval and regret of {wording.listed(names)} are {NOT_DETERMINED}: the ends are more than {WIDEST:g} "
        "times apart."
    ]


def share(value: float) -> str:
    """Return a chance or a regret in per cent, or from 1000 % on as a factor; no chance is certain but 0 and 1.

    Examples
    --------
    >>> [share(one) for one in (0.0, 0.0004, 0.062, 0.973, 0.9996, 1.0, 163.2)]
    ['0 %', '0.04 %', '6.2 %', '97 %', '> 99.9 %', '100 %', '163x']
    """
    if math.isnan(value):
        return "not determined"
    if 10 <= value < math.inf:
        return f"{value:.3g}x"
    if 0.999 < value < 1:
        return "> 99.9 %"
    return f"{100 * value:.2g} %" if value < 0.99 else f"{100 * value:.3g} %"


def figures(problem: Problem, decision: Decision, held: Held = NOTHING) -> dict[str, Any]:
    """Return the decision for programs; names end in units."""
    point, regret = problem.point, decision.regret
    sent = sent_bytes(problem, decision)
    return {
        "question": {
            "title": problem.title,
            "method": problem.method,
            "workers": int(point.workers),
            "parameters": int(point.parameters),
            "density": float(point.density),
            "latency_s": finite(float(point.latency)),
            "bandwidth_Bps": finite(float(point.bandwidth)),
            "gpus_per_node": point.per_node,
            "device": problem.device.name,
            "barrier": problem.barrier,
            "passes_s": problem.passes.compute or None,
            "compute_time": None if problem.passes.known is None else problem.passes.known.figures(),
        },
        "ranking": [
            {
                "exchange": row.choice.label,
                "scheme": row.choice.candidate.scheme,
                "options": dict(row.choice.candidate.options),
                "kind": row.choice.kind,
                "exchange_s": row.seconds,
                **interval_figures(row.low, row.high, "_s"),
                "communicate_and_wait_s": row.communicate,
                "start_low_s": None if row.spread is None else row.seconds + row.spread[0],
                "start_high_s": None if row.spread is None else row.seconds + row.spread[1],
                "select_s": row.select,
                "select_low_s": row.select_low,
                "select_high_s": row.select_high,
                "bytes_sent_by_busiest_B": sent.get(row.choice.label),
                "settled": row.choice.follows_gradients,
                "chance_of_fastest_exchange": row.chance,
                "regret_of_exchange": finite(row.expected_regret),
                **({"over_rehearsed": _over_rehearsed(row.choice, point)} if row.choice.follows_gradients else {}),
                **(problem.passes.throughput(row.seconds) or {}),
                **held.of(row.choice.label),
            }
            for row in decision.rows
        ],
        "decision": decision.best.choice.label,
        "tied_with": decision.tied_with,
        "margin_of_exchange": finite(decision.margin),
        "chance_of_fastest_exchange": decision.best.chance,
        "regret_of_exchange": finite(decision.best.expected_regret),
        "sure": decision.sure,
        "extrapolated": [row.choice.label for row in decision.rows if row.beyond],
        "too_close_to_call": not decision.sure,
        "gain_over_dense_of_exchange": finite(decision.gain_over_dense()),
        "gain_over": next((row.choice.label for row in decision.rows if row.choice.kind != "sparse"), None),
        "gain_over_overlapped_dense": finite(decision.gain_over_dense(overlapped=True)),
        "backward_s": problem.passes.backward,
        "compression_pays": bool(decision.gain_over_dense() > 1),
        "compression_pays_overlapped": bool(decision.gain_over_dense(overlapped=True) > 1),
        "flips": flip_figures(decision.flips),
        "selection_flips": [
            {"factor": one.value, "direction": "up" if one.up else "down", "exchange": one.label}
            for one in decision.selection_flips
        ],
        "elasticities": decision.elasticities,
        "misjudged": None
        if regret is None
        else {
            "factor": regret.factor,
            "worst_regret": regret.worst,
            "latency_s": regret.latency,
            "bandwidth_Bps": regret.bandwidth,
            "exchange": regret.label,
            "holds": regret.holds,
        },
        "memory": held.figures(),
    }


def sent_bytes(problem: Problem, decision: Decision) -> dict[str, float]:
    """Return the bytes that the busiest worker sends, by choice.

    Nothing is said where thresholds decide how much that is, nor for more workers than are worth a sample.
    """
    if int(problem.point.workers) > _MOST_BYTES_ASKED:
        return {}
    exact = [row.choice for row in decision.rows if row.choice.kernel_calls is not None]
    return {one.label: float(sample(one, problem.point).schedule.bytes_sent().max()) for one in exact}


def _over_rehearsed(choice: Choice, point: OperatingPoint) -> float:
    return ratio(choice.candidate.scheme, "messages", kept_each(point)).middle


def flips_told(flips: Sequence[Flip]) -> list[str]:
    """Return what would change the first place, a sentence for each."""
    return [f"{_flip_sentence(flip)}." for flip in flips]


def flip_figures(flips: Sequence[Flip]) -> list[dict[str, Any]]:
    """Return the same for programs; values in SI units."""
    return [
        {
            "quantity": one.quantity,
            "direction": "up" if one.up else "down",
            "value": one.value,
            "exchange": one.label,
        }
        for one in flips
    ]


def _flip_sentence(flip: Flip) -> str:
    shown = FORMATS[flip.quantity](flip.value)
    if flip.quantity == "workers":
        return f"{flip.label} is faster with {shown} workers"
    return f"{flip.label} is faster from a {flip.quantity} of {shown} {'up' if flip.up else 'down'}"


def _selection_line(problem: Problem, decision: Decision) -> str:
    """Return at which cost of selecting another exchange is the fastest, and whether the device may have that cost."""
    selecting = [row for row in decision.rows if row.select > 0]
    if not selecting:
        return f"Selecting costs nothing on {problem.device.name}."
    low = min(row.select_low / row.select for row in selecting)
    high = max(row.select_high / row.select for row in selecting)
    parts = []
    for flip in decision.selection_flips:
        within = " (within the interval of its time)" if low <= flip.value <= high else ""
        parts.append(f"{flip.label} from {flip.value:.3g} times {'up' if flip.up else 'down'}{within}")
    if not parts:
        return f"Whatever selecting costs, {decision.best.choice.label} stays fastest."
    return f"If selecting cost other than {problem.device.name} says, others would be faster: {', '.join(parts)}."
