"""What is said of calibrations: held-out errors, steps, networks, jitter, remarks on logs, and what is refused."""

import json
import math
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

from hand_made import NCCL, flat, predictor, reduce
from simnet.base.errors import InputError
from simnet.calibration import Curve, measured, summary
from simnet.calibration.cards import OWN, Cards
from simnet.calibration.cost_model import CalibratedCostModel
from simnet.calibration.crossval import HeldOut, ModelChoice, choose
from simnet.calibration.curves import chosen_rows
from simnet.calibration.jitter import FittedJitter
from simnet.calibration.readers import write_tidy
from simnet.calibration.readers.facts import facts_of
from simnet.calibration.step_model import PARAMETERS, StepModel
from simnet.calibration.summary import Calibration, calibrated, errors, problem_lines, quantiles, rows_of
from simnet.calibration.topology_links import FittedLinks, Placement

ONE = reduce(4)


def held(count, error):
    return HeldOut(ONE, 2.0 ** np.arange(count), np.full(count, math.exp(error)), np.ones(count))


def made(steps=None, jitter=None, repetitions=0, basis=(), models=None, cards=None, each=1.0, **changed):
    """Return a calibration of one flat curve of which errors of 1, 2 and 4 % were held out."""
    model = predictor(flat(ONE, 1e-5), steps=steps, **({} if cards is None else {"cards": cards, "each": each}))
    told = {name: changed.pop(name) for name in ("stack", "eager") if name in changed}
    cost_model = CalibratedCostModel(model, {}, {}, {}, jitter=jitter, **told)
    off = [held(1, math.log(1 + one)) for one in (0.01, 0.02, 0.04)]
    by_basis = {"sizes": off, "ranks": off[:1], "beyond": [], "collectives": []} | dict(basis)
    by_model = {"line": off, "adjacent": []} if models is None else models
    chosen = ModelChoice("line", "scaled", "blended", "steps", False, {}, by_model, by_basis)
    given = {"rows": 7, "problems": (), "mixed": {}} | changed
    return Calibration(cost_model, chosen, repetitions=repetitions, **given)


def test_errors_are_those_that_were_held_out():
    assert quantiles(np.array([1.0, 5.0, 2.0])) == {"count": 3, "median": 2, "p90": pytest.approx(4.4), "worst": 5}
    assert errors([]) is None
    said = made().sentences()
    assert said == [
        "7 rows, 1 curves", "", f"{'sizes left out':<20}{'median':>9}{'p90':>9}{'worst':>9}",
        f"{'line':<20}    2.0 %    3.6 %    4.0 %", f"{'ranks left out':<20}    1.0 %    1.0 %    1.0 %",
    ]  # fmt: skip


def test_steps_are_shown_with_their_errors():
    values = NCCL.values
    steps = StepModel(True, values, (0.1,) * (len(values) - 1) + (9.0,))
    one = made(steps)
    assert one.figures()["steps"] == dict(zip(PARAMETERS, values, strict=True))
    assert made().figures()["steps"] is None
    at = one.sentences().index("parameters of a step:")
    first, *_, last = one.sentences()[at + 1 : at + 1 + len(values)]
    factor = math.exp(1.645 * 0.1)
    name, what = next(iter(PARAMETERS.items()))
    assert first == f"  {name:<24}{values[0]:>10.3g}  within a factor of {factor:.2f} ({what})"
    assert "not determined by these data" in last


def test_jitter_is_told_with_what_it_is_fitted_to():
    one = made(jitter=FittedJitter(1.234e-5, 0.567, 1200, 34000))
    assert one._jitter_said() == (
        "each message has an extra latency, median 12.3 us, sigma 0.57, by 34,000 repetitions of 1,200 settings; "
        "network.jitter: calibrated draws it"
    )
    assert made(repetitions=49)._jitter_said().startswith("not known: 49 repetitions of single calls")
    assert made(repetitions=50)._jitter_said().startswith("none: repetitions do not scatter")


def test_rows_of_several_systems_are_warned_of():
    said = made(mixed={"tool": ["a", "b"]}, problems=("x.log:1: is cut",)).sentences()
    assert said[1:4] == [
        "1 remark on the logs:", "  x.log:1: is cut",
        "warning: rows of 2 values of tool were put together; --where tool=a takes one of them",
    ]  # fmt: skip


