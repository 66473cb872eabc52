"""A ring all-reduce in SimGrid's Python package: `ring_simgrid.py {crossbar,fat-tree} RANKS {actors,rounds}`.

``actors``: one actor per rank, which sends to the next, receives from the one before, and waits for both, as one
writes it in S4U. ``rounds``: a single actor starts all messages of a round and waits for all, which spares SimGrid the
changes of context but gives in to lock-step. Both use SimGrid's flow model without its corrections for TCP, so that a
message on an idle route takes its latency plus its bytes by the bandwidth.
"""

from __future__ import annotations

import sys

import simgrid
from programs import BANDWIDTH, LATENCY, NBYTES, report

CONFIGURATION = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/weight-S:0")


def crossbar(root: simgrid.NetZone, ranks: int) -> None:
    """Build a star whose hosts are LATENCY apart."""
    zone = root.add_netzone_star("crossbar")
    for rank in range(ranks):
        host = zone.add_host(f"host-{rank}", 1e9)
        link = zone.add_split_duplex_link(f"link-{rank}", BANDWIDTH)
        link.set_latency(LATENCY / 2).seal()
        zone.add_route(host, None, [simgrid.LinkInRoute(link, simgrid.LinkInRoute.Direction.UP)], True)
    zone.seal()


def fat_tree(root: simgrid.NetZone, ranks: int) -> None:
    """Build the k-ary fat-tree of at least so many hosts, in three levels."""
    k = 2
    while k**3 // 4 < ranks:
        k += 2
    half = k // 2
    zone = root.add_netzone_fatTree(
        "fat-tree", 3, [half, half, k], [1, half, half], [1, 1, 1], BANDWIDTH, LATENCY,
        simgrid.Link.SharingPolicy.SPLITDUPLEX,
    )  # fmt: skip
    zone.set_host_cb(lambda zone, coordinates, number: zone.add_host(f"host-{number}", 1e9))
    zone.seal()


def one_rank(rank: int, ranks: int, piece: int) -> None:
    """Go through all rounds of the ring as rank `rank`."""
    mine, after = simgrid.Mailbox.by_name(f"{rank}"), simgrid.Mailbox.by_name(f"{(rank + 1) % ranks}")
    for _ in range(2 * (ranks - 1)):
        sent = after.put_async(None, piece)
        mine.get()
        sent.wait()


def all_ranks(hosts: list[simgrid.Host], piece: int) -> None:
    """Go through all rounds of the ring, all ranks at once."""
    for _ in range(2 * (len(hosts) - 1)):
        together = [
            simgrid.Comm.sendto_async(host, after, piece)
            for host, after in zip(hosts, hosts[1:] + hosts[:1], strict=True)
        ]
        for message in together:
            message.wait()


def main() -> None:
    """Run the exchange and print what it did, as JSON."""
    shape, ranks, style = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    engine = simgrid.Engine([sys.argv[0], "--log=root.thresh:error"])
    for setting in CONFIGURATION:
        simgrid.Engine.set_config(setting)
    (crossbar if shape == "crossbar" else fat_tree)(engine.netzone_root, ranks)
    engine.netzone_root.seal()
    hosts = [simgrid.Host.by_name(f"host-{rank}") for rank in range(ranks)]
    piece = NBYTES // ranks
    if style == "actors":
        for rank, host in enumerate(hosts):
            host.add_actor(f"rank-{rank}", one_rank, rank, ranks, piece)
    else:
        hosts[0].add_actor("all", all_ranks, hosts, piece)
    engine.run()
    report(ranks, simgrid.Engine.clock)


main()
