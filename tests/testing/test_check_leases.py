"""The checker on claims: versions, tokens, overlapping leases, stale commits, overlapping runs (H2-H4, H9)."""

from __future__ import annotations

import pytest
from histories import LEASE, Tale, apart, claim, job, settle

from taskharbor.testing.check import check
from taskharbor.testing.history import ClaimEntry, KeptEntry, Named, Renew, Want, Word

FAR = 10_000


def told() -> Tale:
    tale = Tale()
    tale.enqueue(job(max_crashes=None, max_attempts=None))
    return tale


def names(tale: Tale) -> set[str]:
    """The names of the violated promises, given as one list or as a file for each process."""
    found = check(tale.events).names
    assert check(apart(tale.events)).names == found
    return found


# H2


def test_claims_one_after_the_other_are_fine() -> None:
    tale = told()
    for attempt in range(3):
        tale.settle(tale.claim(attempts=attempt), "put_back", failed=True)
    tale.settle(tale.claim(attempts=3))
    assert names(tale) == set()


def test_a_token_is_given_once_to_whatever_job() -> None:
    tale = told()
    tale.enqueue(job("k"))
    tale.claim("j", token="t")
    tale.claim("k", token="t")
    assert names(tale) == {"H2"}


def test_a_version_is_given_once() -> None:
    tale = told()
    tale.settle(tale.claim(), "put_back")
    tale.claim(version=1, token="other")
    assert "H2" in names(tale)


def test_versions_follow_the_order_of_real_time() -> None:
    tale = told()
    tale.claim(version=2, crashes=1, now=FAR)
    tale.claim(version=1)
    assert "H2" in names(tale)
    tale = told()
    first = tale.begin("reserve", Want(("q",), LEASE, 1), now=0, who="b")
    tale.claim(version=2, crashes=1, now=FAR)
    tale.end(first, claim("j", 1), who="b")
    assert names(tale) == set()


def test_gaps_between_versions_need_reserves_with_unknown_outcomes() -> None:
    for lost, found in ((0, {"H2"}), (1, {"H2"}), (2, set[str]()), (3, set[str]())):
        tale = told()
        for _ in range(lost):
            tale.lose("reserve", Want(("q", "r"), LEASE, 1), killed=lost == 2)
        tale.claim(version=3, crashes=2, now=FAR)
        assert names(tale) == found


def test_only_reserves_that_could_have_got_the_job_explain_a_gap() -> None:
    for want in (Want(("r",), LEASE, 1), Want((), LEASE, 1, ("other",)), Want(("q",), LEASE, 1, ("other",))):
        tale = told()
        tale.lose("reserve", want)
        tale.claim(version=2, crashes=1, now=FAR)
        assert names(tale) == {"H2"}
    tale = told()
    tale.lose("reserve", Want((), LEASE, 1, ("j",)))
    tale.claim(version=2, crashes=1, now=FAR)
    assert names(tale) == set()
    tale = told()
    tale.claim(version=2, crashes=1, now=FAR)
    tale.lose("reserve", Want(("q",), LEASE, 1))
    assert names(tale) == {"H2"}


def test_lost_reserves_claim_no_more_jobs_than_they_asked_for() -> None:
    tale = Tale()
    tale.lose("reserve", Want(("q",), LEASE, 1))
    for id in ("a", "b"):
        tale.enqueue(job(id))
        tale.claim(id, version=2, crashes=1, now=FAR)
    assert names(tale) == {"H2"}


# H3


def test_a_lease_is_taken_over_when_it_has_run_out_by_the_drivers_time() -> None:
    tale = told()
    tale.claim(now=0)
    tale.claim(now=LEASE, crashes=1)
    assert names(tale) == set()


def test_a_valid_lease_is_not_taken_over() -> None:
    tale = told()
    tale.claim(now=0)
    tale.claim(now=LEASE - 1, crashes=1)
    assert names(tale) == {"H3"}


def test_a_renewed_lease_is_valid_for_longer() -> None:
    for now, found in ((LEASE + 49, {"H3"}), (LEASE + 50, set[str]())):
        tale = told()
        tale.extend(tale.claim(now=0), LEASE + 50, now=50)
        tale.claim(now=now, crashes=1)
        assert names(tale) == found


