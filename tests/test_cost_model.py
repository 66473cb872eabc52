"""Prediction intervals of errors by hand, and what a cost model says of where it extrapolates."""

import math

import pytest

from hand_made import MPI, flat, power, predictor, reduce, stepped
from simnet.base.errors import InputError
from simnet.cost_models.calibration import CalibratedCostModel
from simnet.cost_models.calibration.cost_model import specified_cost_model
from simnet.cost_models.calibration.platform import load_platform


class TestCostModel:
    WIDTHS = ((0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8))

    def model(self, *known, **options):
        factors = {"sizes": 1.0, "ranks": 2.0, "beyond": 3.0, "collectives": 4.0}
        bounds = {basis: [(f * a, f * b) for a, b in self.WIDTHS] for basis, f in factors.items()}
        return CalibratedCostModel(predictor(*known, **options), bounds, dict.fromkeys(factors, 1), {})

    def bounds(self, found):
        return math.log(found.seconds / found.low), math.log(found.high / found.seconds)

    def test_what_a_prediction_rests_on_and_where_it_extrapolates(self):
        ring = {one: stepped(reduce(one, algorithm="ring"), MPI, 1.0)[0] for one in (4, 16)}
        model = self.model(*ring.values(), steps=MPI)
        alike = "from other numbers of ranks or nodes"
        for ranks, nbytes, basis, why in (
            (4, 1024, "sizes", "from the curve itself"),
            (4, 2.0**30, "sizes", "from the curve itself"),
            (4, 1023, "sizes", "from the curve itself; 1.02 kB, measured: 1.02 kB to 1.07 GB"),
            (8, 2048, "ranks", alike),
            (32, 2048, "beyond", f"{alike}; 32 ranks, measured: 4 to 16"),
            (2, 5e9, "beyond", f"{alike}; 2 ranks, measured: 4 to 16; 5 GB, measured: 1.02 kB to 1.07 GB"),
        ):
            found = model.predict("all_reduce", ranks, nbytes)
            assert (found.kind, found.why, found.extrapolates) == (basis, why, ";" in why)
        found = model.predict("all_gather", 8, 2048, algorithm="ring")
        assert (found.kind, found.why) == ("collectives", "from other collectives; all_gather, ring was not measured")
        with pytest.raises(InputError) as refused:
            model.predict("all_reduce", 32, 2048, strict=True)
        assert str(refused.value) == (
            "all_reduce, ring, 32 ranks on 32 nodes, 2048 bytes would be an extrapolation: 32 ranks, measured: 4 to 16"
        )

    def test_intervals_are_those_of_the_basis_and_the_size_and_widen_beyond(self):
        # Curves that grow with the size, of which bandwidth was seen.
        model = self.model(
            power(reduce(4), 1.0, largest=2.0**27), power(reduce(16), 1.0, largest=2.0**27), inside="interpolation",
        )  # fmt: skip
        for nbytes, at in ((2.0**11, 0), (2.0**16, 1), (2.0**20, 2), (2.0**26, 3)):
            for ranks, factor in ((4, 1), (8, 2), (32, 3), (64, 3 * math.sqrt(2))):
                found = self.bounds(model.predict("all_reduce", ranks, nbytes))
                assert found == pytest.approx([factor * one for one in self.WIDTHS[at]])
        for doublings in (1, 3):
            found = self.bounds(model.predict("all_reduce", 4, 2.0 ** (27 + doublings)))
            assert found == pytest.approx([math.sqrt(1 + doublings) * one for one in self.WIDTHS[3]])
            found = self.bounds(model.predict("all_reduce", 4, 2.0 ** (10 - doublings)))
            assert found == pytest.approx([math.sqrt(1 + doublings) * one for one in self.WIDTHS[0]])
        unlike = self.bounds(model.predict("all_reduce", 8, 2.0**11, nodes=1))
        assert unlike == pytest.approx([3 * one for one in self.WIDTHS[0]])

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({"ranks": 0}, "ranks: must be a whole number from 1 to 10,000,000, got 0"),
            ({"ranks": 10_000_001}, "ranks: must be a whole number from 1 to 10,000,000, got 10000001"),
            ({"nodes": 0}, "nodes: must be a whole number from 1 to 4, the ranks, got 0"),
            ({"nodes": 5}, "nodes: must be a whole number from 1 to 4, the ranks, got 5"),
            ({"nbytes": math.inf}, "nbytes: must be a finite number of bytes > 0, got inf"),
            ({"collective": "al_reduce"}, "collective: nothing is known of 'al_reduce'; did you mean 'all_reduce'?"),
        ],
    )
    def test_what_cannot_be_asked(self, asked, message):
        model = self.model(flat(reduce(4), 1e-5))
        with pytest.raises(InputError) as refused:
            model.predict(**{"collective": "all_reduce", "ranks": 4, "nbytes": 1e4} | asked)
        assert str(refused.value).startswith(message)

    def test_what_was_pinned_differently_must_be_named(self):
        model = self.model(flat(reduce(4, 4, "ring"), 1e-5), flat(reduce(4, 4, "tree"), 1e-4))
        with pytest.raises(InputError, match="several were measured of all_reduce: ring, tree; name one"):
            model.predict("all_reduce", 4, 1e4)
        assert model.predict("all_reduce", 4, 1e4, algorithm="tree").seconds == pytest.approx(1e-4)
        assert model.fastest("all_reduce", "tree", 4, 1e4).seconds == pytest.approx(1e-4)
        assert model.fastest("all_reduce", "recursive_doubling", 4, 1e4).seconds == pytest.approx(1e-5)
        both = self.model(flat(reduce(4, 4, "ring"), 1e-5), flat(reduce(4), 1e-4))
        assert both.predict("all_reduce", 4, 1e4).seconds == pytest.approx(1e-4)

    def test_a_collective_that_was_not_measured_goes_by_its_own_algorithm_where_others_do(self):
        def why(*known, algorithm="ring"):
            return self.model(*known, steps=MPI).fastest("all_gather", algorithm, 4, 2048.0).why

        own = "from other collectives; all_gather, ring was not measured"
        any_ = "from other collectives; all_gather was not measured"
        named, plain = flat(reduce(4, 4, "ring"), 1e-5), flat(reduce(8, 8), 1e-5)
        assert why(named) == why(plain, named) == why(named, plain) == own
        assert why(plain) == why(named, algorithm="unheard") == any_


class TestSpecified:
    def test_all_sizes_have_the_intervals_of_the_specification(self):
        platform = load_platform("dgx-h100")
        model = specified_cost_model(platform, 0.8)
        assert (model.held_out, model.scores, model.coverage) == (
            {"sizes": 0, "ranks": 0, "beyond": 0, "collectives": 4085}, {}, 0.8,
        )  # fmt: skip
        assert (list(model.sources), model.system) == (list(platform.sources), platform.description)
        assert specified_cost_model(platform).coverage == 0.9
        assert len({tuple(one) for one in model.intervals.values()}) == 1
        for nbytes, at in ((1e-3, 0), (1e5, 1), (1e7, 2), (1e15, 3)):
            found = model.predict("all_reduce", 16, nbytes)
            widths = math.log(found.seconds / found.low), math.log(found.high / found.seconds)
            assert widths == pytest.approx(model.intervals["sizes"][at])
            assert (found.kind, found.extrapolates) == ("specified", True)
            why = "; on two nodes the mean of ring and tree, which sends less over a card"
            assert found.why == f"from the specification of {platform.name} alone; nothing was measured{why}"
