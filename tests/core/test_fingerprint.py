"""Dead letters by what they died of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.fingerprint import LONGEST, fingerprint, normalised


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user 17 not found", "user 4711 not found"),
        ("no file 'a.txt'", "no file 'b/c.txt'"),
        ('no key "x y"', 'no key ""'),
        ("timed out after 2.5 s", "timed out after 30 s"),
        ("<object at 0x7f2a>", "<object at 0x11bb>"),
        (
            "job 01890a5d-ac96-774b-bcce-b302099a8057 is gone",
            "job 01890a5d-ac96-774b-bcce-b302099a8058 is gone",
        ),
        ("commit 3f9d2c1b0a4e failed", "commit 99d2c1b0a4ef failed"),
        ("no route to 10.0.0.1:5432", "no route to 192.168.7.12:6543"),
        ("bad line\n  at 3", "bad line\n  at 4\n in x"),
        ("  spaces   inside ", "spaces inside"),
    ],
)
def test_what_differs_from_case_to_case_is_left_out(one: str, other: str) -> None:
    """Q1: the same cause has the same fingerprint."""
    assert normalised(one) == normalised(other)
    assert fingerprint("t", "E", one) == fingerprint("t", "E", other)


@pytest.mark.parametrize(
    "others",
    [
        ("other", "ValueError", "no such user"),
        ("task", "KeyError", "no such user"),
        ("task", "ValueError", "no such group"),
        ("task", "ValueError", ""),
    ],
)
def test_other_causes_have_other_fingerprints(others: tuple[str, str, str]) -> None:
    """Q1: task, kind of error and message all count."""
    assert fingerprint(*others) != fingerprint("task", "ValueError", "no such user")


@given(st.text(), st.text(), st.text())
def test_any_text_has_one(task: str, kind: str, message: str) -> None:
    """Q1: short, and the same every time."""
    found = fingerprint(task, kind, message)
    assert len(found) == 12
    assert set(found) <= set("0123456789abcdef")
    assert found == fingerprint(task, kind, message)
    assert len(normalised(message)) <= LONGEST


def test_words_that_look_like_numbers_stay() -> None:
    """Q1: a word of a to f is a word."""
    assert normalised("dead beef facade defaced") == "dead beef facade defaced"
    assert fingerprint("t", "E", "\ud800") == fingerprint("t", "E", "\ud800")
