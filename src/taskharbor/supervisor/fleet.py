"""The fleet: which worker processes to start, stop and kill. It does no I/O and reads no clock.

Facts come in by methods (a child is ready, beats, has exited; a signal arrived), `decide` returns what to do now. Every
slot has one child; while a child is replaced, its successor is started first and stops it when ready (one at a time).
"""

from __future__ import annotations

import math
import signal

from msgspec import Struct

from taskharbor.core.backoff import Backoff
from taskharbor.core.durations import length
from taskharbor.core.exit_codes import shown_exit
from taskharbor.core.retry import Rng
from taskharbor.core.sizes import shown_size
from taskharbor.supervisor.actions import Action, EndSupervision, KillWorker, StartWorker, StopWorker, Warn
from taskharbor.supervisor.messages import Beat, WorkerReady, period
from taskharbor.supervisor.options import Limits, SupervisorOptions

STABLE = 10.0  # a child that has worked for this long has started well
FAILED_STARTS = 5  # in a row, before a slot counts as looping
# A poison job kills a worker up to `max_crashes` times, and several of them may come one after another.
SHORT_LIVES = 25
RESTART = Backoff(base=0.25, cap=5.0)
STOP_MARGIN = 20.0  # beyond the grace period: cancelling, the last flush, lifespans, closing the store
SLOW_START = 60.0  # after which a warning says that a child is not ready
SHORTEST_SILENCE = 2.0  # before a kill, however short the leases are: the host may only be busy
OWN_STALL = 2.0  # after a pause of the supervisor itself, missed beats are not held against children
WRONG_USE, NO_STORE = 2, 3  # exit codes of errors that a restart does not fix


class SupervisedWorker(Struct, kw_only=True):
    """A worker process. It is `ready` once it may hold leases; `limit_share` spreads limits, so that children do not
    reach them together."""

    number: int
    slot: int
    generation: int
    limit_share: float
    slow_at: float
    ready_by: float  # it is killed then, unless it is ready or waits for its store
    waits_for_store: bool = False
    ready_at: float | None = None
    lease: float = 0.0
    beat_at: float = 0.0
    finished: int = 0
    memory: int = 0
    any_memory: bool = False
    own_code: int | None = None  # it ends by itself, with this exit code
    stop_by: float | None = None  # it was asked to stop, and is killed then
    killed: bool = False


class WorkerSlot(Struct):
    """A place for one child: the failures in a row there, and when to start the next child."""

    failed_starts: int = 0
    short_lives: int = 0
    start_at: float = 0.0

    @property
    def looping(self) -> bool:
        return self.failed_starts >= FAILED_STARTS or self.short_lives >= SHORT_LIVES


