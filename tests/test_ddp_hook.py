"""The DDP hook with a policy table, over gloo on loopback: what goes in comes out, or stays; and the example of it."""

from pathlib import Path

import pandas as pd
import pytest

from commands import on_ranks
from simnet.studies.choosing.policy import entry, make
from simnet.studies.choosing.policy_file import Edges, PolicyTable
from simnet.studies.choosing.problem import problem_from_flags
from simnet.studies.choosing.request import ChooseRequest

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp_hook" / "train.py"

WORK = """
import copy, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from simnet.hooks import Hook, shifted

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 50), torch.nn.Tanh(), torch.nn.Linear(50, 7)]
model = torch.nn.Sequential(*layers)
draws = torch.Generator().manual_seed(rank + 1)
state = {}


def wrapped(hook=None):
    # Several buckets; PyTorch makes them anew after the first iteration.
    found = DDP(copy.deepcopy(model), bucket_cap_mb=0.008)
    if hook is not None:
        hook.attach(found)
    return found


def gradient(one, batch):
    one.zero_grad()
    one(batch).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in one.parameters()]).double()


def total(values):
    values = values.clone()
    dist.all_reduce(values)
    return values


def held(hook, one):
    kept = [hook.residuals.of(p) for p in one.parameters()]
    return torch.cat([torch.zeros(p.numel()) if k is None else k for p, k in zip(one.parameters(), kept)]).double()


def probe(device):
    # Only the slowest worker says what holds; the others must follow it.
    return (state["latency"] if rank == size - 1 else 1e-6), 1e9


for latency, exact in ((1e-5, True), (1e-4, False)):
    state["latency"] = latency
    plain, hooked = wrapped(), wrapped(Hook.of_policy(sys.argv[1], probe=probe, every=1))
    for _ in range(3):
        batch = torch.randn(5, 40, generator=draws)
        tolerance = 1e-6 if exact else 2e-3
        assert torch.allclose(gradient(plain, batch), gradient(hooked, batch), rtol=tolerance, atol=tolerance), latency

for latency in (1e-3, 1e-2):
    state["latency"] = latency
    hook = Hook.of_policy(sys.argv[1], probe=probe, every=2)
    hooked, alone = wrapped(hook), copy.deepcopy(model)
    entered = applied = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for iteration in range(9):
        if iteration == 6:
            state["latency"] = 1e-5
        batch = torch.randn(5, 40, generator=draws)
        entered = entered + gradient(alone, batch)
        update = gradient(hooked, batch)
        assert torch.equal(total(update), size * update), "workers have different gradients"
        applied = applied + size * update
        left = total(held(hook, hooked))
        if iteration < 6:
            assert 0 < (update != 0).float().mean() <= (size if latency == 1e-3 else 1) * 0.05 + 0.02
            assert left.abs().sum() > 0
        else:
            assert left.abs().sum() == 0
        whole = total(entered)
        assert torch.allclose(applied + left, whole, atol=1e-4 * float(whole.abs().max())), (latency, iteration)

latency, bandwidth = shifted()
assert 0 < latency < 10 and bandwidth > 0
threads = os.listdir("/proc/self/task")
hook = Hook.of_policy(sys.argv[2])
assert torch.isfinite(gradient(wrapped(hook), torch.randn(5, 40, generator=draws))).all()
assert hook.entry in hook.choices
assert len(os.listdir("/proc/self/task")) > len(threads)
hook.close()
# A thread that was joined stays in the list until the system has cleared it away.
patience = time.monotonic() + 10
while os.listdir("/proc/self/task") != threads and time.monotonic() < patience:
    time.sleep(0.001)
assert os.listdir("/proc/self/task") == threads, "a thread that is left may abort the process when Python ends"
dist.barrier()
print("done", flush=True)
# The threads of the group that this script itself uses are left, as DDP keeps it.
os._exit(0)
"""

SIZES = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from simnet.base.errors import InputError
from simnet.hooks import Hook

dist.init_process_group("gloo")
torch.set_num_threads(1)


def said(table, wide=30, attached=True, **options):
    try:
        hook = Hook.of_policy(table, **options)
        model = DDP(torch.nn.Linear(10, wide, bias=False))
        if attached:
            hook.attach(model)
        else:
            model.register_comm_hook(None, lambda _, bucket: hook.exchange(bucket))
        model(torch.ones(2, 10)).sum().backward()
        return f"{hook.entry.label} at {hook.entry.density:g}"
    except InputError as error:
        return str(error)


