"""What a process loads before it does anything: not what it has no use for, and nothing is compiled twice."""

import os
import subprocess
import sys

import pytest

HEAVY = {"jinja2", "matplotlib", "llvmlite", "networkx", "numba", "pandas", "pyarrow", "scipy", "simpy", "torch"}

COMMANDS = {
    "--help": HEAVY | {"numpy", "pydantic"},
    "--version": HEAVY | {"numpy", "pydantic", "rich"},
    "nosuch": HEAVY | {"numpy", "rich"},
    "run nosuch": HEAVY | {"ruamel"},
    "run quickstart --set job.iteration=3": HEAVY,
    "choose --workers 8 --model resnet50 --set job.iterations=1": HEAVY - {"simpy"},
    "time nosuch.goal": HEAVY - {"pandas", "pyarrow"},
    "time allreduce_ring --workers 8 --size 1MiB": HEAVY - {"pandas", "pyarrow"},
    "list networks": HEAVY | {"simnet.sparsifier_models"},
    "list models": HEAVY | {"ruamel", "simnet.scenario.parts"},
    "list collectives": HEAVY - {"pandas", "pyarrow"} | {"ruamel"},
    "list stacks": HEAVY | {"ruamel"},
    "list scenarios": HEAVY,
    "list policies": HEAVY | {"numpy", "pydantic"},
    "list schemes": HEAVY | {"pydantic"},
}
"""Commands, and what none of them has a use for."""

RUN = """
import atexit, sys
sys.argv = ["simnet", *sys.argv[1:]]
atexit.register(lambda: print("\\n@", *sys.modules, file=sys.stderr))
from simnet.cli import main
main()
"""


@pytest.mark.parametrize(("command", "useless"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_loads_nothing_that_it_has_no_use_for(command, useless):
    done = subprocess.run([sys.executable, "-c", RUN, *command.split()], capture_output=True, text=True)
    said, _, modules = done.stderr.rpartition("@ ")
    assert done.returncode == (2 if "nosuch" in command or "iteration=" in command else 0), said
    loaded = set(modules.split())
    assert "simnet.cli" in loaded
    assert sorted(loaded & useless) == []


PROGRAM = """
import sys
from simnet import topologies
from simnet import collectives
from simnet.network import Network
family, size = sys.argv[1], int(sys.argv[2])
graph = topologies.build(family, **{"k" if family == "fat_tree" else "hosts": size}, latency=1e-5, bandwidth=1e9)
print(Network(graph).time(collectives.allreduce_ring(graph.graph["hosts"], 1e8)).finish)
print(*sys.modules)
"""


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("family", ["star", "ring", "fat_tree"])
def test_a_program_that_times_a_ring_loads_no_event_loop(family, size):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, family, str(size)], capture_output=True, text=True, check=True
    )
    loaded = set(found.stdout.split())
    assert "simnet.network.max_plus" in loaded
    useless = HEAVY - {"llvmlite"} | {"numpy.random", "importlib.metadata", "simnet.network.event_loop", "pydantic"}
    assert sorted(loaded & useless) == []


COUNTED = """
import io, sys
from contextlib import redirect_stdout
from simnet.base import native
from simnet.network import compiled_loop, max_plus
from simnet.sparsifier_models import selection
# All that may be compiled is at hand, and used at once.
compiled_loop.compiled_loop(), max_plus._compiled_recurrence()
selection._LONG = 0
from simnet.verbs.app import run_line
with redirect_stdout(io.StringIO()):
    assert not run_line(sys.argv[1:])
print(*native.compiled_summary()[0])
"""


@pytest.mark.slow
def test_no_command_compiles_what_warm_did_not(tmp_path):
    def told(*command):
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        ).stdout

    assert "functions are compiled" in told("-m", "simnet.compile")
    assert "Everything is compiled already" in told("-m", "simnet.compile")
    for command in (
        "run quickstart --set job.iterations=3 --out run",
        "run compare --schemes topk,oktopk,spardl --grid workers=2,4 --set job.iterations=2 --jobs 1 --out compared",
        "choose --workers 8 --model resnet50 --latency 1ms --bandwidth 10Gbit/s",
        "time all_reduce --network dgx-h100 --workers 16 --size 25MB",
        "step quickstart --set job.iterations=3",
        "convert allreduce_ring ring.goal --workers 64 --size 64MiB",
        "time ring.goal",
        *(f"time allreduce_ring --workers 64 --stack {stack}" for stack in ("tcp", "gloo", "openmpi", "nccl")),
        "time allreduce_ring --workers 64 --network fat_tree:k=8 --latency 10us",
        "convert quickstart made --to trace",
        "show digits",
        "calibrate digits --out fitted.json",
    ):
        assert told("-c", COUNTED, *command.split()) == "\n", command
