"""Flows: steps that wait for each other, from the public side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor import FailedStep, Flow, Graph, Harbor, Run, chain, chord, current, group
from taskharbor.core import wiring
from taskharbor.errors import (
    InvalidJob,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    StoreCorrupt,
    WrongArguments,
)
from taskharbor.testing import LostRequest, Outage, script
from taskharbor.workflows.parent_results import MOST_AT_ONCE
from world import World, until, virtual


class Sums(World):
    """Tasks that can be put together. `seen` are the arguments of every run of `note`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        task = self.harbor.task
        self.seen: list[object] = []

        @task(name="number")
        async def number(n: int) -> int:
            return n

        @task(name="add")
        async def add(n: int, more: int = 1) -> int:
            return n + more

        @task(name="total")
        async def total(parts: list[int]) -> int:
            return sum(parts)

        @task(name="note")
        async def note(what: Any) -> Any:
            self.seen.append(what)
            return what

        @task(name="tell")
        async def tell(word: str) -> str:
            self.seen.append(word)
            return word

        @task(name="die", max_attempts=1)
        async def die(n: int = 0) -> int:
            raise ValueError(f"{n} is bad")

        self.number, self.add, self.total, self.note, self.tell, self.die = number, add, total, note, tell, die

    async def result(self, flow: Any) -> Any:
        """The result of a flow when everything has run."""
        run = await flow.aenqueue()
        await self.drain()
        return await run.aresult(timeout=0)


@virtual
async def test_a_chain_hands_each_result_on() -> None:
    """K1, K3: to the first parameter of the next; the others are given at once."""
    w = Sums()
    assert await w.result(chain(w.number.step(1), w.add, w.add, w.add)) == 4
    assert await w.result(w.number.step(1).then(w.add, 10).then(w.add, more=100)) == 111
    assert await w.result(chain(w.number.step(7))) == 7
    assert await w.result(w.number.step(8)) == 8


@virtual
async def test_a_chord_collects_results_in_order() -> None:
    """K1, K3: whichever ends first."""
    w = Sums()

    @w.harbor.task
    async def late(n: int) -> int:
        await asyncio.sleep(10 - n)
        return n

    run = await chord(group(late.step(n) for n in range(9)), w.note).aenqueue()
    async with w.worker(concurrency=4):
        assert await run.aresult() == list(range(9))
    assert w.seen == [list(range(9))]


@virtual
async def test_flows_nest_at_will_and_results_are_nested_alike() -> None:
    """K1, K3: groups of chains of groups."""
    w = Sums()
    inner = group(w.number.step(1), chain(w.number.step(2), w.add))
    assert await w.result(inner) == [1, 3]
    assert await w.result(group(inner, w.number.step(4), group(), inner.then(w.total))) == [[1, 3], 4, [], 4]
    assert await w.result(group(inner, group(), w.number.step(5)).then(w.note)) == [[1, 3], [], 5]
    assert await w.result(group(inner.then(w.total), inner.then(w.total)).then(w.total).then(w.add)) == 9


@virtual
async def test_a_flow_after_a_flow_waits_for_all_of_it() -> None:
    """K1: also many after many, by way of one step between them, so that edges do not multiply."""
    w = Sums()
    many = group(w.tell.step(f"a{n}") for n in range(20))
    run = await chain(many, group(w.tell.step(f"b{n}") for n in range(20)), w.note).aenqueue()
    (call,) = w.log.calls("enqueue")
    jobs = call["groups"][0].jobs
    assert len(jobs) == 42
    assert sum(len(job.depends_on) for job in jobs) == 20 + 20 + 20
    assert await w.drain() == 42
    assert await run.aresult() == [f"b{n}" for n in range(20)]
    assert sorted(w.seen[:20]) == sorted(f"a{n}" for n in range(20))  # type: ignore[type-var]


@virtual
async def test_an_empty_group_is_done_at_once() -> None:
    """K1: with an empty list, alone and wherever it stands; nothing is stored for it."""
    w = Sums()
    run: Run[list[int]] = await group(list[Flow[int]]()).aenqueue()
    assert (await run.astate(), await run.aresult(), await run.acancel()) == ("done", [], 0)
    assert await (await group(group(), group()).aenqueue()).aresult() == [[], []]
    assert w.is_empty()
    assert await w.result(chord(group(), w.total)) == 0
    assert await w.result(chain(w.tell.step("first"), group(), w.note)) == []
    assert w.seen == ["first", []]


