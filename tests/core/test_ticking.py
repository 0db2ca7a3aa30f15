"""How schedules move: declared, ticking, paused. Every move is pure, so every sequence can be tested here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.core.cron import Cron
from taskharbor.core.job import LAST_MOMENT, JobRecord
from taskharbor.core.recurrence import ANCHOR, MICROSECOND, CatchUp, Overlap, Recurrence, encode
from taskharbor.core.schedule import Schedule
from taskharbor.core.states import TERMINAL, State
from taskharbor.core.ticking import ON_TIME, Tick, declared, first_slot, needs_last, paused, ran, resumed, ticks

from .make import NOW, SECOND, record
from .test_recurrence import definition, every

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOURLY = every(HOUR)
DELAY = every(HOUR, mode="fixed_delay")
RUNNING, ENDED = record(State.INFLIGHT), record(State.DONE, completed_at=NOON - 2 * MINUTE)


def schedule(slot: datetime | None = NOON, **given: Any) -> Schedule:
    """A stored schedule."""
    return Schedule(**{"name": "nightly", "definition": encode(definition()), "slot": slot, **given})


# fixed rates


@pytest.mark.parametrize("catch_up", get_args(CatchUp))
@pytest.mark.parametrize("overlap", get_args(Overlap))
def test_a_tick_that_is_due_makes_one_run(catch_up: CatchUp, overlap: Overlap) -> None:
    """N3: not before its time, and the schedule goes on to the next slot."""
    when = every(HOUR, catch_up=catch_up, overlap=overlap)
    assert ticks(schedule(), when, None, NOON - MICROSECOND) == []
    assert ticks(schedule(), when, None, NOON) == [Tick(NOON + HOUR, NOON)]
    assert ticks(schedule(), when, ENDED, NOON + SECOND) == [Tick(NOON + HOUR, NOON)]


def test_missed_ticks_become_one_run() -> None:
    """N4: `last`, the default: one run for the newest of them."""
    assert ticks(schedule(), HOURLY, None, NOON + 100.5 * HOUR) == [Tick(NOON + 101 * HOUR, NOON + 100 * HOUR)]


def test_missed_ticks_are_skipped() -> None:
    """N4: `skip` runs what is noticed within a minute, also after others that were missed, and nothing else."""
    when = every(HOUR, catch_up="skip")
    late = ON_TIME + MICROSECOND
    assert ticks(schedule(), when, None, NOON + ON_TIME) == [Tick(NOON + HOUR, NOON)]
    assert ticks(schedule(), when, None, NOON + late) == [Tick(NOON + HOUR, None)]
    assert ticks(schedule(), when, None, NOON + 9 * HOUR + ON_TIME) == [Tick(NOON + 10 * HOUR, NOON + 9 * HOUR)]
    assert ticks(schedule(), when, None, NOON + 9 * HOUR + late) == [Tick(NOON + 10 * HOUR, None)]


def test_all_missed_ticks_run_one_by_one() -> None:
    """N4: `all` with overlap allowed; each step leads to the slot of the next one."""
    when = every(HOUR, catch_up="all", overlap="allow")
    steps = ticks(schedule(), when, RUNNING, NOON + 2.5 * HOUR)
    assert steps == [Tick(NOON + (n + 1) * HOUR, NOON + n * HOUR) for n in range(3)]


@pytest.mark.parametrize("missed", [2, 3, 4, 50])
def test_all_has_a_bound(missed: int) -> None:
    """N4: of more than `max_catch_up` missed ticks the latest run; those before them are passed over in one step."""
    when = every(HOUR, catch_up="all", overlap="allow", max_catch_up=3)
    steps = ticks(schedule(), when, None, NOON + (missed - 1) * HOUR)
    runs = [NOON + n * HOUR for n in range(missed)][-3:]
    assert [step.run for step in steps] == [None] * (missed > 3) + runs
    assert [step.slot for step in steps] == [*runs[missed <= 3 :], NOON + missed * HOUR]


def test_all_without_overlap_runs_one_after_the_other() -> None:
    """N4: the others keep their place until the one before has ended; only what the bound drops goes at once."""
    when = every(HOUR, catch_up="all", max_catch_up=3)
    now = NOON + 9.5 * HOUR
    bounded = NOON + 7 * HOUR
    assert ticks(schedule(), when, RUNNING, now) == [Tick(bounded, None)]
    assert ticks(schedule(bounded), when, RUNNING, now) == []
    assert ticks(schedule(), when, ENDED, now) == [Tick(bounded, None), Tick(bounded + HOUR, bounded)]
    assert ticks(schedule(bounded), when, ENDED, now) == [Tick(bounded + HOUR, bounded)]
    assert ticks(schedule(NOON + 9 * HOUR), when, None, now) == [Tick(NOON + 10 * HOUR, NOON + 9 * HOUR)]


@pytest.mark.parametrize("state", list(State))
def test_a_run_that_has_not_ended_swallows_the_tick(state: State) -> None:
    """N4: overlap `skip`, the default; `allow` does not look."""
    run = NOON if state in TERMINAL else None
    assert ticks(schedule(), HOURLY, record(state), NOON) == [Tick(NOON + HOUR, run)]
    assert ticks(schedule(), every(HOUR, overlap="allow"), record(state), NOON) == [Tick(NOON + HOUR, NOON)]


@pytest.mark.parametrize("text", ["* * * * * *", "*/5 59 * * * *"])
@pytest.mark.parametrize("catch_up", get_args(CatchUp))
def test_a_month_of_missed_seconds_costs_little(text: str, catch_up: CatchUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: two and a half million ticks are not walked through."""
    asked, after = list[datetime](), Cron.after

    def counted(self: Cron, moment: datetime) -> datetime | None:
        asked.append(moment)
        return after(self, moment)

    monkeypatch.setattr(Cron, "after", counted)
    when = Recurrence(cron=text, tz="Europe/Berlin", catch_up=catch_up, overlap="allow")
    slot = when.after(NOON)
    assert slot is not None
    asked.clear()
    steps = ticks(schedule(slot), when, None, NOON + 30 * DAY)
    assert len(asked) < (100 if catch_up != "all" else 100 * 60)
    assert len([step for step in steps if step.run]) == (100 if catch_up == "all" else 1)


