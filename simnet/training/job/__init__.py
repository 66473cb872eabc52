"""The simulated job: P workers compute, select, exchange and update in each iteration (synchronous SGD)."""
