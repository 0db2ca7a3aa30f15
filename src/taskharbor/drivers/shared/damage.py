"""The end of a job whose record cannot be decoded: why it is dead-lettered, and how long it is kept."""

from __future__ import annotations

from datetime import timedelta

from taskharbor.core.fingerprint import fingerprint

UNREADABLE = "undecodable"
KEPT_FOR = timedelta(days=30)


def cause_of(type: str, what: object) -> tuple[str, str]:
    """Return the error of a damaged job, and its fingerprint."""
    message = f"the stored job is damaged: {what}"
    return message, fingerprint(type, UNREADABLE, message)
