"""Rows of measurements: which curves they are, which systems they tell apart, and which of them are chosen."""

import numpy as np
import pytest

from simnet.base.errors import InputError
from simnet.cost_models.calibration import Curve, Setting
from simnet.cost_models.calibration.curves import chosen_rows, curves_of, differing_columns, split_systems
from simnet.cost_models.calibration.readers.tables import measurement_table


def rows(*given, **shared):
    """Return a table of rows, each of 8 bytes in a microsecond unless it says otherwise."""
    usual = {"collective": "all_reduce", "ranks": 4, "nbytes": 8, "seconds": 1e-6, "size_convention": "vector"}
    return measurement_table([usual | shared | one for one in given])


def test_rows_of_one_setting_are_a_curve_of_medians_and_curves_come_in_order():
    found = curves_of(
        rows(
            {"nbytes": 64, "seconds": 5.0}, {"seconds": 1.0}, {"seconds": 9.0}, {"seconds": 2.0},
            {"ranks": 16, "nodes": 2, "network_cards": 2}, {"ranks": 16, "nodes": 2, "network_cards": 3, "nbytes": 2},
            {"ranks": 16, "nodes": 4}, {"ranks": 8}, {"algorithm": "ring"}, {"algorithm": "ring", "protocol": "LL"},
            {"collective": "all_gather", "size_convention": "per_rank"},
        )
    )  # fmt: skip
    assert [(one.setting, one.sizes.tolist(), one.cards) for one in found] == [
        (Setting("all_gather", 4), [32], 0),
        (Setting("all_reduce", 4), [8, 64], 0),
        (Setting("all_reduce", 4, 0, "ring"), [8], 0),
        (Setting("all_reduce", 4, 0, "ring", "LL"), [8], 0),
        (Setting("all_reduce", 8), [8], 0),
        (Setting("all_reduce", 16, 2), [2, 8], 3),
        (Setting("all_reduce", 16, 4), [8], 0),
    ]
    assert found[1].seconds.tolist() == [2, 5]


def test_a_curve_has_at_least_two_ranks_and_a_byte_and_its_cards_may_not_be_known():
    found = curves_of(
        rows(
            {"ranks": 2, "nbytes": 1}, {"ranks": 1}, {"ranks": 0}, {"ranks": None, "nbytes": 32}, {"nbytes": 0},
            {"ranks": 0, "nbytes": 0},
        ).drop(columns="network_cards")
    )  # fmt: skip
    assert [(one.setting.ranks, one.sizes.tolist(), one.cards) for one in found] == [(2, [1], 0)]
    assert Curve(Setting("all_reduce", 4), np.ones(1), np.ones(1)).cards == 0


class TestSystems:
    def test_are_one_where_nothing_differs(self):
        one = rows({}, {"nbytes": 16, "ranks": 8, "algorithm": "ring"}, variant="a", in_place=False)
        assert split_systems(one)[""] is one
        assert differing_columns(one) == {}

    def test_are_told_by_what_differs_and_that_is_named_where_it_is_said(self):
        both = rows(
            {"variant": "b", "dtype": "float"}, {"variant": "a", "dtype": "float"}, {"variant": "b", "nbytes": 16},
            {"variant": None}, {"variant": "b", "dtype": "float", "nbytes": 32}, tool="nccl-tests",
        )  # fmt: skip
        found = split_systems(both)
        assert {name: part["nbytes"].tolist() for name, part in found.items()} == {
            "variant=b, dtype=float": [8, 32], "variant=a, dtype=float": [8], "variant=b": [16], "": [8],
        }  # fmt: skip
        assert list(found)[:2] == ["variant=b, dtype=float", "variant=a, dtype=float"]
        assert differing_columns(both) == {"variant": ["", "a", "b"], "dtype": ["", "float"]}


class TestChosen:
    def test_are_rows_of_one_side_or_of_the_only_one(self):
        both = rows({"in_place": True}, {"in_place": False, "nbytes": 16}, {"in_place": None, "nbytes": 32})
        assert chosen_rows(both, {})["nbytes"].tolist() == [16, 32]
        assert chosen_rows(both, {}, in_place=True)["nbytes"].tolist() == [8]
        assert chosen_rows(both[:1], {})["nbytes"].tolist() == [8]
        assert chosen_rows(both[1:], {}, in_place=True)["nbytes"].tolist() == [16, 32]

    def test_have_every_value_that_is_asked_for(self):
        given = rows({"variant": "a"}, {"variant": "a", "ranks": 8}, {"variant": "b", "ranks": 8}, {"ranks": 16})
        assert len(chosen_rows(given, {"variant": "a", "ranks": "8"})) == 1
        assert chosen_rows(given, {"variant": ""})["ranks"].tolist() == [16]
        with pytest.raises(InputError, match=r"--where: no row has ranks = '16'; Allowed: 4, 8"):
            chosen_rows(given, {"variant": "a", "ranks": "16"})
        with pytest.raises(InputError, match="did you mean 'variant'"):
            chosen_rows(given, {"varian": "a"})
