"""Short ids: the endings of ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.short_ids import ending, endings, matching

ONE = "0198c5d2-0000-7000-8000-0000deadbeef"
OTHER = "0198c5d2-0000-7000-8000-0001deadbeef"


def test_ids_are_shown_by_eight_characters_or_as_many_as_it_takes() -> None:
    """C, R2: UUIDv7 begins with the time; a listed id differs from every other by its ending."""
    assert endings([]) == []
    assert endings([ONE, "short"]) == ["deadbeef", "short"]
    assert endings([ONE, OTHER, ONE]) == ["0deadbeef", "1deadbeef", "0deadbeef"]


def test_ids_that_callers_gave_are_shown_whole() -> None:
    """C, R2: only a UUID has an ending; one that is the id of another job is not shown for it."""
    assert endings(["daily-report-2026-01-01", ONE]) == ["daily-report-2026-01-01", "deadbeef"]
    assert endings(["deadbeef", ONE]) == ["deadbeef", "0deadbeef"]


def test_no_ending_looks_like_an_option() -> None:
    """C: it can be written behind a command as it is shown."""
    ids = ["0198c5d2-0000-7000-8000-0000deadbeef", "0198c5d2-0000-7000-8001-0000deadbeef"]
    assert endings(ids) == ["0-0000deadbeef", "1-0000deadbeef"]


uuids = st.builds(
    "{}{}-7000-8000-0000000{}".format,
    st.sampled_from("01"),
    st.just("198c5d2-0000"),
    st.from_regex("[01]{5}", fullmatch=True),
)


@given(st.lists(st.text("01ab-", min_size=1, max_size=14) | uuids))
def test_no_two_ids_are_shown_alike(ids: list[str]) -> None:
    """C: unique in what is listed."""
    shown = endings(ids)
    assert len(set(shown)) == len(set(ids))
    for id, short in zip(ids, shown, strict=True):
        assert short == id or id in matching(short, ids)


def test_what_a_person_writes() -> None:
    """C: the ellipsis of a longer id may be copied along; other texts than endings of UUIDs are not searched for."""
    assert ending("…deadbeef") == "deadbeef"
    assert ending("DEADBEEF") == "DEADBEEF"
    assert ending(ONE[1:]) == ONE[1:]
    for text in ("eadbeef", "…eadbeef", ONE, f"…{ONE}", f"0{ONE}", "report-2026-01-01", "2026-01-01", "deadbeeg", ""):
        assert ending(text) is None


def test_only_uuids_are_meant_by_an_ending() -> None:
    """C: the ids that callers gave are not."""
    assert matching("deadbeef", ["x-deadbeef", "deadbeef", ONE, OTHER]) == [ONE, OTHER]
