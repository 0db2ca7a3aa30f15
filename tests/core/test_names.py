"""Texts that may be names."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.names import KEY_LIMIT, NAME_LIMIT, check_name
from taskharbor.errors import InvalidJob

FORBIDDEN_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=255))
def test_any_unicode_may_name_a_queue(text: str) -> None:
    """X5: the text comes back as it is, neither normalised nor stripped."""
    assert check_name("queue", text) is text


@given(st.text(max_size=50), st.characters(categories=["Cc", "Cs", "Zl", "Zp"]), st.text(max_size=50))
def test_control_characters_and_lone_surrogates_are_refused(before: str, odd: str, after: str) -> None:
    """X5: the message can be printed, and says which character stands where and what is allowed."""
    with pytest.raises(InvalidJob, match="any other Unicode is") as refused:
        check_name("queue", before + odd + after)
    first = next(place for place, c in enumerate(before + odd) if unicodedata.category(c) in FORBIDDEN_CATEGORIES)
    assert f"at position {first}:" in str(refused.value)
    assert str(refused.value).encode()


@pytest.mark.parametrize("odd", ["\x00", "\n", "\x7f", "\x85", "\x9f", "\u2028", "\u2029", "\ud800"])
def test_the_edges_of_the_forbidden_ranges(odd: str) -> None:
    """X5: NUL, newline, DEL, C1 controls, line separators, surrogates."""
    with pytest.raises(InvalidJob, match="position 1"):
        check_name("queue", f"a{odd}")


@pytest.mark.parametrize(
    "fine", [" ", "~", "\xa0", "ü", "\ud7ff", "\ue000", "\u2027", "\u202a", "日本", "🚢", "*", "%"]
)
def test_their_neighbours_are_fine(fine: str) -> None:
    """X5: everything else works."""
    assert check_name("queue", fine) == fine


@pytest.mark.parametrize("limit", [NAME_LIMIT, KEY_LIMIT])
def test_the_length_is_bounded_exactly(limit: int) -> None:
    """X5: 1 to `limit` characters, counted as characters."""
    assert check_name("key", "ü" * limit, limit)
    for text in ("", "ü" * (limit + 1)):
        with pytest.raises(InvalidJob, match=f"key must have 1 to {limit} characters, this one has {len(text)}"):
            check_name("key", text, limit)


@pytest.mark.parametrize(("odd", "kind"), [(None, "None"), (5, "int"), (b"mail", "bytes"), (["mail"], "list")])
def test_a_name_is_text(odd: object, kind: str) -> None:
    """X5: the message names the type that was given."""
    with pytest.raises(InvalidJob, match=f"queue must be text, not {kind}$"):
        check_name("queue", odd)
