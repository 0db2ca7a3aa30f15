"""How a job is stored: an entry in a page, which changes, and a card, which does not.

A page lists up to 100 jobs of one queue (and of one workflow, or of none). It is written as a whole, by comparing its
revision, so that all its jobs change together or not at all. Times are microseconds since 1970. A job keeps its place
in its page as long as it exists: its tokens name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.core.job import Dependency, Failure, JobRecord, Lease, NewJob, Progress
from taskharbor.core.states import CANCELLED, DLQ, DONE, INFLIGHT, READY, TERMINAL, WAITING, State

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# The states as stored, in a fixed order.
STATES: tuple[State, ...] = (READY, WAITING, INFLIGHT, DONE, DLQ, CANCELLED)
CODES = {state: code for code, state in enumerate(STATES)}
IS_READY, IS_WAITING, IS_INFLIGHT, IS_DONE, IS_DEAD, IS_CANCELLED = range(6)
KINDS = ("", "ack", "put_back", "fail", "cancel")
HAS_PARENTS, HAS_CHILDREN = 1, 2
# Anybody can give a token: what cannot be one of ours names no subject.
TOKEN = re.compile(r"[0-9a-f]+\.[0-9]{1,18}\.[0-9]{1,9}\.[A-Za-z0-9_=~-]{1,250}\.[A-Za-z0-9_]{1,60}")


class JobCargo(Struct, array_like=True, frozen=True, gc=False):
    """What can be large. `payload` if it is no longer that of the card."""

    result: bytes | None = None
    failures: tuple[Failure, ...] = ()
    last_error: str | None = None
    payload: bytes | None = None


class RareFields(Struct, array_like=True, frozen=True, gc=False):
    """What most jobs do not have.

    `cargo` is packed, `cargo_at` the name under which it is stored by itself. `met` has a bit for every satisfied edge
    to a parent; `below` lists edges that came after the card was written.
    """

    idempotency_key: str | None = None
    key_expires_at: int | None = None
    expires_at: int | None = None
    stop_requested_at: int | None = None
    stop_reason: str | None = None
    stop_fingerprint: str | None = None
    stop_keep_until: int | None = None
    dlq_reason: str | None = None
    fingerprint: str | None = None
    original_id: str | None = None
    replays: int = 0
    unknown_put_backs: int = 0
    failed_at: int | None = None
    progress: Progress | None = None
    kept: bool = False
    unmet: int = 0
    edges: int = 0
    met: bytes = b""
    below: tuple[tuple[str, int, str], ...] = ()
    cargo: bytes | None = None
    cargo_at: str | None = None


NO_RARE = RareFields()


class PagedJob(Struct, array_like=True, frozen=True, gc=False):
    """The state of a job. `lease` is the random part of its token, `settled` that of the last settle with its version.

    `number` is its place among the jobs that were stored together.
    """

    id: str
    state: int
    due: int
    priority: int = 0
    version: int = 0
    lease: str = ""
    until: int = 0
    worker: str | None = None
    claimed: int | None = None
    started: int | None = None
    settled: str = ""
    kind: int = 0
    settled_at: int | None = None
    completed: int | None = None
    keep_until: int | None = None
    attempts: int = 0
    crashes: int = 0
    run_at: int | None = None
    number: int = 0
    rare: RareFields | None = None


class RunSum(Struct, array_like=True, frozen=True, gc=False):
    """A total of runs in a minute; times in microseconds."""

    minute: int
    queue: str
    task: str
    outcome: str
    count: int
    ran: int
    waited: int


class JobPage(Struct, array_like=True, frozen=True, gc=False):
    """Entries of one queue; a removed job leaves None.

    `born` is the same for all pages that were stored together, and greater for later ones: the sequence of the first
    version, less `offset`. The first version does not know it yet. `created` is when its jobs were stored. `keys` are
    those of its workflow, `sums` the totals of its runs that are not in the minutes yet. A page that was brought back
    from among the ended is `revived`.
    """

    queue: str
    entries: list[PagedJob | None]
    born: int = 0
    workflow: str | None = None
    keys: tuple[tuple[str, bytes, int | None], ...] = ()
    sums: tuple[RunSum, ...] = ()
    revived: bool = False
    offset: int = 0
    created: int = 0


class JobCard(Struct, array_like=True, frozen=True, gc=False):
    """The request, and the page of the job. `above` and `below` are its edges; `chunks` of more are stored apart."""

    page: str
    type: str
    payload: bytes
    created: int
    max_attempts: int | None
    max_crashes: int | None
    timeout: float | None = None
    workflow: str | None = None
    headers: Mapping[str, str] = {}
    tags: tuple[str, ...] = ()
    above: tuple[tuple[str, str], ...] = ()
    below: tuple[tuple[str, int, str], ...] = ()
    chunks: int = 0


class KeyNote(Struct, array_like=True, frozen=True, gc=False):
    """A key: its owner, which is a workflow or a job, and the page that has to confirm it."""

    key: str
    owner: str
    digest: bytes
    expires_at: int | None
    page: str
    workflow: str | None
    is_flow: bool


class EntryPlace(NamedTuple):
    """Where an entry is."""

    flow: str
    page: str
    position: int


def born(page: JobPage, rev: int) -> JobPage:
    """A page that knows when it was born."""
    return page if page.born else replace(page, born=max(rev - page.offset, 1))


def seq_of(page: JobPage, entry: PagedJob) -> int:
    """The place of a job in the order of storing."""
    return (page.born << 24) + entry.number


pack = msgspec.msgpack.Encoder().encode
read_page = msgspec.msgpack.Decoder(JobPage).decode
read_card = msgspec.msgpack.Decoder(JobCard).decode
read_cargo = msgspec.msgpack.Decoder(JobCargo).decode
read_note = msgspec.msgpack.Decoder(KeyNote).decode


def micros(time: datetime) -> int:
    """A time as stored."""
    return (time - EPOCH) // MICROSECOND


def stored(time: datetime | None) -> int | None:
    """A time that may be missing, as stored."""
    return None if time is None else (time - EPOCH) // MICROSECOND


@lru_cache(maxsize=8192)
def moment(time: int) -> datetime:
    """A stored time. Jobs of one batch share most of their times."""
    return EPOCH + timedelta(0, 0, time)


def _moment(time: int | None) -> datetime | None:
    return None if time is None else moment(time)


def token_of(lease: str, version: int, place: EntryPlace) -> str:
    """The token of a claim: random, then where the entry is."""
    return f"{lease}.{version}.{place.position}.{place.flow}.{place.page}"


def place_of(token: str) -> tuple[str, int, EntryPlace] | None:
    """The random part, the version and the place of a token; None if it is not one of ours."""
    parts = token.split(".")
    if len(parts) != 5 or TOKEN.fullmatch(token) is None:
        return None
    return parts[0], int(parts[1]), EntryPlace(parts[3], parts[4], int(parts[2]))


def is_ended(entry: PagedJob | None) -> bool:
    """Whether nothing will happen to this entry by itself."""
    return entry is None or entry.state >= IS_DONE


# What a card says of a job, when only its entry is known.
BLANK = JobCard("", "", b"", 0, None, None)


def record(
    entry: PagedJob, page: JobPage, place: EntryPlace, card: JobCard = BLANK, cargo: JobCargo | None = None
) -> JobRecord:
    """The record of a job. Without its card it lacks what no rule reads."""
    lease = None
    if entry.state == IS_INFLIGHT:
        token = token_of(entry.lease, entry.version, place)
        claimed = moment(entry.claimed or 0)
        lease = Lease(token, entry.version, moment(entry.until), entry.worker or "", claimed)
        if entry.rare is None and cargo is None and not entry.settled and entry.keep_until is None:
            return _plain(entry, page, card, lease)
    rare = entry.rare or NO_RARE
    if cargo is None:
        cargo = NO_CARGO if rare.cargo is None else read_cargo(rare.cargo)
    settled = None
    if entry.settled:
        token, _, version = entry.settled.partition(".")
        settled = token_of(token, int(version), place)
    return JobRecord(
        id=entry.id,
        type=card.type,
        queue=page.queue,
        payload=card.payload if cargo.payload is None else cargo.payload,
        priority=entry.priority,
        expires_at=_moment(rare.expires_at),
        timeout=card.timeout,
        max_attempts=card.max_attempts,
        max_crashes=card.max_crashes,
        idempotency_key=rare.idempotency_key,
        key_expires_at=_moment(rare.key_expires_at),
        headers=card.headers,
        tags=card.tags,
        workflow_id=page.workflow,
        kept=rare.kept,
        state=STATES[entry.state],
        created_at=moment(card.created),
        due_at=moment(entry.due),
        run_at=_moment(entry.run_at),
        attempts=entry.attempts,
        crashes=entry.crashes,
        unknown_put_backs=rare.unknown_put_backs,
        last_error=cargo.last_error,
        failed_at=_moment(rare.failed_at),
        failures=cargo.failures,
        version=entry.version,
        lease=lease,
        worker=entry.worker,
        claimed_at=_moment(entry.claimed),
        started_at=_moment(entry.started),
        progress=rare.progress,
        stop_requested_at=_moment(rare.stop_requested_at),
        stop_reason=rare.stop_reason,
        stop_fingerprint=rare.stop_fingerprint,
        stop_keep_until=_moment(rare.stop_keep_until),
        completed_at=_moment(entry.completed),
        result=cargo.result,
        dlq_reason=rare.dlq_reason,
        fingerprint=rare.fingerprint,
        unmet=rare.unmet,
        original_id=rare.original_id,
        replays=rare.replays,
        settled_token=settled,
        settled_kind=KINDS[entry.kind] or None,
        settled_at=_moment(entry.settled_at),
        keep_until=_moment(entry.keep_until),
    )


def _plain(entry: PagedJob, page: JobPage, card: JobCard, lease: Lease) -> JobRecord:
    """The record of a claimed job without rare fields that was never settled: most of those that are claimed."""
    return JobRecord(
        id=entry.id,
        type=card.type,
        queue=page.queue,
        payload=card.payload,
        priority=entry.priority,
        timeout=card.timeout,
        max_attempts=card.max_attempts,
        max_crashes=card.max_crashes,
        headers=card.headers,
        tags=card.tags,
        workflow_id=page.workflow,
        state=INFLIGHT,
        created_at=moment(card.created),
        due_at=moment(entry.due),
        run_at=_moment(entry.run_at),
        attempts=entry.attempts,
        crashes=entry.crashes,
        version=entry.version,
        lease=lease,
        worker=entry.worker,
        claimed_at=lease.claimed_at,
        started_at=_moment(entry.started),
        completed_at=_moment(entry.completed),
    )


NO_CARGO = JobCargo()


def cargo_of(job: JobRecord, card_payload: bytes) -> JobCargo:
    """The cargo of a record; its payload only if it is another than the card's."""
    payload = None if job.payload == card_payload else job.payload
    return JobCargo(job.result, job.failures, job.last_error, payload)


