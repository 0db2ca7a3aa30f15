"""The SQL of this driver: named statements under `sql/`, the scripts of the schema under `migrations/`."""

from __future__ import annotations

from taskharbor.drivers.shared.statements import scripts, statements

PACKAGE = "taskharbor.drivers.sqlite"
STATEMENTS = statements(PACKAGE)


def load(name: str) -> str:
    """The statement of that name."""
    return STATEMENTS[name]


def migrations() -> list[str]:
    """The scripts that make the schema, in order: the n-th one leads from version n - 1 to n."""
    return list(scripts(PACKAGE, "migrations").values())
