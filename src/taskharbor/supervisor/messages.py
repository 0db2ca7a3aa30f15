"""The reports of a supervised worker to its supervisor: one line of JSON per message, on an inherited socket."""

from __future__ import annotations

import msgspec
from msgspec import Struct

LONGEST_PERIOD = 1.0
URGENT = b"now\n"  # what a supervisor sends: stop without waiting for handlers


class WorkerReady(Struct, frozen=True, kw_only=True, tag="ready"):
    """A worker is about to claim its first job. `store` is the URL with its secrets; None if a URL does not name it."""

    worker: str
    lease: float
    memory: int
    store: str | None
    store_timeout: float
    keep_done: float

    def __repr__(self) -> str:
        return f"<WorkerReady {self.worker}>"


class Beat(Struct, frozen=True, kw_only=True, tag="beat"):
    """A worker process runs Python code: the number of its finished runs, and its resident memory in bytes."""

    finished: int
    memory: int


class WaitsForStore(Struct, frozen=True, tag="waiting"):
    """A worker that is not ready has found its store away, and tries again: it does not hang."""


class WorkerEnded(Struct, frozen=True, tag="ended"):
    """A worker ends by itself with this exit code; one that crashes sends nothing."""

    code: int


WorkerMessage = WorkerReady | Beat | WaitsForStore | WorkerEnded
_decoder: msgspec.json.Decoder[WorkerMessage] = msgspec.json.Decoder(WorkerMessage)


def period(lease: float) -> float:
    """Seconds between two beats of a worker with leases of this length."""
    return min(LONGEST_PERIOD, lease / 3)


def encoded(message: WorkerMessage) -> bytes:
    """The message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


class Inbox:
    """Splits the received bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[WorkerMessage]:
        """The messages that are complete with this piece. Other lines are ignored: a handler may have written them."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [message for line in lines if (message := _decoded(line)) is not None]


def _decoded(line: bytes) -> WorkerMessage | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
