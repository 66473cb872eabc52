"""Evaluation of simnet's accuracy: predictions compared with measurements and with published results.

`simnet.validate.published` holds the numbers of the AR-Topk paper (Tables II and VI, Figs. 5 and 8) beside simnet's
own, `simnet.cost_models.calibration.readers` reads what benchmarks of collectives print, and
`simnet.cost_models.calibration.measured` has measurements to start from.
"""

if __name__ != "simnet.validate":  # by the link at the top of a checkout
    raise ImportError("validate has one name: import simnet.validate")
