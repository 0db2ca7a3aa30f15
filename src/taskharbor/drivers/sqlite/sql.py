"""The SQL of this driver, one static statement per file under `sql/`, read once.

Comments and line breaks are dropped on the way: apsw hashes the text of a statement at every call to find it prepared.
"""

from __future__ import annotations

import re
from importlib.resources import files


def load(name: str) -> str:
    """The statement of `sql/<name>.sql`."""
    return squeezed((files(__package__) / "sql" / f"{name}.sql").read_text("utf-8"))


def migrations() -> list[str]:
    """The scripts that make the schema, in order: the n-th one leads from version n - 1 to n."""
    folder = files(__package__) / "migrations"
    scripts = sorted((script for script in folder.iterdir() if script.name.endswith(".sql")), key=lambda it: it.name)
    return [script.read_text("utf-8") for script in scripts]


def squeezed(text: str) -> str:
    """The statement on one line."""
    return " ".join(re.sub(r"--.*", "", text).split())