@virtual
async def test_a_graph_shares_its_nodes() -> None:
    """K1: one job however many use its result; its own result is that of its ends."""
    w = Sums()
    graph = Graph()
    a = graph.add(w.number.step(5))
    b = graph.add(a.then(w.add, 10))
    c = graph.add(a.then(w.add, 100))
    joined = graph.add(group(b, c).then(w.total))
    graph.add(w.tell.step("after"), after=[joined])
    graph.add(w.tell.step("beside"), after=[b, c])
    assert await w.result(graph) == ["after", "beside"]
    assert len(w.memory._store.jobs) == 6
    assert sorted(w.seen) == ["after", "beside"]  # type: ignore[type-var]


@virtual
async def test_a_graph_is_a_flow_like_any_other() -> None:
    """K1: behind others, inside of others, twice."""
    w = Sums()
    graph = Graph()
    node = graph.add(group(w.number.step(1), w.number.step(2)))
    graph.add(node.then(w.total))
    assert await w.result(chain(w.tell.step("first"), group(graph, graph), w.note)) == [[3], [3]]
    assert w.seen[0] == "first"
    assert await w.result(Graph()) == []


@virtual
async def test_hold_waits_for_a_replay_of_the_dead() -> None:
    """K4, K5, Q3: state and result say so; a replay resumes."""
    w = Sums()
    cured: list[bool] = []

    @w.harbor.task(max_attempts=1)
    async def patient() -> int:
        if not cured:
            raise ValueError("ill")
        return 40

    run = await chain(patient.step(), w.add, w.add).aenqueue()
    await w.drain()
    assert await run.astate() == "held"
    with pytest.raises(JobFailed, match=r"is held: job .*patient.* is dead: ValueError: ill. To go on: .*replay"):
        await run.aresult()
    cured.append(True)
    assert len(await w.harbor.admin.workflows.areplay(run.id)) == 1
    assert await run.astate() == "running"
    await w.drain()
    assert (await run.astate(), await run.aresult()) == ("done", 42)


@virtual
async def test_cancel_ends_the_rest() -> None:
    """K4: at once, in cascades through nested flows."""
    w = Sums()
    flow = chain(group(w.number.step(1), w.die.step()), w.total, w.add, group(w.note.step(1)), on_failure="cancel")
    run = await flow.aenqueue()
    await w.drain()
    assert await run.astate() == "failed"
    with pytest.raises(JobFailed, match=r"has failed: job .* \(die\) is dead: ValueError: 0 is bad. What waited"):
        await run.aresult()
    assert w.seen == []


@pytest.mark.parametrize("how", ["dlq", "cancelled"])
@virtual
async def test_collect_runs_with_the_failures(how: str) -> None:
    """K4: in their places, with id, state and error."""
    w = Sums()

    @w.harbor.task
    async def judge(parts: list[int | FailedStep]) -> list[str]:
        return [str(part) if isinstance(part, int) else f"{part.state} {part.error}" for part in parts]

    members = group(w.number.step(1), w.die.using(delay=5).step(7), w.number.step(3))
    run = await members.on_failure("collect").then(judge).aenqueue()
    if how == "cancelled":
        graph = await w.harbor.admin.workflows.agraph(run.id)
        await w.harbor.admin.jobs.acancel([node.id for node in graph if node.task == "die"])
    async with w.worker():
        middle = "dlq ValueError: 7 is bad" if how == "dlq" else "cancelled None"
        assert await run.aresult() == ["1", middle, "3"]
    assert await run.astate() == "done"


@virtual
async def test_one_failed_step_can_be_collected_too() -> None:
    """K4: a chain may go on after a failure."""
    w = Sums()
    flow = w.die.step(3).on_failure("collect").then(w.note)
    found = await w.result(flow)
    assert (found["state"], found["error"]) == ("dlq", "ValueError: 3 is bad")
    assert await w.result(chain(w.die.step(4), w.note, on_failure="collect")) == {**found, **w.seen[-1]}  # type: ignore[dict-item]


