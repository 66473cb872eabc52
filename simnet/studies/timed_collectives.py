"""Times of collectives and schedules, by a cost model or by simulation, as answers of `simnet time`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from simnet import topologies
from simnet.base import plugins, units
from simnet.base.arrays import Ranks
from simnet.base.errors import InputError, check_choice, refuse_values
from simnet.base.progress import track_progress
from simnet.collectives import registry
from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE, CalibratedCostModel
from simnet.cost_models.calibration.cost_model_file import cost_model_of
from simnet.cost_models.calibration.node_links import MAX_DEVICES, pack_links
from simnet.cost_models.calibration.readers.conventions import bus_factor
from simnet.cost_models.evidence.conditions import Evidence, Level
from simnet.interchange.kinds import kind_of, read_schedule
from simnet.interchange.messages_csv import write_messages
from simnet.network import Network
from simnet.report.columns import Fields
from simnet.report.summary import Summary, interval_text, percent, table_columns
from simnet.scenario import Scenario, load
from simnet.scenario.choice_text import choice_words, read_choice
from simnet.scenario.marked_fields import overrides_of
from simnet.scenario.named_choices import network_taken_for, read_network_text
from simnet.scenario.settings import worker_link
from simnet.schedule import Round, Schedule, count_rounds
from simnet.studies.sweeping.grid import axis
from simnet.studies.timing import Timed, network_at_start

MAX_CHANNELS = 64
"""The most channels of a collective; NCCL has as many."""


def card_users(network: Network) -> list[int]:
    """Return the first GPU that uses each network card of the first node; empty unless several nodes have GPUs."""
    routes, each = network.routes, int(network.graph.graph.get("gpus_per_node", 0))
    if not each or each >= routes.n_hosts:
        return []
    found: dict[int, int] = {}
    for gpu in range(each):
        for link in _cards_on(network, routes.route(gpu, each))[:1]:
            found.setdefault(link, gpu)
    return list(found.values())


def channel_orders(network: Network, channels: object, ranks: int) -> list[tuple[Ranks, float]]:
    """Return each channel's order of ranks and share of the data. Channels leave nodes by different network cards.

    Raises InputError if `channels` is no number of channels, or the network has no nodes with GPUs.
    """
    if type(channels) is not int or not 1 <= channels <= MAX_CHANNELS:
        raise InputError(f"channels must be a whole number in 1..{MAX_CHANNELS}, got {channels!r:.40}")
    each = int(network.graph.graph.get("gpus_per_node", 0))
    if not each:
        raise InputError("channels go over the cards of an NCCL topology, which this network is not")
    last = card_users(network) or range(each)
    local = [(last[number % len(last)] + 1 + np.arange(each)) % each for number in range(channels)]
    flat = [(np.arange(0, ranks, each)[:, None] + one).ravel() for one in local]
    return [(one[one < ranks], 1 / channels) for one in flat]


def linked_orders(network: Network, ranks: int) -> list[tuple[Ranks, float]]:
    """Return orders of ranks along the direct links inside nodes, each order with its share of the data.

    They are the best rings inside a node, or the best chains through whole nodes. Empty where there are none, nodes are
    used in part, or too many or too few ranks are on one.
    """
    graph = network.graph
    each = int(graph.graph.get("gpus_per_node", 0))
    some = min(ranks, each)
    if not 2 < some <= MAX_DEVICES or ranks % some:
        return []
    rates = np.array(
        [[graph.edges[a, b]["bandwidth"] if graph.has_edge(a, b) else 0.0 for b in range(some)] for a in range(some)]
    )
    least = rates[rates > 0].min(initial=np.inf)
    links = tuple(tuple(row) for row in np.rint(rates / least).astype(int).tolist())
    ways = pack_links(links, closed=ranks == some)
    total = 2 * sum(count for _, count in ways)
    starts = np.arange(0, ranks, each)[:, None]
    return [((starts + np.array(way[:some])[::turn]).ravel(), count / total) for way, count in ways for turn in (1, -1)]


def in_channels(whole: Schedule, orders: Sequence[tuple[Ranks, float]]) -> Schedule:
    """Return a schedule that runs in several orders of ranks at once, each with a share of every message."""
    made: dict[int, Round] = {}
    for one in whole.rounds:
        if id(one) not in made:
            src, dst = (np.concatenate([order[side] for order, _ in orders]) for side in (one.src, one.dst))
            nbytes = np.concatenate([share * one.nbytes for _, share in orders])
            made[id(one)] = Round(src, dst, nbytes, one.compute, one.phase)
    return Schedule(whole.n_ranks, [made[id(one)] for one in whole.rounds])


def cards_used(timed: Timed) -> str:
    """Return a text on how many network cards a schedule uses; empty if the schedule uses none."""
    graph, routes = timed.network.graph, timed.network.routes
    if graph.graph.get("name") != "nccl" or not graph.has_node("fabric"):
        return ""
    pairs = {pair for one in timed.schedule.rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}
    used = {
        card
        for src, dst in pairs
        for card in _cards_on(timed.network, routes.route(timed.hosts[src], timed.hosts[dst]))
    }
    return f"over {len(used):,} of {graph.in_degree('fabric'):,} network cards" if used else ""


def _cards_on(network: Network, route: Sequence[int]) -> list[int]:
    """Return the links on a route that connect a network card to the fabric."""
    return [link for link in route if network.routes.links[link][1] == "fabric"]


OPERATIONS: tuple[str, ...] = (*get_args(registry.Operation), "sendrecv")
"""Collective operations, in the spelling of nccl-tests."""

MAX_WORKERS = (16_384, 4_096)
"""Maximum ranks of a collective, and of an all-to-all."""


class CollectiveAsked(NamedTuple):
    """Collective that a user asks for: operation, algorithm and options.

    `algorithm` is None if left open; `library` says that the text is an nccl-tests name, so that a library may choose
    the algorithm.
    """

    operation: str
    algorithm: str | None
    options: dict[str, Any]
    library: bool

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.options.items()]
        return ", ".join([f"{self.operation} {self.algorithm or ''}".strip(), *named])

    @property
    def share(self) -> str:
        """Preposition before "each rank" in texts on sizes, such as "from"; empty unless data are split among ranks."""
        return {"all_gather": "from", "reduce_scatter": "to", "alltoall": "between"}.get(self.operation, "")

    def found(self) -> registry.Collective:
        """Return the requested algorithm; by default a ring, or else the first known one. InputError: none is known."""
        own = registry.all_collectives(self.operation)  # type: ignore[arg-type]
        if not own:
            raise InputError(f"no schedule of {self.operation} is known, but by a calibrated cluster or a platform")
        if self.algorithm is None:
            return next((one for one in own if one.algorithm == "ring"), own[0])
        with refuse_values():
            return registry.collective_by_algorithm(self.operation, self.algorithm)  # type: ignore[arg-type]

    def schedule(self, workers: int, nbytes: float) -> Schedule:
        """Return the schedule for `nbytes` of data. InputError: sizes or options are invalid."""
        found = self.found()
        most = MAX_WORKERS[found.operation == "alltoall"]
        if workers > most:
            raise InputError(f"must be at most {most:,} for {found.name}, got {workers:,}", file="--workers")
        for name, value in self.options.items():
            check_choice(name, "option", found.options, file=found.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{found.name}: {name} must be a number, got {value!r}")
        for needed in found.needs:
            if needed not in self.options:
                raise InputError(f"{found.name} needs {needed}, as {found.algorithm}:{needed}=4")
        try:
            return found.schedule_of_vector(workers, nbytes, **self.options)
        except ValueError as error:
            raise InputError(f"{found.name}: {plugins.refusal_text(error)}") from None


def collective_asked(text: str) -> CollectiveAsked | None:
    """Return the collective that a text names; None if the text is not the name of a collective.

    The text is an operation, optionally with an algorithm, a collective's name in simnet's registry, or an all-reduce
    algorithm; options follow a colon.

    Examples
    --------
    >>> print(collective_asked("all_gather:bruck"), collective_asked("allreduce_tree:arity=4"), sep="; ")
    all_gather bruck; all_reduce tree, arity=4
    >>> collective_asked("hierarchical:group_size=4").schedule(8, 4e6).n_ranks
    8
    >>> collective_asked("ring.goal")
    """
    with refuse_values(before=f"{text}: "):
        name, options = read_choice(text)
    operation, _, algorithm = (part.strip() for part in name.partition(":"))
    if operation in OPERATIONS:
        return CollectiveAsked(operation, algorithm or None, options, library=True)
    for one in registry.all_collectives():
        if name in (one.name, one.algorithm) and (name == one.name or one.operation == "all_reduce"):
            return CollectiveAsked(one.operation, one.algorithm, options, library=False)
    return None


def collective_names() -> list[str]:
    """Return the names of collective operations, such as all_reduce, and of all algorithms for them."""
    return [*OPERATIONS, *(one.name for one in registry.all_collectives())]


SIZE = "64 MB"
"""Default vector size of a collective."""


class TimeRequest(NamedTuple):
    """Settings of `simnet time` besides the schedule: network, scenario fields to set, and start times of ranks [s].

    If `loose`, a file that rounds cannot express is read as later rounds, so that its time is an upper bound.
    """

    overrides: Sequence[str] = ()
    fields: Mapping[str, Any] = {}
    start: float = 0.0
    loose: bool = False

    def timer(self, **more: object) -> ScenarioTimer:
        """Return a timer on the network of the request, with ``--set`` overrides applied."""
        given = {**self.fields, **more}
        first = {name: given.get(name) for name in ("network", "seed")}
        rest: Any = {name: one for name, one in given.items() if name not in first}
        loaded = load("base", [*overrides_of("base", first), *self.overrides], **rest)
        return ScenarioTimer(loaded, given, self.start, *network_at_start(loaded))


class ScenarioTimer(NamedTuple):
    """Timer of schedules that start at `start` [s] on a scenario's network; `given` are fields that the user set."""

    scenario: Scenario
    given: Mapping[str, object]
    start: float
    network: Network
    hosts: Sequence[int]

    def time(self, schedule: Schedule) -> Timed:
        """Return the timing of a schedule on the network."""
        return Timed(self.network, self.hosts, schedule, self.start)

    def words(self, timed: Timed) -> str:
        """Return a text on the network, and on how many of its network cards the schedule uses."""
        text = self.given.get("network")
        if text is None:
            return f"a {self.scenario.config.network.topology.choice[0].replace('_', ' ')}"
        taken = network_taken_for(str(text), hosts=self.network.routes.n_hosts)
        name, *_ = choice_words(str(text))
        said = f"{Path(name).name}, {taken}" if taken.startswith("read as") else taken
        return ", ".join(filter(None, [said, cards_used(timed)]))

    def assumed(self) -> list[str]:
        """Return texts on network settings left at defaults, and on how the network's file was read."""
        given, network = self.given, self.scenario.config.network
        said = [] if given.get("workers") is not None else [f"{self.scenario.config.workers} workers"]
        said += self.network.graph.graph.get("remarks", [])
        kind, part = network.topology.choice
        said += [kind] if given.get("network") is None else []
        links = worker_link(kind) if kind in topologies.names() else {}
        for name, write in (("bandwidth", units.format_bandwidth), ("latency", units.format_seconds)):
            value, key = getattr(part, links.get(name, ""), None), links.get(name, "")
            asked = given.get(name) is not None or f"{key}=" in str(given.get("network") or "")
            if isinstance(value, int | float) and not asked:
                said.append(write(value))
        return [*said, f"stack {network.stack or 'ideal'}"] if links and given.get("stack") is None else said

    def summary(self, timed: Timed, rows: Sequence[Fields], assumed: Sequence[str], **more: Any) -> Summary:
        """Return the summary of table rows with simulated times; `timed` is the simulation of the last row."""
        bound, seconds = timed.bound, timed.timing.duration
        does = f"what {bound.who} {bound.verb} takes {units.format_seconds(bound.seconds)} at least"

        def write(path: Path) -> None:
            found = timed.time(self.start, messages=True).messages
            assert found is not None
            write_messages(found, path)

        return Summary(
            rows=rows,
            evidence=_evidence(rows),
            assumed=", ".join([*assumed, *self.assumed()]),
            depends_on=f"bandwidth for {percent(bound.seconds / seconds)}: {does}" if seconds else "",
            notes=timed.notes(),
            writers={".csv": write} if len(rows) == 1 else {},
            **{**more, "details": {"answered_by": "simulation", **more.get("details", {}), **timed.setup()}},
        )


