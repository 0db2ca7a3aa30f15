"""The checker on what is stored: lost jobs, jobs from nowhere, keys, dependants and recurring slots (H1, H8, H10)."""

from __future__ import annotations

import pytest
from histories import Tale, job, last, settle

from taskharbor.testing.check import BrokenHistory, CheckReport, check
from taskharbor.testing.history import ClaimEntry, Last, Made, Named, Raised, SettleEntry, SwapEntry, Word

# H1


def test_a_job_from_enqueue_to_ack_is_fine_and_counted() -> None:
    tale = Tale()
    tale.enqueue(job())
    claim = tale.claim()
    tale.run(claim)
    tale.settle(claim)
    report = check(tale.final(last()))
    assert report.fine
    assert not report.duplicates
    counts = report.counts
    assert (counts.operations, counts.unknown, counts.jobs, counts.claims, counts.executions) == (3, 0, 1, 1, 1)
    assert str(report).endswith("fine")


def test_nothing_is_fine() -> None:
    assert check([]).fine
    assert check(Tale().final()).fine


def test_an_acknowledged_job_that_is_gone_is_lost() -> None:
    tale = Tale()
    tale.enqueue(job("a"), job("b", 1))
    report = check(tale.final(last("a", "cancelled", 0)), drained=False)
    assert [(each.name, each.operations[0].item) for each in report.violations if each.name == "H1"] == [("H1", "b")]
    (reference,) = next(each for each in report.violations if each.name == "H1").operations
    assert (reference.who, reference.number, reference.verb, reference.at) == ("a", 1, "enqueue", 1)


def test_a_job_whose_enqueue_is_unknown_may_be_there_or_not() -> None:
    for stored in (True, False):
        for killed in (True, False):
            tale = Tale()
            tale.lose("enqueue", job(), killed=killed)
            assert check(tale.final(*[last(state="ready", version=0)] * stored), drained=False).fine


def test_a_job_that_was_claimed_was_there_even_if_its_enqueue_is_unknown() -> None:
    tale = Tale()
    tale.lose("enqueue", job())
    tale.claim()
    assert check(tale.final()).names == {"H1"}


def test_jobs_that_were_never_requested_are_violations() -> None:
    tale = Tale()
    assert check(tale.final(last(state="ready", version=0)), drained=False).names == {"H1"}
    tale = Tale()
    tale.claim("ghost")
    assert check(tale.events).names == {"H1"}


def test_a_job_of_a_refused_call_or_group_comes_from_nowhere() -> None:
    tale = Tale()
    tale.refuse("enqueue", job())
    assert "H1" in check(tale.final(last(state="ready", version=0)), drained=False).names
    tale = Tale()
    tale.call("enqueue", [job("a"), job("b", 1), job("c", 1)], Made("a", True), Word("JobExists"))
    found = check(tale.final(last("a", "ready", 0), last("c", "ready", 0)), drained=False)
    assert [each.name for each in found.violations] == ["H1"]
    assert "job c" in found.violations[0].message


def test_a_group_whose_outcome_is_unknown_may_be_stored_or_not() -> None:
    for stored in ([], [last("b", "ready", 0), last("c", "ready", 0)]):
        tale = Tale()
        tale.call("enqueue", [job("a"), job("b", 1), job("c", 1)], Made("a", True), Word("DriverUnavailable"))
        assert check(tale.final(last("a", "ready", 0), *stored), drained=False).fine


def test_a_job_cannot_be_handed_out_before_anybody_asked_for_it() -> None:
    tale = Tale()
    tale.claim()
    tale.enqueue(job())
    assert check(tale.events).names == {"H1"}
    tale = Tale()
    enqueue = tale.begin("enqueue", job(), who="b")
    tale.claim()
    tale.end(enqueue, Made("j", True), who="b")
    assert check(tale.events).fine


def test_the_same_id_is_stored_once_unless_it_was_removed_between() -> None:
    tale = Tale()
    tale.enqueue(job())
    tale.enqueue(job())
    assert check(tale.events).names == {"H1"}
    tale = Tale()
    tale.enqueue(job())
    tale.by_hand("cancel", "j", "cancelled")
    tale.by_hand("delete", "j", "deleted")
    tale.enqueue(job())
    tale.settle(tale.claim())
    assert check(tale.final(last())).fine


