"""What a run shows of itself says what happened, reads well at any size, and is inert whatever the names are."""

import base64
import hashlib
import io
import itertools
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.report import figures
from simnet.report.answers import ranking, run_answer, sentence
from simnet.report.html import POINTS, embedded, page_data, report
from simnet.report.run_summary import RunFacts, spread_summary, summarize
from simnet.report.summary import three_digits
from simnet.report.timeline import RecordedTimeline, message_sample, write_timeline

HOSTILE = ["<script>alert(1)</script>", "$\\frac{a$_{", "[red]x[/red]", "_hidden", "a,\"b\"\n'c'", "名前", "x" * 200]


def frame(seconds, choice="AG", bandwidth=1.25e9, latency=0.01, density=0.01):
    """Iterations of the given lengths; choice and network may be lists."""
    seconds = np.asarray(seconds, dtype=float)
    start = np.concatenate([[0.0], np.cumsum(seconds)[:-1]])
    shares = {"compute_s": 0.5, "select_s": 0.1, "communicate_s": 0.3, "wait_s": 0.1}
    return pd.DataFrame(
        {
            "iteration": np.arange(len(seconds)),
            "start_s": start,
            "iteration_s": seconds,
            **{name: share * seconds for name, share in shares.items()},
            "bytes_sent_B": 1e6,
            "choice": choice,
            "density": density,
            "selected": 10.0,
            "latency_s": latency,
            "bandwidth_Bps": bandwidth,
        }
    )


def summary_of(**frames):
    setup = {"scenario": {"name": "demo", "sha256": "ab"}, "seed": 1, "versions": {"simnet": "0"}}
    return summarize(frames, RunFacts(setup=setup))


def joined(frames):
    return pd.concat([one.assign(policy=name) for name, one in frames.items()], ignore_index=True)


def said(**frames):
    """The answer, and what it depends on."""
    found = run_answer(summary_of(**frames))
    return found.answer, found.depends_on


def test_the_answer_says_who_won_by_how_much_and_when_the_choice_changed():
    flexible = frame([1, 1, 1, 1], ["AG", "AG", "ART-Ring", "AG"], bandwidth=[1.25e9, 1.25e9, 1.125e8, 1.25e9])
    assert said(AG=frame([1, 1, 2, 1]), flexible=flexible, slow=frame([3] * 4), oracle=frame([0.9] * 4)) == (
        "flexible: 4.00 s for 4 iterations, 25 % faster than AG (5.00 s).",
        "flexible changes to ART-Ring at 2 s, when bandwidth falls to 900 Mbit/s (the first of 2 changes)",
    )


def test_the_answer_of_a_policy_alone_without_bound_and_of_one_iteration():
    assert said(AG=frame([2])) == ("AG: 2.00 s for 1 iteration.", "")
    assert said(AG=frame([2]), B=frame([4], "ring"))[0] == "AG: 2.00 s for 1 iteration, 2.00x faster than B (4.00 s)."


def test_the_answer_when_only_the_bound_ran():
    told = "(oracle): 3.00 s for 2 iterations; nobody can run it, and nothing was compared with it."
    assert said(oracle=frame([1, 2]))[0] == told


@pytest.mark.parametrize(
    ("changed", "clause"),
    [
        ({"bandwidth": [1e9, 1e9, 2e9]}, ", when bandwidth rises to 16 Gbit/s"),
        ({"bandwidth": [1e9, 1e9, 0.0]}, ", when bandwidth falls to 0 bit/s"),
        ({"latency": [0.01, 0.02, 0.03]}, ", when latency rises to 30 ms"),
        ({"latency": [0.01, 0.02, 0.005], "bandwidth": [1e9, 2e9, 1.5e9]}, ", when latency falls to 5 ms"),
        ({"density": [1.0, 0.5, 0.1]}, ", when density falls to 0.1"),
        ({"bandwidth": [1e9, 5e8, 1.01e9]}, ""),
        ({"bandwidth": math.inf, "latency": math.nan}, ""),
    ],
)
def test_a_switch_is_told_with_what_had_changed_most_since_the_choice_was_made(changed, clause):
    flexible = frame([1, 1, 1], ["AG", "AG", "ring"], **changed)
    assert said(flexible=flexible)[1] == f"flexible changes to ring at 2 s{clause}"


