"""How long a forward and backward pass takes: a model on a device.

Where somebody measured steps of the model on the device's chip, those are taken, by the batch. Else it is the model's
operations at the peak of the chip, in the precision that people train in there, times a utilisation: the median of the
published steps of its kind, images or transformers, in formats of as many bits. The interval is by which factors that
rule misses published steps when the steps of their own chip are left out, all of them; where fewer than three chips
have steps in such a format, those in other formats count, too.

=====================  =======================================================================================
data/step_times.csv    published steps: seconds of a batch on a chip; without a batch, seconds of a sample
data/chips.csv         peaks by the vendors' data sheets, in operations per second, none of them measured, and the
                       precision that people train in
=====================  =======================================================================================

A published 19 sequences/s of BERT-large at 512 tokens in FP32 on a V100 is above its peak, and left out. Convolutions
can be above it, as those of VGG-16 in FP32 are: by Winograd's algorithm they take fewer operations than are counted.
"""

from __future__ import annotations

import csv
import io
import math
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Literal, NamedTuple, cast

from simnet.base.errors import nearest
from simnet.base.units import format_seconds
from simnet.costs.devices import DeviceProfile, Known
from simnet.costs.models import ComputeTime, ModelProfile, Precision, model, model_operations, names

# How many chips must have published steps in a format, if those in others shall not count.
_CHIPS = 3


