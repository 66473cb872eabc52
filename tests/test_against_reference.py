"""The clocks of `Network` against the reference implementation, message by message.

The cases are drawn at random: graphs with several routes, weather of bandwidth and latency, links that are down,
traffic of others, sharing, loss, incast, routing, gates, jitter, overheads, failures, and several schedules and
transfers in one SimPy environment. For the max-plus clock they are drawn so that no messages meet, and it has to time
all of them.

Transport stacks are drawn at random, too, and there the reference works in numbers of 40 digits, so that it judges the
digits of the engine as well.
"""

import dataclasses
import decimal
import functools
import itertools
import math
import re

import networkx as nx
import numpy as np
import pytest
import simpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reference_network import ReferenceNetwork, ReferenceRun, Steps
from reference_protocols import StackRun
from reference_stack import framed
from simnet import collectives, topologies
from simnet.base.errors import StalledError
from simnet.base.jit_threshold import JitThreshold
from simnet.network import ConstantLoad, Network, OnOffFlow, engine_selection, max_plus, recurrence
from simnet.network.program import Computing
from simnet.network.sharing import MAX_MIN, Sharing
from simnet.network.stack import IDEAL, Stack
from simnet.network.transport import Incast, Loss, MeasuredIncast, Transport
from simnet.network.weather import Weather, markov, outages, steps
from simnet.schedule import Call, Round, Schedule
from simnet.topologies import Routes


