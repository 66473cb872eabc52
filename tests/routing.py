"""Routes as tests of topologies look at them."""

import itertools

LINK = {"latency": 1e-6, "bandwidth": 8.0}
GPUS = {"intra_latency": 2e-6, "intra_bandwidth": 3e11, "nic_latency": 6e-6, "nic_bandwidth": 2.5e10}


def nodes_of(routes, src, dst):
    """The nodes of a route, which is checked to be one: contiguous and from src to dst."""
    links = [routes.links[link] for link in routes.route(src, dst)]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(links))
    path = [src, *(v for _, v in links)]
    assert path[-1] == dst
    return path
