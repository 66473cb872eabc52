"""`simnet.sparsifier_models.conformance.check` finds what it says it finds: schemes broken on purpose."""

import numpy as np
import pytest

from simnet.collectives import allreduce_ring
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models import Exchange, Sparsifier
from simnet.sparsifier_models.conformance import check
from simnet.sparsifier_models.selection import take_mean


class Rotating(Sparsifier):
    """The same k neighbouring entries at every worker, another stretch in each iteration."""

    name, paper = "rotating", "an example"

    def _communicate(self, corrected, gradients):
        P, n, k = self.workers, self.parameters, self.k
        update, sent = take_mean(corrected, (self.iteration * k + np.arange(k)) % n)
        schedule = allreduce_ring(P, k * self.wire.value_bytes)
        return self.broken(Exchange(update, schedule, np.full(P, k), (DeviceOp("gather", k),), k, sent), corrected)

    def broken(self, exchange, corrected):
        return exchange


def changed(**fields):
    def broken(self, exchange, corrected):
        for name, value in fields.items():
            setattr(exchange, name, value(self, exchange) if callable(value) else value)
        return exchange

    return broken


def loses(self, exchange, corrected):
    corrected[0, -1] = 0
    return exchange


def remembers(self, exchange, corrected):
    self.hidden = getattr(self, "hidden", 0) + 1
    exchange.schedule = exchange.schedule.scaled(self.hidden)
    return exchange


def draws(self, exchange, corrected):
    exchange.schedule = exchange.schedule.scaled(np.random.default_rng().random())
    return exchange


def counts(self, exchange, corrected):
    self.iteration = 7
    return exchange


BROKEN = {
    "loses mass": (loses, "is neither applied nor kept at index 9"),
    "has a state that it does not save": (remembers, "a scheme that took over the saved state sends other messages"),
    "draws without a seed": (draws, "a second scheme made alike sends other messages"),
    "moves its iteration": (counts, "the iteration is 8 after it"),
    "returns nothing": (lambda self, exchange, corrected: None, "exchange 0 ends with TypeError: .* returned None"),
    "update of float64": (changed(update=lambda self, one: one.update.astype(float)), "the update is float64"),
    "short update": (changed(update=lambda self, one: one.update[1:]), r"the update is float32 of shape \(9,\)"),
    "update that is not finite": (
        changed(update=lambda self, one: one.update * np.float32(np.nan)), "overflows float32 at index 0, where",
    ),
    "selected as a list": (changed(selected=[1, 1, 1]), "ends with AttributeError|selected is of type list"),
    "selects too much": (changed(selected=np.array([1, 5, 1])), "a worker selected 5 entries, more than 3"),
    "union too small": (changed(union=1), "the union of 1 is not between"),
    "sent of one worker": (changed(sent=np.ones(1)), "ends with|sent is"),
    "messages of other ranks": (changed(schedule=Schedule(5)), "ends with|the schedule is of 5 ranks"),
    "kernels of other workers": (changed(kernels=(DeviceOp("scan", np.ones(7)),)), "ends with|goes through"),
    "kernels after the end": (changed(kernels=(DeviceOp("scan", 3, before=5),)), "scan runs before round 5 of 4"),
    "statistics that are not finite": (changed(stats={"mine": np.nan}), "statistic mine is not finite"),
}  # fmt: skip


def batches(workers=3, parameters=10):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((workers, parameters)).astype(np.float32) for _ in range(3)]


def test_a_sound_scheme_passes():
    assert len(check(lambda: Rotating(3, 10, 0.3), batches())) == 3


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_broken_is_named(how):
    broken, said = BROKEN[how]
    scheme = type("Broken", (Rotating,), {"broken": broken})
    with pytest.raises(AssertionError, match=said):
        check(lambda: scheme(3, 10, 0.3), batches())


def test_kernels_may_follow_the_last_message():
    late = type("Late", (Rotating,), {"broken": changed(kernels=(DeviceOp("scan", 3, before=4),))})
    check(lambda: late(3, 10, 0.3), batches())


def test_one_worker_sends_nothing():
    alone = type("Alone", (Rotating,), {"broken": changed(schedule=Schedule(1, [Round([], [], [])]))})
    check(lambda: alone(1, 10, 0.3), batches(1))


def test_changing_what_was_given_is_found():
    class Greedy(Rotating):
        def _communicate(self, corrected, gradients):
            gradients[0, 0] = 1
            return super()._communicate(corrected, gradients)

    with pytest.raises(AssertionError, match="the gradients given were changed"):
        check(lambda: Greedy(3, 10, 0.3), batches())


@pytest.mark.parametrize("imbalance", [0.5, 3.5])
def test_an_imbalance_is_within_1_and_p(imbalance):
    class Uneven(Rotating):
        def _statistics(self, *arguments):
            return super()._statistics(*arguments) | {"imbalance": imbalance}

    with pytest.raises(AssertionError, match=f"the imbalance {imbalance} is not between 1 and P"):
        check(lambda: Uneven(3, 10, 0.3), batches())


def test_a_threshold_that_is_searched_for_must_be_told():
    class Silent(Rotating, searches_threshold=True):
        pass

    with pytest.raises(AssertionError, match="threshold"):
        check(lambda: Silent(3, 10, 0.3), batches())
