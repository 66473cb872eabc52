"""Choice of the fastest exchange for a job: rankings, sensitivity to inputs, grids over two inputs, policy tables."""
