"""Runs nccl-tests or OSU micro-benchmarks through the user's launcher, and keeps and parses their output."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from simnet.base.errors import InputError, refuse_values
from simnet.base.file_io import stage_files
from simnet.base.processes import exit_on_signal
from simnet.cluster.measure.plan import COLLECTIVES, OF_PAIRS, Wanted
from simnet.cost_models.calibration.readers import read_measurements, write_tidy
from simnet.cost_models.calibration.readers.conventions import mpi_convention

PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "nccl-tests": {name: f"{name}_perf" for name in COLLECTIVES},
    "osu": {
        "all_reduce": "osu_allreduce",
        "all_gather": "osu_allgather",
        "reduce_scatter": "osu_reduce_scatter",
        "broadcast": "osu_bcast",
        "alltoall": "osu_alltoall",
        "p2p_latency": "osu_latency",
        "p2p_bw": "osu_bw",
    },
}
"""Benchmark programs by suite and collective; the first suite with an installed program is used."""

_PROGRAM = "{program}"
# Time for a launcher to end its ranks before it is killed [s].
_ENDING = 10.0
_SHAPE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})", re.ASCII)


class LaunchShape(NamedTuple):
    """The number of nodes of a run, and the number of ranks on each."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int:
        """The number of ranks on all nodes."""
        return self.nodes * self.per_node


@dataclass(frozen=True)
class Benchmarks:
    """A series of benchmark runs: output file, launcher, numbers of nodes and ranks, measurements, time limit [s]."""

    # The tidy CSV to write; a folder ``<its name without ending>_logs`` next to it gets the output of the
    # programs.
    out: Path
    # The launcher, as ``mpirun -n {ranks}``, with ``{ranks}``, ``{nodes}`` and ``{per_node}``; the program
    # follows it, or replaces ``{program}``.
    launch: str
    # Shapes of each program.
    shapes: Sequence[LaunchShape]
    # Collectives and sizes.
    wanted: Wanted
    # Seconds for all programs, shared evenly; what one leaves goes to the next ones.
    limit: float
    # If true, files may be replaced.
    force: bool = False


def parse_shapes(text: str) -> list[LaunchShape]:
    """Return the launch shapes (nodes x ranks per node) in a text such as ``1x8,2x8``; InputError for invalid ones."""
    found = []
    for word in text.split(","):
        match = _SHAPE.fullmatch(word.strip())
        if match is None or (one := LaunchShape(int(match[1]), int(match[2]))).ranks < 2:
            message = f"must be nodes x ranks on each, two ranks at least, as 1x8,2x8; got {word.strip()[:40]!r}"
            raise InputError(message, file="--groups")
        found.append(one)
    return list(dict.fromkeys(found))


