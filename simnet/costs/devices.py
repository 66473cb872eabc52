"""What selecting and merging cost: the time a device takes for the kernels of a sparsifier.

A scheme reports the kernels it ran, such as one top-k over n entries, and between which of its messages. A device
profile turns them into seconds by the streaming model: each launch of a kernel costs a fixed time, and each entry it
goes through costs bytes, which stream at the memory bandwidth. The constants of each method stand in a profile file,
with where they come from.

The methods of the schemes in `sparsifier_models`:

==============  =========================================================================================
method          one launch over `entries` entries
==============  =========================================================================================
``topk``        exact top-k of the whole, fused gradient
``topk_layer``  exact top-k of one layer
``scan``        one pass that counts, averages or picks out the entries above a threshold
``norm``        sum of squares
``gather``      values read at indices
``scatter``     values written at, or added to, indices
==============  =========================================================================================

A profile file is YAML, with seconds, bytes and bytes per second:

.. code-block:: yaml

    name: my-gpu
    device: what was measured
    source: how, when, or which table of which paper
    memory_bandwidth: 900.0e+9
    methods:
      topk: {launch: 20.0e-6, bytes_per_entry: 12, source: measured so and so}

Where it was measured, a profile says as well how exchange and backward pass slow each other down:

.. code-block:: yaml

    side_stream: {compute: 1.3, kernels: 2.0, source: measured so and so}
    beside_collectives: {compute: 1.5, source: measured so and so}

The method ``"*"`` stands for every method that is not listed. A package may register a function that returns a
`DeviceProfile`, as an entry point ``simnet.devices``.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base import plugins
from simnet.base.checks import is_number
from simnet.base.errors import InputError, nearest
from simnet.base.quantities import Bandwidth, Seconds, Size, Slowdown, outside, parameter_hints
from simnet.base.reading import read_text

_LARGEST_FILE = 1_000_000
_ANY = "*"


class DeviceOp(NamedTuple):
    """An operation of a device: launches of one kernel.

    Parameters
    ----------
    method : str
        What it does; a method of the device profile.
    entries : float or ndarray, shape (P,)
        Entries one launch goes through: the same at every worker, or one number each. A worker with no entries does
        not launch it.
    launches : int
        Number of equal launches.
    before : int
        Number of the round of the exchange's schedule that a worker enters after it: 0 for what it runs before the
        first message, the number of rounds for what it runs after the last one.

    Examples
    --------
    >>> DeviceOp("scan", 1000, launches=25)
    DeviceOp(method='scan', entries=1000, launches=25, before=0)
    """

    method: str
    entries: float | NDArray[np.floating[Any]] | NDArray[np.integer[Any]]
    launches: int = 1
    before: int = 0

    def scaled(self, factor: float) -> DeviceOp:
        """Return the operation over `factor` times as many entries.

        Examples
        --------
        >>> DeviceOp("topk", 100).scaled(4)
        DeviceOp(method='topk', entries=400, launches=1, before=0)
        """
        return self._replace(entries=self.entries * factor)


Kernel = DeviceOp
"""The name of `DeviceOp` in schemes that others wrote."""


@dataclass(frozen=True)
class Method:
    """What one kernel costs.

    Parameters
    ----------
    launch : float
        Seconds of each launch, whatever its length, >= 0.
    bytes_per_entry : float
        Bytes streamed for each entry, >= 0; for methods with several passes, of all passes together.
    source : str
        Where the two figures come from.
    """

    launch: Seconds
    bytes_per_entry: Size
    source: str


@dataclass(frozen=True)
class SideStream:
    """Kernels of the exchange run beside the backward pass, on a stream of their own; both are slower meanwhile.

    Parameters
    ----------
    compute, kernels : float
        By which factor the backward pass and the kernels of the exchange are slower while both run, > 0.
    source : str
        Where the two figures come from.
    """

    compute: Slowdown
    kernels: Slowdown
    source: str


@dataclass(frozen=True)
class BesideCollectives:
    """A dense collective of NCCL takes a share of the device from the backward pass.

    Parameters
    ----------
    compute : float
        By which factor the backward pass is slower while one is under way, > 0.
    source : str
        Where the figure comes from.
    """

    compute: Slowdown
    source: str


@dataclass(frozen=True)
class DeviceProfile:
    """The kernels of a device and what they cost.

    Parameters
    ----------
    name, device, source : str
        What to call it, what it is, and where the figures come from.
    memory_bandwidth : float
        Bytes per second, > 0.
    methods : mapping of str to Method
        By name; ``"*"`` stands for every method that is not listed.
    side_stream : SideStream, optional
        How kernels of the exchange run beside the backward pass; without it they wait for the one stream there is.
    beside_collectives : BesideCollectives, optional
        What dense collectives of NCCL cost the backward pass; nothing when omitted.

    Examples
    --------
    >>> profile = DeviceProfile("toy", "none", "made up", 1e9, {"scan": Method(1e-5, 4, "made up")})
    >>> profile.seconds([DeviceOp("scan", 1_000_000)], workers=2)
    array([0.00401, 0.00401])
    """

    name: str
    device: str
    source: str
    memory_bandwidth: Bandwidth
    methods: Mapping[str, Method]
    side_stream: SideStream | None = None
    beside_collectives: BesideCollectives | None = None

    def seconds(self, kernels: Iterable[DeviceOp], workers: int) -> NDArray[np.float64]:
        """Return how long each worker takes for the kernels, one after the other.

        Parameters
        ----------
        kernels : iterable of DeviceOp
            What each worker runs.
        workers : int
            Number of workers P, >= 1.

        Returns
        -------
        ndarray of float64, shape (P,)
            Seconds.

        Raises
        ------
        ValueError
            If the profile lacks a method, `workers` is < 1, or a kernel's entries or launches are negative, not
            finite, or not one or P numbers.

        Examples
        --------
        >>> load_device("ideal").seconds([DeviceOp("topk", 10**9)], workers=3)
        array([0., 0., 0.])
        """
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers}")
        total = np.zeros(workers)
        for kernel in kernels:
            method = self.method(kernel.method)
            entries = np.asarray(kernel.entries, dtype=np.float64)
            if entries.shape not in ((), (workers,)):
                raise ValueError(
                    f"entries of {kernel.method!r} must be one number or {workers}, got shape {entries.shape}"
                )
            if not np.isfinite(entries).all() or entries.min() < 0 or kernel.launches < 0:
                raise ValueError(f"entries and launches of {kernel.method!r} must be finite and >= 0")
            one = method.launch + entries * (method.bytes_per_entry / self.memory_bandwidth)
            total += kernel.launches * np.where(entries > 0, one, 0.0)
        return total

    def work(
        self, kernels: Iterable[DeviceOp], workers: int
    ) -> tuple[NDArray[np.float64], dict[int, NDArray[np.float64]]]:
        """Return how long each worker works before the first message, and then before which rounds.

        Parameters
        ----------
        kernels : iterable of DeviceOp
            What each worker runs, and before which rounds.
        workers : int
            Number of workers P, >= 1.

        Returns
        -------
        selecting : ndarray of float64, shape (P,)
            Seconds before the first message.
        between : dict of int to ndarray of float64, shape (P,)
            Seconds before later rounds, by their numbers; `simnet.schedule.Schedule.with_work` takes them.

        Raises
        ------
        ValueError
            As `seconds`.

        Examples
        --------
        >>> profile = DeviceProfile("toy", "none", "made up", 1e9, {"scan": Method(1e-5, 4, "made up")})
        >>> profile.work([DeviceOp("scan", 1_000_000), DeviceOp("scan", np.array([0, 1000]), before=3)], workers=2)
        (array([0.00401, 0.00401]), {3: array([0.0e+00, 1.4e-05])})
        """
        places: dict[int, list[DeviceOp]] = {0: []}
        for kernel in kernels:
            places.setdefault(kernel.before, []).append(kernel)
        found = {place: self.seconds(places[place], workers) for place in sorted(places)}
        return found.pop(0), found

    def method(self, name: str) -> Method:
        """Return what a kernel costs.

        Raises
        ------
        ValueError
            If the profile has no method of this name, nor one for all.

        Examples
        --------
        >>> load_device("v100").method("topk").bytes_per_entry > 0
        True
        """
        found = self.methods.get(name, self.methods.get(_ANY))
        if found is None:
            raise ValueError(f"device profile {self.name!r} has no method {name!r}: {nearest(name, self.methods)}")
        return found


_OPTIONAL: dict[str, type] = {"side_stream": SideStream, "beside_collectives": BesideCollectives}
"""Fields of a profile that may be missing."""


def device_names() -> list[str]:
    """Return the names of the profiles that come with simnet or are registered by others, sorted.

    Examples
    --------
    >>> set(device_names()) >= {"cpu", "ideal", "v100"}
    True
    """
    return sorted({*_shipped(), *plugins.names("devices")})


def usable() -> dict[str, DeviceProfile]:
    """Return the profiles by name, sorted; a warning tells which of others cannot be used."""
    shipped = {name: _shipped_profile(name) for name in _shipped()}
    return dict(sorted({**plugins.usable("devices", load_device), **shipped}.items()))


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """Return the device profile of this name, or from this file.

    Parameters
    ----------
    name_or_path : str or Path
        One of `device_names`, or the path of a YAML file; a string with a directory or with the ending ``.yaml`` or
        ``.yml`` is a path.

    Raises
    ------
    ValueError
        If there is no profile of this name, or what is registered under it returns none.
    InputError
        If the file cannot be read, is no YAML, or a field of it is missing, unknown or out of range.

    Examples
    --------
    >>> load_device("v100").memory_bandwidth
    900000000000.0
    >>> load_device("v10")
    Traceback (most recent call last):
    ValueError: there is no device profile 'v10' (nor a .yaml file): did you mean 'v100'? Allowed: cpu, ideal, v100
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return _profile(read_text(path, _LARGEST_FILE), str(path))
    name = str(path)
    if name in _shipped():
        return _shipped_profile(name)
    found = plugins.load("devices", name, lambda device: plugins.instance(device(), DeviceProfile))
    if found is None:
        known = nearest(name, device_names())
        raise ValueError(f"there is no device profile {name!r} (nor a .yaml file): {known}")
    return found


