"""The simulated job: iterations of compute, select, exchange, update on P workers in step.

Each iteration every worker computes its gradient, selects what to send, takes part in the exchange, and waits for the
slowest (synchronous SGD). The gradients and the sparsifier are real; computing and selecting take modelled time; the
exchange is timed on the network as its weather is at that moment, alone or beside co-located jobs. A worker may fail:
then the job ends, or the others resume without it.
"""