def test_where_a_model_was_trained_who_reaches_the_target_comes_first():
    nan = math.nan
    quick = frame([1, 1, 1]).assign(loss=[nan, 2.0, 1.5], accuracy=[nan, 0.3, 0.4])
    sure = frame([2, 2, 2]).assign(loss=[nan, 1.0, 0.5], accuracy=[nan, 0.5, 0.9])
    late = frame([2, 3, 2]).assign(loss=[nan, 1.0, 0.5], accuracy=[nan, 0.1, 0.9])
    summary = summarize({"quick": quick, "sure": sure, "late": late, "oracle": sure}, RunFacts(target=0.5))
    found = run_answer(summary)
    assert found.answer.startswith(
        "sure reaches 50 % accuracy first: 4 s, 75 % before late (7 s). quick does not reach it. "
        "One seed; --seeds 10 says how sure that is. quick: 3.00 s"
    )
    assert [(row["policy"], row["to_best"]) for row in found.rows] == [
        ("sure", "best"), ("late", "+75 %"), ("quick", "not reached"), ("(oracle)", "+0 %"),
    ]  # fmt: skip
    assert "ignored" not in str(found)
    told = sentence(summarize({"quick": quick, "again": quick, "sure": sure}, RunFacts(target=0.4)))
    assert told.startswith("again and quick are tied as first to reach 40 % accuracy: 3 s, 33 % before sure (4 s). ")
    assert sentence(summarize({"quick": quick}, RunFacts(target=0.99))).startswith("No policy reaches 99 % accuracy. ")


