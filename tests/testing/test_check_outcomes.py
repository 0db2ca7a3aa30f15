"""The checker on outcomes: ends and their explanations, attempts and crashes, times (H5-H7)."""

from __future__ import annotations

from typing import Any

import pytest
from histories import LEASE, Tale, claim, job, last, settle

from taskharbor.testing.check import check
from taskharbor.testing.history import Last, Named, Want, Word

FAR = 10_000


def told(**options: Any) -> Tale:
    tale = Tale()
    tale.enqueue(job(**options), now=0)
    return tale


def ended(tale: Tale, *jobs: Last) -> set[str]:
    return check(tale.final(*jobs), drained=False).names


# H5


@pytest.mark.parametrize(("to", "state"), [("ack", "done"), ("fail", "dlq"), ("cancel", "cancelled")])
@pytest.mark.parametrize("known", [True, False])
def test_a_settle_explains_the_state_that_it_leads_to(to: str, state: str, known: bool) -> None:
    for found in ("done", "dlq", "cancelled"):
        tale = told()
        first = tale.claim()
        if known:
            tale.settle(first, to)
        else:
            tale.lose("settle", settle(first, to))
        names = ended(tale, last(state=found, settled_token="j/1", attempts=int(to == "fail")))
        assert names == (set() if found == state else {"H5"})


def test_an_unknown_settle_may_not_have_happened() -> None:
    tale = told()
    tale.lose("settle", settle(tale.claim()))
    assert ended(tale, last(state="inflight")) == set()


def test_a_state_without_an_operation_is_unexplained() -> None:
    for state in ("done", "dlq", "cancelled"):
        assert ended(told(), last(state=state, version=0, settled_token=None, attempts=0)) == {"H5"}


@pytest.mark.parametrize("word", ["cancelled", "requested", None])
def test_a_cancel_explains_a_cancelled_job(word: str | None) -> None:
    tale = told()
    if word == "requested":
        tale.claim()
    if word is None:
        tale.lose("cancel", Named("j"))
    else:
        tale.by_hand("cancel", "j", word)
    assert ended(tale, last(state="cancelled", version=int(word == "requested"))) == set()


def test_an_expiry_or_a_parent_explains_a_cancelled_job() -> None:
    assert ended(told(expires_at=5), last(state="cancelled", version=0)) == set()
    tale = told(after=("p",), policies=("cancel",))
    assert ended(tale, last(state="cancelled", version=0)) == set()


def test_a_life_ends_once() -> None:
    tale = told()
    tale.settle(tale.claim())
    tale.by_hand("cancel", "j", "cancelled")
    assert "H5" in check(tale.events).names
    tale = told()
    tale.settle(tale.claim(), "fail")
    tale.by_hand("replay", "j", "replayed")
    tale.settle(tale.claim())
    assert ended(tale, last(version=2, replays=1)) == set()


@pytest.mark.parametrize("to", ["ack", "fail", "cancel"])
def test_nothing_is_claimed_after_its_end(to: str) -> None:
    tale = told()
    tale.settle(tale.claim(), to)
    tale.claim(attempts=int(to == "fail"))
    assert check(tale.events).names == {"H5"}
    tale = told()
    tale.lose("settle", settle(tale.claim(now=0), to), now=1)
    tale.claim(now=FAR, crashes=1)
    assert check(tale.events).names == set()


def test_a_settle_that_proved_to_have_happened_is_an_end() -> None:
    tale = told()
    first = tale.claim()
    tale.lose("settle", settle(first))
    tale.settle(first, word="replayed")
    assert ended(tale, last()) == set()
    tale.claim(crashes=1, now=FAR)
    assert "H5" in check(tale.events).names


@pytest.mark.parametrize("word", ["cancelled", "requested", "finished"])
def test_nothing_is_claimed_after_a_cancel_but_by_way_of_a_replay(word: str) -> None:
    for replay in ("replayed", None, "not_dead"):
        tale = told()
        tale.by_hand("cancel", "j", word)
        if replay is None:
            tale.lose("replay", Named("j"))
        else:
            tale.by_hand("replay", "j", replay)
        tale.claim()
        assert check(tale.events).names == ({"H5"} if replay == "not_dead" else set())


