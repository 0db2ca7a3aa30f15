"""The messages between a worker and its child processes: msgpack in frames, over a socket pair.

The worker sends `StartChild`, `Perform`, `Renewed`, `StopRun` and `Granted`, a child everything else. A child has at
most one job. Times are on the monotonic clock of the host, which all of its processes share.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec
from msgspec import Struct

from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.outcome import Failed, Snoozed, Succeeded
from taskharbor.core.transition import Ack
from taskharbor.worker.running import Stop


class _Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """One frame."""


class StartChild(_Message, frozen=True):
    """The application that a child imports. `harbor` is an index among the harbors that have all of these `tasks`.

    `given`: the modules begin with those that the command line was given. `url` is the store, None if it lives inside
    the worker. `limited`: some tasks have a memory limit.
    """

    parent: int
    modules: tuple[str, ...]
    given: bool
    tasks: tuple[str, ...]
    harbor: int
    url: str | None
    payload_limit: int
    levels: dict[str, int]
    limited: bool


class Perform(_Message, frozen=True):
    """Run a job under its lease, which lasts until `until` if it is not renewed.

    `payload` is given if it is not the record's own, `memory` is the limit of this run.
    """

    job: JobRecord
    payload: bytes | None
    now: datetime
    memory: int | None
    until: float


class Renewed(_Message, frozen=True):
    """The lease of the running job lasts longer."""

    until: float


class StopRun(_Message, frozen=True):
    """The run should end; the process is killed in a moment."""

    reason: Stop


class Granted(_Message, frozen=True):
    """The worker no longer renews the lease: the transaction may settle."""


class ChildReady(_Message, frozen=True):
    """The child is ready for its first job; its resident and its private memory in bytes."""

    resident: int
    data: int


class Broken(_Message, frozen=True):
    """The child cannot start, and why."""

    reason: str


class Progressed(_Message, frozen=True):
    """The handler has reported progress."""

    progress: Progress


class Committing(_Message, frozen=True):
    """The handler's transaction is about to settle the job by this Ack: stop renewing the lease."""

    ack: Ack


class NotCommitted(_Message, frozen=True):
    """The transaction was not committed: renew the lease again."""


class Settled(_Message, frozen=True):
    """The transaction is committed: the job is done."""


class RunEnded(_Message, frozen=True):
    """The run has ended after so many seconds, with one of three outcomes.

    `lost`: the store has refused its lease. `asked`: it was asked to end before it ended. `resident` is the memory of
    the child, -1 if it was not measured. `spent`: replace the child before the next job.
    """

    seconds: float
    succeeded: Succeeded | None = None
    failed: Failed | None = None
    snoozed: Snoozed | None = None
    lost: bool = False
    asked: bool = False
    resident: int = -1
    spent: bool = False

    @property
    def outcome(self) -> Succeeded | Failed | Snoozed:
        outcome = self.succeeded or self.failed or self.snoozed
        assert outcome is not None
        return outcome


class Logged(_Message, frozen=True):
    """A log record, with its message and its traceback as text."""

    fields: dict[str, str | int | float | bool | None]


Down = StartChild | Perform | Renewed | StopRun | Granted
Up = ChildReady | Broken | Progressed | Committing | NotCommitted | Settled | RunEnded | Logged
decode_down: Callable[[bytes], Down] = msgspec.msgpack.Decoder(Down).decode
decode_up: Callable[[bytes], Up] = msgspec.msgpack.Decoder(Up).decode
_encode = msgspec.msgpack.Encoder().encode
_HEAD = struct.Struct("<I")


def frame(message: Down | Up) -> bytes:
    """The bytes of a message, with their length before them."""
    body = _encode(message)
    return _HEAD.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._buffer += data

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        buffer = self._buffer
        if len(buffer) < _HEAD.size:
            raise StopIteration
        end = _HEAD.size + _HEAD.unpack_from(buffer)[0]
        if len(buffer) < end:
            raise StopIteration
        body = bytes(buffer[_HEAD.size : end])
        del buffer[:end]
        return body
