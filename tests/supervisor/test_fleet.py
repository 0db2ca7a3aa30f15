"""The fleet: what to start, stop and kill. Everything here is pure: facts in, actions out, at times that are given."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskharbor.supervisor.actions import Action, EndSupervision, KillWorker, StartWorker, StopWorker, Warn
from taskharbor.supervisor.fleet import FAILED_STARTS, SHORT_LIVES, SLOW_START, STABLE, STOP_MARGIN, Fleet
from taskharbor.supervisor.messages import Beat, WorkerReady
from taskharbor.supervisor.options import Limits, SupervisorOptions

LEASE, GRACE, MIB = 30.0, 25.0, 1024 * 1024
START_TIMEOUT = SupervisorOptions(processes=1).start_timeout


def ready(memory: int = 50 * MIB) -> WorkerReady:
    """The report of a worker that begins."""
    return WorkerReady(worker="w", lease=LEASE, memory=memory, store=None, store_timeout=30, keep_done=60)


class Ground:
    """A fleet with a clock, whose actions take effect as in reality."""

    def __init__(self, processes: int = 2, **limits: Any) -> None:
        options = SupervisorOptions(processes=processes, grace=GRACE, limits=Limits(**limits))
        self.fleet = Fleet(options, Random(1))
        self.now = 0.0

    def after(self, seconds: float, step: float = 0.5) -> list[Action]:
        """The actions until then, with beats of every child on the way."""
        done: list[Action] = []
        for _ in range(round(seconds / step)):
            self.now += step
            for number, child in self.fleet.children.items():
                if child.ready_at is not None:
                    self.beat(number, child.finished, child.memory)
            done += self.fleet.decide(self.now)
        return done

    def decide(self) -> list[Action]:
        """The actions at once."""
        return self.fleet.decide(self.now)

    def start(self) -> int:
        """The one worker that is started at once."""
        [start] = self.decide()
        assert isinstance(start, StartWorker)
        return start.number

    def started(self, memory: int = 50 * MIB) -> list[int]:
        """Start, and let all workers become ready."""
        numbers = [action.number for action in self.decide() if isinstance(action, StartWorker)]
        for number in numbers:
            self.ready(number, memory)
        return numbers

    def ready(self, number: int, memory: int = 50 * MIB) -> None:
        self.fleet.ready(number, ready(memory), self.now)

    def beat(self, number: int, finished: int = 0, memory: int = 50 * MIB) -> None:
        self.fleet.beat(number, Beat(finished=finished, memory=memory), self.now)

    def exit(self, number: int, code: int = 0) -> None:
        self.fleet.exited(number, code, self.now)


def test_every_slot_gets_a_worker_once() -> None:
    """L9: as many as were asked for, and no more at the next look."""
    ground = Ground(3)
    assert ground.decide() == [StartWorker(1), StartWorker(2), StartWorker(3)]
    assert ground.after(SLOW_START - 1) == []


def test_a_worker_that_dies_is_replaced_at_once_and_then_with_backoff() -> None:
    """F6: a death among many does not wait; one after another, each waits longer, up to a cap."""
    ground = Ground(1)
    waits: list[float] = []
    [number] = ground.started()
    for _ in range(SHORT_LIVES - 1):
        ground.exit(number, -9)
        died = ground.now
        while not (actions := ground.decide()):
            ground.now += 0.01
        [start] = actions
        assert isinstance(start, StartWorker)
        waits.append(ground.now - died)
        number = start.number
        ground.ready(number)
    assert waits[0] == 0.0
    assert waits[1] < 0.5
    assert 3 < max(waits) < 7
    assert max(waits[:4]) < 2


def test_a_worker_that_worked_for_long_starts_a_new_count() -> None:
    """F6: only quick deaths in a row are a loop."""
    ground = Ground(1)
    [number] = ground.started()
    for _ in range(2 * SHORT_LIVES):
        ground.after(STABLE)
        ground.exit(number, 1)
        [start] = ground.decide()
        assert isinstance(start, StartWorker)
        number = start.number
        ground.ready(number)


def test_workers_that_never_become_ready_end_the_supervisor() -> None:
    """X5: after a few tries in every slot, with a message and an exit code."""
    ground = Ground(2)
    ends: list[Action] = []
    tries = 0
    while not ends:
        for action in ground.after(0.5):
            if isinstance(action, StartWorker):
                tries += 1
                ground.exit(action.number, 1)
            else:
                ends.append(action)
    [end] = ends
    assert isinstance(end, EndSupervision)
    assert end.code == 1
    assert "workers keep ending, the last one with exit code 1" in str(end.why)
    assert 2 * FAILED_STARTS <= tries <= 2 * FAILED_STARTS + 2


def test_a_slot_that_fails_does_not_end_the_others() -> None:
    """X5: a worker that works is not thrown away."""
    ground = Ground(2)
    bad, good = (action.number for action in ground.decide() if isinstance(action, StartWorker))
    ground.ready(good)
    for _ in range(3 * FAILED_STARTS):
        ground.exit(bad, 1)
        while not (actions := ground.after(0.5)):
            pass
        [start] = actions
        assert isinstance(start, StartWorker)
        bad = start.number


@pytest.mark.parametrize("code", [2, 3])
def test_what_waiting_does_not_mend_ends_at_once(code: int) -> None:
    """X5, C: wrong usage, or a store without a schema, at the first start: the worker has logged why."""
    ground = Ground(2)
    first, second = (action.number for action in ground.decide() if isinstance(action, StartWorker))
    ground.fleet.ended(first, code)
    ground.exit(first, code)
    assert ground.decide() == [StopWorker(second, "stopping")]
    ground.exit(second, 0)
    assert ground.decide() == [EndSupervision(code)]


def test_a_store_that_was_taken_away_is_not_made_again() -> None:
    """X9: a worker that has worked ends for it, and the supervisor does, too: a new worker would make an empty file."""
    ground = Ground(2)
    first, second = ground.started()
    ground.after(60)
    ground.fleet.ended(first, 3)
    ground.exit(first, 3)
    assert ground.decide() == [StopWorker(second, "stopping")]
    ground.exit(second, 0)
    assert ground.decide() == [EndSupervision(3)]


def test_a_handler_that_exits_with_such_a_code_is_a_crash() -> None:
    """F6: only what the worker itself reports counts as a complaint."""
    ground = Ground(1)
    [number] = ground.started()
    ground.exit(number, 3)
    assert [type(action) for action in ground.decide()] == [StartWorker]


def test_a_complaint_while_others_work_is_one_failure_of_many() -> None:
    """X5: a worker that works is not thrown away."""
    ground = Ground(2)
    bad, good = (action.number for action in ground.decide() if isinstance(action, StartWorker))
    ground.ready(good)
    ground.fleet.ended(bad, 2)
    ground.exit(bad, 2)
    assert ground.decide() == []
    assert [type(action) for action in ground.after(5)] == [StartWorker]


def test_a_memory_limit_that_can_never_hold_ends_at_the_first_start() -> None:
    """X5: the message says how much a worker takes, once."""
    ground = Ground(2, max_memory=20 * MIB)
    numbers = ground.started(48 * MIB)
    assert ground.decide() == [StopWorker(number, "stopping") for number in numbers]
    for number in numbers:
        ground.exit(number)
    [end] = ground.decide()
    assert isinstance(end, EndSupervision)
    assert end.code == 2
    assert "max_memory 20 MiB is too low: a worker that has just started takes 48 MiB" in str(end.why)


def test_new_code_that_takes_more_than_the_limit_is_kept_with_a_warning() -> None:
    """X5: a running service is not ended for it, and not replaced for ever."""
    ground = Ground(1, max_memory=40 * MIB)
    number = ground.start()
    ground.ready(number, 30 * MIB)
    ground.fleet.roll()
    successor = ground.start()
    ground.ready(successor, 48 * MIB)
    warning, stop = ground.decide()
    assert isinstance(warning, Warn)
    assert "is not replaced for that" in warning.text
    assert stop == StopWorker(number, "its successor is ready")
    ground.exit(number)
    ground.beat(successor, memory=60 * MIB)
    assert ground.after(60) == []


@pytest.mark.parametrize(
    ("limits", "beat", "why"),
    [
        ({"max_jobs": 100}, {"finished": 100}, "it has run 100 jobs"),
        ({"max_memory": 100 * MIB}, {"memory": 101 * MIB}, "it takes 101 MiB"),
    ],
)
def test_a_worker_beyond_a_limit_is_replaced_successor_first(
    limits: dict[str, int], beat: dict[str, int], why: str
) -> None:
    """X6: the old one stops when the new one is ready; the next is replaced when the old one has ended."""
    ground = Ground(2, **limits)
    first, second = ground.started()
    for number in (first, second):
        ground.beat(number, **beat)
    [start] = ground.decide()
    assert start == StartWorker(3, first, why)
    assert ground.after(5) == []
    ground.ready(3)
    assert ground.decide() == [StopWorker(first, "its successor is ready")]
    assert ground.after(5) == []
    ground.exit(first)
    assert ground.decide() == [StartWorker(4, second, why)]


def test_limits_are_spread_so_that_workers_do_not_reach_them_together() -> None:
    """X6: from 80 to 100 %, never beyond."""
    ground = Ground(20, max_age=1000.0)
    assert len(ground.started()) == 20
    replaced = [action for action in ground.after(799, 1.0) if isinstance(action, StartWorker)]
    assert replaced == []
    shares = [child.limit_share for child in ground.fleet.children.values()]
    assert 0.8 <= min(shares) < 0.85
    assert 0.95 < max(shares) <= 1.0
    assert [type(action) for action in ground.after(201, 1.0) if not isinstance(action, Warn)] == [StartWorker]


def test_a_rolling_restart_replaces_one_after_another() -> None:
    """X6: two signals during one are one more round."""
    ground = Ground(2)
    first, second = ground.started()
    ground.fleet.roll()
    [start] = ground.decide()
    assert start == StartWorker(3, first, "SIGHUP")
    ground.fleet.roll()
    ground.ready(3)
    ground.decide()
    ground.exit(first)
    assert ground.decide() == [StartWorker(4, second, "SIGHUP")]
    ground.ready(4)
    ground.decide()
    ground.exit(second)
    assert ground.decide() == [StartWorker(5, 3, "SIGHUP")]  # started between the two signals
    ground.ready(5)
    ground.decide()
    ground.exit(3)
    assert ground.after(60) == []


def test_new_code_that_does_not_start_leaves_the_old_workers_alone() -> None:
    """X6: the roll is given up with a warning, until the next signal."""
    ground = Ground(2)
    first, _second = ground.started()
    ground.fleet.roll()
    successor = ground.start()
    ground.exit(successor, 2)
    [warning] = ground.decide()
    assert isinstance(warning, Warn)
    assert "rolling restart was given up: the new worker ended with exit code 2" in warning.text
    assert ground.after(60) == []
    ground.fleet.roll()
    assert ground.decide() == [StartWorker(4, first, "SIGHUP")]


def test_a_worker_that_dies_while_its_successor_starts_is_succeeded() -> None:
    """X6: the slot has its worker, and no third is started."""
    ground = Ground(1)
    [old] = ground.started()
    ground.fleet.roll()
    successor = ground.start()
    ground.exit(old, -9)
    ground.ready(successor)
    assert ground.after(60) == []
    assert list(ground.fleet.children) == [successor]


def test_a_silent_worker_is_killed_once_after_its_lease() -> None:
    """L3, L9: stopped, or the GIL held; not before it is ready, however long that takes."""
    ground = Ground(2)
    slow, silent = (action.number for action in ground.decide() if isinstance(action, StartWorker))
    ground.ready(silent)
    for _ in range(int(LEASE)):
        ground.now += 1
        assert ground.decide() == []
    ground.now += 1.5
    assert ground.decide() == []
    ground.now += 1
    [kill] = ground.decide()
    assert isinstance(kill, KillWorker)
    assert kill.number == silent
    assert "longer than its lease of 30 s" in kill.why
    ground.now += 1
    assert ground.decide() == []
    ground.exit(silent, -9)
    assert [type(action) for action in ground.decide()] == [StartWorker]
    assert slow in ground.fleet.children


def test_a_supervisor_that_was_stopped_itself_does_not_blame_its_workers() -> None:
    """L9: after a pause of the whole host, beats are due again from then on."""
    ground = Ground(2)
    ground.started()
    ground.now += 10 * LEASE
    assert ground.decide() == []
    assert ground.after(LEASE) == []


def test_a_stop_is_passed_on_and_ends_when_all_have_ended() -> None:
    """X6: nothing is started any more; a worker that ended before its handlers were set up is fine."""
    ground = Ground(2)
    first, second = ground.started()
    ground.fleet.stop()
    assert ground.decide() == [StopWorker(first, "stopping"), StopWorker(second, "stopping")]
    ground.exit(first)
    assert ground.after(GRACE) == []
    ground.exit(second, -15)
    assert ground.decide() == [EndSupervision(0)]


def test_a_handler_that_exits_while_its_worker_stops_is_a_death() -> None:
    """L9: the exit code is that of a worker that has stopped, but it has not reported its end."""
    ground = Ground(3)
    died, stopped, early = ground.started()
    ground.fleet.children[early].ready_at = None
    ground.fleet.stop()
    ground.decide()
    ground.fleet.ended(stopped, 0)
    assert [ground.fleet.exited(number, 0, ground.now) for number in (died, stopped, early)] == [True, False, False]


def test_a_second_signal_hurries_and_a_third_kills() -> None:
    """X6: as for one worker; what was killed shows in the exit code."""
    ground = Ground(1)
    [number] = ground.started()
    ground.fleet.stop()
    ground.decide()
    ground.fleet.stop()
    assert ground.decide() == [StopWorker(number, "stopping at once", True)]
    ground.fleet.stop()
    assert ground.decide() == [KillWorker(number, "a third signal")]
    assert ground.decide() == []
    ground.exit(number, -9)
    assert ground.decide() == [EndSupervision(1)]


def test_a_stop_does_not_hurry_a_worker_that_is_stopping_already() -> None:
    """X6: one that is being replaced has its grace period left."""
    ground = Ground(1)
    [old] = ground.started()
    ground.fleet.roll()
    successor = ground.start()
    ground.ready(successor)
    assert ground.decide() == [StopWorker(old, "its successor is ready")]
    ground.fleet.stop()
    assert ground.decide() == [StopWorker(successor, "stopping")]


def test_a_worker_that_does_not_stop_is_killed_after_its_grace() -> None:
    """X6: with a margin, because its own last steps take time."""
    ground = Ground(1)
    [number] = ground.started()
    ground.fleet.stop()
    ground.decide()
    assert ground.after(GRACE + STOP_MARGIN - 1) == []
    assert ground.after(2) == [KillWorker(number, "it does not stop")]


HELD_UP = "a worker is not ready 1 min after its start: an import or a lifespan holds it up"
HANGS = "ready within 5 min of its start: an import or a lifespan hangs"


def test_a_worker_that_does_not_become_ready_is_reported_killed_and_started_again() -> None:
    """X5: reported once, killed at the bound; the next one starts after a pause."""
    ground = Ground(1)
    ground.decide()
    assert ground.after(SLOW_START + 1) == [Warn(HELD_UP)]
    assert ground.after(START_TIMEOUT - SLOW_START) == [KillWorker(1, f"it was not {HANGS}")]
    ground.exit(1, -9)
    assert ground.after(1) == [StartWorker(2)]
    ground.ready(2)
    assert ground.after(2 * START_TIMEOUT) == []


def test_workers_that_hang_before_they_are_ready_end_the_supervisor() -> None:
    """X5: after a few tries, as for those that end by themselves, with a message that says what happened."""
    ground = Ground(2)
    kills, ends = 0, list[Action]()
    ground.decide()
    while not ends:
        for action in ground.after(0.5):
            if isinstance(action, KillWorker):
                kills += 1
                ground.exit(action.number, -9)
            elif isinstance(action, EndSupervision):
                ends.append(action)
            elif isinstance(action, StopWorker):
                ground.exit(action.number, -15)
    assert ends == [EndSupervision(1, f"no worker gets {HANGS}")]
    assert 2 * FAILED_STARTS - 1 <= kills <= 2 * FAILED_STARTS


def test_a_worker_that_waits_for_its_store_is_not_killed() -> None:
    """X2, X5: however long the store is away; if it hangs afterwards, the bound holds from then on."""
    ground = Ground(1)
    ground.decide()
    done: list[Action] = []
    for _ in range(100):
        ground.fleet.waits(1, ground.now)
        done += ground.after(30)
    assert done == [Warn("a worker is not ready 1 min after its start: it waits for its store")]
    ground.fleet.waits(1, ground.now)
    assert ground.after(START_TIMEOUT - 1) == []
    assert ground.after(1) == [KillWorker(1, f"it was not {HANGS}")]


def test_a_stop_before_a_worker_is_ready_has_its_grace() -> None:
    """X6: it was asked to end, so it is not killed for not being ready; a stop without a kill ends with 0."""
    ground = Ground(1)
    number = ground.start()
    assert not [action for action in ground.after(START_TIMEOUT - 1) if isinstance(action, KillWorker)]
    ground.fleet.stop()
    assert ground.after(GRACE) == [StopWorker(number, "stopping")]
    ground.exit(number)
    assert ground.decide() == [EndSupervision(0)]


def test_a_successor_that_hangs_is_killed_and_the_roll_given_up() -> None:
    """X6: the worker that it should replace goes on."""
    ground = Ground(1)
    [number] = ground.started()
    ground.fleet.roll()
    [start] = ground.decide()
    assert isinstance(start, StartWorker)
    assert start.instead == number
    assert ground.after(SLOW_START + 1) == [Warn(f"{HELD_UP}; the one that it replaces goes on")]
    [kill] = ground.after(START_TIMEOUT - SLOW_START)
    assert isinstance(kill, KillWorker)
    assert kill.number == start.number
    ground.exit(kill.number, -9)
    [warning] = ground.decide()
    assert isinstance(warning, Warn)
    assert "the rolling restart was given up" in warning.text
    assert ground.after(START_TIMEOUT) == []
    assert list(ground.fleet.children) == [number]


def test_a_supervisor_that_was_stopped_gives_starting_workers_their_time() -> None:
    """L9: a pause of the whole host is not their fault."""
    ground = Ground(1)
    ground.decide()
    ground.after(START_TIMEOUT - 1)
    ground.now += 10 * START_TIMEOUT
    assert ground.decide() == []
    assert [type(action) for action in ground.after(1)] == [KillWorker]


SHORT = 10.0


class AnyHistory(RuleBasedStateMachine):
    """Workers that start, beat, hang and die at random, and signals: what must hold at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(
            SupervisorOptions(processes=3, grace=GRACE, start_timeout=SHORT, limits=Limits(max_jobs=10, max_age=60)),
            Random(0),
        )
        self.now = 0.0
        self.alive: set[int] = set()
        self.asked: set[int] = set()
        self.beaten: dict[int, float] = {}
        self.heard: dict[int, float] = {}
        self.stops = 0
        self.ended = False

    @rule(step=st.floats(0.0, 1.9))
    def look(self, step: float) -> None:
        self.now += step
        for action in [] if self.ended else self.fleet.decide(self.now):
            match action:
                case StartWorker(number):
                    assert not self.stops
                    self.alive.add(number)
                    self.heard[number] = self.now
                case StopWorker(number):
                    assert number in self.alive
                    self.asked.add(number)
                case KillWorker(number, why):
                    assert number in self.alive
                    late = number not in self.beaten and self.now - self.heard[number] >= SHORT
                    silent = number in self.beaten and self.now - self.beaten[number] > LEASE
                    assert "third" in why or number in self.asked or late or silent
                case EndSupervision():
                    assert not self.alive
                    self.ended = True
                case _:
                    pass

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), finished=st.integers(0, 12))
    def beat(self, data: st.DataObject, finished: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive)))
        if number not in self.beaten:
            self.fleet.ready(number, ready(), self.now)
        self.fleet.beat(number, Beat(finished=finished, memory=1), self.now)
        self.beaten[number] = self.now

    @precondition(lambda self: self.alive - set(self.beaten))
    @rule(data=st.data())
    def wait_for_store(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive - set(self.beaten))))
        self.fleet.waits(number, self.now)
        self.heard[number] = self.now

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 1, -9, -11]))
    def exit(self, data: st.DataObject, code: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(number)
        self.fleet.exited(number, code, self.now)

    @rule()
    def roll(self) -> None:
        self.fleet.roll()

    @precondition(lambda self: self.stops < 3)
    @rule(chance=st.integers(0, 20))
    def stop(self, chance: int) -> None:
        if chance == 0:
            self.stops += 1
            self.fleet.stop()

    @invariant()
    def at_most_one_is_being_replaced(self) -> None:
        assert self.alive == set(self.fleet.children)
        assert len(self.alive - self.asked) <= 3 + 1
        slots = [child.slot for child in self.fleet.children.values()]
        assert max((slots.count(slot) for slot in slots), default=0) <= 2


TestAnyHistory = AnyHistory.TestCase


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_whatever_ends_is_started_again(processes: int, seed: int) -> None:
    """L9: after any deaths, all slots are filled again within a minute."""
    ground, rng = Ground(processes), Random(seed)
    ground.started()
    for _ in range(10):
        for number in rng.sample(sorted(ground.fleet.children), rng.randint(0, len(ground.fleet.children))):
            ground.exit(number, -9)
        for action in ground.after(rng.choice([0.5, 30])):
            if isinstance(action, StartWorker):
                ground.ready(action.number)
    ground.after(60)
    assert len(ground.fleet.children) == processes
