"""Whether a file is ours and of which version: `application_id` marks our files, `user_version` counts migrations."""

from __future__ import annotations

from pathlib import Path

import apsw

from taskharbor.drivers.sqlite import sql
from taskharbor.errors import SchemaMismatch, StoreCorrupt

APPLICATION_ID = 0x54_61_48_62


def check_identity(db: apsw.Connection, path: Path) -> None:
    """Refuse a file of another program, or of a later version, before anything is written to it."""
    owner, found, is_blank = _snapshot(db)
    if owner != APPLICATION_ID:
        if owner or found or not is_blank:
            raise StoreCorrupt(f"{path} is the database of another program: use another file")
        return
    known = len(sql.migrations())
    if found > known:
        raise SchemaMismatch(
            f"{path} was made by a newer TaskHarbor (schema {found}, this version knows {known}): upgrade taskharbor"
        )


def migrate(db: apsw.Connection, path: Path) -> None:
    """Bring the schema up to date, one transaction per migration; a second process finds it done."""
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


def _snapshot(db: apsw.Connection) -> tuple[int, int, bool]:
    """The owner, the version, and whether the file is empty, in one snapshot: another process may be creating it."""
    alone = not db.in_transaction
    if alone:
        db.execute("BEGIN")
    try:
        is_blank = not db.execute("SELECT count(*) FROM sqlite_schema").get
        return int(db.pragma("application_id") or 0), _version(db), is_blank
    finally:
        if alone:
            db.execute("ROLLBACK")