def message_sizes(size: Sequence[float | str] | float | str | None) -> list[float]:
    """Return sizes [byte] from a text: a size, a comma-separated list, or a range ``LO:HI:N`` or ``LO:HI:N:log``.

    Examples
    --------
    >>> message_sizes("64,1000MB"), message_sizes(1e6), message_sizes(["1 MB", 2e6]), message_sizes("1kB:1MB:4:log")
    ([64000000.0, 1000000000.0], [1000000.0], [1000000.0, 2000000.0], [1000.0, 10000.0, 100000.0, 1000000.0])
    """
    try:
        if isinstance(size, str):
            size = axis(f"size={size}", 1000).values
        elif size is None or isinstance(size, int | float):
            size = [] if size is None else [size]
        return [units.size(one) if isinstance(one, str) else float(one) for one in size]
    except InputError as error:
        raise InputError(error.message, file="--size") from None
    except ValueError as error:
        raise InputError(str(error), file="--size") from None


def answer_time(what: str | Path | Schedule, sizes: Sequence[float], request: TimeRequest) -> Summary:
    """Return a summary of how long the collective, schedule or schedule file `what` takes."""
    asked = None if isinstance(what, Schedule) else collective_asked(str(what))
    if asked is None:
        return _time_schedules(what, sizes, request)
    unsaid, fields = [] if sizes else [SIZE], request.fields
    sizes = sizes or [units.size(SIZE)]
    of_links = any(fields.get(name) is not None for name in ("latency", "bandwidth", "stack"))
    if fields.get("network") is not None and asked.library and not (of_links or request.overrides or request.start):
        named = cost_model_named(fields["network"])
        if named is not None:
            workers = load("base", workers=fields.get("workers")).config.workers
            unsaid += [f"{workers} workers"] if fields.get("workers") is None else []
            return _predict_collective(asked, named, workers, sizes, unsaid)
    return _simulate_collective(asked, request.timer(), sizes, unsaid)


