"""Work of the event loop: changes of links count, routes are laid once, and little work is interpreted."""

import numpy as np
import pytest

from simnet import topologies
from simnet.network import Network
from simnet.network.link_tables import LinkTables


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
