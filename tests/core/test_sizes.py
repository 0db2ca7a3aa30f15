"""Sizes of memory, and the limits of processes that are made of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor.core.recycling import Recycle
from taskharbor.core.sizes import shown_size, size
from taskharbor.errors import ConfigError

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("512 MiB", 512 * MIB),
        ("512MB", 512 * MIB),
        ("512M", 512 * MIB),
        (" 1.5 gib ", 1536 * MIB),
        ("64 KiB", 65536),
        ("2 TiB", 2 * 1024 * 1024 * MIB),
        ("4096", 4096),
        ("4096 bytes", 4096),
        (4096, 4096),
    ],
)
def test_a_size_is_text_or_bytes(given: int | str, found: int) -> None:
    assert size("memory", given) == found


@pytest.mark.parametrize("wrong", ["", "much", "-1 MiB", "1 XiB", 0, -5, True, 1.5, None, "0 MiB", 1 << 70])
def test_a_wrong_size_is_refused(wrong: Any) -> None:
    """X5: the message shows how to write one."""
    with pytest.raises(ConfigError, match='memory must be text such as "512 MiB"'):
        size("memory", wrong)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1, "1 byte"), (300, "300 bytes"), (512 * MIB, "512 MiB"), (1536 * MIB, "1.5 GiB"), (2048, "2 KiB")],
)
def test_a_size_is_shown_in_its_largest_unit(number: int, shown: str) -> None:
    assert shown_size(number) == shown


def test_a_process_is_recycled_when_any_limit_is_reached() -> None:
    limits = Recycle(jobs=3, age=timedelta(minutes=1), memory="1 MiB")
    assert (limits.age, limits.memory) == (60.0, MIB)
    assert not limits.is_due(2, 59.0, MIB - 1)
    assert limits.is_due(3, 0.0, 0)
    assert limits.is_due(0, 60.0, 0)
    assert limits.is_due(0, 0.0, MIB)
    assert not Recycle(age=None).is_due(10**9, 1e9, 1 << 40)


@pytest.mark.parametrize(
    "wrong",
    [{"jobs": 0}, {"jobs": True}, {"jobs": "5"}, {"age": 0}, {"age": True}, {"age": "1h"}, {"memory": "big"}],
)
def test_limits_that_can_never_hold_are_refused(wrong: Any) -> None:
    """X5: the message names the limit."""
    with pytest.raises(ConfigError, match=f"Recycle: {next(iter(wrong))}"):
        Recycle(**wrong)