def test_a_claim_that_overlaps_a_cancel_may_have_come_first() -> None:
    tale = told()
    cancel = tale.begin("cancel", Named("j"), who="b")
    tale.claim()
    tale.end(cancel, Word("requested"), who="b")
    assert check(tale.events).fine


def test_a_deleted_job_is_not_claimed() -> None:
    tale = told()
    tale.settle(tale.claim(), "put_back")
    tale.by_hand("delete", "j", "deleted")
    tale.claim()
    assert check(tale.events).names == {"H5"}


def test_what_is_done_is_not_replayed() -> None:
    tale = told()
    tale.settle(tale.claim())
    tale.by_hand("replay", "j", "replayed")
    assert "H5" in check(tale.events).names


def test_replayed_is_only_answered_after_an_attempt() -> None:
    tale = told()
    tale.settle(tale.claim(), word="replayed")
    assert check(tale.events).names == {"H5"}
    tale = told()
    tale.settle(claim("j", 1, token="unknown"), word="replayed")
    assert check(tale.events).names == {"H5"}
    tale = told()
    first = tale.claim()
    slow = tale.begin("settle", settle(first), who="b")
    tale.settle(first, word="replayed")
    tale.end(slow, Word("ok"), who="b")
    assert ended(tale, last()) == set()


def test_the_last_state_fits_what_was_done_last() -> None:
    tale = told()
    tale.settle(tale.claim(), "put_back")
    assert ended(tale, last(state="inflight", settled_token="j/1")) == {"H5"}
    assert ended(told(), last(state="inflight", version=0)) == {"H5"}
    tale = told()
    tale.claim()
    assert ended(tale, last(state="ready")) == {"H5"}
    tale = told()
    tale.settle(tale.claim())
    assert ended(tale, last(state="ready", settled_token="j/1")) == {"H5"}


def test_a_state_that_was_tried_for_is_not_the_one_that_was_reached() -> None:
    tale = told()
    first = tale.claim()
    tale.lose("settle", settle(first, "fail"))
    tale.settle(first)
    assert ended(tale, last(state="dlq", attempts=0)) == {"H5"}


def test_the_store_remembers_who_settled() -> None:
    tale = told()
    tale.claim()
    assert ended(tale, last(state="inflight", settled_token="forged")) == {"H5"}
    tale = told()
    tale.settle(tale.claim())
    assert ended(tale, last(settled_token="forged")) == {"H5"}
    tale = told()
    tale.settle(tale.claim())
    assert ended(tale, last(settled_token=None)) == {"H5"}


def test_replays_are_counted() -> None:
    for replays, names in ((0, {"H5"}), (1, set[str]()), (2, set[str]()), (3, {"H5"})):
        tale = told()
        tale.settle(tale.claim(), "fail")
        tale.by_hand("replay", "j", "replayed")
        tale.lose("replay", Named("j"))
        assert ended(tale, last(state="ready", replays=replays, settled_token="j/1", failures=1)) == names


# H6


def test_failures_and_crashes_add_up() -> None:
    tale = told()
    tale.claim(now=0)
    tale.settle(tale.claim(now=LEASE, crashes=1), "put_back", failed=True, now=LEASE)
    tale.claim(now=LEASE, attempts=1)
    tale.settle(tale.claim(now=2 * LEASE, attempts=1, crashes=1), "fail", now=2 * LEASE)
    assert ended(tale, last(state="dlq", version=4, attempts=2)) == set()


@pytest.mark.parametrize(("attempts", "crashes"), [(1, 0), (0, 1), (1, 1)])
def test_a_new_job_has_no_past(attempts: int, crashes: int) -> None:
    tale = told()
    tale.claim(attempts=attempts, crashes=crashes)
    assert check(tale.events).names == {"H6"}


@pytest.mark.parametrize(("attempts", "crashes"), [(0, 0), (1, 0), (0, 2)])
def test_a_lapsed_lease_counts_as_one_crash(attempts: int, crashes: int) -> None:
    tale = told()
    tale.claim(now=0)
    tale.claim(now=LEASE, attempts=attempts, crashes=crashes)
    assert check(tale.events).names == {"H6"}


