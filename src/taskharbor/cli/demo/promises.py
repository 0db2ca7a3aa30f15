"""The demo's verdict: every promise, checked against the store at the end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from taskharbor.cli.demo.cargo import Cargo
from taskharbor.cli.demo.story import Story
from taskharbor.core.durations import count
from taskharbor.core.job import JobRecord
from taskharbor.core.states import TERMINAL, State

SECOND = timedelta(seconds=1)


class Promise(NamedTuple):
    """A promise, whether it was kept, and the evidence."""

    text: str
    kept: bool
    evidence: str


def verdicts(story: Story, records: list[JobRecord]) -> list[Promise]:
    """Every promise of the demo."""
    cargo = story.cargo
    found = {record.id: record for record in records}
    return [
        _none_lost(cargo, found),
        *_killed(story, found),
        _retried(cargo),
        _poison(cargo),
        _not_early(cargo),
        _urgent_first(cargo),
        _one_key_one_job(cargo, records),
        _chord(cargo),
        _ticks(story),
        _graceful(story),
    ]


def _none_lost(cargo: Cargo, found: dict[str, JobRecord]) -> Promise:
    stored = [id for kind in cargo.kinds for id in kind.ids]
    ended = [id for id in stored if id in found and found[id].state in TERMINAL]
    dead = sum(found[id].state is State.DLQ for id in ended)
    return Promise(
        "No job is lost",
        len(ended) == len(stored) == cargo.expected == len(found),
        f"{len(stored)} stored, {len(ended) - dead} done, {dead} dead, {len(stored) - len(ended)} missing",
    )


def _killed(story: Story, found: dict[str, JobRecord]) -> Iterator[Promise]:
    voyage = next((found.get(id) for id in story.cargo.voyage.ids), None)
    result: dict[str, int] | None = _result(voyage)
    if voyage is None or story.victim is None or result is None:
        yield Promise("A killed worker's job runs elsewhere", False, "the voyage was not finished after a kill")
        return
    finisher = story.crew.by_pid(result["pid"])
    yield Promise(
        "A killed worker's job runs elsewhere",
        voyage.state is State.DONE and finisher is not story.victim and voyage.version >= 2,
        f"begun by {story.victim.name}, finished by {finisher.name if finisher else 'no worker'} "
        f"under lease version {voyage.version}",
    )
    rescued = [id for id in story.adrift if id in found and found[id].state is State.DONE]
    yield Promise(
        "Whatever else it was running, too",
        len(rescued) == len(story.adrift),
        f"{len(rescued)} of {len(story.adrift)} jobs that were adrift are done",
    )


def _retried(cargo: Cargo) -> Promise:
    flaky = cargo.flaky.seen
    return Promise(
        "Failures are retried, and remembered",
        len(flaky) == cargo.flaky.expected
        and all(
            job.state is State.DONE and job.attempts == len(job.failures) == cargo.failures_asked[job.id]
            for job in flaky
        ),
        f"{len(flaky)} flaky jobs done after {cargo.flaky.failures} recorded failures",
    )


def _poison(cargo: Cargo) -> Promise:
    if not cargo.poison.seen:
        return Promise("Poison ends in the dead-letter queue", False, "it is gone")
    (job,) = cargo.poison.seen
    return Promise(
        "Poison ends in the dead-letter queue",
        job.state is State.DLQ and job.attempts == job.max_attempts == len(job.failures),
        f"after {job.attempts} of {job.max_attempts} attempts, with {len(job.failures)} tracebacks",
    )


def _not_early(cargo: Cargo) -> Promise:
    known = [late for job in cargo.scheduled.seen if (late := _lateness(job)) is not None]
    return Promise(
        "Scheduled jobs do not run early",
        len(known) == cargo.scheduled.expected and min(known) >= 0,
        f"{len(known)} ran {min(known) * 1000:.0f} to {max(known) * 1000:.0f} ms after their time"
        if known
        else "none ran",
    )


def _lateness(job: JobRecord) -> float | None:
    ran = _result(job)
    if ran is None or job.run_at is None:
        return None
    return (datetime.fromisoformat(ran) - job.run_at).total_seconds()


def _urgent_first(cargo: Cargo) -> Promise:
    began = {job.id: _result(job) or 0 for job in cargo.express.seen}
    urgent = [time for id, time in began.items() if id in cargo.urgent]
    standard = [time for id, time in began.items() if id not in cargo.urgent]
    return Promise(
        "Higher priority goes first",
        bool(urgent and standard) and max(urgent) < min(standard),
        f"{len(urgent)} urgent parcels, enqueued last, overtook {len(standard)} standard ones",
    )


def _one_key_one_job(cargo: Cargo, records: list[JobRecord]) -> Promise:
    jobs = [record for record in records if record.type.endswith(".charge")]
    ids = {job.id for job in cargo.pair}
    return Promise(
        "One idempotency key, one job",
        len(ids) == len(jobs) == 1 and [job.created for job in cargo.pair] == [True, False],
        f"enqueued {len(cargo.pair)} times, stored {count(len(jobs), 'time')}",
    )


def _chord(cargo: Cargo) -> Promise:
    last = [job for job in cargo.chord.seen if job.type.endswith(".total")]
    weights = sum(_result(job) or 0 for job in cargo.chord.seen if job not in last)
    sums = [_result(job) for job in last if job.state is State.DONE]
    return Promise(
        "A chord ends once, with every result",
        len(cargo.chord.seen) == cargo.chord.expected and sums == [weights],
        f"{len(cargo.chord.seen) - len(last)} crates weighed, their sum of {sums[0] if sums else 'nothing'} made "
        f"by {count(len(sums), 'last step')}",
    )


def _ticks(story: Story) -> Promise:
    """One job for each second, from the first tick that a worker logged to the last that the schedule recorded."""
    text, jobs, schedule = "Every tick is enqueued exactly once", story.cargo.bell.seen, story.cargo.rung
    if story.first_tick is None or story.killed_at is None or schedule is None or schedule.last_run is None:
        return Promise(text, False, "the bell did not ring to the end")
    ticks = (schedule.last_run - story.first_tick) // SECOND + 1
    expected = [story.first_tick + number * SECOND for number in range(ticks)]
    slots = sorted(datetime.fromisoformat(job.headers["slot"]) for job in jobs)
    later = sum(slot > story.killed_at for slot in slots)
    return Promise(
        text,
        slots == expected and later > 0 and all(job.state is State.DONE for job in jobs),
        f"{count(ticks, 'second')}, {count(len(jobs), 'bell job')}, {later} after the kill",
    )


def _graceful(story: Story) -> Promise:
    codes = ", ".join(
        f"{name} {'still runs' if code is None else f'exit {code}'}" for name, code in story.exit_codes.items()
    )
    return Promise(
        "SIGTERM stops a worker gracefully",
        bool(codes) and not any(code != 0 for code in story.exit_codes.values()),
        codes,
    )


def _result(job: JobRecord | None) -> Any:
    return None if job is None or job.result is None else msgspec.json.decode(job.result)
