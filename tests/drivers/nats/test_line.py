"""The line in memory against a simple model: a list of all jobs, sorted."""

from __future__ import annotations

from itertools import count, product
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.drivers.nats.line import ALL, EVER, PATIENCE, ClaimShare, LineInMemory, PickedEntries
from taskharbor.drivers.nats.pages import (
    IS_DONE,
    IS_INFLIGHT,
    IS_READY,
    IS_WAITING,
    JobPage,
    PagedJob,
    RareFields,
    pack,
)
from taskharbor.drivers.nats.reserve import claimed

NOW = 1_000
TIMES = st.integers(0, 20).map(lambda it: it * 100)
MANY = settings(max_examples=100, deadline=None, derandomize=True, database=None)


class ModelJob(NamedTuple):
    """A job as the model sorts them: the order of D11 first."""

    priority: int
    due: int
    seq: int
    id: str


# Every kind of job that the line tells apart: one draw for each entry keeps the tests fast.
RARE = (None, None, RareFields(dlq_reason="x"), RareFields(expires_at=NOW), RareFields(stop_requested_at=1))
READY = [
    PagedJob("", IS_READY, due, priority, rare=rare)
    for due, priority, rare in product((0, 500, NOW, NOW + 1, 1_500), (-1, 0, 1), RARE)
]
DUE = [it for it in READY if it.due <= NOW and it.rare is None]
INFLIGHT = [
    PagedJob("", IS_INFLIGHT, 100, priority, until=until, crashes=crashes, rare=rare)
    for until, priority, crashes, rare in product((500, NOW, NOW + 1), (0, 1), (0, 1), RARE)
]
OTHERS = [None, PagedJob("", IS_WAITING, 0), PagedJob("", IS_DONE, 0)]
KINDS = st.sampled_from([*DUE, *DUE, *DUE, *READY, *INFLIGHT, *OTHERS])
PAGES = st.lists(
    st.tuples(st.sampled_from("qqqr"), st.integers(1, 3), st.lists(KINDS, min_size=1, max_size=5)), max_size=6
)


def numbered(drawn: list[tuple[str, int, list[PagedJob | None]]]) -> dict[str, JobPage]:
    """Pages of two queues, of which some were stored together."""
    numbers = count()
    return {
        f"p{index}": JobPage(
            queue, [it and replace(it, id=str(n := next(numbers)), number=n) for it in kinds], born=born
        )
        for index, (queue, born, kinds) in enumerate(drawn)
    }


def stores() -> st.SearchStrategy[dict[str, JobPage]]:
    return PAGES.map(numbered)


def filled(pages: dict[str, JobPage]) -> LineInMemory:
    line = LineInMemory()
    for revision, (name, page) in enumerate(pages.items(), 10):
        line.take("-", name, revision, pack(page))
    return line


def model(pages: dict[str, JobPage], queue: str, now: int) -> list[ModelJob]:
    """What can be claimed, in the order of D11."""
    found: list[ModelJob] = []
    for page in pages.values():
        for entry in page.entries:
            if entry is None or page.queue != queue:
                continue
            rare = entry.rare or RareFields()
            if rare.stop_requested_at is not None or (rare.expires_at is not None and rare.expires_at <= now):
                continue
            if entry.state == IS_READY and entry.due <= now:
                due = entry.due
            elif entry.state == IS_INFLIGHT and entry.until <= now:
                due = entry.until if entry.crashes else EVER
            else:
                continue
            found.append(ModelJob(-entry.priority, due, (page.born << 24) + entry.number, entry.id))
    return sorted(found)


def ids(picked: list[PickedEntries]) -> set[str]:
    found = [entry for each in picked for position in each.positions if (entry := each.page.entries[position])]
    assert len({entry.id for entry in found}) == len(found), "picked twice"
    return {entry.id for entry in found}


@MANY
@given(stores(), st.integers(0, 12), st.sampled_from(["q", "r", "s"]))
def test_a_pick_takes_the_best_jobs_of_all_pages(pages: dict[str, JobPage], limit: int, queue: str) -> None:
    """D11: by job, not by page."""
    picked = filled(pages).pick(queue, NOW, limit, ALL, 0.0)
    assert ids(picked) == {it.id for it in model(pages, queue, NOW)[:limit]}


@MANY
@given(stores(), st.lists(TIMES, min_size=1, max_size=4), st.integers(1, 4))
def test_picks_at_any_times_one_after_the_other(pages: dict[str, JobPage], times: list[int], limit: int) -> None:
    """D11, L8: a clock may go back; what was claimed is not picked again before its lease lapses."""
    line, revision = filled(pages), 100
    for now in times:
        picked = line.pick("q", now, limit, ALL, 0.0)
        assert ids(picked) == {it.id for it in model(pages, "q", now)[:limit]}
        for each in picked:
            revision += 1
            page = pages[each.held.name] = claimed(each, "token", now, now + 150, "w")
            line.put("-", each.held.name, revision, page)


@MANY
@given(stores(), st.integers(1, 12))
def test_a_paused_queue_has_nothing(pages: dict[str, JobPage], limit: int) -> None:
    """D3: until it is open again."""
    line = filled(pages)
    line.paused["q"] = 1
    assert line.pick("q", NOW, limit, ALL, 0.0) == []
    assert line.next_due(["q"]) is None
    del line.paused["q"]
    assert ids(line.pick("q", NOW, limit, ALL, 0.0)) == {it.id for it in model(pages, "q", NOW)[:limit]}


