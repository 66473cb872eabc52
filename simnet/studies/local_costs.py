"""Local compute time of a scheme on a device, without messages: by the scheme's kernels, or by stages of a DDP hook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simnet.base.errors import InputError, suggest_names
from simnet.base.units import format_seconds
from simnet.cost_models.costs import hooks
from simnet.cost_models.costs.devices import DEVICE_ALIASES, HostPrices, device_names
from simnet.cost_models.costs.hooks import FRAMEWORK, StageCost
from simnet.cost_models.costs.models import is_config, model_names
from simnet.policies import Candidate
from simnet.report.summary import Summary, interval_text, percent, table_columns
from simnet.report.wording import listed
from simnet.scenario import load
from simnet.scenario.resolve import candidate
from simnet.sparsifier_models import Sparsifier
from simnet.training.job.job import Job, create_sparsifier, job_buckets
from simnet.training.job.local_costs import hook_stages, scheme_hook

# Share of computing from which a local cost, or what launches add to kernels, is said.
_WORTH_SAYING = 0.05
# Exchanges after which a scheme has done its dense warm-up, as 1-bit Adam.
_WARMS_UP = 100
_NO_TIME = StageCost("", "before", *(0.0,) * 7)
_OVERLAPS = {
    "bucket": "works on each bucket in the thread of the backward pass",
    "blocking": "waits for the device in each bucket, so that nothing of it is hidden",
    "after": "works after the whole backward pass",
}


class LocalCost(NamedTuple):
    """Local compute time of an exchange on a device: with fused kernels [s] and, if known, by stage of a DDP hook."""

    fused: float
    hook: hooks.Hook | None
    stages: Sequence[StageCost] = ()

    @property
    def framework(self) -> StageCost | None:
        """Total operations, bytes and time [s] over all stages of the DDP communication hook; None if not counted."""
        return hooks.total_cost(self.stages) if self.stages else None


def local_cost(job: Job, candidate: Candidate) -> LocalCost:
    """Return the time that an exchange takes on a job's device, for gradients of zeros after any dense warm-up."""
    fused = 0.0
    for model in _models(job, candidate):
        zeros = np.zeros((model.workers, model.parameters), dtype=np.float32)
        kernels = (model.exchange(zeros).kernels for _ in range(_WARMS_UP))
        fused += float(job.device.seconds(next(filter(None, kernels), ()), model.workers).max())
    return counted_cost(job, candidate)._replace(fused=fused)


def counted_cost(job: Job, candidate: Candidate) -> LocalCost:
    """Return the cost of each stage of an exchange's DDP communication hook, without a time for fused kernels (0 s)."""
    device = job.device if job.device.implementation else replace(job.device, implementation=FRAMEWORK)
    hook, job = scheme_hook(device, candidate.scheme), replace(job, device=device)
    if hook is None:
        return LocalCost(0.0, None)
    stages = [stage for model in _models(job, candidate) for stage in hook_stages(device, hook, model)]
    places = list(dict.fromkeys(one[:2] for one in stages))
    return LocalCost(0.0, hook, [hooks.total_cost([one for one in stages if one[:2] == place]) for place in places])


def _models(job: Job, candidate: Candidate) -> Iterator[Sparsifier]:
    for bucket in job_buckets(job, [candidate]):
        model = create_sparsifier(candidate, bucket, job)
        model.density = job.density[-1].end
        yield model


