"""The verbs of the command line as functions, for notebooks and programs; `simnet` itself has them all.

They take the words of the commands, as ``set``, ``seed``, ``latency="10 ms"``; they print nothing, write nothing but
where they are told to, and start no process unless `jobs` says so. Each returns an object with `to_pandas()`, `plot()`,
a short repr and, in a notebook, the table of the console. What the user can mend is a `SimnetError`.
"""
