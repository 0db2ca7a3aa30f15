"""A real Valkey for mutants of the Redis driver: a namespace of its own for each catcher, a case of the kit.

After the case, the indexes must hold what the records say, as after every case of the healthy driver. A script that
does not compile, or fails while it runs, would be noticed everywhere and prove nothing: such a mutant is stale.
"""

from __future__ import annotations

from drivers.redis import indexes
from servers.valkey import ValkeyServer
from taskharbor.drivers.redis.failure import Refused

from .catching import COMPLAINTS
from .kit import CASES, in_file
from .mutant import Mutant, StaleMutant


class Berth:
    """A server to play on."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self._healthy: set[str] = set()

    def ask(self, catcher: str) -> None:
        """Let a case complain about the driver as it is now."""
        namespace = self._server.new_namespace()
        try:
            in_file(CASES[catcher], self._server.url(namespace=namespace))
            indexes.check(self._server, namespace)
        finally:
            self._server.drop_namespace(namespace)

    def check_healthy(self, catcher: str) -> None:
        """Without a mutant, no case complains."""
        if catcher not in self._healthy:
            self.ask(catcher)
            self._healthy.add(catcher)

    def complaint_about(self, mutant: Mutant, catcher: str) -> str | None:
        """The complaint of a case; None if it has not noticed the mutant."""
        with mutant.applied():
            try:
                self.ask(catcher)
            except Refused as error:
                raise StaleMutant(f"{mutant!r} fails on the server") from error
            except COMPLAINTS as complaint:
                return f"{type(complaint).__name__}: {complaint}".strip(": ")
        return None
