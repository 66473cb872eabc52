"""Published gains: intervals and their signs, what exchanges take by bytes, and that none of the sheet is left out."""

import json
import math
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import did
from simnet.validate.published import read_published
from simnet.validate.reproduction import MISSING, REPRODUCTIONS, gains, gains_sharded, page
from simnet.validate.reproduction.table import Interval, Row, golden

ENDS = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted)


@given(ENDS, ENDS)
def test_what_lies_inside_an_interval_passes_and_nothing_else_does(ours, published):
    row = Row("a", Interval(*published), Interval(*ours, ours[0]), "x", 0.0)
    assert row.passes == (ours[0] - 1e-8 <= published[0] and published[1] <= ours[1] + 1e-8)
    assert row.fails != row.passes
    assert row._replace(beyond=True).fails == row.passes
    if published[1] > ours[1]:
        assert row.error == pytest.approx(published[1] / ours[1] - 1)
    elif not row.passes:
        assert row.error == pytest.approx(published[0] / ours[0] - 1)


@given(ENDS, st.floats(0.1, 10))
def test_a_sign_is_right_where_all_of_the_interval_has_it(ours, published):
    found = Interval(*ours).sign(Interval(published, published), 1.0)
    side = [math.copysign(1, one - 1) for one in (*ours, published)]
    if published == 1:
        assert found == "none"
    elif 1 not in ours:
        assert found == ("open" if side[0] != side[1] else "right" if side[0] == side[2] else "wrong")


def test_intervals_are_told_with_their_sign():
    cells = page.row_cells(Row("a", Interval(2.0, 2.2), Interval(0.9, 3.0, 1.5), "x", 0.0))
    assert cells == ("a", "2 to 2.2", "1.5 (0.9 to 3), sign open", "x", "0", "inside", "pass")
    cells = page.row_cells(Row("a", Interval(60.0, 60.0), Interval(70.0, 80.0, 75.0), "%", 0.0, beyond=True))
    assert cells == ("a", "60", "75 (70 to 80), sign right", "%", "-14.3 %", "inside", "contradicts")


def test_no_gain_of_the_sheet_is_left_out(shared):
    text = (shared / "papers" / "sharded.md").read_text()
    table = text.partition("## 9. Published figures")[2].partition("## 10.")[0]
    schemes = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(schemes) == 11
    published = read_published("gains.csv")
    for scheme in schemes:
        assert scheme in set(published["scheme"]) | {one.paper for one in MISSING}, scheme
    # Figures stand in the sheet as they stand here, those of posts apart.
    listed = set(re.findall(r"\d+(?:\.\d+)?", table))
    for row in published.query(
        "scheme in ['SDP4Bit', 'LoCo', 'OmniReduce', 'THC', 'ARC-Top-K', '0/1 Adam']"
    ).itertuples():
        for figure in (row.least, row.most):
            assert {f"{figure:g}", f"{figure:.2f}", f"{100 * (figure - 1):.0f}"} & listed, row


def test_every_published_gain_has_a_row():
    gained = [one for name, one in REPRODUCTIONS.items() if name.startswith("gain-")]
    published = read_published("gains.csv")
    assert {one.paper for one in gained} == set(published["scheme"])
    frozen = pd.read_csv(golden("reproductions") / "values.csv")["name"].value_counts()
    for one in gained:
        rows = len(published.query("scheme == @one.paper"))
        # Of three sizes of SDP4Bit nothing was published, and one gain of ZeRO++ in words.
        assert frozen[one.name] == rows + {"gain-sdp4bit": 3, "gain-zero-pp": 1}.get(one.name, 0)


# What is simulated, by its bytes


def test_steps_of_zero_one_adam_are_counted_as_by_hand():
    # Dense at 1, 2, then by twos, 8 of each interval; silent steps of two after five local ones.
    found = gains._step_kinds(40, var_freeze_step=20, var_update_scaler=8, local_step_scaler=5, local_step_clipper=2)
    interval, count, dense = 1, 0, 0
    for step in range(1, 22):
        if step % interval == 0:
            dense, count = dense + 1, count + 1
            if count == 8:
                interval, count = 2 * interval, 0
    silent = sum(step % 2 for step in range(22 + 5, 41))
    assert found == gains.AdamSteps(dense, 40 - dense - silent, silent)


def test_exchanges_of_megatron_take_what_a_link_carries():
    entries, ring, rate = 6_658_404_352, 31 / 32, 100e9 / 8
    dense, coded = (gains_sharded._sdp_seconds("gpt-32x4096", one, 100.0, 0.0) for one in (False, True))
    assert dense == pytest.approx((4 + 2) * entries * ring / rate, rel=1e-3)
    scales = 4 / 2048 + 4 / 128
    assert coded == pytest.approx((0.5 + 0.5 + scales) * entries * ring / rate, rel=2e-3)


def test_blocks_gain_no_more_than_bytes_say():
    # Workers that aggregate carry both directions twice; slots wait for each other in each turn.
    most = 2 / (0.1 + 1 - 0.9**8)
    assert 0.6 * most < gains.blocks_gain(1.25e8, 0.0, 0.1) <= most


def test_settings_stand_on_the_page():
    text = page.stated("gains")
    assert all(f"| {one} | " in text for one in read_published("stated.csv").query("page == 'gains'")["run"])


@pytest.mark.slow
def test_both_readings_of_a_gain_of_zero_pp_have_a_verdict():
    (one,) = json.loads(did("reproduce", "gain-zero-pp", "--json", "-q").stdout)["reproductions"]
    found = {value["what"]: value for value in one["values"]}
    case = "400 Gbit/s a node, {} tokens a GPU, {}"
    published = {
        ("1,024", "text"): 1.36,
        ("1,024", "caption"): 1.56,
        ("2,048", "text"): 1.29,
        ("2,048", "caption"): 1.41,
    }
    for (tokens, reading), most in published.items():
        value = found[case.format(tokens, reading)]
        assert (value["kind"], value["published_high"]) == ("test", most)
        assert value["contradicts"] == (value["ours_high"] < most)
    assert [found[case.format(*key)]["contradicts"] for key in published] == [False, True, True, True]


def test_the_page_has_a_reason_for_each_gain():
    rows = {"gain-thc": REPRODUCTIONS["gain-thc"].rows()}
    lines = [line for line in page.gain_reasons(rows).splitlines() if line.startswith("| ")][1:]
    told = {line.split(" | ")[0].strip("| "): line for line in lines}
    published = read_published("gains.csv")
    timed = published[~published["what"].str.startswith("bytes ")]
    assert {*told} == {*(timed["scheme"] + ", " + timed["what"])}
    (ours,) = (page.row_cells(row)[2] for row in rows["gain-thc"])
    assert f" | {ours} | " in told["THC, software server"]
    assert " | not run | " in told["LoCo, FSDP"]
