"""Schedules and topologies as files of other tools carry them, for tests of there and back."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from simnet.schedule import Round, Schedule


def write_nodelink(graph, path):
    """Write a topology as node-link JSON."""
    Path(path).write_text(json.dumps(nx.node_link_data(graph, edges="edges")), encoding="utf-8")


def canonical(schedule):
    """What a trace can carry: no phases, scalar compute where ranks agree, no idle rounds at the end."""
    rounds = []
    for one in schedule.rounds:
        work = np.broadcast_to(np.asarray(one.compute, float), schedule.n_ranks)
        rounds.append(Round(one.src, one.dst, one.nbytes, float(work[0]) if (work == work[0]).all() else work))
    while rounds and not len(rounds[-1]) and not np.any(rounds[-1].compute):
        rounds.pop()
    return Schedule(schedule.n_ranks, rounds)


@st.composite
def schedules(draw, most_ranks, most_bytes, ticks):
    """Schedules of up to so many ranks and bytes, with work in whole ticks, of which a second has so many."""
    P = draw(st.integers(2, most_ranks))
    work = st.integers(0, 10**9).map(lambda n: n / ticks)
    rounds = []
    for _ in range(draw(st.integers(0, 5))):
        pairs = draw(
            st.lists(st.tuples(st.integers(0, P - 1), st.integers(1, P - 1), st.integers(0, most_bytes)), max_size=6)
        )
        compute = draw(st.one_of(st.just(0.0), work, st.lists(work, min_size=P, max_size=P)))
        rounds.append(
            Round([s for s, _, _ in pairs], [(s + d) % P for s, d, _ in pairs], [b for *_, b in pairs], compute, "x")
        )
    return Schedule(P, rounds)
