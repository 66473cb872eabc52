"""The DDP communication hook: it selects entries when a bucket is ready, and exchanges them during the backward pass.

Selection queues with the backward pass, on its thread and stream. All else is done by one thread of the hook, on a GPU
on a stream of its own, bucket by bucket in the order of DDP, which is the same on all workers. The backward pass waits
for the rest at its end.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

from simnet import sparsifier_models
from simnet.base.errors import InputError, SimnetError, check_int, import_extra, refuse_values
from simnet.cluster.hooks.advised import Advising
from simnet.cluster.hooks.exchanges import WorkerScheme, unfollowed_option, worker_scheme
from simnet.cluster.hooks.kernels import BucketShare
from simnet.cluster.hooks.log import EventClock, IterationLog, LoggedIteration, LoggedSpan, StageClock
from simnet.cluster.hooks.messages import GroupMessages, Probe, destroy_group, new_group_like, shifted
from simnet.cluster.lazy_torch import dist, torch
from simnet.cost_models.costs.devices import DeviceProfile, load_device
from simnet.studies.choosing.policy_file import PolicyTable, TableEntry, load_policy
from simnet.training.job.exchange import check_feedback


class Hook:
    """A DDP communication hook that exchanges gradients by one scheme, or switches schemes as its measurements advise.

    `iteration` (settable) is the iteration that the next bucket 0 begins, `entry` the exchange in force, `choices` the
    exchanges that are possible, `residuals` what this worker keeps back, which a checkpoint of the model does not have.

    Parameters
    ----------
    exchange, density : str, float
        One of `simnet.cluster.hooks.exchanges.SCHEMES`, and the fraction of the entries that it keeps, in (0, 1].
    label : str, optional
        Its name in the log; the name of the scheme when omitted.
    group : ProcessGroup, optional
        The workers, all when omitted, who make their hooks at the same place: they make a group of their own.
    **options
        Options of the scheme, but for algorithms of collectives: the library picks its own.

    Raises
    ------
    InputError
        If PyTorch or its process group is missing, or hooks do not know the exchange or an option.
    """

    def __init__(
        self,
        exchange: str = "dense",
        density: float = 1.0,
        *,
        label: str | None = None,
        group: Any = None,
        **options: Any,
    ) -> None:
        kind: Any = {"dense": "dense", "fp16": "half"}.get(exchange, "sparse")
        worker_scheme(exchange)
        entry = TableEntry(label=label or exchange, scheme=exchange, options=options, kind=kind, density=density)
        self._set_up((entry,), group)

    @classmethod
    def of_policy(
        cls,
        table: str | PathLike[str] | PolicyTable,
        *,
        probe: Probe | None = None,
        every: int = 100,
        group: Any = None,
    ) -> Hook:
        """Return a hook that looks up its exchange for the measured network in a table from ``simnet choose --export``.

        `probe` measures latency [s] and bandwidth [byte/s], by default `shifted`, each `every` iterations; the slowest
        worker counts. InputError if the table cannot be read, was made for other workers, has an unknown exchange, or
        exchanges with and without error feedback.
        """
        name = "policy" if isinstance(table, PolicyTable) else str(table)
        read = table if isinstance(table, PolicyTable) else load_policy(name)
        for number, one in enumerate(read.choices):
            try:
                worker_scheme(one.scheme)
            except InputError as error:
                raise InputError(error.message, file=name, field=f"choices[{number}].scheme") from None
        hook = cls.__new__(cls)
        hook._set_up(read.choices, group)
        hook._every = check_int(every, "every", 1)
        hook._table = read
        if read.made_for.workers != hook.size:
            raise InputError(
                f"the table was made for {read.made_for.workers} workers, but there are {hook.size}; make one with "
                f"simnet choose --workers {hook.size} --export",
                file=name,
                field="made_for.workers",
            )
        if probe is not None:
            hook._probe = probe
        return hook

    @classmethod
    def advised(
        cls,
        choices: str | PathLike[str] | PolicyTable | Sequence[TableEntry],
        *,
        device: str | Path | DeviceProfile,
        every: int = 10,
        probes: bool = True,
        log: str | PathLike[str] | None = None,
        group: Any = None,
        **options: Any,
    ) -> Hook:
        """Return a hook that estimates exchange times from measured iterations, and uses the fastest of `choices`.

        The first dense one of the choices, which a table may have, is the fallback; one is added if there is none.
        Kernels cost what the device has of ``simnet calibrate device``. There are `every` iterations between two
        decisions. With `probes` workers may probe the network before the first iteration, and after links have jumped.
        Worker 0 writes ``adviser.jsonl``, a decision per line, in the folder `log`. `options` are ``horizon``,
        ``margin``, ``change_cost`` and ``probe_share`` of `simnet.training.advise.Adviser`. InputError as `of_policy`;
        or if a choice has no closed form, or sparse choices differ in density.
        """
        if isinstance(choices, str | PathLike):
            choices = load_policy(str(choices))
        entries = list(choices.choices if isinstance(choices, PolicyTable) else choices)
        for one in entries:
            worker_scheme(one.scheme)
        dense = [one for one in entries if one.kind == "dense"]
        fallback = dense[0] if dense else TableEntry(label="dense", scheme="dense", kind="dense", density=1.0)
        entries = [fallback, *(one for one in entries if one is not fallback)]
        profile = device if isinstance(device, DeviceProfile) else load_device(device)
        hook = cls.__new__(cls)
        hook._set_up(tuple(entries), group)
        hook._advising = Advising(
            entries, profile, group, every=check_int(every, "every", 1), probes=probes, log=log, **options
        )
        return hook

    def _set_up(self, choices: tuple[TableEntry, ...], group: Any) -> None:
        import_extra("torch", "train", "needs PyTorch", "simnet.cluster.hooks")
        if not dist.is_initialized():
            raise InputError("there is no process group yet: call torch.distributed.init_process_group first")
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.choices, self.entry = choices, choices[0]
        self.iteration, self.residuals = 0, Residuals()
        self.marks: LoggedIteration | None = None
        self._schemes: dict[str, WorkerScheme] = {one.scheme: worker_scheme(one.scheme) for one in choices}
        # By the choice, and by the identities of a bucket's parameters, which DDP keeps alive.
        self._models: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._names: Mapping[int, str] = {}
        self._table: PolicyTable | None = None
        self._advising: Advising | None = None
        self._entries_of: list[int] = []
        self._every = 1
        self._probe: Probe = lambda device: shifted(device, group=self._own)
        self._clock: StageClock | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        feedback = {one.label: self._model(number, (), 1).options.error_feedback for number, one in enumerate(choices)}
        with refuse_values(file="simnet.cluster.hooks"):
            check_feedback(feedback)
        self._given = group
        self._own = new_group_like(group)
        atexit.register(self.close)

    @property
    def group(self) -> Any:
        """The hook's own process group, which carries its messages; None after `close`."""
        return self._own

    def attach(self, model: Any) -> Hook:
        """Register the hook with a DistributedDataParallel model, and return the hook."""
        self._names = {id(one): name for name, one in model.module.named_parameters()}
        entries = sum(one.numel() for one in model.module.parameters() if one.requires_grad)
        if self._advising is not None:
            self._advising.start(entries)
        model.register_comm_hook(self, lambda hook, bucket: hook.exchange(bucket))
        return self

    def clock(self, device: Any) -> StageClock:
        """Return the clock for stage times on a device: CUDA events on a GPU, otherwise the processor's clock."""
        if self._clock is None:
            self._clock = EventClock() if device.type == "cuda" else StageClock()
        return self._clock

    def exchange(self, bucket: Any) -> Any:
        """Exchange a DDP bucket; return a future of the mean gradient, which is written to the bucket's buffer.

        SimnetError if a gradient is not finite or not float32, or an exchange before has failed.
        """
        self.check()
        flat = bucket.buffer()
        if flat.dtype != torch.float32:
            raise SimnetError(f"{self._place(bucket)}: gradients must be float32, got {flat.dtype}")
        clock = self.clock(flat.device)
        if bucket.index() == 0:
            self._begin(flat.device)
        assert self.marks is not None, "DDP hands over bucket 0 first"
        marks, began = self.marks, clock.mark()
        total = flat.sum()
        if not flat.is_cuda:
            self._check_finite(bucket, flat, total)
        self._entries_of.append(flat.numel())
        part = self._part(bucket, flat)
        steps = self._schemes[self.entry.scheme]
        selected = steps.select(part)
        marks.selecting.append(LoggedSpan(began, clock.mark()))
        on_gpu = [flat.device] if flat.is_cuda else []
        future = torch.futures.Future(devices=on_gpu)
        place: Callable[[], AbstractContextManager[Any]] = nullcontext
        if on_gpu:
            place = self._on_own_stream(flat.device, (total, part.given, *selected))

        def finish() -> None:
            with place():
                try:
                    if on_gpu:
                        self._check_finite(bucket, flat, total)
                    messages, taken = GroupMessages(self._own, clock), clock.mark()
                    steps.exchange(part, selected, messages)
                    marks.exchanging.append(LoggedSpan(taken, clock.mark()))
                    marks.messages.extend(messages.sent)
                    future.set_result(flat)
                except BaseException as error:  # Raised again where the caller meets it.
                    self._failure = error
                    future.set_exception(error)

        self._run(finish)
        if bucket.is_last():
            self.iteration += 1
        return future

    def check(self) -> None:
        """Raise the error of a failed exchange, if there is one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End threads and process groups. Later iterations restart them, but a hook from `advised` stops switching."""
        atexit.unregister(self.close)
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None
        if self._advising is not None:
            self._advising.close()
            self._advising = None
        if self._own is not None:
            destroy_group(self._own)
            self._own = None

    def _begin(self, device: Any) -> None:
        """Begin an iteration: probe the network if that is due, and pick the scheme if the hook can switch schemes."""
        if self._own is None:
            self._own = new_group_like(self._given)
            atexit.register(self.close)
        if self._table is not None and self.iteration % self._every == 0:
            latency, bandwidth = self._probe(device)
            slowest = torch.tensor([latency, 1 / bandwidth], dtype=torch.float64, device=device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._own)  # All workers must take the same choice.
            self.entry = self._table.lookup(slowest[0].item(), 1 / slowest[1].item()).entry
        if self._advising is not None:
            sizes, self._entries_of = tuple(self._entries_of), []
            self.entry = self._advising.begin(self.iteration, self.marks, sizes, self.clock(device))
        self.marks = LoggedIteration(self.iteration, self.entry.label, self.entry.density)

    def _model(self, number: int, parameters: tuple[int, ...], entries: int) -> Any:
        """Return the scheme of ``choices[number]`` with its state for the bucket of these `parameters` (their ids)."""
        # State by position in the bucket, such as Ok-Topk's region boundaries, is invalid once parameters move.
        entry = self.choices[number]
        found = self._models.get((number, parameters))
        if found is not None:
            return found
        options: dict[str, Any] = dict(entry.options)
        if entry.scheme == "fp16":
            options = {"accumulation": "half"} | options
        with refuse_values(file="simnet.cluster.hooks", before=f"{entry.label}: "):
            found = sparsifier_models.create(entry.scheme, self.size, entries, entry.density, **options)
        if refused := unfollowed_option(found):
            raise InputError(f"{entry.label}: hooks cannot follow {refused}", file="simnet.cluster.hooks")
        self._models[number, parameters] = found
        return found

    def _part(self, bucket: Any, flat: torch.Tensor) -> BucketShare:
        """Return this worker's data for a bucket: gradient plus residual, the scheme, and a buffer for the update."""
        parameters = tuple(map(id, bucket.parameters()))
        model = self._model(self.choices.index(self.entry), parameters, flat.numel())
        model.iteration = self.iteration
        kept = self.residuals.kept(bucket)
        if not model.keeps:
            if kept is not None:
                flat.add_(kept)
                self.residuals.drop(bucket)
            given = flat if not model.traits.keeps_residual or model.name == "fp16" else flat.clone()
        elif kept is None:
            given = flat.clone()
            self.residuals.keep(bucket, given)
        else:
            given = kept.add_(flat)
        return BucketShare(model, self.rank, given, flat)

    def _check_finite(self, bucket: Any, flat: torch.Tensor, total: torch.Tensor) -> None:
        """Raise SimnetError if gradients are NaN or infinite, as they would spread to all workers' residuals."""
        if total.isfinite().item() or flat.isfinite().all().item():
            return
        at = int(flat.isfinite().logical_not().nonzero()[0].item())
        found, end = float(flat[at].item()), 0
        for parameter in bucket.parameters():
            begin, end = end, end + parameter.numel()
            if at < end:
                name = self._names.get(id(parameter), f"a parameter of shape {tuple(parameter.shape)}")
                raise SimnetError(
                    f"{self._place(bucket)}: entry {at - begin} of the gradient of {name} is {found:g}; "
                    "it must be finite"
                )

    def _place(self, bucket: Any) -> str:
        return f"rank {self.rank}, iteration {self.iteration}, bucket {bucket.index()}"

    def _on_own_stream(self, device: Any, handed: tuple[Any, ...]) -> Callable[[], ExitStack]:
        """Return a function that switches to the hook's CUDA stream, which waits for work of the current stream."""
        if not hasattr(self, "_stream"):
            self._stream = torch.cuda.Stream(device)
        ready = torch.cuda.current_stream(device).record_event()
        for one in handed:
            if isinstance(one, torch.Tensor):
                one.record_stream(self._stream)

        def enter() -> ExitStack:
            stack = ExitStack()
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(torch.cuda.stream(self._stream))
            self._stream.wait_event(ready)
            return stack

        return enter

    def _run(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="simnet-hook", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class Residuals:
    """Residuals (unsent parts of gradients) of one worker, by bucket; they survive when DDP rebuilds its buckets."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[tuple[int, ...], torch.Tensor]] = {}
        # By the identity of the parameters, which DDP keeps alive.
        self._pieces: dict[int, torch.Tensor] = {}

    def of(self, parameter: Any) -> torch.Tensor | None:
        """Return the residual of a parameter as a one-dimensional tensor; None if the parameter has no residual."""
        return self._pieces.get(id(parameter))

    def kept(self, bucket: Any) -> torch.Tensor | None:
        """Return the residual of a bucket, shape (n,), which may be modified in place; None if there is no residual."""
        parameters = bucket.parameters()
        key, held = tuple(map(id, parameters)), self._buckets.get(bucket.index())
        if held is not None and held[0] == key:
            return held[1]
        if not any(one in self._pieces for one in key):
            return None
        fresh = bucket.buffer().new_zeros(bucket.buffer().numel())
        ends = itertools.accumulate(one.numel() for one in parameters)
        for one, parameter, end in zip(key, parameters, ends, strict=True):
            if one in self._pieces:
                fresh[end - parameter.numel() : end] = self._pieces[one]
        self.keep(bucket, fresh)
        return fresh

    def keep(self, bucket: Any, values: torch.Tensor) -> None:
        """Store `values`, shape (n,), as the residual of a bucket."""
        parameters = bucket.parameters()
        sizes = [one.numel() for one in parameters]
        self._buckets[bucket.index()] = tuple(map(id, parameters)), values
        self._pieces.update(zip(map(id, parameters), values.split(sizes), strict=True))

    def drop(self, bucket: Any) -> None:
        """Delete the residual of a bucket."""
        self._buckets.pop(bucket.index(), None)
        for one in bucket.parameters():
            self._pieces.pop(id(one), None)


class Trainer:
    """Runs training iterations of a DDP model with a hook, and logs how long their stages take.

    Parameters
    ----------
    model, optimizer, hook : DistributedDataParallel, torch.optim.Optimizer, Hook
        The model, the optimizer of its parameters, and the exchange.
    log : str or Path, optional
        Folder of the log, ``rank_<r>.csv`` with `simnet.cluster.hooks.log.COLUMNS`; InputError if it has a log already.
    """

    def __init__(self, model: Any, optimizer: Any, hook: Hook, log: str | PathLike[str] | None = None) -> None:
        self.model, self.optimizer, self.hook = model, optimizer, hook.attach(model)
        self._clock = hook.clock(next(model.parameters()).device)
        self._log = None if log is None else IterationLog(log, hook.rank, self._clock)
        self._first: float | None = None

    def step(self, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run one iteration, and return the loss; SimnetError if a gradient is not finite."""
        mark, now = self._clock.mark, time.perf_counter()
        if self._first is None:
            self._first = now
        began = mark()
        found = loss()
        try:
            found.backward()
        except Exception:
            self.hook.check()
            raise
        self.hook.check()
        updating = mark()
        self.optimizer.step()
        self.optimizer.zero_grad()
        ended = mark()
        if self._log is not None:
            assert self.hook.marks is not None, "DDP has handed over no bucket"
            self._log.add(self.hook.marks, now - self._first, began, updating, ended)
        return found

    def close(self) -> None:
        """Close the hook, and write the iterations that the log still lacks."""
        self.hook.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
