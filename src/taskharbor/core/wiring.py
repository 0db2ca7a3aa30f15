"""The wiring of a workflow step in its payload, and how results of parents become an argument (K3).

Besides its arguments, the envelope of a step may hold `takes`, the shape of the value passed to its first parameter,
`out`, the position of its result in the workflow's result, and `outs`, the number of such positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from taskharbor.core.arguments import Envelope
from taskharbor.core.codec import Undecodable
from taskharbor.core.collecting import FailedStep
from taskharbor.core.dependency import Parent
from taskharbor.core.states import State
from taskharbor.core.workflow import Path, Shape

LIMIT = 16 * 1024 * 1024


class Wiring(Struct, frozen=True, omit_defaults=True):
    """`takes`, a Shape, is None for a step that receives no result, `out` for one whose result is not returned.

    `edges` is the number of parents of a step that takes results, so that a deleted parent is noticed and the others
    keep their positions. `outs` is the number of steps that form the workflow's result, stored with each of them, or
    with the last step if there are none. With `collects`, a failure of this step is part of the result too.
    """

    takes: Any = None  # msgspec does not support recursive types
    edges: int = 0
    out: Path | None = None
    outs: int | None = None
    collects: bool = False


class StepEnvelope(Envelope, frozen=True, kw_only=True):
    """A payload as `filled` completes it."""

    v: int
    takes: Any = None
    edges: int = 0


class TooMuch(Exception):
    """The results together exceed the limit for an argument."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(StepEnvelope)
_wiring = msgspec.json.Decoder(Wiring)


def wired(payload: bytes, wiring: Wiring) -> bytes:
    """Add the wiring to a payload."""
    fields = _encode(wiring)[1:-1]
    return payload[:-1] + b"," + fields + b"}" if fields else payload


def wiring_of(payload: bytes) -> Wiring:
    """The wiring in a payload; empty if the payload has none."""
    try:
        return _wiring.decode(payload)
    except msgspec.MsgspecError:
        return Wiring()


def filled(payload: bytes, parameter: str, given: Sequence[Parent]) -> bytes:
    """The payload with its missing argument, built from the parents' results."""
    envelope = _decoder.decode(payload)
    assert envelope.takes is not None
    if len(given) < envelope.edges:
        raise Undecodable("the results of its parents are gone: they were deleted, or their retention has run out")
    if (size := sum(map(_size, given))) > LIMIT:
        raise TooMuch(
            f"the results of its {len(given):,} parents take {size:,} bytes, the limit is {LIMIT:,}: "
            "let them store their data elsewhere and return references to it"
        )
    value = b"".join(_parts(envelope.takes, iter(given)))
    rest = bytes(envelope.args).strip()[1:]
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return b'{"v":%d,"args":{%s:%s%s%s}' % (envelope.v, _encode(parameter), value, comma, rest)


def _parts(takes: Shape, results: Iterator[Parent]) -> Iterator[bytes]:
    """Results in a shape: 0 is one result, n a list of n results, a list holds the shape of each part."""
    if takes == 0:
        yield _value(results)
        return
    if isinstance(takes, int):
        yield b"[%b]" % b",".join([_value(results) for _ in range(takes)])
        return
    yield b"["
    for index, part in enumerate(takes):
        if index:
            yield b","
        yield from _parts(part, results)
    yield b"]"


def _size(given: Parent) -> int:
    """The size of one parent's result, even if it was not loaded because the total is too large."""
    return given.size if given.state is State.DONE else len(_failed(given))


def _failed(given: Parent) -> bytes:
    return _encode(FailedStep(given.id, str(given.state), given.error))


def _value(results: Iterator[Parent]) -> bytes:
    given = next(results, None)
    if given is None:
        raise Undecodable("the results of its parents are gone: their retention has run out")
    if given.state is not State.DONE:
        return _failed(given)
    return b"null" if given.result is None else given.result