def test_a_renewal_with_an_unknown_outcome_grants_nothing() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.lose("extend_lease", Renew("j", first.token), now=90)
    tale.claim(now=LEASE, crashes=1)
    assert names(tale) == set()


@pytest.mark.parametrize("known", [True, False])
def test_a_lease_that_was_or_may_have_been_settled_is_over(known: bool) -> None:
    tale = told()
    first = tale.claim(now=0)
    if known:
        tale.settle(first, "put_back", now=1)
    else:
        tale.lose("settle", settle(first, "put_back"), now=1)
    tale.claim(now=2)
    assert names(tale) == set()


def test_after_a_replay_expiries_of_the_life_before_mean_nothing() -> None:
    tale = told()
    tale.claim(now=0)
    tale.by_hand("cancel", "j", "requested")
    tale.call("sweep", [], Word("1"), now=FAR)
    tale.by_hand("replay", "j", "replayed")
    tale.claim(now=50)
    assert names(tale) == set()


# H4


def taken_over() -> tuple[Tale, ClaimEntry, ClaimEntry]:
    tale = told()
    return tale, tale.claim(now=0), tale.claim(now=LEASE, crashes=1)


def test_nothing_is_accepted_under_a_lease_that_was_taken_over() -> None:
    tale, first, _ = taken_over()
    tale.settle(first, now=50)
    assert "H4" in names(tale)
    tale, first, second = taken_over()
    tale.extend(first, 150, now=50)
    tale.settle(second, now=150)
    assert names(tale) == {"H4"}


def test_refusals_and_unknown_outcomes_are_no_commits() -> None:
    for word in ("LeaseMismatch", "JobNotInflight", "LeaseExpired"):
        tale, first, second = taken_over()
        tale.settle(first, word=word, now=50)
        tale.call("extend_lease", [Renew("j", first.token)], Word(word))
        tale.settle(second, now=150)
        assert names(tale) == set()
    tale, first, _ = taken_over()
    tale.lose("settle", settle(first), now=50)
    assert names(tale) == set()


def test_what_overlaps_the_later_claim_may_have_come_first() -> None:
    tale = told()
    first = tale.claim(now=0)
    extend = tale.begin("extend_lease", Renew("j", first.token), now=50, who="b")
    tale.claim(now=FAR, crashes=1)
    tale.end(extend, KeptEntry(150, False), who="b")
    assert names(tale) == set()


def test_a_lease_is_settled_once_and_not_renewed_afterwards() -> None:
    tale = told()
    first = tale.claim()
    tale.settle(first, "put_back")
    tale.settle(first, "put_back")
    assert names(tale) == {"H4"}
    tale = told()
    first = tale.claim()
    tale.settle(first, "put_back")
    tale.extend(first, FAR)
    assert names(tale) == {"H4"}


def test_nothing_is_accepted_when_the_lease_is_over() -> None:
    tale = told()
    tale.settle(tale.claim(now=0), now=LEASE)
    assert names(tale) == {"H4"}
    tale = told()
    tale.extend(tale.claim(now=0), 3 * LEASE, now=LEASE)
    assert names(tale) == {"H4"}
    tale = told()
    first = tale.claim(now=0)
    tale.extend(first, 190, now=90)
    tale.extend(first, 290, now=190)
    assert names(tale) == {"H4"}


def test_renewals_in_any_order_keep_a_lease() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.extend(first, 190, now=90)
    slow = tale.begin("extend_lease", Renew("j", first.token), now=195, who="b")
    tale.extend(first, 280, now=180)
    tale.end(slow, KeptEntry(295, False), who="b")
    tale.settle(first, now=294)
    assert names(tale) == set()


def test_a_renewal_with_an_unknown_outcome_may_have_kept_a_lease() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.lose("extend_lease", Renew("j", first.token), now=90)
    tale.extend(first, 290, now=150)
    tale.settle(first, now=250)
    assert names(tale) == set()


def test_a_token_that_was_never_returned_is_refused() -> None:
    tale = told()
    tale.settle(claim("j", 1, token="stolen"))
    assert "H4" in names(tale)
    tale = told()
    tale.lose("reserve", Want(("q",), LEASE, 1))
    tale.settle(claim("j", 1, token="stolen"))
    assert names(tale) == set()


# H9


def test_runs_after_one_another_are_neither_duplicates_nor_violations() -> None:
    tale = told()
    first = tale.claim()
    tale.run(first)
    tale.settle(first, "put_back")
    tale.run(tale.claim(who="b"), "b")
    report = check(tale.events)
    assert report.fine
    assert not report.duplicates


