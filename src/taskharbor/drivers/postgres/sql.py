"""The SQL of this driver: named statements under `sql/`, the scripts of the schema under `migrations/`.

The files call the schema `harbor`, which is replaced by the namespace of a store, so tables are found without any state
in the session, also through a pooler and in a transaction of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from taskharbor.drivers.shared import statements as shared
from taskharbor.errors import ConfigError

PACKAGE = "taskharbor.drivers.postgres"
DEFAULT_SCHEMA = "taskharbor"
LONGEST_NAME = 57  # of 63: the channel is named after the schema
OURS = re.compile(r"(?P<text>')?\bharbor\.")


class SchemaScript(Struct, frozen=True, kw_only=True):
    """A script that leads from version `number - 1` of the schema to `number`. Its file name says what kind it is.

    `NNNN_name.sql` runs in a transaction and only adds, so that older programs go on working. `.alone` in the name: it
    cannot run in a transaction, such as CREATE INDEX CONCURRENTLY; after an interruption it runs again from its
    beginning. `.breaking`: older programs must not work with the schema.
    """

    number: int
    name: str
    text: str
    alone: bool
    breaking: bool


def quoted(schema: str) -> str:
    """The name of the schema, quoted for SQL; `ConfigError` if it cannot be one."""
    if not schema or len(schema.encode()) > LONGEST_NAME or not schema.isprintable():
        raise ConfigError(f"{schema[:80]!r} cannot be a namespace: use 1 to {LONGEST_NAME} bytes of printable text")
    if schema.startswith("pg_") or schema in ("public", "information_schema"):
        raise ConfigError(f"{schema!r} cannot be a namespace: TaskHarbor wants a schema of its own, such as shop_jobs")
    return '"' + schema.replace('"', '""') + '"'


@cache
def statements(schema: str) -> Mapping[str, str]:
    """All statements by name, for one schema."""
    return {name: within(text, schema) for name, text in shared.statements(PACKAGE).items()}


def migrations(schema: str) -> list[SchemaScript]:
    """The scripts that make the schema, in order."""
    return [_script(number, *it, schema) for number, it in enumerate(_texts(), start=1)]


def _script(number: int, file: str, text: str, schema: str) -> SchemaScript:
    name, *kinds = file.split(".")
    if not name.startswith(f"{number:04}_") or not set(kinds) <= {"alone", "breaking"}:
        raise AssertionError(f"migrations/{file}.sql: step {number} is named {number:04}_name[.alone][.breaking].sql")
    return SchemaScript(
        number=number, name=name, text=within(text, schema), alone="alone" in kinds, breaking="breaking" in kinds
    )


def within(text: str, schema: str) -> str:
    """A text of our files for one schema; also for names inside quotes, as nextval takes them."""
    name = quoted(schema)
    in_text = name.replace("'", "''")
    return OURS.sub(lambda found: f"'{in_text}." if found["text"] else f"{name}.", text)


def _texts() -> list[tuple[str, str]]:
    return sorted(shared.scripts(PACKAGE, "migrations").items())
