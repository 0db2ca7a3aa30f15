"""A job as commands show it: JSON fields with stable names, and a page."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from taskharbor.admin.admin import Admin
from taskharbor.admin.dead_letters import DeadLetters
from taskharbor.admin.jobs import Jobs
from taskharbor.admin.why import Why
from taskharbor.cli import output
from taskharbor.cli.ids import whole_id
from taskharbor.cli.output import Cell, exact, picked
from taskharbor.cli.target import ask, filled_in, here
from taskharbor.core.arguments import Envelope
from taskharbor.core.durations import ago, count, length
from taskharbor.core.job import Failure, JobRecord
from taskharbor.core.reserved import TASKS
from taskharbor.core.shown import last_run, overrun_since, shown
from taskharbor.core.states import State

if TYPE_CHECKING:
    from taskharbor.admin.recurring import RecurringTask


def brief(job: JobRecord, now: datetime) -> dict[str, Any]:
    """The fields of a job in lists."""
    return {
        "id": job.id,
        "task": job.type,
        "queue": job.queue,
        "state": shown(job, now).value,
        "overrun_since": overrun_since(job, now),
        **picked(job, "priority", "attempts", "max_attempts", "crashes"),
        "lease_version": job.version,
        **picked(job, "created_at", "due_at", "started_at", "completed_at", "failed_at", "last_error", "dlq_reason"),
        **picked(job, "worker", "claimed_at", "tags", "idempotency_key"),
    }


def full(job: JobRecord, why: Why, now: datetime) -> dict[str, Any]:
    """Every field of a job except the lease's token, with which any process could finish the job."""
    took = last_run(job)
    return {
        **brief(job, now),
        "why": {**asdict(why), "fix": _fix(why)},
        "arguments": arguments_of(job),
        "payload_base64": None if arguments_of(job) is not None else base64.b64encode(job.payload).decode(),
        "result": result_of(job),
        "result_base64": None if _is_readable(job) else base64.b64encode(job.result or b"").decode(),
        **picked(job, "run_at", "expires_at", "timeout", "max_crashes", "unknown_put_backs"),
        "lease": None if job.lease is None else picked(job.lease, "worker", "version", "claimed_at", "expires_at"),
        "progress": None if job.progress is None else asdict(job.progress),
        "settled_at": job.settled_at,
        "took_seconds": None if took is None else took.total_seconds(),
        **picked(job, "stop_requested_at", "stop_reason", "key_expires_at"),
        "headers": dict(job.headers),
        "failures": [_failure(failure) for failure in job.failures],
        "workflow_id": job.workflow_id,
        "unmet_dependencies": job.unmet,
        **picked(job, "fingerprint", "original_id", "replays", "keep_until"),
    }


def _failure(failure: Failure) -> dict[str, Any]:
    rest = picked(failure, "message", "traceback", "started_at", "failed_at", "worker")
    return {"attempt": failure.attempt, "type": failure.kind, **rest}


def arguments_of(job: JobRecord | RecurringTask) -> msgspec.Raw | None:
    """The arguments as stored, or None if the payload is not one of TaskHarbor's."""
    try:
        msgspec.json.decode(job.payload)
        return msgspec.json.decode(job.payload, type=Envelope).args
    except msgspec.DecodeError:
        return None


def result_of(job: JobRecord) -> msgspec.Raw | None:
    """The result as stored, or None if there is none or it is not JSON: an agent's task may end with any bytes."""
    try:
        msgspec.json.decode(job.result or b"")
    except msgspec.DecodeError:
        return None
    return None if job.result is None else msgspec.Raw(job.result)


def _is_readable(job: JobRecord) -> bool:
    return job.result is None or result_of(job) is not None


def show(id: str, part: Callable[[Admin], Jobs | DeadLetters], as_json: bool) -> None:
    """Show everything about the job that this part of `harbor.admin` finds."""

    async def look(admin: Admin) -> tuple[JobRecord, Why]:
        job = await part(admin).aget(await whole_id(admin, id))
        return job, await admin.jobs.awhy(job)

    job, why = ask(look)
    if as_json:
        output.print_json(full(job, why, here().now()))
    else:
        _page(job, why, here().now())


def _page(job: JobRecord, why: Why, now: datetime) -> None:
    output.say(f"{job.type}  {job.id}", "bold")
    output.facts(
        [
            ("state", _state(job, now)),
            ("why", why.text),
            ("to do", _fix(why)),
            ("group", job.fingerprint),
            ("queue", job.queue),
            ("priority", str(job.priority) if job.priority else None),
            *_counts(job),
            ("put back", f"{job.unknown_put_backs} times: no such task" if job.unknown_put_backs else None),
            ("held by", _holder(job, now)),
            _last_worker(job),
            ("progress", _progress(job)),
            ("timeout", None if job.timeout is None else length(job.timeout)),
            ("tags", ", ".join(job.tags) or None),
            ("key", job.idempotency_key),
        ]
    )
    _times(job, now)
    _lineage(job)
    _values(job)
    _failures(job, now)