class Chip(NamedTuple):
    """A chip by its vendor's data sheet.

    Parameters
    ----------
    name : str
        As device profiles name it.
    kind : {"gpu", "cpu"}
        What it is.
    precision : {"fp32", "tf32", "fp16", "bf16"}
        In which people train on it.
    peaks : dict of str to float
        Operations per second by precision.
    source : str
        Where these come from.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    precision: Precision
    peaks: dict[str, float]
    source: str


class Computing(NamedTuple):
    """How long a forward and backward pass of a batch takes, and how that is known.

    Parameters
    ----------
    model : str
        Of which model.
    seconds, low, high : float
        The time, and the ends of its interval [s]; the same where there is none.
    batch : float
        Samples; 0 where the source does not state it.
    precision : {"fp32", "tf32", "fp16", "bf16"}
        In what is computed.
    known : {"measured", "scaled", "estimated"}
        Measured at this batch, by the batch from another one, or estimated by operations.
    source : str
        Of what, where it comes from, and what was assumed.
    """

    model: str
    seconds: float
    low: float
    high: float
    batch: float
    precision: Precision
    known: Known
    source: str

    def describe(self) -> str:
        """Return the time, its interval and its source."""
        ends = f" ({format_seconds(self.low)} to {format_seconds(self.high)})" if self.low < self.high else ""
        return f"that of {self.model}, {format_seconds(self.seconds)}{ends} forward and backward ({self.source})"

    def figures(self) -> dict[str, object]:
        """Return it for programs."""
        return {
            "seconds_s": self.seconds,
            "low_s": self.low,
            "high_s": self.high,
            "batch": self.batch or None,
            "precision": self.precision,
            "known": self.known,
            "source": self.source,
        }


class Samples(NamedTuple):
    """What all workers go through in an iteration: so many images, tokens or samples."""

    number: float
    unit: Literal["images", "tokens", "samples"]


class Utilisation(NamedTuple):
    """The share of the peak that published steps reach, by which factors that misses steps, and how many there are."""

    share: float
    low: float
    high: float
    steps: int


class PublishedStep(NamedTuple):
    """A published training step, with the operations and places of a sample where those are known."""

    model: str
    tokens: int
    operations: float
    time: ComputeTime


@cache
def chips() -> dict[str, Chip]:
    """Return the chips whose peaks are known, by name.

    Examples
    --------
    >>> chips()["H100 SXM"].peaks["bf16"]
    989400000000000.0
    """
    found = {}
    for row in _rows("chips.csv"):
        peaks = {name: float(row[name]) for name in ("fp32", "tf32", "fp16", "bf16") if row[name]}
        kind, precision = cast(Literal["gpu", "cpu"], row["kind"]), cast(Precision, row["precision"])
        found[row["chip"]] = Chip(row["chip"], kind, precision, peaks, row["source"])
    return found


def computing(
    profile: ModelProfile, device: DeviceProfile, batch: float | None = None, precision: Precision | None = None
) -> Computing:
    """Return how long a forward and backward pass of a model takes on a device.

    Parameters
    ----------
    profile : ModelProfile
        The model.
    device : DeviceProfile
        What it runs on.
    batch : float, optional
        Samples of a worker in an iteration; when omitted that of the source.
    precision : {"fp32", "tf32", "fp16", "bf16"}, optional
        In what is computed; when omitted that in which people train on the chip.

    Raises
    ------
    ValueError
        If nothing says how long it takes.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> found = computing(model("gpt2"), load_device("h100-torch2.6"))
    >>> found.seconds, found.batch, found.precision, found.known
    (0.21633, 64, 'bf16', 'measured')
    >>> computing(model("gpt2"), load_device("h100-torch2.6"), batch=16).known
    'scaled'
    """
    chip = chips().get(device.chip)
    if chip is None:
        known = f"whose profile names no chip of which that is known: {nearest(device.chip, chips())}"
        if not device.chip:
            known = "whose profile names no chip"
        raise ValueError(f"how long {profile.name} computes is not known on {device.name}, {known}")
    if found := _published(profile, chip, batch, precision):
        return found
    return _estimated(profile, chip, batch, precision or chip.precision)


def utilisation(transformer: bool, precision: Precision) -> Utilisation:
    """Return the share of the peak that published steps of a kind reach, and by which factors that misses them.

    Parameters
    ----------
    transformer : bool
        Whether it is a transformer; else a network of convolutions.
    precision : {"fp32", "tf32", "fp16", "bf16"}
        In what is computed.

    Examples
    --------
    >>> found = utilisation(transformer=True, precision="bf16")
    >>> 0.3 < found.share < 0.6, found.low < 1 < found.high
    (True, True)
    """
    family = [one for one in _steps() if bool(one.tokens) == transformer and one.operations]
    own = [one for one in family if _bits(one.time.precision) == _bits(precision)] or family
    counted = own if len({one.time.chip for one in own}) >= _CHIPS else family
    missed = [_share(one) / _foretold(one, family) for one in counted]
    return Utilisation(median(map(_share, own)), min(*missed, 1.0), max(*missed, 1.0), len(counted))


def _foretold(step: PublishedStep, family: list[PublishedStep]) -> float:
    """Return the share of the peak by the steps of other chips, in formats of as many bits if there are any."""
    others = [one for one in family if one.time.chip != step.time.chip]
    alike = [one for one in others if _bits(one.time.precision) == _bits(step.time.precision)]
    return median(map(_share, alike or others))


def _share(step: PublishedStep) -> float:
    time = step.time
    rate = step.operations * time.batch / time.seconds
    return rate / chips()[time.chip].peaks[time.precision]


def _bits(precision: Precision) -> str:
    return "16" if precision in ("fp16", "bf16") else precision


def _published(profile: ModelProfile, chip: Chip, batch: float | None, precision: Precision | None) -> Computing | None:
    """Return what somebody published of the model on a chip; None if nobody did."""
    wanted = _bits(precision or chip.precision)
    times = [one for one in profile.times if one.chip == chip.name]
    times += [
        one.time
        for one in _steps()
        if one.model == profile.name and one.tokens == profile.tokens and one.time not in times
    ]
    times = [one for one in times if one.chip == chip.name and _bits(one.precision) == wanted]
    if batch is None:
        found = times[:1]
    else:
        # The one whose batch is nearest.
        stated = [one for one in times if one.batch_stated]
        found = sorted(stated, key=lambda one: abs(math.log(batch / one.batch)))[:1]
    if not found:
        return None
    time = found[0]
    # A published time of one sample is of a batch that nobody stated.
    usual = profile.batch if time.batch == 1 else time.batch
    own = batch or (usual if time.batch_stated else 0)
    factor = own / time.batch if own else 1.0
    known: Known = "estimated" if not time.measured else "measured" if factor == 1 else "scaled"
    # By the batch it is at least as well known as by operations.
    off = None if known == "measured" else utilisation(bool(profile.tokens), time.precision)
    low, high = (1.0, 1.0) if off is None else (1 / off.high, 1 / off.low)
    scaled = f", by the batch from {_batch(profile, time.batch)}" if factor != 1 else ""
    size = f", {_batch(profile, own)}" if own else ""
    seconds = factor * time.seconds
    source = f"{chip.name}, {time.precision}{size}{scaled}: {time.source}"
    return Computing(profile.name, seconds, low * seconds, high * seconds, own, time.precision, known, source)


def _estimated(profile: ModelProfile, chip: Chip, batch: float | None, precision: Precision) -> Computing:
    """Return an estimate by operations."""
    operations, samples = model_operations(profile), batch or profile.batch
    if precision not in chip.peaks:
        told = nearest(precision, chip.peaks)
        raise ValueError(f"how long {profile.name} computes in {precision} is not known on {chip.name}; {told}")
    if not operations or not samples:
        lacks = "its batch (--batch, job.batch)" if operations else "the tokens of a sample (job.tokens)"
        raise ValueError(f"how long {profile.name} computes on {chip.name} is not known without {lacks}")
    peak = chip.peaks[precision]
    share, low, high, steps = utilisation(bool(profile.tokens), precision)
    seconds = operations * samples / (share * peak)
    kind = "transformers" if profile.tokens else "networks of images"
    source = (
        f"{chip.name}, {precision}, {_batch(profile, samples)}: estimate, {operations * samples / 1e12:.3g} TFLOP at "
        f"{100 * share:.2g} % of the vendor's peak of {peak / 1e12:.3g} TFLOP/s, the median of published steps of "
        f"{kind}; predicted without those of their chip, {steps} of them took {1 / high:.2g} to {1 / low:.2g} times as "
        "long"
    )
    return Computing(profile.name, seconds, seconds / high, seconds / low, samples, precision, "estimated", source)


def _batch(profile: ModelProfile, samples: float) -> str:
    each = f" of {profile.tokens:,} tokens" if profile.sample == "sequence" and profile.tokens else ""
    return f"{samples:,.10g} {profile.sample}{'' if samples == 1 else 's'}{each}"


def samples(profile: ModelProfile | None, batch: float) -> Samples:
    """Return what a batch of a model holds, in the unit in which its throughput is told.

    Parameters
    ----------
    profile : ModelProfile or None
        The model, if one is known.
    batch : float
        Samples.

    Examples
    --------
    >>> samples(model("gpt2"), 64)
    Samples(number=65536, unit='tokens')
    >>> samples(model("vit-l-16"), 32).unit, samples(None, 32).unit
    ('images', 'samples')
    """
    if profile is not None and profile.sample == "sequence" and profile.tokens:
        return Samples(batch * profile.tokens, "tokens")
    return Samples(batch, "images" if profile is not None and profile.sample == "image" else "samples")


@cache
def _steps() -> tuple[PublishedStep, ...]:
    """Return the published steps, those that models have as their own among them."""
    found = []
    for row in _rows("step_times.csv"):
        known = model(row["model"]) if row["model"] in names() else None
        tokens = int(row["tokens"] or 0)
        operations = 6.0 * float(row["parameters"] or 0) * tokens
        if known is not None:
            operations = model_operations(known)
            if tokens != known.tokens:
                operations = 6.0 * known.parameters * tokens
        source = f"{row['note']}; {row['source'].partition(' ')[0]}"
        time = ComputeTime(
            float(row["seconds"]),
            int(row["batch"] or 1),
            source if row["batch"] else f"{source}, batch not stated",
            measured=True,
            chip=row["chip"],
            precision=cast(Precision, row["precision"]),
        )
        found.append(PublishedStep(row["model"], tokens, operations, time))
    for name in names():
        own = model(name)
        found += [
            PublishedStep(name, own.tokens, model_operations(own), one)
            for one in own.times
            if one.measured and one.batch_stated
        ]
    return tuple(found)


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("simnet") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))