@pytest.mark.parametrize(("attempts", "crashes"), [(0, 0), (0, 1), (2, 0)])
def test_the_next_claim_has_what_the_settle_left(attempts: int, crashes: int) -> None:
    tale = told()
    tale.settle(tale.claim(), "put_back", failed=True)
    tale.claim(attempts=attempts, crashes=crashes)
    assert check(tale.events).names == {"H6"}


def test_an_unknown_settle_leaves_two_possibilities() -> None:
    for attempts, crashes, names in ((1, 0, set[str]()), (0, 1, set[str]()), (0, 0, {"H6"}), (1, 1, {"H6"})):
        tale = told()
        tale.lose("settle", settle(tale.claim(now=0), "put_back", failed=True), now=1)
        tale.claim(now=FAR, attempts=attempts, crashes=crashes)
        assert check(tale.events).names == names


def test_claims_whose_reply_was_lost_are_crashes() -> None:
    for crashes, names in ((1, {"H6"}), (2, set[str]()), (3, {"H6"})):
        tale = told()
        tale.claim(now=0)
        tale.lose("reserve", Want(("q",), LEASE, 1))
        tale.claim(version=3, now=FAR, crashes=crashes)
        assert check(tale.events).names == names


def test_a_replay_restarts_the_counters() -> None:
    for attempts, names in ((0, set[str]()), (1, {"H6"})):
        tale = told()
        tale.settle(tale.claim(), "fail", attempts=1)
        tale.by_hand("replay", "j", "replayed")
        tale.claim(attempts=attempts + (attempts and 1))
        assert check(tale.events).names == names


@pytest.mark.parametrize("more", [{"attempts": 2}, {"crashes": 1}, {"attempts": 1, "failures": 0}])
def test_an_outcome_adds_one_recorded_failure_at_most(more: dict[str, Any]) -> None:
    tale = told()
    tale.settle(tale.claim(), "fail", **more)
    assert check(tale.events).names == {"H6"}


def test_a_job_is_not_put_back_or_run_beyond_its_attempts() -> None:
    tale = told(max_attempts=1)
    tale.settle(tale.claim(), "put_back", failed=True)
    assert check(tale.events).names == {"H6"}
    tale.run(tale.claim(attempts=1))
    assert len(check(tale.events).violations) == 2


def test_a_job_that_kills_its_workers_is_not_run_again() -> None:
    """F6, as histories show it: it is claimed once more, to be dead-lettered."""
    for ran in (True, False):
        tale = told(max_crashes=1)
        tale.claim(now=0)
        second = tale.claim(now=LEASE, crashes=1)
        if ran:
            tale.run(second)
        tale.settle(second, "fail", attempts=0, failures=1, crashes=1, now=LEASE)
        names = ended(tale, last(state="dlq", version=2, attempts=0, failures=1, crashes=1))
        assert names == ({"H6"} if ran else set())


def test_every_run_has_a_claim_of_its_own() -> None:
    tale = told()
    first = tale.claim()
    tale.run(first)
    tale.run(first)
    assert check(tale.events).names == {"H6"}
    tale = told()
    tale.run(claim("j", 1))
    assert check(tale.events).names == {"H6"}
    tale = told()
    tale.run(claim("j", 1))
    tale.claim()
    assert check(tale.events).names == {"H6"}
    tale = told()
    tale.lose("reserve", Want(("q",), LEASE, 1), killed=True)
    tale.run(claim("j", 1))
    assert check(tale.events).fine


@pytest.mark.parametrize("more", [{"attempts": 1}, {"crashes": 1}, {"failures": 1}])
def test_the_last_counts_are_those_of_the_last_outcome(more: dict[str, Any]) -> None:
    tale = told()
    tale.settle(tale.claim())
    assert ended(tale, last(**more)) == {"H6"}
    tale = told()
    tale.claim()
    if "failures" not in more:
        assert ended(tale, last(state="inflight", **more)) == {"H6"}


def test_the_reply_of_the_last_claim_may_be_lost() -> None:
    for version, crashes, names in ((1, 0, set[str]()), (2, 1, set[str]()), (2, 0, {"H6"}), (3, 2, {"H2"})):
        tale = told()
        for _ in range(2):
            tale.lose("reserve", Want(("q",), LEASE, 1))
        assert ended(tale, last(state="inflight", version=version, crashes=crashes)) == names