@MANY
@given(stores(), st.integers(1, 4), st.integers(2, 3))
def test_shares_leave_nothing_for_ever(pages: dict[str, JobPage], limit: int, among: int) -> None:
    """D11: a worker takes of its own share, and after a moment of all."""
    wanted = {it.id for it in model(pages, "q", NOW)}
    for rank in range(among):
        line, share = filled(pages), ClaimShare(rank, among)
        first = line.pick("q", NOW, limit, share, 10.0)
        assert ids(first) <= wanted
        assert bool(ids(first)) == bool(wanted), "there is something, and it takes nothing"
        later = [line.pick("q", NOW, 1000, share, 10.0 + PATIENCE * turn) for turn in range(1, len(pages) + 2)]
        assert ids(later[-1]) == wanted


@MANY
@given(stores())
def test_workers_with_shares_take_different_pages(pages: dict[str, JobPage]) -> None:
    """D12: where each finds some of its own."""
    shares = [ClaimShare(rank, 2) for rank in range(2)]
    one, other = ({each.held.name for each in filled(pages).pick("q", NOW, 1000, it, 10.0)} for it in shares)
    due = {name for name, page in pages.items() if model({name: page}, "q", NOW)}
    if {crc32(name.encode()) % 2 for name in due} == {0, 1}:
        assert one | other == due
        assert not one & other


@MANY
@given(stores(), st.integers(0, 5))
def test_pages_that_are_busy_or_stale_are_left_out(pages: dict[str, JobPage], which: int) -> None:
    """D12: this process swaps one, of the other the server has a later version."""
    line = filled(pages)
    for number, held in enumerate(line.pages.values()):
        if number == which:
            held.busy = 1
        if number == which + 1:
            line.conflict(held, held.rev + 5)
    free = {name: page for number, (name, page) in enumerate(pages.items()) if number not in (which, which + 1)}
    assert ids(line.pick("q", NOW, 99, ALL, 0.0)) == {it.id for it in model(free, "q", NOW)}
    for held in list(line.pages.values()):
        held.busy = 0
        line.put("-", held.name, held.rev + 5, held.page)
    assert ids(line.pick("q", NOW, 99, ALL, 0.0)) == {it.id for it in model(pages, "q", NOW)}


@MANY
@given(stores(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6), st.integers(0, 30))
def test_compacting_changes_nothing(pages: dict[str, JobPage], puts: list[tuple[int, int]], limit: int) -> None:
    line = filled(pages)
    for revision, (of, as_of) in enumerate(puts, 100):
        if f"p{of}" in pages and f"p{as_of}" in pages:
            line.put("-", f"p{of}", revision, pages[f"p{of}"])
    line.compact()
    assert ids(line.pick("q", NOW, limit, ALL, 0.0)) == {it.id for it in model(pages, "q", NOW)[:limit]}


def page_of(*states: int) -> JobPage:
    return JobPage("q", [PagedJob(str(number), state, 0) for number, state in enumerate(states)], born=1)


def test_an_older_version_of_a_removed_page_does_not_bring_it_back() -> None:
    """D2, D12: this process has removed it, and the watch is behind."""
    line = LineInMemory()
    line.put("-", "p", 5, page_of(IS_DONE))
    line.remove("p", 7)
    assert line.take("-", "p", 6, pack(page_of(IS_READY))) is None
    assert line.put("-", "p", 6, page_of(IS_READY)) is None
    assert not line.pages
    assert line.take("-", "p", 8, pack(page_of(IS_READY))) is not None


def test_a_page_that_another_has_removed_is_gone() -> None:
    """D2: the watch says so by a value without a body."""
    line = LineInMemory()
    line.put("-", "p", 5, page_of(IS_READY))
    assert line.take("-", "p", 7, b"") is None
    assert not line.pages
    assert line.pick("q", NOW, 9, ALL, 0.0) == []


def test_an_older_version_does_not_replace_a_later_one() -> None:
    """D12: what this process has written comes back from the watch, after what others have written."""
    line = LineInMemory()
    line.put("-", "p", 5, page_of(IS_READY))
    assert line.put("-", "p", 5, page_of(IS_DONE)) is None
    assert line.take("-", "p", 4, pack(page_of(IS_DONE))) is None
    line.remove("p", 4)
    assert [entry and entry.state for entry in line.pages["p"].page.entries] == [IS_READY]


def test_marks_of_removals_are_forgotten_when_they_were_seen() -> None:
    line = LineInMemory()
    for number in range(1500):
        line.put("-", f"p{number}", 1, page_of(IS_DONE))
        line.remove(f"p{number}", number + 2)
    line.advance(1400)
    assert len(line._gone) == 101


@pytest.mark.parametrize("state", [IS_READY, IS_WAITING, IS_INFLIGHT])
def test_a_page_with_a_job_that_has_not_ended_is_not_among_the_ended(state: int) -> None:
    """T1: tidying takes whole pages only."""
    line = LineInMemory()
    line.put("-", "open", 5, page_of(IS_DONE, state))
    line.put("-", "over", 6, page_of(IS_DONE, IS_DONE))
    assert [held.name for held in line.ended(9)] == ["over"]
    line.put("-", "over", 7, page_of(IS_DONE, state))
    line.put("-", "open", 8, page_of(IS_DONE, IS_DONE))
    assert [held.name for held in line.ended(9)] == ["open"]


@MANY
@given(stores())
def test_the_next_due_is_never_late(pages: dict[str, JobPage]) -> None:
    """D13: a worker that sleeps until then misses nothing."""
    line = filled(pages)
    times = sorted({*range(0, 2001, 100)})
    first = next((time for time in times if model(pages, "q", time)), None)
    said = line.next_due(["q"])
    if first is not None:
        assert said is not None
        assert said <= first
