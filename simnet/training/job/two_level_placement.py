"""Schemes on two levels on the network of a job: where it may be cut, and in which order rings go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.network import Network
from simnet.network.ring_order import RingOrder, pair_seconds, ring_order
from simnet.policies import Candidate
from simnet.sparsifier_models.options import option_values
from simnet.sparsifier_models.two_level import AUTO, BOTTLENECK, PREFIX, sizes_of

if TYPE_CHECKING:
    from simnet.training.job.job import Job


def node_sizes(network: Network, hosts: Sequence[int], nbytes: float) -> tuple[int, ...]:
    """Return the sizes of groups of consecutive ranks that are close to each other, from inside out.

    The distance of two ranks is the time of a message of `nbytes` between their hosts at the start. A size counts if
    all groups have it and there are several.

    Examples
    --------
    >>> from simnet.topologies import multi_gpu_nodes
    >>> links = {"intra_latency": 1e-6, "intra_bandwidth": 3e11, "nic_latency": 5e-6, "nic_bandwidth": 1e10}
    >>> node_sizes(Network(multi_gpu_nodes(4, 2, **links)), range(8), 1e6)
    (2,)
    """
    pairs = [network.path(src, dst, 0.0) for src, dst in itertools.pairwise(hosts)]
    seconds = np.array([latency + (nbytes / bandwidth if bandwidth else np.inf) for latency, bandwidth in pairs])
    found = []
    for limit in np.unique(seconds)[:-1].tolist():
        # What differs by rounding alone is as near.
        ends = np.flatnonzero(seconds > limit * (1 + 1e-9)) + 1
        sizes = np.diff([0, *ends, len(hosts)])
        if len(sizes) > 1 and sizes[0] > 1 and (sizes == sizes[0]).all() and int(sizes[0]) not in found:
            found.append(int(sizes[0]))
    return tuple(found)


@lru_cache(maxsize=16)
def _pair_seconds(network: Network, hosts: tuple[int, ...], nbytes: float) -> Floats:
    return pair_seconds(network, list(hosts), nbytes)


@lru_cache(maxsize=16)
def _ring_order(network: Network, hosts: tuple[int, ...], nbytes: float) -> RingOrder:
    return ring_order(_pair_seconds(network, hosts, nbytes))


def job_node_sizes(job: Job) -> tuple[int, ...]:
    """Return `node_sizes` of the workers of a job, for the message of a rank in a round of a dense ring."""
    return node_sizes(job.network(0), job.hosts.tolist(), _chunk_bytes(job))


def job_ring_order(job: Job, group: int = 1) -> tuple[RingOrder, float]:
    """Return the order of a ring of groups of a job's workers, and the time of its slowest pair as numbered [s].

    The first worker of each group of `group` workers stands for it.
    """
    heads = tuple(job.hosts[::group].tolist())
    seconds = _pair_seconds(job.network(0), heads, _chunk_bytes(job))
    return _ring_order(job.network(0), heads, _chunk_bytes(job)), float(np.max(np.roll(seconds, -1, axis=1).diagonal()))


def _chunk_bytes(job: Job) -> float:
    return 4.0 * job.source.true_parameters / job.source.workers


def fit_to_network(candidate: Candidate, job: Job) -> Candidate:
    """Return a two-level exchange with ranks per node and node order from the network of a job.

    Other exchanges are returned unchanged. Raises ValueError if the network has no nodes.
    """
    if not candidate.scheme.startswith(PREFIX):
        return candidate
    given: Any = option_values(sparsifier_models.scheme(candidate.scheme).option_type, candidate.options)
    found = dict(candidate.options)
    if given.ranks_per_node == AUTO:
        sizes = job_node_sizes(job)
        if not sizes:
            raise ValueError(
                f"ranks_per_node auto: among {job.source.workers} workers no groups of equally many, one behind the "
                "other, are nearer to each other than to the next; give a number"
            )
        found["ranks_per_node"] = sizes[0]
    if given.node_order == BOTTLENECK:
        found["node_order"] = list(job_ring_order(job, math.prod(sizes_of(found["ranks_per_node"])))[0].order)
    return replace(candidate, options=found)