def test_after_a_lost_claim_a_replay_leaves_much_open() -> None:
    tale = told()
    tale.claim(now=0)
    tale.lose("reserve", Want(("q",), LEASE, 1))
    tale.lose("replay", Named("j"))
    assert ended(tale, last(state="inflight", version=2)) == set()


def test_a_store_that_forgot_a_claim_is_found_out() -> None:
    tale = told()
    tale.settle(tale.claim(), "put_back")
    tale.settle(tale.claim())
    assert "H2" in ended(tale, last(version=1))


# H7


def test_nothing_is_handed_out_before_its_time() -> None:
    for now, names in ((49, {"H7"}), (50, set[str]())):
        tale = told(run_at=50)
        tale.claim(now=now)
        assert check(tale.events).names == names
    tale = told()
    tale.claim(now=49, due_at=50)
    assert check(tale.events).names == {"H7"}
    tale = told()
    tale.claim(now=49, due_at=0, run_at=50)
    assert check(tale.events).names == {"H7"}


def test_a_job_that_was_put_back_waits_until_the_time_given() -> None:
    for now, names in ((49, {"H7"}), (50, set[str]())):
        tale = told()
        tale.settle(tale.claim(now=0), "put_back", run_at=50, now=1)
        tale.claim(now=now)
        assert check(tale.events).names == names


def test_a_put_back_that_may_not_have_happened_delays_nothing() -> None:
    tale = told()
    tale.lose("settle", settle(tale.claim(now=0), "put_back", run_at=FAR), now=1)
    tale.claim(now=LEASE, crashes=1)
    assert check(tale.events).fine


def test_a_lapsed_job_is_due_at_once() -> None:
    tale = told(run_at=0)
    tale.claim(now=0, lease=10)
    tale.claim(now=10, crashes=1)
    assert check(tale.events).fine


@pytest.mark.parametrize("verb", ["reschedule", "replay"])
def test_the_last_time_given_counts(verb: str) -> None:
    word = {"reschedule": "True", "replay": "replayed"}[verb]
    for before, after in ((50, 80), (80, 50)):
        for now, names in ((after - 1, {"H7"}), (after, set[str]())):
            tale = told(run_at=before)
            tale.by_hand(verb, "j", word, run_at=after)
            tale.claim(now=now)
            assert check(tale.events).names == names


def test_a_reschedule_with_an_unknown_outcome_may_have_moved_a_job() -> None:
    for now, names in ((49, {"H7"}), (50, set[str]())):
        tale = told(run_at=80)
        tale.lose("reschedule", Named("j", 50))
        tale.lose("reschedule", Named("j", None, 5))
        tale.claim(now=now)
        assert check(tale.events).names == names


def test_many_changes_by_hand_are_too_many_to_follow() -> None:
    tale = told(run_at=80)
    for _ in range(100):
        tale.by_hand("reschedule", "j", "True", run_at=90)
    tale.claim(now=10)
    assert check(tale.events).fine


def test_nothing_is_handed_out_when_it_has_expired() -> None:
    for now, names in ((49, set[str]()), (50, {"H7"})):
        tale = told(expires_at=50)
        tale.claim(now=now)
        assert check(tale.events).names == names
    tale = told(expires_at=50)
    tale.lose("replay", Named("j"))
    tale.claim(now=FAR)
    assert check(tale.events).fine


def test_driver_times_and_real_times_are_not_compared() -> None:
    tale = told(run_at=5_000_000)
    tale.settle(tale.claim(now=5_000_000), "put_back", run_at=-70, now=4_000_000)
    tale.settle(tale.claim(now=-70, due_at=-70), now=-60)
    assert ended(tale, last(version=2)) == set()


def test_the_death_of_a_jobs_own_process_adds_a_crash_and_no_attempt() -> None:
    """F6: settled by the worker that lives on, so the next claim has one crash more."""
    for attempts, crashes, names in ((0, 1, set[str]()), (0, 2, {"H6"}), (1, 1, {"H6"})):
        tale = told()
        tale.settle(tale.claim(), "put_back", attempts=attempts, crashes=crashes, failures=1)
        tale.claim(attempts=attempts, crashes=crashes)
        assert check(tale.events).names == names
