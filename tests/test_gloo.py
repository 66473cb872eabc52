"""Collectives as gloo sends them: who sends to whom, and times beside measured ones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import simnet
from commands import did
from simnet import topologies
from simnet.collectives import allgather_ring, allreduce_ring, broadcast_binomial
from simnet.network import Network
from simnet.network.gloo import LONGEST_SEGMENT, arrange_calls
from simnet.schedule import Round, Schedule
from simnet.validate.jobs.report import read_shipped
from simnet.validate.shapednet.libraries import schedule_of
from simnet.validate.shapednet.links import COLUMNS, Change, of_each

FOLDER = Path(__file__).parents[1] / "benchmarks" / "sharing_links"


def ends(schedule):
    return [list(zip(one.src.tolist(), one.dst.tolist(), strict=True)) for one in schedule.rounds]


@pytest.mark.parametrize(
    ("ranks", "root", "sent"),
    [
        (4, 0, [[(0, 1)], [(0, 2), (1, 3)]]),
        (5, 2, [[(2, 3)], [(2, 4), (3, 0)], [(2, 1)]]),
        (7, 0, [[(0, 1)], [(0, 2), (1, 3)], [(0, 4), (1, 5), (2, 6)]]),
    ],
)
def test_a_broadcast_goes_over_the_lowest_bit_first(ranks, root, sent):
    found = arrange_calls(broadcast_binomial(ranks, 10.0, root), 2)
    assert ends(found) == sent
    assert found.nbytes == 10.0 * (ranks - 1)
    assert [(call.first, call.rounds) for call in found.calls] == [(0, len(sent))]


def test_an_all_reduce_goes_to_the_rank_below_in_segments_and_others_stay():
    work = Schedule(3, [Round([0], [2], 7.0)])
    both = work.concat(allreduce_ring(3, 7.5 * LONGEST_SEGMENT, gamma=1e-9), allgather_ring(3, 5.0))
    found = arrange_calls(both, 2)
    # 2.5 MiB for each of 4 steps: two rounds each, which are halved later.
    assert [len(found.rounds), *[(call.first, call.rounds) for call in found.calls]] == [11, (1, 8), (9, 2)]
    assert ends(found)[1:9] == [[(1, 0), (2, 1), (0, 2)]] * 8
    assert {tuple(one.nbytes.tolist()) for one in found.rounds[1:9]} == {(1.25 * LONGEST_SEGMENT,) * 3}
    assert found.compute() == pytest.approx(both.compute())
    assert [ends(found)[0], *ends(found)[9:]] == [ends(both)[0], *ends(both)[5:]]
    assert arrange_calls(work, 2) is work


def errors(name, keys):
    """Return the relative error of each measured setting."""
    rows = pd.read_csv(FOLDER / name)
    found = []
    for _, part in rows.groupby(keys, sort=False):
        links = Change(0.0, *(of_each(part, column)[0] for column in COLUMNS))
        one = part.iloc[0]
        graph = topologies.star(one["ranks"], 1e-3, 1e6)
        for host, (latency, bandwidth) in enumerate(links.of_hosts(one["ranks"])):
            for link in ((host, "switch"), ("switch", host)):
                graph.edges[link].update(latency=latency / 2, bandwidth=bandwidth)
        sent = schedule_of(one["collective"], one["algorithm"], int(one["ranks"]), float(one["nbytes"]))
        ours = Network(graph, stack="gloo").time(sent, silence=one.get("silence", 0.0)).duration
        found.append((one["run"], one["collective"], one.get("silence", 0.0), ours / part["seconds"].median() - 1))
    return pd.DataFrame(found, columns=["run", "collective", "silence", "error"])


@pytest.mark.parametrize(
    ("collective", "median", "p90"), [("all_reduce", 0.02, 0.07), ("broadcast", 0.02, 0.15), ("all_gather", 0.03, 0.16)]
)
def test_collectives_over_unequal_and_long_links_take_what_was_measured(collective, median, p90):
    found = errors("gloo_collectives.csv", ["run", "collective", "nbytes"])
    off = found["error"][found["collective"] == collective].abs()
    assert off.median() <= median
    assert off.quantile(0.9) <= p90
    assert found["error"][(found["run"] == "long two") & (found["collective"] == "all_reduce")].abs().max() <= 0.02


def test_ranks_that_share_cores_wait_for_the_last_one():
    """R ranks on two cores: messages of the mean rank take (R / 2 - 1) times its local work longer than the least."""
    ranks = read_shipped("settings").set_index("setting")["workers"]
    rows = read_shipped("measured")
    rows = rows.assign(late=rows["messages_s"] - rows["messages_least_s"], local=rows["compute_s"] + rows["select_s"])
    rows = rows[rows["iteration"] >= 2].groupby(["setting", "policy"])[["late", "local"]].median().reset_index()
    found = (rows["late"] / rows["local"]).groupby(rows["setting"].map(ranks)).median()
    assert found.index.tolist() == [2, 3, 4, 5, 6, 8]
    np.testing.assert_allclose(found, found.index / 2 - 1, atol=0.25)


def test_a_job_whose_exchanges_start_slowly_says_so(tmp_path):
    job = ("--schemes", "dense", "--latency", "20 ms", "--bandwidth", "100 Mbit/s", "--set", "output.report=false")
    small = ("--set", "job.parameters=100000", "--set", "job.model=null", "--set", "job.iterations=4")
    for stack, compute, says in (("gloo", "1 s", True), ("gloo", "50 ms", False), ("ideal", "1 s", False)):
        said = did(
            "run", "base", *job, *small, "--stack", stack, "--compute", compute, "--out", tmp_path / compute / stack
        )
        assert ("TCP starts slowly after 1 s without messages" in " ".join(said.stdout.split())) == says


def test_all_reduces_after_silence_take_what_was_measured():
    """As exchanges of local steps: two to eight ranks, silences of 0.7 to 30 s."""
    found = errors("silent_all_reduces.csv", ["run", "nbytes", "silence"])
    off = found["error"][found["silence"] > 0.7].abs()
    assert off.median() <= 0.03
    assert off.quantile(0.9) <= 0.10
    assert np.mean(off <= 0.10) >= 0.85


def test_an_interval_holds_both_orders_in_which_a_broadcast_may_go():
    rows = pd.read_csv(FOLDER / "gloo_collectives.csv").query(
        "collective == 'broadcast' and ranks == 4 and nbytes > 1e5"
    )
    inside = []
    for (nbytes, latency, bandwidth), part in rows.groupby(["nbytes", "link_latency", "link_bandwidth"]):
        links = {"latency": f"{latency} s", "bandwidth": f"{bandwidth} B/s"}
        one = simnet.time("broadcast", workers=4, size=f"{nbytes} B", stack="gloo", **links).to_pandas().iloc[0]
        inside += part.seconds.between(one.low_s, one.high_s).tolist()
        assert part.seconds.max() / part.seconds.min() > 1.4
    assert len(inside) > 20
    assert np.mean(inside) > 0.9
