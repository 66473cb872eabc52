"""Which scenario it is that results belong to: a hash of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simnet.base import plugins
from simnet.interchange.chakra import trace_paths
from simnet.interchange.kinds import trace_prefix
from simnet.report.results import versions
from simnet.scenario import Scenario
from simnet.scenario.device import is_file


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
    # A name that others have registered counts, whatever it stands for. Files of schemes are in the lock, by content.
    others = plugins.used({*_words(loaded.config.model_dump(mode="json"))})
    for part in (what, computed, loaded.lock(), *_recorded(loaded), *others, *_trained(loaded)):
        # The hash of each, so that no two lists of parts run together to the same text.
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:32]


def _recorded(loaded: Scenario) -> Iterator[str]:
    """Yield hashes of what was recorded, which the resolved scenario names only by where it is."""
    traces = (one.trace for one in loaded.config.job.shardings.values() if one.trace is not None)
    for path in (path for trace in traces for path in trace_paths(trace_prefix(trace))):
        yield _content(str(path), path.stat().st_mtime_ns, path.stat().st_size)
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


def _words(value: Any) -> Iterator[str]:
    """Yield every name and every text in a value, and in what it holds."""
    if isinstance(value, dict):
        yield from (word for pair in value.items() for one in pair for word in _words(one))
    elif isinstance(value, list):
        yield from (word for one in value for word in _words(one))
    elif isinstance(value, str):
        yield value


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
