"""Estimates the forward and backward time of a model on a device.

Published steps of the model on the chip count first, scaled by the batch. Else the time is the model's operations at
the peak of the chip times a utilisation: the median of the published steps of its kind (images or transformers) in
formats of as many bits. The interval comes from the factors by which that rule misses published steps if the steps of
their own chip are left out.

`data/step_times.csv` has published steps, `data/chips.csv` peaks by the vendors' data sheets [operations per second].
"""

from __future__ import annotations

import math
from functools import cache
from statistics import median
from typing import Literal, NamedTuple, cast

from simnet.base.errors import suggest_names
from simnet.base.file_io import read_shipped_rows
from simnet.base.units import format_seconds
from simnet.cost_models.costs import models
from simnet.cost_models.costs.devices import DeviceProfile, Provenance

# How many chips must have published steps in a format, if those in others shall not count.
_CHIPS = 3


class ChipPeaks(NamedTuple):
    """A chip's peak operations per second by precision, from its data sheet, and its usual training precision."""

    name: str
    kind: Literal["gpu", "cpu"]
    precision: models.MatrixFormat
    peaks: dict[str, float]
    source: str


class PassTime(NamedTuple):
    """Forward and backward time of a batch [s] with its interval; `known` states if it is measured or estimated.

    A batch of 0 was not stated. It is measured at this batch, scaled from another, or estimated from operations.
    """

    model: str
    seconds: float
    low: float
    high: float
    batch: float
    precision: models.MatrixFormat
    known: Provenance
    source: str

    def describe(self) -> str:
        """Return a phrase with the time, its interval and its source."""
        ends = f" ({format_seconds(self.low)} to {format_seconds(self.high)})" if self.low < self.high else ""
        return f"that of {self.model}, {format_seconds(self.seconds)}{ends} forward and backward ({self.source})"

    def text(self, chip: str, *, precision: bool, batch: bool, tokens: int) -> str:
        """Return the time on a chip as text, with the interval of an estimate; options add precision, batch and tokens.

        Examples
        --------
        >>> time = PassTime("m", 0.1, 0.05, 0.2, 4, "bf16", "estimated", "")
        >>> time.text("A100", precision=True, batch=True, tokens=512)
        '100 ms (0.5-2x) on A100 (bf16, batch 4 of 512 tokens; job.batch, job.tokens)'
        """
        sampled = f"batch {self.batch:,.10g}" if batch and self.batch else ""
        sampled = f"{sampled or 'sequences'} of {tokens:,} tokens" if tokens else sampled
        sampled += "; job.batch, job.tokens" if tokens and sampled and batch else ""
        how = ", ".join(filter(None, [self.precision if precision else "", sampled]))
        ends = f" ({self.low / self.seconds:.2g}-{self.high / self.seconds:.2g}x)" if self.known == "estimated" else ""
        return f"{format_seconds(self.seconds)}{ends} on {chip}" + (f" ({how})" if how else "")

    def figures(self) -> dict[str, object]:
        """Return the time, its interval, batch, precision and source as JSON fields."""
        times = {f"{name}_s": getattr(self, name) for name in ("seconds", "low", "high")}
        named = {name: getattr(self, name) for name in ("precision", "known", "source")}
        return {**times, "batch": self.batch or None, **named}


class SampleCount(NamedTuple):
    """Samples per iteration over all workers, in the unit of throughput: images, tokens or samples."""

    number: float
    unit: Literal["images", "tokens", "samples"]


class PeakUtilisation(NamedTuple):
    """Median share of peak FLOP/s in published training steps, factors to its interval's ends, and number of steps."""

    share: float
    low: float
    high: float
    steps: int


class PublishedStep(NamedTuple):
    """A published training step of a model, with its operations and its tokens per sample, if known."""

    model: str
    tokens: int
    operations: float
    time: models.ComputeTime


@cache
def known_chips() -> dict[str, ChipPeaks]:
    """Return, by name, the chips whose peak operations per second are known."""
    found = {}
    for row in read_shipped_rows("data/chips.csv"):
        peaks = {name: float(row[name]) for name in ("fp32", "tf32", "fp16", "bf16") if row[name]}
        kind, precision = cast(Literal["gpu", "cpu"], row["kind"]), cast(models.MatrixFormat, row["precision"])
        found[row["chip"]] = ChipPeaks(row["chip"], kind, precision, peaks, row["source"])
    return found


def pass_time(
    profile: models.ModelProfile,
    device: DeviceProfile,
    batch: float | None = None,
    precision: models.MatrixFormat | None = None,
) -> PassTime:
    """Return the forward and backward time of a model on a device, with its interval.

    `batch` are the samples of a worker in an iteration, by default those of the source, `precision` by default the
    usual one on the chip. Raises ValueError if nothing says how long it takes.
    """
    chip = known_chips().get(device.chip)
    if chip is None:
        why = f" of which that is known: {suggest_names(device.chip, known_chips())}" if device.chip else ""
        unknown = f"how long {profile.name} computes is not known on {device.name}"
        raise ValueError(f"{unknown}, whose profile names no chip{why}")
    published = _published_time(profile, chip, batch, precision)
    return published or _estimated_time(profile, chip, batch, precision or chip.precision)


def published_utilisation(transformer: bool, precision: models.MatrixFormat) -> PeakUtilisation:
    """Return the share of a chip's peak that published training steps reach, for transformers or for CNNs."""
    family = [one for one in _published_steps() if bool(one.tokens) == transformer and one.operations]
    own = [one for one in family if _format_bits(one.time.precision) == _format_bits(precision)] or family
    counted = own if len({one.time.chip for one in own}) >= _CHIPS else family
    missed = [_peak_share(one) / _predicted_share(one, family) for one in counted]
    return PeakUtilisation(median(map(_peak_share, own)), min(*missed, 1.0), max(*missed, 1.0), len(counted))