def cost_model_named(network: str | Path) -> tuple[CalibratedCostModel, str, int | None] | None:
    """Return the cost model, name and node count of a platform or calibrated cluster; None for another network."""
    found = read_network_text(str(network), Path()).get("topology", {})
    part = found.get("platform") or found.get("file") or {}
    path = part.get("path")
    nodes = part.get("nodes")
    # What else there is of it, or wrong with it, loading says.
    plain = set(part) <= {"path", "nodes"} and (nodes is None or type(nodes) is int)
    if not plain or path is None or ("file" in found and kind_of(path) != "fabric"):
        return None
    return cost_model_of(str(path)), Path(path).stem, nodes


def _predict_collective(
    asked: CollectiveAsked,
    named: tuple[CalibratedCostModel, str, int | None],
    workers: int,
    sizes: Sequence[float],
    unsaid: Sequence[str],
) -> Summary:
    (model, name, nodes), protocol = named, asked.options.get("protocol")
    for option in asked.options.keys() - {"protocol"}:
        raise InputError(f"the cost model of {name} has no option {option!r}; Allowed: protocol")
    model.refuse_unknown(asked.algorithm, protocol)
    pinned = {"nodes": nodes, "algorithm": asked.algorithm, "protocol": protocol}
    rows = []
    for nbytes in track_progress(sizes):
        found = model.predict(asked.operation, workers, nbytes, **pinned).corrected()  # type: ignore[arg-type]
        ends = units.interval_figures(found.low, found.high, "_s")
        because = "; ".join([found.why, *([f"interval {ends.pop('interval')}"] if "interval" in ends else [])])
        known = {"evidence": "extrapolated" if found.extrapolates else "measured", "because": because}
        rows.append(
            {"size_B": nbytes, "time_s": found.seconds, **ends, **_bandwidths(asked, workers, nbytes, found.seconds)}
            | {**known, "kind": found.kind}
        )
    held = "" if model.coverage == DEFAULT_COVERAGE else f"intervals hold {percent(model.coverage)}; "
    return Summary(
        answer=_answer(asked, workers, rows, f"by the cost model of {name}"),
        columns=table_columns("time size", "time", "time rates"),
        rows=rows,
        evidence=held + _evidence(rows),
        assumed=", ".join(unsaid),
        next=_more_sizes(rows),
        details={"answered_by": f"cost model of {name}", "ranks": workers, "coverage": model.coverage},
        notes=["device: none; a collective alone, without selecting"],
    )


