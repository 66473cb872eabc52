"""What goes on for long stays flat: memory, open files, temporary files and time, over runs, resumes and lost workers.

    python benchmarks/endurance.py scenarios [--count 200]
    python benchmarks/endurance.py resumes [--count 20]
    python benchmarks/endurance.py workers [--cells 40 --iterations 10] [--every 2 | --seconds 60]
    python benchmarks/endurance.py iterations [--count 1000000 --every 50000] [--out FOLDER]
    python benchmarks/endurance.py changes [--minutes 5]

*scenarios* runs the shipped scenarios in turn in one process, each time with another seed. *resumes* kills a live
training with SIGKILL again and again, and lets the same command resume. *workers* runs a sweep on a Dask cluster of
this machine (extra `dask`) of which a worker is killed whenever so many cells more are done, or so many seconds have
gone by. The last two compare results with those of a run that was left alone, byte by byte. *iterations* simulates a
day of a small job, whose iterations take 86.4 ms on the mean, in this process; after a kill, the same command with the
same `--out` goes on. *changes* times a transfer of seconds on links that change every nanosecond. Ends with 1 if
something grows or differs.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from simnet import scenarios

# Two workers, whose links have the same weather every minute: 86.4 ms an iteration on the mean.
_DAY = """
name: day
seed: 2026
workers: 2
network:
  topology: {{star: {{latency: 2 ms, bandwidth: 1 Gbit/s}}}}
  weather:
    - {{links: all, bandwidth: {{steps: {{at: [0 s, 40 s], factors: [100 %, 25 %], period: 60 s}}}}}}
job:
  parameters: 10000000
  scale: 100000
  iterations: {iterations}
  density: 2 %
  compute: {{mean: 60.8 ms, spread: 3 %}}
exchanges:
  AG: {{scheme: topk}}
policies:
  AG: {{fixed: AG}}
output: {{report: false}}
"""

# Memory and time of the last runs may be so much more than those of the same scenarios some rounds before.
_MORE = 1.10


def main() -> None:
    """Print a table, and end with 1 if something is not flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("scenarios").add_argument("--count", type=int, default=200)
    what.add_parser("resumes").add_argument("--count", type=int, default=20)
    workers = what.add_parser("workers")
    workers.add_argument("--every", type=int, default=2)
    workers.add_argument("--seconds", type=float)
    workers.add_argument("--cells", type=int, default=40)
    workers.add_argument("--iterations", type=int, default=10)
    iterations = what.add_parser("iterations")
    iterations.add_argument("--count", type=int, default=1_000_000)
    iterations.add_argument("--every", type=int, default=50_000)
    iterations.add_argument("--out", type=Path)
    what.add_parser("changes").add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    do = {
        "scenarios": run_scenarios,
        "resumes": resume,
        "workers": lose_workers,
        "iterations": go_on,
        "changes": change,
    }
    wrong = do[given.what](given)
    print("flat" if not wrong else "\n".join(["NOT FLAT:", *wrong]))
    raise SystemExit(bool(wrong))


def run_scenarios(given: argparse.Namespace) -> list[str]:
    """Run shipped scenarios in turn; return what grew from the second round of all of them to the last."""
    with tempfile.TemporaryDirectory() as home:
        # Others have temporary files, too.
        tempfile.tempdir = os.environ["TMPDIR"] = home
        return _run_scenarios(given, Path(home))


