"""The time of a step graph on a network, by passes that take so long."""

from simnet.training.parallel.graph import seconds_of
from simnet.training.parallel.placing import PlacedStep


def time_step(graph, network, *, forward, backward, start=0.0, iteration=0, **options):
    return PlacedStep(graph, network, **options).time(seconds_of(graph, forward, backward), start, iteration)
