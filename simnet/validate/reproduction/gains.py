"""Published gains of newer compressors, and whether simulated intervals agree with their sign and range.

No paper says all of its setting. So what simnet gives is an interval, from one end of what is not stated to the other.
Where that is so wide that hardly anything could be outside, the gain is shown for orientation.
`simnet.validate.reproduction.gains` says what is stated and what is taken.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

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
    """Return the gain that a paper publishes for a scheme, such as a speed-up, as an interval, and the gain's unit."""
    (row,) = read_published("gains.csv").query("scheme == @scheme and what == @what").to_dict("records")
    return Interval(float(row["least"]), float(row["most"])), str(row["unit"])


def gain_row(scheme: str, what: str, ours: Interval, *, judged: bool = True) -> Row:
    """Compare a published gain, such as a speed-up, with simnet's interval; with a tolerance only if `judged`."""
    theirs, unit = published(scheme, what)
    return Row(what, theirs, ours, unit, 0.0 if judged else None)


def bytes_row(scheme: str, what: str, ours: float) -> Row:
    """Compare factors by which a scheme reduces bytes; the tolerance is 0.5, as published factors are integers."""
    theirs, unit = published(scheme, what)
    return Row(what, theirs.low, ours, unit, 0.5, absolute=True)


# Jobs of scenarios


def iterations_of(scenario: str, *changes: str) -> dict[str, Any]:
    """Return the simulated iterations of a scenario with overrides, as a table per policy."""
    return {name: one.iterations for name, one in runner.results_of(load(scenario, list(changes)).build()).items()}


def computing_range(operations: float, flops: Interval) -> Interval:
    """Return the compute time of a number of operations [s], for the range of FLOP/s."""
    return Interval(operations / flops.high, operations / flops.low, operations / flops.middle)


# 1-bit Adam and 0/1 Adam, with the dense steps of Table 1 of 1-bit Adam, 16 sequences a GPU

# Of 40 Gbit/s Ethernet what iperf got and the card itself, and of InfiniBand what perftest got [Gbit/s].
_IPERF, _CARD, _PERFTEST = 4.1, 40.0, 32.0
# GPUs of the measured cluster with InfiniBand, and how many entries of the model one that is drawn stands for.
_FEWER_GPUS, _FEW = 64, 400_000


class Adam(NamedTuple):
    """Communication seconds of a dense and of a sign-compressed step of Adam, and the ratio of the two steps' bytes."""

    dense: float
    signs: float
    fewer: float

    def gain(self, computing: float) -> float:
        """Return the speed-up of sign-compressed steps over dense steps, given a step's compute time [s]."""
        return (self.dense + computing) / (self.signs + computing)


@cache
def adam(gpus: int, each: int, gigabits: float, latency: float, inside: float, device: str) -> Adam:
    """Simulate Adam and 1-bit Adam for BERT-Large, with `gigabits` [Gbit/s] across and `inside` [byte/s] in nodes."""
    topology = {
        "nodes": gpus // each,
        "gpus_per_node": each,
        "intra_bandwidth": f"{inside:g} B/s",
        "nic_latency": f"{latency:g} s",
        "nic_bandwidth": f"{gigabits:g} Gbit/s",
    }
    changes = [f"network.topology.multi_gpu_nodes.{name}={value}" for name, value in topology.items()]
    # Messages are of the whole model, of however few entries of it the signs are drawn.
    own = (f"workers={gpus}", f"job.device={device}", f"job.scale={_FEW}")
    found = iterations_of("onebit_adam_bert", *own, *changes)["1-bit Adam"]
    dense, signs = (found["iteration_s"] - found["compute_s"]).tolist()
    sent = found["bytes_sent_B"].tolist()
    return Adam(dense, signs, sent[0] / sent[1])