def local_costs_text(job: Job, among: Sequence[Candidate]) -> str:
    """Return a text on the compression costs that a job assumes, and on the largest one; empty if all are small."""
    if job.steps is not None or job.strategy is not None or not job.compute.mean:
        return ""
    costs = {one.label: counted_cost(job, one) for one in among}
    seconds = {label: 0.0 if one.framework is None else one.framework.seconds for label, one in costs.items()}
    dearest = max(seconds, key=lambda label: seconds[label])
    hook, share = costs[dearest].hook, seconds[dearest] / job.compute.mean
    took = interval_text(*(costs[dearest].framework or _NO_TIME)[-3:])
    if job.device.implementation is None:
        free = replace(job.device, host=HostPrices(0.0, 0.0, 0.0, "kernels alone"), implementation=FRAMEWORK)
        alone = counted_cost(replace(job, device=free), next(one for one in among if one.label == dearest)).framework
        if hook is None or alone is None or share - alone.seconds / job.compute.mean < _WORTH_SAYING:
            return ""
        return f"time of GPU kernels only (as PyTorch code, {hook.implementation}, {dearest} takes {took})"
    said = [f"compressing by {dearest} takes {percent(share)} of computing, {took}"] if share >= _WORTH_SAYING else []
    prices = hooks.host_prices(job.device, job.device.implementation)
    said.append(f"local costs of {job.device.implementation}, {prices.known}")
    unknown = [label for label, one in costs.items() if one.hook is None]
    # Kernels of a processor were measured as operations of PyTorch.
    if unknown and not hooks.is_processor(job.device):
        said.append(f"those of {listed(unknown)} unknown: GPU kernels only")
    return ", ".join(said)


def local_cost_summary(scheme: str, names: Sequence[str]) -> Summary:
    """Return a summary of the times of a scheme's stages; `names` are model, device, implementation in any order."""
    model, device, how = "resnet50", None, FRAMEWORK
    for name in names:
        if name in model_names() or is_config(name):
            model = name
        elif name in (*device_names(), *DEVICE_ALIASES) or name.endswith((".yaml", ".yml")):
            device = name
        elif hooks.parsed_implementation(name)[0] in hooks.implementation_names():
            how = name
        else:
            known = [*model_names(), *device_names(), *hooks.implementation_names()]
            raise InputError(
                f"there is no model, device or implementation {name!r}: {suggest_names(name, known)}",
                file="simnet show",
            )
    scenario = load("base", [f"job.implementation={how}"], schemes=scheme, model=model, device=device)
    job, (labelled,) = scenario.build().job, scenario.config.exchanges.items()
    cost = local_cost(job, candidate(*labelled))
    told, whole = f"{scheme} of {model} on {job.device.name}", cost.framework
    fused = f"kernels alone take {format_seconds(cost.fused)}"
    if whole is None or cost.hook is None or how == hooks.FUSED:
        why = "its operations are not counted" if cost.hook is None else "without launches and views"
        why = "as PyTorch was measured to run them" if hooks.is_processor(job.device) and how != hooks.FUSED else why
        return Summary(answer=f"{told}: {fused} a reduce; {why}.", columns=table_columns("show"))
    price = hooks.host_prices(job.device, how)
    computing = format_seconds(job.compute.mean)
    seconds, share = interval_text(*whole[-3:]), percent(whole.seconds / job.compute.mean)
    told = f"{told}, as {cost.hook.implementation if how == FRAMEWORK else how} runs it"
    return Summary(
        answer=f"{told}: {seconds} a reduce, {share} of {computing} computing; {fused}.",
        columns=table_columns("show local cost"),
        rows=[_row(one) for one in (*cost.stages, whole._replace(stage="all"))],
        evidence=f"{price.known}: {format_seconds(price.operation)} an operation, {format_seconds(price.view)} a view.",
        assumed=f"{job.source.workers} workers, density {percent(job.density[-1].end)}; the hook "
        f"{_OVERLAPS[cost.hook.overlap]}.",
        notes=[f"Operations: {cost.hook.known}, {cost.hook.source}.",
               f"Prices: {price.source}."],
    )  # fmt: skip


def _row(one: StageCost) -> dict[str, object]:
    return {
        "stage": one.stage, "when": one.when if one.stage != "all" else "", "operations": one.operations,
        "views": one.views, "waits": one.waits, "moved_B": one.nbytes, "local_s": one.seconds, "local_low_s": one.low,
        "local_high_s": one.high,
    }  # fmt: skip
