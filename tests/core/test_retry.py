"""Retry policies: ceilings, jitter, filters, and what cannot be a policy."""

from __future__ import annotations

import math
from datetime import timedelta
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor.core.retry import Growth, Retry
from taskharbor.errors import ConfigError

seconds = st.floats(0, 1e12)
attempts = st.integers(1, 10**9)
policies = st.builds(
    Retry,
    base=seconds,
    multiplier=st.floats(1, 1e6),
    cap=seconds,
    jitter=st.booleans(),
    growth=st.sampled_from(get_args(Growth)),
)


@pytest.mark.parametrize(("failures", "longest"), [(1, 0.5), (2, 1), (3, 2), (6, 16), (7, 30), (8, 30), (10**9, 30)])
def test_the_default_doubles_from_half_a_second_to_thirty(failures: int, longest: float) -> None:
    """F2: base 0.5 s, multiplier 2, cap 30 s; the first retry comes within the base."""
    assert Retry().jitter
    assert Retry().ceiling(failures) == longest


def test_a_patient_policy_lasts_hours() -> None:
    """F2: base 15 s, cap 1 h; twenty attempts spread over half a day at most, with full jitter."""
    patient = Retry.patient(give_up_on=(KeyError,))
    assert (patient.base, patient.cap, patient.jitter) == (15, 3600, True)
    assert 12 * 3600 < sum(patient.ceiling(failures) for failures in range(1, 20)) < 13 * 3600
    assert not patient.retries(KeyError())
    assert patient.retries(OSError())
    assert not Retry.patient(retry_on=(OSError,)).retries(ValueError())


@given(policies, attempts, attempts)
@example(Retry(base=1e-300, multiplier=2, cap=1e300), 1000, 10**9)
@example(Retry(base=1, multiplier=2, cap=1e300), 1011, 1012)
@example(Retry(base=0.5, multiplier=2.0, cap=1e300), 1024, 1025)
@example(Retry(base=0, multiplier=10, cap=1), 1, 10**9)
@example(Retry(base=1e12, multiplier=1, cap=1e12), 1, 10**9)
def test_ceilings_grow_and_stay_within_the_cap(retry: Retry, one: int, other: int) -> None:
    """F2: monotone, never above the cap, and no overflow after a billion failures."""
    fewer, more = sorted((one, other))
    assert 0 <= retry.ceiling(fewer) <= retry.ceiling(more) <= retry.cap


@given(policies, attempts, st.integers())
def test_a_delay_lies_between_zero_and_the_ceiling(retry: Retry, failures: int, seed: int) -> None:
    """F2: full jitter draws from the whole span; without jitter the delay is the ceiling itself."""
    delay, ceiling = retry.delay(failures, Random(seed)), retry.ceiling(failures)
    assert 0 <= delay <= ceiling
    assert retry.jitter or delay == ceiling


@given(st.floats(0, 1, exclude_max=True))
def test_full_jitter_is_an_even_draw(drawn: float) -> None:
    """F2: delay = random(0, ceiling), so that jobs that failed together do not come back together."""

    class Dice:
        def random(self) -> float:
            return drawn

    assert Retry(base=8, cap=8).delay(1, Dice()) == drawn * 8


@given(seconds, attempts)
def test_fixed_waits_the_same_every_time(delay: float, failures: int) -> None:
    """F2: a fixed policy."""
    assert Retry.fixed(delay).delay(failures, Random(0)) == delay
    assert 0 <= Retry.fixed(delay, jitter=True).delay(failures, Random(0)) <= delay


@given(seconds, seconds, attempts)
def test_linear_grows_by_its_base(base: float, cap: float, failures: int) -> None:
    """F2: a linear policy, up to its cap."""
    assert Retry.linear(base, cap=cap, jitter=False).delay(failures, Random(0)) == min(base * failures, cap)


@given(seconds, attempts)
def test_a_custom_policy_replaces_the_formula_and_its_jitter(delay: float, failures: int) -> None:
    """F2: custom callables get the number of failures and say the seconds."""
    asked: list[int] = []

    def custom(count: int) -> float:
        asked.append(count)
        return delay

    assert Retry(custom=custom).delay(failures, Random(0)) == delay
    assert asked == [failures]


@pytest.mark.parametrize("answer", [-1, -0.001, math.inf, math.nan, None, "5"])
def test_a_custom_policy_must_return_a_delay(answer: Any) -> None:
    """F2: negative, infinite and not-a-number delays, and what is not a number, are errors, not schedules."""
    with pytest.raises(ValueError, match="zero or more seconds"):
        Retry(custom=lambda _: answer).delay(1, Random(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": -1},
        {"base": math.nan},
        {"base": math.inf},
        {"base": "a"},
        {"base": None},
        {"base": True},
        {"base": timedelta(seconds=1)},
        {"multiplier": 0.9},
        {"multiplier": math.inf},
        {"cap": -0.1},
        {"cap": math.nan},
        {"cap": "1m"},
        {"jitter": "no"},
        {"growth": "cubic"},
        {"custom": 5},
        {"retry_on": [ValueError]},
        {"retry_on": ValueError},
        {"retry_on": ("ValueError",)},
        {"give_up_on": (int,)},
        {"give_up_on": None},
    ],
    ids=str,
)
def test_what_makes_no_schedule_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    """X5, F2: a policy that could only fail later, in a worker, is an error that names the field."""
    with pytest.raises(ConfigError, match=rf"^Retry\({next(iter(wrong))}=.*\): (give|choose) "):
        Retry(**wrong)


@pytest.mark.parametrize(
    ("retry", "error", "again"),
    [
        (Retry(), ValueError(), True),
        (Retry(), SystemExit(), True),
        (Retry(retry_on=(OSError,)), ConnectionError(), True),
        (Retry(retry_on=(OSError,)), ValueError(), False),
        (Retry(give_up_on=(ValueError,)), UnicodeError(), False),
        (Retry(give_up_on=(ValueError,)), KeyError(), True),
        (Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,)), FileNotFoundError(), False),
        (Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,)), PermissionError(), True),
    ],
)
def test_filters_choose_which_exceptions_are_worth_another_try(retry: Retry, error: BaseException, again: bool) -> None:
    """F4: retry_on / give_up_on go by isinstance; giving up wins; no filter means every exception."""
    assert retry.retries(error) is again
