"""Commands of simnet as users type them: those that end well, those that are refused, and what they leave behind."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from killing import PATIENCE
from simnet.verbs import app

NO_PAGE = ("--set", "output.report=false")


@dataclass(frozen=True)
class Result:
    """What a command printed, to standard output and to standard error, and what it ended with."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(*arguments: object) -> Result:
    """Return what came of a command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = app.run_line([str(one) for one in arguments])
    return Result(code, out.getvalue(), err.getvalue())


def timed(*arguments: object) -> dict[str, Any]:
    """Return what `simnet time` says as JSON: of one timing, with its row."""
    found: dict[str, Any] = json.loads(did("time", *arguments, "--json").stdout)
    (row,) = found.pop("rows")
    return {**found, **row}


def did(*arguments: object) -> Result:
    """Return what came of a command that ended well."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def wide(*arguments: object) -> str:
    """Return all that a verb that ended well says, on one line."""
    return " ".join(did(*arguments, "--wide").stdout.split())


def policies_of(folder: Path) -> pd.DataFrame:
    """Return what summary.json says of each policy, by its name, with judgements and means over iterations."""
    summary = json.loads((folder / "summary.json").read_text())
    rows = {
        name: {**one, **one["means"], **one.get("judgement", {}), "steady_from": summary["steady_from"]}
        for name, one in summary["policies"].items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def refused(*arguments: object) -> str:
    """Return the one message of a command that was refused."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("error: ") == 1
    return result.stderr


def on_ranks(count: int, *command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what came of a script or module that torchrun starts on so many ranks of this machine, in a folder."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    root = Path(__file__).parents[1]
    more = {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(root), str(root / "benchmarks"))),
    }
    return subprocess.run(
        [*launch, *map(str, command)],
        cwd=folder, env=os.environ | more, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
