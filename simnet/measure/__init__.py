"""Measuring a cluster: collectives of its own library timed over sizes and groups of ranks, for `simnet calibrate`.

`plan` says what is measured, `communicators` join ranks over torch.distributed or MPI, `calls` are what is timed,
`spread` says how often and what is said of the times, `running` goes through it at all ranks in step, `facts` are what
is written down of the machines, `session` is all of it at one rank. `local` starts ranks on this machine; `benchmarks`
runs nccl-tests and OSU. PyTorch and mpi4py are imported when ranks are joined.

Every rank of a job runs ``python -m simnet.measure``, which is ``simnet measure``: under ``torchrun``, ``srun`` or
``mpirun``. See ``docs/calibration.md``.
"""
