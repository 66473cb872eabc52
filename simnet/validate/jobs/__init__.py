"""Predicted and measured iterations of training jobs that use DDP hooks of simnet on a shaped network.

`python -m simnet.validate.jobs FOLDER` measures computing and the kernels of this machine, writes a scenario and its
prediction for every one of `SETTINGS`, and then runs the jobs. `compared` puts logs of a job beside the prediction of a
scenario: what ``simnet validate`` shows of a job.
"""