def benchmark_command(launch: str, collective: str, program: str, shape: LaunchShape, wanted: Wanted) -> list[str]:
    """Return the command line, split into arguments, that runs a benchmark program under the launcher."""
    filled = launch
    for name, value in (("ranks", shape.ranks), ("nodes", shape.nodes), ("per_node", shape.per_node)):
        filled = filled.replace(f"{{{name}}}", str(value))
    unknown = [one for one in re.findall(r"\{\w*\}", filled) if one != _PROGRAM]
    if unknown:
        allowed = f"{{ranks}}, {{nodes}}, {{per_node}}, {_PROGRAM}"
        raise InputError(f"has {unknown[0]}; allowed: {allowed}", file="--launch")
    with refuse_values(file="--launch", before="is no command: "):
        words = shlex.split(filled)
    inside = [one for one in words if _PROGRAM in one and one != _PROGRAM]
    if inside or words.count(_PROGRAM) > 1:
        raise InputError(f"has {_PROGRAM} inside of a word or twice; it must be one word of its own", file="--launch")
    low, high = round(wanted.smallest), round(wanted.largest)
    if Path(program).name.startswith("osu_"):
        if wanted.factor != 2:
            raise InputError(f"must grow by 2, as sizes of OSU double; got {wanted.factor:g}", file="--sizes")
        if mpi_convention(collective) in ("per_rank", "per_pair"):
            low = -(-low // shape.ranks)
            high = max(low, high // shape.ranks)
        own = [program, "-m", f"{low}:{high}"]
    else:
        own = [program, "-b", str(low), "-e", str(high), "-f", f"{wanted.factor:g}", "-g", "1"]
    at = words.index(_PROGRAM) if _PROGRAM in words else len(words)
    return [*words[:at], *own, *words[at + 1 :]]


def installed_programs() -> tuple[str, dict[str, str]]:
    """Return the first benchmark suite that is installed, with program paths by collective; InputError if none is."""
    for suite, programs in PROGRAMS.items():
        if paths := {name: path for name, program in programs.items() if (path := shutil.which(program))}:
            return suite, paths
    names = ", ".join(next(iter(programs.values())) for programs in PROGRAMS.values())
    raise InputError(f"no program of nccl-tests or OSU is on the PATH, such as {names}", file="--launch")


def run_benchmarks(benchmarks: Benchmarks, say: Callable[[str], None]) -> list[str]:
    """Run the installed programs, keep their output, write parsed rows to CSV, and return remarks.

    Programs that fail, and output that cannot be read, are reported and left out. Of one that exceeds its share of the
    time, the printed sizes are kept. `say` reports, in a line of text, each run.
    """
    wanted = benchmarks.wanted
    suite, programs = installed_programs()
    asked = {*wanted.collectives, *(() if wanted.pairs == "none" else OF_PAIRS)}
    work = [
        (shape, name, path, benchmark_command(benchmarks.launch, name, path, shape, wanted))
        for name, path in programs.items()
        for shape in ([LaunchShape(1, 2), LaunchShape(2, 1)] if name in OF_PAIRS else benchmarks.shapes)
        if name in asked and shape.nodes <= max(one.nodes for one in benchmarks.shapes)
    ]
    end = time.monotonic() + benchmarks.limit
    logs = benchmarks.out.with_name(f"{benchmarks.out.stem}_logs")
    parts: list[pd.DataFrame] = []
    left_out: list[str] = []
    with stage_files([benchmarks.out, logs], benchmarks.force, [".log"]) as folder:
        (folder / logs.name).mkdir()
        for number, (shape, name, path, words) in enumerate(work, 1):
            what = f"{Path(path).name}, {shape.nodes} x {shape.per_node} ranks"
            say(f"{number} of {len(work)}: {what}")
            log = folder / logs.name / f"{Path(path).name}_{shape.nodes}x{shape.per_node}.log"
            why, worth = _run_logged(words, log, (end - time.monotonic()) / (len(work) - number + 1))
            known = {"collective": name, "ranks": shape.ranks, "nodes": shape.nodes}
            try:
                found = read_measurements(log, facts=known) if worth else None
            except InputError as error:
                found, why = None, why or error.message
            if why:
                left_out.append(f"left out: {what}: {why}{', but for what it had printed' if found else ''}")
            if found is None:
                continue
            rows = found.rows.assign(source=f"{logs.name}/{log.name}")
            parts.append(rows)
            left_out += [f"left out: {what}, line {one.line}: {one.message}" for one in found.problems if one.dropped]
        if not parts:
            raise InputError(
                left_out[0] if left_out else "none of them is of a collective that is asked for", file=suite
            )
        rows = pd.concat(parts, ignore_index=True)
        write_tidy(rows, folder / benchmarks.out.name, left_out)
    return [*left_out, f"Written: {benchmarks.out}, {len(rows):,} rows of {suite}; {logs}"]


def _run_logged(words: Sequence[str], log: Path, limit: float) -> tuple[str, bool]:
    """Run a command with its output in a log file; return the error ("" if none) and whether the log is usable."""
    if limit <= 0:
        return "no time is left of --budget", False
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603 - the user's own launcher, without a shell
        except OSError as error:
            return f"{words[0]} cannot be started: {error.strerror}", False
    try:
        with exit_on_signal():
            code = process.wait(limit)
    except subprocess.TimeoutExpired:
        _end_launcher(process)
        # Of a line that is not complete, a number may have digits that are not there yet.
        printed = log.read_bytes()
        log.write_bytes(printed[: printed.rfind(b"\n") + 1])
        return f"took longer than {round(limit, 1):g} s, its share of --budget", True
    finally:
        if process.returncode is None:
            _end_launcher(process)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if code else []
    return (f"ended with {code}{f': {said[-1][:200]}' if said else ''}", False) if code else ("", True)


def _end_launcher(process: subprocess.Popen[bytes]) -> None:
    """End a launcher's process group by SIGTERM, so that the launcher can end remote ranks, and then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
