"""What few hosts stand for: what routes have in common, when rounds are alike and times come again, said by hand."""

import itertools
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simnet import topologies
from simnet.network import ConstantLoad, in_step
from simnet.network.in_step import Memory
from simnet.network.links import Links
from simnet.schedule import Round

HOSTS, THREE = np.arange(4), np.arange(3)


def one_after_another(graph, shift=1, src=HOSTS):
    """What the routes have in common from each of four hosts to the one `shift` after it, and the links."""
    one, links = Round(src, (src + shift) % 4, 1.0), Links(graph, {}, (), 0)
    return in_step._routes_of(one.src, one.dst, one, links), links


def star(**unlike):
    """A star of four hosts, each with a switch of its own on the way; links with other attributes by their ends."""
    graph = topologies.star(4, 0.25, 6.0)
    for host in range(4):
        graph.remove_edges_from([(host, "switch"), ("switch", host)])
        for u, v in ((host, f"{host}."), (f"{host}.", "switch")):
            for link in ((u, v), (v, u)):
                graph.add_edge(*link, latency=0.25, bandwidth=6.0 if host in link else 7.0)
    for ends, about in unlike.items():
        u, v = (int(end) if end.isdigit() else end for end in ends.split("_"))
        graph.edges[u, v].update(about)
    return graph


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_what_like_routes_have_in_common(order):
    found, links = one_after_another(star(), src=np.array(order))
    number = {link: at for at, link in enumerate(links.routes.links)}
    assert found.capacities == (6.0, 7.0, 7.0, 6.0)
    assert found.latency == 1.0
    assert found.own.tolist() == [number[host, f"{host}."] for host in range(4)]
    assert found.last.tolist() == [number[f"{host}.", host] for host in range(4)]
    assert found.between == {number[link] for link in number if "switch" in link}
    assert found.two_way is True


def test_routes_of_one_link_each_way():
    found, links = one_after_another(topologies.ring(4, 0.25, 6.0))
    number = {link: at for at, link in enumerate(links.routes.links)}
    ahead = [number[host, (host + 1) % 4] for host in range(4)]
    assert found.own.tolist() == ahead
    assert found.last.tolist() == ahead[-1:] + ahead[:-1]
    assert (found.capacities, found.latency, found.between, found.two_way) == ((6.0,), 0.25, frozenset(), False)


def test_routes_over_two_switches_of_four_hosts_share_links():
    assert one_after_another(topologies.ring(4, 0.25, 6.0), shift=2)[0] is None


@pytest.mark.parametrize("link", ["3_3.", "3._switch", "switch_3.", "3._3", "0_0.", "0._0"])
@pytest.mark.parametrize("about", [{"bandwidth": 5.0}, {"bandwidth": 8.0}, {"latency": 0.5}])
def test_one_link_that_is_unlike_the_others_is_enough(link, about):
    assert one_after_another(star(**{link: about}))[0] is None


@pytest.mark.parametrize("first", ["host", "middle"])
def test_routes_that_are_wider_at_an_end_than_elsewhere_have_nothing_in_common(first):
    graph = star()
    for u, v in graph.edges:
        wide = isinstance(u, int) if first == "host" else "switch" not in (u, v)
        graph.edges[u, v]["bandwidth"] = 7.0 if wide else 6.0
    assert one_after_another(graph)[0] is None


# Links of the routes from each of three ranks to the next, and back: the first of each is the own one of its sender.
AHEAD, BACK = np.array([[0, 1], [2, 3], [4, 5]]), np.array([[2, 7], [4, 6], [0, 8]])


def common(ahead, back, capacity=(6.0,) * 12, not_own=None):
    """What routes have in common, of which one link, if any, is not its sender's own though it is the first."""
    links = SimpleNamespace(
        routes=SimpleNamespace(table=lambda src, dst: ahead if src[0] == 0 else back),
        own_of=lambda table: np.where(table[:, 0] == not_own, 11, table[:, 0]),
        constant_capacity=np.array(capacity),
        constant_latency_of=lambda table: np.full(len(table), 0.5),
    )
    return in_step._routes_of(THREE, (THREE + 1) % 3, Round(THREE, (THREE + 1) % 3, 1.0), links)


def test_words_leave_over_the_own_link_of_their_speaker():
    found = common(AHEAD, BACK)
    assert (found.own.tolist(), found.last.tolist(), found.two_way) == ([0, 2, 4], [5, 1, 3], True)
    other_way = np.where(BACK == 4, 9, BACK)
    assert common(AHEAD, other_way) is None
    assert common(AHEAD[:, :1], other_way[:, :1]).two_way is False


