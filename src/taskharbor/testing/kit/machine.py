"""T1, D14: any driver in lockstep with the memory driver through random histories, by Hypothesis.

Both get the same calls; tokens differ, so they are compared by the claim that made them. Where the contract leaves a
choice (D11: how queues share a limit, a declared coarser due resolution), the driver's choice is checked by a plain
sort and then followed by the model. After every step all records, edges, keys and counts must be equal. Rules and
comparisons that need a protocol which the harness declares to lack are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from itertools import islice, product
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from msgspec.structs import replace

from taskharbor import driver as seam
from taskharbor.core.evolve import DeadLetter, Replay
from taskharbor.core.filter import Filter
from taskharbor.core.job import JobRecord, Progress
from taskharbor.core.line import effective_due, shares
from taskharbor.core.states import State
from taskharbor.core.transition import Transition
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import MissingExtra
from taskharbor.testing.kit.jobs import ALL, MUCH, T0, job, token_of
from taskharbor.testing.kit.scene import Harness, NewStore

try:
    from hypothesis import HealthCheck, settings, stateful
except ImportError as error:
    raise MissingExtra('the state machine runs on hypothesis: pip install "taskharbor[testing]"') from error

from taskharbor.testing.kit import histories as draw

T = TypeVar("T")
KEYS = (*draw.KEYS, *draw.GROUP_KEYS)


def bounded(histories: int) -> settings:
    """Settings for this many histories, the same every time."""
    return settings(
        max_examples=histories,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


class GrantedLease(NamedTuple):
    """One lease granted, with the tokens of both sides."""

    id: str
    token: str
    model_token: str


@runtime_checkable
class Whole(
    seam.Inspect,
    seam.Manage,
    seam.Maintain,
    seam.WorkflowStore,
    seam.Driver,
    seam.Schedules,
    seam.WaitForWork,
    Protocol,
):
    """The protocols that the machine uses: the driver may lack all but `Driver` and `Inspect`."""


PARTS = (seam.Manage, seam.Maintain, seam.WorkflowStore, seam.Schedules, seam.WaitForWork)


def _with(protocol: type) -> Callable[[Any], Any]:
    """A rule for drivers that have a protocol."""
    return stateful.precondition(lambda machine: machine.has(protocol))


class Lockstep(stateful.RuleBasedStateMachine):
    """The machine: rules are the verbs, the invariant is equality."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.harness = harness
        driver = self.do(harness.opened())
        for part in (seam.Inspect, *filter(self.has, PARTS)):
            seam.capability(driver, part)
        self.driver = cast(Whole, driver)
        self.model: Whole = MemoryDriver()
        self.now = T0
        self.claims = [GrantedLease("nobody", "bogus", "bogus"), GrantedLease("j1", "bogus", "bogus")]
        self.numbers = 0
        self.names: dict[str, str] = {}
        self.paused: set[str] = set()

    def has(self, protocol: type) -> bool:
        """Whether the driver has a protocol."""
        return protocol not in self.harness.lacks

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one call to its end."""
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        """Close the store."""
        self.do(self.driver.close())
        self.loop.close()

    def plain(self, record: JobRecord) -> JobRecord:
        """A record with tokens replaced by the names of their claims."""
        lease = record.lease and replace(record.lease, token=self.names[record.lease.token])
        return replace(record, lease=lease, settled_token=record.settled_token and self.names[record.settled_token])

    def agree(self, ours: object, theirs: object) -> None:
        """Answers must be equal; errors by their kind."""
        assert _answers(ours) == _answers(theirs), f"the driver says {ours!r}, the model {theirs!r}"

    def records(self) -> list[JobRecord]:
        """The model's records, newest first."""
        return self.do(self.model.query(Filter(), self.now, ALL))

    def name(self, again: int | None) -> str:
        """A new id, or one that is taken."""
        if again is not None and (taken := self.records()):
            return taken[again % len(taken)].id
        self.numbers += 1
        return f"j{self.numbers}"

    def aged(self, ages: Sequence[int]) -> list[str]:
        """Jobs by their age."""
        ids = [*(record.id for record in self.records()), "nobody"]
        return [ids[age % len(ids)] for age in ages]

    def chosen(self, picks: Sequence[draw.Pick]) -> list[GrantedLease]:
        """Claims by their age, latest first: mostly current ones, else old claims of a held job, or ended ones."""
        leases = [(record.id, record.lease) for record in self.records() if record.lease is not None]
        held = {lease.token: id for id, lease in leases if lease.expires_at > self.now}
        holding = [claim for claim in self.claims if claim.model_token in held] or self.claims
        over = [claim for claim in self.claims if claim.model_token not in held]
        stale = [claim for claim in over if claim.id in [id for id, _ in leases]] or over
        found: list[GrantedLease] = []
        for pick in picks:
            pool = stale if pick.any and pick.age % 2 else holding
            claim = pool[-1 - pick.age % len(pool)]
            found.append(claim._replace(token="bogus", model_token="bogus") if pick.any and pool is holding else claim)
        return found

    @stateful.rule(seconds=draw.STEPS)
    def time_passes(self, seconds: float) -> None:
        """Move the clock, mostly forwards, sometimes a little back."""
        self.now += timedelta(seconds=seconds)

    @stateful.initialize(groups=draw.groups(most=4))
    def begin(self, groups: list[draw.GroupPlan]) -> None:
        """Start every history with some jobs."""
        self.enqueue(groups)

    @stateful.rule(groups=draw.groups())
    def enqueue(self, groups: list[draw.GroupPlan]) -> None:
        """D1, R2, I1."""
        real = [draw.group_of(plan, self.now, self.name) for plan in groups]
        self.agree(self.do(self.driver.enqueue(real, self.now)), self.do(self.model.enqueue(real, self.now)))

    @stateful.rule(queues=draw.QUEUE_LISTS, limit=draw.LIMITS, seconds=draw.LEASES)
    def reserve(self, queues: list[str], limit: int, seconds: float) -> None:
        """D2, D3, D5, D11: the driver chooses, within what the contract permits."""
        lease = timedelta(seconds=seconds)
        lines = {queue: self._line(queue) for queue in set(queues) - self.paused}
        got = self.do(self.driver.reserve(queues, self.now, lease, limit, "w"))
        self._check_choice([each for each in queues if each not in self.paused], lines, limit, got)
        self._follow(got, lease)

    @stateful.rule(queues=draw.QUEUE_LISTS, seconds=draw.LEASES, step=draw.STEPS, plans=draw.settles(most=4))
    def work(self, queues: list[str], seconds: float, step: float, plans: list[draw.SettlePlan]) -> None:
        """A worker's round: some jobs are claimed, time passes, most of them are settled."""
        self.reserve(queues, len(plans) + 1, seconds)
        self.now += timedelta(seconds=step)
        self.settle(plans)

    @stateful.rule(ages=draw.AGES, limit=draw.LIMITS, seconds=draw.LEASES)
    def reserve_by_id(self, ages: list[int], limit: int, seconds: float) -> None:
        """D2: exactly those."""
        lease, ids = timedelta(seconds=seconds), self.aged(ages)
        claimable = {record.id for queue in draw.QUEUES for record in self._line(queue) if queue not in self.paused}
        wanted = list(islice((id for id in dict.fromkeys(ids) if id in claimable), limit))
        got = self.do(self.driver.reserve(draw.QUEUES, self.now, lease, limit, "w", ids))
        assert sorted(record.id for record in got) == sorted(wanted)
        self._follow(got, lease)

    def _line(self, queue: str) -> list[JobRecord]:
        """The claimable jobs of a queue in the order of D11, by a plain sort over the model's records."""
        oldest_first = self.records()[::-1]
        free = [record for record in oldest_first if record.queue == queue and _claimable(record, self.now)]
        return sorted(free, key=lambda record: (-record.priority, effective_due(record)))

    def _check_choice(
        self, queues: list[str], lines: dict[str, list[JobRecord]], limit: int, got: list[JobRecord]
    ) -> None:
        assert len(got) == min(limit, sum(map(len, lines.values())))
        for queue, share in shares(queues, limit).items():
            line, mine = lines[queue], [record.id for record in got if record.queue == queue]
            assert len(mine) >= min(share, len(line)), f"{queue} was starved: {mine}"
            if self.harness.due_resolution:
                self._check_coarsely(line, mine)
            else:
                assert mine == [record.id for record in line[: len(mine)]]

    def _check_coarsely(self, line: list[JobRecord], mine: list[str]) -> None:
        """No job may be passed over by more than the declared resolution."""
        left = [record for record in line if record.id not in mine]
        for taken, other in product((record for record in line if record.id in mine), left):
            assert taken.priority >= other.priority
            if taken.priority == other.priority:
                assert effective_due(taken) - effective_due(other) <= self.harness.due_resolution

    def _follow(self, got: list[JobRecord], lease: timedelta) -> None:
        ids = [record.id for record in got]
        same = self.do(self.model.reserve(draw.QUEUES, self.now, lease, len(ids), "w", ids))
        assert [record.id for record in same] == ids, f"the model would not hand out {ids}"
        for ours, theirs in zip(got, same, strict=True):
            token, model_token = token_of(ours), token_of(theirs)
            assert token not in self.names, "a token was used twice"
            self.names[token] = self.names[model_token] = f"claim {len(self.claims)} of {ours.id}"
            self.claims.append(GrantedLease(ours.id, token, model_token))
            assert self.plain(ours) == self.plain(theirs)

    @stateful.precondition(lambda self: len(self.claims) > 2)
    @stateful.rule(picks=draw.PICKS, seconds=draw.LEASES, started=draw.FLAGS, progress=draw.PROGRESS)
    def extend(self, picks: list[draw.Pick], seconds: float, started: bool, progress: Progress | None) -> None:
        """D6, D8."""
        lease, began = timedelta(seconds=seconds), self.now if started else None
        chosen = self.chosen(picks)
        ours = [seam.Report(claim.id, claim.token, began, progress) for claim in chosen]
        theirs = [seam.Report(claim.id, claim.model_token, began, progress) for claim in chosen]
        self.agree(
            self.do(self.driver.extend_lease(ours, self.now, lease)),
            self.do(self.model.extend_lease(theirs, self.now, lease)),
        )

    @stateful.precondition(lambda self: len(self.claims) > 2)
    @stateful.rule(plans=draw.settles())
    def settle(self, plans: list[draw.SettlePlan]) -> None:
        """D7, D8, D9, K2."""
        ours: list[Transition] = []
        theirs: list[Transition] = []
        for plan, claim in zip(plans, self.chosen([plan.pick for plan in plans]), strict=True):
            new_jobs = draw.jobs_of(plan.new_jobs, self.now, self.name)
            ours.append(draw.transition_of(plan, claim.id, claim.token, self.now, new_jobs))
            theirs.append(draw.transition_of(plan, claim.id, claim.model_token, self.now, new_jobs))
        self.agree(self.do(self.driver.settle(ours, self.now)), self.do(self.model.settle(theirs, self.now)))

    @_with(seam.Manage)
    @stateful.rule(action=draw.ACTIONS, ages=draw.AGES, hand=draw.OPERATOR_CALLS)
    def by_hand(self, action: str, ages: list[int], hand: draw.OperatorCall) -> None:
        """T1, T3, K3, K4, Q2, Q3, I2, D11."""
        ids = self.aged(ages)
        run_at = None if hand.delay is None else self.now + timedelta(seconds=hand.delay)
        until = self.now + timedelta(seconds=hand.keep)
        replays = [Replay(id=id, payload=hand.payload, idempotency_key=hand.key, run_at=run_at) for id in ids]
        deaths = [DeadLetter(id=id, reason=f"by hand {id}", fingerprint="f0", keep_until=until) for id in ids]
        changes = [seam.Reschedule(id=id, run_at=run_at, priority=hand.priority) for id in ids]
        workflow = next((each.workflow_id for each in self.records() if each.id == ids[0]), None) or "w0"
        acts: dict[str, Callable[[Whole], Coroutine[Any, Any, object]]] = {
            "cancel": lambda side: side.cancel(ids, self.now, until),
            "dead_letter": lambda side: side.dead_letter(deaths, self.now),
            "delete": lambda side: side.delete(ids),
            "replay": lambda side: side.replay(replays, self.now),
            "reschedule": lambda side: side.reschedule(changes, self.now),
        }
        if self.has(seam.WorkflowStore):
            acts["free"] = lambda side: side.free_workflow_key(workflow)
        elif action == "free":
            return
        self.agree(self.do(acts[action](self.driver)), self.do(acts[action](self.model)))

    @_with(seam.Manage)
    @stateful.rule(queue=draw.ONE_QUEUE, paused=draw.RARELY)
    def pause(self, queue: str, paused: bool) -> None:
        """D3."""
        (self.paused.add if paused else self.paused.discard)(queue)
        self.do(self.driver.pause(queue, paused))
        self.do(self.model.pause(queue, paused))

    @_with(seam.Maintain)
    @stateful.rule(keep=draw.KEEPS)
    def upkeep(self, keep: float) -> None:
        """N1, T1, X8. The count of moves in a cascade is not specified, so only the records are compared."""
        until = self.now + timedelta(seconds=keep)
        ours = self.do(self.driver.sweep(self.now, until, ALL))
        assert bool(ours) == bool(self.do(self.model.sweep(self.now, until, ALL)))
        self.agree(self.do(self.driver.prune(self.now, ALL)), self.do(self.model.prune(self.now, ALL)))

    @_with(seam.Schedules)
    @stateful.rule(plans=draw.SWAPS)
    def swap(self, plans: list[draw.SwapPlan]) -> None:
        """N3, N5: a few schedules; swaps of a call build on each other, and some expect a wrong record."""
        stored = {it.name: it for it in self.do(self.model.schedules())}
        swaps: list[seam.Swap] = []
        for plan in plans:
            new = job(self.name(plan.again), queue=draw.QUEUES[0], idempotency_key=plan.key)
            swaps.append(draw.swap_of(plan, stored.get(plan.name), new))
            if plan.stale is None and (then := swaps[-1].then) is not None:
                stored[plan.name] = then
            elif plan.stale is None:
                stored.pop(plan.name, None)
        ours, theirs = (self.do(side.swap_schedules(swaps, self.now)) for side in (self.driver, self.model))
        self.agree(ours, theirs)

    @stateful.invariant()
    def everything_is_equal(self) -> None:
        """R1: the complete observable records, in the same order, and all that is derived from them."""
        ours, theirs = self.do(self._seen(self.driver)), self.do(self._seen(self.model))
        assert [self.plain(record) for record in ours[0]] == [self.plain(record) for record in theirs[0]]
        assert ours[1:] == theirs[1:]
        if self.has(seam.WaitForWork):
            self._check_next_due(theirs[0])

    async def _seen(self, side: Whole) -> list[Any]:
        """Everything visible on one side: records, keys, counts; edges, workflows and schedules where there are any."""
        now, records = self.now, await side.query(Filter(), self.now, ALL)
        keys = await asyncio.gather(*(side.find_key(key, now) for key in KEYS))
        seen: list[Any] = [records, keys, await side.counts(now), await side.dead_groups(Filter(), now, ALL)]
        if self.has(seam.WorkflowStore):
            seen += [await side.parents([record.id for record in records], most) for most in (MUCH, 1)]
            seen.append(await side.workflows(ALL))
        if self.has(seam.Schedules):
            seen.append(await side.schedules())
        return seen

    def _check_next_due(self, records: list[JobRecord]) -> None:
        """A hint may come early, never late: a worker that trusts it misses no job."""
        for queue in draw.QUEUES:
            due = [_wakes(record) for record in records if record.queue == queue and queue not in self.paused]
            first = min((each for each in due if each is not None), default=None)
            hint = self.do(self.driver.next_due([queue]))
            assert first is None or (hint is not None and hint <= max(first, self.now))


def _answers(got: object) -> object:
    if isinstance(got, Exception):
        return type(got).__name__
    return [_answers(each) for each in cast("Sequence[object]", got)] if isinstance(got, list | tuple) else got


def _claimable(record: JobRecord, now: datetime) -> bool:
    if record.stop_requested_at is not None or (record.expires_at is not None and record.expires_at <= now):
        return False
    if record.state is State.INFLIGHT:
        return record.lease is not None and record.lease.expires_at <= now
    return record.state is State.READY and record.due_at <= now


def _wakes(record: JobRecord) -> datetime | None:
    if record.stop_requested_at is not None:
        return None
    if record.state is State.READY:
        return record.due_at
    return None if record.lease is None else record.lease.expires_at


def run_lockstep(new_store: NewStore, bounds: settings) -> None:
    """Drive the machine through its histories; each needs a new, empty store."""

    class OnNewStore(Lockstep):
        def __init__(self) -> None:
            super().__init__(new_store())

    stateful.run_state_machine_as_test(OnNewStore, settings=bounds)
