"""Which event loop a network goes through: the interpreted one at first, the compiled one once there is much to do."""

from __future__ import annotations

from simnet.network.engine import Engine
from simnet.network.links import Links
from simnet.network.sharing import Sharing
from simnet.network.stack import Stack
from simnet.network.tables import loop_is_loaded

# Messages from which on loading the compiled event loop takes less time than it saves.
_MANY = 50_000


class Engines:
    """The engine of a network: on lists at first, compiled once there have been many messages.

    Parameters
    ----------
    links : Links
        What messages use.
    overheads, stack, sharing, options
        As for `Engine`.
    """

    def __init__(
        self, links: Links, overheads: tuple[float, float], stack: Stack, sharing: Sharing, **options: bool
    ) -> None:
        self.links = links
        self._overheads, self._stack, self._sharing, self._options = overheads, stack, sharing, options
        self._carried = 0
        self._engine: Engine | None = None
        self._compiled = False

    def take(self, n_messages: int) -> Engine:
        """Return the engine to use for so many messages more."""
        self._carried += n_messages
        compiled = self._carried >= _MANY or loop_is_loaded()
        if self._engine is None or compiled > self._compiled:
            self._compiled = compiled
            self._engine = Engine(
                self.links, self._overheads, self._stack, self._sharing, compiled=compiled, **self._options
            )
        return self._engine