class Case:
    """A random network, jobs on it, and chains of transfers: (when the first leaves, [(src, dst, nbytes), ...]).

    Everything happens later by `shift` [s]; with `stacked`, ranks send by a random transport stack.
    """

    def __init__(self, seed, stacked=False, shift=0.0):
        self.rng = rng = np.random.default_rng(seed)
        self.gathers = np.random.default_rng((seed, 4))
        self.shift, self.stack = shift, self._stack(np.random.default_rng((seed, 1))) if stacked else IDEAL
        self.sharing = self._sharing(np.random.default_rng((seed, 2)))
        self.graph = self._graph()
        self.edges = list(self.graph.edges)
        self.n_hosts = sum(isinstance(node, int) for node in self.graph)
        self.seed = int(rng.integers(5))
        self.routing = str(rng.choice(["hash", "hash", "single", "flow", "adaptive"]))
        # Who comes first at one instant decides on loads, so ties are left to the other routings.
        self.round = self.routing != "adaptive" and rng.random() < 0.4 and not stacked
        if self.routing == "adaptive" and self.stack.send_completion != "left" and not self.stack.before:
            # Nor is anybody in two rounds at one instant.
            self.stack = dataclasses.replace(self.stack, before=1e-5)
        self.routes = Routes(self.graph, self.seed, "single" if self.routing == "single" else "hash")
        self.span = float(rng.choice([0.02, 0.1, 1.0]))
        self._set_weather()
        self._set_others()
        self._set_transport()
        self.overheads = float(rng.choice([0, 1e-4, 0.02])), float(rng.choice([0, 2e-4]))
        self.jitter = rng.exponential(1e-3, 4000) if rng.random() < 0.4 else None
        self.engine = str(rng.choice(["auto", "fluid"]))
        self.computes = np.random.default_rng((seed, 3))
        self.jobs = [self._job() for _ in range(int(rng.integers(1, 4)))]
        self.chains = []
        for _ in range(0 if self.routing == "flow" else int(rng.integers(0, 3))):
            links = [
                (*rng.integers(self.n_hosts, size=2).tolist(), self._sizes(1)[0]) for _ in range(rng.integers(1, 5))
            ]
            self.chains.append((shift + float(rng.choice([0.0, rng.random() * 0.02])), links))

    def _stack(self, rng):
        def any_of(*values):
            return values[rng.integers(len(values))]

        wire = {
            "segment": any_of(0.0, 100.0, 1448.0),
            "beside": any_of(0.0, 9.0, 90.0),
            "acknowledged": any_of(0.0, 250.0, 2896.0),
            "word": any_of(0.0, 48.0),
            "pieces": any_of(1, 2, 3),
        }
        send_completion = any_of("left", "taken", "acknowledged", "ready", "request")
        if send_completion == "left":
            return Stack(send_completion, **wire)
        return Stack(
            send_completion,
            any_of("shared", "queue", "queue"),
            eager_limit=any_of(0.0, 0.0, 700.0),
            buffer=any_of(math.inf, 100.0, 2500.0),
            before=any_of(0.0, rng.random() * 1e-3),
            after=any_of(0.0, rng.random() * 1e-3),
            before_byte=any_of(0.0, rng.random() * 1e-6),
            after_byte=any_of(0.0, rng.random() * 1e-6),
            rounds=any_of(1, 2, 3),
            posts_ahead=any_of(False, True),
            by_turns=any_of(False, True),
            gathers_send_first=bool(self.gathers.integers(2)),
            **wire,
        )

    def _sharing(self, rng):
        if rng.random() < 0.5:
            return MAX_MIN
        exponent = [None, 0.0, 0.5, 2.0, -0.7, rng.uniform(-2, 2)][rng.integers(6)]
        return Sharing("rtt", str(rng.choice(["reno", "cubic", "bbr"])), exponent, [None, 0.0, 1e-3][rng.integers(3)])

    def _graph(self):
        rng = self.rng
        match rng.integers(9):
            case 0:
                return topologies.star(9, float(rng.choice([0.0, 1e-3])), 1e6)
            case 1:
                return topologies.ring(int(rng.choice([4, 9])), 1e-4, 1e6)
            case 2:
                return topologies.tree(9, arity=3, latency=1e-4, bandwidth=1e6)
            case 3:
                return topologies.fat_tree(4, 1e-4, 1e6)
            case 4:
                return topologies.wan(["a", "b", "c"], 0.01, 1e5, workers_per_site=[3, 2, 3])
            case 5:
                return topologies.torus((3, 3), 1e-4, 1e6)
        graph = nx.DiGraph()
        graph.add_nodes_from(range(int(rng.integers(2, 8))))
        switches = [f"s{i}" for i in range(int(rng.integers(2, 6)))]

        def join(u, v):
            for one in ((u, v), (v, u)):
                if u != v and not graph.has_edge(*one):
                    latency = rng.choice([0.0, 1e-3, 2e-3, rng.random() * 1e-3])
                    bandwidth = rng.choice([1e5, 1e6, 2e6, 10 ** rng.uniform(5, 6)])
                    graph.add_edge(*one, latency=float(latency), bandwidth=float(bandwidth))

        for host in list(graph):
            for switch in rng.choice(len(switches), size=int(rng.integers(1, 3)), replace=False):
                join(host, switches[switch])
        for i, switch in enumerate(switches):
            join(switch, switches[(i + 1) % len(switches)])
        for a, b in rng.integers(len(switches), size=(int(rng.integers(0, 6)), 2)):
            join(switches[a], switches[b])
        return graph

    def _times(self, n):
        times = self.rng.random(n) * self.span
        return np.unique(np.append(0.0, self.shift + (times.round(3) if self.round else times)))

    def _set_weather(self):
        rng, links = self.rng, self.graph.edges
        self.weather, self.bandwidth, self.latency = {}, [], []
        some = rng.random() < 0.5
        for link in self.edges:
            quantities = []
            for name, base, chance, down in (
                ("bandwidth", links[link]["bandwidth"], 0.5, 0.25),
                ("latency", 2e-3, 0.3, 0.1),
            ):
                times, values = np.zeros(1), np.array([links[link][name]])
                signal = None
                if some and rng.random() < chance:
                    times = self._times(rng.integers(1, 7))
                    values = base * 10 ** rng.uniform(-1, 0.3, times.size) * (rng.random(times.size) >= down)
                    if name == "bandwidth" and rng.random() < 0.7:
                        values[-1] = base
                    signal = steps(times, values)
                quantities.append((Steps(times, values), signal))
            (bandwidth, one), (latency, other) = quantities
            self.bandwidth.append(bandwidth)
            self.latency.append(latency)
            if one is not None or other is not None:
                self.weather[link] = Weather(one, other)
        self.reroute = some and rng.random() < 0.4

    def _set_others(self):
        rng = self.rng
        self.load, self.others, self.background = {}, [], []
        if rng.random() < 0.2:
            link, rate = int(rng.integers(len(self.edges))), float(rng.choice([3e4, 5e5]))
            self.load[link] = rate
            self.background.append(ConstantLoad(self.edges[link], rate))
        for _ in range(rng.integers(1, 4) if rng.random() < 0.3 else 0):
            src, dst = rng.choice(self.n_hosts, 2, replace=False).tolist()
            times = self._times(4)
            # What is on may change, and stays on.
            values = rng.integers(0, 2, times.size) * (1 + np.arange(times.size) % 2)
            limit = float(rng.choice([math.inf, 1e5, 5e4]))
            self.others.append((src, dst, Steps(times, values), limit))
            self.background.append(OnOffFlow(src, dst, steps(times, values), limit))

    def _set_transport(self):
        rng = self.rng
        self.loss, self.incast, self.crowd, self.lossy = None, None, {}, ({}, None)
        if rng.random() < 0.2:
            laws = [
                Transport(),
                Transport("mathis", segment=100.0),
                Transport("retransmit"),
                Transport("go_back_n", window=8),
            ]
            lost = {link: float(rng.choice([1e-3, 0.05])) for link in self.edges if rng.random() < 0.4}
            self.loss = Loss(lost, laws[rng.integers(4)])
            self.lossy = {self.edges.index(link): p for link, p in lost.items()}, self.loss.transport
        last = [link for link in self.edges if isinstance(link[0], str) and isinstance(link[1], int)]
        if last and rng.random() < 0.2:
            models = [MeasuredIncast([2, 4], [0.7, 0.3], links=last), Incast(4e4, timeout=0.01, block=1e4, links=last)]
            self.incast = models[rng.integers(2)]
            for link in last:
                self.crowd[self.edges.index(link)] = self.incast.shares(1024, self.graph.edges[link]["bandwidth"])

    def _sizes(self, n):
        if self.round:
            return self.rng.integers(0, 5, n) * 500.0
        return np.where(self.rng.random(n) < 0.15, 0.0, self.rng.random(n) * 3000)

    def _rounds(self, n_ranks):
        rng, rounds = self.rng, []
        made = [
            collectives.allreduce_ring,
            collectives.allreduce_tree,
            collectives.allgather_bruck,
            collectives.parameter_server,
        ]
        for _ in range(int(rng.integers(0, 4))):
            if n_ranks > 1 and self.routing != "adaptive" and rng.random() < 0.3:
                rounds += made[rng.integers(4)](n_ranks, float(rng.integers(0, 10_000))).rounds
                continue
            n = int(rng.integers(0, 2 * n_ranks + 1)) if n_ranks > 1 else 0
            src = rng.integers(n_ranks, size=n)
            dst = (src + 1 + rng.integers(max(1, n_ranks - 1), size=n)) % n_ranks
            compute = [0.0, 0.003, rng.random(n_ranks) * 0.01][rng.integers(3)]
            one = Round(src, dst, self._sizes(n), compute)
            rounds += [one] * (1 if self.routing == "adaptive" else int(rng.integers(1, 4)))
        return rounds

    def _with_gather(self, schedule):
        """Return a schedule of which some rounds in a row are called an all-gather."""
        first, end = sorted(self.gathers.integers(len(schedule.rounds) + 1, size=2).tolist())
        return Schedule(schedule.n_ranks, schedule.rounds, [Call(first, end - first, "all_gather", "ring", 0.0)])

    def _job(self):
        rng = self.rng
        n_ranks = int(rng.integers(1, min(self.n_hosts, 9) + 1))
        spread = float(rng.choice([0.0, 0.02]))
        gated = rng.random() < 0.4
        parts = [
            (
                self._with_gather(Schedule(n_ranks, self._rounds(n_ranks))),
                self.shift + rng.random(n_ranks) * spread * 3 * gated,
            )
            for _ in range(rng.integers(1, 4) if gated else 1)
        ]
        dying = rng.choice(n_ranks, min(2, n_ranks), replace=False).tolist() if rng.random() < 0.2 else []
        job = {
            "parts": parts,
            "placement": rng.integers(self.n_hosts, size=n_ranks)
            if rng.random() < 0.2
            else rng.permutation(self.n_hosts)[:n_ranks],
            "start": self.shift + (rng.random(n_ranks) * spread + float(rng.choice([0.0, 0.5 * self.span]))),
            "deaths": {rank: self.shift + float(rng.random() * 0.05) for rank in dying},
            "computing": None,
        }
        return self._with_computing(job, self.computes) if gated and self.computes.random() < 0.6 else job

    def _with_computing(self, job, rng):
        """Return a job whose ranks compute beside it; of some parts they work after the last message, too."""
        shape = len(job["parts"]), job["start"].size

        def seconds(most):
            return rng.random(shape) * rng.choice([0.0, most, most], shape[0])[:, np.newaxis]

        ready = job["start"] + np.cumsum(seconds(0.02), axis=0)
        parts = []
        for (schedule, _), when in zip(job["parts"], ready, strict=True):
            behind = [Round([], [], [], rng.random(shape[1]) * 0.004)] if rng.random() < 0.5 else []
            parts.append((Schedule(shape[1], [*schedule.rounds, *behind]), when))
        side = [None, None, (1.3, 2.0), (rng.uniform(0.5, 3), rng.uniform(0.5, 3))][rng.integers(4)]
        beside = [1.0, 1.5, rng.uniform(0.5, 3, shape[0])][rng.integers(3)]
        return job | {"parts": parts, "computing": Computing(seconds(0.01), side, beside)}

    def network(self, env=None):
        return Network(
            self.graph,
            self.weather,
            env,
            send_overhead=self.overheads[0],
            receive_overhead=self.overheads[1],
            jitter=None if self.jitter is None else lambda draws, n: self.jitter[:n],
            background=self.background,
            seed=self.seed,
            engine=self.engine,
            stack=self.stack,
            sharing=self.sharing,
            loss=self.loss,
            incast=self.incast,
            routing=self.routing,
            on_outage="reroute" if self.reroute else "wait",
        )

    def reference(self, jobs, chains, shake=0.0, begin=0.0, number=float, words=1):
        """Return the runs, and the arrivals of each chain, as the reference has them from a time on."""
        net = ReferenceNetwork(
            self.routes, self.bandwidth, self.latency, overheads=self.overheads, load=self.load, others=self.others,
            loss=self.lossy, crowd=self.crowd, routing=self.routing, reroute=self.reroute, now=begin,
            stack=self.stack, sharing=self.sharing, number=number,
        )  # fmt: skip
        kind = (
            ReferenceRun
            if self.stack.send_completion == "left"
            else functools.partial(
                StackRun,
                shake=(np.sign(words) * (abs(shake) + shake * math.cos(words * n)) for n in itertools.count()),
            )
        )
        numbers = np.sin(words * np.arange(4000))
        delays = () if self.jitter is None else self.jitter * (1 + shake * numbers)
        if shake and self.jitter is None:
            # A message that joins as another ends may meet it or not.
            delays = abs(shake) * (1 + numbers)
        runs = []
        for job in jobs:
            picks = self.network()._prepared(job["parts"], job["start"], True, placement=job["placement"]).picks
            one = kind(
                net, job["parts"], job["start"], job["placement"], delays, picks, job["deaths"], job["computing"],
                longer=shake,
            )  # fmt: skip
            runs.append(one)
        logs = [[] for _ in chains]

        def follow(log, links):
            if links:
                (src, dst, nbytes), *after = links
                delay = net.number(delays[0] if len(delays) else 0.0)
                size = framed(self.stack, nbytes * (1 + shake), net.number)
                net.hand_over(net.address(src, dst, size, delay, 0, lambda t: (log.append(t), follow(log, after))))

        for log, (t, links) in zip(logs, chains, strict=True):
            net.at(net.number(t) + net.number(shake), lambda log=log, links=links: follow(log, links))
        net.simulate()
        return runs, logs

    def time(self, network, job, messages=True):
        """Return the timing, or the error, of a job alone."""
        try:
            return network.time(**_arguments(job), messages=messages)
        except StalledError as error:
            return error

    def company(self):
        """Return the same of all jobs together, and the arrivals of each chain since the shift."""
        env = simpy.Environment(initial_time=self.shift)
        network = self.network(env)
        results, logs = [None] * len(self.jobs), [[] for _ in self.chains]
        failed = []

        def run(index, job):
            try:
                results[index] = yield network.run(**_arguments(job), messages=True)
                assert near([env.now], [results[index].finish])
            except StalledError as error:
                results[index] = error
                failed.append((env.now, error.at, job["computing"] is not None))

        def follow(log, t, links):
            yield env.timeout(t - self.shift)
            for src, dst, nbytes in links:
                try:
                    arrived = yield network.transfer(src, dst, nbytes)
                except StalledError as error:
                    failed.append((env.now, error.at, False))
                    return
                assert near([env.now], [arrived])
                # The event tells an absolute time, which has fewer digits.
                clock = network._clock
                log.append(clock.now() + (clock.origin - self.shift))

        for index, job in enumerate(self.jobs):
            env.process(run(index, job))
        for log, (t, links) in zip(logs, self.chains, strict=True):
            env.process(follow(log, t, links))
        env.run()
        # Ranks that compute beside a run that gets no further stop later than its messages.
        assert all(near([now], [at]) or (computes and now < at) for now, at, computes in failed)
        return results, logs


