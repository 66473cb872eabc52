"""The simulated job: iterations of compute, select, exchange and update on P workers (synchronous SGD)."""
