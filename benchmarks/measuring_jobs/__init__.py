"""The parts of `benchmarks/measured_jobs.py`: scenarios, ranks, and what comes of their logs."""
