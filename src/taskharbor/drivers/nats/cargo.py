"""Results, failures and replaced payloads: in the entry while they are small, else stored by themselves before it."""

from __future__ import annotations

from secrets import token_hex
from typing import NamedTuple

from taskharbor.core.job import JobRecord
from taskharbor.drivers.nats.pages import NO_CARGO, JobCargo, cargo_of, pack
from taskharbor.drivers.nats.store import StreamWrite
from taskharbor.drivers.nats.subjects import Subjects

INLINE = 1024
# Entries of a usual page. Greater pages, of greater groups, have less room for each.
USUAL = 100


class PackedCargo(NamedTuple):
    """Cargo as an entry holds it: packed, or the name under which `body` is stored."""

    inline: bytes | None = None
    name: str | None = None
    body: bytes | None = None

    def writes(self, subjects: Subjects, id: str) -> list[StreamWrite]:
        """What is to be stored before the entry."""
        if self.body is None or self.name is None:
            return []
        return [StreamWrite(subjects.cargo(id, self.name), self.body)]


def room(entries: int) -> int:
    """The bytes of cargo that an entry may hold, so that a page of so many never outgrows a message."""
    return INLINE if entries <= USUAL else INLINE * USUAL // entries


def packed(job: JobRecord, card_payload: bytes, entries: int) -> PackedCargo:
    """The cargo of a record in a page of so many."""
    return pack_cargo(cargo_of(job, card_payload), entries)


def pack_cargo(cargo: JobCargo, entries: int) -> PackedCargo:
    """Cargo as an entry of a page of so many holds it."""
    if cargo == NO_CARGO:
        return PackedCargo()
    body = pack(cargo)
    if len(body) <= room(entries):
        return PackedCargo(body)
    return PackedCargo(None, token_hex(6), body)
