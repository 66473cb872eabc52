"""``simnet convert``: traces, and exchanges of a scenario or collective, as files for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from simnet.base import units
from simnet.base.errors import InputError, check_choice, suggest_names
from simnet.report.summary import Summary
from simnet.scenario.finding import shipped
from simnet.scenario.marked_fields import Fields
from simnet.verbs.request import Overrides, Words, set_texts, verb, word_list

if TYPE_CHECKING:
    from simnet.scenario import Scenario
    from simnet.studies.exporting import Exported
    from simnet.studies.timed_collectives import CollectiveAsked

_ENDINGS = {".goal": "goal", ".csv": "csv", ".xml": "simgrid", ".npz": "trace"}
# The keys of ``--part`` for each file format.
_PARTS = {
    "trace": ("steps", "workers", "entries", "per-worker", "every"),
    "simgrid": ("iteration", "duration", "routing"),
    **dict.fromkeys(("goal", "chakra", "csv"), ("exchange", "iteration", "compute")),
}


@verb
def convert(
    source: str,
    target: str,
    *,
    to: str | None = None,
    part: Words = (),
    dtype: str | None = None,
    size: float | str | None = None,
    set: Overrides = (),
    force: bool = False,
    **fields: Unpack[Fields],
) -> Summary:
    """Write a trace, an exchange or a network as a file for another tool.

    Parameters
    ----------
    source
        A trace, scenario, or collective (all_reduce:ring).
    target
        File to write; for a trace or Chakra a folder.
    to
        Format: goal, chakra, csv, simgrid or trace.
    part
        Part of it: steps=0:200 or exchange=AG,iteration=3.
    dtype
        Type of a trace: fp32, fp16 or bf16.
    size
        Size of the whole vector of a collective, such as 64MiB.

    Raises
    ------
    InputError
        If something cannot be read, written or expressed.
    """
    from simnet.studies import trace_files
    from simnet.studies.timed_collectives import collective_asked

    out, chosen = Path(target), _parts(part)
    of_trace = trace_files.is_trace(source)
    kind: Any = to or _ENDINGS.get(out.suffix) or ("trace" if of_trace else None)
    if kind is None or kind not in _PARTS:
        said = "is missing, and the ending of the file does not say it; it is" if kind is None else "must be"
        got = "" if kind is None else f", got {kind!r}"
        raise InputError(f"{said} one of {', '.join(_PARTS)}{got}", file="--to")
    for name in chosen:
        check_choice(name, f"part of {kind}", _PARTS[kind], file="--part")
    if of_trace:
        said = trace_files.convert_trace(source, out, chosen, dtype, seed=int(fields.get("seed") or 0), force=force)
        return Summary(answer=f"{target}: {said}.", next=f"simnet show {target}")
    if (asked := collective_asked(source)) is not None:
        done = _write_collective(asked, source, kind, out, size, fields.get("workers"), force)
    else:
        done = _write_scenario(_read_scenario(source, set, fields), kind, out, chosen, dtype, force)
    missing = [f"Not in it: {one}" for one in done.missing]
    then = "show" if kind == "trace" else "time"
    return Summary(answer="\n".join([f"{target}: {done.what}.", *missing]), next=f"simnet {then} {target}")


def _write_collective(
    asked: CollectiveAsked, source: str, kind: Any, out: Path, size: float | str | None, workers: Any, force: bool
) -> Exported:
    from simnet.scenario import load
    from simnet.studies.exporting import ExportedSchedule, write_schedule
    from simnet.studies.timed_collectives import message_sizes

    if kind not in ("goal", "chakra", "csv"):
        said = f"a collective has no network and no gradients; it is written as goal, chakra or csv, not {kind}"
        raise InputError(said)
    sizes = message_sizes(size)
    if len(sizes) != 1 or workers is None:
        missing = "--workers" if len(sizes) == 1 else "--size"
        raise InputError(f"is missing; {source} needs --workers and one --size", file=missing)
    count = load("base", workers=workers).config.workers
    sent = ExportedSchedule(asked.schedule(count, sizes[0]), f"{asked.found().name}_{count}", [])
    return write_schedule(sent, kind, out, force=force)


def _read_scenario(source: str, overrides: Overrides, fields: Fields) -> Scenario:
    from simnet.collectives import registry
    from simnet.scenario import load
    from simnet.traces import trace_names

    if source not in shipped() and not Path(source).exists():
        known = [*shipped(), *(one.name for one in registry.all_collectives()), *trace_names()]
        said = f"there is no {source!r}, nor a file of that name: {suggest_names(source, known)}"
        raise InputError(said, file="SOURCE")
    return load(source, set_texts(overrides), **fields)


def _write_scenario(
    scenario: Scenario, kind: Any, out: Path, chosen: Mapping[str, str], dtype: str | None, force: bool
) -> Exported:
    from simnet.studies import exporting, options, trace_files

    iteration = int(chosen.get("iteration", 0))
    if kind == "trace":
        every = int(chosen.get("every", 20))
        said = trace_files.write_synthetic(scenario, out, dtype or "fp32", every=every, force=force)
        return exporting.Exported(said, [])
    if kind == "simgrid":
        duration = options.quantity(chosen.get("duration"), "--part", units.seconds)
        routing: Any = chosen.get("routing", "Full")
        check_choice(routing, "routing", exporting.ROUTING, file="--part")
        return exporting.write_network(
            scenario, out, iteration=iteration, duration=duration, routing=routing, force=force
        )
    sent = exporting.exchange(scenario, chosen.get("exchange"), iteration, compute="compute" in chosen)
    return exporting.write_schedule(sent, kind, out, force=force)


def _parts(part: Words) -> dict[str, str]:
    """Return the values of the ``--part`` options by name."""
    pairs = (one.partition("=") for one in word_list(part) or () if one)
    return {name.strip(): value.strip() for name, _, value in pairs}
