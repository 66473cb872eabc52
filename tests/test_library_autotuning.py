"""What Open MPI takes by itself: its tables, what is counted for their algorithms, and platforms that name it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validating.platforms import HOST, platform

from simnet.cost_models.calibration import Setting
from simnet.cost_models.calibration.specification import OPEN_MPI, autotuned_algorithm, specified_times
from simnet.cost_models.calibration.step_model import count_schedule, count_steps, counted_algorithms

# Times [us] of the library's own choice, and by named algorithms, on Leonardo and MareNostrum 5, one rank on a node,
# Open MPI 4.1.6 and 4.1.5 (PICO, github.com/HLC-Lab/pico at 413bc5d, MIT), by collective, ranks, and total size.
MEASURED = {
    ("all_gather", 32, 65536): (59.8, {"neighbor": 60.2, "recursive_doubling": 30.3, "ring": 84.1}),
    ("all_gather", 32, 4194304): (873.3, {"neighbor": 354.3, "recursive_doubling": 233.5, "ring": 876.8}),
    ("all_gather", 512, 131072): (53.7, {"neighbor": 489.5, "recursive_doubling": 53.9, "ring": 872.7}),
    ("all_gather", 512, 1048576): (1039.4, {"neighbor": 1041.2, "recursive_doubling": 139.9, "ring": 1277.6}),
    ("all_gather", 200, 67108864): (7604.3, {"neighbor": 5868.7, "ring": 7627.8}),
    ("all_reduce", 512, 2048): (30.3, {"rabenseifner": 38.4, "recursive_doubling": 30.4, "ring": 1418.6}),
    ("all_reduce", 512, 16384): (51.1, {"rabenseifner": 51.3, "recursive_doubling": 71.2, "ring": 1433.8}),
    ("all_reduce", 200, 67108864): (60578.3, {"rabenseifner": 60539.3, "ring": 32171.1}),
    ("all_reduce", 32, 256): (29.8, {"rabenseifner": 29.6, "recursive_doubling": 22.3, "ring": 111.3}),
    ("reduce_scatter", 60, 1048576): (444.9, {"recursive_halving": 1406.4, "ring": 444.9}),
    ("reduce_scatter", 64, 2048): (19.3, {"recursive_halving": 20.1, "ring": 99.5}),
}
CLUSTER = platform("leonardo-booster", **HOST | {"library": "openmpi"})
SIZES = 2.0 ** np.arange(2, 31)


@pytest.mark.parametrize("where", MEASURED, ids=str)
def test_what_is_taken_is_as_fast_as_the_library_autotuning_was_measured(where):
    own, named = MEASURED[where]
    assert named[autotuned_algorithm(*where)] == pytest.approx(own, rel=0.05)


@given(
    collective=st.sampled_from(sorted(OPEN_MPI)), ranks=st.integers(2, 5000), exponent=st.floats(0, 33, allow_nan=False)
)
@settings(max_examples=200, deadline=None)
def test_one_algorithm_is_counted_for_each_choice_and_it_suits_the_ranks(collective, ranks, exponent):
    name = autotuned_algorithm(collective, ranks, 2.0**exponent)
    assert counted_algorithms(collective, name) == (name,)
    assert not (name == "neighbor" and ranks % 2)
    assert not (collective == "all_gather" and name == "recursive_doubling" and ranks & (ranks - 1))


def test_what_has_no_table_is_not_guessed():
    assert (
        autotuned_algorithm("alltoall", 64, 1e6)
        == autotuned_algorithm("sendrecv", 2, 8.0)
        == autotuned_algorithm("all_gather", 1, 8.0)
        == ""
    )


@pytest.mark.parametrize("ranks", [2, 4, 6, 64, 200])
def test_neighbours_exchange_the_bytes_of_a_ring_in_half_of_its_rounds(ranks):
    ring, found = (count_schedule("all_gather", name, ranks, ranks) for name in ("ring", "neighbor"))
    assert found.outer == ranks / 2
    assert found.outer_bytes == pytest.approx(ring.outer_bytes)


def test_every_second_exchange_of_neighbours_stays_on_a_node():
    found = count_schedule("all_gather", "neighbor", 16, 4)
    assert (found.inner, found.outer) == (4, 4)
    assert count_schedule("all_gather", "neighbor", 15, 15) == count_schedule("all_gather", "ring", 15, 15)


def test_a_reduction_and_a_broadcast_follow_one_another():
    found = count_schedule("all_reduce", "nonoverlapping", 64, 64)
    parts = [count_schedule(name, "binomial", 64, 64) for name in ("reduce", "broadcast")]
    assert found.outer == sum(one.outer for one in parts) == 12
    assert found.reduced == parts[0].reduced > 0


@pytest.mark.parametrize("collective", sorted(OPEN_MPI))
@pytest.mark.parametrize("ranks", [4, 32, 200, 512])
def test_a_platform_of_open_mpi_takes_the_algorithm_of_its_table_at_each_size(collective, ranks):
    found = specified_times(CLUSTER, Setting(collective, ranks, ranks), SIZES)
    for size, seconds in zip(SIZES, found, strict=True):
        pinned = Setting(collective, ranks, ranks, autotuned_algorithm(collective, ranks, size))
        assert len(count_steps(pinned, nccl=False)) == 1
        assert seconds == specified_times(CLUSTER, pinned, [size])[0]


def test_an_algorithm_that_is_named_is_taken_at_its_word():
    plain, named = (platform("leonardo-booster", **HOST | {"library": name}) for name in ("mpi", "openmpi"))
    asked = Setting("all_gather", 512, 512, "ring_ompi")
    assert (specified_times(plain, asked, SIZES) == specified_times(named, asked, SIZES)).all()
