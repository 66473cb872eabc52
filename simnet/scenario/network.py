"""Construction of simulated networks from a scenario: links, weather, faults and background traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from simnet import topologies
from simnet.base import plugins
from simnet.base.rng import stream
from simnet.base.yaml_loader import Loc, field_path
from simnet.interchange.kinds import NetworkRead
from simnet.network import ConstantLoad, Network, OnOffFlow, weather
from simnet.network.transport import Incast, Loss, MeasuredIncast, Transport
from simnet.network.weather import Signal, Weather
from simnet.scenario import network_parts, schema, weather_parts
from simnet.scenario.loader import Findings
from simnet.scenario.parts import Part, given_fields
from simnet.scenario.topology_parts import Topology, build_topology, sending
from simnet.topologies.graphs import Graph, Link, label

# Name of a random stream.
_Name: TypeAlias = tuple[str | int, ...]


class Stages(NamedTuple):
    """A job's networks, by the iteration from which each is used; its workers' hosts; and how links vary over time."""

    networks: list[tuple[int, Network]]
    placement: list[int]
    weather: list[dict[Link, Weather]]


class _LinkVariation(NamedTuple):
    """How a link's bandwidth or latency varies: a signal of absolute values, or of factors on the link's own value."""

    # `make(name, start)` returns it for a random stream, from iteration `start` on; it changes at `starts`.

    quantity: str
    loc: Loc
    absolute: bool
    make: Callable[[_Name, int], Signal]
    starts: tuple[int, ...] = (0,)
    name: _Name = ()


def build_network(config: schema.Config, found: Findings) -> Stages | None:
    """Return the job's networks, a new one whenever link variations change with the iteration; None on errors."""
    given, before = config.network, len(found)
    with found.at("network", "topology"):
        read = build_topology(given.topology)
        topologies.check_connected(read.graph)
    if len(found) > before:
        return None
    graph, sent = sending(given.topology, read, given.arguments().get("stack"))
    read = read._replace(graph=graph)
    placement = _rank_placement(config, graph, found)
    moved = _moved_links(config, read, found)
    _add_faults(config, graph, moved, found)
    background = _background_traffic(config, graph, found)
    kind, part = ("", None) if given.jitter is None else given.jitter.choice
    jitter = None if part is None else found.attempt(("network", "jitter", kind), part.build)
    loss, incast = _link_loss(config, graph, found), _link_incast(config, graph, found)
    if len(found) > before:
        return None
    starts = {start for one in moved.values() for each in one for start in each.starts}
    weathers = _link_weather(moved, graph, starts | {0})
    options = {**given.overhead.arguments(), **given.arguments(), **sent, "jitter": jitter, "background": background}
    options |= {"seed": config.seed, "loss": loss, "incast": incast}
    networks = [(start, Network(graph, of_links, **options)) for start, of_links in weathers.items()]
    return Stages(networks, placement, list(weathers.values()))


def _rank_placement(config: schema.Config, graph: Graph, found: Findings) -> list[int]:
    hosts, workers, given = int(graph.graph["hosts"]), config.workers, config.network.placement
    if isinstance(given, list):
        return _listed_hosts(given, workers, hosts, ("network", "placement"), found)
    if workers > hosts:
        more = _more_hosts(config.network.topology, hosts, workers)
        found.add(("workers",), f"must be at most {hosts}, the hosts of the topology, got {workers}{more}")
    if given == "random":
        order: list[int] = stream(config.seed, "placement").permutation(hosts).tolist()
    elif given == "spread":
        order = _in_turn(graph)
    else:
        order = list(range(hosts))
    return order[:workers]


