"""The example DDP hook, run by PyTorch over gloo on loopback: what goes in comes out, or stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import killing
from simnet.studies.choosing.inputs import Given, from_flags
from simnet.studies.choosing.policy import entry, make
from simnet.studies.choosing.policy_file import Edges, PolicyTable

ROOT = Path(__file__).parents[1]
HOOK = ROOT / "examples" / "ddp_hook"

WORK = """
import copy, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from policy_hook import Policy, policy_hook, shifted

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 50), torch.nn.Tanh(), torch.nn.Linear(50, 7)]
model = torch.nn.Sequential(*layers)
draws = torch.Generator().manual_seed(rank + 1)
state = {}


def wrapped(policy=None):
    # Several buckets; PyTorch makes them anew after the first iteration.
    found = DDP(copy.deepcopy(model), bucket_cap_mb=0.008)
    if policy is not None:
        found.register_comm_hook(policy, policy_hook)
    return found


def gradient(one, batch):
    one.zero_grad()
    one(batch).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in one.parameters()]).double()


def total(values):
    values = values.clone()
    dist.all_reduce(values)
    return values


def held(policy, one):
    zero = [torch.zeros_like(p) for p in one.parameters()]
    kept = [policy.residual.get(p, z) for p, z in zip(one.parameters(), zero)]
    return torch.cat([p.flatten() for p in kept]).double()


def probe(device):
    # Only the slowest worker says what holds; the others must follow it.
    return (state["latency"] if rank == size - 1 else 1e-6), 1e9


for latency, exact in ((1e-5, True), (1e-4, False)):
    state["latency"] = latency
    plain, hooked = wrapped(), wrapped(Policy(sys.argv[1], probe, every=1))
    for _ in range(3):
        batch = torch.randn(5, 40, generator=draws)
        tolerance = 1e-6 if exact else 2e-3
        assert torch.allclose(gradient(plain, batch), gradient(hooked, batch), rtol=tolerance, atol=tolerance), latency

for latency in (1e-3, 1e-2):
    state["latency"] = latency
    policy = Policy(sys.argv[1], probe, every=2)
    hooked, alone = wrapped(policy), copy.deepcopy(model)
    entered = applied = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for iteration in range(9):
        if iteration == 6:
            state["latency"] = 1e-5
        batch = torch.randn(5, 40, generator=draws)
        entered = entered + gradient(alone, batch)
        update = gradient(hooked, batch)
        assert torch.equal(total(update), size * update), "workers have different gradients"
        applied = applied + size * update
        left = total(held(policy, hooked))
        if iteration < 6:
            assert 0 < (update != 0).float().mean() <= (size if latency == 1e-3 else 1) * 0.05 + 0.02
            assert left.abs().sum() > 0
        else:
            assert left.abs().sum() == 0
        whole = total(entered)
        assert torch.allclose(applied + left, whole, atol=1e-4 * float(whole.abs().max())), (latency, iteration)

latency, bandwidth = shifted()
assert 0 < latency < 10 and bandwidth > 0
policy = Policy(sys.argv[2])
assert torch.isfinite(gradient(wrapped(policy), torch.randn(5, 40, generator=draws))).all()
assert policy.choice in policy.choices
dist.barrier()
print("done", flush=True)
# DDP keeps the threads of gloo even after destroy_process_group. One that is still busy with the hook when the
# interpreter ends aborts the process.
os._exit(0)
"""


def table():
    """A row per decade of latency: dense, in half precision, AG-Topk, AR-Topk."""
    among = {one.label: one for one in from_flags(Given()).among}
    made = make(from_flags(Given()), cells=1)
    rows = [entry(among[label], 0.05) for label in ("dense ring", "fp16 ring", "AG-Topk", "ART-ring")]
    edges = Edges(latency_s=(3e-6, 3e-5, 3e-4, 3e-3, 3e-2), bandwidth_B_per_s=(1e6, 1e12))
    changed = {"edges": edges, "choices": tuple(rows), "matrix": ((0,), (1,), (2,), (3,)), "regret": None}
    return PolicyTable.model_validate(made.model_copy(update=changed).model_dump())


@pytest.mark.extras
def test_dense_is_plain_ddp_and_sparse_keeps_all_gradient_mass(tmp_path):
    workers = 3
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "rows.json").write_text(table().text())
    made = make(from_flags(Given(workers=workers)), cells=8, densities=(0.1, 0.01))
    (tmp_path / "made.json").write_text(made.text())
    more = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOOK)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    done = subprocess.run(
        [*command, "work.py", "rows.json", "made.json"],
        cwd=tmp_path, env=os.environ | more, capture_output=True, text=True, timeout=killing.PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("done") == workers


def test_the_hook_needs_nothing_but_pytorch():
    lines = [line for line in (HOOK / "policy_hook.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 75
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"torch"}
