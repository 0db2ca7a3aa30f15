"""The statements that mutants break, and how: another text in one place of one statement."""

from __future__ import annotations

from typing import cast

from drivers.postgres.stage import SCHEMA
from mutants.mutant import MutantRegistry, instead
from taskharbor.drivers.postgres.sql import statements, within

# The statements as the driver runs them on the store of the tests.
SQL = cast("dict[str, str]", statements(SCHEMA))
REGISTRY = MutantRegistry("postgres")


def broken(sql: str, right: str, wrong: str = "") -> str:
    """The statement with another text in one place; its tables are called as in the files."""
    return instead(sql, within(right, SCHEMA), within(wrong, SCHEMA))
