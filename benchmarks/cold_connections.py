"""Measure how long a transfer takes on a TCP connection that was silent.

    python benchmarks/cold_connections.py --out cold_connections.csv

Takes root, as `simnet.validate.shapednet` does, and twenty minutes, best before all else (``chrt -f 10``). Linux
shrinks the window of a silent connection (``tcp_slow_start_after_idle``, on by default), so that the next transfer
starts slowly.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pandas as pd
from sharing_links.contention import Bottleneck, durations_after_silence

from simnet.validate.shapednet.namespaces import shaped_star

SILENCES = (0.0, 0.0, 1.0, 4.0, 10.0)
"""Silences before a transfer [s], in order; the first is left out."""


def main() -> None:
    """Measure all settings and write a row for each transfer."""
    parser = argparse.ArgumentParser(description="How long a transfer takes on a connection that was silent.")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = []
    settings = itertools.product(("reno", "cubic"), (2.5e6, 12.5e6), (0.02, 0.08, 0.2), (1 << 16, 1 << 20, 1 << 22))
    with shaped_star(2, 0.0, 125e6) as net:
        for congestion, bandwidth, round_trip, nbytes in settings:
            # The receiver's link holds two products of rate and round trip.
            buffer = round(2 * bandwidth * round_trip) + (1 << 16)
            link = Bottleneck(congestion, bandwidth, buffer, (round_trip,))
            taken = durations_after_silence(net, link, nbytes, SILENCES)
            for silence, seconds in zip(SILENCES[1:], taken[1:].tolist(), strict=True):
                rows.append((congestion, bandwidth, round_trip, nbytes, silence, round(seconds, 4)))
            print(rows[-4:], flush=True)
    columns = ["congestion", "bandwidth", "round_trip", "nbytes", "silence", "seconds"]
    pd.DataFrame(rows, columns=columns).to_csv(out, index=False)


if __name__ == "__main__":
    main()
