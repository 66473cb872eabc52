"""Collective nodes of Chakra execution traces, one file per rank.

The size is ``comm_size``, what the rank puts in; the time is the duration of the node, which holds what the rank
waited for others. A trace does not say how many ranks a group has.

References
----------
mlcommons/chakra, ``schema/protobuf/et_def.proto`` (``CollectiveCommType``) and ``src/converter/pytorch_converter.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from simnet.cost_models.calibration.readers.conventions import collective_name, nccl_convention
from simnet.cost_models.calibration.readers.jobs import finish_trace
from simnet.cost_models.calibration.readers.tables import MAX_WHOLE, RowCollector, format_reader
from simnet.interchange.chakra import read_nodes

_PER_RANK = ("all_gather", "gather")
_ATTRIBUTE = b"\x12"
_RANK = re.compile(r"\.(\d{1,8})\.et(?:\.gz)?$")


def is_chakra(head: bytes) -> bool:
    r"""Return whether a file begins as a Chakra trace: with metadata whose first field is a version, as 1.0.0.

    Examples
    --------
    >>> is_chakra(b"\x07\n\x051.0.0\x10"), is_chakra(b"# a log")
    (True, False)
    """
    begins = re.match(rb"([\x80-\xff]{0,4}[\x00-\x7f])\n([\x05-\x0e])", head)
    if begins is None:
        return False
    said = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(begins[1]))
    start, length = begins.end(), ord(begins[2])
    version = re.fullmatch(rb"\d{1,4}\.\d{1,4}\.\d{1,4}", head[start : start + length])
    # The metadata ends with the version, or goes on with an attribute.
    return version is not None and (
        said == 2 + length or (said > 2 + length and head[start + length : start + length + 1] == _ATTRIBUTE)
    )


@format_reader("chakra")
def read_chakra_collectives(path: Path, out: RowCollector) -> Mapping[str, bool]:
    """Read the collectives of a Chakra execution trace."""
    rank = _RANK.search(path.name)
    for one in read_nodes(path):
        if one.kind != "collective":
            continue
        name = collective_name(one.collective)
        where = f"node {one.number}"
        if name is None:
            out.report(None, f"{where}: {one.collective or one.name!r} is no collective that is read")
            continue
        nbytes = 0 if one.nbytes == -1 else one.nbytes
        if nbytes < 0:
            out.report(None, f"{where}: its size is {nbytes} bytes")
            continue
        row = {
            "collective": name,
            "nbytes": min(nbytes, MAX_WHOLE),
            "size_convention": "per_rank" if name in _PER_RANK else nccl_convention(name),
            "seconds": one.micros * 1e-6,
            "group": one.group,
            "rank": int(rank[1]) if rank else None,
            "statistic": "rank",
            "tool": "chakra",
        }
        out.add(row, None, where=where)
    return finish_trace(out)
