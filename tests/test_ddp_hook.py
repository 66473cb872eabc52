"""The DDP hook with a policy table, over gloo on loopback: what goes in comes out, or stays; and the example of it."""

from pathlib import Path

import pandas as pd
import pytest

from commands import on_ranks
from simnet.studies.choosing.forecast import usual_exchanges
from simnet.studies.choosing.policy import entry
from simnet.studies.choosing.policy_file import CellEdges, PolicyTable
from tables import made_table

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp_hook" / "train.py"

WORK = """
import copy, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from simnet.cluster.hooks import Hook, shifted

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

WORKERS = 3


def table():
    """A row per decade of latency: dense, in half precision, AG-Topk, AR-Topk."""
    among = {one.label: one for one in usual_exchanges()}
    rows = [entry(among[label], 0.05) for label in ("dense ring", "fp16 ring", "AG-Topk", "ART-ring")]
    edges = CellEdges(latency_s=(3e-6, 3e-5, 3e-4, 3e-3, 3e-2), bandwidth_B_per_s=(1e6, 1e12))
    changed = {"edges": edges, "choices": tuple(rows), "matrix": ((0,), (1,), (2,), (3,))}
    return PolicyTable.model_validate(made_table(WORKERS).model_copy(update=changed).model_dump())


def started(folder, *command):
    """Run a script in some processes, and return how that ended."""
    done = on_ranks(WORKERS, *command, folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.extras
def test_dense_is_plain_ddp_and_sparse_keeps_all_gradient_mass(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "rows.json").write_text(table().text())
    made = made_table(WORKERS, 8, densities=(0.1, 0.01))
    (tmp_path / "made.json").write_text(made.text())
    assert started(tmp_path, "work.py", "rows.json", "made.json").count("done") == WORKERS


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
