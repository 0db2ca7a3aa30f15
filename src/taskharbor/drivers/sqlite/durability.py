"""The settings of a file that decide what a power cut may lose, as the connection has them."""

from __future__ import annotations

from apsw import Connection

from taskharbor.driver import StoreSetting

SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
LOST = "a power cut may lose the jobs since the last checkpoint: leave synchronous=normal out of the URL"


def durability(db: Connection) -> list[StoreSetting]:
    """Read them back."""
    level = SYNCHRONOUS.get(int(str(db.pragma("synchronous"))), "unknown")
    synchronous = StoreSetting("synchronous", level)
    if level not in ("full", "extra"):
        synchronous = StoreSetting("synchronous", level, "warning", LOST)
    return [StoreSetting("journal_mode", str(db.pragma("journal_mode"))), synchronous]
