"""Words of earlier versions, and what says the same now; read only where a word is not known."""

from __future__ import annotations

from collections.abc import Mapping

OLD_VERBS: Mapping[str, str] = {
    "compare": "run --schemes A,B",
    "sweep": "run --grid KEY=VALUES",
    "predict": "time COLLECTIVE --network NAME",
    "export": "convert SCENARIO FILE.goal",
    "report": "show RUN",
    "schema": "show schema",
    "trace": "show TRACE, convert TRACE OUT or calibrate TRACE",
    "warm": "python -m simnet.compile",
}
"""Verbs, each with the line that asks the same."""

OLD_OPTIONS: Mapping[str, str] = {
    "--collective": "the collective itself, as 'allreduce_ring:group_size=4'",
    "--batch": "--set job.batch=N",
    "--checkpoint": "not needed: a run is kept every ten seconds",
    "--max-cells": "--force, for more than 1,000 cells",
    "--no-report": "--set output.report=false",
    "--output": "--out",
    "--param": "--grid",
    "--scheduler": "--on dask:tcp://HOST:PORT, or --on slurm:..",
    "--workers-on": "--on",
    "--skip": "not needed: means begin when all have settled",
    "--zip": "--grid 'a=..; b=..'",
    "--show": "simnet show NAME",
    "--figure": "--out FILE.svg",
    "--ranks": "--workers, of measure --groups",
    "--shapes": "--groups",
    "--fast": "the default",
    "--markdown": "--out FILE.md",
    "--devices": "a name, as in 'simnet reproduce devices'",
    "--shipped": "a name, as in 'simnet validate jobs'",
    "--fabric": "--network, of validate --against",
    "--learned": "--against learned",
    "--smallest": "--sizes LO:HI:FACTOR",
    "--largest": "--sizes LO:HI:FACTOR",
    "--factor": "--sizes LO:HI:FACTOR",
    "--collectives": "--what",
    "--pairs": "--what links, or links:of=nodes",
    "--in-place": "--where place=in",
    "--library": "--what device:library=NAME",
    "--hosts": "an option of --network, as star:hosts=16",
    "--nodes": "an option of --network, as dgx-h100:nodes=2",
    "--topology": "--network",
    "--platform": "--network",
    "--scenario": "--network, or the first word",
    "--format": "not needed: the content of a file says what it is",
    "--messages": "--out FILE.csv",
    "--limit": "--set memory=SIZE",
    "--iteration": "--start, which says when ranks enter",
    "--option": "behind the name, as ring:group_size=4",
    "--algorithm": "behind the collective, as all_reduce:ring",
    "--protocol": "behind the collective, as all_reduce:ring,protocol=simple",
    "--strict": "not needed: the answer says what is extrapolated",
}
"""Options, of whichever verb, each with the words that say the same."""