def test_routes_that_are_shorter_meet_or_begin_elsewhere_have_nothing_in_common():
    assert common(np.where(AHEAD == 5, -1, AHEAD), BACK) is None
    assert common(AHEAD, np.where(BACK == 8, -1, BACK)) is None
    assert common(AHEAD[:, :0], BACK[:, :0]) is None
    assert common(AHEAD[:, :1], BACK) is None
    assert common(np.where(AHEAD == 5, 3, AHEAD), BACK) is None
    assert common(AHEAD, np.where(BACK == 8, 7, BACK)) is None
    assert common(AHEAD, BACK, not_own=5) is not None
    assert common(AHEAD, np.where(BACK == 4, 9, BACK), not_own=9) is None
    assert common(AHEAD, BACK, not_own=2) is None


def test_routes_that_are_wider_at_their_end_have_nothing_in_common():
    narrow = np.isin(np.arange(12), [*AHEAD[:, 0], *BACK[:, 1]])
    assert common(AHEAD[:, ::-1], BACK[:, ::-1], np.where(narrow, 7.0, 6.0)) is None
    assert common(AHEAD[:, :1], np.where(BACK < 9, BACK + 1, 0)[:, :1]).capacities == (6.0,)


def test_nothing_gets_through_links_whose_capacity_others_take():
    graph = topologies.star(4, 0.25, 6.0)
    loads = [ConstantLoad(link, 6.0) for link in graph.edges]
    one = Round(HOSTS, (HOSTS + 1) % 4, 1.0)
    for load, nothing in ((loads, True), ([], False)):
        found = in_step._routes_of(one.src, one.dst, one, Links(graph, {}, load, 0))
        assert (found is None) is nothing


def test_a_way_of_more_links_has_nothing_in_common_with_others():
    graph = topologies.star(4, 0.25, 6.0)
    graph.remove_edges_from([(3, "switch"), ("switch", 3)])
    nx.add_path(graph, [3, "3.", "switch"], latency=0.125, bandwidth=6.0)
    nx.add_path(graph, ["switch", "3.", 3], latency=0.125, bandwidth=6.0)
    assert one_after_another(graph)[0] is None


@example([(0, 1, 1.0), (1, 0, 1.0), (2, 0, 1.0)], 0.0)
@example([(0, 1, 1.0), (0, 2, 1.0), (1, 0, 1.0)], 0.0)
@example([(0, 1, 1.0), (1, 2, 1.0), (2, 0, 2.0)], 0.0)
@example([(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)], [1.0, 2.0, 1.0])
@example([(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)], [1.0, 1.0, 1.0])
@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([1.0, 2.0])), max_size=4),
    st.sampled_from([0.0, [1.0, 1.0, 1.0], [1.0, 2.0, 1.0]]),
)
def test_rounds_are_alike_where_each_rank_sends_one_and_receives_one(messages, compute):
    messages = [(src, dst if dst != src else (src + 1) % 3, size) for src, dst, size in messages]
    src, dst, sizes = (list(column) for column in zip(*messages, strict=True)) if messages else ([], [], [])
    whole = sorted(src) == sorted(dst) == [0, 1, 2]
    wanted = whole and len(set(sizes)) == 1 and len(set(np.ravel(compute).tolist())) == 1
    assert in_step._alike(Round(src, dst, sizes, compute), 3) == wanted


LIKE = in_step._Routes((6.0,), 0.25, THREE, 3 + THREE, frozenset({6}), True)


def shifted(shift, size=1.0, compute=0.0, phase=""):
    return Round(THREE, (THREE + shift) % 3, size, compute, phase)


def few(rounds, routes, phases=False):
    """What few hosts do, where it is known what the routes of each shift have in common."""
    known = {one.src.tobytes() + one.dst.tobytes() + THREE.tobytes(): routes[at] for at, one in enumerate(rounds)}
    return in_step._few(rounds, THREE, None, Memory(known, {}, {}), phases)


def test_two_patterns_over_like_routes_need_three_hosts():
    rounds = [shifted(1, 5.0), shifted(2, 7.0, 0.5, "a")]
    like, stand_in = few(rounds, [LIKE, LIKE._replace(between=frozenset({7, 8}))])
    assert like == (3, (6.0,), 0.25, True)
    assert [stand_in[id(one)].dst.tolist() for one in rounds] == [[1, 2, 0], [2, 0, 1]]
    assert [stand_in[id(one)].nbytes.tolist() for one in rounds] == [[5.0] * 3, [7.0] * 3]
    assert [float(np.max(stand_in[id(one)].compute)) for one in rounds] == [0.0, 0.5]


