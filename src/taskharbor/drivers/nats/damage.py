"""Jobs that cannot be read: a claim moves them to the dead-letter queue, so that none stops its queue.

Their cards are missing or cannot be decoded, because something else has written to the streams.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from taskharbor.core.job import JobRecord
from taskharbor.core.transition import Fail
from taskharbor.drivers.shared.damage import KEPT_FOR, UNREADABLE, cause_of

TYPE = "(damaged)"
UNDECODABLE = (msgspec.DecodeError, TypeError, ValueError, OverflowError)


def damaged_fail(job: JobRecord, now: datetime) -> Fail:
    """The outcome of a claimed job without a card that can be read."""
    message, cause = cause_of(TYPE, "card")
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