def dense_steps(network: str) -> pd.DataFrame:
    """Return the authors' measured dense training steps of BERT-Large on a network, a row per GPU count, largest first.

    Columns: seconds of ``computing``, of which ``step`` is the optimiser's, and the ``gigabits`` a second that a card
    carries of the all-reduce.
    """
    rows = read_published("profiles.csv").query("network == @network").sort_values("gpus", ascending=False)
    forward, allreduce, backward, step = (
        rows[f"{one}_ms"] / 1e3 for one in ("forward", "allreduce", "backward", "step")
    )
    sent = 2 * 2 * load_model("bert-large").parameters * (rows["gpus"] - 1) / rows["gpus"]
    return pd.DataFrame({"computing": forward + backward + step, "step": step, "gigabits": 8e-9 * sent / allreduce})


def _on_ethernet(gpus: int) -> tuple[Adam, Adam, Adam]:
    """Simulate 1-bit Adam on Ethernet under three assumptions, for the expected, lowest and highest speed-up."""
    # The first is in between, and with the others it gains the least and the most. Of the last the signs are those of
    # cards that carry all that they can, as many streams may do where one does not.
    inside, latency = NODE_BANDWIDTH["V100"], ETHERNET_LATENCY
    rates = dense_steps("Ethernet")["gigabits"].tolist()
    slow = adam(gpus, 4, _IPERF, latency.low, inside.high, "ideal")
    fast = adam(gpus, 4, _CARD, latency.low, inside.high, "ideal")
    return (
        adam(gpus, 4, rates[0], latency.middle, inside.middle, "v100-torch2.6"),
        adam(gpus, 4, max(rates), latency.high, inside.low, "v100-torch1.5"),
        slow._replace(signs=fast.signs),
    )


def _on_infiniband() -> tuple[Adam, Adam, Adam]:
    """Simulate 1-bit Adam on InfiniBand under three assumptions, for the expected, lowest and highest speed-up."""
    inside, latency = NODE_BANDWIDTH["V100"], FAST_LATENCY
    return (
        adam(_FEWER_GPUS, 4, _PERFTEST, latency.middle, inside.middle, "v100-torch2.6"),
        adam(_FEWER_GPUS, 8, _PERFTEST, latency.high, inside.low, "v100-torch1.5"),
        adam(_FEWER_GPUS, 4, _PERFTEST, latency.low, inside.high, "ideal"),
    )


def _measured(network: str, column: str = "computing") -> Interval:
    """Return the range of a time [s], such as compute, that authors measured in BERT-Large steps on a network."""
    return Interval.around(dense_steps(network)[column].tolist())


def _of_squad() -> Interval:
    """Return the compute time of a SQuAD fine-tuning step [s]: passes by FLOPs, plus the measured optimiser step."""
    passes = computing_range(transformer_flops(3, 384, 24, 1024), V100_FLOPS)
    return Interval(*map(sum, zip(passes, _measured("Ethernet", "step"), strict=True)))


def _run_gain(gain: float, warm_up: float) -> float:
    """Return the speed-up of a training in which the share `warm_up` of steps is dense, others `gain` times as fast."""
    return 1 / (warm_up + (1 - warm_up) / gain)


