"""A worker of test_hooks.py, started by torch.distributed.run: the hook beside the simulated scheme, same gradients."""

import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from measuring_jobs.worker import Place, distributed
from torch.nn.parallel import DistributedDataParallel

from simnet import sparsifier_models
from simnet.base.errors import SimnetError
from simnet.cluster.hooks import Hook, Trainer
from simnet.studies.choosing.policy_file import TableEntry
from tables import made_table

SIZES = (3000, 1700)


class Told(torch.nn.Module):
    """A model whose gradients are what they are told to be."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size) for size in SIZES)

    def forward(self, gradients):
        return sum((part * one).sum() for part, one in zip(self.parts, gradients, strict=True))


def gradients(iteration, workers):
    """Return those of all workers, shape (P, n): Laplacian, some of them equal, some zero."""
    draws = np.random.default_rng([7, iteration])
    drawn = draws.laplace(size=(workers, sum(SIZES))) * 0.02
    drawn[draws.random(drawn.shape) < 0.2] = 0
    return np.round(drawn, 3 if iteration % 2 else 8).astype(np.float32)


class Watched(Hook):
    """A hook that says which parameters the buckets of the last iteration had, by their places in the model."""

    def exchange(self, bucket):
        if bucket.index() == 0:
            self.layout = []
        places = {id(one): place for place, one in enumerate(self.parameters)}
        self.layout.append(tuple(places[id(one)] for one in bucket.parameters()))
        return super().exchange(bucket)


def in_order(drawn, layout):
    """Return the entries of a bucket, out of those of each parameter."""
    return np.concatenate([drawn[place] for place in layout], axis=-1)


def run(scheme, density, options, iterations, cap):
    """Return what differs, and what was sent and priced, iteration by iteration."""
    rank, size = dist.get_rank(), dist.get_world_size()
    hook = Watched(scheme, density, **options)
    # From the second iteration on, buckets of at most so many MiB.
    wrapped = DistributedDataParallel(Told(), bucket_cap_mb=cap)
    hook.attach(wrapped)
    hook.parameters = list(wrapped.module.parts)
    models, kept, told = {}, [np.zeros((size, n), dtype=np.float32) for n in SIZES], []
    for iteration in range(iterations):
        drawn = np.split(gradients(iteration, size), np.cumsum(SIZES)[:-1], axis=1)
        wrapped.zero_grad()
        wrapped([torch.from_numpy(one[rank].copy()) for one in drawn]).backward()
        row = {"off": 0.0, "largest": 0.0, "kept": True, "calls": [], "buckets": len(hook.layout)}
        for layout in hook.layout:
            if layout not in models:
                n = sum(SIZES[place] for place in layout)
                models[layout] = sparsifier_models.create(scheme, size, n, density, **options)
            model = models[layout]
            if model.traits.keeps_residual and model.options.error_feedback:
                model.residual = in_order(kept, layout)
            model.iteration = iteration
            exchange = model.exchange(in_order(drawn, layout))
            found = in_order([one.grad.numpy() for one in wrapped.module.parts], layout)
            row["off"] = max(row["off"], float(np.abs(found - exchange.update).max()))
            row["largest"] = max(row["largest"], float(np.abs(exchange.update).max()))
            cuts = np.cumsum([SIZES[place] for place in layout])[:-1]
            for place, rows in zip(layout, np.split(model.residual, cuts, axis=1), strict=True):
                kept[place] = rows
                held = hook.residuals.of(wrapped.module.parts[place])
                own = np.zeros(SIZES[place], dtype=np.float32) if held is None else held.numpy()
                row["kept"] &= bool(np.array_equal(own, rows[rank]))
            row["calls"] += priced(exchange.schedule, rank)
        row["sent"] = [[one.operation, list(one.nbytes)] for one in hook.marks.messages]
        told.append(row)
    hook.close()
    return told


def priced(schedule, rank):
    """Return the messages of a schedule as the hook has them: what each call is, and bytes that a rank hands over."""
    calls = {call.first: call for call in schedule.calls}
    found, index = [], 0
    while index < len(schedule.rounds):
        if index in calls:
            call = calls[index]
            assert call.algorithm == ("binomial" if call.operation == "broadcast" else "ring"), call
            nbytes = call.nbytes / schedule.n_ranks if call.operation == "all_gather" else call.nbytes
            found.append([call.operation, [nbytes]])
            index += call.rounds
            continue
        one, sends = schedule.rounds[index], np.zeros(schedule.n_ranks)
        np.add.at(sends, one.dst[one.src == rank], one.nbytes[one.src == rank])
        if sends.any() or (one.dst == rank).any():
            found.append(["send", sends.tolist()])
        index += 1
    return found


def train(folder):
    """Make iterations of which it is known what takes long."""
    rank, generator = dist.get_rank(), torch.Generator().manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5))
    wrapped = DistributedDataParallel(model)

    class Slow(torch.optim.SGD):
        def step(self):
            time.sleep(0.02 * (1 + rank))
            super().step()

    def loss():
        time.sleep(0.02 * (1 + rank))
        return wrapped(torch.randn(8, 30, generator=generator)).square().mean()

    hook = Hook("artopk", 0.1, label="AR-Topk")
    with Trainer(wrapped, Slow(wrapped.parameters(), lr=0.1), hook, log=folder) as trainer:
        for _ in range(6):
            trainer.step(loss)


class Sleeping(torch.autograd.Function):
    """The identity, whose backward pass takes a while."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.2)
        return gradient


