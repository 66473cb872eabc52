"""The command: so many inputs for each reader, from a seed that is drawn and printed."""

import argparse
import math
import multiprocessing
import random
import secrets
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from fuzz.guarding import MOST_BYTES, MOST_SECONDS, limit_memory, wrong
from fuzz.readers import READERS


def made(reader, seed, index, folder):
    """Write an input of a reader into an empty folder."""
    # A text, as that of a tuple would differ from process to process.
    READERS[reader].make(random.Random(f"{seed} {reader} {index}"), folder)


def fuzz(reader, seed, indices, minutes, at, found):
    """Read inputs one after the other, in this process; put the index and fault of each wrong one into a queue.

    The index of the one that is read stands in `at`, and behind the last what follows on it.
    """
    with tempfile.TemporaryDirectory() as folder:
        READERS[reader].make(random.Random("warm"), _empty(folder))
        wrong(lambda: READERS[reader].read(Path(folder, "in")))
    limit_memory()
    until = time.process_time() + 60 * minutes
    for index in indices:
        at.value = index
        if time.process_time() > until:
            break
        with tempfile.TemporaryDirectory() as folder:
            inside = _empty(folder)
            made(reader, seed, index, inside)
            if fault := wrong(partial(READERS[reader].read, inside)):
                found.put((index, fault))
    else:
        at.value = indices.stop
    found.put(None)


def _empty(folder):
    inside = Path(folder, "in")
    inside.mkdir()
    return inside


def main():
    """Fuzz readers; exit with 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="of each reader")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of CPU time for each reader, at most")
    parser.add_argument("--seed", type=int, default=None, help="of all inputs; drawn if not given")
    parser.add_argument("--first", type=int, default=0, help="index of the first input")
    parser.add_argument("--reader", choices=READERS, action="append", help="only this one; all if not given")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that are wrong, of each fault the first")
    given = parser.parse_args()
    seed = secrets.randbelow(10**9) if given.seed is None else given.seed
    print(
        f"seed {seed}, {given.inputs:,} inputs per reader, each {MOST_SECONDS} s and {MOST_BYTES >> 30} GiB at most",
        flush=True,
    )
    failed = 0
    for reader in given.reader or READERS:
        began, faults = time.monotonic(), {}
        context = multiprocessing.get_context("fork")
        at, found = context.Value("q", given.first), context.SimpleQueue()
        indices, ended = range(given.first, given.first + given.inputs), False
        process = context.Process(target=fuzz, args=(reader, seed, indices, given.minutes, at, found))
        process.start()
        while True:
            while not found.empty():
                if (told := found.get()) is None:
                    ended = True
                else:
                    faults.setdefault(told[1], []).append(told[0])
            if not process.is_alive() and found.empty():
                break
            process.join(0.1)
        if not ended:
            faults[f"the process ended with {process.exitcode}"] = [at.value]
        inputs = at.value - given.first + (not ended)
        print(f"{reader}: {sum(map(len, faults.values()))} of {inputs:,} wrong, {time.monotonic() - began:.0f} s")
        for fault, places in faults.items():
            print(f"  {len(places)} times {fault}")
            print(
                f"    PYTHONPATH=tests python -m fuzz --reader {reader!r} --seed {seed} --first {places[0]} --inputs 1"
            )
            if given.keep is not None:
                folder = given.keep / reader / f"{seed}-{places[0]}"
                folder.mkdir(parents=True, exist_ok=True)
                made(reader, seed, places[0], folder)
        failed += bool(faults)
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
