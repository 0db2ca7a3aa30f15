"""D: drivers read no clock. Neither do their statements: every time is a parameter."""

from __future__ import annotations

import re

import pytest

from taskharbor.drivers.shared.statements import scripts, statements

# What the engines call the time, and functions of theirs that return it when they are given nothing or 'now'.
CLOCKS = re.compile(
    r"\b(current_(time|date|timestamp)|local(time|timestamp)|sysdate)\b"
    r"|\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|getdate)\s*\("
    r"|\b(datetime|date|time|julianday|unixepoch|strftime|timediff)\s*\("
    r"|'(now|today|tomorrow|yesterday|allballs)'"
    r"|\bage\s*\(|\bpg_sleep|\bdefault\s+(now|current)",
    re.IGNORECASE,
)


def texts(package: str) -> dict[str, str]:
    migrations = scripts(package, "migrations").items()
    return {**statements(package), **{name: re.sub(r"--[^\n]*", "", text) for name, text in migrations}}


@pytest.mark.parametrize("driver", ["postgres", "sqlite"])
def test_no_statement_reads_a_clock(driver: str) -> None:
    """D, L8: not in a statement, not in a default, not in a view."""
    found = texts(f"taskharbor.drivers.{driver}")
    assert len(found) > 70
    assert {name: clock.group() for name, text in found.items() if (clock := CLOCKS.search(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT now()",
        "SELECT NOW ( )",
        "SELECT current_timestamp",
        "SELECT CURRENT_DATE",
        "SELECT clock_timestamp()",
        "SELECT statement_timestamp()",
        "SELECT localtimestamp",
        "SELECT 'now'::timestamptz",
        "SELECT julianday('now')",
        "SELECT strftime('%s')",
        "CREATE TABLE x (a timestamptz DEFAULT now())",
    ],
)
def test_the_test_would_notice(text: str) -> None:
    assert CLOCKS.search(text)