def beside(scheme, options):
    """Exchange a bucket while the backward pass has 0.2 s to go until the next one."""
    model = Told()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
    model.forward = lambda one: Sleeping.apply((model.parts[0] * one).sum()) + (model.parts[1] * one[: SIZES[1]]).sum()
    hook = Hook(scheme, 0.05, **json.loads(options)).attach(wrapped)
    for _ in range(3):
        dist.barrier()
        wrapped(torch.linspace(-1, 1, SIZES[0])).backward()
    (first, second), messages = hook.marks.selecting, hook.marks.messages
    assert second.began - first.ended > 0.19
    early = [one for one in messages if one.ended < second.began]
    assert [one.operation for one in early] == [one.operation for one in messages[: len(messages) // 2]]
    assert hook.marks.exchanging[0].ended < second.began


def job(folder):
    """Make three iterations of a measured job with dense exchanges, and leave what the hook gets, in its order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optimizer, loss = distributed("conv", Place(rank, "", "", size, 0, 0.0), None)
    names = {id(one): name for name, one in model.module.named_parameters()}
    orders, given = [], []

    class Noted(Hook):
        def exchange(self, bucket):
            orders.append([names[id(one)] for one in bucket.parameters()])
            given.append(bucket.buffer().numpy().copy())
            return super().exchange(bucket)

    with Trainer(model, optimizer, Noted()) as trainer:
        for iteration in range(3):
            trainer.step(partial(loss, iteration))
    np.save(Path(folder, f"{rank}.npy"), np.stack(given))
    Path(folder, f"{rank}.json").write_text(json.dumps(orders))


def advise(folder):
    """Let bytes take long, then rounds, and leave what each iteration exchanged with."""
    size, links = dist.get_world_size(), {"latency": 1e-3, "byte": 1e-6}

    def slowed(call, at, rounds, share):
        def slower(*given, **options):
            time.sleep(links["latency"] * rounds + links["byte"] * share * given[at].nbytes)
            return call(*given, **options)

        return slower

    # A ring of three, and words of a probe.
    dist.all_reduce = slowed(dist.all_reduce, 0, 2 * (size - 1), 2 * (size - 1) / size)
    dist.all_gather = slowed(dist.all_gather, 1, size - 1, size - 1)
    dist.isend = slowed(dist.isend, 0, 1, 1)
    wrapped = DistributedDataParallel(Told(), bucket_cap_mb=1000)
    select = TableEntry(label="AG-Topk", scheme="topk", kind="sparse", density=0.9)
    hook = Hook.advised([select], device="cpu", every=2, log=folder).attach(wrapped)
    taken = []
    for iteration in range(70):
        if iteration == 40:
            links |= {"latency": 3e-2, "byte": 1e-8}
        drawn = np.split(gradients(iteration, size), np.cumsum(SIZES)[:-1], axis=1)
        wrapped([torch.from_numpy(one[dist.get_rank()].copy()) for one in drawn]).backward()
        taken.append(hook.marks.exchange)
    hook.close()
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(taken))


def fail(what):
    """Do something wrong, and say what comes of it."""
    try:
        if what == "unknown":
            Hook("artpok")
        if what == "option":
            Hook("artopk", 0.1, monitored=True)
        if what == "half":
            Hook("fp16", accumulation="single")
        if what == "workers":
            Path("rows.json").write_text(made_table().text())
            Hook.of_policy("rows.json")
        if what == "feedback":
            made = made_table()
            kept = TableEntry(label="AG-Topk", scheme="topk", kind="sparse", density=0.1)
            lost = TableEntry(label="fp16", scheme="fp16", options={"error_feedback": False}, kind="half", density=1)
            alone = made.made_for.model_copy(update={"workers": 1})
            Hook.of_policy(made.model_copy(update={"choices": (kept, lost), "made_for": alone}))
        if what == "densities":
            each = [TableEntry(label=f"{c}", scheme="topk", kind="sparse", density=c) for c in (0.1, 0.01)]
            Hook.advised(each, device="cpu")
        if what == "formula":
            Hook.advised([TableEntry(label="Ok", scheme="oktopk", kind="sparse", density=0.1)], device="cpu")
        if what == "again":
            Path("rank_0.csv").touch()
            model = DistributedDataParallel(Told())
            Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), Hook(), log=".")
        if what == "nan":
            wrapped = DistributedDataParallel(Told())
            Hook("topk", 0.1).attach(wrapped)
            wrong = [torch.ones(size) for size in SIZES]
            wrong[1][3] = torch.nan
            wrapped(wrong).backward()
    except SimnetError as error:
        print(error, flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    command, *arguments = sys.argv[1:]
    try:
        if command == "compare":
            found = [run(**one) for one in json.loads(arguments[0])]
            Path(arguments[1], f"{dist.get_rank()}.json").write_text(json.dumps(found))
        else:
            {"train": train, "beside": beside, "job": job, "advise": advise, "fail": fail}[command](*arguments)
        dist.barrier()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # DDP keeps the threads of gloo even after destroy_process_group.
    os._exit(0)


main()
