"""Identity of results: a hash of all their inputs, and the request whose results a folder holds."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from simnet.base import plugins
from simnet.base.errors import InputError
from simnet.interchange.chakra import trace_paths
from simnet.interchange.kinds import trace_prefix
from simnet.report.results import LOCK, versions
from simnet.scenario import Scenario
from simnet.scenario.fields import is_file
from simnet.scenario.schema import Output

_HEADING = re.compile(r"# (.+); request ([0-9a-f]{32})")


def identity(loaded: Scenario, what: str) -> str:
    """Return a hash of a scenario, its files, and the versions of the software; `what` names the kind of results.

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
    others = plugins.installed_under({*_all_texts(loaded.config.model_dump(mode="json"))})
    for part in (what, computed, loaded.lock(), *_recorded_hashes(loaded), *others, *_training_versions(loaded)):
        # The hash of each, so that no two lists of parts run together to the same text.
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:32]


class Request(NamedTuple):
    """Identity of the request whose results a folder holds.

    `title` is for people; `digest` is a hash of the request, without page and versions; `lock` is the resolved scenario
    below a heading with the request and the recorded inputs by content.
    """

    title: str
    digest: str
    lock: str


def request(loaded: Scenario, command: str, *options: object) -> Request:
    """Return the request of a command: a digest of the scenario and of result-affecting options.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> one, page, other = (load("quickstart", [field]) for field in ("seed=2026", "output.report=false", "workers=3"))
    >>> request(one, "run").title, request(one, "run").digest == request(page, "run").digest
    ('simnet run quickstart, seed 2026', True)
    >>> request(one, "run").digest == request(other, "run").digest
    False
    """
    alike = replace(loaded, config=loaded.config.model_copy(update={"output": Output()}))
    recorded = list(_recorded_hashes(loaded))
    digest = hashlib.sha256()
    for part in (command, alike.lock(), *recorded, *map(repr, options)):
        digest.update(hashlib.sha256(part.encode()).digest())
    title, found = f"simnet {command} {loaded.name}, seed {loaded.config.seed}", digest.hexdigest()[:32]
    heading = "".join(f"# {line}\n" for line in (f"{title}; request {found}", *(f"input {one}" for one in recorded)))
    return Request(title, found, heading + loaded.lock())


def place_of(out: Path | None, usual: Path, asked: Request, *, force: bool) -> Path:
    """Return the output folder for a request, without overwriting another request's results.

    If nobody asked for one and the usual one has results of another request, it is the first free one of ``usual-2``,
    ``usual-3`` and so on. InputError: `out` has results of another request, and `force` is false.
    """
    folder = usual if out is None else out
    there = _answered_request(folder)
    if force or there is None or there.digest == asked.digest:
        return folder
    if out is None:
        later = (usual.with_name(f"{usual.name}-{number}") for number in count(2))
        return next(one for one in later if (found := _answered_request(one)) is None or found.digest == asked.digest)
    raise InputError(f"has the results of another request, {there.title}; --force replaces them", file=f"--out {out}")


def _answered_request(folder: Path) -> Request | None:
    """Return the request whose results a folder holds; None for a folder without results."""
    try:
        with (folder / LOCK).open(encoding="utf-8", errors="replace") as stream:
            heading = stream.readline(1000)
    except OSError:
        return None
    found = _HEADING.fullmatch(heading.rstrip("\n"))
    return Request("which is not named", "", "") if found is None else Request(found[1], found[2], "")


def _recorded_hashes(loaded: Scenario) -> Iterator[str]:
    """Yield content hashes of recorded inputs, which the resolved scenario only has as paths."""
    traces = (one.trace for one in loaded.config.job.shardings.values() if one.trace is not None)
    for path in (path for trace in traces for path in trace_paths(trace_prefix(trace))):
        yield _content_hash(str(path), path.stat().st_mtime_ns, path.stat().st_size)
    for job in (loaded.config.job, *(other.job for other in (loaded.config.other_jobs or {}).values())):
        recorded = job.gradients.recorded
        if recorded is not None and is_file(recorded.trace):
            folder = loaded.folder / recorded.trace
            files = sorted(one for one in folder.rglob("*") if one.is_file())
            # Large files are read once for all scenarios, as long as nobody touches them.
            yield from (_content_hash(str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files)


@lru_cache(maxsize=4096)
def _content_hash(path: str, changed: int, size: int) -> str:
    with Path(path).open("rb") as stream:
        return f"{Path(path).name} {hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _all_texts(value: Any) -> Iterator[str]:
    """Yield every key and text in a nested value."""
    if isinstance(value, dict):
        yield from (word for pair in value.items() for one in pair for word in _all_texts(one))
    elif isinstance(value, list):
        yield from (word for one in value for word in _all_texts(one))
    elif isinstance(value, str):
        yield value


def _training_versions(loaded: Scenario) -> Iterator[str]:
    """Yield the versions of Python and of training packages, if a job trains a model."""
    jobs = (loaded.config.job, *(other.job for other in (loaded.config.other_jobs or {}).values()))
    if any(job.gradients.train is not None for job in jobs):
        yield f"Python {platform.python_version()}"
        for package in ("scikit-learn", "torch"):
            try:
                yield f"{package} {version(package)}"
            except PackageNotFoundError:
                yield f"no {package}"
