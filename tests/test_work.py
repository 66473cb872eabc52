"""What is compiled is decided by work: messages that meet others are more of it, and so is what has been done."""

from types import SimpleNamespace

import numpy as np
import pytest

from simnet import topologies
from simnet.base.jit_threshold import JitThreshold
from simnet.network import Network, engine_selection, event_loop
from simnet.network.link_tables import LinkTables
from simnet.network.tables import Store
from simnet.network.weather import Weather, steps
from simnet.schedule import Round, Schedule


def program(network, schedule, placement=None):
    return network._prepared([(schedule, 0.0)], 0.0, True, placement=placement)


def test_messages_that_meet_are_more_work_than_others():
    network = Network(topologies.star(4, 1e-3, 1e6))

    def work(schedule, placement=None):
        return engine_selection.estimated_work(program(network, schedule, placement), network.links)

    apart, met = Round([0, 1], [2, 3], [1e3, 1e3]), Round([0, 0], [2, 3], [1e3, 1e3])
    assert work(Schedule(4, [apart, apart])) == 4
    # Two share one link in each round: each meets the other once.
    assert work(Schedule(4, [met, apart, met])) == pytest.approx(6 + 4 * engine_selection._MEETING)
    # Between ranks on one host there are no links.
    assert work(Schedule(4, [met]), [3, 0, 3, 3]) == 2
    assert work(Schedule(4, [])) == 0


def test_changes_of_the_links_that_messages_use_are_work():
    graph = topologies.star(4, 1e-3, 1e6)
    fast = Weather(bandwidth=steps([0, 1e-3], [1e6, 5e5], period=2e-3))
    own = [edge for edge in graph.edges if 0 in edge]
    network = Network(graph, dict.fromkeys(own, fast))

    def work(src, dst, nbytes):
        one = Schedule(4, [Round([src], [dst], [nbytes])])
        return engine_selection.estimated_work(program(network, one), network.links) - 1

    # A second at full speed, in which one of the two links of the route changes a thousand times.
    assert work(0, 1, 1e6) == pytest.approx(1000 * engine_selection._CHANGING, rel=0.01)
    assert work(2, 0, 2e6) == pytest.approx(2000 * engine_selection._CHANGING, rel=0.01)
    assert work(2, 3, 1e6) == 0


def test_what_is_compiled_is_decided_by_work_estimated_or_done(monkeypatch):
    made, stamp = [], 0

    def engine(*_, compiled, **__):
        made.append(compiled)
        return SimpleNamespace(state=SimpleNamespace(stamp=stamp))

    monkeypatch.setattr(engine_selection, "loop_is_loaded", lambda: False)
    monkeypatch.setattr(engine_selection, "_MANY", 100)
    monkeypatch.setattr("simnet.network.engine.Engine", engine)
    network = Network(topologies.star(9, 1e-3, 1e6))

    def compiled(*work):
        made.clear()
        monkeypatch.setattr(engine_selection, "_interpreted", JitThreshold(100))
        taken = engine_selection.EngineSelector(network.links, (0.0, 0.0), network.stack, network.sharing)
        for one in work:
            taken.take(one)
        return made[-1]

    incast = Schedule(9, [Round(np.arange(8), np.full(8, 8), np.full(8, 1e3))] * 6)
    assert incast.n_messages < 100
    assert not compiled(99)
    assert compiled(60, 40)
    assert compiled(program(network, incast))
    assert not compiled(1, 1)
    # What was counted once is not counted again.
    assert not compiled(*[1] * 50)
    # A process does not forget what its other networks had to do.
    engine_selection.EngineSelector(network.links, (0.0, 0.0), network.stack, network.sharing).take(98)
    assert made[-1]
    stamp = 100
    assert compiled(1, 1)


@pytest.mark.parametrize("multipath", [False, True])
def test_routes_are_laid_once_whatever_the_order_in_which_pairs_come(multipath, monkeypatch):
    monkeypatch.setattr("simnet.network.link_tables._AT_ONCE", 7)
    network = Network(topologies.fat_tree(4, 1e-6, 1e9))
    ways, draws = LinkTables(network.links, multipath, False, False), np.random.default_rng(0)
    for _ in range(6):
        src, dst = draws.integers(0, 16, (2, 40))
        first, counts = ways.routes_between(src, dst)
        for pair in zip(src.tolist(), dst.tolist(), first.tolist(), counts.tolist(), strict=True):
            laid = [tuple(ways.route_of(pair[2] + one)) for one in range(pair[3])]
            assert laid == list(
                network.routes.candidates(*pair[:2]) if multipath else [network.routes.route(*pair[:2])]
            )
    pairs = 16 * 16
    ends = np.divmod(np.arange(pairs), 16)
    laid = ways.routes_between(*ends)[1].sum()
    ways.routes_between(*ends)
    assert ways.routes.size == laid


def test_little_work_is_done_by_the_event_loop_as_it_is_written():
    assert Store(compiled=False, n_links=1).loop is event_loop
