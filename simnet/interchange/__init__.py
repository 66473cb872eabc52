"""Files of other tools: readers and writers of schedules and topologies.

Each format is one module: `goal` (LogGOPSim), `chakra` (execution traces of ASTRA-sim), `msccl` (algorithms of MSCCL),
`messages_csv` (a table of messages), `simgrid` (platforms and profiles), `nccl` (topology dumps), `networkx_graphs`
(node-link JSON, GraphML and GML), `calibrated_network` (the network of a calibration). `kinds` recognises the format by
the content. Files come from strangers: sizes are checked before parsing, and a refusal names the file, the place and
the reason.
"""

from simnet.interchange.calibrated_network import read_fabric_network
from simnet.interchange.chakra import write_chakra
from simnet.interchange.goal import read_goal, write_goal
from simnet.interchange.kinds import NetworkRead, kind_of, read_network, read_schedule
from simnet.interchange.messages_csv import read_messages, write_messages
from simnet.interchange.networkx_graphs import read_nodelink
from simnet.interchange.simgrid import read_platform
from simnet.interchange.simgrid_profiles import read_link_profile
from simnet.interchange.simgrid_writing import write_platform

__all__ = [
    "NetworkRead",
    "kind_of",
    "read_fabric_network",
    "read_goal",
    "read_link_profile",
    "read_messages",
    "read_network",
    "read_nodelink",
    "read_platform",
    "read_schedule",
    "write_chakra",
    "write_goal",
    "write_messages",
    "write_platform",
]
