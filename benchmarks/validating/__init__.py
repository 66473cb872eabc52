"""The parts of `benchmarks/validation.py`: what is run, the page, and its figures."""
