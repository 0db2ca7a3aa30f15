"""What a terminal shows: tables by rich, colours unless NO_COLOR, and columns that give way when it is narrow."""

from __future__ import annotations

import logging

import pytest

from taskharbor.cli.logs import ForFiles, ForPeople
from taskharbor.runtime.observe import JobFilter

from .desk import Desk, in_terminal, unpainted

TABLES = [["jobs", "ls"], ["dlq", "ls"], ["dlq", "groups"], ["stats"]]


def shown(desk: Desk, width: int, *words: str, **environment: str) -> str:
    """What a command that goes well shows in a terminal of this width."""
    code, text = in_terminal(desk.folder, width, *words, "--url", desk.url, **environment)
    assert code == 0, text
    return text


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """A store with a done job and a dead one."""
    desk.enqueue("shop.welcome", "user_id=1")
    desk.enqueue("shop.explode", 'text="[red]boom[/red]"', "--id", "00000000-0000-7000-8000-000000000000")
    desk.drain()
    return desk


@pytest.mark.parametrize("words", TABLES, ids=" ".join)
def test_colours_only_where_wanted(busy: Desk, words: list[str]) -> None:
    """C: NO_COLOR is respected."""
    assert "\x1b[3" in shown(busy, 120, *words)
    plain = shown(busy, 120, *words, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "shop.explode" in plain


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize("words", TABLES, ids=" ".join)
def test_tables_fit_the_terminal(busy: Desk, width: int, words: list[str]) -> None:
    """C: no line is wider than the terminal; from 60 columns on, ids are whole."""
    text = unpainted(shown(busy, width, *words))
    assert max(len(line) for line in text.splitlines()) <= width
    if width >= 60 and words[-1] == "ls":
        assert "00000000-0000-7000-8000-000000000000" in text


def test_stored_text_is_no_markup(busy: Desk) -> None:
    """X5: brackets stay what they are."""
    assert "[red]boom[/red]" in unpainted(shown(busy, 140, "dlq", "ls"))
    page = unpainted(shown(busy, 140, "dlq", "show", "00000000-0000-7000-8000-000000000000"))
    assert "ValueError: [red]boom[/red]" in page
    assert '"text": "[red]boom[/red]"' in page


def test_log_lines_for_people_and_for_files() -> None:
    """C: in a terminal a coloured level, elsewhere fixed fields and one line."""
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "sunk\n\x1b[0m by %s", ("rain",), None)
    JobFilter().filter(record)
    assert ForFiles().format(record).endswith(" WARNING shop job=- task=- attempt=- sunk\\n\\x1b[0m by rain")
    assert ForPeople(colour=False).format(record).endswith(" WARNING sunk\n\\x1b[0m by rain")
    assert "\x1b[33mWARNING" in ForPeople(colour=True).format(record)
    record.job_id, record.task, record.attempt = "one", "shop.welcome", 2
    assert ForPeople(colour=False).format(record).endswith("by rain  [shop.welcome one attempt 2]")