def _arguments(job):
    parts = [(schedule, ready) for schedule, ready in job["parts"]]
    return {"schedule": parts, **{name: job[name] for name in ("start", "placement", "deaths", "computing")}}


def near(one, other, tolerance=1e-9):
    return len(one) == len(other) and np.allclose(one, other, rtol=tolerance, atol=1e-3 * tolerance, equal_nan=True)


def agree(run, result):
    """Whether the reference and the engine tell the same of a run."""
    if isinstance(result, StalledError):
        waiting = [(rank, at) for rank, at in enumerate(run.at) if not (run.done[rank] or run.failed[rank])]
        if [one[:2] for one in result.stuck] != waiting:
            return False
        for (rank, at), line in zip(waiting, result.waiting, strict=True):
            missing = sum(run.left[index][rank] + run.unsent[index][rank] for index in range(at + 1))
            # Messages that never leave their host's own link are not counted here.
            more = int(re.search(r"for (\d+) message", line)[1]) - missing
            if more < 0 or (more and run.network.stack.send_completion != "left") or not missing + more:
                return False
        # A message that waits for ever for a link leaves the reference waiting.
        if run.stalled is None:
            return not all(run.done)
        return near([run.stalled], [result.at]) and set(result.failed) == set(np.flatnonzero(run.failed).tolist())
    return (
        all(run.done)
        and near(run.finish, result.rank_finish)
        and near(run.sent, result.messages.start)
        and near(run.arrived, result.messages.finish)
        and near([time for _, *both in sorted(run.occupied) for time in both], np.add(occupied(result), result.origin))
    )