def test_networks_have_the_jitter_of_repetitions_and_the_stack_that_is_told_or_given():
    where = {"collective": "broadcast", "link_latency": "0.001"}
    plain = calibrated(["shaped_gloo"], where, {}, False, None, 0.8)
    assert (plain.repetitions, plain.cost_model.jitter, plain.links) == (0, None, None)
    assert plain.cost_model.system == "collective=broadcast, link_latency=0.001"
    assert (plain.cost_model.stack, plain.told, plain.cost_model.coverage) == ("gloo", "gloo", 0.8)
    star = calibrated(["shaped_gloo"], where, {}, False, Placement("star", 1), 0.9, stack="mpich")
    assert star.rows == plain.rows == star.repetitions
    assert star.cost_model.network == star.links.parameters
    assert (star.cost_model.stack, star.told, star.cost_model.topology) == ("mpich", "gloo", "star")
    said = star.sentences()
    assert said[-1] == "warning: the logs are of gloo, and simulations take mpich, by --stack"
    assert "stack: mpich" in said
    assert any(one.startswith("network: star, hosts ") for one in said)


STEPS = StepModel(True, NCCL.values, (0.1,) * len(NCCL.values))
NO_CARDS = {
    "rows": 7, "curves": 1, "problems": [], "mixed": {}, "model": "line", "across_ranks": "scaled",
    "held_out_sizes": {"line": {"count": 3, "median": 0.02, "p90": 0.036, "worst": 0.04}},
    "held_out_ranks": {"count": 1, "median": 0.01, "p90": 0.01, "worst": 0.01}, "held_out_collectives": None,
    "steps": None, "cards_of_a_node": [{"number": None, "chance": 1.0}], "network": None, "stack": None,
    "stack_told_by_logs": None, "eager": False, "jitter": None, "repetitions": 0,
}  # fmt: skip


def rounded(figures):
    """Return figures with numbers of ten digits."""
    return json.loads(json.dumps(figures), parse_float=lambda text: float(f"{float(text):.10g}"))


def test_figures_of_a_plain_calibration():
    assert rounded(made().figures()) == NO_CARDS


def test_figures_of_all_that_may_be_known():
    one = made(
        STEPS, FittedJitter(1e-5, 0.5, 12, 340), 340, basis={"beyond": [held(2, math.log(1.03))], "collectives": []},
        cards=(Cards(2.0, 0.6), Cards(OWN, 0.4)), stack="gloo", eager=True, told="mpich", problems=("a.log: is cut",),
        mixed={"tool": ("a", "b")}, links=FittedLinks({"star": {"hosts": 4, "latency": 1e-5}}, ()),
    )  # fmt: skip
    assert rounded(one.figures()) == NO_CARDS | {
        "problems": ["a.log: is cut"], "mixed": {"tool": ["a", "b"]},
        "held_out_ranks": {"count": 3, "median": 0.03, "p90": 0.03, "worst": 0.03},
        "steps": dict(zip(PARAMETERS, NCCL.values, strict=True)),
        "cards_of_a_node": [{"number": 2.0, "chance": 0.6}, {"number": None, "chance": 0.4}],
        "network": {"star": {"hosts": 4, "latency": 1e-5}}, "stack": "gloo", "stack_told_by_logs": "mpich",
        "eager": True, "jitter": {"median": 1e-5, "sigma": 0.5, "settings": 12, "repetitions": 340}, "repetitions": 340,
    }  # fmt: skip


@pytest.mark.parametrize(("median", "shown"), [(1.23499995e-5, "12.3"), (1.23500005e-5, "12.4"), (3e-9, "0.003")])
def test_extra_latencies_are_told_in_microseconds(median, shown):
    said = made(jitter=FittedJitter(median, 0.5, 1, 1))._jitter_said()
    assert said.startswith(f"each message has an extra latency, median {shown} us, sigma 0.50, by 1 rep")


def test_why_jitter_is_not_known_is_told():
    assert made(repetitions=49)._jitter_said() == (
        "not known: 49 repetitions of single calls are in the logs, 50 are needed, and means over calls do not tell it"
    )
    assert made(repetitions=1234)._jitter_said() == (
        "none: repetitions do not scatter, or rather in proportion to the time of each call than as messages do that "
        "are late each for itself"
    )


def test_models_together_are_marked_and_ranks_and_collectives_have_lines_of_their_own():
    basis = {"ranks": [], "beyond": [held(1, math.log(1.5))], "collectives": [held(1, math.log(2.0))]}
    said = made(models={"line": [], "mixture": [held(1, math.log(0.5))]}, basis=basis).sentences()
    assert said == [
        "7 rows, 1 curves", "", f"{'sizes left out':<20}{'median':>9}{'p90':>9}{'worst':>9}",
        f"{'mixture':<20}   50.0 %   50.0 %   50.0 %  <- chosen",
        f"{'outermost ranks':<20}   50.0 %   50.0 %   50.0 %", f"{'collectives':<20}  100.0 %  100.0 %  100.0 %",
    ]  # fmt: skip
    nothing = made(models={"line": []}, basis={"ranks": []}, rows=12345).sentences()
    assert nothing == ["12,345 rows, 1 curves"]


