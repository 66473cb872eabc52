"""Choosing offline: which exchange is fastest on a network, by how much, and what would change that.

=========== ==========================================================================================================
point       the job and the links
choices     what there is to choose from, with closed forms
clocks      what a choice takes: by closed forms, by a calibrated fabric, or simulated
decision    the ranking, its margin, what would flip it, and the regret if the network is misjudged
asking      what is asked: from flags, a scenario, a calibrated fabric
maps        where the decision flips, over two quantities
shares      how often each choice occurs, over a map, a table or the moments of a scenario
showing     a decision for people and for programs
policy      a table by latency and bandwidth, to be looked up while a job runs
policy_file the file of that table
tuner       dense decisions by message size, for NCCL
=========== ==========================================================================================================
"""

from simnet.studies.choosing.choices import Choice, choices
from simnet.studies.choosing.clocks import Clock, Took, by_closed_form, by_fabric, by_simulation
from simnet.studies.choosing.decision import Decision, decide, fastest
from simnet.studies.choosing.point import Point

__all__ = [
    "Choice",
    "Clock",
    "Decision",
    "Point",
    "Took",
    "by_closed_form",
    "by_fabric",
    "by_simulation",
    "choices",
    "decide",
    "fastest",
]
