"""The arguments of a stored job, by name, for reading records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from taskharbor.core.codec import Undecodable
from taskharbor.errors import ConfigError

Read = Callable[[bytes], dict[str, Any]]


class Envelope(Struct, frozen=True):
    """The arguments in a payload, not yet decoded."""

    args: Raw


_envelope = msgspec.json.Decoder(Envelope)
_plain = msgspec.json.Decoder(dict[str, Any])


class Known(bytes):
    """A payload whose task is known here; equal to the stored bytes."""

    read: Read


def known(payload: bytes, read: Read) -> Known:
    """Attach the function that decodes the payload."""
    made = Known(payload)
    made.read = read
    return made


def arguments_of(payload: bytes) -> dict[str, Any]:
    """The arguments by name, typed as in the task's signature if it is known and they fit, else plain JSON.

    Arguments with defaults are included only if they were given. A payload without arguments gives `{}`.
    """
    if isinstance(payload, Known):
        try:
            return payload.read(payload)
        except (Undecodable, ConfigError):  # they do not fit the current signature, or it cannot be decoded
            pass
    try:
        return _plain.decode(_envelope.decode(payload).args)
    except (msgspec.MsgspecError, ValueError):  # UnicodeDecodeError: not valid UTF-8
        return {}
