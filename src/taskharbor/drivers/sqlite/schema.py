"""Whose file it is and which version: `application_id` marks our files, `user_version` counts migrations."""

from __future__ import annotations

from pathlib import Path

import apsw

from taskharbor.drivers.sqlite import sql
from taskharbor.errors import SchemaMismatch, StoreCorrupt

APPLICATION_ID = 0x54_61_48_62


def check_identity(db: apsw.Connection, path: Path) -> None:
    """Refuse a file of something else, or of a later version, before anything is written to it."""
    if db.pragma("application_id") != APPLICATION_ID:
        if not _is_blank(db):
            raise StoreCorrupt(f"{path} is the database of something else: use another file")
        return
    known, found = len(sql.migrations()), _version(db)
    if found > known:
        raise SchemaMismatch(
            f"{path} was made by a newer TaskHarbor (schema {found}, this version knows {known}): upgrade taskharbor"
        )


def migrate(db: apsw.Connection, path: Path) -> None:
    """Bring the schema up to date, one transaction per step; whoever comes second finds it done."""
    scripts = sql.migrations()
    while _version(db) < len(scripts):
        db.execute("BEGIN IMMEDIATE")
        try:
            check_identity(db, path)
            version = _version(db)
            if version < len(scripts):
                db.execute(scripts[version])
                db.pragma("user_version", version + 1)
                db.pragma("application_id", APPLICATION_ID)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _version(db: apsw.Connection) -> int:
    return int(db.pragma("user_version") or 0)


def _is_blank(db: apsw.Connection) -> bool:
    return (
        not db.pragma("application_id")
        and not _version(db)
        and not db.execute("SELECT count(*) FROM sqlite_schema").get
    )
