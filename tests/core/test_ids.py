"""UUIDv7 job ids."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core import ids as core_ids
from taskharbor.core.ids import Ids, uuid7

milliseconds = st.integers(0, 2**48 - 1)
randomness = st.integers(0, 2**74 - 1)


@given(milliseconds, randomness)
def test_an_id_is_a_uuid_of_version_7(time: int, dice: int) -> None:
    """R2: the standard's text form, version and variant bits."""
    text = uuid7(time, dice)
    assert str(UUID(text)) == text
    assert UUID(text).version == 7
    assert UUID(text).variant == RFC_4122


@given(milliseconds, randomness)
def test_it_carries_the_time_and_every_random_bit(time: int, dice: int) -> None:
    """R2: 48 bits of time, 74 of rng, none lost."""
    number = UUID(uuid7(time, dice)).int
    assert number >> 80 == time
    assert (number >> 64 & 0xFFF) << 62 | number & (2**62 - 1) == dice


@given(st.tuples(milliseconds, randomness), st.tuples(milliseconds, randomness))
def test_ids_are_ordered_like_their_times(one: tuple[int, int], other: tuple[int, int]) -> None:
    """R2: as text, too; within a millisecond by the random part, so that equal ids need equal input."""
    assert (uuid7(*one) < uuid7(*other)) is (one < other)
    assert (uuid7(*one) == uuid7(*other)) is (one == other)


@given(milliseconds, st.integers(0, 2**128))
def test_more_dice_than_needed_do_not_spill(time: int, dice: int) -> None:
    """R2: surplus bits touch neither time nor version."""
    assert uuid7(time, dice) == uuid7(time, dice % 2**74)


def test_ids_begin_with_whole_milliseconds() -> None:
    """R2: of the time, rounded down."""
    time = datetime(2026, 3, 1, microsecond=1_999, tzinfo=UTC)
    assert core_ids.milliseconds(time) == 1_772_323_200_001


def test_the_example_of_the_standard() -> None:
    """R2: RFC 9562, appendix A.6."""
    assert uuid7(0x017F22E279B0, 0xCC3 << 62 | 0x18C4DC0C0C07398F) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(milliseconds, st.integers(0, 2**32))
def test_ids_of_one_moment_ascend(time: int, seed: int) -> None:
    """R2: each is a UUIDv7 of that moment, and none comes twice."""
    following = Ids(time, Random(seed).getrandbits)
    ids = [following() for _ in range(50)]
    assert {UUID(id).int >> 80 for id in ids} == {time}
    assert {(str(UUID(id)) == id, UUID(id).version, UUID(id).variant) for id in ids} == {(True, 7, RFC_4122)}
    assert len(set(ids)) == 50
    one_place = [id for id in ids if id[:24] == ids[0][:24]]
    assert one_place == sorted(one_place)


def test_the_first_id_of_a_moment_has_every_random_bit() -> None:
    """R2: so that two processes meet by none of them."""
    drawn = Random(3).getrandbits(74)
    assert Ids(5, Random(3).getrandbits)() == uuid7(5, drawn)


def test_without_room_behind_the_last_id_another_place_is_drawn() -> None:
    """R2: no digit too many, and nothing twice."""
    draws = iter([2**74 - 1, 0, 7, 0])
    following = Ids(5, lambda _: next(draws))
    assert [following(), following(), following()] == [uuid7(5, 2**74 - 1), uuid7(5, 7), uuid7(5, 8)]