def occupied(timing):
    """Return from when to when hosts did software, one rank after another."""
    host = timing.software.of_ranks(timing.messages)
    order = np.lexsort((host.begun, host.rank))
    return [time for at in order for time in (host.begun[at], host.ended[at])]


def agreed(case, jobs, chains, begin, results, logs):
    """Whether the reference tells what the engine does: in doubles, or else in 40 digits, where these are steady.

    Max-min shares out of step are chaotic: on a tree, a rounding grows to microseconds within 200 ms. So doubles that
    differ decide nothing, and where bytes and jitter that differ by some roundings make a difference, nothing does.
    """

    def same(runs, expected):
        return all(map(agree, runs, results)) and all(map(near, expected, logs))

    def exactly(shake):
        runs, expected = case.reference(jobs, chains, shake, begin, decimal.Decimal)
        for run in runs:
            for name in ("finish", "sent", "arrived"):
                setattr(run, name, [float(time) for time in getattr(run, name)])
            run.stalled = None if run.stalled is None else float(run.stalled)
            run.occupied = [tuple(map(float, one)) for one in run.occupied]
        return runs, [[float(time) for time in log] for log in expected]

    if same(*case.reference(jobs, chains, 0.0, begin)):
        return True
    with decimal.localcontext(prec=40):
        (runs, expected), *shaken = (exactly(shake) for shake in (0.0, 4e-15, -4e-15))
    steady = all(
        all(map(near, expected, others_expected, itertools.repeat(1e-11)))
        and all(
            near(one.arrived, other.arrived, 1e-11)
            and (one.stalled is None) == (other.stalled is None)
            and near([one.stalled or 0.0], [other.stalled or 0.0], 1e-11)
            for one, other in zip(runs, others, strict=True)
        )
        for others, others_expected in shaken
    )
    return same(runs, expected) or not steady


