"""How many images, tokens or samples all workers go through in a second."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import TypedDict

from simnet.costs.computing import SampleCount

_SHOWN = 5


class Throughput(TypedDict):
    """What all workers go through in a second, and in what that is; None in no time."""

    throughput: float | None
    throughput_unit: str


def throughput(samples: SampleCount, seconds: float) -> Throughput:
    """Return what all workers go through in a second, where so many samples take so long [s].

    Examples
    --------
    >>> throughput(SampleCount(50, "images"), 4.0)
    {'throughput': 12.5, 'throughput_unit': 'images/s'}
    """
    rate = float(f"{samples.number / seconds:.12g}") if seconds else None
    return {"throughput": rate, "throughput_unit": f"{samples.unit}/s"}


def throughput_sentences(rates: Mapping[str, Throughput | None], how: str = "") -> list[str]:
    """Return the throughput of all workers under each choice, the highest first; nothing where none is known.

    Examples
    --------
    >>> batch = SampleCount(512, "images")
    >>> throughput_sentences({"dense": throughput(batch, 0.5), "AG": throughput(batch, 0.25)})
    ['Throughput of all workers: AG 2,050 images/s, dense 1,020 images/s.']
    """
    known = {name: one for name, one in rates.items() if one is not None and one["throughput"]}
    best = sorted(known, key=lambda name: -(known[name]["throughput"] or 0.0))
    shown = ", ".join(f"{name} {_format(known[name])}" for name in best[:_SHOWN])
    more = f", and {len(best) - _SHOWN} more" if len(best) > _SHOWN else ""
    assumed = f", {how}" if how else ""
    return [f"Throughput of all workers{assumed}: {shown}{more}."] if best else []


def _format(rate: Throughput) -> str:
    digits = float(f"{rate['throughput']:.3g}")
    return f"{digits:,.10g} {rate['throughput_unit']}"
