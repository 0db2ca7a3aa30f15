"""N3, N5: schedules change by one compare-and-swap on the whole record, which enqueues the job in the same step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta, timezone
from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.core.job import NewJob
from taskharbor.core.schedule import Schedule
from taskharbor.driver import Swap
from taskharbor.testing.kit.jobs import at, job
from taskharbor.testing.kit.scene import Cases, Scene, named

BARE = Schedule(name="nightly", definition=b"", slot=None)
NIGHTLY = Schedule(
    name="nightly", definition=b"\x00cron", slot=at(60.000001), last_job_id="before", last_slot=at(0.000001)
)
States = dict[str, Schedule | None]
# Schedules that differ from NIGHTLY in one field.
OTHERS: States = {
    "definition": replace(NIGHTLY, definition=b"\x00Cron"),
    "longer definition": replace(NIGHTLY, definition=b"\x00cron\x00"),
    "earlier slot": replace(NIGHTLY, slot=at(60)),
    "later slot": replace(NIGHTLY, slot=at(60.000002)),
    "no slot": replace(NIGHTLY, slot=None),
    "paused": replace(NIGHTLY, paused=True),
    "last job": replace(NIGHTLY, last_job_id="Before"),
    "no last job": replace(NIGHTLY, last_job_id=None),
    "last slot": replace(NIGHTLY, last_slot=at(0)),
    "no last slot": replace(NIGHTLY, last_slot=None),
    "none at all": None,
}
DEFINITIONS = {"empty": b"", "a NUL": b"\x00", "all bytes": bytes(range(256)), "a mebibyte": bytes(range(256)) * 4096}
# From the expected schedule to the new one, by the n-th of several callers.
CHANGES: dict[str, Callable[[int], tuple[Schedule | None, Schedule | None]]] = {
    "create": lambda n: (None, replace(BARE, definition=b"%d" % n)),
    "redefine": lambda n: (NIGHTLY, replace(NIGHTLY, definition=b"%d" % n)),
    "tick": lambda n: (NIGHTLY, ticked(NIGHTLY, f"run{n}")),
    "pause or tick": lambda n: (NIGHTLY, ticked(NIGHTLY, f"run{n}") if n % 2 else replace(NIGHTLY, paused=True)),
    "remove": lambda n: (NIGHTLY, None),
}


def swap(seen: Schedule | None, then: Schedule | None, job: NewJob | None = None) -> Swap:
    """One change of a schedule."""
    name = next(it.name for it in (seen, then) if it is not None)
    return Swap(name=name, seen=seen, then=then, job=job)


def ticked(it: Schedule, job_id: str, slot: float = 120) -> Schedule:
    """The schedule after a run."""
    return replace(it, slot=at(slot), last_job_id=job_id, last_slot=it.slot)


async def swapped(s: Scene, *swaps: Swap) -> list[Any]:
    """Swap schedules; a refusal is the name of its class."""
    return named(await s.schedules.swap_schedules(swaps, s.now))


async def put(s: Scene, *schedules: Schedule | None) -> None:
    """Create these schedules."""
    given = [swap(None, it) for it in schedules if it is not None]
    assert await swapped(s, *given) == [True] * len(given)


async def remove(s: Scene, it: Schedule | None) -> None:
    """Remove this schedule, if it is one."""
    assert it is None or await swapped(s, swap(it, None)) == [True]


async def stored(s: Scene) -> Schedule | None:
    """The one schedule of the store, if there is any."""
    found = await s.schedules.schedules()
    assert len(found) <= 1
    return next(iter(found), None)


async def ids(s: Scene) -> list[str]:
    """The ids of all jobs."""
    return sorted(it.id for it in await s.all())


class RecurringCases(Cases):
    """D13: Schedules (N3, N5)."""

    async def test_N5_a_schedule_is_read_back_as_stored(self, s: Scene) -> None:
        """N5: slots to the microsecond or None, the pause, the last run."""
        for it in (NIGHTLY, BARE, replace(NIGHTLY, paused=True), replace(BARE, slot=at(0.999999))):
            await put(s, it)
            assert await stored(s) == it
            await remove(s, it)

    @pytest.mark.parametrize("kind", list(DEFINITIONS))
    async def test_N5_a_definition_is_bytes(self, s: Scene, kind: str) -> None:
        """N5: opaque bytes, compared as they are."""
        it = replace(BARE, definition=DEFINITIONS[kind])
        await put(s, it)
        assert await stored(s) == it
        assert await swapped(s, swap(replace(it, definition=it.definition + b"\x00"), None)) == [False]
        await remove(s, it)

    async def test_N5_schedules_are_listed_by_name(self, s: Scene) -> None:
        """N5: any text is a name, and similar ones are different."""
        names = ["nightly", "Nightly", "nightly ", "", "a'b%_", "Zürich", "Zu\u0308rich", "日本", "🚢", "n" * 500]
        given = [replace(BARE, name=name, definition=name.encode()) for name in names]
        await put(s, *given)
        assert await s.schedules.schedules() == sorted(given, key=lambda it: it.name)

    async def test_N3_a_swap_creates_changes_and_removes(self, s: Scene) -> None:
        """N3: whichever field changes, in the same step."""
        after = ticked(NIGHTLY, "run")
        for seen, then in ((None, NIGHTLY), (NIGHTLY, after), (after, BARE), (BARE, None), (None, NIGHTLY)):
            assert await swapped(s, swap(seen, then)) == [True]
            assert await stored(s) == then
        assert await s.all() == []

    async def test_N3_a_swap_enqueues_its_job_in_the_same_step(self, s: Scene) -> None:
        """N3: as given, at the time of the call."""
        await put(s, NIGHTLY)
        new = job("run", priority=3, run_at=at(90), tags=("x",), max_attempts=7)
        assert await swapped(s, swap(NIGHTLY, ticked(NIGHTLY, "run"), new)) == [True]
        assert await s.schedules.schedules() == [ticked(NIGHTLY, "run")]
        await s.expect("run", state="ready", priority=3, run_at=at(90), tags=("x",), max_attempts=7, created_at=s.now)
        await s.expect("run", payload=b"{}")

    @pytest.mark.parametrize("other", list(OTHERS))
    async def test_N3_every_field_is_compared(self, s: Scene, other: str) -> None:
        """N3: if the schedule is not exactly as it was seen, nothing changes and nothing is enqueued."""
        for it, seen in ((NIGHTLY, OTHERS[other]), (OTHERS[other], NIGHTLY)):
            await put(s, it)
            for then in (replace(NIGHTLY, definition=b"new"), None):
                async with s.nothing_changes():
                    tries = Swap(name="nightly", seen=seen, then=then, job=job("run"))
                    assert await swapped(s, tries, replace(tries, job=None)) == [False, False]
                assert await stored(s) == it
            await remove(s, it)

    async def test_N3_a_moment_is_the_same_in_every_zone(self, s: Scene) -> None:
        """N3: slots are compared as moments."""
        await put(s, NIGHTLY)
        there = timezone(timedelta(hours=5, minutes=30))
        assert NIGHTLY.slot is not None
        assert NIGHTLY.last_slot is not None
        seen = replace(NIGHTLY, slot=NIGHTLY.slot.astimezone(there), last_slot=NIGHTLY.last_slot.astimezone(there))
        assert await swapped(s, swap(seen, replace(seen, paused=True))) == [True]
        assert await s.schedules.schedules() == [replace(NIGHTLY, paused=True)]

    @pytest.mark.parametrize("change", list(CHANGES))
    async def test_N3_only_one_of_many_swaps(self, s: Scene, change: str) -> None:
        """N3: however many callers and handles; the others enqueue nothing."""
        other = await s.another()
        for round in range(5):
            changes = [CHANGES[change](n) for n in range(8)]
            await put(s, changes[0][0])
            swaps = [swap(seen, then, job(f"run{n}-{round}")) for n, (seen, then) in enumerate(changes)]
            verdicts = await asyncio.gather(*map(swapped, [s, other] * 4, swaps))
            assert sorted(verdicts) == [[False]] * 7 + [[True]]
            won = verdicts.index([True])
            assert await stored(s) == swaps[won].then
            assert [id for id in await ids(s) if id.endswith(f"-{round}")] == [f"run{won}-{round}"]
            await remove(s, swaps[won].then)

    async def test_N3_swaps_of_several_in_any_order_do_not_block_each_other(self, s: Scene) -> None:
        """N3: created, ticked and removed, each by exactly one caller."""
        other = await s.another()
        names = ("a", "b", "c")
        nobody: States = dict.fromkeys(names)
        first: States = {name: replace(NIGHTLY, name=name) for name in names}
        second: States = {name: ticked(replace(NIGHTLY, name=name), "run") for name in names}
        moves = [(nobody, first), (first, second), (second, nobody)]
        for number, (seen, then) in enumerate(moves):
            calls = [
                swapped(each, *(swap(seen[name], then[name], job(f"{number}-{place}-{name}")) for name in order))
                for place, (each, order) in enumerate(zip([s, other] * 3, permutations(names), strict=True))
            ]
            assert sum(sum(each) for each in await asyncio.gather(*calls)) == 3
            made = [id for id in await ids(s) if id.startswith(f"{number}-")]
            assert sorted(id[-1] for id in made) == list(names)
            assert await s.schedules.schedules() == [it for it in then.values() if it is not None]

    async def test_N3_swaps_of_a_call_are_done_in_turn(self, s: Scene) -> None:
        """N3: a later one builds on the result of an earlier one."""
        paused = replace(NIGHTLY, paused=True)
        assert await swapped(
            s,
            swap(None, NIGHTLY, job("a")),
            swap(None, BARE, job("b")),
            swap(NIGHTLY, paused),
            swap(NIGHTLY, ticked(NIGHTLY, "c"), job("c")),
            swap(paused, None, job("d")),
            swap(paused, BARE),
            swap(None, BARE, job("e")),
        ) == [True, False, True, False, True, False, True]
        assert await s.schedules.schedules() == [BARE]
        assert await ids(s) == ["a", "d", "e"]

    async def test_N3_the_same_swap_twice_happens_once(self, s: Scene) -> None:
        """N3: in one call and in two; but one that changes nothing succeeds each time and enqueues its job."""
        await put(s, NIGHTLY)
        twice = swap(NIGHTLY, ticked(NIGHTLY, "run"), job("run"))
        assert await swapped(s, twice, twice) == [True, False]
        assert await swapped(s, twice) == [False]
        now = ticked(NIGHTLY, "run")
        assert await swapped(s, swap(now, now, job("x")), swap(now, now), swap(now, now, job("y"))) == [True] * 3
        assert await swapped(s, Swap(name="nobody", seen=None, then=None)) == [True]
        assert await s.schedules.schedules() == [now]
        assert await ids(s) == ["run", "x", "y"]

    async def test_N3_many_swaps_of_a_call_are_independent(self, s: Scene) -> None:
        """N3: a verdict for each, in order; none for no swaps."""
        assert await swapped(s) == []
        given = [replace(NIGHTLY, name=f"s{n:02}") for n in range(60)]
        await put(s, *given[::-1])
        seen = [it if n % 3 else replace(it, paused=True) for n, it in enumerate(given)]
        swaps = [swap(it, ticked(it, it.name), job(it.name) if n % 2 else None) for n, it in enumerate(seen)]
        assert await swapped(s, *swaps) == [n % 3 > 0 for n in range(60)]
        assert await s.schedules.schedules() == [ticked(it, it.name) if n % 3 else it for n, it in enumerate(given)]
        assert await ids(s) == [f"s{n:02}" for n in range(60) if n % 3 and n % 2]

    async def test_N3_a_job_that_is_refused_leaves_its_schedule_alone(self, s: Scene) -> None:
        """N3: as a value; the other swaps of the call go through."""
        others = [replace(NIGHTLY, name=name) for name in ("a", "z")]
        await put(s, NIGHTLY, *others)
        await s.add(job("run"))
        before = await s.get("run")
        assert await swapped(
            s,
            swap(others[0], ticked(others[0], "a"), job("a")),
            swap(NIGHTLY, ticked(NIGHTLY, "run"), job("run", priority=9)),
            swap(ticked(NIGHTLY, "run"), None),
            swap(others[1], ticked(others[1], "z"), job("z")),
        ) == [True, "JobExists", False, True]
        assert await s.get("run") == before
        assert await s.schedules.schedules() == [ticked(others[0], "a"), NIGHTLY, ticked(others[1], "z")]
        assert await ids(s) == ["a", "run", "z"]

    @pytest.mark.parametrize("seen", [None, NIGHTLY], ids=["create", "remove"])
    async def test_N3_a_refused_job_neither_creates_nor_removes(self, s: Scene, seen: Schedule | None) -> None:
        """N3: all or nothing. A refused swap may be retried in the same call."""
        then = NIGHTLY if seen is None else None
        await put(s, seen)
        await s.add(job("run"))
        async with s.nothing_changes():
            assert await swapped(s, swap(seen, then, job("run"))) == ["JobExists"]
        assert await stored(s) == seen
        assert await swapped(s, swap(seen, then, job("run")), swap(seen, then, job("new"))) == ["JobExists", True]
        assert await stored(s) == then

    async def test_N3_an_id_is_taken_by_the_first_of_a_call(self, s: Scene) -> None:
        """N3, R2: the second finds that it exists."""
        other = replace(NIGHTLY, name="other")
        await put(s, NIGHTLY, other)
        tick, second = swap(NIGHTLY, ticked(NIGHTLY, "run"), job("run")), swap(other, None, job("run"))
        assert await swapped(s, tick, second) == [True, "JobExists"]
        assert await s.schedules.schedules() == [ticked(NIGHTLY, "run"), other]

    async def test_N3_a_known_key_moves_the_schedule_and_stores_nothing(self, s: Scene) -> None:
        """N3, I1: the key's job becomes the job of this tick. The last run is set by the caller."""
        await put(s, NIGHTLY)
        await s.add(job("old", idempotency_key="k"))
        async with s.nothing_changes():
            keyed = job("run", idempotency_key="k")
            assert await swapped(s, swap(NIGHTLY, ticked(NIGHTLY, "run"), keyed)) == [True]
        assert await s.schedules.schedules() == [ticked(NIGHTLY, "run")]

    async def test_N3_a_key_is_taken_by_the_first_of_a_call(self, s: Scene) -> None:
        """N3, I1: and a lost swap does not keep it."""
        after = ticked(NIGHTLY, "a")
        assert await swapped(
            s,
            swap(NIGHTLY, after, job("lost", idempotency_key="k")),
            swap(None, NIGHTLY, job("a", idempotency_key="k")),
            swap(NIGHTLY, after, job("b", idempotency_key="k")),
        ) == [False, True, True]
        assert await ids(s) == ["a"]
        assert await s.look.find_key("k", s.now) == "a"