def equal(one, other):
    """Whether two answers are the same to the last bit."""
    if isinstance(one, StalledError) or isinstance(other, StalledError):
        return type(one) is type(other) and str(one) == str(other)
    return all(
        np.array_equal(mine, yours, equal_nan=True)
        for mine, yours in (
            (one.rank_finish, other.rank_finish),
            (one.messages.start, other.messages.start),
            (one.messages.finish, other.messages.finish),
            (one.software.for_messages, other.software.for_messages),
            *zip(one.split, other.split, strict=True),
        )
    )


@pytest.fixture
def on_lists(monkeypatch):
    """Keep the engine to lists, however many messages there are."""
    monkeypatch.setattr(engine_selection, "_interpreted", JitThreshold(10**9, 10**9, bool))
    monkeypatch.setattr(engine_selection, "loop_is_loaded", lambda: False)


# Cheap cases that run what `test_networks_time_random_jobs_as_they_did` does not, or seldom.
PLAIN = [5, 8, 49, 85, 91, 93, 99, 126, 168, 204, 219, 226, 228, 242, 1052]
STACKED = [0, 10, 16, 40, 42, 122, 126, 140, 144, 148, 154, 242, 1425, 1897]


@pytest.mark.parametrize(("seed", "stacked"), [*((one, False) for one in PLAIN), *((one, True) for one in STACKED)])
def test_cheap_cases_are_as_the_reference_has_them(seed, stacked, on_lists):
    hold_alone_and_together(Case(seed, stacked))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_messages_leave_and_arrive_when_the_reference_says(seed, on_lists):
    hold_alone_and_together(Case(seed))


def hold_alone_and_together(case):
    network, alone = case.network(), []
    for job in case.jobs:
        with pytest.MonkeyPatch.context() as patch:
            # The max-plus clock takes messages all at once, however few, or one by one.
            patch.setattr(max_plus, "_WIDE", [1, 10**9][case.seed % 2])
            alone.append(case.time(network, job))
        assert isinstance(alone[-1], StalledError) or is_idle(network._timing._engine), "left over"
        assert agreed(case, [job], [], job["start"].min(), [alone[-1]], []), "alone"
    for job, result in reversed(list(zip(case.jobs, alone, strict=True))):
        assert equal(case.time(network, job), result), "asked twice"
    assert agreed(case, case.jobs, case.chains, 0.0, *case.company()), "together"


def is_idle(engine):
    """Whether nothing is under way any more, on any link or in any queue; also where the event loop was not needed."""
    if engine is None:
        return True
    state, links = engine.state, engine.links
    on_links = [links.read(name).any() for name in ("users", "limited", "assigned", "n_coming")]
    return state.n_free == engine.flows.size and not any([state.n_moving, state.n_queued, state.n_ends, *on_links])


def of_reference(runs, logs, begin):
    """Return all times that the reference tells, from `begin` on [s]; none of a run that waits for a link for ever."""
    told = [
        (
            [run.stalled]
            if run.stalled is not None
            else [*run.finish, *run.sent, *run.arrived, *(time for _, *both in sorted(run.occupied) for time in both)]
        )
        if all(run.done) or run.stalled is not None
        else []
        for run in runs
    ]
    return [np.array([float(t - decimal.Decimal(begin)) for t in times]) for times in told + logs]


def of_engine(results, logs, begin):
    """Return the same as an engine tells it."""
    told = [
        (
            [one.elapsed]
            if isinstance(one, StalledError)
            else [*one.left, *one.messages.sent, *one.messages.arrived, *occupied(one)]
        )
        for one in results
    ]
    since = [np.array(times, dtype=float) + (one.origin - begin) for one, times in zip(results, told, strict=True)]
    return since + [np.array(log) for log in logs]


