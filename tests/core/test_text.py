"""Texts about errors: bounded, printable, whatever the exception does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.text import ERROR_LIMIT, bounded, bounded_end, described, kind_of, message_of, stamp

wild = st.builds(mul, st.text(st.characters()), st.integers(1, 60))  # lone surrogates included
limits = st.integers(64, 200)


def test_the_limit_is_eight_kibibytes() -> None:
    """R4: `last_error` and tracebacks."""
    assert ERROR_LIMIT == 8192


@given(wild, limits)
def test_a_text_is_cut_at_its_end_and_says_so(text: str, limit: int) -> None:
    """R4: at most `limit` bytes of valid UTF-8; a cut one names its whole size, another is left alone."""
    kept, raw = bounded(text, limit), text.encode("utf-8", "backslashreplace")
    assert len(kept.encode()) <= limit
    if len(raw) <= limit:
        assert kept == raw.decode()
    else:
        beginning, _, note = kept.rpartition(" … ")
        assert raw.startswith(beginning.encode())
        assert note == f"[cut: {len(raw)} bytes in all]"


@given(wild, limits)
def test_a_traceback_is_cut_at_its_beginning_and_says_so(text: str, limit: int) -> None:
    """R4: the end of a traceback names the error and the innermost frame, so the end is kept."""
    kept, raw = bounded_end(text, limit), text.encode("utf-8", "backslashreplace")
    assert len(kept.encode()) <= limit
    if len(raw) <= limit:
        assert kept == raw.decode()
    else:
        note, _, end = kept.partition(" … ")
        assert raw.endswith(end.encode())
        assert note == f"[cut: {len(raw)} bytes in all]"


@given(wild, limits)
def test_cutting_twice_changes_nothing(text: str, limit: int) -> None:
    """R4: what was bounded once stays as it is."""
    assert bounded(bounded(text, limit), limit) == bounded(text, limit)
    assert bounded_end(bounded_end(text, limit), limit) == bounded_end(text, limit)


def test_lone_surrogates_become_visible() -> None:
    """R4: what UTF-8 cannot carry is escaped, not lost."""
    assert bounded("a\ud800b") == bounded_end("a\ud800b") == "a\\ud800b"


def test_a_kind_names_its_module_unless_it_is_pythons_own() -> None:
    """Q1: errors of one name from two libraries are two kinds."""

    class Mine(Exception):
        pass

    assert kind_of(ValueError()) == "ValueError"
    assert kind_of(Mine()) == f"{__name__}.{Mine.__qualname__}"


@pytest.mark.parametrize("broken", [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_error_that_cannot_say_its_message_is_still_named(broken: type[BaseException]) -> None:
    """F11: `__str__` is the user's code and may raise anything."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise broken

    assert message_of(Mute()) == f"<Mute whose message cannot be shown: {broken.__name__}>"


def test_a_message_that_is_not_text_is_named_too() -> None:
    """F11: `__str__` may return anything."""

    class Odd(Exception):
        def __str__(self) -> str:
            return 5  # type: ignore[return-value]

    assert message_of(Odd()) == "<Odd whose message cannot be shown: TypeError>"
    assert message_of(ValueError("plain")) == "plain"
    assert described(Odd()) == "Odd: <Odd whose message cannot be shown: TypeError>"
    assert described(ValueError("plain")) == "ValueError: plain"


def test_moments_are_stamped_in_utc_with_milliseconds() -> None:
    """R3: one format, in logs as in messages."""
    assert stamp(datetime(2030, 1, 31, 9, 0, 0, 123456, UTC)) == "2030-01-31T09:00:00.123Z"
    assert stamp(datetime(2030, 1, 31, 9, 0, tzinfo=timezone(timedelta(hours=2)))) == "2030-01-31T07:00:00.000Z"