@virtual
async def test_a_cancelled_workflow_releases_no_job() -> None:
    """K5, T3: the last ones first, so that it sets no finalizer free that collects; what runs is asked to stop."""
    w = Sums()

    @w.harbor.task
    async def long() -> int:
        await asyncio.sleep(1000)
        return 1

    run = await group(long.step(), w.number.using(delay=60).step(1)).on_failure("collect").then(w.note).aenqueue()
    async with w.worker():
        await until(lambda: any(job.started_at for job in w.memory._store.jobs.values()))
        assert await run.acancel() == 3
        await asyncio.sleep(100)
        assert (await run.astate(), w.seen) == ("cancelled", [])
        assert await run.acancel() == 0


@virtual
async def test_a_key_covers_the_whole_flow() -> None:
    """D1, I1, I3: the second returns the first, of another shape or not; every caller finds its result."""
    w = Sums()
    flow = group(group(w.number.step(1), w.number.step(2)), w.number.step(3))
    first = await flow.using(idempotency_key="k", idempotency_ttl=60).aenqueue()
    again = await flow.using(idempotency_key="k").aenqueue()
    other = await chain(w.number.step(1), w.add).using(idempotency_key="k").aenqueue()
    assert (first.created, again.created, other.created) == (True, False, False)
    assert {first.id, again.id, other.id} == {first.id}
    assert (again.same_payload, other.same_payload) == (True, False)
    known = await w.harbor.admin.workflows.afind("k")
    assert known is not None
    assert (known.id, await w.harbor.admin.workflows.afind("other")) == (first.id, None)
    assert len(w.memory._store.jobs) == 3
    await w.drain()
    assert await again.aresult() == await first.aresult() == [[1, 2], 3]
    await asyncio.sleep(61)
    assert (await flow.using(idempotency_key="k").aenqueue()).created


@virtual
async def test_a_handler_may_enqueue_a_flow_with_its_ack() -> None:
    """D9, K1: exactly if it succeeds."""
    w = Sums()
    runs: list[Run[Any]] = []

    @w.harbor.task(max_attempts=2)
    async def spawn() -> None:
        runs.append(current().enqueue(group(w.number.step(n) for n in range(4)).then(w.total)))
        if current().attempt == 1:
            raise ValueError("not yet")

    await spawn.aenqueue()
    async with w.worker():
        await until(lambda: len(runs) == 2)
        assert await runs[1].aresult() == 6
        with pytest.raises(JobNotFound, match="there is no workflow"):
            await runs[0].astate()


@virtual
async def test_results_are_read_together() -> None:
    """K3: children that start at the same time share a round trip."""
    w = Sums()
    await w.harbor.amigrate()
    flows = [chain(w.number.step(n), w.add) for n in range(60)]
    runs = [await flow.aenqueue() for flow in flows]
    async with w.worker(concurrency=100):
        assert [await run.aresult() for run in runs] == list(range(1, 61))
    assert MOST_AT_ONCE >= 60
    assert len(w.log.calls("parents")) < 10


@virtual
async def test_a_store_that_is_away_when_results_are_read_costs_no_attempt() -> None:
    """X2, K3: the job goes back and is tried again."""
    w = Sums(lambda inner: LostRequest(inner, script("parents", "parents")))
    run = await chain(w.number.step(1), w.add).aenqueue()
    async with w.worker():
        assert await run.aresult() == 2
    assert [job.attempts for job in w.memory._store.jobs.values()] == [0, 0]
    assert [job.version for job in w.memory._store.jobs.values()] == [1, 3]


@virtual
async def test_results_too_large_to_pass_on_end_in_the_dlq() -> None:
    """K3: with the reason, and without a retry."""
    w = Sums()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "LIMIT", 20)
        run = await chord(group(w.tell.step("x" * 8) for _ in range(3)), w.note).aenqueue()
        await w.drain()
    with pytest.raises(JobFailed, match=r"results_too_large.*its 3 parents take 30 bytes, the limit is 20"):
        await run.aresult()
    assert await run.astate() == "failed"


