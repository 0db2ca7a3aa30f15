"""Histories: what every process saw of the store, recorded so that `taskharbor.testing.check` can judge it.

A history is a list of events, or a file with one JSON value per line. Each call of a verb is recorded before it starts
and after it ends; a call without an end (its process was killed) has an unknown outcome, like one whose reply was lost.
`at` is a monotonic time that all processes of a run share; `now` and what is stored are the times given to the driver.
All are whole microseconds. Killed in the middle of a line, a process leaves a torn one, which readers skip.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

# Requests, item by item


class JobEntry(Struct, array_like=True, frozen=True, gc=False, tag="job"):
    """A job to be stored. `group` counts the groups of its call; `after` are the jobs it waits for, each with a policy.

    `flow_key` is the key of the whole group, whose name is `flow`, and `key_until` its end if there is one.
    """

    id: str
    group: int
    queue: str
    priority: int
    run_at: int | None = None
    expires_at: int | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    key: str | None = None
    key_until: int | None = None
    after: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    flow_key: str | None = None
    flow: str | None = None


class Want(Struct, array_like=True, frozen=True, gc=False, tag="want"):
    """A reserve of the first jobs of these queues, or of exactly these ids."""

    queues: tuple[str, ...]
    lease_for: int
    limit: int
    ids: tuple[str, ...] | None = None


class Renew(Struct, array_like=True, frozen=True, gc=False, tag="renew"):
    """One report of an extend_lease."""

    id: str
    token: str


class SettleEntry(Struct, array_like=True, frozen=True, gc=False, tag="settle"):
    """One transition: `to` is ack, put_back, fail or cancel; `failures` counts the entries it carries."""

    id: str
    token: str
    to: str
    attempts: int
    crashes: int
    unknown_put_backs: int
    failures: int
    run_at: int | None = None
    jobs: tuple[JobEntry, ...] = ()


class Named(Struct, array_like=True, frozen=True, gc=False, tag="id"):
    """A job or a flow that a cancel, dead letter, delete, replay, reschedule or freed key is about."""

    id: str
    run_at: int | None = None
    priority: int | None = None


class SwapEntry(Struct, array_like=True, frozen=True, gc=False, tag="swap"):
    """One swap of a schedule: the slot that it ticks for, if it does, and the job that it makes."""

    id: str
    slot: int | None = None
    job: JobEntry | None = None


Asked = JobEntry | Want | Renew | SettleEntry | Named | SwapEntry

# Answers, item by item


class Made(Struct, array_like=True, frozen=True, gc=False, tag="made"):
    """The answer for one job of an enqueue."""

    id: str
    created: bool


class ClaimEntry(Struct, array_like=True, frozen=True, gc=False, tag="claim"):
    """A job returned by reserve."""

    id: str
    token: str
    version: int
    expires_at: int
    queue: str
    priority: int
    due_at: int
    attempts: int
    crashes: int
    run_at: int | None = None


class KeptEntry(Struct, array_like=True, frozen=True, gc=False, tag="kept"):
    """A lease renewed."""

    expires_at: int
    cancel_requested: bool


class Word(Struct, array_like=True, frozen=True, gc=False, tag="word"):
    """An answer as a word: ok, replayed, cancelled, deleted … or the name of a refusal."""

    word: str


Answer = Made | ClaimEntry | KeptEntry | Word

# Events


class Called(Struct, frozen=True, gc=False, tag="called", tag_field="event"):
    """A verb was called."""

    who: str
    number: int
    at: int
    verb: str
    now: int | None
    items: tuple[Asked, ...]


class Returned(Struct, frozen=True, gc=False, tag="returned", tag_field="event"):
    """The call of this number has returned, with an answer for each item; an enqueue: for each job, group by group
    (a refused group has one, and one that may be stored: the name of the error)."""

    who: str
    number: int
    at: int
    answers: tuple[Answer, ...]


class Raised(Struct, frozen=True, gc=False, tag="raised", tag_field="event"):
    """The call of this number has raised. Unless `unknown`, it changed nothing."""

    who: str
    number: int
    at: int
    error: str
    unknown: bool


class Began(Struct, frozen=True, gc=False, tag="began", tag_field="event"):
    """A handler began."""

    who: str
    at: int
    id: str
    version: int


class Ended(Struct, frozen=True, gc=False, tag="ended", tag_field="event"):
    """A handler ended, in any way."""

    who: str
    at: int
    id: str
    version: int


class Noted(Struct, frozen=True, gc=False, tag="noted", tag_field="event"):
    """A remark for readers of the history, such as a kill. The checker ignores it."""

    who: str
    at: int
    text: str


class Last(Struct, array_like=True, frozen=True, gc=False):
    """A job as the store holds it in the end; `failures` counts the entries kept."""

    id: str
    state: str
    version: int
    attempts: int
    crashes: int
    failures: int
    unmet: int
    replays: int
    completed_at: int | None = None
    settled_token: str | None = None
    key: str | None = None


class Final(Struct, frozen=True, gc=False, tag="final", tag_field="event"):
    """The store's contents at the end, at the time `now`. A history may have several parts of it."""

    at: int
    now: int
    jobs: tuple[Last, ...]


Event = Called | Returned | Raised | Began | Ended | Noted | Final
_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Sink(Protocol):
    """A destination for events."""

    def append(self, event: Event, /) -> None:
        """Record an event; it must survive if the process dies right after."""
        ...


class HistoryFile:
    """Appends events to a file, one write each, so that nothing is lost when the process is killed."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def append(self, event: Event, /) -> None:
        os.write(self._file, _encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(paths: Iterable[str | Path]) -> list[Event]:
    """The events of several files. A torn last line, left by a killed process, is skipped; any other is an error."""
    events: list[Event] = []
    for path in paths:
        whole, _, torn = Path(path).read_bytes().rpartition(b"\n")
        events += _decoder.decode_lines(whole)
        with suppress(msgspec.DecodeError):
            events += [_decoder.decode(torn)] if torn else []
    return events


def monotonic() -> int:
    """Monotonic microseconds, the same for all processes of this machine."""
    return time.monotonic_ns() // 1000


def micros(moment: datetime | None) -> Any:
    """A time as stored in histories."""
    return None if moment is None else (moment - EPOCH) // MICROSECOND
