"""simnet: simulator of sparsified gradient exchanges on networks whose links change during a training job.

The names for scripts and notebooks stand here, each imported at its first use. `run`, `choose`, `step`, `time`,
`measure` and `calibrate` are the commands as functions; they raise `SimnetError`. `load` reads a scenario, and
`Network` times a `Schedule` of rounds, each a `Round`.
"""

from simnet.base.lazy import lazy_names

# As of typing, which takes longer to import than all the rest of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from simnet.base.errors import SimnetError as SimnetError
    from simnet.network import Network as Network
    from simnet.scenario import load as load
    from simnet.schedule import Round as Round
    from simnet.schedule import Schedule as Schedule
    from simnet.verbs.calibrate import calibrate as calibrate
    from simnet.verbs.choose import choose as choose
    from simnet.verbs.measure import measure as measure
    from simnet.verbs.run import run as run
    from simnet.verbs.step import step as step
    from simnet.verbs.time import time as time

__version__ = "0.2.0"

_VERBS = ("calibrate", "choose", "measure", "run", "step", "time")
_HOMES = {
    "base.errors": ("SimnetError",),
    "network": ("Network",),
    "scenario": ("load",),
    "schedule": ("Round", "Schedule"),
    **{f"verbs.{name}": (name,) for name in _VERBS},
}
__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