@pytest.mark.parametrize("word", ["deleted", None])
def test_a_job_that_may_have_been_deleted_may_be_gone(word: str | None) -> None:
    tale = Tale()
    tale.enqueue(job())
    tale.settle(tale.claim())
    if word:
        tale.by_hand("delete", "j", word)
    else:
        tale.lose("delete", Named("j"))
    assert check(tale.final()).fine
    tale = Tale()
    tale.enqueue(job())
    tale.settle(tale.claim())
    tale.by_hand("delete", "j", "needed")
    assert check(tale.final()).names == {"H1"}


def pruned(count: str | None, *, ended: bool = True) -> CheckReport:
    """Two jobs that are gone after a prune."""
    tale = Tale()
    for id in ("a", "b"):
        tale.enqueue(job(id))
        claim = tale.claim(id)
        tale.settle(claim, "ack" if ended else "put_back")
    if count is None:
        tale.lose("prune")
    else:
        tale.call("prune", [], Word(count))
    return check(tale.final())


def test_as_many_ended_jobs_as_were_pruned_may_be_gone() -> None:
    assert pruned("2").fine
    assert pruned(None).fine
    assert pruned("1").names == pruned("0").names == {"H1"}
    assert pruned("2", ended=False).names == {"H1"}


def test_of_an_unknown_group_all_jobs_without_keys_are_there_or_none() -> None:
    """D1, as histories show it."""

    def stored(*ids: str, twice: bool = False) -> CheckReport:
        tale = Tale()
        for _ in range(1 + twice):
            tale.lose("enqueue", job("a"), job("b"), job("c", key="k"))
        return check(tale.final(*(last(id, "ready", 0) for id in ids)), drained=False)

    for twice in (True, False):
        assert stored("a", "b", twice=twice).fine
        assert stored("a", "b", "c", twice=twice).fine
        assert stored(twice=twice).fine
        assert stored("a", twice=twice).names == {"H1"}


def test_a_job_that_was_asked_for_alone_as_well_says_nothing_about_its_group() -> None:
    tale = Tale()
    tale.lose("enqueue", job("a"), job("b"))
    tale.lose("enqueue", job("a"))
    assert check(tale.final(last("a", "ready", 0)), drained=False).fine


def settled_with(word: str | None, *jobs: str) -> CheckReport:
    """An ack that brings two new jobs, one with a key; and which of them are there in the end."""
    tale = Tale()
    tale.enqueue(job())
    claim = tale.claim()
    new = (job("new"), job("keyed", key="k"))
    if word is None:
        tale.lose("settle", settle(claim, jobs=new))
    else:
        tale.settle(claim, word=word, jobs=new)
    stays = [last()] if word in (None, "ok") else [last(state="inflight")]
    return check(tale.final(*stays, *(last(id, "ready", 0) for id in jobs)), drained=False)


def test_jobs_that_come_with_a_settle_are_there_if_it_happened() -> None:
    """D9, as histories show it: one whose key is known is skipped."""
    assert settled_with("ok", "new", "keyed").fine
    assert settled_with("ok", "new").fine
    assert settled_with(None, "new").fine
    assert settled_with(None).fine
    assert settled_with("ok").names == settled_with("ok", "keyed").names == {"H1"}
    assert settled_with("LeaseExpired", "new").names == {"H1"}


def test_jobs_that_come_with_a_settle_are_there_if_it_proved_to_have_happened() -> None:
    for stored in (True, False):
        tale = Tale()
        tale.enqueue(job())
        claim = tale.claim()
        tale.lose("settle", settle(claim, jobs=(job("new"), job("keyed", key="k"))))
        tale.settle(claim, word="replayed", jobs=(job("new"), job("keyed", key="k")))
        report = check(tale.final(last(), *[last("new", "ready", 0)] * stored), drained=False)
        assert report.names == (set() if stored else {"H1"})


# H8


def asked(tale: Tale, id: str, made: str, created: bool, *, now: int | None = None, until: int | None = None) -> None:
    tale.call("enqueue", [job(id, key="k", key_until=until)], Made(made, created), now=now)