def test_cards_are_told_below_the_steps():
    said = made(STEPS, cards=(Cards(2.0, 0.6), Cards(OWN, 0.4)), each=4.0).sentences()
    assert said[-len(PARAMETERS) - 3 : -len(PARAMETERS) - 1] == ["", "parameters of a step:"]
    assert said[-1].startswith("network cards of a node: 2 (60 %) or one for each rank (40 %)")
    assert said[-1].endswith("1 rank on each of several nodes would")
    assert said[-2].startswith("  switch_byte_factor")


class TestNetworks:
    FOUND = FittedLinks({"star": {"hosts": 4, "latency": 1.2345e-5}}, ())

    def said(self, **changed):
        return made(**{"models": {}, "basis": {"ranks": []}, "links": self.FOUND} | changed).sentences()[1:]

    def test_are_told_with_stack_and_jitter(self):
        jitter = f"jitter: {made()._jitter_said()}"
        unknown = "stack: not known, so that simulations take ideal; --stack names that of the library"
        assert self.said() == ["", "network: star, hosts 4, latency 1.23e-05", unknown, jitter]
        assert self.said(stack="gloo", told="gloo") == [
            "", "network: star, hosts 4, latency 1.23e-05", "stack: gloo", jitter,
        ]  # fmt: skip
        eager = self.said(stack="openmpi", eager=True, told="openmpi")
        assert eager[2] == "stack: openmpi, its eager limit raised above every message"

    def test_warn_of_what_data_do_not_determine(self):
        found = self.said(links=FittedLinks({"star": {"hosts": 4}}, ("outer_latency", "gamma")))
        assert found[:3] == [
            "", "network: star, hosts 4",
            "warning: these data do not determine outer_latency, gamma; typical values stand in the network",
        ]  # fmt: skip

    def test_of_none_there_is_no_line_but_of_a_stack_that_is_not_that_of_the_logs(self):
        assert self.said(links=None) == self.said(links=None, stack="gloo") == []
        assert self.said(links=None, stack="gloo", told="mpich") == [
            "warning: the logs are of mpich, and simulations take gloo, by --stack"
        ]


def test_twenty_remarks_are_listed_and_how_many_more_there_are():
    assert problem_lines([]) == []
    assert problem_lines(["a"]) == ["1 remark on the logs:", "  a"]
    assert problem_lines(["a"] * 20) == ["20 remarks on the logs:", *["  a"] * 20]
    assert problem_lines(["a"] * 1021) == [
        "1,021 remarks on the logs:", *["  a"] * 20, "  and 1,001 more, which --json lists",
    ]  # fmt: skip


class TestRows:
    def test_are_those_of_shipped_measurements_or_of_a_file_of_any_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        rows, problems = rows_of("shaped_gloo", {})
        assert (len(rows), problems) == (300, ())
        write_tidy(rows.head(4), tmp_path / "mine")
        write_tidy(rows.head(3), tmp_path / "shaped_gloo")
        assert len(rows_of("mine", {})[0]) == 4
        assert len(rows_of("shaped_gloo", {})[0]) == 300
        assert len(rows_of("./shaped_gloo", {})[0]) == 3

    @pytest.mark.parametrize("name", ["x" * 61, "x" * 300])
    def test_of_a_name_that_is_no_file_s_there_are_none(self, name):
        with pytest.raises(InputError) as refused:
            rows_of(name, {})
        told = f"there is no such file, and no shipped measurements '{'x' * 60}'; Allowed: "
        assert str(refused.value).startswith(told)

    @pytest.mark.parametrize("name", ["none.csv", "./none"])
    def test_of_a_path_that_is_no_file_s_there_are_none(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match=rf"{name.removeprefix('./')}: there is no such file"):
            rows_of(name, {})

    def test_have_facts_where_they_say_nothing(self, tmp_path):
        rows = measured.load("shaped_gloo").rows.head(4).drop(columns=["ranks", "nodes"])
        write_tidy(rows, tmp_path / "mine.csv")
        (problem,) = rows_of(str(tmp_path / "mine.csv"), {})[1]
        assert "4 rows from here on have no number of ranks" in problem
        for facts in ({"ranks": 6}, facts_of(["ranks=6"]), facts_of(["mine.csv:ranks=6"])):
            assert set(rows_of(str(tmp_path / "mine.csv"), facts)[0]["ranks"]) == {6}

    def test_that_have_no_place_on_a_curve_are_told_by_log_from_their_first_line_on(self):
        rows = pd.DataFrame({
            "ranks": pd.array([None, 4, None, 4, 4, 4, None], dtype="Int64"),
            "nbytes": [8.0, 0.0, 0.0, 8.0, None, 0.0, 8.0],
            "source": ["b.log", "b.log", "b.log", "b.log", "a.log", "b.log", "a.log"],
            "line": pd.array([9, 5, 7, 1, None, 3, None], dtype="Int64"),
        })  # fmt: skip
        unknown = "no number of ranks; --fact ranks=16 says it, --fact 'NAME:ranks=16' of this log alone"
        assert [str(one) for one in summary._without_place(rows)] == [
            f"b.log:7: 2 rows from here on have {unknown} (left out)",
            f"a.log: 1 rows from here on have {unknown} (left out)",
            "b.log:3: 2 rows from here on have 0 bytes (left out)",
            "a.log: 1 rows from here on have 0 bytes (left out)",
        ]
        many = pd.DataFrame({"ranks": [None] * 1234, "nbytes": 8.0, "source": "a", "line": 1})
        assert "1,234 rows" in str(summary._without_place(many)[0])


