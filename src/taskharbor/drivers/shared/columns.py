"""Columns that the SQL drivers store alike: states, small structures as JSON, tokens of claims.

A token is the prefix of its claim, the number of the row, a space and the job's id; only the prefix is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from taskharbor.core.job import Failure, Progress
from taskharbor.core.states import State

STATES: dict[str, State] = {state.value: state for state in State}
DECODERS: dict[str, Callable[[str], object]] = {
    "headers": msgspec.json.Decoder(dict[str, str]).decode,
    "tags": msgspec.json.Decoder(tuple[str, ...]).decode,
    "failures": msgspec.json.Decoder(tuple[Failure, ...]).decode,
    "progress": msgspec.json.Decoder(Progress).decode,
}
_encode = msgspec.json.Encoder().encode


def json_or_none(value: Mapping[str, str] | tuple[object, ...] | Progress | None) -> str | None:
    """Return a small structure as JSON, None if it is empty."""
    return _encode(value).decode() if value else None


def token_of(prefix: str, seq: int, id: str) -> str:
    """Return the token of a claimed row."""
    return f"{prefix}{seq} {id}"


def split_token(token: str) -> tuple[str, str, str]:
    """Return prefix, number and id of a token; those of a foreign one are anything."""
    claim, _, id = token.partition(" ")
    dot = claim.rfind(".") + 1
    return claim[:dot], claim[dot:], id