def test_every_caller_gets_the_id_of_the_key() -> None:
    tale = Tale()
    asked(tale, "a", "a", True)
    asked(tale, "b", "a", False)
    asked(tale, "c", "a", False)
    assert check(tale.events).fine


def test_a_key_makes_one_job() -> None:
    tale = Tale()
    asked(tale, "a", "a", True)
    asked(tale, "b", "b", True)
    assert check(tale.events).names == {"H8"}


def test_two_at_the_same_time_are_no_excuse() -> None:
    tale = Tale()
    one = tale.begin("enqueue", job("a", key="k"))
    asked(tale, "b", "b", True)
    tale.end(one, Made("a", True))
    assert check(tale.events).names == {"H8"}


def test_a_key_may_be_used_again_when_it_has_run_out_by_any_clock() -> None:
    def used(until: int, now: int, *, ended: bool = True, pruned: bool = False) -> CheckReport:
        tale = Tale()
        asked(tale, "a", "a", True, now=0, until=until)
        if ended:
            tale.settle(tale.claim("a"))
        if pruned:
            tale.call("prune", [], Word("0"), now=60)
        asked(tale, "b", "b", True, now=now, until=90)
        return check(tale.events)

    assert used(50, 50).fine
    assert used(50, 49, pruned=True).fine
    assert used(50, 49).names == {"H8"}
    assert used(50, 50, ended=False).names == {"H8"}
    assert used(50, 49, ended=False, pruned=True).names == {"H8"}


@pytest.mark.parametrize("verb", ["cancel", "delete", "replay"])
@pytest.mark.parametrize("known", [True, False])
def test_a_key_may_be_free_again_after_its_job_was_touched(verb: str, known: bool) -> None:
    words = {"cancel": "cancelled", "delete": "deleted", "replay": "replayed"}
    tale = Tale()
    asked(tale, "a", "a", True)
    if known:
        tale.by_hand(verb, "a", words[verb])
    else:
        tale.lose(verb, Named("a"))
    asked(tale, "b", "b", True)
    assert check(tale.events).fine


def test_a_job_that_expires_or_is_cancelled_frees_its_key() -> None:
    tale = Tale()
    tale.enqueue(job("a", key="k", expires_at=9))
    asked(tale, "b", "b", True)
    assert check(tale.events).fine
    tale = Tale()
    asked(tale, "a", "a", True)
    tale.settle(tale.claim("a"), "cancel")
    asked(tale, "b", "b", True)
    assert check(tale.events).fine


def test_what_frees_a_key_later_does_not_excuse_what_was_made_before() -> None:
    tale = Tale()
    asked(tale, "a", "a", True)
    asked(tale, "b", "b", True)
    tale.by_hand("cancel", "a", "cancelled")
    assert check(tale.events).names == {"H8"}


def test_a_known_key_names_a_job_that_was_asked_for_with_it() -> None:
    tale = Tale()
    tale.enqueue(job("a"))
    asked(tale, "b", "a", False)
    assert check(tale.events).names == {"H8"}
    tale = Tale()
    tale.lose("enqueue", job("a", key="k"))
    asked(tale, "b", "a", False)
    assert check(tale.events).fine
    tale = Tale()
    tale.enqueue(job("a"))
    tale.lose("replay", Named("a"))
    asked(tale, "b", "a", False)
    assert check(tale.events).fine


def test_a_known_key_names_the_right_one() -> None:
    tale = Tale()
    tale.lose("enqueue", job("a", key="k"))
    asked(tale, "b", "b", True)
    asked(tale, "c", "a", False)
    assert check(tale.events).names == {"H8"}


def test_an_expired_key_finds_nothing_once_its_job_has_ended() -> None:
    """I2: until then it does, whatever its time."""
    for ended, names in ((True, {"H8"}), (False, set[str]())):
        tale = Tale()
        asked(tale, "a", "a", True, now=0, until=50)
        if ended:
            tale.settle(tale.claim("a"))
        asked(tale, "b", "a", False, now=50)
        assert check(tale.events).names == names


