"""Published gains of newer compressors, and whether simulated intervals agree with their sign and range.

No paper says all of its setting. So what simnet gives is an interval, from one end of what is not stated to the other.
Where that is so wide that hardly anything could be outside, the gain is shown for orientation.
`simnet.validate.reproduction.gains` says what is stated and what is taken.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from simnet.collectives import registry
from simnet.cost_models.costs.models import load_model, transformer_flops
from simnet.network import Network
from simnet.scenario import load, runner
from simnet.schedule import Schedule
from simnet.sparsifier_models import create
from simnet.topologies import star
from simnet.validate.published import read_published
from simnet.validate.reproduction.table import Interval, Row, reproduces

V100_FLOPS = Interval(39e12, 64e12, 50e12)
"""Operations per second of a V100 in mixed precision: of Megatron-LM (arXiv 1909.08053), and DeepSpeed's record."""

A100_FLOPS = Interval(105.8e12, 133.3e12, 119e12)
"""Operations per second of an A100 in bfloat16, measured by the SDP4Bit authors with 32 microbatches."""

NODE_BANDWIDTH = {"V100": Interval(12.2e9, 150e9, 150e9), "A100": Interval(300e9, 300e9, 300e9)}
"""Bandwidth of a GPU inside its node [byte/s]: measured PCIe 3, or NVLink."""

BESIDE = Interval(1.2, 1.8, 1.5)
"""Slowdown of computing while collectives run. The upper end is what matrix products and attention of an
A100 took during an all-gather over NVLink, 1.76 and 1.83 times; elementwise kernels took 2.5 (NVIDIA/nccl, issue 1428).
The lower end is an assumption: NCCL has 15 % of a GPU's multiprocessors (issue 1432, which has no times)."""

ETHERNET_LATENCY, FAST_LATENCY = Interval(0.0, 50e-6, 25e-6), Interval(0.0, 5e-6, 2.5e-6)
"""Latency of a network card over Ethernet with TCP, and over InfiniBand or Slingshot [s]."""


ONE_BIT, ZERO_ONE, ARC, OMNI, THC = "1-bit Adam", "0/1 Adam", "ARC-Top-K", "OmniReduce", "THC"


def published(scheme: str, what: str) -> tuple[Interval, str]:
    """Return a published gain as an interval, and its unit."""
    (row,) = read_published("gains.csv").query("scheme == @scheme and what == @what").to_dict("records")
    return Interval(float(row["least"]), float(row["most"])), str(row["unit"])


def gain_row(scheme: str, what: str, ours: Interval, *, judged: bool = True) -> Row:
    """Return a row that compares a published gain with simnet's interval; it has a tolerance only if `judged`."""
    theirs, unit = published(scheme, what)
    return Row(what, theirs, ours, unit, 0.0 if judged else None)


def bytes_row(scheme: str, what: str, ours: float) -> Row:
    """Return a row that compares byte-reduction factors, with tolerance 0.5, as published factors are integers."""
    theirs, unit = published(scheme, what)
    return Row(what, theirs.low, ours, unit, 0.5, absolute=True)


# Jobs of scenarios


def iterations_of(scenario: str, *changes: str) -> dict[str, Any]:
    """Return the simulated iterations of a scenario with overrides, as a table per policy."""
    return {name: one.iterations for name, one in runner.results_of(load(scenario, list(changes)).build()).items()}


def computing_range(operations: float, flops: Interval) -> Interval:
    """Return the compute time of a number of operations [s], for the range of FLOP/s."""
    return Interval(operations / flops.high, operations / flops.low, operations / flops.middle)


# Half of the peak of an A100 in fp32.
_A100_FP32 = 9.75e12
# The share of rows that is kept: as stated, and the mean of the first 50 steps of the released hook, which goes from
# 0.8 to 0.2 in 102.
_KEPT, _FIRST_KEPT = 0.2, 0.8 - 0.6 * 24.5 / 102


@reproduces("gain-arc-top-k", ARC, "abstract and Table V")
def arc_top_k() -> list[Row]:
    """Return the time that ARC-Top-K saves per step, compared with a dense step.

    The scenario `arctopk_llama`, with the links that the published dense step means. With a fifth of the rows, 69 to
    79 % less; 60.7 % at best are published. The released hook begins with four fifths, and comes down to one in its
    first 102 steps, unless told otherwise: of the 50 steps that were timed it is not stated whether they are behind
    these, and the interval goes from the first 50 to those with a fifth. What the hook takes beside kernels and
    bytes, for each of up to 219 tensors, is not measured, and is not in it: with a fifth of the rows 0.37 s more in a
    step of 1,339 million would make it 60.7.
    """
    rows = []
    for row in read_published("dense_steps.csv").to_dict("records"):
        name, dense = str(row["model"]), float(row["seconds"])
        profile = load_model(name)
        layers, width = (int(one) for one in name.removeprefix("llama-").split("x"))
        longest = transformer_flops(1, 256, layers, width, 32000) / _A100_FP32
        shares = [
            100 * (1 - _arc_step(name, profile.parameters, dense, computing, device, kept) / dense)
            for computing, device, kept in (
                (longest / 2, "a100-torch2.6", _KEPT),
                (0.0, "ideal", _KEPT),
                (longest, "a100-torch2.6", _FIRST_KEPT),
            )
        ]
        what = f"LLaMA of {profile.parameters / 1e6:,.0f} million, best"
        rows.append(gain_row(ARC, what, Interval.around(shares), judged=False))
    return rows