def test_a_schedule_whose_calendar_has_ended_rests() -> None:
    """N2: it has no slot, and nothing to do."""
    assert ticks(schedule(None), HOURLY, None, NOON) == []
    far = every(timedelta(days=36_500), catch_up="all", overlap="allow")
    slot = far.after(datetime(9950, 1, 1, tzinfo=UTC))
    assert slot is not None
    assert far.after(slot) is None
    assert ticks(schedule(slot), far, None, slot) == [Tick(None, slot)]


# fixed delays


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_delay_counts_from_the_end_of_the_last_run(state: State) -> None:
    """N2: however it ended."""
    assert ticks(schedule(), DELAY, None, NOON - MICROSECOND) == []
    assert ticks(schedule(), DELAY, None, NOON + SECOND) == [Tick(None, NOON)]
    last = record(state, completed_at=NOON + 5 * MINUTE)
    assert ticks(schedule(None), DELAY, last, NOON + 6 * MINUTE) == [Tick(NOON + 65 * MINUTE, None)]


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_a_delay_waits_while_its_run_is_live(state: State) -> None:
    """N2, N4: there is no slot meanwhile, so nothing can overlap."""
    assert ticks(schedule(None), DELAY, record(state), NOON) == []


def test_a_run_that_is_gone_counts_as_ended_now() -> None:
    """N2: pruned, or by a version that did not write when it ended."""
    assert ticks(schedule(None), DELAY, None, NOON) == [Tick(NOON + HOUR, None)]
    assert ticks(schedule(None), DELAY, record(State.DONE, completed_at=None), NOON) == [Tick(NOON + HOUR, None)]


