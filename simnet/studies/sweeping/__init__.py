"""Parameter sweeps: a scenario is run for all combinations of values of some of its fields.

A cell is the scenario with one value of each parameter; all its policies run, and their results are one small file.
Cells are independent, so they run in any order, on any number of processors or machines, and a cell whose file exists
is not run again.

=====================  ==================================================================================
cells/ID.json          what came of a cell; ID is a hash of all that it depends on
sweep.csv              a row per cell and policy: parameters, time, bytes, breakdown, who won
sweep.parquet          the same
sweep.json             the same, with the parameters, seed, versions and hash of the scenario
scenario.lock.yaml     the scenario without the parameters, every default and override written out
figures/sweep.*        of one or two numeric parameters: times of the policies, or who wins where
figures/sweep-target.* where a model is trained: the same of the time to the target accuracy
=====================  ==================================================================================

`grid` reads parameters and lists the cells, `cell` runs one and makes one table of all, `work` knows which are still to
run, runs them here, on Dask or on Slurm, and keeps their files, `answer` says who wins where.
"""
