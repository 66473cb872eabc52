"""What networks say of random jobs, alone and together, as numbers: frozen in ``golden/outputs``."""

from exchanges import checksum
from simnet.base.errors import StalledError
from test_against_reference import Case

SEEDS = range(80)
"""Of the cases, every second with a transport stack."""


def timed(seed):
    """Return what a network says of the jobs of a random case, by field: a number for each job."""
    case = Case(seed, stacked=bool(seed % 2))
    alone = [case.time(case.network(), job) for job in case.jobs]
    together, chains = case.company()
    fields = {f"{seed}: chains": [_number(one) for one in chains]}
    for how, timings in (("alone", alone), ("together", together)):
        for timing in timings:
            for name, value in _parts(timing):
                fields.setdefault(f"{seed} {how}: {name}", []).append(_number(value))
    return fields


def _parts(timing):
    if isinstance(timing, StalledError):
        yield "stalled", [timing.at, timing.elapsed, *timing.failed]
        return
    yield "finish", timing.rank_finish
    yield "messages", [timing.messages.sent, timing.messages.arrived]
    yield "split", timing.split
    yield "work", [timing.work.rank, timing.work.begun, timing.work.ended]
    yield "software", timing.software.for_messages


def _number(value):
    return float(f"{checksum(value):.9g}")


def all_timed():
    """Return the same of all cases."""
    return {field: value for seed in SEEDS for field, value in timed(seed).items()}
