"""Jobs with parts that cannot be decoded: a claim moves them to the dead-letter queue, so that none stops its queue.

Anything may have written to the keys. What can be read of such a job stays, the rest is blanked, so that it can be
shown, cancelled and deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Fail
from taskharbor.drivers.redis import parts
from taskharbor.drivers.redis.parts import Card, ClaimPart, Head, Parts, head_of, moment, pack
from taskharbor.drivers.shared.damage import KEPT_FOR, UNREADABLE, cause_of

TYPE = "(damaged)"
UNDECODABLE = (TypeError, ValueError, OverflowError)  # TypeError: a card or a claim that is missing

_READERS: dict[str, Callable[[bytes], object]] = {
    "card": parts.read_card,
    "claim": parts.read_claim,
    "started": lambda stored: moment(stored.decode()),
    "progress": parts.read_progress,
    "end": parts.read_end,
    "rest": parts.read_rest,
}


def compose(id: str, stored: Parts, head: Head | None = None) -> JobRecord:
    """The record of a job, of which parts may be damaged."""
    head = head or head_of(stored.job)
    try:
        return parts.compose(id, stored, head)
    except UNDECODABLE:
        return parts.compose(id, _blanked(stored, head), head)


def damaged_fail(job: JobRecord, stored: Parts, now: datetime) -> Fail:
    """The outcome of a claimed job that is damaged."""
    message, cause = cause_of(job.type, ", ".join(_damaged(stored)))
    return Fail(
        id=job.id,
        token="" if job.lease is None else job.lease.token,
        keep_until=now + KEPT_FOR,
        attempts=job.attempts,
        crashes=job.crashes,
        last_error=message,
        failed_at=now,
        reason=UNREADABLE,
        fingerprint=cause,
    )


def _damaged(stored: Parts) -> list[str]:
    """The names of the parts that cannot be read."""
    return [name for name in _READERS if not _is_readable(name, getattr(stored, name))]


def _is_readable(name: str, value: bytes | None) -> bool:
    if value is None:
        return name != "card"
    try:
        _READERS[name](value)
    except UNDECODABLE:
        return False
    return True


def _blanked(stored: Parts, head: Head) -> Parts:
    blanks: dict[str, bytes | None] = dict.fromkeys(_READERS)
    since = moment(head.due)
    blanks["card"] = pack(Card(TYPE, b"", since, None, None))
    blanks["claim"] = pack(ClaimPart("", since))
    changed = {name: blanks[name] for name in _damaged(stored)}
    if stored.claim is None and head.state == "inflight":
        changed["claim"] = blanks["claim"]
    return replace(stored, **changed)
