"""Exchange gradients as a policy table says: torchrun --nproc-per-node 4 train.py policy.json logs."""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from simnet.cluster.hooks import Hook, Trainer

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 800), torch.nn.ReLU(), torch.nn.Linear(800, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(32, 64)
with Trainer(model, optimizer, Hook.of_policy(sys.argv[1]), log=sys.argv[2]) as trainer:
    for _ in range(20):
        trainer.step(lambda: torch.nn.functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True)))
torch.distributed.destroy_process_group()