@virtual
async def test_no_result_slips_into_the_place_of_one_that_is_gone() -> None:
    """K3, F9: a dead step that is replayed when its parent is gone says so, whatever else it waited for."""
    w = Sums()
    graph = Graph()
    a, b = graph.add(w.note.step("for you")), graph.add(w.note.step("not for you"))
    graph.add(a.then(w.die.using(max_attempts=1)), after=[b])
    run = await graph.aenqueue()
    await w.drain()
    gone, _, dead = await w.harbor.admin.workflows.agraph(run.id)
    w.memory._store._remove(await w.record(gone.id))
    await w.harbor.admin.workflows.areplay(run.id)
    await w.drain()
    assert "the results of its parents are gone" in ((await w.record(dead.id)).last_error or "")


@virtual
async def test_a_result_of_the_wrong_type_is_found_when_it_is_read() -> None:
    """F9, K3: annotations may promise what a handler does not keep."""
    w = Sums()

    @w.harbor.task
    async def liar() -> int:
        return "no number"  # type: ignore[return-value]

    run = await chain(liar.step(), w.add).aenqueue()
    await w.drain()
    with pytest.raises(JobFailed, match=r"undecodable.*do not fit the signature: parameter \w+ wants int, got str"):
        await run.aresult()


@virtual
async def test_a_long_chain_and_a_wide_group() -> None:
    """K1, K2: longer than calls are deep."""
    w = Sums()
    flow: Any = w.number.step(0)
    for _ in range(2000):
        flow = flow.then(w.add)
    assert await w.result(flow) == 2000
    assert await w.result(group(w.number.step(1) for _ in range(2000)).then(w.total)) == 2000


@virtual
async def test_the_graph_can_be_seen_with_its_states() -> None:
    """K5: jobs in order, what each waits for, and whether that is met."""
    w = Sums()
    run = await chain(group(w.number.step(1), w.die.step()), w.total).aenqueue()
    await w.drain()
    one, dead, last = await w.harbor.admin.workflows.agraph(run.id)
    assert [(node.task, node.state, node.error) for node in (one, dead, last)] == [
        ("number", "done", None),
        ("die", "dlq", "ValueError: 0 is bad"),
        ("total", "waiting", None),
    ]
    assert (one.parents, last.parents) == ([], [(one.id, "hold", True), (dead.id, "hold", False)])
    (found,) = await w.harbor.admin.workflows.alist()
    assert (found.id, found.state, found.jobs, found.counts) == (
        run.id,
        "held",
        3,
        {"waiting": 1, "done": 1, "dlq": 1},
    )
    for look in (w.harbor.admin.workflows.aget, w.harbor.admin.workflows.agraph):
        with pytest.raises(JobNotFound, match="there is no workflow nobody"):
            await look("nobody")


@virtual
async def test_waiting_for_a_result_has_an_end() -> None:
    """P: `TimeoutError` names the state."""
    w = Sums()
    run = await chain(w.number.using(delay=1000).step(1), w.add).aenqueue()
    async with w.worker():
        with pytest.raises(TimeoutError, match=r"is running and has no result yet"):
            await run.aresult(timeout=7)
        assert await run.aresult() == 2


