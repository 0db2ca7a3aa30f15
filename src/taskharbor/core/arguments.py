"""The arguments of a stored job, by name: for those who look at records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from taskharbor.core.codec import Undecodable
from taskharbor.errors import ConfigError

Read = Callable[[bytes], dict[str, Any]]


class _Envelope(Struct):
    args: dict[str, Any]


_plain = msgspec.json.Decoder(_Envelope)


class Known(bytes):
    """A payload whose task is known here; it is equal to the bytes that are stored."""

    read: Read


def known(payload: bytes, read: Read) -> Known:
    """The payload, to be decoded by this function."""
    made = Known(payload)
    made.read = read
    return made


def arguments_of(payload: bytes) -> dict[str, Any]:
    """The arguments by name: of the types in the task's signature if it is known and they fit, else plain JSON.

    Those that the signature has defaults for are there if they were given. A payload that holds none gives `{}`.
    """
    if isinstance(payload, Known):
        try:
            return payload.read(payload)
        except (Undecodable, ConfigError):  # other arguments than the code has now, or types that it cannot decode
            pass
    try:
        return _plain.decode(payload).args
    except (msgspec.MsgspecError, ValueError):  # the second for text that is none
        return {}
