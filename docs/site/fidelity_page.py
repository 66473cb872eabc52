"""The page on schemes as papers and released code have them, made of shipped tables."""

from __future__ import annotations

from collections.abc import Iterator

from cells import cell
from simnet.base.file_io import read_shipped_rows

HEAD = """# How faithful each scheme is

Every scheme follows its paper. Where the code that its authors released differs, two options ask for that code:
`compat=released` for its numbers, known bugs included, and `wire=released` for its messages. `simnet show SCHEME` has
the rows of one scheme.
"""

SECTIONS = {
    "released_runs": """## Released runs

*outputs*: compared with outputs of the released code, iteration by iteration with residuals fed back: support, values,
residuals, thresholds, and every message. `tests/golden` holds a part of them. *rules*: compared with independent
implementations of the rules, closed forms and brute force.

Bit for bit means float32 in the order of summation of the released code. Exceptions:

- Sums of an MPI or NCCL all-reduce are added in the order of the ranks.
- Random numbers of DGC, MSTopk, QSGD, random-k, SAGE and ARC-Top-K come from simnet's own streams.
- DeMo, CCLoco, SparseLoCo, Templar and MuLoCo agree in indices, codes and bytes; values to 1e-5 of the largest.
- 1-bit and 0/1 Adam agree to 2e-6 and in all signs; EF21 and ARC-Top-K with EF21 to 1e-6.
- With three or more teams of SparDL all workers get the result of team 0.
- Kernels of qgZ, LoCo and SDP4Bit were not run; recorded are the released host code and quantisers on a CPU.
""",
    "scheme_work": """## Work around messages

What a worker computes before its first message, between messages, and after the last one. The device profile says how
long that takes; sums inside a dense all-reduce cost nothing.
""",
    "lost_mass": """## What a scheme loses

With error feedback, gradients plus residuals before equal P times the update plus residuals after, at every index.
These schemes break that; their statistic `lost` says by how much.
""",
}


def page() -> str:
    """Return the page: a section for each table."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    for name, text in SECTIONS.items():
        rows = read_shipped_rows(f"data/{name}.csv")
        yield f"{text}\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}"
        yield from (f"| {' | '.join(map(cell, row.values()))} |" for row in rows)
        yield ""
