"""simnet: simulator of sparsified gradient exchanges on networks whose links change during a training job.

What a notebook starts from is here, and imported when it is used. `run`, `choose`, `step`, `time`, `measure` and
`calibrate` are the commands as functions, `SimnetError` is what they raise. `load` reads a scenario, `Network` times a
`Schedule` made of rounds, each a `Round`.
"""

from importlib import import_module

# As of typing, which takes longer to import than all the rest of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from simnet.base.errors import SimnetError
    from simnet.network import Network
    from simnet.scenario import load
    from simnet.schedule import Round, Schedule
    from simnet.verbs.calibrate import calibrate
    from simnet.verbs.choose import choose
    from simnet.verbs.measure import measure
    from simnet.verbs.run import run
    from simnet.verbs.step import step
    from simnet.verbs.time import time

__version__ = "0.2.0"
__all__ = [
    "Network",
    "Round",
    "Schedule",
    "SimnetError",
    "calibrate",
    "choose",
    "load",
    "measure",
    "run",
    "step",
    "time",
]

_HOMES = {
    "Network": "network",
    "Round": "schedule",
    "Schedule": "schedule",
    "SimnetError": "base.errors",
    "calibrate": "verbs.calibrate",
    "choose": "verbs.choose",
    "load": "scenario",
    "measure": "verbs.measure",
    "run": "verbs.run",
    "step": "verbs.step",
    "time": "verbs.time",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'simnet' has no attribute {name!r}")
    found: object = getattr(import_module(f"simnet.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