def _more_hosts(topology: Topology, hosts: int, workers: int) -> str:
    """Return text on the parameters of a topology that can be raised to give each worker a host; "" if none can."""
    kind, part = topology.choice
    given, enough = part.arguments(), []
    for name, value in given.items():
        more = -(-int(value) * workers // hosts) if type(value) is int else 0
        with suppress(ValueError, TypeError):
            if more and int(topologies.FAMILIES[kind](**given | {name: more}).graph["hosts"]) >= workers:
                enough.append(f"network.topology.{kind}.{name} to {more}")
    return f"; raise {' or '.join(enough)}" if enough else ""


def _listed_hosts(given: list[int], workers: int, hosts: int, loc: Loc, found: Findings) -> list[int]:
    """Return the listed hosts of workers; report a wrong number of hosts, and hosts that do not exist."""
    if len(given) != workers:
        found.add(loc, f"must name a host for each of the {workers} workers, got {len(given)}")
    for rank, host in enumerate(given):
        if host >= hosts:
            found.add((*loc, rank), f"there is no host {host}; allowed: 0 to {hosts - 1}")
    return given


def _in_turn(graph: Graph) -> list[int]:
    """Return all hosts in round-robin order over their switches or sites."""
    groups: dict[str, list[int]] = {}
    for host in range(graph.graph["hosts"]):
        switch = next((node for node in graph.successors(host) if isinstance(node, str)), str(host))
        groups.setdefault(graph.nodes[host].get("site", switch), []).append(host)
    turns = max(map(len, groups.values()))
    return [group[turn] for turn in range(turns) for group in groups.values() if turn < len(group)]


def _moved_links(config: schema.Config, read: NetworkRead, found: Findings) -> dict[Link, list[_LinkVariation]]:
    """Return, for each link that changes, its bandwidth and latency over time, from files, weather and faults."""
    graph = read.graph
    in_file: Loc = ("network", "topology", "file")
    moved: dict[Link, list[_LinkVariation]] = {
        link: list(_given_pair(own, in_file)) for link, own in read.weather.items()
    }
    for index, entry in enumerate(config.network.weather):
        loc: Loc = ("network", "weather", index)
        links = found.attempt((*loc, "links"), topologies.select_links, graph, entry.links) or ()
        for variation in _link_variations(config, entry, graph, loc, found):
            for link in links:
                here = moved.setdefault(link, [])
                rival = next((one for one in here if one.absolute and one.quantity == variation.quantity), None)
                if rival is not None and variation.absolute:
                    names = "->".join(map(label, link))
                    found.add(
                        variation.loc,
                        f"sets the {variation.quantity} of {names}, as {field_path(rival.loc)} does; only one may, "
                        "all others must be factors",
                    )
                    break
                own = () if entry.shared else tuple(map(label, link))
                here.append(variation._replace(name=("weather", index, variation.quantity, *own)))
    return moved


def _add_faults(config: schema.Config, graph: Graph, moved: dict[Link, list[_LinkVariation]], found: Findings) -> None:
    """Add faults of links as factors on bandwidth: 0 in an outage, the remaining share in a slowdown."""
    for index, entry in enumerate(config.network.faults):
        loc: Loc = ("network", "faults", index)
        with found.at(*loc, "links"):
            links = topologies.select_links(graph, entry.links)
            spans = entry.down if isinstance(entry.down, list) else [entry.down or entry]
            during = [(one.at or 0.0, math.inf if one.lasts is None else one.lasts) for one in spans]
            signal = _spans_signal(during, entry.slow or 0.0, 1.0)
            fault = _LinkVariation("bandwidth", loc, False, partial(_always, signal))
            for link in links:
                moved.setdefault(link, []).append(fault)


def _always(signal: Signal, name: _Name, start: int) -> Signal:
    return signal


def _spans_signal(spans: Sequence[tuple[float, float]], within: float, outside: float) -> Signal:
    times, up = weather.outages(at=spans).window(0.0, math.nextafter(math.inf, 0))
    return weather.steps(times, np.where(up > 0, outside, within))


def _link_variations(
    config: schema.Config, entry: weather_parts.Weather, graph: Graph, loc: Loc, found: Findings
) -> Iterator[_LinkVariation]:
    """Yield the variations of a link that one weather entry describes."""
    for quantity, given in (("bandwidth", entry.bandwidth), ("latency", entry.latency)):
        for kind in () if given is None else given_fields(given):
            with found.at(*loc, quantity, kind):
                part = getattr(given, kind)
                make = _signal_maker(part, config.seed)
                if not isinstance(trial := make(("trial",), 0), Signal):
                    raise plugins.return_error(part.function, trial, "a simnet.network.weather.Signal")
                absolute = part.is_absolute if isinstance(part, Part) else kind == "constant"
                yield _LinkVariation(quantity, (*loc, quantity, kind), absolute, make)
    if entry.trace is not None:
        with found.at(*loc, "trace"):
            yield from _given_pair(entry.trace.build(), (*loc, "trace"))
    if entry.profile is not None:
        with found.at(*loc, "profile"):
            if graph.graph.get("name") != "star":
                raise ValueError(
                    "gives latency and bandwidth from host to host, which only a star can have; elsewhere describe the "
                    "links, e.g. by steps"
                )
            yield from _profile_weather(entry.profile, config.job.epoch or 1, (*loc, "profile"))


def _signal_maker(part: Any, seed: int) -> Callable[[_Name, int], Signal]:
    """Return a function that makes a signal for one kind of weather from a link name and a first iteration."""
    if not isinstance(part, Part):
        return partial(_always, weather.constant(part))
    if not part.takes("seed"):
        return partial(_always, part.build())
    made = cache(partial(part.build, seed=seed))
    return lambda name, start: made(name=name)


def _given_pair(pair: Weather, loc: Loc) -> Iterator[_LinkVariation]:
    for quantity, signal in (("bandwidth", pair.bandwidth), ("latency", pair.latency)):
        if signal is not None:
            yield _LinkVariation(quantity, loc, True, partial(_always, signal))


def _profile_weather(given: weather_parts.Profile, epoch: int, loc: Loc) -> Iterator[_LinkVariation]:
    """Yield links' bandwidth and latency over time from a published schedule; a link has half of a route's latency."""
    if given.epoch is not None:
        pair = weather.profile(given.name, given.epoch)
        assert pair.latency is not None
        yield from _given_pair(Weather(pair.bandwidth, pair.latency * 0.5), loc)
        return

    @cache
    def at(quantity: str, share: float, name: _Name, start: int) -> Signal:
        return weather.constant(share * getattr(weather.profile_state(given.name, start // epoch), quantity))

    weather.profile_state(given.name, 0)  # refuses the name
    starts = tuple(one.first_epoch * epoch for one in weather.PROFILES[given.name].states)
    for quantity, share in (("bandwidth", 1.0), ("latency", 0.5)):
        yield _LinkVariation(quantity, loc, True, partial(at, quantity, share), starts)


def _link_weather(
    moved: Mapping[Link, Sequence[_LinkVariation]], graph: Graph, starts: set[int]
) -> dict[int, dict[Link, Weather]]:
    """Return, for each iteration in `starts`, each varying link's bandwidth and latency from this iteration on."""
    constant, product = cache(weather.constant), cache(weather.product)

    def signal(link: Link, quantity: str, start: int) -> Signal | None:
        here = [one for one in moved[link] if one.quantity == quantity]
        signals = [one.make(one.name, start) for one in here]
        if here and not any(one.absolute for one in here):
            signals.append(constant(graph.edges[link][quantity]))
        return product(*signals) if len(signals) > 1 else next(iter(signals), None)

    return {
        start: {link: Weather(signal(link, "bandwidth", start), signal(link, "latency", start)) for link in moved}
        for start in sorted(starts)
    }


def _background_traffic(config: schema.Config, graph: Graph, found: Findings) -> list[ConstantLoad | OnOffFlow]:
    traffic: list[ConstantLoad | OnOffFlow] = []
    for index, entry in enumerate(config.network.background):
        loc: Loc = ("network", "background", index)
        if entry.load is not None:
            with found.at(*loc, "load", "links"):
                traffic += [entry.load.build(link=link) for link in topologies.select_links(graph, entry.load.links)]
        elif entry.flow is not None:
            flow, hosts = entry.flow, graph.graph["hosts"]
            for field, host in (("from", flow.src), ("to", flow.dst)):
                if host >= hosts:
                    found.add((*loc, "flow", field), f"there is no host {host}; allowed: 0 to {hosts - 1}")
            if flow.src == flow.dst:
                found.add((*loc, "flow", "to"), f"must be another host than from, got {flow.dst}")
            with found.at(*loc, "flow", "when"):
                traffic.append(flow.build(on=_flow_signal(flow.when, config.seed, ("background", index))))
    return traffic


def _flow_signal(given: network_parts.OnOff | None, seed: int, name: _Name) -> Signal:
    """Return a signal over time that is 1 while a background flow sends and 0 while it is silent."""
    if given is None:
        return weather.constant(1.0)
    if given.spans is None:
        return weather.markov([1.0, 0.0], [given.busy or 0.0, given.idle or 0.0], seed=seed, name=name)
    return _spans_signal([(span.at, span.lasts) for span in given.spans], 1.0, 0.0)


def _link_loss(config: schema.Config, graph: Graph, found: Findings) -> Loss | None:
    """Return the packet-loss model of the links; None without loss."""
    given = config.network
    if not given.loss:
        if given.transport is not None:
            found.add(("network", "transport"), "says how transfers answer packet loss, and network.loss gives none")
        return None
    probability: dict[Link, float] = {}
    for index, entry in enumerate(given.loss):
        with found.at("network", "loss", index, "links"):
            for link in topologies.select_links(graph, entry.links):
                before = probability.get(link, 0.0)
                probability[link] = before + (1 - before) * entry.probability
    if given.transport is None:
        return Loss(probability, Transport())
    law, part = given.transport.choice
    return Loss(probability, Transport(law, **part.arguments()))  # type: ignore[arg-type]


def _link_incast(config: schema.Config, graph: Graph, found: Findings) -> Incast | MeasuredIncast | None:
    """Return the incast model of the links; None without incast."""
    given = config.network.incast
    if given is None:
        return None
    kind, part = given.choice
    loc: Loc = ("network", "incast", kind)
    links = None if part.links is None else found.attempt((*loc, "links"), topologies.select_links, graph, part.links)
    if links is not None:
        links = [link for link in links if isinstance(link[0], str)]
        if not links:
            said = f"{part.links!r} names no link from a switch, where alone many senders can meet"
            found.add((*loc, "links"), said)
    built: Incast | MeasuredIncast | None = found.attempt(loc, partial(part.build, links=links))
    return built


def standalone_config(config: schema.Config, label: str) -> schema.Config:
    """Return a co-located job as a scenario of its own, with a seed derived from the main scenario's."""
    given = (config.other_jobs or {})[label]
    return config.with_fields(
        workers=given.workers,
        job=given.job,
        exchanges={label: given.exchange},
        policies={label: schema.Policy(fixed=label)},
        other_jobs=None,
        seed=int(stream(config.seed, "other job", label).integers(2**62)),
    )


def placements(config: schema.Config, stages: Stages, found: Findings) -> dict[str, list[int]]:
    """Return the hosts of each co-located job's workers: the listed hosts, or else the first free hosts."""
    others = config.other_jobs or {}
    hosts = stages.networks[0][1].routes.n_hosts
    taken = {*stages.placement, *(host for one in others.values() for host in one.placement or ())}
    free = [host for host in range(hosts) if host not in taken]
    placed: dict[str, list[int]] = {}
    for job, one in others.items():
        if one.placement is not None:
            placed[job] = _listed_hosts(one.placement, one.workers, hosts, ("other_jobs", job, "placement"), found)
            continue
        if len(free) < one.workers:
            found.add(
                ("other_jobs", job, "workers"),
                f"needs {one.workers} free hosts, but of {hosts} only {len(free)} are left; list some under "
                "placement that other jobs use, or take a larger topology",
            )
        placed[job], free = free[: one.workers], free[one.workers :]
    return placed