@reproduces("gain-1-bit-adam", ONE_BIT, "abstract and a post", slow=True)
def one_bit_adam() -> list[Row]:
    """Return the throughput of 1-bit Adam relative to Adam in fp16, and the reduction of bytes.

    The scenario `onebit_adam_bert`, one step of each kind; computing and the optimiser's step are those that the
    authors measured. In the all-to-all of signs a card carries the messages of all GPUs of its node, in a ring those of
    one GPU. So an exchange of signs is 6 times shorter, with 16 times fewer bytes. For the cards of 40 Gbit/s Ethernet
    two rates are known: 4.1 Gbit/s for one stream, and 4.6 to 5.0 for the ring. With these rates for signs, our gains
    are below the published ones, which need some 8 Gbit/s; the many streams of an all-to-all may reach that. As the
    interval goes up to the full rate of the card, these four rows hardly test the size of gains. On InfiniBand all
    rates are stated, and the interval is narrow.
    """
    cases = {
        "BERT-Large on 40 Gbit/s Ethernet": (_on_ethernet(256), _measured("Ethernet"), 0.15),
        "SQuAD on 40 Gbit/s Ethernet": (_on_ethernet(32), _of_squad(), 0.25),
        "BERT-Large on 40 Gbit/s InfiniBand": (_on_infiniband(), _measured("InfiniBand"), None),
    }
    rows: list[Row] = []
    for case, (steps, computing, warm_up) in cases.items():
        if not rows:
            rows.append(bytes_row(ONE_BIT, "bytes of a whole training, 15 % warm-up", _run_gain(steps[0].fewer, 0.15)))
        ends = (one.gain(seconds) for one in steps[1:] for seconds in (computing.low, computing.high))
        found = Interval.around([steps[0].gain(computing.middle), *ends])
        rows.append(gain_row(ONE_BIT, f"{case}, compressed steps, best", found, judged="InfiniBand" in case))
        if warm_up is not None:
            of_whole = [_run_gain(gain, warm_up) for gain in found]
            rows.append(gain_row(ONE_BIT, f"{case}, whole training, best", Interval(*of_whole), judged=False))
    return rows


class AdamSteps(NamedTuple):
    """Numbers of training steps by what workers exchange: dense gradients, signs, or nothing."""

    dense: int
    signs: int
    silent: int

    @property
    def all(self) -> int:
        """Number of training steps of all kinds."""
        return sum(self)


_TRAINING, _WARM_UP, _FROZEN, _LOCAL = 152_511, 23_000, 12_500, 32_678
# Of the steps of other tasks the most that DeepSpeed advises for the warm-up of 1-bit Adam.
_LONG_WARM_UP = 0.25
# Local steps whose intervals are in proportion are counted by fewer.
_FEWER = 100


