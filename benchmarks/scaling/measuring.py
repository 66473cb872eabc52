"""What a piece of work costs, measured in a process of its own that may take so long and no longer."""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from scaling.programs import peak_memory

REPETITIONS, SHORT = 3, 1.0
"""How often work is timed that takes less than so many seconds; longer work is timed once."""

READY = "ready"

Prepare: TypeAlias = Callable[[], Callable[[], Callable[[], Any]]]
"""Does what is done once, and returns what is done before each repetition, which returns the work to time."""


@dataclass(frozen=True)
class Cost:
    """What work cost.

    Parameters
    ----------
    seconds : float
        CPU time, the least of the repetitions; nan where it was left out.
    memory : float
        Bytes by which the first repetition raised the memory in use at its peak; nan where that is not known.
    value : Any
        What the work returned, or the program printed.
    why : str
        Why there are no figures; empty where there are.
    wall : float
        Seconds by the clock on the wall, of a program; nan of other work.
    """

    seconds: float = math.nan
    memory: float = math.nan
    value: Any = None
    why: str = ""
    wall: float = math.nan


def measured(prepare: Prepare, seconds: float, preparation: float = 120.0) -> Cost:
    """Measure work in a fork of this process, which has imported and compiled everything already.

    Parameters
    ----------
    prepare : callable
        See `Prepare`. What the work returns must fit into JSON.
    seconds : float
        How long a repetition may take, by the clock on the wall.
    preparation : float
        How long what precedes it may take.
    """
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            try:
                _work(prepare, out)
            except Exception as error:
                print(json.dumps({"why": f"{type(error).__name__}: {error}"[:120].splitlines()[0]}), file=out)
        # Nothing of the parent is to be written or tidied up twice.
        os._exit(0)
    os.close(writing)
    try:
        return _costs(_Lines(reading), seconds, preparation)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _costs(lines: _Lines, seconds: float, preparation: float) -> Cost:
    """Read what a fork says: that it is ready, then what a repetition cost, or why it could not go on; and so forth."""
    best: Cost | None = None
    for _ in range(REPETITIONS):
        said = lines.next(preparation)
        if said == READY:
            said, patience = lines.next(seconds), f"takes more than {seconds:g} s"
        else:
            patience = f"preparing it takes more than {preparation:g} s"
        if said is None:
            return best or Cost(why="the process ended" if lines.ended else patience)
        cost = Cost(**json.loads(said))
        if cost.why:
            return cost
        if best is None:
            best = cost
        elif cost.seconds < best.seconds:
            best = Cost(cost.seconds, best.memory, cost.value)
        if cost.seconds > SHORT:
            break
    assert best is not None
    return best


def _work(prepare: Prepare, out: Any) -> None:
    fresh = prepare()
    for _ in range(REPETITIONS):
        call = fresh()
        gc.collect()
        print(READY, file=out, flush=True)
        before = peak_memory(reset=True)
        start = time.process_time()
        value = call()
        taken = time.process_time() - start
        peak = peak_memory()
        memory = math.nan if before is None or peak is None else peak - before
        print(json.dumps({"seconds": taken, "memory": memory, "value": value}), file=out, flush=True)
        del call


class _Lines:
    """Lines from a pipe, each waited for so many seconds at most."""

    def __init__(self, source: int) -> None:
        self._source, self._held, self.ended = source, b"", False

    def next(self, seconds: float) -> str | None:
        until = time.monotonic() + seconds
        while b"\n" not in self._held:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._source], [], [], left)[0]:
                return None
            more = os.read(self._source, 65536)
            if not more:
                self.ended = True
                return None
            self._held += more
        line, self._held = self._held.split(b"\n", 1)
        return line.decode()


def whole(command: list[str], seconds: float) -> Cost:
    """Measure a program from its start to its end: CPU time and peak memory of its processes, what it prints as JSON.

    A program whose last line is no JSON has no value. CPU time leaves out what processes did that it did not wait for.
    """
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return Cost(why=f"takes more than {seconds:g} s")
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        last = (err.strip().splitlines() or ["no message"])[-1]
        return Cost(why=f"ended with code {process.returncode}: {last[:120]}")
    try:
        value = json.loads(out.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        value = None
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = value.get("memory") if isinstance(value, dict) else None
    return Cost(taken, math.nan if memory is None else memory, value, wall=wall)