def _fix(why: Why) -> str | None:
    return None if why.fix is None else filled_in(why.fix)


def _counts(job: JobRecord) -> list[tuple[str, str]]:
    if job.queue == TASKS:  # the attempts of a TaskManager's task are its claims (M2)
        return [("claims", _of(job.version, job.max_attempts)), ("failures", str(job.attempts))]
    return [
        ("failures", _of(job.attempts, job.max_attempts)),
        ("crashes", _of(job.crashes, job.max_crashes)),
        ("claimed", f"{count(job.version, 'time')} (lease version)" if job.version else "never"),
    ]


def _of(number: int, most: int | None) -> str:
    return f"{number} of {'any number' if most is None else most}"


def _state(job: JobRecord, now: datetime) -> Cell:
    state = output.state_cell(shown(job, now))
    return state if job.dlq_reason is None else Cell(f"{state.text} ({job.dlq_reason})", state.style)


def _holder(job: JobRecord, now: datetime) -> str | None:
    return None if job.lease is None else f"{job.lease.worker}, until {exact(job.lease.expires_at, now)}"


def _last_worker(job: JobRecord) -> tuple[str, str | None]:
    if job.dlq_reason == "crash_loop":  # the store does not keep which workers died
        return "dead-lettered by", None if job.worker is None else f"{job.worker}, which did not run it"
    name = "last claimed by" if job.started_at is None else "last run by"
    return name, job.worker if job.lease is None else None


def _progress(job: JobRecord) -> str | None:
    if job.progress is None or job.state is State.DONE:  # its last report may be a second older than its end
        return None
    return f"{job.progress.fraction:.0%} {job.progress.note}".rstrip()


def _times(job: JobRecord, now: datetime) -> None:
    output.heading("Times")
    took = last_run(job)
    output.facts(
        [
            ("created", exact(job.created_at, now)),
            ("due", exact(job.due_at, now)),
            ("claimed", exact(job.claimed_at, now)),
            ("started", exact(job.started_at, now)),
            ("failed", exact(job.failed_at, now)),
            (_asked(job), exact(job.stop_requested_at, now)),
            ("completed", exact(job.completed_at, now)),
            ("settled", exact(job.settled_at, now) if job.completed_at is None else None),
            ("last run took", None if took is None else length(took.total_seconds())),
            ("expires", exact(job.expires_at, now)),
            ("key until", exact(job.key_expires_at, now)),
            ("kept until", exact(job.keep_until, now)),
        ]
    )


def _asked(job: JobRecord) -> str:
    return "cancel asked" if job.stop_reason is None else "dead letter asked"


def _lineage(job: JobRecord) -> None:
    known = [
        ("workflow", job.workflow_id),
        ("waits for", count(job.unmet, "job") if job.unmet else None),
        ("replayed", count(job.replays, "time") if job.replays else None),
        ("original", job.original_id if job.original_id != job.id else None),
        *job.headers.items(),
    ]
    if any(value is not None for _, value in known):
        output.heading("Lineage and headers")
        output.facts(known)


def show_arguments(job: JobRecord | RecurringTask) -> None:
    """Print the arguments of the job."""
    output.heading("Arguments")
    arguments = arguments_of(job)
    if arguments is None:
        output.say(f"not a payload of TaskHarbor, {len(job.payload):,} bytes: {job.payload[:200]!r}")
    else:
        output.json_block(bytes(arguments))


def _values(job: JobRecord) -> None:
    show_arguments(job)
    if job.result is not None:
        output.heading("Result")
        if _is_readable(job):
            output.json_block(job.result)
        else:
            output.say(f"not JSON, {len(job.result):,} bytes: {job.result[:200]!r}")


def _failures(job: JobRecord, now: datetime) -> None:
    if not job.failures and job.last_error:
        output.heading("Last error")
        output.say(job.last_error, "red")
    for failure in job.failures:
        number = f"Failure {failure.attempt}: " if failure.attempt else ""
        output.heading(f"{number}{failure.kind}, {ago(failure.failed_at, now)}")
        output.facts([("worker", failure.worker), ("started", exact(failure.started_at, now))])
        output.say(failure.traceback.rstrip() or failure.message, "red" if not failure.traceback else "dim")