@cache
def zero_one_steps() -> AdamSteps:
    """Return the numbers of steps of each kind in a BERT-Large training with 0/1 Adam, counted in a run."""
    common = _step_kinds(_FROZEN + 1, var_freeze_step=_FROZEN)
    local = _step_kinds(2 + (_TRAINING - common.all) // _FEWER, var_freeze_step=1, local_step_scaler=_LOCAL // _FEWER)
    # The two before v stays are those of `common`.
    signs = common.signs + _FEWER * (local.signs - (2 - local.dense))
    return AdamSteps(common.dense, signs, _TRAINING - common.dense - signs)


def _step_kinds(steps: int, **options: int) -> AdamSteps:
    scheme, gradients = create("zerooneadam", 2, 16, **options), np.ones((2, 16), dtype=np.float32)
    phases = [{one.phase for one in scheme.exchange(gradients).schedule.rounds} for _ in range(steps)]
    dense, silent = sum("dense" in one for one in phases), sum(not one for one in phases)
    return AdamSteps(dense, steps - dense - silent, silent)


@reproduces("gain-0-1-adam", ZERO_ONE, "abstract", slow=True)
def zero_one_adam() -> list[Row]:
    """Return bytes, rounds and throughput of 0/1 Adam, relative to 1-bit Adam.

    The scheme, with the options and length of the released script, counts the steps that are dense, exchange signs or
    send nothing; local steps are counted on a hundredth of the training, with intervals in proportion. Step times are
    those of the scenario `onebit_adam_bert` on 128 GPUs. Published is the best of four tasks, of which one is released.
    The saved bytes depend on the length of 1-bit Adam's warm-up: 15 % there, up to 25 % as DeepSpeed recommends. The
    number of rounds does not: 54 % fewer rounds would need a training of 163,000 steps, so the best task is another
    one. The throughput may be meant for the whole training or after that warm-up; the interval includes both.
    """
    steps = zero_one_steps()
    middle, *ends = _on_ethernet(128)
    computing = _measured("Ethernet")
    one_bit = AdamSteps(_WARM_UP, _TRAINING - _WARM_UP, 0)
    dense = round(_LONG_WARM_UP * _TRAINING)
    volume, *others = (
        one.dense * middle.fewer + one.signs for one in (steps, one_bit, AdamSteps(dense, _TRAINING - dense, 0))
    )
    saved = [100 * (1 - volume / other) for other in others]
    rounds = 100 * (1 - (steps.dense + steps.signs) / one_bit.all)
    rows = [
        gain_row(ZERO_ONE, "fewer bytes, best", Interval.around(saved)),
        gain_row(ZERO_ONE, "fewer rounds, best", Interval.around([rounds])),
    ]

    def mean(of: AdamSteps, took: Adam, computing: float) -> float:
        return computing + (of.dense * took.dense + of.signs * took.signs) / of.all

    # Behind the warm-up 1-bit Adam has nothing but signs.
    compared = [one_bit, AdamSteps(0, 1, 0)]
    gains = [
        mean(other, took, seconds) / mean(steps, took, seconds)
        for other in compared
        for took, seconds in itertools.product(ends, (computing.low, computing.high))
    ]
    own = mean(compared[0], middle, computing.middle) / mean(steps, middle, computing.middle)
    return [*rows, gain_row(ZERO_ONE, "throughput, best", Interval.around([own, *gains]), judged=False)]


# Other schemes

# Half of the peak of an A100 in fp32.
_A100_FP32 = 9.75e12
# The share of rows that is kept: as stated, and the mean of the first 50 steps of the released hook, which goes from
# 0.8 to 0.2 in 102.
_KEPT, _FIRST_KEPT = 0.2, 0.8 - 0.6 * 24.5 / 102


@reproduces("gain-arc-top-k", ARC, "abstract and Table V")
def arc_top_k() -> list[Row]:
    """Return the time that ARC-Top-K saves per step, compared with a dense step.

    The scenario `arctopk_llama`, with the link rate that the published dense step implies. With a fifth of the rows
    ours takes 69 to 79 % less time; the best published value is 60.7 %. The released hook starts with four fifths of
    the rows and reaches one fifth within its first 102 steps by default. It is not stated which 50 steps were timed, so
    the interval covers the first 50 as well as steps with a fifth. The hook's own overhead for up to 219 tensors was
    not measured and is not included: 0.37 s more per step with a fifth of the rows (1,339 million parameters) gives
    60.7 %.
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
    """Return the step time of ARC-Top-K [s]; the link rate is derived from the measured `dense` step time [s]."""
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

    Ours is for workers with 10 % non-zero blocks; the interval goes from 100 % to 1 %. 1,280 blocks are in flight at a
    time. Both published values are inside, but such an interval is no test: how sparse the six models are was not
    available. That there is a gain is no test either, as without zero blocks there is none. Ours is lower than with
    separate aggregators, as workers that aggregate carry both directions twice.
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

    The scenario `thc_vgg16`, at 25 to 100 Gbit/s, without overlap or with buckets that overlap the backward pass.
    Buckets of 25 MiB, DDP's default (Horovod fuses up to 64 MB), and a backward pass of 67 % of the computing are
    assumed. Published is the time to an accuracy compared with other compressing systems; ours is a step compared with
    a dense ring. The abstract does not say which systems, models and links it means, so the size is no test.
    """
    gains = []
    corners = ((50, "v100-torch2.6", ()), (25, "ideal", ()), (100, "v100-torch2.6", _BUCKETS))
    for rate, device, overlap in corners:
        links = f"network.topology.star.bandwidth={rate} Gbit/s"
        changes = (f"job.device={device}", links, "job.iterations=1", *overlap)
        took = {name: float(one["iteration_s"].iloc[0]) for name, one in iterations_of("thc_vgg16", *changes).items()}
        gains.append(took["dense"] / took["THC"])
    return [gain_row(THC, "software server", Interval.around(gains), judged=False)]