def test_what_a_key_makes_has_the_id_that_was_asked_for() -> None:
    tale = Tale()
    asked(tale, "a", "b", True)
    assert check(tale.events).names == {"H8"}


def test_the_key_of_a_group_is_not_a_jobs_key() -> None:
    tale = Tale()
    tale.call("enqueue", [job("a", key="k", flow_key="f")], Made("workflow", False))
    assert check(tale.events).fine


def flow_twice(
    until: int | None, *, now: int = 3, between: str = "", word: str = "", known: bool = False
) -> CheckReport:
    """A flow of two jobs under a key, and then another under the same one."""
    tale = Tale()
    first, second = ([job(f"{name}{n}", flow_key="f", flow=name, key_until=until) for n in (1, 2)] for name in "ab")
    tale.enqueue(*first, now=1)
    if between == "free_workflow_key":
        tale.by_hand(between, word, "True")
    for each in first if between in ("cancel", "delete") else ():
        tale.by_hand(between, each.id, word)
    if known:
        tale.call("enqueue", second, *[Made("a", False)] * 2, now=now)
    else:
        tale.enqueue(*second, now=now)
    return check(tale.events)


def test_the_key_of_a_flow_makes_one_workflow_while_it_lives() -> None:
    """I1, D1."""
    for until in (50, None):
        assert flow_twice(until).names == {"H8"}
        assert flow_twice(until, known=True).fine
    assert flow_twice(50, now=50).names == {"H8"}
    assert flow_twice(50, now=50, between="cancel", word="cancelled").fine
    assert flow_twice(None, between="cancel", word="cancelled").names == {"H8"}
    assert flow_twice(None, between="delete", word="deleted").fine
    assert flow_twice(None, between="free_workflow_key", word="a").fine
    assert flow_twice(None, between="free_workflow_key", word="other").names == {"H8"}


# H10


def family(policy: str = "hold") -> Tale:
    tale = Tale()
    child = job("child", after=("p", "q"), policies=(policy, policy))
    tale.call("enqueue", [job("p"), job("q"), child], *(Made(id, True) for id in ("p", "q", "child")))
    return tale


def test_a_dependant_runs_after_its_parents() -> None:
    tale = family()
    for id in ("p", "q", "child"):
        tale.settle(tale.claim(id))
    assert check(tale.final(last("p"), last("q"), last("child"))).fine


def test_a_dependant_may_run_after_settles_with_unknown_outcomes() -> None:
    tale = family()
    tale.settle(tale.claim("p"))
    tale.lose("settle", settle(tale.claim("q")))
    tale.settle(tale.claim("child"))
    assert check(tale.final(last("p"), last("q"), last("child"))).fine


@pytest.mark.parametrize("policy", ["hold", "collect"])
def test_a_dependant_does_not_run_before_a_parent_has_ended(policy: str) -> None:
    tale = family(policy)
    tale.settle(tale.claim("p"))
    tale.settle(tale.claim("q"), "put_back")
    child = tale.claim("child")
    tale.settle(tale.claim("q", due_at=0))
    tale.settle(child)
    assert check(tale.final(last("p"), last("q", version=2), last("child"))).names == {"H10"}


def test_only_collect_takes_a_failure_for_an_end() -> None:
    for policy, names in (("collect", set[str]()), ("hold", {"H10"}), ("cancel", {"H10"})):
        tale = family(policy)
        tale.settle(tale.claim("p"))
        tale.settle(tale.claim("q"), "fail")
        tale.settle(tale.claim("child"))
        assert check(tale.final(last("p"), last("q", "dlq"), last("child"))).names == names


def test_failures_above_a_parent_may_have_ended_it() -> None:
    tale = Tale()
    edges = {"b": ("a",), "c": ("b",), "d": ("c",)}
    jobs = [
        job(id, after=edges.get(id, ()), policies=("collect" if id == "d" else "cancel",) * (id != "a"))
        for id in "abcd"
    ]
    tale.call("enqueue", jobs, *(Made(id, True) for id in "abcd"))
    tale.settle(tale.claim("a"), "fail")
    tale.settle(tale.claim("d"))
    ended = [last("a", "dlq"), *(last(id, "cancelled", 0, unmet=1) for id in "bc"), last("d")]
    assert check(tale.final(*ended)).fine