class TestWhatIsFitted:
    @pytest.fixture
    def until_fitted(self, monkeypatch):
        """Have a calibration end where models would be chosen."""
        monkeypatch.setattr(summary, "choose", lambda curves: (_ for _ in ()).throw(InputError("is fitted")))

    @pytest.mark.parametrize(
        ("count", "sizes", "said"),
        [
            (1000, 100, "is fitted"),
            (1001, 1, "1,001 curves are there; at most 1,000 are fitted at once, --where takes some"),
            (10, 10_000, "is fitted"),
            (1, 10_001, "10,001 sizes of one curve, 10,001 of all; at most 10,000 of a curve and 100,000 of all are "
             "fitted"),
        ],
    )  # fmt: skip
    def test_is_so_much_and_no_more(self, monkeypatch, until_fitted, count, sizes, said):
        monkeypatch.setattr(summary, "curves_of", lambda rows: [Curve(ONE, *np.ones((2, sizes)))] * count)
        with pytest.raises(InputError) as refused:
            calibrated(["published_plateaus"], {}, {}, False, None, 0.9)
        assert str(refused.value) == said

    def test_has_ranks_and_bytes(self, tmp_path, until_fitted):
        rows = measured.load("shaped_gloo").rows.head(4).drop(columns=["ranks", "nodes"])
        write_tidy(rows, tmp_path / "mine.csv")
        log = str(tmp_path / "mine.csv")
        with pytest.raises(InputError) as refused:
            calibrated([log], {}, {}, False, None, 0.9)
        assert str(refused.value) == (
            "no row has a size above 0 and a number of ranks; --fact ranks=16 says what the logs do not"
        )
        for facts in ({"ranks": 16}, facts_of(["mine.csv:ranks=16"])):
            with pytest.raises(InputError, match=r"^is fitted$"):
                calibrated([log], {}, facts, False, None, 0.9)
        with pytest.raises(InputError, match=r"'other\.csv:ranks=16' fits the name of no log"):
            calibrated([log], {}, facts_of(["ranks=16", "other.csv:ranks=16"]), False, None, 0.9)

    WHERE = MappingProxyType({"collective": "broadcast", "link_latency": "0.001", "nbytes": "1024"})

    @pytest.fixture
    def quickly(self, monkeypatch):
        """Have models of curves chosen alone."""
        monkeypatch.setattr(summary, "choose", lambda curves: choose(curves, plain=False, wide=False))

    def test_is_eager_where_logs_say_so_and_no_stack_is_given(self, quickly):
        for stack, eager in ((None, True), ("openmpi", False)):
            found = calibrated(["shaped_openmpi"], self.WHERE, {}, False, None, 0.9, stack=stack)
            assert (found.cost_model.stack, found.told, found.cost_model.eager) == ("openmpi", "openmpi", eager)

    def test_is_of_all_logs_that_are_given(self, quickly):
        found = calibrated(["shaped_openmpi", "shaped_gloo"], self.WHERE, {}, False, None, 0.9)
        each = [chosen_rows(measured.load(name).rows, self.WHERE) for name in ("shaped_openmpi", "shaped_gloo")]
        assert found.rows == sum(map(len, each))
        assert (found.told, found.cost_model.stack, found.cost_model.eager) == ("", "", False)
        assert found.mixed["tool"] == ["gloo", "openmpi"]
        assert found.cost_model.sources == ["shaped_openmpi", "shaped_gloo"]