def _predicted_share(step: PublishedStep, family: list[PublishedStep]) -> float:
    """Predict a step's share of its chip's peak FLOP/s: the median over steps of `family` on other chips."""
    others = [one for one in family if one.time.chip != step.time.chip]
    alike = [one for one in others if _format_bits(one.time.precision) == _format_bits(step.time.precision)]
    return median(map(_peak_share, alike or others))


def _peak_share(step: PublishedStep) -> float:
    time = step.time
    rate = step.operations * time.batch / time.seconds
    return rate / known_chips()[time.chip].peaks[time.precision]


def _format_bits(precision: models.MatrixFormat) -> str:
    return "16" if precision in ("fp16", "bf16") else precision


def _published_time(
    profile: models.ModelProfile, chip: ChipPeaks, batch: float | None, precision: models.MatrixFormat | None
) -> PassTime | None:
    """Return the time from a published step of the model on the chip; None if there is no such step."""
    wanted = _format_bits(precision or chip.precision)
    published = [one for one in _published_steps() if (one.model, one.tokens) == (profile.name, profile.tokens)]
    times = dict.fromkeys((*profile.times, *(one.time for one in published)))
    here = [one for one in times if one.chip == chip.name and _format_bits(one.precision) == wanted]
    if batch is not None:
        # The one whose batch is nearest.
        stated = [one for one in here if one.batch_stated]
        here = sorted(stated, key=lambda one: abs(math.log(batch / one.batch)))
    if not here:
        return None
    time = here[0]
    # A published time of one sample is of a batch that nobody stated.
    usual = profile.batch if time.batch == 1 else time.batch
    own = batch or (usual if time.batch_stated else 0)
    factor = own / time.batch if own else 1.0
    known: Provenance = "estimated" if not time.measured else "measured" if factor == 1 else "scaled"
    # By the batch it is at least as well known as by operations.
    off = None if known == "measured" else published_utilisation(bool(profile.tokens), time.precision)
    low, high = (1.0, 1.0) if off is None else (1 / off.high, 1 / off.low)
    scaled = f", by the batch from {_describe_batch(profile, time.batch)}" if factor != 1 else ""
    size = f", {_describe_batch(profile, own)}" if own else ""
    seconds = factor * time.seconds
    source = f"{chip.name}, {time.precision}{size}{scaled}: {time.source}"
    return PassTime(profile.name, seconds, low * seconds, high * seconds, own, time.precision, known, source)


def _estimated_time(
    profile: models.ModelProfile, chip: ChipPeaks, batch: float | None, precision: models.MatrixFormat
) -> PassTime:
    """Return the time estimated from the model's operations and the share of peak that published steps reach."""
    operations, samples = models.model_operations(profile), batch or profile.batch
    if precision not in chip.peaks:
        reason = suggest_names(precision, chip.peaks)
        raise ValueError(f"how long {profile.name} computes in {precision} is not known on {chip.name}; {reason}")
    if not operations or not samples:
        lacks = "its batch (--batch, job.batch)" if operations else "the tokens of a sample (job.tokens)"
        raise ValueError(f"how long {profile.name} computes on {chip.name} is not known without {lacks}")
    peak = chip.peaks[precision]
    share, low, high, steps = published_utilisation(bool(profile.tokens), precision)
    seconds = operations * samples / (share * peak)
    kind = "transformers" if profile.tokens else "networks of images"
    source = (
        f"{chip.name}, {precision}, {_describe_batch(profile, samples)}: estimate, "
        f"{operations * samples / 1e12:.3g} TFLOP at "
        f"{100 * share:.2g} % of the vendor's peak of {peak / 1e12:.3g} TFLOP/s, the median of published steps of "
        f"{kind}; predicted without those of their chip, {steps} of them took {1 / high:.2g} to {1 / low:.2g} times as "
        "long"
    )
    return PassTime(profile.name, seconds, seconds / high, seconds / low, samples, precision, "estimated", source)


def _describe_batch(profile: models.ModelProfile, samples: float) -> str:
    each = f" of {profile.tokens:,} tokens" if profile.sample == "sequence" and profile.tokens else ""
    return f"{samples:,.10g} {profile.sample}{'' if samples == 1 else 's'}{each}"


def batch_samples(profile: models.ModelProfile | None, batch: float) -> SampleCount:
    """Return the size of a batch in images, tokens (for sequences), or samples (for an unknown model)."""
    if profile is not None and profile.sample == "sequence" and profile.tokens:
        return SampleCount(batch * profile.tokens, "tokens")
    return SampleCount(batch, "images" if profile is not None and profile.sample == "image" else "samples")


@cache
def _published_steps() -> tuple[PublishedStep, ...]:
    found = []
    for row in read_shipped_rows("data/step_times.csv"):
        known = models.load_model(row["model"]) if row["model"] in models.model_names() else None
        tokens = int(row["tokens"] or 0)
        operations = 6.0 * tokens * (float(row["parameters"] or 0) if known is None else known.parameters)
        if known is not None and tokens == known.tokens:
            operations = models.model_operations(known)
        source = f"{row['note']}; {row['source'].partition(' ')[0]}{'' if row['batch'] else ', batch not stated'}"
        found.append(PublishedStep(row["model"], tokens, operations, models.compute_time(row, source, measured=True)))
    for own in map(models.load_model, models.model_names()):
        times = [one for one in own.times if one.measured and one.batch_stated]
        found += [PublishedStep(own.name, own.tokens, models.model_operations(own), one) for one in times]
    return tuple(found)