@virtual
async def test_nothing_is_stored_of_what_is_wrong() -> None:
    """X5: wrong wiring, foreign steps, options of one step that are the whole's: an error that names the fix."""
    w, other = Sums(), Sums()
    plain: Any = len
    anything: Any = w
    two: Any = w.harbor.task(_two)
    noted: Any = w.harbor.task(_noted)
    wrong: dict[str, Any] = {
        r"takes word: str, but the step before it gives int": lambda: w.number.step(1).then(anything.tell),
        r"takes n: int, but the step before it gives list\[int\]": lambda: chord(group(w.number.step(1)), anything.add),
        r"_two needs .*pass the task itself, not a step": lambda: chain(w.number.step(1), two.step()),
        r"_two needs 'first'.*\(for a task that takes .*, write \.then\(task, second=…\)\)$": lambda: chain(
            w.number.step(1), two.step(second=2)
        ),
        r"parameter note wants str, got int$": lambda: noted.step(note=5),
        r"_two has no parameter 'third'[^(]*$": lambda: chain(w.number.step(1), two.step(third=2)),
        r"_two needs 'second': it takes first, second": lambda: chain(w.number.step(1), two),
        r"what comes next is a task, made by @harbor.task, not <built-in function len>": lambda: chain(
            w.number.step(1), plain
        ),
        r"a group is made of steps and flows such as task.step\(…\), not of <AsyncTask number>": lambda: group(
            anything.number, anything.number
        ),
        r"steps and flows such as task.step\(…\), not of <AsyncTask number>$": lambda: group(anything.number),
        r"a flow begins with a step": lambda: chain(anything.number, w.add),
        r"steps of two harbors": lambda: group(w.number.step(1), other.number.step(2)).enqueue(),
        r"a step of a flow has idempotency_key of its own: set it for the whole": lambda: chain(
            w.number.using(idempotency_key="k").step(1), w.add
        ).enqueue(),
        r"on_failure is hold, cancel or collect, not 'explode'": lambda: anything.number.step(1).on_failure("explode"),
        r"unknown option 'delay' of a flow": lambda: anything.number.step(1).using(delay=3),
        r"idempotency_ttl needs an idempotency_key": lambda: w.number.step(1).using(idempotency_ttl=3),
    }
    for message, build in wrong.items():
        with pytest.raises(InvalidJob, match=message):
            build()
    assert w.is_empty()


async def _two(first: int, second: int) -> None: ...


async def _noted(number: int = 1, *, note: str = "") -> None: ...


@virtual
async def test_a_graph_refuses_what_would_be_a_circle_or_foreign() -> None:
    """K1, X5: what a node waits for is given when it is added, and a failed add leaves no trace."""
    w = Sums()
    graph, elsewhere = Graph(), Graph()
    node, foreign = graph.add(w.number.step(1)), elsewhere.add(w.number.step(2))
    anything: Any = w.number.step(1)
    with pytest.raises(InvalidJob, match="this node was added already"):
        graph.add(node, after=[node])
    with pytest.raises(InvalidJob, match="a node belongs to the graph that it was added to"):
        graph.add(foreign.then(w.add))
    with pytest.raises(InvalidJob, match="a node belongs to the graph that it was added to"):
        graph.add(w.number.step(1), after=[foreign])
    with pytest.raises(InvalidJob, match="a node belongs to the graph that it was added to"):
        graph.add(group(w.number.step(1), foreign))
    with pytest.raises(InvalidJob, match=r"after= takes nodes that graph.add gave, not <Step number>"):
        graph.add(w.number.step(1), after=[anything])
    with pytest.raises(InvalidJob, match="a node belongs to the graph"):
        await node.then(w.add).aenqueue()
    assert await w.result(graph) == [1]


@virtual
async def test_the_next_step_waits_after_empty_groups_and_nodes_too() -> None:
    """K1: what a flow without steps of its own waits for, its successor waits for."""
    w = Sums()

    @w.harbor.task
    async def last(parts: Any) -> None:
        w.seen.append("last")

    slow = w.tell.using(delay=5)
    prepared = group(chain(slow.step("one"), group()), chain(slow.step("two"), group(w.tell.step("inner"))))
    async with w.worker():
        await (await prepared.then(last).aenqueue()).aresult()
        assert (sorted(w.seen[:-1]), w.seen[-1]) == (["inner", "one", "two"], "last")  # type: ignore[type-var]
        w.seen.clear()
        graph = Graph()
        one, two = graph.add(w.tell.step("one")), graph.add(w.tell.step("two"))
        both = graph.add(group(one, two), after=[graph.add(slow.step("slow"))])
        graph.add(both.then(last))
        await (await graph.aenqueue()).aresult()
        assert w.seen == ["one", "two", "slow", "last"]


