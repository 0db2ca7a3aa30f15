"""Sizes of memory as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.sizes import shown_size, size
from taskharbor.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512 MiB", 512 * 1024**2),
        ("512M", 512 * 1024**2),
        ("512mb", 512 * 1024**2),
        ("1.5GiB", 3 * 1024**3 // 2),
        (" 64 KiB ", 64 * 1024),
        ("2t", 2 * 1024**4),
        ("1000", 1000),
        ("1000 B", 1000),
    ],
)
def test_a_size(text: str, number: int) -> None:
    """C: a number and a unit, which is a power of 1024; without one, bytes."""
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "much", "-1M", "1 2", "M", "1e9", "1 XiB", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    """X5: with the way to write it."""
    with pytest.raises(ConfigError, match=re.escape("write a number and KiB, MiB or GiB, such as 512MiB")):
        size(text)


@pytest.mark.parametrize(
    ("number", "text"), [(1000, "1000 bytes"), (2048, "2 KiB"), (50_500_000, "48.2 MiB"), (3 * 1024**3, "3 GiB")]
)
def test_a_size_for_people(number: int, text: str) -> None:
    """C: in the largest unit."""
    assert shown_size(number) == text


@given(st.integers(1, 1023), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_shown_size_can_be_read(number: int, unit: str) -> None:
    """C: what a message shows may be given back."""
    if number < 1000:
        assert shown_size(size(f"{number} {unit}")) == f"{number} {unit}"