class Fleet:
    """The state of all children, and the decisions about them. Times are those of one monotonic clock."""

    def __init__(self, options: SupervisorOptions, rng: Rng) -> None:
        self.children: dict[int, SupervisedWorker] = {}
        self._options = options
        self._rng = rng
        self._slots = [WorkerSlot() for _ in range(options.processes)]
        self._generation = 1
        self._started = 0
        self._stops = 0  # signals so far
        self._any_ready = False
        self._any_stable = False
        self._decided_at: float | None = None
        self._end = EndSupervision(0)
        self._warnings: list[Warn] = []

    # facts

    def ready(self, number: int, ready: WorkerReady, now: float) -> None:
        """Note that a child is about to claim jobs."""
        child = self.children[number]
        child.ready_at = child.beat_at = now
        child.lease, child.memory = ready.lease, ready.memory
        most = self._limits.max_memory
        if most is not None and ready.memory >= most and not self._stops:
            takes = shown_size(ready.memory)
            text = f"max_memory {shown_size(most)} is too low: a worker that has just started takes {takes}"
            if self._any_ready:
                child.any_memory = True
                self._warnings.append(Warn(f"{text}; it is not replaced for that"))
            else:
                self._give_in(EndSupervision(WRONG_USE, f"{text}; give more, or leave it out"))
        self._any_ready = True

    def beat(self, number: int, beat: Beat, now: float) -> None:
        """Note a beat of a child."""
        child = self.children[number]
        child.beat_at, child.finished, child.memory = now, beat.finished, beat.memory

    def waits(self, number: int, now: float) -> None:
        """Note that a child that is not ready waits for its store, which may take any time."""
        child = self.children[number]
        child.waits_for_store = True
        child.ready_by = now + self._options.start_timeout

    def ended(self, number: int, code: int) -> None:
        """Note the report of a child that it ends by itself."""
        self.children[number].own_code = code

    def exited(self, number: int, code: int, now: float) -> bool:
        """Note that a child has ended and was reaped; return whether it died: without a report of its own end.

        The exit code alone does not say so: a handler may call `os._exit(0)` while its worker stops. A worker that is
        stopped before it is ready reports nothing.
        """
        child = self.children.pop(number)
        if self._stops:
            if child.killed or code not in (0, -signal.SIGTERM):  # the signal came before its handlers were installed
                self._end = EndSupervision(self._end.code or 1, self._end.why)
        elif child.stop_by is None:
            self._unexpected(child, self._slots[child.slot], code, now)
        asked = child.stop_by is not None or self._stops > 0
        return child.own_code is None and not (asked and code == 0 and child.ready_at is None)

    def _unexpected(self, child: SupervisedWorker, slot: WorkerSlot, code: int, now: float) -> None:
        if child.ready_at is None:
            slot.failed_starts += 1
            slot.start_at = now + RESTART.delay(slot.failed_starts, self._rng)
            self._failed_start(child, shown_exit(code))
        elif not _is_stable(child, now):
            slot.failed_starts, slot.short_lives = 0, slot.short_lives + 1
            slot.start_at = now + (RESTART.delay(slot.short_lives - 1, self._rng) if slot.short_lives > 1 else 0.0)
        else:
            slot.failed_starts = slot.short_lives = 0
            slot.start_at = now
        working = any(other.ready_at is not None for other in self.children.values())
        if child.own_code in (WRONG_USE, NO_STORE) and self._is_final(child, working):
            self._give_in(EndSupervision(code))  # the worker has logged why
        elif all(slot.looping for slot in self._slots) and not working:
            why = f"workers keep ending, the last one with {shown_exit(code)}: see their messages above"
            if child.killed and child.ready_at is None:
                why = f"no worker gets {self._in_time}: an import or a lifespan hangs"
            self._give_in(EndSupervision(code if child.own_code in (WRONG_USE, NO_STORE) else 1, why))

    def _is_final(self, child: SupervisedWorker, others_work: bool) -> bool:
        """Whether a restart would end with the same error.

        If a store disappeared under a worker (X9), the next worker would create an empty one. Other errors are final
        if no worker has worked so far.
        """
        disappeared = child.ready_at is not None and child.own_code == NO_STORE
        return disappeared or not (others_work or self._any_stable)

    @property
    def _in_time(self) -> str:
        return f"ready within {length(self._options.start_timeout)} of its start"

    def _failed_start(self, child: SupervisedWorker, end: str) -> None:
        if any(other.generation < self._generation for other in self.children.values() if other.slot == child.slot):
            for other in self.children.values():
                other.generation = self._generation
            self._warnings.append(
                Warn(f"the rolling restart was given up: the new worker ended with {end}; others go on")
            )

    def stop(self) -> None:
        """Note a signal to stop: the first is graceful, the second urgent, the third kills."""
        self._stops += 1
        if self._stops > 1:
            for child in self.children.values():
                child.stop_by = None

    def roll(self) -> None:
        """Note a signal to replace every child, one after another: the code has changed."""
        self._generation += 1

    def _give_in(self, end: EndSupervision) -> None:
        self._end = end
        self._stops = self._stops or 1

    # decisions

    def decide(self, now: float) -> list[Action]:
        """Return the actions to take now. The caller performs them before it calls again."""
        self._forgive_own_stall(now)
        self._any_stable |= any(_is_stable(child, now) for child in self.children.values())
        actions: list[Action] = [*self._warnings]
        self._warnings.clear()
        for child in self.children.values():
            if (why := self._must_die(child, now)) is not None:
                child.killed = True
                actions.append(KillWorker(child.number, why))
        if self._stops:
            return actions + self._stopping(now)
        actions += [
            self._slow(child) for child in self.children.values() if child.ready_at is None and now >= child.slow_at
        ]
        return actions + self._started_now(now) + self._replaced(now)

    def _forgive_own_stall(self, now: float) -> None:
        if self._decided_at is not None and now - self._decided_at > OWN_STALL:
            for child in self.children.values():
                child.beat_at = now
                child.ready_by += now - self._decided_at
        self._decided_at = now

    def _must_die(self, child: SupervisedWorker, now: float) -> str | None:
        if child.killed:
            return None
        if child.stop_by is not None and now >= child.stop_by:
            return "it does not stop"
        if child.ready_at is None:
            late = now >= child.ready_by and child.stop_by is None and not self._stops
            return f"it was not {self._in_time}: an import or a lifespan hangs" if late else None
        silence = max(child.lease, SHORTEST_SILENCE) + 2 * period(child.lease)
        if now - child.beat_at > silence:
            return f"it has not run for longer than its lease of {length(child.lease)}: stopped, or the GIL is held"
        return None

    def _slow(self, child: SupervisedWorker) -> Warn:
        child.slow_at = math.inf
        why = "an import or a lifespan holds it up"
        if child.waits_for_store:
            why = "it waits for its store"
        replaces = any(it.slot == child.slot and it.number < child.number for it in self.children.values())
        waits = "; the one that it replaces goes on" if replaces else ""
        return Warn(f"a worker is not ready {length(SLOW_START)} after its start: {why}{waits}")

    def _stopping(self, now: float) -> list[Action]:
        if not self.children:
            return [self._end]
        actions: list[Action] = []
        for child in self.children.values():
            if self._stops > 2 and not child.killed:
                child.killed = True
                actions.append(KillWorker(child.number, "a third signal"))
            elif child.stop_by is None and not child.killed:
                child.stop_by = now + STOP_MARGIN + (self._options.grace if self._stops == 1 else 0.0)
                urgent = self._stops > 1
                actions.append(StopWorker(child.number, "stopping at once" if urgent else "stopping", urgent))
        return actions

    def _started_now(self, now: float) -> list[Action]:
        """Start children in the empty slots whose backoff is over."""
        taken = {child.slot for child in self.children.values() if child.stop_by is None}
        empty = (slot for slot in range(len(self._slots)) if slot not in taken)
        return [self._new(slot, now) for slot in empty if now >= self._slots[slot].start_at]

    def _replaced(self, now: float) -> list[Action]:
        """Stop the child whose successor is ready; else start a successor for one that needs it."""
        by_slot: dict[int, list[SupervisedWorker]] = {}
        for child in self.children.values():
            by_slot.setdefault(child.slot, []).append(child)
        for old, *newer in by_slot.values():
            if newer:
                if newer[-1].ready_at is not None and old.stop_by is None:
                    old.stop_by = now + self._options.grace + STOP_MARGIN
                    return [StopWorker(old.number, "its successor is ready")]
                return []
        for child in self.children.values():
            why = self._outdated(child, now)
            if why is not None and now >= self._slots[child.slot].start_at and not child.killed:
                return [self._new(child.slot, now, child.number, why)]
        return []

    def _outdated(self, child: SupervisedWorker, now: float) -> str | None:
        """Why a child needs a successor."""
        limits, share = self._limits, child.limit_share
        if child.generation < self._generation:
            return "SIGHUP"
        if child.ready_at is None:
            return None
        if limits.max_jobs is not None and child.finished >= limits.max_jobs * share:
            return f"it has run {child.finished} jobs"
        if limits.max_age is not None and now - child.ready_at >= limits.max_age * share:
            return f"it is {length(now - child.ready_at)} old"
        if limits.max_memory is not None and child.memory > limits.max_memory and not child.any_memory:
            return f"it takes {shown_size(child.memory)}"
        return None

    @property
    def _limits(self) -> Limits:
        return self._options.limits

    def _new(self, slot: int, now: float, instead: int | None = None, why: str | None = None) -> StartWorker:
        self._started += 1
        number = self._started
        share = 1 - 0.2 * self._rng.random()
        self.children[number] = SupervisedWorker(
            number=number,
            slot=slot,
            generation=self._generation,
            limit_share=share,
            slow_at=now + SLOW_START,
            ready_by=now + self._options.start_timeout,
        )
        return StartWorker(number, instead, why)


def _is_stable(child: SupervisedWorker, now: float) -> bool:
    return child.ready_at is not None and now - child.ready_at >= STABLE