@virtual
async def test_a_graph_is_not_part_of_itself_and_knows_its_policies() -> None:
    """X5."""
    w = Sums()
    graph = Graph()
    node = graph.add(w.number.step(1))
    anything: Any = graph
    with pytest.raises(InvalidJob, match="a graph cannot be a part of itself"):
        graph.add(graph)
    with pytest.raises(InvalidJob, match="on_failure is hold, cancel or collect, not 'colect'"):
        anything.add(w.number.step(1), after=[node], on_failure="colect")
    assert await w.result(graph) == [1]


@virtual
async def test_parents_that_cannot_be_read_fail_their_own_child_only() -> None:
    """F7, F9, K3: it is asked for each by itself, and counts as a failure."""
    w = Sums(max_attempts=1)
    parents, bad = w.memory.parents, set[str]()

    async def damaged(ids: Any, most: int) -> Any:
        if any(id in bad for id in ids):
            raise StoreCorrupt("a row is damaged")
        return await parents(ids, most)

    w.memory.parents = damaged  # type: ignore[method-assign]
    runs = [await chain(w.number.step(n), w.add).aenqueue() for n in range(5)]
    bad |= {id for id, job in w.memory._store.jobs.items() if job.workflow_id == runs[2].id and job.type == "add"}
    await w.drain()
    assert [await run.astate() for run in runs] == ["done", "done", "failed", "done", "done"]


@virtual
async def test_steps_of_another_harbor_are_refused_everywhere() -> None:
    """X5: nothing is stored in either."""
    w, other = Sums(), Sums()
    with pytest.raises(InvalidJob, match="another harbor"):
        await w.harbor.aenqueue_many([other.number.step(1)])

    @w.harbor.task(max_attempts=1)
    async def spawn() -> None:
        current().enqueue(chain(other.number.step(1), other.add))

    await spawn.aenqueue()
    await w.drain()
    (job,) = w.memory._store.jobs.values()
    assert "another harbor than the running job" in (job.last_error or "")
    assert other.is_empty()


@virtual
async def test_a_step_of_another_harbor_is_refused_in_a_handler() -> None:
    """X5: as a flow is."""
    w, other = Sums(), Sums()

    @w.harbor.task(max_attempts=1)
    async def spawn() -> None:
        current().enqueue(other.number.step(1))

    await spawn.aenqueue()
    await w.drain()
    (job,) = w.memory._store.jobs.values()
    assert "a step belongs to another harbor" in (job.last_error or "")
    assert other.is_empty()


@virtual
async def test_arguments_of_a_flow_have_their_limit() -> None:
    """R4: as those of any job."""
    w = Sums(payload_limit=100)
    with pytest.raises(PayloadTooLarge):
        w.tell.step("x" * 200)
    with pytest.raises(WrongArguments):
        w.number.step(1).then(w.add, "x")  # type: ignore[call-overload]
    assert w.is_empty()


@virtual
async def test_an_outage_in_the_middle_of_a_flow_is_survived() -> None:
    """X2, K1."""
    outages: list[Outage] = []

    def wrap(inner: Any) -> Outage:
        outages.append(Outage(inner))
        return outages[0]

    w = Sums(wrap)
    run = await chain(group(w.number.using(delay=n).step(n) for n in range(20)), w.total).aenqueue()
    async with w.worker():
        await asyncio.sleep(8)
        outages[0].down = True
        await asyncio.sleep(30)
        outages[0].down = False
        assert await run.aresult() == sum(range(20))


def test_flows_are_enqueued_by_blocking_calls_too(tmp_path: Any) -> None:
    """P: with a real worker behind it, on a file."""
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")

    @harbor.task
    def one() -> int:
        return 1

    @harbor.task
    def total(parts: list[int]) -> int:
        return sum(parts)

    run = chord(group(one.step(), one.step()), total).enqueue()
    assert (run.state(), group().enqueue().result(), group().enqueue().state()) == ("running", [], "done")
    asyncio.run(harbor.adrain())
    assert (run.result(timeout=5), run.state(), run.cancel()) == (2, "done", 0)
    assert [node.state for node in harbor.admin.workflows.graph(run.id)] == ["done"] * 3
    assert harbor.admin.workflows.get(run.id) == harbor.admin.workflows.list()[0]
    assert harbor.admin.workflows.replay(run.id) == []
    assert repr(run) == f"<Run {run.id}>"
