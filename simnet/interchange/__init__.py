"""Files of other tools: readers and writers of schedules and topologies.

Each format is one module: `goal` (LogGOPSim), `chakra` (execution traces of ASTRA-sim), `msccl` (algorithms of MSCCL),
`messages_csv` (a table of messages), `simgrid` (platforms and profiles), `nccl` (topology dumps), `networkx_graphs`
(node-link JSON, GraphML and GML), `calibrated_network` (the network of a calibration). `kinds` recognises the format by
the content. Files come from strangers: sizes are checked before parsing, and errors name file, place and reason.
"""