def difference(told, others):
    """Return the largest difference between times; infinity where there is one less, or something never happens."""
    largest = 0.0
    for one, other in zip(told, others, strict=True):
        if len(one) != len(other) or not np.array_equal(np.isnan(one), np.isnan(other)):
            return math.inf
        largest = max(largest, np.nanmax(np.abs(one - other), initial=0.0))
    return largest


def judge(case, jobs, chains, begin, results, logs, name):
    """Hold what an engine tells against the reference in 40 digits: to 1e-9 of the duration.

    Where much smaller differences in sizes and latencies make as large ones in time, nothing can be said.
    """
    with decimal.localcontext(prec=40):

        def reference(shake, words=1):
            runs, logs = case.reference(jobs, chains, shake, begin, decimal.Decimal, words)
            return runs, of_reference(runs, logs, begin)

        runs, expected = reference(0.0)
        told = of_engine(results, logs, begin)
        for number, (run, one) in enumerate(zip(runs, results, strict=True)):
            if isinstance(one, StalledError) and not all(run.done) and run.stalled is None:
                told[number] = expected[number]
        span = max((np.nanmax(times, initial=0.0) for times in expected), default=0.0)
        runs_off, logs_off = (
            difference(told[part], expected[part]) for part in (slice(len(results)), slice(len(results), None))
        )
        # Transfers are told by the time of their environment, which is absolute.
        off = max(runs_off, logs_off - 2 * np.spacing(case.shift))
        if off > max(1e-9 * span, 1e-30):
            # Words that take longer, less long or as long tell answers that hang on which of them comes first; at
            # another frequency it is others of several.
            ways = itertools.product((4e-15, -4e-15), (1, -1, 0, 2, 3, 5, 7))
            shaky = max(difference(reference(*way)[1], expected) for way in ways)
            assert shaky > off / 100, (name, off, span)


def hold_against_reference(seed, shift):
    case = Case(seed, stacked=True, shift=shift)
    for job in case.jobs:
        judge(case, [job], [], job["start"].min(), [case.time(case.network(), job)], [], "alone")
    judge(case, case.jobs, case.chains, shift, *case.company(), "together")


@pytest.mark.parametrize("shift", [0.0, 86400.0, 1e9])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(seed=176309293)
@example(seed=809)
@example(seed=3756)
@example(seed=20832)
@example(seed=32742)
@given(seed=st.integers(0, 2**32 - 1))
def test_stacks_are_as_the_reference_has_them_in_40_digits(seed, shift, on_lists):
    hold_against_reference(seed, shift)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 86400.0, 1e9])
@settings(derandomize=False, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_stacks_are_as_the_reference_has_them_in_new_cases(seed, shift, on_lists):
    hold_against_reference(seed, shift)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), stacked=st.booleans())
def test_compiled_and_on_lists_it_is_the_same_to_the_last_bit(seed, stacked):
    case, told = Case(seed, stacked), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_selection, "loop_is_loaded", lambda: False)
        for many in (0, 10**9):
            patch.setattr(engine_selection, "_interpreted", JitThreshold(many, many, bool))
            network = case.network()
            told.append(([case.time(network, job) for job in case.jobs], *case.company()))
    for one, other in zip(*told, strict=True):
        for mine, yours in zip(one, other, strict=True):
            assert mine == yours if isinstance(mine, list) else equal(mine, yours)