def entry_of(
    job: JobRecord,
    number: int,
    edges: RareFields = NO_RARE,
    cargo: bytes | None = None,
    cargo_at: str | None = None,
) -> PagedJob:
    """The entry of a record, with its edges as in `edges` and with its packed cargo or the name of it."""
    rare = RareFields(
        job.idempotency_key,
        stored(job.key_expires_at),
        stored(job.expires_at),
        stored(job.stop_requested_at),
        job.stop_reason,
        job.stop_fingerprint,
        stored(job.stop_keep_until),
        job.dlq_reason,
        job.fingerprint,
        job.original_id,
        job.replays,
        job.unknown_put_backs,
        stored(job.failed_at),
        job.progress,
        job.kept,
        job.unmet,
        edges.edges,
        edges.met,
        edges.below,
        cargo,
        cargo_at,
    )
    settled = ""
    if job.settled_token is not None and (parts := place_of(job.settled_token)) is not None:
        settled = f"{parts[0]}.{parts[1]}"
    lease = "" if job.lease is None else job.lease.token.partition(".")[0]
    return PagedJob(
        job.id,
        CODES[job.state],
        micros(job.due_at),
        job.priority,
        job.version,
        lease,
        0 if job.lease is None else micros(job.lease.expires_at),
        job.worker,
        stored(job.claimed_at),
        stored(job.started_at),
        settled,
        KINDS.index(job.settled_kind or ""),
        stored(job.settled_at),
        stored(job.completed_at),
        stored(job.keep_until),
        job.attempts,
        job.crashes,
        stored(job.run_at),
        number,
        None if rare == NO_RARE else rare,
    )


def new_entry(job: NewJob, number: int, now: int) -> PagedJob:
    """The entry of a new job that waits for no other."""
    run_at = stored(job.run_at)
    rare = None
    if job.idempotency_key is not None or job.expires_at is not None or job.kept:
        rare = RareFields(job.idempotency_key, stored(job.key_expires_at), stored(job.expires_at), kept=job.kept)
    return PagedJob(
        job.id, IS_READY, now if run_at is None else run_at, job.priority, run_at=run_at, number=number, rare=rare
    )


def new_card(job: NewJob, page: str, now: int, below: tuple[tuple[str, int, str], ...] = ()) -> JobCard:
    """The card of a new job in this page, with the edges to its parents and dependants."""
    return JobCard(
        page,
        job.type,
        job.payload,
        now,
        job.max_attempts,
        job.max_crashes,
        job.timeout,
        job.workflow_id,
        job.headers,
        job.tags,
        tuple((edge.parent, edge.policy) for edge in job.depends_on),
        below,
    )


def is_terminal(job: JobRecord) -> bool:
    """Whether the record has ended."""
    return job.state in TERMINAL


def dependency(edge: tuple[str, str]) -> Dependency:
    """A stored edge as it was asked for."""
    return Dependency(*edge)
