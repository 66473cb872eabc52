"""Experiments on a real network inside one machine, with set latency and bandwidth: times are predicted, then measured.

`namespaces.shaped_star` builds the network from network namespaces and a switch in user space; `links.predict` predicts
the time of a schedule on it by `simnet.network.Network`, with the settings of its links and a transport stack;
`experiment.experiment` predicts and measures. This needs Linux, root and a C compiler; `namespaces.unavailable` says
what is missing. `libraries` predicts measurements of others on such links.
"""
