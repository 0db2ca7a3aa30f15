"""Writes of a step by fewer commands: the same result as one by one."""

from __future__ import annotations

from taskharbor.drivers.redis.entries import MOST_WORDS, Write, together


def test_commands_on_one_key_become_one_and_numbers_are_added_up() -> None:
    writes: list[Write] = [
        ("HINCRBY", "counts", "ready q", "-1"),
        ("HSET", "job", "a", "1"),
        ("ZADD", "ended", "5", "a"),
        ("HINCRBY", "counts", "done q", "1"),
        ("HSET", "job", "b", "2"),
        ("HINCRBY", "counts", "done q", "2"),
        ("HINCRBY", "counts", "ready q", "1"),
    ]
    assert list(together(writes)) == [
        ("HSET", "job", "a", "1", "b", "2"),
        ("ZADD", "ended", "5", "a"),
        ("HINCRBY", "counts", "done q", 3),
    ]


def test_entries_are_removed_first() -> None:
    writes: list[Write] = [
        ("HSET", "job", "a", "1"),
        ("ZREM", "leases", "a"),
        ("ZADD", "ended", "5", "a"),
        ("ZREM", "leases", "b"),
    ]
    assert list(together(writes)) == [
        ("ZREM", "leases", "a", "b"),
        ("HSET", "job", "a", "1"),
        ("ZADD", "ended", "5", "a"),
    ]


def test_fields_are_removed_last_so_that_nothing_is_counted_after_them() -> None:
    """K5: the totals of a workflow go with its last job, whose end is counted in the same step."""
    writes: list[Write] = [("HDEL", "flowcounts", "done f"), ("HINCRBY", "flowcounts", "done f", "-1")]
    assert [write[0] for write in together(writes)] == ["HINCRBY", "HDEL"]


def test_a_command_has_no_more_words_than_a_script_can_hold() -> None:
    writes: list[Write] = [("HSET", "job", str(number), "x") for number in range(MOST_WORDS)]
    sizes = [len(write) - 2 for write in together(writes)]
    assert sizes == [MOST_WORDS, MOST_WORDS]