table, links = sys.argv[1:]
answers = [
    said(table),
    said(table, wide=3000),
    said(table, density=0.2),
    said(table, wide=100_000),
    said(table, density=1.0),
    said(table, density="1 %"),
    said(table, probe=lambda device: (1e-3, 1e9)),
    said(links, density=0.1),
    said(table, attached=False),
]
if dist.get_rank() == 0:
    print(*answers, sep="\\n", flush=True)
dist.barrier()
os._exit(0)
"""


WORKERS = 3


def table():
    """A row per decade of latency: dense, in half precision, AG-Topk, AR-Topk."""
    problem = problem_from_flags(ChooseRequest(workers=WORKERS))
    among = {one.label: one for one in problem.among}
    rows = [entry(among[label], 0.05) for label in ("dense ring", "fp16 ring", "AG-Topk", "ART-ring")]
    edges = Edges(latency_s=(3e-6, 3e-5, 3e-4, 3e-3, 3e-2), bandwidth_B_per_s=(1e6, 1e12))
    changed = {"edges": edges, "choices": tuple(rows), "matrix": ((0,), (1,), (2,), (3,)), "regret": None}
    return PolicyTable.model_validate(make(problem, cells=1).model_copy(update=changed).model_dump())


def started(folder, *command):
    """Run a script in some processes, and return how that ended."""
    done = on_ranks(WORKERS, *command, folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.extras
def test_dense_is_plain_ddp_and_sparse_keeps_all_gradient_mass(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "rows.json").write_text(table().text())
    made = make(problem_from_flags(ChooseRequest(workers=WORKERS)), cells=8, densities=(0.1, 0.01))
    (tmp_path / "made.json").write_text(made.text())
    assert started(tmp_path, "work.py", "rows.json", "made.json").count("done") == WORKERS


def sizes(workers):
    """AG-Topk up to 1,000 parameters, dense above, for densities from 5 to 50 %."""
    among = {one.label: one for one in problem_from_flags(ChooseRequest()).among}
    links = table()
    changed = {
        "version": 2,
        "made_for": links.made_for.model_copy(update={"densities": (0.1,)}),
        "edges": Edges(workers=workers, density=(0.05, 0.5), parameters=(10.0, 1e3, 1e5)),
        "choices": (entry(among["AG-Topk"], 0.1), entry(among["dense ring"], 0.1)),
        "matrix": ((0, 1),) * len(workers),
    }
    return PolicyTable.model_validate(links.model_copy(update=changed).model_dump())


@pytest.mark.extras
def test_a_table_of_a_cluster_is_asked_for_the_size_of_the_model(tmp_path):
    (tmp_path / "work.py").write_text(SIZES)
    (tmp_path / "links.json").write_text(table().text())
    (tmp_path / "sizes.json").write_text(sizes((2, 3)).text())
    said = started(tmp_path, "work.py", "sizes.json", "links.json").splitlines()
    assert said[:3] == ["AG-Topk at 0.1", "dense ring at 1", "AG-Topk at 0.2"]
    for found, wanted in zip(
        said[3:],
        (
            "sizes.json: edges.parameters: the table was made for parameters of 10 to 100000, but here it is 1e+06; "
            "make one with simnet choose --fabric FILE --parameters 1000000 --export",
            "sizes.json: edges.density: the table was made for density of 0.05 to 0.5, but here it is 1; make one",
            "density: must be a number > 0 and at most 1, got '1 %'",
            "probe: is only for a table by latency and bandwidth",
            "density: is only for a table by density: simnet choose --fabric FILE --export",
            "sizes.json: attach the hook to its model",
        ),
        strict=True,
    ):
        assert found.startswith(wanted)
    (tmp_path / "sizes.json").write_text(sizes((2, 4)).text())
    for found in started(tmp_path, "work.py", "sizes.json", "links.json").splitlines()[:3]:
        assert (
            "made for workers of 2, 4, but here it is 3; make one with simnet choose --fabric FILE --workers 3" in found
        )


@pytest.mark.extras
def test_the_example_is_ten_lines_that_train_and_log(tmp_path):
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith(("import", "from", '"'))]
    assert len(lines) <= 10
    (tmp_path / "policy.json").write_text(table().text())
    started(tmp_path, str(EXAMPLE), "policy.json", "logs")
    for rank in range(WORKERS):
        log = pd.read_csv(tmp_path / "logs" / f"rank_{rank}.csv")
        assert len(log) == 20
        assert set(log["exchange"]) <= {one.label for one in table().choices}
