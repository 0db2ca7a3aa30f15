"""The checker on what really happened: nothing on a sound store, and the right thing on a broken one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any

import pytest
from histories import Wanderers, apart
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.core.job import JobRecord
from taskharbor.core.states import State
from taskharbor.driver import Enqueued
from taskharbor.testing.check import BrokenHistory, check
from taskharbor.testing.history import Called, ClaimEntry, Event, Final, Last, Made, Raised, Returned, Want, Word

SEEDS = st.integers(0, 2**32)
FEW = settings(max_examples=15, deadline=None, derandomize=True, database=None)


@FEW
@given(seed=SEEDS, faults=st.sampled_from([0, 0.1, 0.3]), people=st.integers(1, 5))
def test_a_sound_store_violates_nothing_whatever_happens_to_it(seed: int, faults: float, people: int) -> None:
    events = Wanderers(seed, faults=faults, people=people).live()
    for told in (events, apart(events)):
        report = check(told, overtaking=50, drained=False)
        assert report.fine, str(report)


@FEW
@given(seed=SEEDS, share=st.sampled_from([0.05, 0.5, 1]))
def test_with_fewer_answers_the_checker_finds_no_more(seed: int, share: float) -> None:
    """Whatever answers get lost on the way, an unknown outcome explains all that a known one does."""
    rng = Random(seed)
    events = Wanderers(seed, people=4).live()
    told = [_unheard(event) if rng.random() < share else event for event in events]
    report = check([event for event in told if event is not None], overtaking=50, drained=False)
    assert report.fine, str(report)


def _unheard(event: Event) -> Event | None:
    if not isinstance(event, Returned):
        return event
    return Raised(event.who, event.number, event.at, "TimeoutError", True) if event.at % 2 else None


# Histories with something changed in them: what is changed, and what the checker may report


Change = Callable[[list[Event], Random], list[Event] | None]


def _pick(events: list[Event], rng: Random, fits: Callable[[Event], bool]) -> int | None:
    places = [place for place, event in enumerate(events) if fits(event)]
    return rng.choice(places) if places else None


def _answering(kind: type, fits: Callable[[Any], bool] = lambda _: True) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Returned) and any(isinstance(a, kind) and fits(a) for a in event.answers)


def _altered(kind: type, alter: Callable[[Any], Any], fits: Callable[[Any], bool] = lambda _: True) -> Change:
    """One answer is altered."""

    def change(events: list[Event], rng: Random) -> list[Event] | None:
        place = _pick(events, rng, _answering(kind, fits))
        if place is None:
            return None
        event = events[place]
        assert isinstance(event, Returned)
        number = next(n for n, each in enumerate(event.answers) if isinstance(each, kind) and fits(each))
        answers = (*event.answers[:number], alter(event.answers[number]), *event.answers[number + 1 :])
        return [*events[:place], replace(event, answers=answers), *events[place + 1 :]]

    return change


def _final(alter: Callable[[tuple[Last, ...], Random], tuple[Last, ...] | None]) -> Change:
    """The final inventory is altered."""

    def change(events: list[Event], rng: Random) -> list[Event] | None:
        event = events[-1]
        assert isinstance(event, Final)
        jobs = alter(event.jobs, rng)
        return None if jobs is None else [*events[:-1], replace(event, jobs=jobs)]

    return change


def _one(jobs: tuple[Last, ...], rng: Random, fits: Callable[[Last], bool], **more: Any) -> tuple[Last, ...] | None:
    found = [job for job in jobs if fits(job)]
    if not found:
        return None
    chosen = rng.choice(found)
    return tuple(replace(job, **more) if job is chosen else job for job in jobs)


def _lost(jobs: tuple[Last, ...], rng: Random) -> tuple[Last, ...] | None:
    chosen = rng.choice(jobs) if jobs else None
    return tuple(job for job in jobs if job is not chosen) if chosen else None


def _uncalled(events: list[Event], rng: Random) -> list[Event] | None:
    ended = {(event.who, event.number) for event in events if isinstance(event, Returned)}
    place = _pick(events, rng, lambda event: isinstance(event, Called) and (event.who, event.number) in ended)
    return None if place is None else events[:place] + events[place + 1 :]


def _doubled(events: list[Event], rng: Random) -> list[Event] | None:
    """A claim is handed to a second caller."""
    place = _pick(events, rng, _answering(ClaimEntry))
    if place is None:
        return None
    event = events[place]
    assert isinstance(event, Returned)
    copied = replace(event, who="thief", number=1)
    call = Called("thief", 1, event.at, "reserve", 0, (Want((), 1, 1),))
    return [*events[: place + 1], call, copied, *events[place + 1 :]]


def _forgiven(events: list[Event], rng: Random) -> list[Event] | None:
    """A settle that was refused is recorded as accepted."""
    settles = {(event.who, event.number) for event in events if isinstance(event, Called) and event.verb == "settle"}
    refused = _answering(Word, lambda said: said.word.startswith(("Lease", "JobNot")))
    place = _pick(events, rng, lambda event: refused(event) and _call_of(event) in settles)
    if place is None:
        return None
    event = events[place]
    assert isinstance(event, Returned)
    return [*events[:place], replace(event, answers=(Word("ok"),)), *events[place + 1 :]]


def _call_of(event: Event) -> object:
    return (event.who, event.number) if isinstance(event, Returned) else None


def _early(events: list[Event], rng: Random) -> list[Event] | None:
    """A reserve that got something was given a time long ago."""
    got = {_call_of(event) for event in events if _answering(ClaimEntry)(event)}
    place = _pick(events, rng, lambda event: isinstance(event, Called) and (event.who, event.number) in got)
    if place is None:
        return None
    event = events[place]
    assert isinstance(event, Called)
    return [*events[:place], replace(event, now=0), *events[place + 1 :]]


CHANGES: dict[str, tuple[Change, set[str]]] = {
    "a job is lost": (_final(_lost), {"H1"}),
    "a job is not known": (_final(lambda jobs, _: (*jobs, Last("ghost", "done", 1, 0, 0, 0, 0, 0))), {"H1"}),
    "the version is too high": (_final(lambda jobs, rng: _one(jobs, rng, bool, version=99)), {"H2"}),
    "a done job is dead": (
        _final(lambda jobs, rng: _one(jobs, rng, lambda job: job.state == "done", state="dlq")),
        {"H5"},
    ),
    "a done job is ready": (
        _final(lambda jobs, rng: _one(jobs, rng, lambda job: job.state == "done", state="ready")),
        {"H5"},
    ),
    "too many attempts": (_final(lambda jobs, rng: _one(jobs, rng, bool, attempts=9)), {"H6"}),
    "too many crashes": (_final(lambda jobs, rng: _one(jobs, rng, bool, crashes=99)), {"H6"}),
    "replayed by nobody": (_final(lambda jobs, rng: _one(jobs, rng, bool, replays=1)), {"H5"}),
    "a call without a beginning": (_uncalled, set()),
    "a claim given twice": (_doubled, {"H2"}),
    "a claim in the past": (_early, {"H7", "H3"}),
    "another version": (_altered(ClaimEntry, lambda claim: replace(claim, version=claim.version + 7)), {"H2"}),
    "another job": (_altered(ClaimEntry, lambda claim: replace(claim, id="ghost")), {"H1"}),
    "a refusal taken back": (_forgiven, {"H4", "H5", "H6"}),
    "settled by nobody": (_altered(Word, lambda _: Word("replayed"), lambda said: said.word == "ok"), {"H5"}),
    "a key made twice": (
        _altered(Made, lambda made: replace(made, created=True), lambda made: not made.created),
        {"H8"},
    ),
}


@cache
def calm(seed: int) -> list[Event]:
    """A history in which nothing is unknown."""
    return Wanderers(seed, faults=0, people=4, calm=True).live()


SOMETIMES = {"a refusal taken back"}  # it may have come just in time


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_history_is_found_out(name: str) -> None:
    change, names = CHANGES[name]
    found: list[bool] = []
    for seed in range(6):
        changed = change(calm(seed), Random(seed))
        if changed is not None:
            found.append(is_found(changed, names))
    assert len(found) >= 3, "the change hardly ever applies"
    assert any(found) if name in SOMETIMES else all(found)


def is_found(events: list[Event], names: set[str]) -> bool:
    """Whether one of these is violated, or if there are none, the history refused."""
    try:
        return bool(check(events, drained=False).names & names)
    except BrokenHistory:
        return not names


# Stores with something broken in them


def forgets_jobs(store: Any) -> None:
    right = store._store_one

    def wrong(job: Any, now: Any) -> Any:
        lost = job.id.endswith("3") and not job.depends_on
        return Enqueued(job.id, True) if lost else right(job, now)

    store._store_one = wrong


def hands_out_twice(store: Any) -> None:
    right = store.reserve

    def wrong(queues: Any, now: Any, *rest: Any) -> Any:
        for job in list(store.jobs.values()):
            if job.lease is not None and job.lease.expires_at > now and job.id.endswith(("1", "4")):
                store._write(replace(job, lease=replace(job.lease, expires_at=now)))
        return right(queues, now, *rest)

    store.reserve = wrong


def same_version(store: Any) -> None:
    right = store._claim

    def wrong(job: JobRecord, *rest: Any) -> Any:
        return right(replace(job, version=max(0, job.version - 1)), *rest)

    store._claim = wrong


def same_token(store: Any) -> None:
    store._new_token = lambda: "token"


def ignores_tokens(store: Any) -> None:
    right = store.settle

    def wrong(to: Any, now: Any) -> Any:
        job = store.jobs.get(to.id)
        return right(replace(to, token=job.lease.token) if job is not None and job.lease is not None else to, now)

    store.settle = wrong


def ignores_expiry(store: Any) -> None:
    right = store.settle

    def wrong(to: Any, now: Any) -> Any:
        job = store.jobs.get(to.id)
        early = now if job is None or job.lease is None else min(now, job.lease.expires_at - timedelta(seconds=1))
        return right(to, early)

    store.settle = wrong


def forgets_settles(store: Any) -> None:
    right = store.settle

    def wrong(to: Any, now: Any) -> Any:
        before = store.jobs.get(to.id)
        verdict = right(to, now)
        if verdict == "ok" and before is not None and to.id.endswith(("2", "5")):
            store._write(before)
        return verdict

    store.settle = wrong


def counts_no_crashes(store: Any) -> None:
    right = store._claim

    def wrong(job: JobRecord, *rest: Any) -> Any:
        return right(replace(job, crashes=job.crashes - (job.state is State.INFLIGHT)), *rest)

    store._claim = wrong


def ignores_run_at(store: Any) -> None:
    right = store._write

    def wrong(job: JobRecord) -> Any:
        return right(replace(job, due_at=job.created_at, run_at=None) if job.state is State.READY else job)

    store._write = wrong


def ignores_expires(store: Any) -> None:
    right = store._store_one
    store._store_one = lambda job, now: right(replace(job, expires_at=None), now)


def ignores_keys(store: Any) -> None:
    store.keys.living = lambda key, now: None


def releases_early(store: Any) -> None:
    right = store._write

    def wrong(job: JobRecord) -> Any:
        return right(replace(job, state=State.READY) if job.state is State.WAITING else job)

    store._write = wrong


def half_stores(store: Any) -> None:
    right = store._store
    store._store = lambda jobs, now: right(jobs[:1], now) + tuple(Enqueued(job.id, True) for job in jobs[1:])


def last_in_first_out(store: Any) -> None:
    right = store._line.put

    def wrong(id: str, queue: str, priority: int, due: Any, seq: int) -> None:
        late = due.replace(year=2026 - (due.second + 60 * due.minute) - 1) if due.year == 2026 else due
        right(id, queue, priority, late, -seq)

    store._line.put = wrong


MUTANTS: dict[Callable[[Any], None], str] = {
    forgets_jobs: "H1",
    half_stores: "H1",
    same_version: "H2",
    same_token: "H2",
    hands_out_twice: "H3",
    ignores_tokens: "H4",
    ignores_expiry: "H4",
    forgets_settles: "H5",
    counts_no_crashes: "H6",
    ignores_run_at: "H7",
    ignores_expires: "H7",
    ignores_keys: "H8",
    releases_early: "H10",
    last_in_first_out: "H11",
}


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_store_is_found_out(mutate: Callable[[Any], None]) -> None:
    def names(seed: int) -> set[str]:
        events = Wanderers(seed, people=5, deeds=40, calm=True, faults=0.05, mutate=mutate).live()
        return check(events, overtaking=10, drained=False).names

    assert any(MUTANTS[mutate] in names(seed) for seed in range(10))
