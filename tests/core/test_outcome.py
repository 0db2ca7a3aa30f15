"""The outcomes of raised exceptions, before `decide`."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.outcome import KIND_LIMIT, MESSAGE_LIMIT, Failed, Snoozed, from_error, timed_out
from taskharbor.core.retry import Retry
from taskharbor.core.text import ERROR_LIMIT
from taskharbor.errors import RetryAfter, Snooze, Unrecoverable

wild = st.text(st.characters(), max_size=50)
delays = st.floats(0, allow_infinity=False)


class Panic(BaseException):
    """Something that is not even an Exception."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(),
        MemoryError(),
        Panic("no"),
        BaseExceptionGroup("several", [Panic(), ValueError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_its_jobs_failure(error: BaseException) -> None:
    """F11: any BaseException, and each is worth another try unless the policy says otherwise."""
    outcome = from_error(error, Retry(), "Traceback …")
    assert isinstance(outcome, Failed)
    assert outcome.kind.endswith(type(error).__name__)
    assert outcome.message == str(error)
    assert outcome.traceback == "Traceback …"
    assert outcome.final is None
    assert outcome.delay is None


def test_unrecoverable_is_final() -> None:
    """F4: to the DLQ at once, even where the policy would retry everything."""
    outcome = from_error(Unrecoverable("gone"), Retry(retry_on=(Unrecoverable,)))
    assert isinstance(outcome, Failed)
    assert outcome.final == "unrecoverable"


@given(delays)
def test_snooze_is_not_a_failure(delay: float) -> None:
    """F4: put back after the delay without an attempt, whatever the filters say."""
    assert from_error(Snooze(delay), Retry(give_up_on=(Exception,))) == Snoozed(delay)


@given(delays)
def test_retry_after_is_a_failure_with_its_own_delay(delay: float) -> None:
    """F4: it counts, sets the delay, and asks for a retry, so the filters have no say."""
    outcome = from_error(RetryAfter(delay, "busy"), Retry(give_up_on=(Exception,)))
    assert outcome == Failed("taskharbor.errors.RetryAfter", "busy", delay=delay)


@pytest.mark.parametrize("retry", [Retry(give_up_on=(ValueError,)), Retry(retry_on=(OSError,))])
def test_an_exception_that_the_filters_exclude_is_final(retry: Retry) -> None:
    """F4: retry_on / give_up_on per task."""
    outcome = from_error(ValueError("no"), retry)
    assert isinstance(outcome, Failed)
    assert outcome.final == "gave_up"


def test_a_timeout_is_a_failure_and_retryable_by_default() -> None:
    """F5: recorded like any error."""
    assert timed_out(1.5) == Failed("TimeoutError", "timed out after 1.5 s")
    assert timed_out(30, Retry()).final is None


def test_the_filters_see_a_timeout_as_a_timeout_error() -> None:
    """F4, F5: a task may give up on timeouts."""
    assert timed_out(30, Retry(give_up_on=(TimeoutError,))).final == "gave_up"
    assert timed_out(30, Retry(retry_on=(TimeoutError,))).final is None


@given(wild, wild, wild, st.integers(1, 3000))
def test_a_failures_texts_are_bounded_however_it_was_made(kind: str, message: str, trace: str, times: int) -> None:
    """R4: each text, and `kind: message` together, keep to 8 KiB of valid UTF-8."""
    failed = Failed(kind * times, message * times, trace * times)
    assert len(failed.kind.encode()) <= KIND_LIMIT
    assert len(failed.message.encode()) <= MESSAGE_LIMIT
    assert len(failed.traceback.encode()) <= ERROR_LIMIT
    assert len(f"{failed.kind}: {failed.message}".encode()) <= ERROR_LIMIT


def test_a_giant_error_says_that_it_was_cut() -> None:
    """R4: and how large it was; of the traceback the end is kept."""
    outcome = from_error(ValueError("€" * 100_000), Retry(), "frame\n" * 100_000 + "ValueError: €")
    assert isinstance(outcome, Failed)
    assert outcome.message.endswith("[cut: 300000 bytes in all]")
    assert outcome.traceback.startswith("[cut: 600015 bytes in all]")
    assert outcome.traceback.endswith("ValueError: €")


def test_an_error_without_a_presentable_message_is_a_failure_all_the_same() -> None:
    """F11: an exception whose `__str__` raises, and one that speaks in lone surrogates."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    mute, odd = from_error(Mute(), Retry()), from_error(ValueError("\udc80"), Retry())
    assert isinstance(mute, Failed)
    assert mute.message == "<Mute whose message cannot be shown: SystemExit>"
    assert isinstance(odd, Failed)
    assert odd.message == "\\udc80"
