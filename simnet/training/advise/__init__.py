"""An adviser of a job that runs: it learns from what iterations take which exchange is the fastest, and says why.

`Estimator` learns the latency and bandwidth of links, and by which factors exchanges and kernels depart from their
closed forms and from the device profile. `Adviser` decides on what it has learnt. `Advised` is its policy in simulated
jobs, and `simnet.cluster.hooks.Hook.advised` drives the same in real ones.
"""
