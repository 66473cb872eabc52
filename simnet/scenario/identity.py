"""Which scenario it is that results belong to: a hash of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import sparsifier_models
from simnet.report.results import versions
from simnet.scenario import Scenario
from simnet.scenario.job import is_file


def identity(loaded: Scenario, what: str) -> str:
    """Return a hash of a scenario, the files that it names, and the versions of what computes its results.

    Parameters
    ----------
    loaded : Scenario
        The scenario; its overrides and its seed count.
    what : str
        Whose results they are, and in which form they are kept.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> one, same, other = (load("quickstart", [f"workers={n}"]) for n in (2, 2, 3))
    >>> identity(one, "x") == identity(same, "x"), identity(one, "x") == identity(other, "x")
    (True, False)
    """
    digest = hashlib.sha256()
    computed = json.dumps(versions(), sort_keys=True)
    for part in (what, computed, loaded.lock(), *_recorded(loaded), *_registered(loaded), *_trained(loaded)):
        # The hash of each, so that no two lists of parts run together to the same text.
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:32]


def _recorded(loaded: Scenario) -> Iterator[str]:
    """Yield hashes of recorded gradients in folders, which the resolved scenario names only by where they are."""
    for job in (loaded.config.job, *(other.job for other in (loaded.config.other_jobs or {}).values())):
        recorded = job.gradients.recorded
        if recorded is not None and is_file(recorded.trace):
            folder = loaded.folder / recorded.trace
            files = sorted(one for one in folder.rglob("*") if one.is_file())
            # Large files are read once for all scenarios, as long as nobody touches them.
            yield from (_content(str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files)


@lru_cache(maxsize=4096)
def _content(path: str, changed: int, size: int) -> str:
    with Path(path).open("rb") as stream:
        return f"{Path(path).name} {hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _registered(loaded: Scenario) -> Iterator[str]:
    """Yield the versions of packages from which the scenario's schemes and topology come, if not from simnet."""
    others = (other.exchange.scheme for other in (loaded.config.other_jobs or {}).values())
    schemes = {one.scheme for one in loaded.config.exchanges.values()} | {*others}
    registered = loaded.config.network.topology.registered
    wanted = [("simnet.sparsifiers", name) for name in sorted(schemes - sparsifier_models.SCHEMES.keys())]
    wanted += [] if registered is None else [("simnet.topologies", registered.name)]
    for group, name in wanted:
        for entry in entry_points(group=group).select(name=name):
            dist = entry.dist
            yield f"{group} {name} {entry.value} {'' if dist is None else f'{dist.name} {dist.version}'}"


def _trained(loaded: Scenario) -> Iterator[str]:
    """Yield the versions of what gives data and gradients where a model is trained."""
    jobs = (loaded.config.job, *(other.job for other in (loaded.config.other_jobs or {}).values()))
    if any(job.gradients.train is not None for job in jobs):
        yield f"Python {platform.python_version()}"
        for package in ("scikit-learn", "torch"):
            try:
                yield f"{package} {version(package)}"
            except PackageNotFoundError:
                yield f"no {package}"
