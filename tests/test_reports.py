"""Reports drawn again: the same bytes from what a run left, several runs on one page, and folders that are none."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from commands import NO_PAGE, contents, did, invoke, refused
from scenario_texts import SMALL
from simnet.base.file_io import INCOMPLETE, mark_incomplete


def ran(folder, *more):
    """Run the small scenario with its report, and return the folder."""
    (folder.parent / "small.yaml").write_text(SMALL)
    did("run", folder.parent / "small.yaml", "--out", folder, "-q", "--set", "output.report=true", *more)
    return folder


@pytest.mark.parametrize("more", [(), ("--stack", "tcp"), ("--set", "output.timeline=0")])
def test_a_page_drawn_again_has_the_same_bytes(tmp_path, more):
    folder = ran(tmp_path / "run", *more)
    before = contents(folder)
    (folder / "report.html").unlink()
    for figure in (folder / "figures").iterdir():
        figure.unlink()
    shown, wide = did("show", folder), did("show", folder, "--wide").stdout
    assert str(folder / "report.html") in shown.stderr
    assert contents(folder) == before
    run = "run", tmp_path / "small.yaml", "--out", folder, "-q", "--set", "output.report=true", *more
    assert (shown.stdout, wide) == (did(*run).stdout, did(*run, "--wide").stdout)
    did("show", folder, "--out", tmp_path / "elsewhere")
    drawn = contents(tmp_path / "elsewhere")
    assert drawn == {name: before[name] for name in drawn}
    assert "report.html" in drawn
    assert contents(folder) == before


def test_every_page_has_its_chart_first_a_table_that_fits_and_colours_for_dark_and_light(tmp_path):
    one, other = ran(tmp_path / "one"), ran(tmp_path / "other", "--seed", "5")
    did("show", one, other, "--out", tmp_path / "both")
    for folder in (one, ran(tmp_path / "seeds", "--seeds", "2", "--schemes", "topk,dense"), tmp_path / "both"):
        page = (folder / "report.html").read_text()
        chart = '<section id="charts"' if folder == one else "<figure>"
        assert page.index('class="result"') < page.index(chart) < page.index('<table class="sortable">')
        table = page.partition('<table class="sortable">')[2].partition("</thead>")[0]
        heads = re.findall(r'<th scope="col" class="([^"]*)"', table)
        assert len(heads) <= 7
        assert sum("wide" not in one for one in heads) == 3
        assert not re.search(r">0 B<", page)
        style = page[page.index("/* Colours are pairs") : page.index("</style>")]
        assert "color-scheme: light dark" in style
        assert all(one.startswith("light-dark(") for one in re.findall(r"--\w+: ([^;]*);", style))
        assert "@media (max-width: 40rem) { .wide { display: none; }" in style
        last = "What the runs differ in" if folder == tmp_path / "both" else "simnet run scenario.lock.yaml"
        assert page.index(last) > page.rindex('class="sortable"')


def test_a_run_without_a_report_gets_the_one_that_it_would_have_had(tmp_path):
    with_report = contents(ran(tmp_path / "one"))
    did("run", tmp_path / "small.yaml", "--out", tmp_path / "other", "-q", *NO_PAGE)
    did("show", tmp_path / "other")
    drawn = contents(tmp_path / "other")
    # Whether a report is drawn is a field of the scenario, which the page shows with its hash.
    assert set(drawn) == set(with_report)
    assert all(drawn[name] == with_report[name] for name in drawn if name.startswith("figures/"))


def test_a_page_drawn_again_makes_no_run_complete(tmp_path):
    folder = ran(tmp_path / "run")
    mark_incomplete(folder, "missing: AG")
    before = contents(folder)
    did("show", folder)
    assert contents(folder) == before
    assert before[INCOMPLETE] == b"missing: AG\n"


def test_spans_and_messages_are_those_of_the_timeline(tmp_path):
    folder = ran(tmp_path / "run")
    messages = pd.read_parquet(folder / "messages.parquet")
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    drawn = {
        (event["ts"], *(event["args"][name] for name in ("iteration", "round", "src", "dst", "nbytes_B")))
        for event in events
        if event["ph"] == "b"
    }
    columns = ["start_s", "iteration", "round", "src", "dst", "nbytes_B"]
    told = {(round(1e9 * start) / 1000, *rest) for start, *rest in messages[columns].itertuples(index=False)}
    assert told == drawn


def test_runs_side_by_side_have_all_policies_and_what_differs(tmp_path):
    one, other = ran(tmp_path / "one"), ran(tmp_path / "other", "--seed", "5", "--set", "job.density=0.2")
    said = did("show", one, other, "--out", tmp_path / "both").stdout
    page = (tmp_path / "both" / "report.html").read_text()
    summaries = {name: json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "other")}
    times = {
        f"{name}: {policy}": own["simulated_s"]
        for name, summary in summaries.items()
        for policy, own in summary["policies"].items()
        if policy != summary["bound"]
    }
    assert all(f">{policy}</th>" in page for policy in times)
    assert "oracle</th>" not in page
    assert said.startswith(min(times, key=times.__getitem__))
    rows = [line for line in page.splitlines() if "<th scope" in line and "<td>" in line]
    differing = [row for row in rows if row.startswith(('<tr><th scope="row">seed', '<tr><th scope="row">job.'))]
    assert differing == [
        '<tr><th scope="row">seed</th><td>0</td><td>5</td></tr>'.replace("<td>0", f"<td>{summaries['one']['seed']}"),
        *(row for row in differing if "job.density" in row),
    ]
    assert len(differing) == 2
    assert "<td>0.2</td>" in differing[1]
    assert "http" not in page.split("<body>")[1].replace("http://www.w3.org", "")


def test_runs_that_differ_in_nothing_say_so(tmp_path):
    one, other = ran(tmp_path / "one"), ran(tmp_path / "other")
    did("show", one, other, "--out", tmp_path / "both")
    page = (tmp_path / "both" / "report.html").read_text()
    assert "Their scenarios, seeds and versions of simnet are the same." in page
    assert '<th scope="col" class="text">field</th>' not in page


def test_runs_that_cannot_be_compared_say_why(tmp_path):
    one, longer = ran(tmp_path / "one"), ran(tmp_path / "longer", "--set", "job.iterations=5")
    assert "as many iterations each" in refused("show", one, longer, "--out", tmp_path / "out")
    assert "a run is named twice" in refused("show", one, one, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def broken(folder, name, change):
    """Change a file of a run, and return the message with which its report is refused."""
    path = folder / name
    before = path.read_bytes()
    path.write_bytes(change(before))
    message = refused("show", folder)
    path.write_bytes(before)
    return message


def test_folders_that_are_no_runs_are_refused(tmp_path):
    folder = ran(tmp_path / "run")
    before = contents(folder)
    assert "nor a file of that name" in refused("show", tmp_path / "nowhere")
    assert "there is no such folder" in refused("show", folder, tmp_path / "nowhere")
    assert "nor a file of that name" in refused("show", tmp_path)
    assert "it is no summary of a run with one seed: KeyError('policies')" in broken(
        folder, "summary.json", lambda text: json.dumps(json.loads(text) | {"x": 1}).replace("policies", "p").encode()
    )
    assert "summary.json" in broken(folder, "summary.json", lambda text: text[:-20])
    assert "summary.json" in broken(folder, "summary.json", lambda text: b"[" * 100_000)
    assert "is not the scenario of which" in broken(folder, "scenario.lock.yaml", lambda text: text + b"\n# changed\n")
    assert "iterations.parquet: cannot be read" in broken(folder, "iterations.parquet", lambda text: text[:100])
    table = pd.read_parquet(folder / "iterations.parquet")
    for changed, message in (
        (table.drop(columns="latency_s"), "has no column latency_s"),
        (table.assign(iteration_s="long"), "column iteration_s should be numbers"),
        (table.assign(choice=1), "column choice should be text"),
        (table.assign(policy="somebody else's"), "has policies of which summary.json does not tell: somebody"),
    ):
        assert message in broken(folder, "iterations.parquet", lambda _, changed=changed: changed.to_parquet())
    assert contents(folder) == before


def test_a_report_of_several_seeds_is_not_taken_for_that_of_one(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    did("run", tmp_path / "small.yaml", "--out", tmp_path / "seeds", "-q", "--seeds", "2")
    assert "no summary of a run with one seed" in refused("show", tmp_path / "seeds")
    assert invoke("show", Path(tmp_path / "seeds" / "seeds" / "0")).exit_code in (0, 2)