@given(st.lists(st.integers(1, 3), min_size=2, max_size=6))
def test_rows_are_in_order_of_time_and_exactly_the_fastest_are_best(lengths):
    summary = summary_of(**{f"p{index}": frame([length]) for index, length in enumerate(lengths)})
    order = [lengths[int(name[1:])] for name in ranking(summary)]
    assert order == sorted(lengths)
    words = [row["to_best"] for row in run_answer(summary).rows]
    ties = ["best", *["tied"] * (lengths.count(min(lengths)) - 1)]
    assert words[: len(ties)] == ties
    assert not {"best", "tied"} & {*words[len(ties) :]}


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_console_shows_every_policy_and_the_answer_at_any_width(width):
    names = ["flexible", *HOSTILE[:3]]
    summary = summary_of(**{name: frame([1 + index]) for index, name in enumerate(names)}, oracle=frame([1]))
    found = run_answer(summary)
    lines = found.text(width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert "".join(found.answer.split()) in "".join("".join(lines).split())
    wide = found.text(width, wide=True)
    assert all(name in wide for name in [*names, "(oracle)"])
    assert all(three_digits(1 + index) in wide for index in range(len(names)))


def weather_driven(count, policies=4, by_iteration=False):
    """Policies that meet the same network at the same time, or at the same iteration."""
    made = {}
    for number in range(policies):
        rng = np.random.default_rng(number)
        seconds = rng.uniform(0.9, 1.1, count) * (1 + number / 4)
        axis = np.arange(count) if by_iteration else np.cumsum(seconds) - seconds
        choice = np.where((axis // 50) % 2 == 0, "AG", "ART-Ring") if number == 0 else f"c{number}"
        bandwidth = 1e9 / (1 + (axis // 50) % 3)
        name = "oracle" if number == policies - 1 else f"p{number}"
        made[name] = frame(seconds, choice, bandwidth=bandwidth, latency=0.01 + 0.001 * ((axis // 30) % 2))
    return made


@pytest.fixture(scope="module")
def drawn():
    """Iterations and their figures."""
    iterations = joined(weather_driven(60))
    return iterations, figures.render(iterations, "oracle")


def test_figures_are_well_formed_and_undated(drawn):
    _, plots = drawn
    assert [plot.name for plot in plots] == ["iteration_time", "breakdown", "choices"]
    for plot in plots:
        assert plot.png.startswith(b"\x89PNG\r\n")
        assert not re.search(rb"Software|20\d\d-\d\d-\d\d", plot.png)
        assert not re.search(rb"Matplotlib|20\d\d-\d\d-\d\d", plot.svg)
        assert ET.fromstring(plot.svg).tag.endswith("svg")


def test_figures_are_deterministic_and_leave_the_settings_of_matplotlib_alone_and_use_none(drawn, monkeypatch):
    iterations, before = drawn
    monkeypatch.setitem(mpl.rcParams, "font.size", 31.0)
    settings = dict(mpl.rcParams)
    assert figures.render(iterations, "oracle") == before
    assert dict(mpl.rcParams) == settings
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_choice_that_alternates_for_ever_is_bounded_too():
    drawn = figures.choices(joined({"p": frame(np.ones(10_000), ["a", "b"] * 5_000)}))
    assert sum(len(bars.get_paths()) for bars in drawn.axes[0].collections) <= 1_000


def test_the_stretches_of_a_choice_fill_the_run():
    made = weather_driven(300)
    strips = figures.choices(joined(made), "oracle").axes[0]
    boxes = sorted(
        (path.get_extents().x0, path.get_extents().x1) for bars in strips.collections for path in bars.get_paths()
    )
    assert boxes[0][0] == 0
    assert all(left[1] == pytest.approx(right[0]) for left, right in itertools.pairwise(boxes))
    assert len(boxes) == 1 + summary_of(**made)["policies"]["p0"]["switch_count"]


def test_the_axis_is_the_iteration_where_the_network_moves_with_it_and_time_elsewhere():
    by_time, by_iteration = (joined(weather_driven(120, by_iteration=kind)) for kind in (False, True))
    assert figures.iteration_time(by_iteration).axes[-1].get_xlabel() == "iteration"
    assert figures.iteration_time(by_time).axes[-1].get_xlabel().startswith("simulated time [")


def test_hostile_names_are_names():
    made = {name: frame([1.0, 1.0], [name, "b"]) for name in HOSTILE}
    summary = summary_of(**made)
    plots = figures.render(joined(made))
    setting = {"model": HOSTILE[0], "workers": "8", "density": "1 %"}
    page = report(summary, plots, "</code></pre><img src=x onerror=y>", joined(made), setting)
    seen = Page(page)
    # The data, uPlot, what pages share, and what draws the page.
    assert seen.tags.count("script") == 4
    assert "b" not in seen.tags
    (read,) = (json.loads(text) for text in seen.scripts if text.startswith("{"))
    assert [one["name"] for one in read["policies"]] == HOSTILE
    assert seen.tags.count("img") == 3
    for name in HOSTILE:
        assert " ".join(name.split()) in " ".join(seen.text.split())


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text, self.open, self.scripts = [], [], "", [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        else:
            self.text += data


@pytest.mark.parametrize(("count", "most"), [(300, 1.5e6), (10_000, 6e6)])
def test_pages_of_six_policies_stay_small_and_say_what_is_thinned(count, most):
    made = weather_driven(count, policies=6)
    summary = summary_of(**made)
    plots = figures.render(joined(made), "oracle")
    page = report(summary, plots, "workers: 8\n" * 100, joined(made))
    assert len(page.encode()) < most
    (data,) = (json.loads(text) for text in Page(page).scripts if text.startswith("{"))
    assert len(data["policies"]) == 6
    assert (data["stretch"] > 1) == (count > POINTS)
    assert all(len(one["time"]) <= POINTS for one in data["policies"])


def test_the_page_stands_alone_and_says_everything():
    made = weather_driven(120)
    summary = summary_of(**made)
    plots = figures.render(joined(made), "oracle")
    page = report(summary, plots, "workers: 8\n", joined(made))
    seen = Page(page)
    assert not seen.open
    assert not {"link", "iframe", "object", "a", "form"} & set(seen.tags)
    outside = page
    for script in seen.scripts:
        outside = outside.replace(script, "")
    assert not re.search(r"https?://|url\(|@import", outside)
    # Its policy lets the scripts run that are in it, and none else.
    policy = next(value for name, value in seen.attributes if name == "content" and "default-src" in value)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in seen.scripts[1:]]
    assert re.findall(r"script-src ([^;]*)", policy) == [" ".join(f"'sha256-{one}'" for one in digests)]
    assert policy.startswith("default-src 'none';")
    assert all(value.startswith("data:") for name, value in seen.attributes if name in ("src", "href"))
    images = [value.partition(",")[2] for name, value in seen.attributes if name == "src"]
    assert [base64.b64decode(image) for image in images] == [plot.svg for plot in plots]
    assert all(value for name, value in seen.attributes if name == "alt")
    assert not re.search(r"20\d\d-\d\d-\d\d", page)
    expected = [
        sentence(summary),
        "workers: 8",
        "simnet run scenario.lock.yaml",
        "Regret",
        summary["scenario"]["sha256"],
    ]
    expected += [row["to_best"] for row in run_answer(summary).rows] + [plot.explanation for plot in plots]
    for text in expected:
        assert text in seen.text
    # The charts come first, the table has at most seven columns, three of them on a phone, and provenance is last.
    assert page.index('id="charts"') < page.index('<table class="sortable">') < page.index('class="setting"')
    heads = page[page.index('<table class="sortable">') : page.index("</thead>")].split("<th ")[1:]
    assert len(heads) <= 7
    assert sum("wide" not in one.partition(">")[0] for one in heads) == 3
    assert not re.search(r"(?<!\d)0 B", seen.text)
    assert report(summary, plots, "workers: 8\n", joined(made)) == page


@pytest.mark.parametrize("count", [1, 60, POINTS, POINTS + 1, 3 * POINTS + 5])
def test_the_page_draws_every_iteration_or_stretches_of_all(count):
    made = weather_driven(count)
    found = page_data(summary_of(**made), joined(made))
    stretch = found["stretch"]
    assert (stretch == 1) == (count <= POINTS)
    for one, (name, own) in zip(found["policies"], made.items(), strict=True):
        assert one["name"] == name
        assert len(one["time"]) == -(-count // stretch) <= POINTS
        assert all(len(column) == len(one["time"]) for column in one.values() if isinstance(column, list))
        assert one["after"][-1] == pytest.approx(own["iteration_s"].sum())
        parts = [own[at : at + stretch] for at in range(0, count, stretch)]
        assert one["time"] == pytest.approx([part["iteration_s"].mean() for part in parts])
        assert one["start"] == [part["start_s"].iloc[0] for part in parts]
        if stretch > 1:
            assert one["low"] == [part["iteration_s"].min() for part in parts]
            assert one["high"] == [part["iteration_s"].max() for part in parts]
        labels = [found["choices"][choice][0] for choice in one["choice"]]
        counts = [part["choice"].value_counts() for part in parts]
        assert all(one[label] == one.max() for one, label in zip(counts, labels, strict=True))


@given(st.text())
def test_text_in_the_data_can_end_no_script_and_reads_back(text):
    written = embedded({"name": text})
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {"name": text}


def test_no_iteration_has_no_spread():
    assert spread_summary(frame([1.0]).iloc[:0]) is None


@pytest.mark.parametrize("events", [0, 1, 4, 9, 100])
def test_the_page_has_messages_of_whole_iterations_or_says_that_it_has_not(events):
    spans = pd.DataFrame([["a", i, 0, "compute", "select", i + 0.5, i + 1.0] for i in range(3)], columns=SPANS)
    messages = pd.DataFrame(
        [["a", i, 0, "ring", k, (k + 1) % 3, 8.0 * (k + 1), i + 0.25 * k, i + 1.0] for i in range(3) for k in range(3)],
        columns=MESSAGES,
    )
    found = message_sample(RecordedTimeline(spans, messages, two_hops_named), events)
    own = found["policies"]["a"]
    # Three messages, of two events each, and a span.
    fitting = min(events // 7, 3)
    assert [one["whole"] for one in own.values()][:fitting] == [True] * fitting
    assert len(own) == fitting or (fitting == 0 and not any(one["whole"] for one in own.values()))
    for number, one in own.items():
        assert sum(len(one[name]) * cost for name, cost in (("spans", 1), ("messages", 2))) <= max(events, 0)
        for src, dst, nbytes, start, finish, phase in one["messages"]:
            assert (nbytes, dst, phase) == (8.0 * (src + 1), (src + 1) % 3, "ring")
            assert 0 <= start <= finish
            if fitting:
                assert (start, finish) == pytest.approx((0.25 * src, 1.0)), number
            assert [found["links"][link] for link in found["routes"][f"{src},{dst}"]] == [
                [f"host:{src}", "switch"],
                ["switch", f"host:{dst}"],
            ]


def two_hops_named(src, dst):
    return (f"host:{src}->switch", f"switch->host:{dst}")


SPANS = ["policy", "iteration", "worker", "resource", "what", "start_s", "finish_s"]
MESSAGES = ["policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"]


@st.composite
def activity(draw):
    """Spans and messages of two policies: any overlap, any length, including none at all."""
    moment = st.one_of(st.floats(0, 100), st.integers(0, 20).map(lambda n: n / 10))
    length = st.one_of(st.just(0.0), st.floats(0, 5), st.floats(0, 1e-9))
    spans, messages = [], []
    for policy in ("a", "b"):
        for worker, iteration, start, duration in draw(
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), moment, length), max_size=12)
        ):
            spans.append([policy, iteration, worker, "compute", "select", start, start + duration])
        for src, iteration, start, duration in draw(
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), moment, length), max_size=12)
        ):
            messages.append([policy, iteration, 0, "ring", src, (src + 1) % 3, 8.0, start, start + duration])
    return pd.DataFrame(spans, columns=SPANS), pd.DataFrame(messages, columns=MESSAGES)


def two_hops(src, dst):
    return (f"{src} to switch", f"switch to {dst}")


def timeline(spans, messages, **options):
    stream = io.BytesIO()
    count = write_timeline(stream, spans, messages, **options)
    everything = json.loads(stream.getvalue())["traceEvents"]
    events = [event for event in everything if event["ph"] != "M"]
    assert len(events) == count
    names = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in everything if event["name"] == "thread_name"
    }
    return events, names


def ns(microseconds):
    return round(1000 * microseconds)


@given(activity())
def test_timeline_nests_pairs_and_ascends(made):
    spans, messages = made
    events, names = timeline(spans, messages, links=two_hops)
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    tracks, halves = defaultdict(list), defaultdict(list)
    for event in events:
        assert (event["pid"], event["tid"]) in names
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
            assert names[event["pid"], event["tid"]].startswith("rank ")
        else:
            halves[event["cat"], event["id"]].append(event)
            assert names[event["pid"], event["tid"]] == event["name"]
    for track in tracks.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(track))
    for begin, end in halves.values():
        assert (begin["ph"], end["ph"]) == ("b", "e")
        assert begin["ts"] <= end["ts"]
        assert all(begin[key] == end[key] for key in ("name", "pid", "tid"))
    assert len(halves) == 2 * len(messages)
    longer = spans[(spans["finish_s"] - spans["start_s"]) > 3e-9]
    assert sum(len(track) for track in tracks.values()) >= len(longer)


@pytest.mark.parametrize("max_events", [0, 1, 5, 30, 47, 1_000])
def test_timeline_holds_the_first_iterations_that_fit(max_events):
    spans = pd.DataFrame([[p, i, 0, "compute", "select", i, i + 1.0] for p in "xy" for i in range(10)], columns=SPANS)
    messages = pd.DataFrame(
        [[p, i, 0, "ring", 0, 1, 8.0, i + 0.1 * k, i + 0.5] for p in "xy" for i in range(10) for k in range(3)],
        columns=MESSAGES,
    )
    events, _ = timeline(spans, messages, max_events=max_events)
    assert len(events) <= max_events
    begun = sorted(event["id"] for event in events if event["ph"] == "b")
    assert begun == sorted(event["id"] for event in events if event["ph"] == "e")
    # A span and three messages, each of two ends on a link.
    whole = max_events // 2 // (1 + 3 * 2)
    if whole:
        assert len(events) == 2 * 7 * min(whole, 10)
        assert max(ns(event["ts"]) for event in events) <= 1e9 * min(whole, 10)
    elif max_events > 1:
        assert events
        assert max(ns(event["ts"]) for event in events) < 1e9
