"""Simulations of one's own handlers, and what a broken promise looks like."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

from taskharbor import Harbor, current
from taskharbor.core.wiring import filled
from taskharbor.errors import ConfigError, DriverUnavailable
from taskharbor.testing import simulation
from taskharbor.testing.history import Began, Called, Final, JobEntry
from taskharbor.testing.simulation import Cluster, Faults, SimulationFailed, assert_holds, crash, simulate
from taskharbor.testing.simulation.flows import RandomFlows, WrongResult
from taskharbor.testing.simulation.workload import everything
from taskharbor.worker import executor as executors

from . import scenarios


def test_handlers_of_a_harbor_at_module_level_run_as_they_are() -> None:
    """G1: every job runs, although workers die all the time; the harbor's own store is not touched."""
    scenarios.seen.clear()
    result = assert_holds(scenarios.notes, 1, faults=Faults(kills=8, downtime=1))
    assert set(scenarios.seen) == set(range(10))
    assert result.report.counts.executions > result.report.counts.jobs  # workers died in the middle of some


def test_a_violation_is_reported_with_its_trace_and_command() -> None:
    """H1: the message names the invariant, shows what happened to the job, and how to see it again."""
    with pytest.raises(SimulationFailed) as caught:
        assert_holds(scenarios.forgetful, 3, faults=Faults())
    told = str(caught.value)
    assert "H1" in told
    assert "enqueue #1" in told
    assert "replay: python -m taskharbor.testing.simulation --scenario sim.scenarios:forgetful --seed 3" in told


def test_a_handler_that_kills_its_process_is_stopped_by_the_bound() -> None:
    """F6, F6b: dead-lettered as a crash loop; its neighbours are not, and it runs alone from the second crash on."""
    harbor = Harbor("memory://")
    beside: dict[int, set[str]] = {}
    running: set[str] = set()

    @harbor.task
    async def neighbour(number: int) -> None:
        running.add(current().id)
        await asyncio.sleep(3)
        running.discard(current().id)

    @harbor.task
    async def poison() -> None:
        beside[current().record.crashes] = set(running)
        running.clear()  # they die with this process
        await crash()

    async def scenario(cluster: Cluster) -> None:
        async def submit() -> None:
            await harbor.aenqueue_many([neighbour.step(number) for number in range(12)] + [poison.step()])

        await cluster.client(harbor, submit).ended.wait()
        cluster.workers(harbor, concurrency=32, lease=3)
        await asyncio.sleep(1)

    result = assert_holds(scenario, 1, faults=Faults())
    [final] = [event for event in result.events if isinstance(event, Final)]
    states = sorted(job.state for job in final.jobs)
    assert states == ["dlq"] + ["done"] * 12
    assert sorted(beside) == [0, 1, 2, 3, 4]
    assert len(beside[0]) == len(beside[1]) == 12
    assert beside[2] == beside[3] == beside[4] == set()


@pytest.mark.parametrize("seed", range(3))
def test_one_attempt_and_one_crash_are_at_most_one_execution(seed: int) -> None:
    """F6: workers die, freeze and lose replies; no handler starts a second time, and every job ends."""
    harbor = Harbor("memory://")

    @harbor.task(max_attempts=1, max_crashes=1)
    async def charge() -> None:
        await asyncio.sleep(2)

    async def scenario(cluster: Cluster) -> None:
        cluster.workers(harbor, count=3, lease=3)

        async def submit() -> None:
            for _ in range(40):
                with suppress(DriverUnavailable):
                    await harbor.aenqueue_many([charge.step(), charge.step()])
                await asyncio.sleep(1)

        await cluster.client(harbor, submit).ended.wait()

    faults = Faults(kills=8, pauses=15, pause=10, lost_replies=0.05, downtime=1)
    result = assert_holds(scenario, seed, faults=faults)
    runs = Counter(event.id for event in result.events if isinstance(event, Began))
    [final] = [event for event in result.events if isinstance(event, Final)]
    assert set(runs.values()) == {1}
    assert {(job.state, job.crashes > 0) for job in final.jobs} == {("done", False), ("dlq", True)}


