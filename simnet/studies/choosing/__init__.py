"""Choosing offline: which exchange is fastest on a network, by how much, and what would change that.

=============== ======================================================================================================
operating_point the job and the links
choices         what there is to choose from, with closed forms
rehearsals      what exchanges send that follow the gradients, found by doing them on a sample
cost_models     what an exchange costs: by closed forms, on a calibrated cluster, or simulated
decision        the ranking, its margin, what would flip it, and the regret if the network is misjudged
chances         how likely each of some times is the shortest, and their expected regret, by errors that were learnt
likely          the same for exchanges, at a point and over a job
inputs          the question: from flags, a scenario, a calibrated cluster
whole_job       what the job of a scenario takes with each exchange, simulated over all of it
job_output      that decision as sentences, a table and figures for programs
maps            where the decision flips, over two quantities
shares          how often each choice occurs, over a map, a table or the moments of a scenario
output          a decision as sentences, a table and figures for programs
policy          a table by latency and bandwidth, to be looked up while a job runs
fabric_policy   the same of a calibrated cluster, by workers, density and parameters
policy_file     the file of these tables
tuner           dense decisions by message size, for NCCL
fabric_tuner    the same from a calibrated cluster
=============== ======================================================================================================
"""

from simnet.studies.choosing.choices import Choice, choices
from simnet.studies.choosing.cost_models import CostModel, Estimate, by_closed_form, by_fabric, by_simulation
from simnet.studies.choosing.decision import Decision, decide, fastest
from simnet.studies.choosing.operating_point import OperatingPoint

__all__ = [
    "Choice",
    "CostModel",
    "Decision",
    "Estimate",
    "OperatingPoint",
    "by_closed_form",
    "by_fabric",
    "by_simulation",
    "choices",
    "decide",
    "fastest",
]
