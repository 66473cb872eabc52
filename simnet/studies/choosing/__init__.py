"""Choice of the fastest exchange for a job: rankings, leads, sensitivity, grids and policy tables."""