def test_an_overlap_after_an_expiry_is_a_duplicate_and_explained() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.began(first)
    second = tale.claim(now=LEASE, crashes=1, who="b")
    tale.run(second, "b")
    tale.ended(first)
    for report in (check(tale.events), check(apart(tale.events))):
        assert report.fine
        (duplicate,) = report.duplicates
        assert duplicate.job == "j"
        assert "ran out at 100, the next was claimed at 100" in duplicate.explanation
        assert [each.verb for each in duplicate.operations] == ["run", "run", "reserve"]
        assert "1 overlapping runs, each explained" in str(report)


def test_an_overlap_under_a_valid_lease_is_a_violation() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.began(first)
    tale.settle(first, "put_back", now=1)
    tale.run(tale.claim(now=2, who="b"), "b")
    tale.ended(first)
    assert names(tale) == {"H9"}


def test_a_handler_ends_with_its_process() -> None:
    tale = told()
    tale.began(tale.claim(now=0))
    tale.run(tale.claim(now=LEASE, crashes=1, who="b"), "b")
    report = check(tale.events)
    assert report.fine
    assert not report.duplicates
    tale = told()
    tale.began(tale.claim(now=0))
    tale._numbers = 0
    tale.run(tale.claim(now=LEASE, crashes=1))
    report = check(tale.events)
    assert report.fine
    assert not report.duplicates


def test_a_handler_without_an_end_is_over_when_its_process_gives_the_job_back() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.began(first)
    put_back = tale.begin("settle", settle(first, "put_back"), now=1)
    tale.began(tale.claim(now=2, who="b"), "b")
    tale.end(put_back, Word("ok"))
    assert names(tale) == set()


def given_up(tale: Tale, first: ClaimEntry, **more: int) -> None:
    """Another process puts the job back."""
    item = settle(first, "put_back", **more)
    tale.call("settle", [item], Word("ok"), now=1, who="supervisor")


def test_a_job_of_a_dead_worker_may_be_given_up() -> None:
    """L9: by another process, with one crash more and no attempt; then it may be claimed before its lease has ended."""
    for crashes in (1, 0):
        tale = told()
        first = tale.claim(now=0)
        tale.began(first)
        given_up(tale, first, crashes=crashes)
        tale.run(tale.claim(now=2, crashes=crashes, who="b"), "b")
        assert names(tale) == set()
        assert not check(tale.events).duplicates


def test_counts_that_no_give_up_explains() -> None:
    """L9: a worker does not count its own crash; two at a time, or with an attempt, are none."""
    for who, count in (("a", {"crashes": 1}), ("b", {"crashes": 2}), ("b", {"crashes": 1, "attempts": 1})):
        tale = told()
        first = tale.claim(now=0)
        tale.call("settle", [settle(first, "put_back", **count)], Word("ok"), now=1, who=who)
        assert names(tale) == {"H6"}


def test_a_job_given_up_while_its_worker_lives_is_a_violation() -> None:
    """L9: the process writes something afterwards, and so was not dead when the next run began."""
    tale = told()
    first = tale.claim(now=0)
    tale.began(first)
    given_up(tale, first, crashes=1)
    tale.run(tale.claim(now=2, crashes=1, who="b"), "b")
    tale.lose("extend_lease", Renew("j", first.token), now=3)
    assert names(tale) == {"H9"}


def test_other_explanations_of_an_overlap() -> None:
    tale = told()
    first = tale.claim(now=0)
    tale.began(first)
    tale.lose("reserve", Want(("q",), LEASE, 1), who="c")
    tale.run(tale.claim(version=3, now=FAR, crashes=2, who="b"), "b")
    tale.ended(first)
    (duplicate,) = check(tale.events).duplicates
    assert "a reserve whose outcome is unknown" in duplicate.explanation
    tale = told()
    first = tale.claim(now=0)
    tale.began(first)
    tale.by_hand("cancel", "j", "requested")
    tale.call("sweep", [], Word("1"), now=FAR)
    tale.lose("replay", Named("j"))
    tale.run(tale.claim(now=50, who="b"), "b")
    tale.ended(first)
    (duplicate,) = check(tale.events).duplicates
    assert "then replayed" in duplicate.explanation