def _simulate_collective(
    asked: CollectiveAsked, clock: ScenarioTimer, sizes: Sequence[float], unsaid: Sequence[str]
) -> Summary:
    workers, rows, found = clock.scenario.config.workers, [], asked.found()
    network = clock.network
    # NCCL has a ring for each card, and where it chooses itself those that links of a node allow.
    channels = max(len(card_users(network)), 1) if found.algorithm == "ring" else 1
    options = {"channels": channels, **asked.options}
    channels = options.pop("channels")
    plain = asked._replace(options=options)
    chosen = asked.library and asked.algorithm is None and "channels" not in asked.options
    orders = linked_orders(network, workers) if chosen else []
    if not orders and channels != 1:
        orders = channel_orders(network, channels, workers)
    for nbytes in track_progress(sizes):
        schedule = plain.schedule(workers, nbytes)
        timed = clock.time(in_channels(schedule, orders) if orders else schedule)
        row = {"size_B": nbytes, **timed.row()}
        rows.append(row | _bandwidths(asked, workers, nbytes, row["time_s"]))
    by = f"{f'in {len(orders)} channels, ' if orders else ''}simulated on {clock.words(timed)}"
    return clock.summary(
        timed,
        rows,
        [*([f"by {found.name}"] if asked.algorithm is None else []), *unsaid],
        answer=_answer(asked, workers, rows, by),
        columns=table_columns("time size", "time", "time rates", "time bound"),
        next=_more_sizes(rows),
        details={"collective": found.name},
    )


