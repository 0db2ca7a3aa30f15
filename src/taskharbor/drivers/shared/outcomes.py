"""The outcomes that the SQL drivers write many at a time."""

from __future__ import annotations

from taskharbor.core.transition import Ack, Transition


def is_plain(to: Transition) -> bool:
    """Whether this is a success of a job that never failed, without a result and without new jobs."""
    return (
        type(to) is Ack
        and to.result is None
        and not (to.attempts or to.crashes or to.unknown_put_backs or to.new_jobs or to.failures)
        and to.last_error is None
        and to.failed_at is None
    )
