"""The fence of an inflight job, and the order of refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.job import JobRecord
from taskharbor.core.lease import check_duration, refusal, settle_verdict
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition, settle_kind
from taskharbor.errors import InvalidLeaseDuration, JobNotInflight, LeaseError, LeaseExpired, LeaseMismatch

from .make import NOW, SECOND, TOKEN, claimed, lease, moments, record, records, tokens

MICROSECOND = timedelta(microseconds=1)
KINDS: dict[str, Callable[..., Transition]] = {
    "ack": Ack,
    "put_back": partial(PutBack, run_at=NOW),
    "fail": partial(Fail, reason="x"),
    "cancel": Cancel,
}
kinds = st.sampled_from(sorted(KINDS))


def settle(token: str, kind: str = "ack", id: str = "job-1") -> Transition:
    """A settle of some kind."""
    return KINDS[kind](id=id, token=token, keep_until=NOW)


def test_the_kind_of_a_settle_is_the_one_asked_for() -> None:
    """D8: each has its name, which stores keep."""
    assert [settle_kind(settle(TOKEN, kind)) for kind in KINDS] == list(KINDS)


def test_the_holder_of_a_valid_lease_may_act() -> None:
    """D8, L5: the current token, before the expiry."""
    assert refusal(claimed(), "job-1", TOKEN, NOW) is None
    assert settle_verdict(claimed(), settle(TOKEN), NOW) == "ok"


@pytest.mark.parametrize("state", [None, *(state for state in State if state is not State.INFLIGHT)])
def test_a_job_that_is_not_inflight_is_not_held(state: State | None) -> None:
    """D8: JobNotInflight, also for an unknown id."""
    job = None if state is None else record(state)
    refused = refusal(job, "job-1", TOKEN, NOW)
    assert isinstance(refused, JobNotInflight)
    assert str(refused) == f"job job-1 is {state or 'unknown'}, no worker holds it"


@pytest.mark.parametrize(("early", "valid"), [(MICROSECOND, True), (timedelta(0), False), (-MICROSECOND, False)])
def test_a_lease_is_valid_while_its_expiry_lies_ahead(early: timedelta, valid: bool) -> None:
    """W, D8: `expires_at > now`, exact to the microsecond; at the expiry itself it is over."""
    refused = refusal(claimed(lease=lease(expires_at=NOW)), "job-1", TOKEN, NOW - early)
    assert (refused is None) is valid
    assert valid or isinstance(refused, LeaseExpired)


@pytest.mark.parametrize(
    ("state", "lapsed", "mine"), list(product([State.READY, State.INFLIGHT], [False, True], [False, True]))
)
def test_refusals_have_one_precedence(state: State, lapsed: bool, mine: bool) -> None:
    """D8: JobNotInflight before LeaseExpired before LeaseMismatch, in every combination."""
    job = record(state, lease=lease(expires_at=NOW - SECOND if lapsed else NOW + SECOND))
    expected: type[LeaseError] | None = LeaseMismatch if not mine else None
    if lapsed:
        expected = LeaseExpired
    if state is not State.INFLIGHT:
        expected = JobNotInflight
    refused = refusal(job, "job-1", TOKEN if mine else "another", NOW)
    assert type(refused) is (expected or type(None))


def test_an_inflight_record_without_a_lease_is_not_held() -> None:
    """D8: a damaged record refuses instead of crashing."""
    assert isinstance(refusal(claimed(lease=None), "job-1", TOKEN, NOW), JobNotInflight)


@given(records(settled_token=tokens, settled_kind=kinds), moments)
def test_repeating_the_last_settle_is_replayed_whatever_happened_since(job: JobRecord, now: datetime) -> None:
    """D8: the very token that last settled the job and the same kind, in any state and after any expiry."""
    assert job.settled_token is not None
    assert job.settled_kind is not None
    assert settle_verdict(job, settle(job.settled_token, job.settled_kind, job.id), now) == "replayed"


@given(st.none() | records(settled_kind=st.none() | kinds), tokens, kinds, moments)
def test_any_other_settle_is_judged_like_an_extend(job: JobRecord | None, token: str, kind: str, now: datetime) -> None:
    """D8: another token, or another kind under the settled one, is refused for the reasons of extend_lease."""
    if job is not None and (job.settled_token, job.settled_kind) == (token, kind):
        return
    verdict = settle_verdict(job, settle(token, kind), now)
    refused = refusal(job, "job-1", token, now)
    assert (type(verdict), str(verdict)) == ((str, "ok") if refused is None else (type(refused), str(refused)))


@given(st.timedeltas())
def test_a_lease_lasts_longer_than_zero(lease_for: timedelta) -> None:
    """D4: zero and less is InvalidLeaseDuration."""
    if lease_for > timedelta(0):
        check_duration(lease_for)
    else:
        with pytest.raises(InvalidLeaseDuration, match="longer than zero"):
            check_duration(lease_for)
