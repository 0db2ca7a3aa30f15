"""Random interleavings: clients whose requests to one bucket are shuffled by a seed, judged by the memory store.

The scheduler lets one client go on to its next request at a time. A step ends with its commit, so the order in which
steps end is the order of the commits. The memory store plays each verb when the step has ended: its answer must be the
same, and after the last one so must all records, edges, keys and schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from taskharbor.core.evolve import DeadLetter, Replay, Reschedule
from taskharbor.core.group import Group
from taskharbor.core.job import Dependency, JobRecord, NewJob
from taskharbor.core.lease import Report
from taskharbor.core.schedule import Schedule, Swap
from taskharbor.core.steps import enqueue, forget, lease, replay, reschedule, settle, stop, swap
from taskharbor.core.steps.needs import VerbStep
from taskharbor.core.transition import Ack, Cancel, Fail, PutBack, Transition
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.kit.jobs import T0, job

from .bucket import Bucket
from .interpreter import requests
from .reader import StoredJob

MANY = 100
LEASE = timedelta(seconds=10)
POLICIES = ("hold", "cancel", "collect")
KEYS = (None, None, "k0", "k1")
PREPARATIONS = ("claim", "claim", "settle", "fail", "fail", "cancel", "dead_letter", "replay")
THEMES = (
    "enqueue claim extend settle fail cancel dead_letter delete replay sweep prune free swap reschedule",
    "enqueue enqueue replay cancel settle delete",
    "enqueue prune delete free settle fail replay",
)


class Verb(NamedTuple):
    """A step with its arguments, and the same verb on the memory store; `counts` if the answers are comparable."""

    step: Callable[..., VerbStep[Any]]
    args: tuple[Any, ...]
    model: Callable[[], Any]
    counts: bool = True


Client = Generator[None, None, None]


class Play:
    """One interleaving."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.bucket = Bucket()
        self.driver = MemoryDriver(self.rng)
        self.model = self.driver._store
        self.model._new_token = lambda: self.tokens.pop(0)
        self.tokens: list[str] = []
        self.held: dict[str, str] = {}
        self.ids: list[str] = []
        self.numbers = 0
        self.now = T0
        self.order: list[str] = []

    def run(self) -> None:
        """Prepare a store, let clients interleave, and compare."""
        for _ in range(self.rng.randint(1, 2)):
            self.alone(self.enqueue())
        self.alone(self.claim())
        for _ in range(self.rng.randint(0, 6)):
            self.now += timedelta(seconds=self.rng.choice((0, 1, 4)))
            self.alone(self.verb(PREPARATIONS))
        self.now += timedelta(seconds=self.rng.choice((1, 11)))
        verbs = self.rng.choice(THEMES).split()
        clients = [self.client(self.verb(verbs)) for _ in range(self.rng.randint(2, 5))]
        while clients:
            client = self.rng.choice(clients)
            if next(client, self) is self:
                clients.remove(client)
        self.compare()

    def verb(self, names: Sequence[str]) -> Verb:
        """One of these verbs, with arguments."""
        plan: Callable[[], Verb] = getattr(self, self.rng.choice(names))
        return plan()

    def alone(self, verb: Verb) -> None:
        """Play one verb without others."""
        for _ in self.client(verb):
            pass

    def client(self, verb: Verb) -> Client:
        """The requests of one verb; then the model's answer must be the same."""
        answer = yield from requests(self.bucket, verb.step, *verb.args)
        self.order.append(verb.step.__name__)
        if verb.step is lease.claim:
            claims = [(job.id, job.lease.token) for job in answer if job.lease is not None]
            self.held |= dict(claims)
            self.tokens = [token for _, token in claims]
        expected = verb.model()
        if verb.counts:
            assert _answers(answer) == _answers(expected), f"{self}: the step says {answer}, the model {expected}"

    def __str__(self) -> str:
        return f"seed {self.seed}, commits in the order {', '.join(self.order)}"

    def compare(self) -> None:
        """All that is stored must be what the model holds."""
        stored: list[StoredJob] = [entry.value for entry in self.bucket.scan("job/")]
        ours, theirs = {each.job.id: each.job for each in stored}, self.model.jobs
        assert ours.keys() == theirs.keys(), str(self)
        for id, record in ours.items():
            assert record == theirs[id], str(self)
        above = {(e.child, e.parent, e.policy, e.satisfied) for each in stored for e in each.above.values()}
        edges = {(e.child, e.parent, e.policy, e.satisfied) for each in self.model.edges.parents.values() for e in each}
        assert above == edges, str(self)
        below = {(each.job.id, *place) for each in stored for place in each.below}
        places = {(e.parent, e.child, e.position) for each in stored for e in each.above.values() if e.parent in ours}
        assert below == places, str(self)
        keys = {entry.value.key: entry.value for entry in self.bucket.scan("key/")}
        assert keys == self.model.keys, str(self)
        schedules = {entry.value.name: entry.value for entry in self.bucket.scan("schedule/")}
        assert schedules == self.driver._schedules, str(self)

    def some(self, most: int = 4) -> list[str]:
        """Some ids, mostly known ones."""
        return self.rng.sample([*self.ids, "nobody"], self.rng.randint(1, min(most, len(self.ids) + 1)))

    def job(self, parents: Sequence[str], workflow: str | None) -> NewJob:
        """A new job, with or without parents."""
        self.numbers += 1
        rng, key = self.rng, None if parents or workflow == "flow" else self.rng.choice(KEYS)
        chosen = rng.sample(parents, min(len(parents), rng.randint(0, 2)))
        return job(
            f"j{self.numbers}",
            workflow_id=workflow or rng.choice((None, None, "w")),
            idempotency_key=key,
            key_expires_at=None if key is None else rng.choice((None, self.now + timedelta(seconds=3))),
            expires_at=None if chosen else rng.choice((None, None, None, self.now + timedelta(seconds=5))),
            depends_on=tuple(Dependency(parent, rng.choice(POLICIES)) for parent in chosen),
            kept=rng.random() < 0.1,
        )

    def enqueue(self) -> Verb:
        flow = self.rng.random() < 0.3
        jobs: list[NewJob] = []
        for _ in range(self.rng.randint(1, 4)):
            parents = [each.id for each in jobs if each.idempotency_key is None]
            jobs.append(self.job(parents, "flow" if flow else None))
        if not flow and self.ids and self.rng.random() < 0.1:
            jobs = [replace(jobs[0], id=self.rng.choice(self.ids))]
        self.ids += [each.id for each in jobs if each.id not in self.ids]
        expires_at = self.rng.choice((None, self.now + timedelta(seconds=3)))
        group = Group(
            jobs=tuple(jobs),
            key="g" if flow else None,
            key_expires_at=expires_at if flow else None,
            workflow_id="flow" if flow else None,
        )
        now = self.now
        return Verb(enqueue.enqueue, (group, now), lambda: self.model.enqueue(group, now))

    def claim(self) -> Verb:
        ids, now = self.some(8), self.now

        def follow() -> list[JobRecord]:
            return self.model.reserve([], now, LEASE, MANY, "w", ids)

        def new_token() -> str:
            self.numbers += 1
            return f"t{self.numbers}"

        return Verb(lease.claim, (ids, now, LEASE, "w", new_token), follow)

    def extend(self) -> Verb:
        reports, now = [Report(id, self.held.get(id, "bogus"), self.now) for id in self.some()], self.now
        model = self.model
        return Verb(lease.extend, (reports, now, LEASE), lambda: [model.extend(each, now, LEASE) for each in reports])

    def settle(self) -> Verb:
        return self._settle(Ack, Ack, PutBack, Cancel)

    def fail(self) -> Verb:
        return self._settle(Fail)

    def _settle(self, *kinds: Any) -> Verb:
        to, now = [self._transition(id, self.rng.choice(kinds)) for id in [*self.held][:4] or ["nobody"]], self.now
        return Verb(settle.settle, (to, now), lambda: [self.model.settle(each, now) for each in to])

    def _transition(self, id: str, kind: Any) -> Transition:
        known: dict[str, Any] = {"id": id, "token": self.held.get(id, "bogus"), "keep_until": self._keep_until()}
        if self.rng.random() < 0.3:
            known["new_jobs"] = (new := self.job(self.rng.choice(([id], [*self.held], [])), None),)
            self.ids.append(new.id)
        known |= {"reason": "r"} if kind is Fail else {"run_at": self.now} if kind is PutBack else {}
        transition: Transition = kind(**known)
        return transition

    def _keep_until(self) -> Any:
        return self.now + timedelta(seconds=self.rng.choice((0, 3, 3600)))

    def cancel(self) -> Verb:
        ids, now, until = self.some(), self.now, self._keep_until()
        return Verb(stop.cancel, (ids, now, until), lambda: self.model.cancel(ids, now, until))

    def dead_letter(self) -> Verb:
        now, until = self.now, self._keep_until()
        deaths = [DeadLetter(id=id, reason="by hand", fingerprint="f", keep_until=until) for id in self.some()]
        return Verb(stop.dead_letter, (deaths, now), lambda: self.model.dead_letter(deaths, now))

    def sweep(self) -> Verb:
        """Candidates as in prune. How many moves a cascade counts for is not specified."""
        ids, now, until = self.ids, self.now, self._keep_until()
        return Verb(stop.sweep, (ids, now, until, MANY), lambda: self.model.sweep(now, until, MANY), counts=False)

    def delete(self) -> Verb:
        ids = self.some()
        return Verb(forget.delete, (ids,), lambda: [self.model.delete(id) for id in ids])

    def prune(self) -> Verb:
        """The candidates include jobs that other clients are about to store."""
        ids, now = self.ids, self.now
        return Verb(forget.prune, (ids, now, MANY), lambda: self.model.prune(now, MANY))

    def free(self) -> Verb:
        return Verb(forget.free_workflow_key, ("flow",), lambda: self.model.free_workflow_key("flow"))

    def replay(self) -> Verb:
        now, key = self.now, self.rng.choice(KEYS)
        again = [Replay(id=id, idempotency_key=key, payload=self.rng.choice((None, b"new"))) for id in self.some()]
        return Verb(replay.replay, (again, now), lambda: self.model.replay(again, now))

    def reschedule(self) -> Verb:
        changes = [Reschedule(id=id, run_at=self._keep_until(), priority=1) for id in self.some()]
        model = self.model
        return Verb(reschedule.reschedule, (changes,), lambda: [model.reschedule(each) for each in changes])

    def swap(self) -> Verb:
        new, now = self.job([], None), self.now
        self.ids.append(new.id)
        then = Schedule(name="tick", definition=b"d", slot=now, last_job_id=new.id)
        swaps = [Swap(name="tick", seen=self.driver._schedules.get("tick"), then=then, job=new)]
        driver, model = self.driver, self.model
        return Verb(swap.swap_schedules, (swaps, now), lambda: [driver._swap(model, each, now) for each in swaps])


def _answers(got: Any) -> Any:
    if isinstance(got, Exception):
        return type(got).__name__
    return [_answers(each) for each in got] if isinstance(got, list | tuple) else got


def play(seeds: range) -> None:
    """Play the interleavings of these seeds."""
    for seed in seeds:
        Play(seed).run()
