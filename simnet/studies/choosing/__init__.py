"""Choice of the fastest exchange for a job: rankings, margins, sensitivity, grids and policy tables."""