def test_a_parent_that_expires_may_have_ended_at_any_time() -> None:
    for parent, names in ((job("p", expires_at=5), set[str]()), (job("p"), {"H10"})):
        tale = Tale()
        tale.enqueue(parent, job("child", after=("p",), policies=("collect",)))
        tale.claim("child")
        assert check(tale.events).names == names


def test_an_unknown_parent_has_not_ended() -> None:
    tale = Tale()
    tale.enqueue(job("child", after=("p",)))
    tale.claim("child")
    assert check(tale.events).names == {"H10"}


def test_a_dependant_is_stored_and_released_once() -> None:
    tale = family()
    tale.enqueue(job("child", after=("p", "q"), policies=("hold", "hold")))
    assert check(tale.events).names == {"H10"}
    tale = family()
    for id in ("p", "q"):
        tale.settle(tale.claim(id))
    tale.claim("child", now=0)
    tale.claim("child", version=1, now=200, token="other")
    assert check(tale.events).names == {"H2", "H10"}


def born_with_a_settle(policy: str = "hold") -> Tale:
    tale = Tale()
    tale.enqueue(job("starter"))
    child = job("child", after=("p", "q"), policies=(policy, policy))
    flow = (job("p"), job("q"), child)
    starter = tale.claim("starter")
    tale.lose("settle", settle(starter, jobs=flow))
    tale.settle(starter, word="replayed", jobs=flow)
    return tale


@pytest.mark.parametrize("policy", ["hold", "collect"])
def test_a_flow_that_came_with_a_settle_runs_in_its_order(policy: str) -> None:
    """D9, K2: its finalizer after all of its members."""
    for order, names in ((("p", "q", "child"), set[str]()), (("p", "child", "q"), {"H10"})):
        tale = born_with_a_settle(policy)
        for id in order:
            tale.settle(tale.claim(id))
        ended = [last(id) for id in ("starter", "p", "q", "child")]
        assert check(tale.final(*ended)).names == names


@pytest.mark.parametrize(
    ("finalizer", "names"),
    [(last("child", "waiting", 0, unmet=1), {"H10", "H12"}), (last("child", "ready", 0), {"H12"}), (None, {"H1"})],
)
def test_the_finalizer_of_a_flow_that_came_with_a_settle_runs(finalizer: Last | None, names: set[str]) -> None:
    """D9, K2: not never, and it is not lost."""
    tale = born_with_a_settle()
    for id in ("p", "q"):
        tale.settle(tale.claim(id))
    ended = [last("starter"), last("p"), last("q")]
    assert check(tale.final(*ended, *([finalizer] if finalizer else []))).names == names


def test_the_finalizer_of_a_flow_that_came_with_a_settle_is_released_once() -> None:
    """D9, K2."""
    tale = born_with_a_settle()
    for id in ("p", "q"):
        tale.settle(tale.claim(id))
    tale.claim("child", now=0)
    tale.claim("child", version=1, now=200, token="other")
    assert check(tale.events).names == {"H2", "H10"}


@pytest.mark.parametrize(
    ("policy", "state", "unmet", "fine"),
    [
        ("hold", "done", 0, True),
        ("hold", "done", 1, False),
        ("hold", "dlq", 1, True),
        ("hold", "dlq", 0, False),
        ("hold", "dlq", 2, False),
        ("collect", "dlq", 0, True),
        ("collect", "dlq", 1, False),
        ("cancel", "dlq", 1, True),
        ("cancel", "dlq", 0, False),
    ],
)
def test_each_edge_is_met_once(policy: str, state: str, unmet: int, fine: bool) -> None:
    """K2: what a dependant still lacks in the end is what its parents have not come to."""
    tale = family(policy)
    tale.settle(tale.claim("p"))
    tale.settle(tale.claim("q"), {"done": "ack", "dlq": "fail"}[state])
    child = last("child", "waiting" if unmet else "ready", 0, unmet=unmet)
    report = check(tale.final(last("p"), last("q", state), child), drained=False)
    assert report.names == (set() if fine else {"H10"})


