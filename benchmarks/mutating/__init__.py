"""The parts of `benchmarks/mutation.py`: mutants, which tests run which lines, trying mutants."""
