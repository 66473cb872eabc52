"""The driver of the event loop. It writes schedules into the loop's tables and reads results from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks, unique_places
from simnet.network.event_loop import codes
from simnet.network.link_tables import LinkTables
from simnet.network.links import Links
from simnet.network.program import Computed, Program, Streams
from simnet.network.sharing import Sharing
from simnet.network.stack import SendCompletion, Stack
from simnet.network.tables import Table
from simnet.schedule import Round

# Kinds of work on a compute stream for each part, as in the fields of `records.ComputeSlice`.
_BESIDE = "slice", "select", "unpack"


class Handle(NamedTuple):
    """Rows in the event loop's tables that belong to one schedule in flight, which is called a run.

    - `run`, `ranks`: row of the run, and of its first rank.
    - `n_ranks`, `slots`, `n_messages`: ranks, messages that can be in flight at once, and all messages.
    - `taken`: all rows it holds: table, first row, count.
    """

    run: int
    ranks: int
    n_ranks: int
    slots: int
    n_messages: int
    taken: list[tuple[Table, int, int]]


class Engine(LinkTables):
    """The event loop with its tables, which contain the schedules in flight (runs) and single transfers.

    Times are seconds since `origin`, so that they keep their precision late in a simulation.

    - `links`: links and routes.
    - `overheads`: seconds per message before it leaves the sender and after its last byte arrived.
    - `stack`: transport stack.
    - `sharing`: how flows share links.
    - `multipath`: if true, a message may take any equal-cost route.
    - `adaptive`: if true, it takes the least loaded one.
    - `watching`: if true, `advance` returns when a link fails or recovers.
    - `compiled`: if true, use the compiled event loop if available.
    - `alone`: if true, a schedule has the network to itself.
    """

    def __init__(
        self,
        links: Links,
        overheads: tuple[float, float],
        stack: Stack,
        sharing: Sharing,
        *,
        multipath: bool,
        adaptive: bool,
        watching: bool,
        compiled: bool,
        alone: bool,
    ) -> None:
        super().__init__(links, multipath, watching, compiled)
        # Stacks with queues ask who is on a link, even if nobody is limited there.
        asks_links = stack.own_link == "queue" or stack.send_completion not in ("left", "taken")
        self._leaves_out = alone and links.constant and links.incast_derating is None and not (multipath or asks_links)
        self._stack = stack
        self._handles: list[Handle] = []
        self._n_transfers = 0
        s = self.state
        s.send_overhead, s.receive_overhead = overheads
        s.send_completion, s.queues = get_args(SendCompletion).index(stack.send_completion), stack.own_link == "queue"
        s.posts_ahead = stack.posts_ahead
        s.runs_ahead, s.eager_limit, s.buffer = stack.rounds > 1 or stack.posts_ahead, stack.eager_limit, stack.buffer
        s.frame, s.control_bytes = (stack.segment + stack.beside) * (stack.segment > 0), float(stack.framed(stack.word))
        s.before, s.after = stack.before, stack.after
        s.before_byte, s.after_byte = stack.before_byte, stack.after_byte
        s.weighted, s.exponent = sharing.law == "rtt", sharing.power
        s.counted, s.queueing = sharing.most, sharing.wait
        s.in_order = s.queues and not s.weighted
        s.adaptive = adaptive
        self.write_links()

    def grow(self) -> None:
        """Enlarge the tables of messages in flight and of early arrivals if few of their rows are free."""
        if self.state.n_free < self.state.most_sends:
            self.make_room(flows=max(self.state.most_sends, self.flows.size // 2))
        if self.state.n_early < 4:
            early = self.tables["early"]
            count = max(256, 2 * self.state.n_early)
            first = early.take(count)
            early.write(first, count, next=np.append(np.arange(first + 1, first + count), self.state.free_early))
            self.state.free_early = first
            self.state.n_early += count

    def reset(self, origin: float, now: float) -> None:
        """Remove all schedules, messages and events, and set the time to `now`, in seconds after the time `origin`."""
        s = self.state
        s.n_events = s.n_pushed = s.n_ends = s.n_moving = s.n_queued = s.n_new = s.n_dirty = s.n_notices = 0
        s.background_on = False
        # The last caller may have ended with an error.
        for handle in self._handles[:]:
            self.release(handle)
        while self._n_transfers:
            self.arrived()
        s.free_flow, s.n_free = codes.NONE, 0
        self.loop.free_all(s, 0, self.flows.size)
        self.links.write(0, self.n_links, users=0, limited=0, assigned=0, is_dirty=False, n_coming=0)
        self.links.write(0, self.n_links, port_rest=0.0, port_free=-math.inf)
        rows = ("first_membership", "port_rank", "port_flow", "port_first", "first_passing")
        self.links.write(0, self.n_links, **dict.fromkeys(rows, codes.NONE))
        self.tables["background"].write(0, s.n_background, flow=codes.NONE, until=-math.inf)
        # Latencies have been looked up that much later.
        rewind = now < s.now + s.send_overhead
        self.origin, s.now, s.hope = origin, now, -math.inf
        if not self._links.constant:
            self.links.write(0, self.n_links, until=-math.inf)
            self.look_ahead(rewind=rewind)
        if s.watching:
            # It is to be in the event queue when links change, whether they are in use or not.
            for link in range(self.n_links):
                self.loop.update_link(s, link, now)
            self.reroute()

    # Runs and transfers.

    def transfer(self, src: int, dst: int, nbytes: float, delay: float, pick: int, token: int) -> None:
        """Send a message now on the candidate route number `pick`; the notice of its arrival will contain `token`."""
        s = self.state
        self._n_transfers += 1
        self.make_room(flows=1)
        if self.loop.change_links(s):
            self.reroute()
        first, candidates = (int(one[0]) for one in self.routes_between(np.array([src]), np.array([dst])))
        if not s.n_free:
            self.grow()
        wire = float(self._stack.framed(nbytes))
        f = self.loop.create_message(s, codes.TRANSFER, first, candidates, pick, wire, delay)
        s.flows[f].message = token
        self.loop.inject(s, f)

    def arrived(self) -> None:
        """Free the reserved table row of a `transfer` whose message has arrived."""
        self._n_transfers -= 1
        self.give_room(flows=1)

    def run(self, program: Program, keep: bool) -> Handle:
        """Write a program into the tables and start its ranks; return the table rows that it occupies.

        - `program`: the schedules.
        - `keep`: whether to keep start and finish of every message.
        """
        P, schedule = program.hosts.size, program.schedule
        taken: list[tuple[Table, int, int]] = []

        def take(table: Table, count: int) -> int:
            at = table.take(count)
            taken.append((table, at, count))
            return at

        each = list({id(one): one for one in schedule.rounds}.values())
        sends = np.array([np.bincount(one.src, minlength=P) for one in each]).reshape(-1, P)
        receives = np.array([np.bincount(one.dst, minlength=P) for one in each]).reshape(-1, P)
        slots = int(sends.max(axis=0, initial=0).sum())
        self.make_room(flows=slots, ranks=P)
        most = 2 * int((sends + receives).max(initial=0)) + self.state.n_background + 4
        self.state.most_sends = max(self.state.most_sends, most)
        runs, ranks, rounds = (self.tables[name] for name in ("runs", "ranks", "rounds"))
        e, g = take(runs, 1), take(ranks, P)
        ranks.write(
            g, P, start=program.start, since=program.accounted, finish=program.start, run=e, number=np.arange(P)
        )
        streams = program.streams
        software: dict[int, float | Floats] = {}
        if streams is not None:
            self._write_streams(streams, program.start, g, take)
            software = {id(one): own for one, own in zip(schedule.rounds, streams.software, strict=True)}
        tasks = self._write_tasks(each, sends, receives, g, program.hosts, software, schedule.n_messages, take)
        n_rounds, n_messages = len(schedule.rounds), schedule.n_messages
        i = take(rounds, n_rounds + 1)
        rounds.write(i, n_rounds, tasks=np.array([tasks[id(one)] for one in schedule.rounds], dtype=np.int64))
        rounds.write(i + 1, n_rounds, offset=np.cumsum([len(one) for one in schedule.rounds], dtype=np.int64))
        rounds.write(i, n_rounds, **self._in_calls(program))
        if streams is None:
            for index, gate in program.gates().items():
                rounds.write(i + index, 1, gates=self.tables["gates"].put(gate, take))
        else:
            for part, (first, last) in enumerate(program.bounds()):
                rounds.write(i + first, 1, opens=part)
                # Work after the last message of a part holds up only the end of the run.
                behind = first < last and not len(schedule.rounds[last - 1]) and not np.any(streams.software[last - 1])
                if behind:
                    rounds.write(i + last - 1, 1, unpacks=part)
        for index, one in enumerate(schedule.rounds if keep else ()):
            if np.any(one.compute):
                times = np.full(P if streams is None else 2 * P, np.nan)
                rounds.write(i + index, 1, worked=self.tables["worked"].put(times, take))
        unknown = np.full(n_messages if keep or program.failures else 0, np.nan)
        columns = {"delays": program.delays.all(), "picks": program.picks, "sent": unknown, "arrived": unknown}
        places = {name: self.tables[name].put(column, take) for name, column in columns.items()}
        if keep and self._stack.has_software:
            places["software"] = self.tables["software"].put(np.full(8 * n_messages, np.nan), take)
        fails = bool(program.failures)
        runs.write(e, 1, n_ranks=P, n_rounds=n_rounds, running=P, ranks=g, rounds=i, fails=fails, **places)
        # Inserted first, so that a failure precedes all other events of the same instant.
        for rank, time in sorted(program.failures.items()):
            self.loop.push_event(self.state, max(time - self.origin, self.state.now), codes.FAIL, g + rank)
        self.loop.start_run(self.state, e)
        handle = Handle(e, g, P, slots, n_messages, taken)
        self._handles.append(handle)
        return handle

    def _in_calls(self, program: Program) -> dict[str, NDArray[Any]]:
        """Return the columns of `RoundRecord` that depend on each round's position in its collective call."""
        rounds, begins = program.schedule.rounds, program.begins()
        ahead = np.array(self._stack.ahead(rounds), dtype=np.int64)
        phases = [one.phase for one in rounds]
        continues = np.array([False, *map(operator.eq, phases, phases[1:])][: len(rounds)])
        ahead[begins], continues[begins] = 0, False
        numbers = np.arange(len(rounds))
        within = numbers - begins[np.searchsorted(begins, numbers, side="right") - 1] if len(rounds) else numbers
        factor = 1 + within % 2 * self._stack.by_turns
        sends_first = np.array(self._stack.sends_first(program.schedule), dtype=np.bool_)
        return {"ahead": ahead, "continues": continues, "control_factor": factor, "sends_first": sends_first}

    def _write_tasks(
        self,
        rounds: list[Round],
        sends: Ranks,
        receives: Ranks,
        ranks: int,
        hosts: Ranks,
        software: dict[int, float | Floats],
        n_messages: int,
        take: Callable[[Table, int], int],
    ) -> dict[int, int]:
        """Write messages and ranks' tasks for every distinct round object; return the first task's row by round id."""
        # `sends` and `receives`, shape (rounds, P), count the messages; `software` has the seconds of rounds, by id,
        # that need no stream.
        P, messages, tasks = hosts.size, self.tables["messages"], self.tables["tasks"]
        # Messages are in the order of rounds, and in these of their senders.
        orders = [np.argsort(one.src, kind="stable") for one in rounds]
        ordered = list(zip(rounds, orders, strict=True))

        def joined(columns: Iterable[NDArray[Any]], dtype: type = np.float64) -> NDArray[Any]:
            return np.concatenate([np.zeros(0, dtype), *columns])

        src = joined((one.src[order] for one, order in ordered), np.int64)
        dst = joined((one.dst[order] for one, order in ordered), np.int64)
        m, count = take(messages, src.size), src.size
        # Column by column, so that temporary arrays take less memory than the table.
        messages.write(m, count, n_bytes=joined(self._stack.wire(one, P)[order] for one, order in ordered))
        messages.write(m, count, payload=joined(one.nbytes[order] for one, order in ordered))
        messages.write(m, count, number=joined(orders, np.int64))
        messages.write(m, count, src=ranks + src)
        messages.write(m, count, dst=ranks + dst)
        pairs, connection = unique_places(src * P + dst, P * P)
        messages.write(m, count, connection=take(self.tables["connections"], pairs.size) + connection)
        route, candidates = self.routes_between(hosts[src], hosts[dst])
        if self._leaves_out:
            route = self.limiting_routes(route, n_messages, take)
        messages.write(m, count, route=route, candidates=candidates)
        if self._stack.send_completion not in ("left", "taken"):
            messages.write(m, count, back=self.routes_between(hosts[dst], hosts[src])[0])
        receivers = P * np.repeat(np.arange(len(rounds)), [len(one) for one in rounds]) + dst
        incoming = self.tables["incoming"].put(m + np.argsort(receivers, kind="stable"), take)
        first = take(tasks, sends.size)
        seconds = joined(np.broadcast_to(one.compute - software.get(id(one), 0.0), P) for one in rounds)
        tasks.write(first, sends.size, seconds=seconds)
        if software:
            own = joined(np.broadcast_to(software[id(one)], P) for one in rounds)
            tasks.write(first, sends.size, software=own)
        tasks.write(first, sends.size, messages=m + np.cumsum(sends) - sends.ravel(), sends=sends.ravel())
        tasks.write(first, sends.size, incoming=incoming + np.cumsum(receives) - receives.ravel())
        tasks.write(first, sends.size, receives=receives.ravel())
        return {id(one): first + P * place for place, one in enumerate(rounds)}

    def _write_streams(self, given: Streams, start: Floats, g: int, take: Callable[[Table, int], int]) -> None:
        """Write a compute stream, which starts with its rank, for each rank of a schedule (rows from `g` on)."""
        n_parts, P = given.slices.shape
        compute_slices, streams = self.tables["compute_slices"], self.tables["streams"]
        first, x = take(compute_slices, n_parts * P), take(streams, P)
        compute_slices.write(
            first,
            n_parts * P,
            seconds=given.slices.T.ravel(),
            select=given.select.T.ravel(),
            beside=np.tile(given.beside, P),
        )
        aside = given.side_stream is not None
        slower_slices, slower_kernels = given.side_stream or (1.0, 1.0)
        streams.write(
            x,
            P,
            reached=start,
            compute_slices=first + n_parts * np.arange(P),
            parts=n_parts,
            aside=aside,
            slower_slices=slower_slices,
            slower_kernels=slower_kernels,
        )
        self.tables["ranks"].write(g, P, stream=x + np.arange(P))

    def computed(self, handle: Handle) -> Computed:
        """Return when backward-pass slices and kernels ran on a schedule's compute streams [s since `origin`]."""
        s, x = self.state, int(self.state.ranks[handle.ranks].stream)
        streams, compute_slices = self.tables["streams"], self.tables["compute_slices"]
        n_parts, first = int(s.streams[x].parts), int(s.streams[x].compute_slices)

        def times(end: str) -> dict[str, Floats]:
            rows = (compute_slices.read(f"{what}_{end}", first, n_parts * handle.n_ranks) for what in _BESIDE)
            return {what: one.reshape(handle.n_ranks, n_parts).T for what, one in zip(_BESIDE, rows, strict=True)}

        done, sliced = (streams.read(field, x, handle.n_ranks) for field in ("computed", "sliced"))
        return Computed(done, sliced, times("begun"), times("ended"), bool(s.streams[x].aside))

    def busy_until(self, handle: Handle, now: float) -> float:
        """Return when the compute streams of a stalled schedule are idle [s], failed ranks excepted; >= `now`."""
        s = self.state
        ranks = [s.ranks[g] for g in range(handle.ranks, handle.ranks + handle.n_ranks)]
        beside = [int(one.stream) for one in ranks if one.stream >= 0 and one.state != codes.FAILED]
        return max([now, *(float(self.loop.stream_done_at(s, x)) for x in beside)])

    def release(self, handle: Handle) -> None:
        """Remove a schedule, finished or not, from the event loop, and free its table rows."""
        self._handles.remove(handle)
        self.loop.forget_run(self.state, handle.run)
        self.give_room(flows=handle.slots, ranks=handle.n_ranks)
        for table, at, count in handle.taken:
            table.give_back(at, count)

    def of_ranks(self, handle: Handle, field: str) -> NDArray[Any]:
        """Return the column `field` of the ranks table for all ranks of a schedule in flight; shape (P,)."""
        return self.tables["ranks"].read(field, handle.ranks, handle.n_ranks)

    def open_rounds(self, handle: Handle) -> list[dict[int, int]]:
        """Return for each rank a dict from round index to the number of messages that the rank still waits for."""
        found = []
        for row in range(handle.ranks, handle.ranks + handle.n_ranks):
            rank = self.state.ranks[row]
            held, entry = {int(rank.round_index): int(rank.missing)}, rank.early
            while entry >= 0:
                one = self.state.early[entry]
                # Counts > 0: early arrivals of later rounds. Counts < 0: messages missing in earlier rounds.
                if one.count < 0:
                    held[int(one.round_index)] = -int(one.count)
                entry = one.next
            found.append(held)
        return found

    def of_messages(self, handle: Handle, field: str) -> Floats:
        """Return when each message of a schedule was ``sent`` or ``arrived`` (by `field`) [s]; NaN for not yet."""
        return self.tables[field].numbers(getattr(self.state.runs[handle.run], field), handle.n_messages)

    def software(self, handle: Handle) -> Floats:
        """Return start and end [s] of each message's CPU work: request, receiver's control message, send, receive.

        Shape (4, 2, messages); NaN where there is none.
        """
        at, count = self.state.runs[handle.run].software, handle.n_messages
        if at < 0:
            return np.full((4, 2, count), np.nan)
        return self.tables["software"].numbers(at, 8 * count).reshape(count, 4, 2).transpose(1, 2, 0)

    def worked(self, handle: Handle, number: int, seconds: float | Floats) -> tuple[Floats, Floats]:
        """Return start and end of each rank's work before round `number` [s], shape (P,) each; NaN if not recorded.

        With a stream, the end is that of the queued kernels. `seconds` is the work of ranks without a stream.
        """
        s, P = self.state, handle.n_ranks
        worked = s.rounds[s.runs[handle.run].rounds + number].worked
        if worked < 0:
            return np.full(P, np.nan), np.full(P, np.nan)
        begun = self.tables["worked"].numbers(worked, P)
        beside = s.ranks[handle.ranks].stream >= 0
        return begun, self.tables["worked"].numbers(worked + P, P) if beside else begun + seconds

    # Messages in flight.

    def notices(self) -> list[tuple[int, int]]:
        """Return and clear all notices as (kind of event, row of the schedule or token of the transfer)."""
        count = self.state.n_notices
        self.state.n_notices = 0
        return [(int(one.kind), int(one.row)) for one in self.state.notices[:count]]

    def under_way(self) -> list[int]:
        """Return the rows of all messages in flight, without flows of background traffic."""
        found = self.in_state(codes.ON_ITS_WAY, codes.BLOCKED, codes.FLOWING, codes.QUEUED)
        return [f for f in found if self.state.flows[f].owner != codes.BACKGROUND]

    def is_blocked(self, f: int) -> bool:
        """Return whether message f waits in an egress queue or is sent at rate 0."""
        flow = self.state.flows[f]
        return bool(flow.state == codes.QUEUED or (flow.state == codes.FLOWING and flow.place < 0))

    def owner(self, f: int) -> tuple[int, int]:
        """Return the rows of flow f in `state.runs` and `state.messages`; `codes.TRANSFER` and an id for transfers."""
        flow = self.state.flows[f]
        return int(flow.owner), int(flow.message)

    def place(self, f: int) -> tuple[int, int]:
        """Return the index of message f's round in its schedule, and the position of the message in the round."""
        flow = self.state.flows[f]
        return int(flow.round_index), int(self.state.messages[flow.message].number)

    def clear(self) -> None:
        """Remove all messages in flight, and empty all egress and receive queues."""
        s = self.state
        for f in self.under_way():
            if s.flows[f].state == codes.FLOWING:
                self.loop.stop_message(s, f)
            self.loop.count_assigned(s, f, -1)
            self.loop.free_flow(s, f)
        # Vanished messages are in queues only.
        for f in self.in_state(codes.VANISHED):
            self.loop.free_flow(s, f)
        self.links.write(0, self.n_links, port_first=codes.NONE, n_coming=0, first_passing=codes.NONE)
        s.n_moving = s.n_queued = 0
