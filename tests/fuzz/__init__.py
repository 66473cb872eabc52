"""Files mutated below their checksums, and what reads them: each is read or refused, in little time and memory.

``PYTHONPATH=tests python -m fuzz --help`` has the command; `make nightly` runs it, `tests/test_fuzz.py` a part of it.
"""
