"""Wide-area network: workers at several sites, which are joined by long links of unequal latency and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.errors import check_int
from simnet.base.quantities import Bandwidth, Bandwidths, Latencies, Seconds
from simnet.topologies.deferred import add_link, add_node
from simnet.topologies.graphs import Graph, affordable, cable, checked, empty, latency_seconds


@checked
def wan(
    sites: int | Sequence[str],
    latency: Latencies,
    bandwidth: Bandwidths,
    workers_per_site: int | Sequence[int],
    *,
    local_latency: Seconds = 100e-6,
    local_bandwidth: Bandwidth = 1.25e9,
) -> Graph:
    """Return a network of workers at several sites, each site with a router that connects its workers to other sites.

    Hosts are numbered site by site. Between two hosts of one site a message pays `local_latency`. From a host at
    site a to one at b it pays `local_latency` + ``latency[a, b]`` (half the local latency at each end) and can have
    the less of `local_bandwidth` and ``bandwidth[a, b]``, which all workers of site a share towards b. Sites without a
    link of their own go through the routers of others: over as few links as possible and, among such paths, with the
    least latency (the links' ``weight`` sees to it), as traffic between providers does.

    Parameters
    ----------
    sites : int or sequence of str
        Names of the S sites, or their number for the names ``"0"``, ``"1"``, ...
    latency : array_like of float, shape (S, S) or scalar
        One-way latency from row to column [s], >= 0. The diagonal is ignored, and so are pairs without a link.
    bandwidth : array_like of float, shape (S, S) or scalar
        From row to column [byte/s]; 0 for no link from row to column. The diagonal is ignored.
    workers_per_site : int or sequence of int, length S
        Hosts of each site. A site named with 0 has only its router.
    local_latency : float
        From host to host inside a site [s], >= 0.
    local_bandwidth : float
        Of each host's link in each direction [byte/s], > 0. The default is 10 Gbit/s.

    Returns
    -------
    networkx.DiGraph
        The router of a site is ``"site:NAME"``. Links between routers are of kind ``"wan"`` and carry
        ``sites=(from, to)``, those of workers are of kind ``"host"``; hosts and routers carry ``site=NAME``;
        ``graph.graph["sites"]`` is the tuple of names.

    Raises
    ------
    ValueError
        If a parameter is out of range, a matrix has another shape, or a name is given twice.

    Examples
    --------
    >>> from simnet.topologies import Routes
    >>> graph = wan(
    ...     ["Oregon", "Tokyo"],
    ...     latency=[[0, 50e-3], [55e-3, 0]],
    ...     bandwidth=40e6,
    ...     workers_per_site=2,
    ... )
    >>> routes = Routes(graph)
    >>> [routes.links[link] for link in routes.route(0, 2)]
    [(0, 'site:Oregon'), ('site:Oregon', 'site:Tokyo'), ('site:Tokyo', 2)]
    >>> routes.path_latency(2, 0)
    0.0551
    """
    names = site_names(sites)
    S = len(names)
    workers = _workers_by_site(workers_per_site, S)
    affordable(2 * sum(workers) + S * (S - 1), f"a network of {S:,} sites and {sum(workers):,} workers")
    seconds_between, rates = between_sites(names, latency, bandwidth)
    local_half = local_latency / 2
    # Summed over any path the latencies weigh at most half a link, so they decide only between equally many links.
    weights = 1 + seconds_between / (2 * seconds_between[rates != 0].sum() or 1.0)

    graph = empty("wan", sum(workers), sites=names)
    host = 0
    for name, count in zip(names, workers, strict=True):
        router = f"site:{name}"
        add_node(graph, router, site=name)
        for _ in range(count):
            add_node(graph, host, site=name)
            cable(graph, host, router, local_half, local_bandwidth, "host")
            host += 1
    link_sites(graph, names, seconds_between, rates, weights)
    return graph


def link_sites(
    graph: Graph,
    names: Sequence[str],
    latency: NDArray[np.float64],
    bandwidth: NDArray[np.float64],
    weight: NDArray[np.float64],
) -> None:
    """Add links between the routers of sites.

    Parameters
    ----------
    graph : networkx.DiGraph
        Takes the links.
    names : sequence of str
        The sites.
    latency, bandwidth, weight : array
        Of the link from each site to each other, shape (S, S) [s], [byte/s]; there is none where the bandwidth is 0.
    """
    for a, b in np.argwhere(bandwidth != 0).tolist():
        add_link(
            graph,
            f"site:{names[a]}",
            f"site:{names[b]}",
            latency=float(latency[a, b]),
            bandwidth=float(bandwidth[a, b]),
            kind="wan",
            sites=(names[a], names[b]),
            weight=float(weight[a, b]),
        )


def site_names(sites: object) -> tuple[str, ...]:
    """Return the names of sites, given a sequence of names or a number of sites.

    Raises
    ------
    ValueError
        If there are none, one is no name, or one is given twice.
    """
    if isinstance(sites, str) or not isinstance(sites, Sequence):
        S = check_int(sites, "sites, where not a list of names,", 1)
        affordable(S * (S - 1), f"a network of {S:,} sites")
        return tuple(str(i) for i in range(S))
    if not sites:
        raise ValueError("sites must hold at least one name")
    for i, name in enumerate(sites):
        if not isinstance(name, str) or not name or name != name.strip() or "->" in name:
            raise ValueError(f"sites[{i}] must be a name without '->' or blanks at its ends, got {name!r}")
        if name in sites[:i]:
            raise ValueError(f"sites names {name!r} twice")
    return tuple(sites)


def _workers_by_site(workers_per_site: object, S: int) -> list[int]:
    if isinstance(workers_per_site, str) or not isinstance(workers_per_site, Sequence | np.ndarray):
        return [check_int(workers_per_site, "workers_per_site", 1)] * S
    if len(workers_per_site) != S:
        raise ValueError(f"workers_per_site must have one entry for each of the {S} sites, got {len(workers_per_site)}")
    workers = [check_int(count, f"workers_per_site[{i}]", 0) for i, count in enumerate(workers_per_site)]
    if not any(workers):
        raise ValueError("workers_per_site must give at least one site a worker, got only zeros")
    return workers


def between_sites(
    names: tuple[str, ...], latency: ArrayLike, bandwidth: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the latency [s] and bandwidth [byte/s] of links between S sites, (S, S) each; 0 byte/s means no link.

    Parameters
    ----------
    names : tuple of str
        The sites.
    latency, bandwidth : array_like
        Of every link, or a matrix of shape (S, S) [s], [byte/s].

    Raises
    ------
    ValueError
        If one of them is no such matrix, or out of range on a link, which it names.
    """
    seconds_between = _site_matrix(latency, names, "latency")
    rates = _site_matrix(bandwidth, names, "bandwidth").copy()
    np.fill_diagonal(rates, 0)
    for a, b in np.argwhere(rates != 0).tolist():
        pair = f"from {names[a]} to {names[b]}"
        latency_seconds(seconds_between[a, b], f"latency {pair}")
        if not 0 < rates[a, b] < np.inf:
            raise ValueError(
                f"bandwidth {pair} must be finite and > 0 bytes per second, or 0 for no link, got {rates[a, b]}"
            )
    return seconds_between, rates


def _site_matrix(values: ArrayLike, names: tuple[str, ...], what: str) -> NDArray[np.float64]:
    """Return `values` as a float64 matrix with a row and a column per site; a scalar applies to every pair of sites."""
    S = len(names)
    try:
        given = np.asarray(values)
    except ValueError:  # rows of unequal length
        given = np.asarray(None)
    wanted = f"{what} must be a number or a matrix of {S} by {S}"
    if given.dtype.kind not in "iuf":
        raise ValueError(f"{wanted} numbers, got {values!r}")
    if given.shape not in ((), (S, S)):
        raise ValueError(f"{wanted}, one row per site, got shape {given.shape}")
    return np.broadcast_to(given.astype(np.float64), (S, S))
