"""Rows that cannot be decoded: a claim moves them to the dead-letter queue, so that one never stops its queue.

Any program can write broken JSON, bytes that are not text and times out of range into the file. Such a row is read as
bytes and numbers, column by column; columns that can be read stay, the others are blanked, so that it can be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from apsw import Connection

from taskharbor.core.states import State
from taskharbor.drivers.shared.columns import DECODERS, STATES
from taskharbor.drivers.shared.damage import KEPT_FOR, UNREADABLE, cause_of
from taskharbor.drivers.sqlite.dependants import apply_ends, dependants
from taskharbor.drivers.sqlite.rows import FOR_EVER, MICROSECOND, SqliteRow, moment
from taskharbor.drivers.sqlite.sql import load
from taskharbor.errors import IllegalMove, StoreCorrupt

RAW, DEAD_LETTER = load("damage"), load("damage_dead_letter")

# What fetching and decoding a row can raise: bytes that are not text are a ValueError.
UNDECODABLE = (ValueError, OverflowError, KeyError, RecursionError, msgspec.MsgspecError, IllegalMove)

DecodeStored = Callable[[Any], object]


def _text(stored: bytes) -> str:
    return stored.decode()


def _json(decode: DecodeStored) -> DecodeStored:
    return lambda stored: decode(stored.decode())


# The columns of the statement damage after the first, in that order, and how each is read.
_TEXTS: dict[str, DecodeStored] = dict.fromkeys(
    ("id", "type", "queue", "idempotency_key", "workflow_id", "original_id", "worker"), _text
)
_JSONS: dict[str, DecodeStored] = {name: _json(DECODERS[name]) for name in ("headers", "tags", "failures", "progress")}
_TIMES: dict[str, DecodeStored] = dict.fromkeys(
    ("created_at", "due_at", "run_at", "expires_at", "key_expires_at", "claimed_at", "started_at", "stop_requested_at"),
    moment,
)
_MENDED = _TEXTS | _JSONS | _TIMES
_REPLACED: dict[str, DecodeStored] = {
    "state": lambda stored: STATES[stored.decode()],
    **dict.fromkeys(("token", "settled_token", "settled_kind", "stop_reason", "stop_fingerprint"), _text),
    **dict.fromkeys(("last_error", "dlq_reason", "fingerprint"), _text),
    **dict.fromkeys(("lease_expires_at", "settled_at", "stop_keep_until", "failed_at", "completed_at"), moment),
    **dict.fromkeys(("keep_until", "place"), moment),
}
_COLUMNS = _MENDED | _REPLACED


def dead_letter(db: Connection, seq: int, now: int, error: Exception) -> None:
    """Dead-letter a job that cannot be decoded, and affect its dependants as any failure does."""
    (row,) = db.execute(RAW, (seq, 1)).fetchall()
    wrong = _wrong(row)
    mended = [_mended(name, stored, name in wrong, now) for name, stored in zip(_MENDED, row[1:], strict=False)]
    message, cause = cause_of(str(mended[1]), _listed(wrong) or error)
    until = now + KEPT_FOR // MICROSECOND
    db.execute(DEAD_LETTER, (seq, now, until, message, UNREADABLE, cause, FOR_EVER, *mended))
    id = str(mended[0])
    apply_ends(db, [(id, State.DLQ)], dependants(db, [id]), now)


def corrupt(db: Connection, last: int, error: Exception) -> Exception:
    """Return the error for a read that met a damaged row among the jobs up to a number, the newest first."""
    for row in db.execute(RAW, (last, -1)):
        wrong = _wrong(row)
        if wrong:
            return damaged(f"number {row[0]}" if "id" in wrong else row[1].decode(), _listed(wrong))
    return error


def damaged(job: str, what: object) -> StoreCorrupt:
    """Return the error for one damaged job, with the fix."""
    return StoreCorrupt(
        f"job {job} is damaged ({what}): a worker of its queue moves it to the dead-letter queue once it is due; "
        "if it has finished, delete it"
    )


def _wrong(row: SqliteRow) -> dict[str, str]:
    """The columns that cannot be read, and why."""
    wrong: dict[str, str] = {}
    for (name, read), stored in zip(_COLUMNS.items(), row[1:], strict=True):
        try:
            if stored is not None:
                read(stored)
        except UNDECODABLE as error:
            wrong[name] = str(error)
    return wrong


def _listed(wrong: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in wrong.items())


def _mended(name: str, stored: Any, wrong: bool, now: int) -> Any:
    """Return the value to store in a column."""
    if wrong:
        if name in _TEXTS:
            return stored.hex().upper()
        return now if name in ("created_at", "due_at") else None
    return stored.decode() if isinstance(stored, bytes) else stored