def _run_scenarios(given: argparse.Namespace, home: Path) -> list[str]:
    import simnet

    names = sorted(path.stem for path in Path(scenarios.__file__).parent.glob("*.yaml"))
    rounds: list[list[tuple[float, int, int, int, float]]] = []
    for number in range(max(given.count // len(names), 3)):
        rows = []
        for name in names:
            began = time.process_time()
            simnet.run(name, set={"job.iterations": 3, "output.report": False}, seed=number)
            seconds = time.process_time() - began
            begun = len(list(home.iterdir()))
            rows.append((resident(), open_files(), threading.active_count(), begun, seconds))
        gc.collect()
        rounds.append(rows)
        memory, files, threads, begun, _ = rows[-1]
        seconds = sum(row[-1] for row in rows)
        print(
            f"{(number + 1) * len(names):4d} runs: {memory:6.0f} MiB, {files} files, {threads} threads, "
            f"{begun} temporary files, {seconds:6.1f} CPU s for the last {len(names)}",
            flush=True,
        )
    # The first round loads and compiles.
    first, last = np.array(rounds[1]), np.array(rounds[-1])
    wrong = [
        f"{what}: {before:g}, then {after:g}"
        for what, before, after in zip(
            ("memory [MiB]", "open files", "threads", "temporary files"), first[-1], last[-1], strict=False
        )
        if after > _MORE * before
    ]
    took = [float(np.median([sum(row[-1] for row in rows) for rows in some])) for some in (rounds[1:4], rounds[-3:])]
    return wrong + ([f"CPU seconds of a round: {took[0]:.1f}, then {took[1]:.1f}"] if took[1] > 1.5 * took[0] else [])


def resume(given: argparse.Namespace) -> list[str]:
    """Kill a live training again and again until it is done; return what is left over or differs."""
    wrong = []
    with tempfile.TemporaryDirectory() as home:
        command = [
            sys.executable,
            "-c",
            "from simnet.studies import runs; runs.EVERY = 0.2; from simnet.cli import main; main()",
            "run",
            "time_to_accuracy_wan",
            "--jobs",
            "1",
        ]
        command += ["--set", f"job.iterations={6 * given.count}", "--set", "output.report=false", "--quiet", "--out"]
        killed, alone = Path(home, "killed"), Path(home, "alone")
        kills, sizes = 0, []
        while True:
            process = subprocess.Popen([*command, str(killed)], start_new_session=True)
            before = checkpoint_times(killed)
            while process.poll() is None and checkpoint_times(killed) == before:
                time.sleep(0.05)
            if kills < given.count and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
                sizes.append(sum(one.stat().st_size for one in killed.rglob("*") if one.is_file()))
                print(f"{kills:3d} kills: {sizes[-1] / 2**20:.2f} MiB in the folder", flush=True)
                continue
            if process.wait():
                wrong.append(f"it ended with {process.returncode}")
            break
        subprocess.run([*command, str(alone)], check=True)
        if kills < given.count:
            wrong.append(f"only {kills} kills before it was done")
        wrong += differences(killed, alone)
        if len(sizes) > 2 and sizes[-1] > 2 * max(sizes[:3]):
            wrong.append(f"bytes in the folder: {sizes[0]:,}, then {sizes[-1]:,}")
    return wrong


def checkpoint_times(folder: Path) -> dict[str, int]:
    """Return when the checkpoints of a run were written."""
    place = folder / "checkpoints"
    return {one.name: one.stat().st_mtime_ns for one in place.glob("*.npz")} if place.is_dir() else {}


def lose_workers(given: argparse.Namespace) -> list[str]:
    """Run a sweep on a Dask cluster of which a worker is killed when some cells are done; return what differs."""
    from distributed import LocalCluster

    seeds = ",".join(map(str, range(given.cells)))
    command = [
        sys.executable,
        "-m",
        "simnet.cli",
        "run",
        "quickstart",
        "--grid",
        f"seed={seeds}",
        "--set",
        f"job.iterations={given.iterations}",
        "--quiet",
        "--out",
    ]
    with tempfile.TemporaryDirectory() as home:
        lost, alone = Path(home, "lost"), Path(home, "alone")
        began = time.monotonic()
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
            process = subprocess.Popen([*command, str(lost), "--on", f"dask:{cluster.scheduler_address}"])
            kills = 0
            while process.poll() is None:
                time.sleep(0.05)
                done = len(list((lost / "cells").glob("*")))
                running = [one.pid for one in cluster.workers.values() if one.pid]
                due = given.every * (kills + 1) if given.seconds is None else given.seconds * (kills + 1)
                if running and due <= (done if given.seconds is None else time.monotonic() - began):
                    os.kill(running[kills % len(running)], signal.SIGKILL)
                    kills += 1
                    print(
                        f"{time.monotonic() - began:5.0f} s: {kills} workers killed, {done} cells done, "
                        f"{open_files()} files, {resident():.0f} MiB here",
                        flush=True,
                    )
        wrong = [f"it ended with {process.returncode}"] if process.returncode else []
        if not kills:
            wrong.append("it was done before a worker was killed; take more cells")
        subprocess.run([*command, str(alone)], check=True)
        return wrong + differences(lost, alone)


def go_on(given: argparse.Namespace) -> list[str]:
    """Run a job of many iterations in this process; return what grew along it."""
    with tempfile.TemporaryDirectory() as home:
        tempfile.tempdir = os.environ["TMPDIR"] = home
        folder = Path(home, "day") if given.out is None else given.out
        folder.mkdir(parents=True, exist_ok=True)
        scenario = folder / "day.yaml"
        scenario.write_text(_DAY.format(iterations=given.count))
        return _go_on(given, scenario, folder / "run", Path(home))


def _go_on(given: argparse.Namespace, scenario: Path, folder: Path, home: Path) -> list[str]:
    from simnet.scenario.finding import Source
    from simnet.studies import runs

    source = Source(scenario)
    loaded = source.load()
    batch = runs.Batch(source, loaded, folder)
    marks: list[tuple[float, int, int, int, float]] = []
    begun = [time.process_time(), 0]

    def progress(label: str, done: int) -> None:
        if done % given.every and done < given.count:
            return
        took, begun[:] = (time.process_time() - begun[0], done - begun[1]), (time.process_time(), done)
        kept = sum(one.stat().st_size for one in batch.place.iterdir())
        others = len(list(home.iterdir())) + len(list(batch.place.iterdir()))
        marks.append((resident(), open_files(), threading.active_count(), others, 1e3 * took[0] / max(took[1], 1)))
        print(
            f"{done:9,d} iterations: {marks[-1][0]:6.1f} MiB, {marks[-1][1]} files, {marks[-1][2]} threads, "
            f"{others} temporary files of {kept / 2**20:.1f} MiB, {marks[-1][4]:.3f} CPU ms an iteration",
            flush=True,
        )

    with runs.locked_folder(folder, "run", runs.CHECKPOINTS):
        batch.begin()
        batch.run(progress)
        held = resident()
        answer = batch.write()
    (result,) = answer.results.values()
    lasted = float(result.iterations["iteration_s"].sum())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{lasted / 3600:.2f} h were simulated; {held:.0f} MiB with the result, {most:.0f} MiB at most to write it")
    # Until its middle a job compiles loops that so many iterations are worth, and its rows get files.
    middle = len(marks) // 2
    first, last = (np.array(some).min(axis=0) for some in (marks[middle - 1 : middle + 2], marks[-4:-1]))
    allowed = (_MORE, 1.0, 1.0, 1.0, 1.5)
    names = ("memory [MiB]", "open files", "threads", "temporary files", "CPU ms an iteration")
    return [
        f"{what}: {before:g}, then {after:g}"
        for what, before, after, most in zip(names, first, last, allowed, strict=True)
        if after > most * before
    ]


def change(given: argparse.Namespace) -> list[str]:
    """Run a job on links that change every nanosecond; return what is neither a result nor a reason."""
    weather = "[{links: all, bandwidth: {steps: {at: [0 s, 1 ns], factors: [100 %, 50 %], period: 2 ns}}}]"
    command = [
        sys.executable,
        "-m",
        "simnet.cli",
        "run",
        "quickstart",
        "--policies",
        "AG",
        "--set",
        "output.report=false",
        "--quiet",
    ]
    command += ["--set", "job.iterations=2", "--set", "network.topology.star.bandwidth=1 Mbit/s"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as home:
        try:
            done = subprocess.run(
                [*command, "--set", f"network.weather={weather}", "--out", home],
                capture_output=True,
                text=True,
                timeout=60 * given.minutes,
            )
        except subprocess.TimeoutExpired:
            return [f"it was not done after {given.minutes:g} minutes"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"ended with {done.returncode} after {used.ru_utime - before.ru_utime:.1f} CPU s {done.stderr.strip()}")
    return [] if done.returncode in (0, 2) else [f"it ended with {done.returncode}"]


def differences(one: Path, other: Path) -> list[str]:
    """Return the files of two folders that differ."""
    held = [
        {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (one, other)
    ]
    return [
        f"{name} differs" for name in sorted(held[0].keys() | held[1].keys()) if held[0].get(name) != held[1].get(name)
    ]


def resident() -> float:
    """Return the memory of this process [MiB], in Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    main()
