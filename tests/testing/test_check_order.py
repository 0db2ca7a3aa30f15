"""The checker on the line and on the end: bounded overtaking and liveness (H11, H12)."""

from __future__ import annotations

import pytest
from histories import LEASE, Tale, claim, job, last

from taskharbor.testing.check import CheckReport, check
from taskharbor.testing.check.overtaking import _Later
from taskharbor.testing.history import Event, Named, Want

# H11


def passed(
    overtakers: int,
    bound: int | None,
    *,
    run_at: int | None = None,
    queue: str = "q",
    ids: bool = False,
    crashes: int = 0,
) -> CheckReport:
    """One job, then others of its priority which are all handed out before it."""
    tale = Tale()
    tale.enqueue(job("first", run_at=run_at), now=0)
    for number in range(overtakers):
        tale.enqueue(job(f"j{number}", queue=queue), now=10 + number)
    for number in range(overtakers):
        made = claim(f"j{number}", 1 + crashes, now=FAR, due_at=10 + number, crashes=crashes)
        want = Want((queue,), LEASE, 1, (made.id,) if ids else None)
        if crashes:
            tale.lose("reserve", want)
        tale.call("reserve", [want], made, now=FAR)
    tale.claim("first", now=FAR, due_at=run_at or 0)
    return check(tale.events, overtaking=bound)


FAR = 10_000


def test_a_job_may_be_overtaken_up_to_the_bound() -> None:
    assert passed(5, 5).fine
    assert passed(5, None).fine
    assert passed(5, 1000).fine
    report = passed(6, 5)
    assert report.names == {"H11"}
    assert "overtaken by 6 later ones" in report.violations[0].message
    assert report.violations[0].operations[0].item == "first"


def test_only_later_jobs_of_the_line_count() -> None:
    assert passed(9, 5, run_at=12).names == {"H11"}
    assert passed(9, 5, run_at=14).fine
    assert passed(9, 5, ids=True).fine
    assert passed(9, 5, crashes=1).fine


def test_a_job_that_is_never_handed_out_was_overtaken_too() -> None:
    def told(state: str) -> list[Event]:
        tale = Tale()
        tale.enqueue(job("first"), now=0)
        for number in range(4):
            tale.enqueue(job(f"j{number}"), now=10)
            tale.settle(tale.claim(f"j{number}", now=20, due_at=10), now=21)
        return tale.final(last("first", state, 0), *(last(f"j{number}") for number in range(4)))

    assert check(told("ready"), overtaking=3, drained=False).names == {"H11"}
    assert check(told("ready"), overtaking=4, drained=False).fine


def test_what_began_before_the_job_was_in_line_does_not_count() -> None:
    tale = Tale()
    tale.enqueue(*(job(f"j{number}", number) for number in range(4)), now=10)
    for number in range(4):
        tale.claim(f"j{number}", now=20, due_at=10)
    tale.enqueue(job("late", run_at=0), now=20)
    tale.claim("late", now=30)
    assert check(tale.events, overtaking=0).fine
    tale = Tale()
    tale.enqueue(*(job(f"j{number}", number) for number in range(4)), now=10)
    enqueue = tale.begin("enqueue", job("slow"), now=0, who="b")
    for number in range(4):
        tale.claim(f"j{number}", now=20, due_at=10)
    tale.lose("enqueue", job("slow"), who="b", now=0)
    tale.claim("slow", now=30)
    assert check(tale.events, overtaking=0).fine
    assert enqueue


def test_a_job_that_was_put_back_waits_from_then_on() -> None:
    tale = Tale()
    tale.enqueue(job("first"), now=0)
    tale.settle(tale.claim("first", now=1), "put_back", run_at=5, now=2)
    for number in range(3):
        tale.enqueue(job(f"j{number}"), now=10)
        tale.claim(f"j{number}", now=20, due_at=10)
    tale.claim("first", now=30, due_at=5)
    assert check(tale.events, overtaking=3).fine
    assert check(tale.events, overtaking=2).names == {"H11"}


@pytest.mark.parametrize("verb", ["reschedule", "cancel", "replay"])
def test_a_job_that_was_moved_by_hand_is_left_out(verb: str) -> None:
    tale = Tale()
    tale.enqueue(job("first"), now=0)
    tale.lose(verb, Named("first"))
    for number in range(3):
        tale.enqueue(job(f"j{number}"), now=10)
        tale.claim(f"j{number}", now=20, due_at=10)
    tale.claim("first", now=30)
    assert check(tale.events, overtaking=0).fine


def test_later_claims_are_counted_right() -> None:
    claims = [(time, due) for time in range(20) for due in (time * 7 % 5, time)]
    questions = [(time, due) for time in range(0, 25, 3) for due in range(-1, 21, 2)]
    plain = [sum(one < time and other > due for one, other in claims) for time, due in questions]
    assert _Later(claims).before(questions) == plain


# H12


@pytest.mark.parametrize("state", ["ready", "inflight", "waiting"])
def test_everything_ends_if_it_is_left_alone_for_long_enough(state: str) -> None:
    tale = Tale()
    tale.enqueue(job())
    version = 0
    if state == "inflight":
        tale.claim()
        version = 1
    events = tale.final(last(state=state, version=version))
    assert check(events).names == {"H12"}
    assert check(events, drained=False).fine
    assert check(tale.events[:-1]).fine


@pytest.mark.parametrize(("parent", "fine"), [("dlq", True), ("cancelled", True), ("done", False)])
def test_a_dependant_may_wait_for_a_parent_that_failed(parent: str, fine: bool) -> None:
    tale = Tale()
    tale.enqueue(job("p"), job("child", after=("p",)), job("grandchild", after=("child",)))
    to = {"dlq": "fail", "cancelled": "cancel", "done": "ack"}[parent]
    tale.settle(tale.claim("p"), to)
    waiting = [last(id, "waiting", 0, unmet=1) for id in ("child", "grandchild")]
    report = check(tale.final(last("p", parent, settled_token="p/1"), *waiting))
    assert report.names == (set() if fine else {"H12"})
    assert [each.operations[0].item for each in report.violations] == ([] if fine else ["child"])


@pytest.mark.parametrize(("policy", "fine"), [("hold", True), ("cancel", True), ("collect", False)])
def test_a_dependant_that_collects_does_not_wait_for_a_parent_that_failed(policy: str, fine: bool) -> None:
    """K4: its members have all ended, so it would have had to run."""
    tale = Tale()
    tale.enqueue(job("p"), job("child", after=("p",), policies=(policy,)))
    tale.settle(tale.claim("p"), "fail")
    report = check(tale.final(last("p", "dlq"), last("child", "waiting", 0, unmet=1)))
    assert report.names == (set() if fine else {"H10", "H12"})
