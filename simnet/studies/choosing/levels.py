"""Where to cut a job's network into levels, and in which order rings go between what is left, to choose among.

Cuts are where consecutive ranks are nearer to each other than to the next ones: nodes, sites, both. Orders are that of
the ranks, and the one whose slowest pair of neighbours is the fastest. Which of them pays is for the simulation to say:
pairs are looked at alone, and messages meet.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from simnet import sparsifier_models
from simnet.base.units import format_seconds
from simnet.job import Job
from simnet.job.two_level_placement import job_node_sizes, job_ring_order
from simnet.network.ring_order import RingOrder
from simnet.policies import Candidate
from simnet.sparsifier_models.two_level import PREFIX
from simnet.studies.choosing.choices import Kind


class Cut(NamedTuple):
    """A way to cut a network.

    Parameters
    ----------
    sizes : tuple of int
        Groups from inside out, as of ``ranks_per_node``; 1 where nothing is cut.
    order : tuple of int
        Of the groups in rings; empty as they are numbered.
    words : str
        For labels.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    words: str

    def of(self, one: Candidate) -> Candidate:
        """Return an exchange with this cut.

        Parameters
        ----------
        one : Candidate
            The exchange.

        Raises
        ------
        ValueError
            If its scheme cannot be on two levels.
        """
        if self.sizes == (1,) and not self.order:
            return one
        scheme = f"{PREFIX}{one.scheme}"
        sparsifier_models.scheme(scheme)
        sizes = self.sizes[0] if len(self.sizes) == 1 else list(self.sizes)
        more = {"ranks_per_node": sizes} | ({"node_order": list(self.order)} if self.order else {})
        return Candidate(f"{one.label}, {self.words}", scheme, {**one.options, **more})


class Order(NamedTuple):
    """The order of a ring between groups of so many workers, and what its slowest pair takes as numbered [s]."""

    group: int
    ring: RingOrder
    numbered: float

    @property
    def helps(self) -> bool:
        """Whether the slowest pair is faster than that of the ranks as they are numbered."""
        return self.ring.slowest < self.numbered * (1 - 1e-9)

    def said(self) -> str:
        """Return what it is, in words."""
        where = "workers" if self.group == 1 else f"groups of {self.group} workers"
        took, can = format_seconds(self.ring.slowest), format_seconds(self.ring.bound)
        proved = "no order is faster" if self.ring.bound >= self.ring.slowest * (1 - 1e-9) else f"none is below {can}"
        if not self.helps:
            return f"Rings between {where} are as fast as they are numbered: {took} for the slowest pair."
        order = " ".join(map(str, self.ring.order))
        return (
            f"Rings between {where} by bottleneck: {order}; the slowest pair takes {took} in place of "
            f"{format_seconds(self.numbered)}, {proved}."
        )


def orders(job: Job) -> list[Order]:
    """Return the orders of rings between workers, and between groups of each size that the network of a job has.

    Parameters
    ----------
    job : Job
        The job.
    """
    return [Order(group, *job_ring_order(job, group)) for group in (1, *job_node_sizes(job))]


def cuts(job: Job) -> list[Cut]:
    """Return the ways to cut the network of a job, first into nothing, with the orders that help rings between them.

    Parameters
    ----------
    job : Job
        The job.
    """
    chain, rings = job_node_sizes(job), {one.group: one for one in orders(job)}
    found = []
    for count in range(len(chain) + 1):
        for ends in itertools.combinations(chain, count):
            sizes = tuple(last // first for first, last in itertools.pairwise((1, *ends))) or (1,)
            words = " in groups of ".join(["groups of " + str(sizes[0]), *map(str, sizes[1:])]) if ends else "one level"
            found.append(Cut(sizes, (), words))
            ring = rings[ends[-1] if ends else 1]
            if ring.helps:
                found.append(Cut(sizes, ring.ring.order, f"{words}, rings by bottleneck"))
    return found


def in_every_cut(among: Sequence[tuple[Candidate, Kind]], job: Job) -> list[tuple[Candidate, Kind]]:
    """Return exchanges in every cut of a job's network, once each; those that cannot be on two levels as they are.

    Parameters
    ----------
    among : sequence of (Candidate, kind)
        The exchanges; those on two levels are left out.
    job : Job
        The job.
    """
    ways = cuts(job)
    found = []
    for one, kind in among:
        if one.scheme.startswith(PREFIX):
            continue
        for way in ways:
            with suppress(ValueError):
                found.append((way.of(one), kind))
    return found
