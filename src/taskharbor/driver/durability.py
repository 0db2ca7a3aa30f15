"""Whether a store keeps what it was given: its settings read back, and the repair of indexes that TaskHarbor keeps."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

SettingLevel = Literal["fine", "warning", "error"]


class StoreSetting(Struct, frozen=True):
    """A setting of the engine as read back. `value` is None if the engine does not let us read it.

    `warning`: acknowledged jobs may be lost in a crash or a power cut. `error`: jobs may be lost at any time. `message`
    says what is lost, and names the fix.
    """

    name: str
    value: str | None
    level: SettingLevel = "fine"
    message: str = ""


@runtime_checkable
class Durability(Protocol):
    """Reads back the settings that decide what may be lost (G2).

    Called by `taskharbor health --deep` and `harbor.admin.durability()`. Without it, what may be lost is unknown.
    """

    async def durability(self) -> list[StoreSetting]:
        """The settings as they are now."""
        ...


class RepairReport(Struct, frozen=True, kw_only=True):
    """The findings of a repair: the numbers of jobs compared and of entries that do not fit, some of these in words.

    `counted` is False if too many jobs changed meanwhile to compare the totals.
    """

    jobs: int
    misfits: int
    examples: tuple[str, ...] = ()
    counted: bool = True


@runtime_checkable
class Repairs(Protocol):
    """Engines on which the driver keeps indexes by itself, which damage can separate from the records.

    Called by `taskharbor health --deep` and `harbor.admin.repair()`. Without it, the engine keeps them.
    """

    async def repair(self, *, dry: bool) -> RepairReport:
        """Compare all indexes with the records and mend them; with `dry`, change nothing. Safe beside workers.

        It may take as long as the store is large: no caller limits it. A call to a store that does not answer must end
        with `DriverUnavailable` by itself.
        """
        ...