def test_one_pattern_needs_two_hosts_where_words_go_the_same_way():
    assert few([shifted(1)], [LIKE])[0].hosts == 2
    like, stand_in = few([one := shifted(2)], [LIKE._replace(two_way=False)])
    assert (like.hosts, like.two_way) == (3, False)
    assert stand_in[id(one)].dst.tolist() == [1, 2, 0]


@pytest.mark.parametrize("phases", [False, True])
def test_rounds_of_other_phases_are_the_same_unless_phases_matter(phases):
    rounds = [shifted(1), shifted(1, phase="a"), shifted(1, 2.0), shifted(1, compute=0.5), shifted(1)]
    stand_in = few(rounds, [LIKE] * 5, phases)[1]
    assert len({id(stand_in[id(one)]) for one in rounds}) == 3 + phases
    assert (stand_in[id(rounds[1])] is stand_in[id(rounds[0])]) is not phases
    assert stand_in[id(rounds[4])] is stand_in[id(rounds[0])]


@pytest.mark.parametrize(
    "unlike",
    [
        {"two_way": False},
        {"capacities": (5.0,)},
        {"latency": 0.5},
        {"own": np.array([0, 1, 7])},
        {"last": np.array([3, 4, 7])},
        {"between": frozenset({6, 7})},
    ],
    ids=lambda one: next(iter(one)),
)
@pytest.mark.parametrize("second", [False, True])
def test_patterns_have_all_in_common_but_the_links_between(unlike, second):
    other = LIKE._replace(**{"between": frozenset({8}), **unlike})
    assert few([shifted(1), shifted(2)], [LIKE, other] if second else [other, LIKE]) is None


def test_a_pattern_whose_routes_have_nothing_in_common_is_refused():
    assert few([shifted(1), shifted(2)], [LIKE, None]) is None
    assert few([shifted(1), Round([0], [1], 1.0)], [LIKE, LIKE]) is None


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize(
    ("capacities", "two_way"),
    [((6.0,), False), ((6.0,), True), ((6.0, 7.0), True), ((6.0, 7.0, 8.0), True), ((6.0, 7.0, 8.0, 9.0, 5.0), True)],
)
def test_few_hosts_have_routes_of_the_same_links(hosts, capacities, two_way):
    links = Links(in_step._graph(hosts, capacities, 0.25, two_way), {}, (), 0)
    ways = {pair: links.routes.route(*pair) for pair in itertools.permutations(range(hosts), 2)}
    assert links.routes.n_hosts == hosts
    for way in ways.values():
        assert tuple(links.routes.bandwidth[list(way)]) == capacities
        assert links.routes.latency[list(way)].tolist() == [0.25] + [0.0] * (len(capacities) - 1)
    for one, other in itertools.combinations(ways, 2):
        shared = len(capacities) > 1
        ends = [ways[one][0]] * (shared and one[0] == other[0]) + [ways[one][-1]] * (shared and one[1] == other[1])
        assert set(ways[one]) & set(ways[other]) == set(ends)


def test_times_that_come_again_tell_after_how_many_seconds():
    times = np.array([[0.0, 1.0, 3.0, 4.0, 6.0, 7.0], [0.5, np.nan, 3.5, np.nan, 6.5, np.nan]])
    assert in_step._turn(times, 2) == 3.0
    assert np.isnan(in_step._turn(times, 1))
    for off, same in ((1e-13, True), (1e-11, False), (-1e-11, False)):
        again = times.copy()
        again[0, -1] += 3 * off
        assert np.isnan(in_step._turn(again, 2)) is not same


def test_what_is_too_much_to_keep_is_forgotten(monkeypatch):
    monkeypatch.setattr(in_step, "_MOST", 3)
    memory = {}
    for number in range(3):
        in_step._keep(memory, number, str(number))
    assert memory == {0: "0", 1: "1", 2: "2"}
    in_step._keep(memory, 3, "3")
    assert memory == {3: "3"}


@pytest.mark.parametrize("order", ["aabba", "ab", "aaa"])
def test_rounds_in_a_row_are_one_run(order):
    made = {name: shifted(1) for name in order}
    runs = in_step._runs([made[name] for name in order])
    assert [(id(run[0]), len(run)) for run in runs] == [
        (id(made[name]), len(list(group))) for name, group in itertools.groupby(order)
    ]
