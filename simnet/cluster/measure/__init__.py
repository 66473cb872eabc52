"""Measurement of a cluster for `simnet calibrate`: collectives, timed for several sizes and groups of ranks.

`plan` chooses the curves, `communicators` join ranks over torch.distributed or MPI, `running` times calls at all ranks
in step, `facts` describe the machines, `session` is one rank's whole measurement and can start ranks on this machine,
`benchmarks` runs nccl-tests and OSU. Every rank runs ``python -m simnet.cluster.measure``, which is
``simnet measure``: under ``torchrun``, ``srun`` or ``mpirun``. See ``docs/calibration.md``.
"""
