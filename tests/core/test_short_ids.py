"""Short ids: the endings of ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.short_ids import ending, endings, matching


def test_ids_are_shown_by_eight_characters_or_as_many_as_it_takes() -> None:
    """C, R2: UUIDv7 begins with the time; a listed id is told from every other by its ending."""
    assert endings([]) == []
    assert endings(["0198c5d2-0000-7000-8000-0000deadbeef", "short"]) == ["deadbeef", "short"]
    assert endings(["a-1-12345678", "a-2-12345678", "a-1-12345678"]) == ["1-12345678", "2-12345678", "1-12345678"]


@given(st.lists(st.text("01ab-", min_size=1, max_size=14)))
def test_no_two_ids_are_shown_alike(ids: list[str]) -> None:
    """C: unique in what is listed."""
    shown = endings(ids)
    assert len(set(shown)) == len(set(ids))
    for id, short in zip(ids, shown, strict=True):
        assert id in matching(short, ids)


def test_what_a_person_writes() -> None:
    """C: the ellipsis of a longer id may be copied along; two or three characters are not searched for."""
    assert ending("…deadbeef") == "deadbeef"
    assert ending("beef") == "beef"
    assert ending("eef") is None
