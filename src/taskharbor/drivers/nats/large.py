"""Values that do not fit into one message: stored in pieces before them, under names that nothing else has."""

from __future__ import annotations

from secrets import token_hex

import msgspec

from taskharbor.drivers.nats.pages import pack
from taskharbor.drivers.nats.store import Streams, StreamWrite
from taskharbor.drivers.nats.subjects import Subjects

# MessagePack never uses this byte: what begins with it lists the names of pieces.
PIECES = b"\xc1"
_names = msgspec.msgpack.Decoder(list[str]).decode


def split(subjects: Subjects, body: bytes, most: int) -> tuple[bytes, list[StreamWrite]]:
    """What is stored for a value, and the pieces that are stored before it."""
    if len(body) <= most:
        return body, []
    own = token_hex(6)
    parts = [body[first : first + most] for first in range(0, len(body), most)]
    writes = [StreamWrite(subjects.piece(f"{own}-{number}"), part) for number, part in enumerate(parts)]
    return PIECES + pack([write.subject for write in writes]), writes


def pieces(body: bytes) -> list[str]:
    """The names of the pieces of a value."""
    return _names(body[1:]) if body.startswith(PIECES) else []


async def whole(store: Streams, body: bytes) -> bytes:
    """A value as it was split."""
    names = pieces(body)
    if not names:
        return body
    found = await store.read(names)
    return b"".join(found[name].body for name in names)
