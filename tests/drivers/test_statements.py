"""The statements of the SQL drivers: how their files are read, and that the drivers name and order them alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from taskharbor.drivers.shared import statements as reader
from taskharbor.drivers.shared.statements import blocks, scripts, statements

DRIVERS = ("postgres", "sqlite")
GROUPS = ["dependants", "enqueue", "inspect", "keys", "manage", "records", "reserve", "settle", "upkeep"]
# PostgreSQL takes row and key locks explicitly, splits live from ended rows, and stores batches by one statement.
POSTGRES_ONLY = {
    *("enqueue_keyed", "enqueue_group", "enqueue_number", "enqueue_line", "enqueue_waiting"),
    *("enqueue_awaited", "notify", "key_held", "key_hold", "key_leave", "reserve_on", "key_take", "step_hold"),
    *(
        "step_line",
        "step_hold_parents",
        "step_hold_live",
        "step_hold_ended",
        "live_jobs",
        "ended_jobs",
        "held_live",
        "held_ended",
    ),
    *("settle_ended", "hold", "hold_ended", "hold_free", "needed", "dependants_release_ended"),
    *("numbers", "live_columns", "ended_columns", "freed"),
    *("location", "version", "ranks", "is_live", "schedule_hold", "tally_sum", "matches_ended", "new_jobs", "new_line"),
}
# SQLite claims in several statements under one write lock, settles job by job, and mends damaged files.
SQLITE_ONLY = {
    "step_damaged",
    *("enqueue_last", "enqueue_undo", "key_drop", "claimable", "reserve_seqs", "reserve_peek", "reserve_priority"),
    *("reserve_row", "reserve_lapsed", "reserve_line_up", "settle_ack", "settle_fail", "settle_cancel"),
    *("new_job", "dependants_any", "dependants_satisfy_all", "damage", "damage_dead_letter", "record", "counts_line"),
    *("claimed", "claim_range", "done", "settle_done_range", "settled", "fenced"),
}


def package(driver: str) -> str:
    return f"taskharbor.drivers.{driver}"


def names(driver: str, group: str) -> list[str]:
    return [block.name for block in blocks(scripts(package(driver), "sql")[group])]


class TestBothDrivers:
    @pytest.mark.parametrize("driver", DRIVERS)
    def test_the_files_are_the_same(self, driver: str) -> None:
        assert list(scripts(package(driver), "sql")) == GROUPS

    @pytest.mark.parametrize("group", GROUPS)
    def test_the_same_act_has_the_same_name_and_place(self, group: str) -> None:
        ours, theirs = names("postgres", group), names("sqlite", group)
        assert [name for name in ours if name not in POSTGRES_ONLY] == [it for it in theirs if it not in SQLITE_ONLY]
        assert not POSTGRES_ONLY & set(theirs)
        assert not SQLITE_ONLY & set(ours)

    @pytest.mark.parametrize("driver", DRIVERS)
    def test_each_statement_is_used_and_each_name_known(self, driver: str) -> None:
        """A misspelled name fails here, not at the first call."""
        said, asked = set[str](), set[str]()
        folders = [Path(str(files(package(it)))) for it in (driver, "shared")]
        for module in (module for folder in folders for module in folder.glob("*.py")):
            tree = ast.parse(module.read_text("utf-8"))
            said |= {it.value for it in ast.walk(tree) if isinstance(it, ast.Constant) and isinstance(it.value, str)}
            asked |= set(_asked(tree))
        known = set(statements(package(driver)))
        assert known - said == set()
        assert asked - known == set()
        assert len(asked) > 50


def _asked(tree: ast.AST) -> Iterator[str]:
    """The names that calls of `rows`, `value` and `load` are given."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        first = call.args[1:2] if called in ("value", "_rows") else call.args[:1]
        if called in ("rows", "_rows", "value", "load") and first and isinstance(first[0], ast.Constant):
            yield str(first[0].value)


class TestReading:
    def read(self, patch: pytest.MonkeyPatch, **texts: str) -> dict[str, str]:
        patch.setattr(reader, "scripts", lambda _package, _folder: texts)
        return dict(statements("some.driver"))

    def test_a_block_is_a_statement_on_one_line_without_comments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "-- A file.\n\n-- name: a\n-- Why. $1 x\nSELECT 1,\n    $1 -- one\n\n-- name: b\nSELECT 2\n"
        assert self.read(monkeypatch, one=text) == {"a": "SELECT 1, $1", "b": "SELECT 2"}

    def test_parts_are_included_also_from_other_files_and_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = "-- name: a\nSELECT\n-- include: p\nFROM x\n"
        two = "-- part: p\n1,\n-- include: q\n-- part: q\n2\n"
        assert self.read(monkeypatch, one=one, two=two) == {"a": "SELECT 1, 2 FROM x"}

    @pytest.mark.parametrize(
        ("one", "two", "match"),
        [
            ("-- name: a\nSELECT 1\n", "-- name: a\nSELECT 2\n", r"sql/two\.sql: there are two blocks named a"),
            ("-- name: a\nSELECT 1\n", "-- part: a\n2\n", "two blocks named a"),
            ("-- name: a\n-- include: b\n", "-- part: c\n1\n", "a includes b, and there is no such part"),
            ("-- name: a\n-- include: b\n", "-- name: b\nSELECT 1\n", "no such part"),
            ("SELECT 1\n-- name: a\nSELECT 1\n", "", "text before the first name: SELECT 1"),
        ],
    )
    def test_mistakes_are_errors(self, monkeypatch: pytest.MonkeyPatch, one: str, two: str, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            self.read(monkeypatch, one=one, two=two)