def _time_schedules(what: str | Path | Schedule, sizes: Sequence[float], request: TimeRequest) -> Summary:
    """Return a summary of the time of a schedule or a file of schedules; MSCCL files are timed at each size."""
    name = "schedule" if isinstance(what, Schedule) else Path(what).name
    rows: list[Fields] = []
    notes: list[str] = []
    for nbytes in track_progress(sizes or [None]):
        schedule = _read(what, nbytes, request, notes=notes if not rows else None)
        clock = request.timer(workers=schedule.n_ranks)
        timed = clock.time(schedule)
        limit = timed.network.stack.rendezvous_above
        if any((one.nbytes > limit).any() for one, _ in count_rounds(schedule.rounds)):
            waiting = _read(what, nbytes, request, eager_limit=limit)
            timed, schedule = timed if waiting == schedule else clock.time(waiting), waiting
        rows.append({"schedule": name, "size_B": nbytes, **timed.row()})
    first, last = rows[0], rows[-1]
    several = f" to {_time(last)}" if len(rows) > 1 else ""
    return clock.summary(
        timed,
        rows,
        notes,
        answer=f"{name}: {_time(first)}{several}, {schedule.n_ranks:,} ranks simulated on {clock.words(timed)}.",
        columns=table_columns("time size" if sizes else "time schedule", "time", "time bound", "time total"),
        next="--out messages.csv   when each message goes" if len(rows) == 1 else "",
    )


def _read(what: str | Path | Schedule, nbytes: float | None, request: TimeRequest, **options: Any) -> Schedule:
    """Return the schedule `what`; a path stands for the schedule in that file."""
    workers, overrides = request.fields.get("workers"), request.overrides
    if isinstance(what, Schedule):
        if nbytes is not None or workers is not None:
            option = "--workers" if nbytes is None else "--size"
            raise InputError("is for a collective: a schedule has its own", file=option)
        return what
    if not os.path.exists(what) and "." not in str(what):  # noqa: PTH110 - a name that is too long is none, too
        error = registry.unknown_collective("such file, and no collective", str(what), collective_names())
        raise error if isinstance(error, plugins.PluginError) else InputError(str(error))
    largest = int(load("base", overrides).config.memory) if any(one[:7] == "memory=" for one in overrides) else None
    ranks = None if workers is None else load("base", workers=workers).config.workers
    return read_schedule(str(what), nbytes=nbytes, strict=not request.loose, n_ranks=ranks, largest=largest, **options)[
        1
    ]


def _bandwidths(asked: CollectiveAsked, workers: int, nbytes: float, seconds: float) -> Fields:
    """Return the algorithm bandwidth and the bus bandwidth [byte/s], as defined by nccl-tests."""
    rate, factor = nbytes / seconds if seconds > 0 else None, bus_factor(asked.operation, workers)
    return {"algbw_Bps": rate, "busbw_Bps": None if None in (rate, factor) else rate * factor}  # type: ignore[operator]


def _time(row: Fields) -> str:
    return interval_text(row["time_s"], row["low_s"], row["high_s"])


def _answer(asked: CollectiveAsked, workers: int, rows: Sequence[Fields], by: str) -> str:
    """Return the first line of an answer: the time at a single size, or at the first and the last size."""
    first, last = rows[0], rows[-1]
    among = f"{asked}, {workers:,} ranks"
    if len(rows) > 1:
        ends = " to ".join(f"{_time(one)} for {units.format_bytes(one['size_B'])}" for one in (first, last))
        return f"{among}: {ends}; {by}."
    each = f", {units.format_bytes(first['size_B'] / workers)} {asked.share} each rank" if asked.share else ""
    return f"{among}, {units.format_bytes(first['size_B'])}{each}: {_time(first)}; {by}."


def _evidence(rows: Sequence[Fields]) -> str:
    """Return a text on the weakest evidence of the rows: measured, extrapolated or assumed times."""
    levels = get_args(Level)
    worst = max(rows, key=lambda row: levels.index(row["evidence"]))
    return Evidence(worst["evidence"], worst["because"]).line()


def _more_sizes(rows: Sequence[Fields]) -> str:
    return "--size 1kB:1GB:7:log   how the time grows with the size" if len(rows) == 1 else ""