def test_a_run_by_hand_takes_the_place_of_a_slot_that_is_due() -> None:
    """N5: its end makes the next slot; a slot still to come stays."""
    assert ticks(schedule(), DELAY, RUNNING, NOON) == [Tick(None, None)]
    assert ticks(schedule(), DELAY, RUNNING, NOON - MICROSECOND) == []


def test_a_delay_stops_at_the_end_of_the_calendar() -> None:
    """N2: held, not crashed."""
    last = record(State.DONE, completed_at=LAST_MOMENT)
    assert ticks(schedule(None), DELAY, last, NOON) == [Tick(LAST_MOMENT, None)]


# what a step needs and leaves


@pytest.mark.parametrize(
    ("seen", "when", "needed"),
    [
        (schedule(), HOURLY, False),  # it never ran
        (schedule(last_job_id="j"), HOURLY, True),
        (schedule(NOON + MICROSECOND, last_job_id="j"), HOURLY, False),
        (schedule(last_job_id="j", paused=True), HOURLY, False),
        (schedule(last_job_id="j"), every(HOUR, overlap="allow"), False),
        (schedule(None, last_job_id="j"), DELAY, True),
        (schedule(last_job_id="j"), DELAY, True),
        (schedule(None), DELAY, False),
    ],
)
def test_the_last_run_is_asked_for_only_if_it_matters(seen: Schedule, when: Recurrence, needed: bool) -> None:
    """N4: most looks read schedules alone."""
    assert needs_last(seen, when, NOON) is needed


def test_a_step_moves_the_slot_and_remembers_its_run() -> None:
    """N3, N5: one whole record after the other."""
    seen = schedule(last_job_id="a", last_slot=NOON - HOUR)
    assert ran(seen, Tick(NOON + HOUR, None), None) == replace(seen, slot=NOON + HOUR)
    assert ran(seen, Tick(NOON + HOUR, NOON), "b") == replace(seen, slot=NOON + HOUR, last_job_id="b", last_slot=NOON)


# pause and resume


@pytest.mark.parametrize("when", [HOURLY, DELAY, every(HOUR, catch_up="all")])
def test_a_schedule_at_rest_does_nothing(when: Recurrence) -> None:
    """N5: it keeps its slot, which is shown."""
    seen = schedule(last_job_id="j", last_slot=NOON - HOUR)
    assert paused(seen) == replace(seen, paused=True)
    assert paused(paused(seen)) == paused(seen)
    assert ticks(paused(seen), when, None, NOON + DAY) == []


def test_what_was_not_done_at_rest_is_not_made_up_for() -> None:
    """N5: also with catch_up `all`."""
    seen, when = schedule(), every(HOUR, catch_up="all")
    assert resumed(paused(seen), when, None, NOON + 9.5 * HOUR) == replace(seen, slot=NOON + 10 * HOUR)
    assert resumed(seen, when, None, NOON + 9.5 * HOUR) is seen
    ahead = schedule(NOON + 2 * HOUR, last_slot=NOON + HOUR, paused=True)  # by a worker whose clock was fast
    assert resumed(ahead, when, None, NOON).slot == NOON + 2 * HOUR


def test_a_delay_resumes_with_a_whole_delay_or_behind_its_run() -> None:
    """N5: as a new one begins."""
    assert resumed(paused(schedule()), DELAY, ENDED, NOON + DAY).slot == NOON + DAY + HOUR
    assert resumed(paused(schedule()), DELAY, RUNNING, NOON + DAY).slot is None
    assert first_slot(DELAY, None, None, NOON) == NOON + HOUR


# declared and redefined


def test_a_new_schedule_begins_with_its_next_tick() -> None:
    """N5: starting a worker makes nothing due."""
    new = declared(None, "nightly", definition(), None, NOON + SECOND)
    assert new == schedule(NOON + HOUR)
    assert declared(None, "nightly", definition(when=DELAY), None, NOON).slot == NOON + HOUR


