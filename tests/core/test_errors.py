"""The exception tree, and the signals by which a handler steers its own job."""

from __future__ import annotations

import math
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import errors
from taskharbor.errors import RetryAfter, Signal, Snooze, Unrecoverable


def drawn_tree() -> dict[str, str | None]:
    """Each class of the drawing with the one it hangs from."""
    found: dict[str, str | None] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines()[2:]:
        if match := re.match(r"([│├└─ ]*)([A-Z]\w+)", line):
            depth = len(match[1]) // 4
            above[depth] = match[2]
            found[match[2]] = above[depth - 1] if depth else None
    return found


def test_the_drawing_is_the_tree() -> None:
    """DESIGN: the exception tree is drawn once, and the drawing is complete and true."""
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and not name.startswith("_")}
    drawn = drawn_tree()
    assert set(drawn) == {name for name, kind in classes.items() if issubclass(kind, Exception)}
    for name, parent in drawn.items():
        assert issubclass(classes[name], classes[parent] if parent else Exception)


@pytest.mark.parametrize("kind", [Snooze, RetryAfter])
@given(delay=st.floats(0, 1e9))
def test_a_delay_is_seconds_or_a_timedelta(kind: type[Snooze | RetryAfter], delay: float) -> None:
    """F4: both spellings mean the same."""
    span = timedelta(seconds=delay)
    assert kind(delay).delay == delay
    assert kind(span).delay == span.total_seconds()


@pytest.mark.parametrize("kind", [Snooze, RetryAfter])
@pytest.mark.parametrize("delay", [-1, -0.5, math.inf, math.nan, timedelta(seconds=-1)])
def test_an_invalid_delay_is_refused(kind: type[Snooze | RetryAfter], delay: float | timedelta) -> None:
    """F4: at the raise, where the mistake is."""
    with pytest.raises(ValueError, match="delay must be zero or more seconds"):
        kind(delay)


def test_a_signal_explains_itself() -> None:
    """F4: the given message, or what it asks for."""
    assert str(Snooze(1.5)) == "Snooze for 1.5 s"
    assert str(RetryAfter(60, "busy")) == "busy"
    assert issubclass(Unrecoverable, Signal)
