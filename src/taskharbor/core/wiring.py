"""What a payload says about a workflow, and how the results of parents become an argument (K3).

Beside its arguments, the envelope of a step may hold `takes`, the shape of what its first parameter is given when it
starts, `out`, the place of its result in that of the whole, and `outs`, how many such places there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from taskharbor.core.codec import Undecodable
from taskharbor.core.collecting import FailedStep
from taskharbor.core.states import State
from taskharbor.core.workflow import Path, Shape

LIMIT = 16 * 1024 * 1024


class Wiring(Struct, frozen=True, omit_defaults=True):
    """`takes`, a Shape, is None for a step that is given no result, `out` for one whose result stays inside.

    `edges` is how many parents a step has that takes something: of those that are left later on, none may slip into
    another's place. `outs` is how many steps the result of the whole is made of: said by each of them, or by the last
    step of all if there are none. With `collects`, a failure of this one is a part of the result as well.
    """

    takes: Any = None  # msgspec knows no types that name themselves
    edges: int = 0
    out: Path | None = None
    outs: int | None = None
    collects: bool = False


class _Envelope(Struct, frozen=True, omit_defaults=True):
    v: int
    args: Raw
    takes: Any = None
    edges: int = 0


class Given(Protocol):
    """What one parent came to."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def result(self) -> bytes | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def size(self) -> int: ...


class TooMuch(Exception):
    """Results that together are more than a step can be given."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Envelope)
_wiring = msgspec.json.Decoder(Wiring)


def wired(payload: bytes, wiring: Wiring) -> bytes:
    """A payload that says so."""
    said = _encode(wiring)[1:-1]
    return payload[:-1] + b"," + said + b"}" if said else payload


def wiring_of(payload: bytes) -> Wiring:
    """What a payload says; nothing, if it is none."""
    try:
        return _wiring.decode(payload)
    except msgspec.MsgspecError:
        return Wiring()


def filled(payload: bytes, parameter: str, given: Sequence[Given]) -> bytes:
    """The payload with the argument that was still open, put together from what the parents came to."""
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


def _parts(takes: Shape, results: Iterator[Given]) -> Iterator[bytes]:
    if takes == 0:
        yield _value(results)
        return
    if isinstance(takes, int):
        yield b"[%b]" % b",".join([_value(results) for _ in range(takes)])
        return
    yield b"["
    for place, part in enumerate(takes):
        if place:
            yield b","
        yield from _parts(part, results)
    yield b"]"


def _size(given: Given) -> int:
    """How much one parent gives, or would: results that are too large in all are not told."""
    return given.size if given.state is State.DONE else len(_failed(given))


def _failed(given: Given) -> bytes:
    return _encode(FailedStep(given.id, str(given.state), given.error))


def _value(results: Iterator[Given]) -> bytes:
    given = next(results, None)
    if given is None:
        raise Undecodable("the results of its parents are gone: their retention has run out")
    if given.state is not State.DONE:
        return _failed(given)
    return b"null" if given.result is None else given.result