def test_a_parent_that_was_replayed_may_have_met_its_edge_before() -> None:
    """K2: collected once, it may die or run again, and is not counted again."""
    for unmet, names in ((0, set[str]()), (1, set[str]()), (2, {"H10"})):
        tale = family("collect")
        tale.settle(tale.claim("p"))
        tale.settle(tale.claim("q"), "fail")
        tale.by_hand("replay", "q", "replayed")
        now = last("q", "ready", 1, replays=1, settled_token="q/1", failures=1)
        child = last("child", "waiting" if unmet else "ready", 0, unmet=unmet)
        assert check(tale.final(last("p"), now, child), drained=False).names == names


def test_a_slot_is_taken_once() -> None:
    """N3: one swap makes the job of a slot, as far as is known."""
    tale = Tale()
    for word in ("True", "False", "JobExists"):
        tale.call("swap_schedules", [SwapEntry("s", 7, job(f"j{tale.time}"))], Word(word))
    tale.lose("swap_schedules", SwapEntry("s", 7, job("perhaps")))
    tale.call(
        "swap_schedules", [SwapEntry("s", 8, job("next")), SwapEntry("other", 7, job("o"))], Word("True"), Word("True")
    )
    assert check(tale.events).fine
    tale.call(
        "swap_schedules", [SwapEntry("t", 7, job("t")), SwapEntry("s", 7, job("again"))], Word("True"), Word("True")
    )
    (violation,) = check(tale.events).violations
    assert (violation.name, [it.item for it in violation.operations]) == ("H10", ["j0", "again"])


def test_what_is_run_beside_the_slots_takes_none() -> None:
    """N5: an operator runs a schedule now, again and again; its definition and its pause change in between."""
    tale = Tale()
    tale.call("swap_schedules", [SwapEntry("s", 7, job("tick"))], Word("True"))
    for id in ("x", "y"):
        tale.call("swap_schedules", [SwapEntry("s", None, job(id)), SwapEntry("s")], Word("True"), Word("True"))
    assert check(tale.events).fine
    assert check(tale.final(last("tick", "ready", 0), last("x", "ready", 0)), drained=False).names == {"H1"}


def test_the_job_of_a_slot_is_stored_with_it() -> None:
    """N3: in one step with the swap, so that a job of one that lost comes from nowhere."""
    stored = last("j", "ready", 0)
    for word, lost, found in (
        ("True", {"H1"}, set[str]()),
        ("False", set[str](), {"H1"}),
        ("JobExists", set[str](), {"H1"}),
    ):
        for final, names in (((), lost), ((stored,), found)):
            tale = Tale()
            tale.call("swap_schedules", [SwapEntry("s", 7, job("j"))], Word(word))
            assert check(tale.final(*final), drained=False).names == names


# What does not fit


def test_events_that_do_not_fit_are_refused() -> None:
    tale = Tale()
    tale.end(7)
    with pytest.raises(BrokenHistory, match="call #7 by a has ended"):
        check(tale.events)
    tale = Tale()
    tale.ended(ClaimEntry("j", "t", 1, 0, "q", 0, 0, 0, 0))
    with pytest.raises(BrokenHistory, match="a handler of j by a has ended"):
        check(tale.events)
    for verb, items in (("settle", [SettleEntry("j", "t", "ack", 0, 0, 0, 0)]), ("enqueue", [job("a"), job("b")])):
        tale = Tale()
        tale.call(verb, items)
        with pytest.raises(BrokenHistory, match="more or fewer answers"):
            check(tale.events)


def test_a_process_under_an_old_name_restarts_its_call_numbers() -> None:
    tale = Tale()
    tale.lose("enqueue", job("a"), killed=True)
    tale._numbers = 0
    tale.enqueue(job("b"))
    report = check(tale.final(last("b", "ready", 0)), drained=False)
    assert report.fine
    assert report.counts.unknown == 1


def test_refused_calls_count_as_operations_and_change_nothing() -> None:
    tale = Tale()
    tale.refuse("reserve")
    assert isinstance(tale.events[-1], Raised)
    report = check(tale.final())
    assert report.fine
    assert (report.counts.operations, report.counts.unknown) == (1, 0)