def test_deploys_lose_nothing_and_count_nothing() -> None:
    """X6, F8: graceful stops all the time, two generations of code, and every job done without an attempt."""
    old, new = Harbor("memory://"), Harbor("memory://")

    async def work() -> None:
        await asyncio.sleep(2)

    async def fresh() -> None:
        await asyncio.sleep(1)

    old.task(name="work")(work)
    both = new.task(name="work")(work), new.task(name="fresh")(fresh)

    async def scenario(cluster: Cluster) -> None:
        cluster.workers(old, new, count=2, grace=10)

        async def submit() -> None:
            for task in both * 10:
                await task.aenqueue()
                await asyncio.sleep(2)

        await cluster.client(new, submit).ended.wait()

    result = assert_holds(scenario, 2, faults=Faults(deploys=5, downtime=1))
    [final] = [event for event in result.events if isinstance(event, Final)]
    assert {(job.state, job.attempts, job.crashes) for job in final.jobs} == {("done", 0, 0)}
    assert len({event.who for event in result.events if isinstance(event, Began)}) > 2


def test_crash_is_for_simulated_processes() -> None:
    """Outside of one it says so, instead of ending something real."""
    with pytest.raises(RuntimeError, match="simulated processes only"):
        asyncio.run(crash())


def test_connection_is_for_simulated_processes() -> None:
    """Likewise."""

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(RuntimeError, match="simulated process"):
            cluster.connection()

    simulate(scenario, 1, faults=Faults())


def test_the_engines_clock_rules_where_it_has_one() -> None:
    """L8, X4: what processes pass as the time is the engine's, within what a slow line costs."""
    result = simulate(scenarios.notes, 5, faults=simulation.Faults(clocks="engine", delay=0.05))
    assert result.report.fine
    ahead = [event.now - event.at for event in result.events if isinstance(event, Called) and event.now]
    assert max(ahead) - min(ahead) < 1_500_000


def test_an_error_that_a_client_does_not_catch_fails_the_run() -> None:
    """Nothing counts as proven that did not happen; the output says how to see it again."""
    with pytest.raises(DriverUnavailable) as caught:
        simulate(scenarios.careless, 1, faults=Faults(lost_requests=0.9))
    assert "replay: python -m taskharbor.testing.simulation" in "".join(caught.value.__notes__)


def test_a_harbor_outside_of_the_simulation_is_refused() -> None:
    """Or it would write to a real store."""
    with pytest.raises(ConfigError, match="not part of the simulation"):
        simulate(scenarios.stranger, 1, faults=Faults())


def test_a_scenario_that_never_returns_is_ended() -> None:
    """After so much virtual time."""
    with pytest.raises(TimeoutError, match="did not return within 600 virtual seconds"):
        simulate(scenarios.endless, 1, faults=Faults(), limit=600)


def test_the_trace_records_what_happened_to_processes() -> None:
    """Kills, stops and deploys stand between the calls."""
    trace = simulate(scenarios.notes, 1, faults=Faults(kills=5, pauses=5, pause=3, deploys=9)).trace()
    assert "(killed)" in trace
    assert "(stopped)" in trace
    assert "(goes on)" in trace
    assert "(asked to stop for generation 1)" in trace


def test_a_step_that_is_given_something_wrong_fails_the_run() -> None:
    """K3: the steps of the standard scenario's flows know what they must be given, and tell of anything else."""
    backwards = mock.patch.object(executors, "filled", lambda payload, name, given: filled(payload, name, given[::-1]))
    with backwards, pytest.raises(WrongResult, match=r"was given .* instead of") as caught:
        [simulate(everything, seed, faults=Faults()) for seed in range(10)]
    assert "replay: python -m taskharbor.testing.simulation" in "".join(caught.value.__notes__)


def test_flows_of_every_kind_are_part_of_the_standard_scenario() -> None:
    """K1-K5: steps that take one result, lists and nested lists, and failures among them; flows under keys too."""
    given: list[Any] = []
    keys: set[str | None] = set()
    check = RandomFlows._check

    async def noted(flows: RandomFlows, value: Any, expected: Any) -> None:
        given.append(value)
        await check(flows, value, expected)

    with mock.patch.object(RandomFlows, "_check", noted):
        for seed in range(12):
            events = simulate(everything, seed).events
            keys |= {item.flow_key for event in events if isinstance(event, Called) for item in jobs_of(event)}
    assert any(isinstance(value, int) for value in given)
    lists = [value for value in given if isinstance(value, list)]
    assert any(isinstance(part, list) for value in lists for part in value)
    assert any(isinstance(part, dict) for value in lists for part in value)
    assert len(keys) > 1


def jobs_of(event: Called) -> list[JobEntry]:
    """The jobs that were to be stored."""
    return [item for item in event.items if isinstance(item, JobEntry)]