def _arc_step(name: str, parameters: int, dense: float, computing: float, device: str, kept: float) -> float:
    """Return the step time of ARC-Top-K [s] on links whose rate is derived from the measured dense step."""
    rate = 2 * 3 / 4 * 4 * parameters / (dense - computing)
    changes = (
        f"job.model={name}",
        f"job.device={device}",
        f"job.compute.mean={computing:g} s",
        f"network.topology.star.bandwidth={rate:g} B/s",
        "job.iterations=1",
        f"job.density={kept:g}",
    )
    return float(iterations_of("arctopk_llama", *changes)["ARC-Top-K"]["iteration_s"].iloc[0])


_TENSOR, _SAMPLE, _SLOTS = 26_214_400, 40, 32


@reproduces("gain-omnireduce", OMNI, "abstract")
def omnireduce() -> list[Row]:
    """Return the speed-up of OmniReduce over a dense ring, for a tensor of 100 MB.

    With 10 % of the blocks of each worker not empty, and from all of them to 1 %, of which 1,280 are under way at a
    time. Both published values are inside, as such an interval is no test: how sparse the six models are was not
    available. Nor is the sign: without empty blocks there is no gain. Ours is less than with aggregators of their
    own, as workers that aggregate carry both directions twice.
    """
    rows = []
    for what, rate in (("10 Gbit/s, best of all models", 1.25e9), ("100 Gbit/s, network-bound models", 12.5e9)):
        corners = ((10e-6, 0.1), (50e-6, 1.0), (5e-6, 0.01))
        found = Interval.around(blocks_gain(rate, latency, share) for latency, share in corners)
        rows.append(gain_row(OMNI, what, found, judged=False))
    return rows


def blocks_gain(bandwidth: float, latency: float, share: float) -> float:
    """Return OmniReduce's speed-up over a dense ring of 8 workers, for a share of nonempty blocks."""
    network = Network(star(8, latency=latency, bandwidth=bandwidth))
    dense, blocks = (network.time(one).duration for one in _ring_messages(share))
    return dense / blocks


@cache
def _ring_messages(share: float) -> tuple[Schedule, Schedule]:
    """Return the schedules of a dense ring and of OmniReduce between 8 workers."""
    entries = _TENSOR // _SAMPLE
    draws = np.random.default_rng(0)
    filled = np.repeat(draws.random((8, entries // 256)) < share, 256, axis=1).astype(np.float32)
    blocks = create("omnireduce", 8, entries, 1.0, scale=_SAMPLE, slots=_SLOTS).exchange(filled).schedule
    return registry.collective_by_algorithm("all_reduce", "ring").schedule(8, 4.0 * _TENSOR), blocks


_BUCKETS = ("job.overlap={bucket: 25 MiB, backward: 67 %}",)


@reproduces("gain-thc", THC, "abstract")
def thc() -> list[Row]:
    """Return the speed-up of a training step with THC over one with a dense ring.

    The scenario `thc_vgg16`, at 25 to 100 Gbit/s, without overlap, or with buckets that go while gradients are
    computed. That these are of 25 MiB, as DDP has by default (Horovod fuses up to 64 MB), and the backward pass 67 %
    of the computing, is assumed. Published is the time to an accuracy, against systems that compress, too; ours is a
    step against a dense ring. Which systems, models and links these are the abstract does not say, so that the size
    is no test.
    """
    gains = []
    corners = ((50, "v100-torch2.6", ()), (25, "ideal", ()), (100, "v100-torch2.6", _BUCKETS))
    for rate, device, overlap in corners:
        links = f"network.topology.star.bandwidth={rate} Gbit/s"
        changes = (f"job.device={device}", links, "job.iterations=1", *overlap)
        took = {name: float(one["iteration_s"].iloc[0]) for name, one in iterations_of("thc_vgg16", *changes).items()}
        gains.append(took["dense"] / took["THC"])
    return [gain_row(THC, "software server", Interval.around(gains), judged=False)]
