"""Loaded scenarios: fields, their positions in the file, and the job and policies built from them."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Unpack

from pydantic import TypeAdapter, ValidationError

from simnet import sparsifier_models
from simnet.base.errors import InputError, check_choice
from simnet.base.units import format_seconds
from simnet.base.yaml_loader import yaml_text
from simnet.cost_models.costs.computing import PassTime, SampleCount
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.interchange.kinds import companion_files
from simnet.policies import Candidate, OneStepOracle, Policy
from simnet.scenario import computing, schema
from simnet.scenario.finding import find
from simnet.scenario.job import (
    build_colocated,
    build_job,
    fixed_memory,
    in_step_memory,
    memory,
    memory_limit,
    try_exchanges,
)
from simnet.scenario.loader import Document, Findings, problems, read_scenario
from simnet.scenario.marked_fields import Fields, FieldsButSeed
from simnet.scenario.network import build_network
from simnet.scenario.resolve import build_policy, resolve
from simnet.scenario.settings import apply_fields, full_key
from simnet.scenario.topology_parts import TopologyFile, platform_of
from simnet.sparsifier_models.two_level import OWN, PREFIX, TwoLevelOptions
from simnet.topologies.graphs import label
from simnet.traces.recorded import RecordedSource
from simnet.traces.source import Trainable
from simnet.training.job.job import Job
from simnet.training.job.loop import ColocatedJob


@dataclass(frozen=True)
class Run:
    """Job and its policies by name, in the order of the scenario, ready to run.

    Regret is measured against `bound`, the one-step oracle that takes all exchanges into account. Every message of the
    first `timeline` iterations is recorded. `messages` has the number of messages of each exchange and of each other
    job. The run may use `limit` bytes of memory; each process uses `fixed` bytes in addition to the arrays of policies.
    """

    job: Job
    policies: Mapping[str, Policy]
    bound: str | None
    timeline: int
    messages: Mapping[str, int]
    limit: float = math.inf
    fixed: float = 0.0
    colocated: Mapping[str, ColocatedJob] = field(default_factory=dict)

    @property
    def candidates(self) -> dict[str, Candidate]:
        """Exchanges of all policies by label."""
        return {one.label: one for policy in self.policies.values() for one in policy.candidates}

    @property
    def warnings(self) -> list[str]:
        """A warning if the job has more iterations than its recorded gradients; otherwise an empty list."""
        source = self.job.source
        said = source.repetition(self.job.iterations) if isinstance(source, RecordedSource) else ""
        return [f"{said}."] if said else []

    def effort(self, policy: str) -> float:
        """Return the estimated seconds to simulate a policy."""
        steps = 1 if self.job.strategy is None else self.job.strategy.steps
        entries = 3e-8 * self.job.source.workers * self.job.source.parameters * steps
        candidates = self.policies[policy].candidates
        once = [entries + 2e-5 * self.messages[candidate.label] for candidate in candidates]
        tried = len(candidates) if isinstance(self.policies[policy], OneStepOracle) else 1
        beside = sum(one.job.iterations * 4e-5 * self.messages[label] for label, one in self.colocated.items())
        return self.job.iterations * tried * sum(once) / len(once) + beside

    def in_step(self, parts: int, processes: int = 1) -> list[list[str]]:
        """Divide the policies into about `parts` lists of equal effort, for processes that each load gradients once.

        There are more lists if one would not fit the memory that `processes` share. Policies whose gradients depend on
        their updates, or that run next to other jobs, are alone.
        """
        if self.colocated or isinstance(self.job.source, Trainable):
            return [[name] for name in self.policies]
        lists: list[list[str]] = [[] for _ in range(parts)]
        for name in sorted(self.policies, key=self.effort, reverse=True):
            min(lists, key=lambda names: sum(map(self.effort, names))).append(name)
        found: list[list[str]] = []
        for names in filter(None, lists):
            begun: list[str] = []
            # In the order of the scenario, in which results come.
            for name in (one for one in self.policies if one in names):
                together = [self.policies[one] for one in (*begun, name)]
                if begun and in_step_memory(self.job, together) > self.limit / processes - self.fixed:
                    found.append(begun)
                    begun = []
                begun.append(name)
            found.append(begun)
        return found

    def links(self, src: int, dst: int) -> tuple[str, ...]:
        """Return the link names on the route between two workers."""
        routes, placement = self.job.stages[0][1].routes, self.job.placement
        ends = (src, dst) if placement is None else (placement[src], placement[dst])
        return tuple("->".join(map(label, routes.links[link])) for link in routes.route(*ends))


@dataclass(frozen=True)
class Scenario:
    """A loaded and validated scenario.

    `config` has its fields, every default spelled out, with full names of files. Its workers may live
    `elsewhere`, on other machines; see `simnet.training.job.running.workers_in_shards`.
    """

    config: schema.Config
    document: Document
    elsewhere: bool = False

    @property
    def name(self) -> str:
        """Name of the scenario."""
        assert self.config.name is not None
        return self.config.name

    @property
    def bound(self) -> str | None:
        """Name of the oracle policy, which always uses the fastest of all exchanges; None if the scenario has none."""
        everything = set(self.config.choices)
        oracles = {name: one.oracle for name, one in self.config.policies.items() if one.oracle is not None}
        return next((name for name, one in oracles.items() if set(one.among or ()) == everything), None)

    @property
    def computing(self) -> str | None:
        """Text on the compute time and its source; None if the compute time does not come from the model."""
        job, mean, known = self.config.job, self.config.job.compute.mean, self.compute_time
        told = [] if known is None else [known.describe()]
        if mean is not None and any(one.units for one in job.shardings.values()):
            told = [f"{format_seconds(mean)} of its units"]
        ways = {
            label: [
                *([] if one.backward is None else [f"{100 * one.backward:.3g} % backward"]),
                computing.describe_device_slowdown(self.device if one.trace is None else None, one.slowdown or 1.0),
            ]
            for label, one in job.shardings.items()
        }
        if len({tuple(one) for one in ways.values()}) == 1:
            return ", ".join([*told, "; ".join(next(iter(ways.values())))])
        return "; ".join([*told, *(f"{label}: {', '.join(one)}" for label, one in ways.items())]) or None

    @property
    def device(self) -> DeviceProfile | None:
        """Profile of the job's device; None if the profile has errors."""
        return computing.build_device(self.config.job, Findings(self.document))

    @property
    def compute_time(self) -> PassTime | None:
        """Forward and backward time of the model on the device [s]; None if the scenario sets another compute time."""
        job, device = self.config.job, self.device
        if device is None or job.compute.mean is None:
            return None
        with suppress(ValueError):
            known = computing.model_computing(job, device)
            return known if known is not None and known.seconds == job.compute.mean else None
        return None

    @property
    def samples(self) -> SampleCount | None:
        """Global batch size of an iteration or inner step; None if unknown."""
        return computing.iteration_samples(self.config.job, self.config.workers, self.compute_time)

    @property
    def warnings(self) -> list[str]:
        """Sentences about settings that are valid but possibly unintended."""
        device, found = self.device, self.document.found
        doubt = None if device is None else computing.stack_doubt(device, computing.sending_stack(self.config.network))
        said = [doubt] if doubt else []
        platform = platform_of(self.config.network.topology)
        chip = platform.chip if platform else ""
        if device and chip not in ("", device.chip) and found(("job", "device")) is None:
            said.append(f"No device profile is of {chip}, so that {device.name} computes; --device names another.")
        schemes = (sparsifier_models.scheme(one.scheme) for one in self.config.exchanges.values())
        if found(("job", "density")) == 1 and not all(one.traits.sends_all for one in schemes):
            said.append("density 1 is 100 %: write 1% for one in a hundred.")
        return said

    def takes_over(self, *loc: str) -> bool:
        """Return whether the value at `loc` comes from a default or a shipped scenario rather than from the user.

        In a scenario named ``base``, perhaps a saved one, values equal to those of the shipped one count as defaults.
        """
        if self.name == "base":
            of = attrgetter(".".join(loc))
            return bool(of(self.config) == of(load("base").config))
        written = self.document.found(loc) is not None and not self.document.is_shipped
        return not (written or self.document.is_overridden(loc))

    def only(self, names: Sequence[str]) -> Scenario:
        """Return the scenario with only the named policies; InputError for an unknown policy."""
        policies = self.config.policies
        for name in names:
            check_choice(name, "policy", policies, file="--policies")
        kept = {name: one for name, one in policies.items() if name in names}
        return replace(self, config=self.config.with_fields(policies=kept))

    def with_seed(self, seed: int) -> Scenario:
        """Return the scenario with another seed."""
        return replace(self, config=self.config.with_fields(seed=seed))

    def replace(self, **fields: Unpack[Fields]) -> Scenario:
        """Return a copy of the scenario with other values of fields such as `workers`, `density` or `bandwidth`."""
        document = copy.deepcopy(self.document)
        document.data["seed"] = self.config.seed
        apply_fields(document, fields)
        again = replace(_checked(document), elsewhere=self.elsewhere)
        kept = [name for name in again.config.policies if name in self.config.policies]
        return again if fields.get("schemes") is not None else again.only(kept)

    def build(self) -> Run:
        """Return the job and its policies, ready to run.

        Raises InputError if parts do not fit each other, a file is wrong, or memory is too small.
        """
        found = Findings(self.document)
        stages = build_network(self.config, found)
        messages = try_exchanges(self.config, found) if stages is not None else {}
        job = build_job(self.config, stages, found, elsewhere=self.elsewhere)
        if job is not None and job.steps is not None:
            # A node of each worker takes about as long as a message.
            graphs = {label: one.step(job.iterations).graph for label, one in job.steps.items()}
            messages = {label: len(one.nodes) * one.workers for label, one in graphs.items()}
        colocated, theirs = build_colocated(self.config, stages, found)
        found.refuse()
        assert job is not None
        policies = {}
        for name, one in self.config.policies.items():
            with found.at("policies", name, one.choice[0]):
                policies[name] = build_policy(self.config, one)
        found.refuse()
        memory = memory_limit(self.config, elsewhere=self.elsewhere), fixed_memory(self.config)
        return Run(job, policies, self.bound, self.config.output.timeline, theirs | messages, *memory, colocated)

    def at_once(self, wanted: int) -> int:
        """Return how many policies, at most `wanted`, may run in parallel within the memory limit; at least 1."""
        return max(1, min(wanted, int(memory_limit(self.config, elsewhere=self.elsewhere) // memory(self.config))))

    @property
    def prices(self) -> dict[str, Any] | None:
        """Prices of devices and traffic by field; None if the job states no prices."""
        given = self.config.job.prices
        return None if given is None else given.model_dump()

    def to_yaml(self) -> str:
        """Return the given fields as YAML with absolute file paths, which loads as the same scenario."""
        return yaml_text(self.written(), width=120)

    def written(self) -> dict[str, Any]:
        """Return the fields as the user gave them, with absolute file paths."""
        given = schema.Config.model_validate(self.document.data, context={"folder": Path(self.document.file).parent})
        found = given.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        found |= {"name": self.name, "seed": self.config.seed}
        if len(self.config.policies) < len(_checked(self.document).config.policies):
            policies = self.config.model_dump(mode="json", by_alias=True, exclude_none=True)["policies"]
            found["policies"] = policies
        return found

    def lock(self) -> str:
        """Return the scenario as YAML with all defaults filled in.

        Loaded again, it gives the same job. Files have the names of `inputs`; recorded gradients have their full path.
        """
        return self._written

    @cached_property
    def _written(self) -> str:
        names = {path: name for name, path in self.inputs().items()}
        written = self.config.model_dump(mode="json", by_alias=True, exclude_none=True)
        if not self.config.exchanges:
            del written["exchanges"]
        return yaml_text(_with_names(written, names.get), width=1000)

    def inputs(self) -> dict[str, Path]:
        """Return the paths of the input files, by names that contain a hash of the file: ``inputs/HASH-NAME``."""
        paths: list[Path] = []
        _with_names(self.config.model_dump(mode="json", by_alias=True), paths.append)
        found = {_by_content(path): path for path in paths}
        given = self.config.network.topology.choice[1]
        if isinstance(given, TopologyFile) and (profiles := companion_files(given.path, given.format)):
            # Together, as the platform names the others.
            path, digest = Path(given.path), hashlib.sha256()
            files = {path.name: path} | {name: path.parent / name for name in profiles}
            for name, one in files.items():
                digest.update(f"{name}\0{_file_digest(one)}\0".encode())
            del found[_by_content(path)]
            found |= {f"inputs/{digest.hexdigest()[:12]}-{path.stem}/{name}": one for name, one in files.items()}
        return found


def _with_names(value: Any, name: Callable[[Path], str | None], field: str = "") -> Any:
    """Return fields with each file path replaced by ``name(path)``, except paths of recorded gradients."""
    if isinstance(value, dict):
        return {key: _with_names(one, name, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_names(one, name) for one in value]
    if not isinstance(value, str) or field in ("trace", "description") or not Path(value).is_absolute():
        return value
    path, colon, wanted = value.rpartition(":") if field == "scheme" else (value, "", "")
    return f"{name(Path(path)) or path}{colon}{wanted}" if Path(path).is_file() else value


def load(
    path: str | Path, overrides: Sequence[str] = (), seed: int | None = None, **fields: Unpack[FieldsButSeed]
) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    path : str or Path
        A YAML file, or the name of a shipped scenario.
    overrides : sequence of str
        Fields to set, as ``job.iterations=50``; the value is YAML, so units work. A name may be short, as ``spread``.
    seed : int, optional
        Replaces the seed of the file.
    **fields
        Marked fields, as ``density="1%"`` or ``bandwidth=1.25e8``; see `simnet.scenario.marked_fields`.

    Raises
    ------
    InputError
        If something is wrong with it, a line for each problem.

    Examples
    --------
    >>> scenario = load("quickstart", overrides=["job.iterations=5"], seed=7)
    >>> scenario.name, scenario.config.job.iterations, scenario.config.seed
    ('quickstart', 5, 7)
    >>> load("quickstart", density="1%", workers=8).config.job.density
    0.01
    """
    document = read_with(path, overrides)
    if seed is not None:
        document.set_seed(seed)
    apply_fields(document, fields, overrides)
    return _checked(document)


def read_with(path: str | Path, overrides: Sequence[str] = ()) -> Document:
    """Return a scenario file as a document with overrides, such as ``workers=4``, applied; InputError as in `load`."""
    document = read_scenario(find(path))
    # A short name means a field of the scenario that the full ones make.
    short = [one for one in overrides if one.partition("=")[0].strip().partition(".")[0] not in schema.Config.names()]
    for assignment in (*(one for one in overrides if one not in short), *short):
        name, equals, value = assignment.partition("=")
        if assignment in short and equals and name.strip():
            assignment = f"{full_key(name.strip(), _checked(document))}={value}"
        document.set(assignment)
    return document


def network_written(path: str | Path) -> dict[str, Any]:
    """Return the network of a scenario file, with absolute paths; the file need not have the other parts."""
    document = read_with(path)
    document.data = {**read_with("base").data, **document.data}
    found: dict[str, Any] = _checked(document).written()["network"]
    return found


def _checked(document: Document) -> Scenario:
    """Return the scenario that a document describes; InputError if a value is invalid."""
    file, found = Path(document.file), Findings(document)
    document.open_texts()
    try:
        config = schema.Config.model_validate(document.data, context={"folder": file.parent})
    except ValidationError as error:
        for one in problems(document, error):
            found.take(one)
        found.refuse()
        raise
    config = resolve(config, file.stem, found)
    found.refuse()
    return Scenario(config, document)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files."""
    found = schema.Config.model_json_schema(by_alias=True)

    def scheme(which: dict[str, str], options: type, names: Sequence[str]) -> dict[str, Any]:
        known = TypeAdapter(options).json_schema()["properties"] if names else {}
        fields = {"scheme": which, **{option: known[option] for option in names}}
        return {"type": "object", "properties": fields, "required": ["scheme"]}

    usable = sparsifier_models.usable().items()
    schemes = [scheme({"const": name}, one.option_type, sparsifier_models.own_options(name)) for name, one in usable]
    schemes = [{**one, "additionalProperties": False} for one in schemes]
    in_file = {"pattern": r"\.py:\w+$", "description": "a class in a file, as ./my_scheme.py:Rotating"}
    on_levels = {"pattern": f"^{PREFIX}", "description": "a scheme on two levels, with its options"}
    schemes += [
        scheme({"type": "string", **in_file}, dict, ()),
        {"type": "string", "description": "a scheme with options, as artopk:collective=tree"},
        scheme({"type": "string", **on_levels}, TwoLevelOptions, OWN),
    ]
    found["$defs"]["Exchange"] = {"description": schema.Exchange.__doc__, "anyOf": schemes}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "simnet scenario"}


def _by_content(path: Path) -> str:
    digest = _file_digest(path)[:12]
    return f"inputs/{digest}-{path.name.removeprefix(digest + '-')}"


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