def test_declaring_the_same_again_changes_nothing() -> None:
    """N5: so the last starter wins without disturbing anything."""
    seen = schedule(paused=True, last_job_id="j", last_slot=NOON - HOUR)
    assert declared(seen, "nightly", definition(), RUNNING, NOON + DAY) == seen


def test_another_job_keeps_the_slot() -> None:
    """N5: also one that is due: a deploy loses no tick."""
    seen, new = schedule(paused=True, last_job_id="j", last_slot=NOON - HOUR), definition(queue="other")
    assert declared(seen, "nightly", new, None, NOON + DAY) == replace(seen, definition=encode(new))


@pytest.mark.parametrize(
    "rules", [{"jitter": 5.0}, {"catch_up": "all"}, {"catch_up": "all", "max_catch_up": 3}, {"overlap": "allow"}]
)
def test_other_rules_for_the_same_times_keep_the_slot(rules: dict[str, Any]) -> None:
    """N4, N5: what is due stays due; the change may have been made for that."""
    seen = declared(None, "nightly", definition(), None, NOON)
    new = definition(when=replace(definition().when, **rules))
    assert declared(seen, "nightly", new, None, NOON + DAY) == replace(seen, definition=encode(new))


def test_new_times_start_again_and_keep_pause_and_history() -> None:
    """N5: an operator's pause sticks."""
    seen, new = schedule(paused=True, last_job_id="j", last_slot=NOON - HOUR), definition(when=every(MINUTE))
    then = declared(seen, "nightly", new, None, NOON + 30 * SECOND)
    assert then == replace(seen, definition=encode(new), slot=NOON + MINUTE)
    assert declared(seen, "nightly", definition(when=DELAY), RUNNING, NOON).slot is None


def test_a_redefinition_never_goes_behind_what_was_done() -> None:
    """N3: whatever the clock of the one who redefines it says, no slot comes again."""
    seen, new = schedule(NOON + 3 * HOUR, last_slot=NOON + 2 * HOUR), definition(when=every(MINUTE))
    assert declared(seen, "nightly", new, None, NOON).slot == NOON + 2 * HOUR + MINUTE


def test_an_unreadable_definition_is_replaced() -> None:
    """N5, R5: by a definition of a later version the slot may mean anything."""
    seen = schedule(NOON - DAY, definition=b"?", last_slot=NOON - 2 * DAY, last_job_id="j", paused=True)
    then = declared(seen, "nightly", definition(), None, NOON)
    assert then == replace(seen, definition=encode(definition()), slot=NOON + HOUR)


# any schedule, any looks