@cache
def _shipped() -> frozenset[str]:
    paths = (Path(one.name) for one in (files("simnet") / "data" / "devices").iterdir())
    return frozenset(path.stem for path in paths if path.suffix == ".yaml")


@cache
def _shipped_profile(name: str) -> DeviceProfile:
    text = (files("simnet") / "data" / "devices" / f"{name}.yaml").read_text(encoding="utf-8")
    return _profile(text, f"{name}.yaml")


def _profile(text: str, file: str) -> DeviceProfile:
    """Build the profile that the YAML `text` of `file` describes."""
    # Only who loads a profile pays for the parser.
    from simnet.base.plain_yaml import plain_yaml

    def refuse(message: str, field: str) -> NoReturn:
        raise InputError(message, file=file, field=field)

    def checked(kind: type, given: object, at: str) -> dict[str, Any]:
        """Return the fields of a profile or a method: texts, numbers >= 0, and what is left to check."""
        types = parameter_hints(kind, [one.name for one in fields(kind)])
        if not isinstance(given, dict):
            refuse(f"must be a mapping with {', '.join(types)}", at)
        for name in (*given, *types):
            if name not in types:
                refuse(f"there is no such field: {nearest(str(name), types)}", f"{at}{name}")
            if name not in given and name not in _OPTIONAL:
                refuse("is missing", f"{at}{name}")
        found = dict(given)
        for name, value in given.items():
            if types[name] is str:
                if not isinstance(value, str) or not value.strip():
                    refuse(f"must be a text, got {reprlib.repr(value)}", f"{at}{name}")
                found[name] = value.strip()
            elif types[name] in (Bandwidth, Seconds, Size, Slowdown):
                if not is_number(value):
                    refuse(f"must be a number, got {reprlib.repr(value)}", f"{at}{name}")
                if not 0 <= value < math.inf:
                    refuse(f"must be finite and >= 0, got {value}", f"{at}{name}")
                if wrong := outside(value, types[name]):
                    refuse(wrong, f"{at}{name}")
                found[name] = float(value)
        return found

    top = checked(DeviceProfile, plain_yaml(text, file, "a device profile"), "")
    if not isinstance(top["methods"], dict) or not all(isinstance(name, str) for name in top["methods"]):
        refuse("must be a mapping of method names to their figures", "methods")
    methods = {name: Method(**checked(Method, one, f"methods.{name}.")) for name, one in top["methods"].items()}
    streams = {name: kind(**checked(kind, top[name], f"{name}.")) for name, kind in _OPTIONAL.items() if name in top}
    return DeviceProfile(**top | {"methods": methods} | streams)