@st.composite
def apart(draw):
    """A network, and schedules whose messages meet on no link: each rank sends to one other, and hears from one."""
    kind = draw(st.sampled_from(["star", "fast star", "ring", "pairs"]))
    n_hosts = draw(st.integers(2, 6))
    # Some networks are as slow as a byte in a second.
    rate = draw(st.sampled_from([1e6, 1.0]))
    match kind:
        case "star" | "fast star":
            graph = topologies.star(n_hosts, 1e-3 * (kind == "star"), rate)
            hosts = draw(st.permutations(range(n_hosts)))[: draw(st.integers(2, n_hosts))]
        case "ring":
            graph, hosts = topologies.ring(max(3, n_hosts), 1e-4, rate), list(range(max(3, n_hosts)))
        case _:
            graph, hosts = topologies.star(4, 1e-3, rate), [0, 0, 1]  # Ranks that share a host need no link.
    n_ranks = len(hosts)
    seconds = st.floats(0.0, 0.02) | st.just(0.0)

    def one_round():
        # Ranks that do the same fall into step.
        alike = draw(st.booleans())
        src = [rank for rank in range(n_ranks) if alike or draw(st.booleans())]
        src = [rank for rank in src if kind != "pairs" or rank != 1]
        dst = [(rank + 1) % n_ranks for rank in src]
        # Bytes so few that they take no time, for rounding, keep no order.
        sizes = st.floats(0, rate / 100, allow_subnormal=False) | st.just(0.0)
        nbytes = [draw(sizes)] * len(src) if alike else draw(st.lists(sizes, min_size=len(src), max_size=len(src)))
        compute = draw(seconds | st.lists(seconds, min_size=n_ranks, max_size=n_ranks))
        return [Round(src, dst, nbytes, compute)] * draw(st.integers(1, 3))

    def steps_of(base, least):
        # Soon enough to matter, and never at the very moment of anything else.
        times = [0.0, *(1e-3 * number + 3.7e-4 for number in sorted(draw(st.sets(st.integers(0, 60), max_size=6))))]
        values = [base * draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.3])) for _ in times]
        return Steps(times, [*values[:-1], max(values[-1], least)])

    parts = [
        (
            Schedule(n_ranks, [one for _ in range(draw(st.integers(0, 4))) for one in one_round()]),
            draw(st.lists(seconds, min_size=n_ranks, max_size=n_ranks)),
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    changing = draw(st.sets(st.sampled_from(list(graph.edges))) | st.just(set()))
    bandwidth, latency, weather = [], [], {}
    for *link, nominal in graph.edges(data=True):
        changes = tuple(link) in changing
        bandwidth.append(steps_of(rate, rate / 10) if changes else Steps([0.0], [nominal["bandwidth"]]))
        latency.append(steps_of(2e-3, 0.0) if changes else Steps([0.0], [nominal["latency"]]))
        if changes:
            weather[tuple(link)] = Weather(*(steps(one.times, one.values) for one in (bandwidth[-1], latency[-1])))
    overheads = draw(st.sampled_from([(0.0, 0.0), (1e-3, 0.0), (0.0, 2e-3), (1e-4, 3e-3)]))
    start = draw(st.just([0.0] * n_ranks) | st.lists(seconds, min_size=n_ranks, max_size=n_ranks))
    delays = np.random.default_rng(0).exponential(1e-3, 100) if draw(st.booleans()) else np.zeros(0)
    return graph, weather, hosts, parts, start, bandwidth, latency, overheads, delays


@settings(max_examples=100)
@given(case=apart())
def test_the_max_plus_clock_says_what_the_reference_says(case):
    graph, weather, hosts, parts, start, bandwidth, latency, overheads, delays = case
    net = ReferenceNetwork(Routes(graph), bandwidth, latency, overheads=overheads)
    run = ReferenceRun(net, parts, start, hosts, delays)
    net.simulate()
    jitter = (lambda draws, n: delays[:n]) if delays.size else None
    timings = []
    # Message by message, all at once by numpy where there is no weather, and compiled.
    for loops, wide in ((recurrence, 10**9), (recurrence, 1), (max_plus._compiled_recurrence() or recurrence, 10**9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(max_plus, "_loops_for", lambda *asked, loops=loops: loops)
            patch.setattr(max_plus, "_WIDE", wide)
            net = Network(
                graph, weather, send_overhead=overheads[0], receive_overhead=overheads[1], jitter=jitter,
                engine="vectorised",
            )  # fmt: skip
            timings.append(net.time(parts, start, placement=hosts, messages=True))
    assert agree(run, timings[0])
    assert equal(timings[0], timings[1])
    assert equal(timings[0], timings[2])


@pytest.mark.parametrize("routing", ["hash", "adaptive"])
@pytest.mark.parametrize("on_outage", ["wait", "reroute"])
@pytest.mark.parametrize("send_overhead", [0.0, 2.0])
def test_transfers_after_long_silence_meet_the_weather_of_their_time(routing, on_outage, send_overhead, on_lists):
    graph = topologies.ring(4, 1e-3, 1e3)

    def network(env=None):
        weather = {
            (0, 1): Weather(markov([1e3, 2e3, 0.0], 0.2, seed=2), markov([1e-3, 5e-3], 0.1, seed=1)),
            (1, 2): Weather(outages(0.3, 0.1, seed=3) * 1e3, None),
            **dict.fromkeys([(2, 1), (2, 3)], Weather(None, markov([1e-3, 0.5], 0.01, seed=4))),
        }
        options = {"routing": routing, "on_outage": on_outage, "send_overhead": send_overhead, "engine": "fluid"}
        return Network(graph, weather, env, **options)

    env = simpy.Environment()
    here, taken, expected = network(env), [], []

    def transfers(src, dst, gaps):
        for gap in gaps:
            yield env.timeout(gap)
            schedule = Schedule(4, [Round([src], [dst], [700.0])])
            expected.append(network().time(schedule, start=env.now).finish)
            taken.append((yield here.transfer(src, dst, 700.0)))

    env.process(transfers(0, 2, (0.0, 0.1, 3.0, 70.0, 0.01, 1.5)))
    env.process(transfers(2, 0, (0.9, 2.0)))
    env.run()
    assert near(sorted(taken), sorted(expected))


@pytest.mark.parametrize("on_outage", ["wait", "reroute"])
def test_one_clock_does_not_grow_with_the_runs_that_it_has_had(on_outage, on_lists):
    env = simpy.Environment()
    weather = {(0, "switch"): Weather(steps([0.0, 1e6], [1e6, 2e6]), None)}
    network = Network(topologies.star(4, 1e-3, 1e6), weather, env, on_outage=on_outage)
    schedule = collectives.allreduce_ring(4, 400.0)
    sizes = []

    def job():
        for _ in range(60):
            yield network.run(schedule, deaths={0: env.now + 1e3}) & network.transfer(0, 1, 50.0)
            with pytest.raises(StalledError):
                yield network.run(schedule, deaths={0: env.now + 5e-5, 1: env.now + 1e-3})
            sizes.append([table.size for table in network._clock._engine.tables.values()])

    env.process(job())
    env.run()
    for _ in range(60):
        network.time(schedule, deaths={0: 1e3})
        sizes.append([table.size for table in network._timing._engine.tables.values()])
    assert (sizes[59], sizes[-1]) == (sizes[20], sizes[80])


def test_a_message_that_waits_for_its_hosts_own_link_pays_its_overhead():
    # The first leaves at 2 s, when its link is about to change, and has left at 2.75 s; the second could at 3.5 s.
    graph = topologies.star(2, 0.0, 1e6)
    weather = {next(iter(graph.out_edges(0))): Weather(steps([0.0, 2.5], [1e6, 2e6]), None)}
    network = Network(graph, weather, send_overhead=2.0, stack={"send_completion": "taken", "own_link": "queue"})
    schedule = Schedule(3, [Round([0, 1], [2, 2], [1e6, 1e6])])
    timing = network.time(schedule, start=[0.0, 1.5, 0.0], placement=[0, 0, 1], messages=True)
    assert near(timing.messages.finish, [3.0, 4.5])


def test_a_message_that_vanishes_in_a_queue_holds_up_none_behind_it(on_lists):
    # That of rank 0 would leave at 2 s, but rank 0 has died; that of rank 1 leaves then, and takes 1 s.
    stack = {"send_completion": "taken", "own_link": "queue"}
    network = Network(topologies.star(2, 0.0, 1e6), send_overhead=2.0, stack=stack)
    schedule = Schedule(3, [Round([0, 1], [2, 2], [1e6, 1e6]), Round([], [], [], [5.0, 0.0, 0.0])])
    for _ in range(2):
        with pytest.raises(StalledError, match=r"at 3 s, .*\n.* rank 2 waits in round 0 for 1 .* rank 0, which died"):
            network.time(schedule, placement=[0, 0, 1], deaths={0: 0.5})


def test_messages_leave_in_the_order_in_which_their_rank_was_asked_for_them(on_lists):
    # Rank 0 is busy with its word to rank 3 until 3 s. Rank 1 is ready at 2.5 s, rank 2 at 3 s: that is their order.
    # Rank 0 then takes 1 s for each.
    stack = {"send_completion": "ready", "own_link": "queue", "before": 1}
    network = Network(topologies.star(4, 0.5, 1e3), stack=stack)
    schedule = Schedule(4, [Round([0, 0, 3], [1, 2, 0], [1e3, 1e3, 1e3])])
    timing = network.time(schedule, start=[2.0, 1.0, 1.5, 2.0], messages=True)
    assert near(timing.messages.finish[:2], [5.5, 6.5])


def test_when_messages_of_a_rank_leave_says_nothing_of_another_on_its_host(on_lists):
    # Rank 0 sends 1000 bytes until its link changes, and 500 afterwards; rank 1 sends 100 before that, and meanwhile.
    graph = topologies.star(2, 0.0, 1e3)
    link = next(iter(graph.out_edges(0)))
    weather = {link: Weather(steps([0.0, 1.0], [1e3, 5e2]), None)}
    schedule = Schedule(3, [Round([0, 1], [2, 2], [1500.0, 100.0]), Round([1], [2], [100.0], [0.0, 1.4, 0.0])])
    timing = Network(graph, weather).time(schedule, placement=[0, 0, 1], messages=True)
    assert near(timing.left[:2], [2.0, 1.7])


@pytest.mark.parametrize("on_outage", ["wait", "reroute"])
@pytest.mark.parametrize("changes", [[0.0], [0.0, 1.0]])
def test_an_exchange_has_stopped_when_a_rank_dies_whatever_leaves_yet(changes, on_outage, on_lists):
    graph = topologies.star(2, 0.0, 1e3)
    link = next(iter(graph.out_edges(0)))
    weather = {link: Weather(steps(changes, [1e3, 5e2][: len(changes)]), None)}
    network = Network(graph, weather, on_outage=on_outage)
    for time in (0.5, 0.0):
        with pytest.raises(StalledError) as caught:
            network.time(Schedule(2, [Round([0, 1], [1, 0], [1500.0, 1500.0])]), deaths={1: time})
        assert caught.value.at == time
    network = Network(graph, {link: Weather(steps([0.0, 1.0], [1e3, 0.0]), None)}, on_outage=on_outage)
    with pytest.raises(StalledError, match=r"at 2 s, .*\n.* rank 0 waits in round 0 for 1 .* to rank 1, which died"):
        network.time(Schedule(2, [Round([0], [1], [1500.0])]), deaths={1: 2.0})