lengths = st.sampled_from([every(SECOND), every(7 * SECOND), every(HOUR), every(HOUR, anchor=NOW)])
crons = st.sampled_from(["*/3 * * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "*/15 1,2,3 * * *"]).map(
    lambda text: Recurrence(cron=text, tz="Europe/Berlin")
)
rates = st.builds(
    lambda when, catch_up, overlap, most: replace(when, catch_up=catch_up, overlap=overlap, max_catch_up=most),
    lengths | crons,
    st.sampled_from(get_args(CatchUp)),
    st.sampled_from(get_args(Overlap)),
    st.integers(1, 20),
)
waits = st.lists(
    st.tuples(
        st.sampled_from([0.1, 0.7, 5.0, 60.0, 3600.0, 7 * 3600.0, 86400.0]),
        st.booleans(),
        st.sampled_from(["look"] * 6 + ["pause", "resume", "declare"]),
    ),
    max_size=25,
)
START = datetime(2026, 3, 28, 20, tzinfo=UTC)  # a few hours before clocks are put forward


class Story:
    """A schedule and those who look at it."""

    def __init__(self, when: Recurrence) -> None:
        self.now = START
        self.definition = definition(when=when)
        self.seen = declared(None, "nightly", self.definition, None, START)
        self.runs: list[datetime] = []
        self.looks: list[list[Tick]] = []

    def look(self, last: JobRecord | None) -> None:
        """One look, and its steps."""
        steps = ticks(self.seen, self.definition.when, last, self.now)
        for step in steps:
            before = self.seen
            self.seen = ran(before, step, f"job-{len(self.runs)}" if step.run else None)
            assert self.seen != before
            if step.run is not None:
                self.runs.append(step.run)
        self.looks.append(steps)

    def act(self, action: str, last: JobRecord | None) -> None:
        """Act as an operator or a starting worker."""
        if action == "pause":
            self.seen = paused(self.seen)
        elif action == "resume":
            self.seen = resumed(self.seen, self.definition.when, last, self.now)
        elif action == "declare":
            self.definition = replace(self.definition, queue=f"{self.definition.queue}x")
            self.seen = declared(self.seen, "nightly", self.definition, last, self.now)
        else:
            self.look(last)


@given(rates, waits)
def test_no_slot_runs_twice_or_early(when: Recurrence, lived: list[tuple[float, bool, str]]) -> None:
    """N3, N4: runs come in the order of their slots, each is a tick, and none is before its time or overlaps."""
    story = Story(when)
    for seconds, is_running, action in lived:
        story.now += timedelta(seconds=seconds)
        count = len(story.runs)
        story.act(action, RUNNING if is_running and count else ENDED)
        assert all(run <= story.now for run in story.runs)
        new = len(story.runs) - count
        if when.overlap == "skip":
            assert new <= (0 if is_running and count else 1)
        assert new <= (when.max_catch_up if when.catch_up == "all" else 1)
        assert action == "look" or new == 0
        assert story.seen.slot is None or story.seen.slot > START
    assert story.runs == sorted(set(story.runs))
    assert all(when.after(run - MICROSECOND) == run for run in story.runs)
    assert story.seen.last_slot == (story.runs[-1] if story.runs else None)


@given(rates, waits)
def test_a_second_look_at_the_same_moment_has_nothing_to_add(
    when: Recurrence, lived: list[tuple[float, bool, str]]
) -> None:
    """N3: unless runs have to wait for each other, one look does all that is due."""
    story = Story(when)
    for seconds, is_running, _ in lived:
        story.now += timedelta(seconds=seconds)
        last = RUNNING if is_running else None
        story.look(last)
        if when.catch_up != "all" or when.overlap == "allow" or is_running:
            story.look(last)
            assert story.looks[-1] == []


@given(lengths | crons, st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), max_size=6))
def test_within_the_bound_every_slot_runs_once(when: Recurrence, looks: list[tuple[int, float]]) -> None:
    """N3, N4: with `all` and `allow`, what runs is exactly the chain of ticks, however irregular the looks."""
    story = Story(replace(when, catch_up="all", overlap="allow", max_catch_up=20))
    expected, tick = list[datetime](), when.after(START)
    for missed, part in looks:
        for _ in range(missed):
            assert tick is not None
            expected.append(tick)
            tick = when.after(tick)
        assert tick is not None
        earliest = max([story.now, *expected[-1:]])
        story.now = earliest + part * (tick - MICROSECOND - earliest)
        story.look(RUNNING)
        assert story.runs == expected


@given(st.integers(1, 30), st.sampled_from([every(SECOND), every(MINUTE), Recurrence(cron="*/5 * * * *")]))
def test_all_without_overlap_gets_through_the_backlog_one_at_a_time(missed: int, when: Recurrence) -> None:
    """N4: every slot within the bound, in order, each after the end of the one before."""
    story = Story(replace(when, catch_up="all", max_catch_up=30))
    expected = [story.seen.slot]
    for _ in range(missed - 1):
        assert expected[-1] is not None
        expected.append(when.after(expected[-1]))
    assert expected[-1] is not None
    story.now = expected[-1]
    for _ in range(missed + 2):
        story.look(None)
        story.look(RUNNING)
    assert story.runs == expected


def test_the_anchor_is_a_monday() -> None:
    """N2: stored definitions leave it out, so it stays where it is."""
    assert datetime(2001, 1, 1, tzinfo=UTC) == ANCHOR
    assert ANCHOR.isoweekday() == 1
