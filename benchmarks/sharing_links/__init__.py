"""The parts of `benchmarks/shared_links.py`: what measures, and the tables that were measured."""
