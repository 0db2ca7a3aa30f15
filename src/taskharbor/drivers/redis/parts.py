"""A job as Redis keeps it: a head that scripts read and write, and parts that they only hand on.

The head is a line of text: what decides on claims and leases, and the revision that every write changes. The parts are
packed by Python, each written as a whole: the card (the request), the claim, the end (the last outcome) and the
rest (stop requests, lineage). `compose` makes a record from them, `split` makes the parts of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.job import Failure, JobRecord, Lease, NewJob, Progress
from taskharbor.core.states import INFLIGHT, State
from taskharbor.drivers.shared.columns import STATES, split_token, token_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
NONE = "-"
CANCEL, DEAD_LETTER = 1, 2  # stop requests

S = TypeVar("S", bound=Struct)


def micros(time: datetime) -> int:
    """A time as stored."""
    return (time - EPOCH) // MICROSECOND


@lru_cache(maxsize=4096)
def moment(stored: str) -> datetime:
    """A stored time. Jobs of one batch share most of their times."""
    return EPOCH + timedelta(0, 0, int(stored))


def _stored(time: datetime | None) -> str:
    return NONE if time is None else str(micros(time))


def _moment(stored: str) -> datetime | None:
    return None if stored == NONE else moment(stored)


class Head(Struct, frozen=True, gc=False):
    """The fields of a head, in its order. Times are texts as stored; `lined` is a lapsed lease that is in line again.

    `cold`: its end concerns other records, so that only a step may settle it.
    """

    state: str
    version: int = 0
    crashes: int = 0
    lease: str = NONE
    token: str = NONE
    lined: int = 0
    priority: int = 0
    seq: int = 0
    rev: int = 0
    due: str = NONE
    run_at: str = NONE
    expires: str = NONE
    stop: int = 0
    cold: int = 0
    unmet: int = 0
    queue: str = ""

    def text(self) -> str:
        return " ".join([str(value) for value in msgspec.structs.astuple(self)])


def head_of(text: bytes) -> Head:
    """Read a head."""
    state, version, crashes, lease, token, lined, priority, seq, rev, due, run_at, expires, stop, cold, unmet, queue = (
        text.decode().split(" ", 15)
    )
    return Head(
        state,
        int(version),
        int(crashes),
        lease,
        token,
        int(lined),
        int(priority),
        int(seq),
        int(rev),
        due,
        run_at,
        expires,
        int(stop),
        int(cold),
        int(unmet),
        queue,
    )


class Card(Struct, frozen=True, gc=False, array_like=True):
    """The request: task, payload and options."""

    type: str
    payload: bytes
    created_at: datetime
    max_attempts: int | None
    max_crashes: int | None
    timeout: float | None = None
    idempotency_key: str | None = None
    key_expires_at: datetime | None = None
    headers: Mapping[str, str] = {}
    tags: tuple[str, ...] = ()
    workflow_id: str | None = None
    kept: bool = False


class ClaimPart(Struct, frozen=True, gc=False, array_like=True):
    """The last claim: its worker and its time."""

    worker: str
    claimed_at: datetime


class EndPart(Struct, frozen=True, gc=False, array_like=True):
    """The last outcome."""

    attempts: int = 0
    unknown_put_backs: int = 0
    last_error: str | None = None
    failed_at: datetime | None = None
    failures: tuple[Failure, ...] = ()
    started_at: datetime | None = None
    completed_at: datetime | None = None
    keep_until: datetime | None = None
    result: bytes | None = None
    dlq_reason: str | None = None
    fingerprint: str | None = None
    settled_token: str | None = None
    settled_kind: str | None = None
    settled_at: datetime | None = None


class RestPart(Struct, frozen=True, gc=False, array_like=True):
    """Fields that few jobs use."""

    stop_requested_at: datetime | None = None
    stop_reason: str | None = None
    stop_fingerprint: str | None = None
    stop_keep_until: datetime | None = None
    original_id: str | None = None
    replays: int = 0


pack = msgspec.msgpack.Encoder().encode
read_card = msgspec.msgpack.Decoder(Card).decode
read_claim = msgspec.msgpack.Decoder(ClaimPart).decode
read_end = msgspec.msgpack.Decoder(EndPart).decode
read_rest = msgspec.msgpack.Decoder(RestPart).decode
read_progress = msgspec.msgpack.Decoder(Progress).decode
NO_END, NO_REST = EndPart(), RestPart()


class Parts(Struct, gc=False):
    """A job as read: the names of the hashes are those of the fields, `job` holds the head. A missing part is None."""

    job: bytes
    card: bytes
    claim: bytes | None = None
    started: bytes | None = None
    progress: bytes | None = None
    end: bytes | None = None
    rest: bytes | None = None


PARTS = ("job", "card", "claim", "started", "progress", "end", "rest")


def new_card(job: NewJob, now: datetime) -> bytes:
    """The card of a new job."""
    return pack(_card_of(job, now))


def _card_of(job: NewJob | JobRecord, created_at: datetime) -> Card:
    return Card(
        job.type,
        job.payload,
        created_at,
        job.max_attempts,
        job.max_crashes,
        job.timeout,
        job.idempotency_key,
        job.key_expires_at,
        job.headers,
        job.tags,
        job.workflow_id,
        job.kept,
    )


def compose(id: str, parts: Parts, head: Head | None = None) -> JobRecord:
    """The record of a job."""
    head = head or head_of(parts.job)
    card = read_card(parts.card)
    state = STATES[head.state]
    claim = None if parts.claim is None else read_claim(parts.claim)
    job = JobRecord(
        id=id,
        type=card.type,
        queue=head.queue,
        payload=card.payload,
        priority=head.priority,
        max_attempts=card.max_attempts,
        max_crashes=card.max_crashes,
        state=state,
        created_at=card.created_at,
        due_at=moment(head.due),
        version=head.version,
        crashes=head.crashes,
        workflow_id=card.workflow_id,
        lease=_lease(id, head, claim) if state is INFLIGHT else None,
        run_at=_moment(head.run_at),
    )
    more: dict[str, object] = {}
    if claim is not None:
        more |= {"worker": claim.worker, "claimed_at": claim.claimed_at}
    if _has_options(card):
        more |= {name: getattr(card, name) for name in _ASKED}
    if head.unmet or head.expires != NONE:
        more |= {"unmet": head.unmet, "expires_at": _moment(head.expires)}
    if parts.end is not None:
        end = read_end(parts.end)
        more |= {name: getattr(end, name) for name in EndPart.__struct_fields__}
        if state is INFLIGHT:  # of the run before
            more |= {"started_at": None}
    if parts.rest is not None:
        rest = read_rest(parts.rest)
        more |= {name: getattr(rest, name) for name in RestPart.__struct_fields__}
    if parts.started is not None:
        more["started_at"] = moment(parts.started.decode())
    if parts.progress is not None:
        more["progress"] = read_progress(parts.progress)
    return replace(job, **more) if more else job


_ASKED = ("timeout", "idempotency_key", "key_expires_at", "headers", "tags", "kept")


def _has_options(card: Card) -> bool:
    rare = card.timeout is not None or card.idempotency_key is not None or card.key_expires_at is not None
    return rare or card.kept or bool(card.headers or card.tags)


def _lease(id: str, head: Head, claim: ClaimPart | None) -> Lease:
    assert claim is not None
    token = token_of(head.token, head.seq, id)
    return Lease(token, head.version, moment(head.lease), claim.worker, claim.claimed_at)


def split(job: JobRecord, seq: int, rev: int, lined: int, cold: int) -> dict[str, bytes | None]:
    """The parts of a record; None for those that it does not have."""
    lease = job.lease
    head = Head(
        state=job.state.value,
        version=job.version,
        crashes=job.crashes,
        lease=NONE if lease is None else str(micros(lease.expires_at)),
        token=NONE if lease is None else split_token(lease.token)[0],
        lined=lined,
        priority=job.priority,
        seq=seq,
        rev=rev,
        due=str(micros(job.due_at)),
        run_at=_stored(job.run_at),
        expires=_stored(job.expires_at),
        stop=0 if job.stop_requested_at is None else CANCEL if job.stop_reason is None else DEAD_LETTER,
        cold=cold,
        unmet=job.unmet,
        queue=job.queue,
    )
    is_running = job.state is INFLIGHT
    end = EndPart(**{name: getattr(job, name) for name in EndPart.__struct_fields__})
    end = replace(end, started_at=None) if is_running else end
    rest = RestPart(**{name: getattr(job, name) for name in RestPart.__struct_fields__})
    claimed = job.worker is not None and job.claimed_at is not None
    return {
        "job": head.text().encode(),
        "card": pack(_card_of(job, job.created_at)),
        "claim": pack(ClaimPart(job.worker or "", job.claimed_at or EPOCH)) if claimed else None,
        "started": _stored(job.started_at).encode() if is_running and job.started_at is not None else None,
        "progress": None if job.progress is None else pack(job.progress),
        "end": None if end == NO_END else pack(end),
        "rest": None if rest == NO_REST else pack(rest),
    }


def is_open(state: State) -> bool:
    """Whether a job in this state has not ended."""
    return state in (State.READY, State.WAITING, State.INFLIGHT)
