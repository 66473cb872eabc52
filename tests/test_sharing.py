"""Shares by round trips: the law, where people choose it, and what was measured of it."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sharing_links import shares

from commands import did, refused
from scenario_texts import SMALL
from simnet import topologies
from simnet.network import MAX_MIN, Network, Sharing
from simnet.network.event_loop.messages import weight_of
from simnet.network.event_loop.records import State
from simnet.network.sharing import EXPONENTS
from simnet.scenario import load
from simnet.schedule import Round, Schedule


def into_one(round_trips, bandwidth=1e6):
    """Return a star whose last host receives: round trips of the others to it; all links are equally fast."""
    graph = topologies.star(len(round_trips) + 1, 0.0, bandwidth)
    for host, round_trip in enumerate(round_trips):
        for link in (*graph.out_edges(host), *graph.in_edges(host)):
            graph.edges[link]["latency"] = round_trip / 2
    return graph


def arrivals(graph, nbytes, sharing, weather=None):
    """Return when messages from all hosts but the last arrive there [s]."""
    count = len(nbytes)
    sends = Schedule(count + 1, [Round(np.arange(count), np.full(count, count), nbytes)])
    return Network(graph, weather, sharing=sharing).time(sends, messages=True).messages.finish


# The law


@pytest.mark.parametrize(
    ("sharing", "first"),
    [
        ("max_min", 1 / 2),
        ({"exponent": 1.0}, 4 / 5),
        ({"exponent": 2.0}, 16 / 17),
        ({"exponent": -1.0}, 1 / 5),
        ({"exponent": 0.0}, 1 / 2),
        ({"congestion": "reno", "exponent": 2.0, "buffer": 0.02}, 4 / 5),
        ({"congestion": "bbr", "exponent": -1.0, "buffer": 0.02}, 1 / 3),
        ({"congestion": "bbr", "exponent": -1.0, "buffer": 0.005}, 1 / 2),
        ({"congestion": "cubic"}, 1 / (1 + 4**-0.4)),
        ({"congestion": "cubic", "buffer": 0.05}, 1 / (1 + 1.5**-1.3)),
    ],
)
def test_two_flows_share_a_link_by_their_round_trips(sharing, first):
    # 10 and 40 ms. The bytes of the first come from 5 ms on, those of the second from 20 ms on; until then the first is
    # alone, and has 15 of its 30 kB. The link is never idle.
    taken = arrivals(into_one([0.01, 0.04]), [30e3, 90e3], sharing)
    assert taken == pytest.approx([0.02 + 15e3 / (first * 1e6), 0.005 + 120e3 / 1e6], rel=1e-12)


def test_an_exponent_of_0_is_max_min_with_a_stack_whose_messages_queue_too():
    graph, queue = into_one([0.01, 0.04]), {"send_completion": "taken", "own_link": "queue"}
    # The first message has come 15 ms after it left, before the second one begins to.
    graph.edges[0, "switch"]["bandwidth"] = 3e6
    sends = Schedule(3, [Round([0, 1], [2, 2], [30e3, 90e3])])

    def told(sharing):
        return Network(graph, stack=queue, sharing=sharing).time(sends, messages=True).messages.finish

    assert told({"exponent": 0.0}) == pytest.approx([0.02 + 15e3 / 0.5e6, 0.125], rel=1e-12)
    assert told("max_min") == pytest.approx([0.035, 0.125], rel=1e-12)


def test_flows_without_latency_share_evenly():
    assert arrivals(into_one([0.0, 0.0]), [1e4, 1e4], {"exponent": 4.0}) == pytest.approx([0.02, 0.02], rel=1e-12)
    assert np.isfinite(arrivals(into_one([0.0, 0.1]), [1e6, 1e6], {"exponent": 4.0})).all()


@pytest.mark.parametrize("congestion", EXPONENTS)
@pytest.mark.parametrize("buffer", [None, 0.0, 0.02])
@pytest.mark.parametrize("exponent", [None, -0.7, 2.0])
def test_the_loop_weighs_as_the_law_says(congestion, buffer, exponent):
    law, latencies = Sharing("rtt", congestion, exponent, buffer), np.array([0.0, 1e-9, 1e-3, 0.01, 0.3, 1e6])
    state = State(weighted=True, exponent=law.power, counted=law.most, queueing=law.wait)
    told = [weight_of(state, latency) for latency in latencies]
    assert told == pytest.approx(law.weights(2 * latencies).tolist(), rel=1e-14, abs=0.0)


# Where people choose it


def law_of(path: str, *overrides: str) -> Sharing:
    return load(path, overrides).build().job.network(0).sharing


@pytest.mark.parametrize(
    ("given", "law"),
    [
        ("max_min", MAX_MIN),
        ("rtt", Sharing()),
        ("{law: rtt, exponent: 0.9}", Sharing(exponent=0.9)),
        ("{congestion: bbr, buffer: 20 ms}", Sharing("rtt", "bbr", None, 0.02)),
        ("{law: max_min}", MAX_MIN),
    ],
)
def test_a_scenario_names_the_law(small: str, given: str, law: Sharing) -> None:
    override = f"network.sharing={given}"
    assert law_of(small, override) == law
    Path("lock.yaml").write_text(load(small, [override]).lock())
    assert law_of("lock.yaml") == law


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rt", "network.sharing: there is no such choice, got 'rt'; did you mean 'rtt'? Allowed: max_min, rtt"),
        ("3", "network.sharing: there is no such choice, got 3; Allowed: max_min, rtt, or a mapping with law"),
        ("{exponent: 9}", "network.sharing.exponent: must be <= 4, got 9"),
        ("{buffer: 5}", "network.sharing.buffer: 5 has no unit"),
        ("{bufer: 5 ms}", "network.sharing.bufer: there is no such field; did you mean 'buffer'?"),
        ("{law: max_min, buffer: 1 ms}", "network.sharing: buffer counts with the law rtt only"),
    ],
)
def test_a_wrong_law_is_refused_with_its_line(small: str, given: str, said: str) -> None:
    Path(small).write_text(SMALL.replace("sharing: max_min", f"sharing: {given}"))
    assert f"small.yaml:6: {said}" in refused("run", small)


def test_a_run_says_how_links_were_shared_unless_it_is_max_min(small: str) -> None:
    plain = did("run", small, "--out", "plain", "--set", "output.report=true", "--wide")
    told = did(
        "run", small, "--out", "rtt", "--set", "output.report=true",
        "--set", "network.sharing={congestion: reno, buffer: 20 ms}", "--wide",
    )  # fmt: skip
    words = "shared by round trips, as reno, exponent 1.95 (measured), buffer 20 ms"
    assert words in " ".join(told.output.split())
    assert words in Path("rtt/report.html").read_text()
    assert json.loads(Path("rtt/summary.json").read_text())["sharing"] == {
        "law": "rtt", "congestion": "reno", "exponent": 1.95, "measured": True, "buffer": "20 ms",
    }  # fmt: skip
    assert "shared by" not in plain.output + Path("plain/report.html").read_text()
    assert "sharing" not in json.loads(Path("plain/summary.json").read_text())


def test_the_time_of_a_collective_says_so_too(small: str) -> None:
    given = ("time", "allreduce_ring", "--workers", 4, "--size", "1 MB", "--network", small, "--wide")
    assert "Sharing: " not in did(*given).output
    assert "Sharing: by round trips, as cubic" in did(*given, "--set", "network.sharing=rtt").output


# What was measured


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("congestion", EXPONENTS)
def test_exponents_are_those_that_fit_what_was_measured(congestion, known):
    found = shares.fitted(congestion, known)
    named = EXPONENTS[congestion].with_buffer if known else EXPONENTS[congestion].without
    assert named == found.exponent
    assert found.low < named < found.high
    # Every exponent is told from max-min, whose exponent is 0.
    assert found.low > 0 or found.high < 0


def test_what_was_measured_filled_the_link_and_the_switch_was_punctual():
    rates, times = shares.measured("shared_rates"), shares.measured("shared_durations")
    used = rates.groupby(["run", "until"])["goodput"].sum() * 1538 / 1448
    part = used / rates.groupby(["run", "until"])["bandwidth"].first()
    assert part.min() > 0.9
    # What comes behind a lost packet is read when that has been sent again, in a later window.
    assert part.max() < 1.05
    assert rates["lateness"].max() < 2e-4
    assert times["lateness"].max() < 5e-4
    assert set(rates[rates["part"] == "fit"]["run"]).isdisjoint(rates[rates["part"] != "fit"]["run"])


PAGE = Path(__file__).parents[1] / "docs" / "topologies.md"


def table(heading: str) -> dict[str, list[str]]:
    """Return the table of the page whose heading ends so: cells by the first cell, as of code."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|") and heading in line) + 2
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    return {name.strip("`"): rest for name, *rest in cells}


def written(error: shares.Error) -> str:
    return f"{error.median:.0%} / {error.p90:.0%}".replace("%", " %")


def test_the_page_has_the_exponents_and_errors_that_were_found():
    found = shares.errors()

    def fit(congestion, known):
        one = shares.fitted(congestion, known)
        return f"{one.exponent:g} ({one.low:g} to {one.high:g})"

    assert table("error of max-min |") == {
        one: [
            fit(one, True), written(found[one]["with_buffer"]), fit(one, False), written(found[one]["without"]),
            written(found[one]["max_min"]),
        ]
        for one in EXPONENTS
    }  # fmt: skip
    said = PAGE.read_text(encoding="utf-8").partition("predicted times is")[2].partition("In ten such")[0]
    short = sorted(one["with_buffer"].median for one in shares.duration_errors().values())
    deep = [shares.errors(deep=True)[one][law].median for law in shares.LAWS[:2] for one in ("reno", "cubic")]
    assert re.findall(r"(\d+)(?= to|\s%)", said) == [f"{100 * one:.0f}" for one in short[::2] + deep]
