"""Experiments on a real network inside one machine, with set latency and bandwidth: times are predicted, then measured.

`namespaces.shaped_star` makes it, out of network namespaces and a switch in user space; `links.predict` says what a
schedule takes on it: what `simnet.network.Network` says, with the settings of its links and a transport stack;
`experiment.experiment` measures both. It takes Linux, root and a C compiler; `namespaces.unavailable` says what is
missing. `libraries` predicts measurements of others on such links.
"""
