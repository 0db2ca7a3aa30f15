"""Broken drivers: groups, ids and idempotency keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.core.job import JobRecord, NewJob
from taskharbor.core.keys import KeyRecord
from taskharbor.core.states import State
from taskharbor.core.transition import Ack, Transition
from taskharbor.driver import Enqueued, Group, GroupResult
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.drivers.memory.keys import KeyTable
from taskharbor.drivers.memory.store import Store
from taskharbor.errors import JobExists

from .mutant import MutantRegistry

ENQUEUES = MutantRegistry("driver")
mutant = ENQUEUES.mutant

Enqueue = Callable[..., GroupResult]
StoreOne = Callable[..., Enqueued]
Known = KeyRecord | None


@mutant((Store, "_store_one"), by="test_R1_many_jobs_in_one_group_keep_their_own_fields[300]")
def lost_enqueue(store_one: StoreOne, store: Store, job: NewJob, now: datetime) -> Enqueued:
    """Every thirteenth job is acknowledged and not stored."""
    enqueued = store_one(store, job, now)
    if enqueued.created and store._seq[job.id] % 13 == 12:
        store._line.drop(job.id)
        store._remove(store.jobs[job.id])
    return enqueued


@mutant((Store, "enqueue"), by="test_D1_half_a_group_is_never_stored")
def half_stored_group(enqueue: Enqueue, store: Store, group: Group, now: datetime) -> GroupResult:
    """A refused group leaves the members before the refused one behind."""
    result = enqueue(store, group, now)
    if isinstance(result, JobExists):
        taken = [job.id in store.jobs for job in group.jobs]
        before = group.jobs[: taken.index(True)] if True in taken else ()
        store._store([job for job in before if not job.depends_on], now)
    return result


@mutant((Store, "enqueue"), by="test_D1_a_refused_group_takes_no_group_key")
def refused_group_takes_its_key(enqueue: Enqueue, store: Store, group: Group, now: datetime) -> GroupResult:
    """The key of a flow that was not stored is gone."""
    result = enqueue(store, group, now)
    if isinstance(result, JobExists) and group.key is not None and group.workflow_id is not None:
        store.keys.setdefault(group.key, KeyRecord(group.key, group.workflow_id, b"", group.key_expires_at))
    return result


@mutant((MemoryDriver, "enqueue"), by="test_D1_a_refused_group_leaves_its_neighbours_alone")
async def refused_group_takes_its_neighbours_along(
    enqueue: Any, driver: MemoryDriver, groups: Sequence[Group], now: datetime
) -> list[GroupResult]:
    """Strangers that share a call share its fate."""
    before = set(driver._store.jobs)
    results: list[GroupResult] = await enqueue(driver, groups, now)
    if any(isinstance(result, Exception) for result in results):
        for id in set(driver._store.jobs) - before:
            driver._store._remove(driver._store.jobs[id])
    return results


@mutant((Store, "enqueue"), by="test_R2_an_id_that_exists_is_JobExists_and_changes_nothing")
def enqueue_overwrites(enqueue: Enqueue, store: Store, group: Group, now: datetime) -> GroupResult:
    """A second job of an id is refused, and changes the first one all the same."""
    result = enqueue(store, group, now)
    if isinstance(result, JobExists):
        for job in group.jobs:
            if job.id in store.jobs:
                store._write(replace(store.jobs[job.id], payload=job.payload))
    return result


@mutant((Store, "enqueue"), by="test_D1_a_dependency_that_is_not_in_the_group_is_refused_whole")
def dependency_on_an_unknown_job_accepted(enqueue: Enqueue, store: Store, group: Group, now: datetime) -> GroupResult:
    """An edge to a job that is not there is left out."""
    ids = {job.id for job in group.jobs}
    jobs = [replace(job, depends_on=tuple(edge for edge in job.depends_on if edge.parent in ids)) for job in group.jobs]
    return enqueue(store, replace(group, jobs=tuple(jobs)), now)


@mutant((Store, "_write"), by="test_R3_times_are_exact_to_the_microsecond[1]")
def times_in_milliseconds(write: Any, store: Store, job: JobRecord) -> JobRecord:
    """Due times are rounded."""
    rounded = job.due_at.replace(microsecond=job.due_at.microsecond // 1000 * 1000)
    written: JobRecord = write(store, replace(job, due_at=rounded))
    return written


@mutant((Store, "_store_one"), by="test_R1_a_value_comes_back_as_it_was[max_attempts None]")
def unlimited_attempts_become_the_default(store_one: StoreOne, store: Store, job: NewJob, now: datetime) -> Enqueued:
    """None is taken for "not given"."""
    return store_one(store, replace(job, max_attempts=job.max_attempts or 4), now)


@mutant((MemoryDriver, "enqueue"), by="test_I1_concurrent_enqueues_of_one_loop_create_one_job")
async def idempotency_check_then_put(
    enqueue: Any, driver: MemoryDriver, groups: Sequence[Group], now: datetime
) -> list[GroupResult]:
    """Between the look for a key and its use others get a turn."""
    store = driver._store
    keys = {job.idempotency_key for group in groups for job in group.jobs if job.idempotency_key is not None}
    free = [key for key in keys if store.keys.living(key, now) is None]
    await asyncio.sleep(0)
    for key in free:
        store.keys.pop(key, None)
    results: list[GroupResult] = await enqueue(driver, groups, now)
    return results


@mutant((KeyTable, "has_ended"), by="test_I2_a_key_lives_until_its_job_has_ended[scheduled]")
def key_dies_before_its_job(has_ended: Any, keys: KeyTable, owner: str) -> bool:
    """A job that is delayed for longer than the ttl of its key is enqueued a second time."""
    return True


@mutant((KeyTable, "has_ended"), by="test_I2_the_key_of_a_flow_lives_until_its_last_job_has_ended")
def key_dies_before_its_flow(has_ended: Any, keys: KeyTable, owner: str) -> Any:
    """A flow that takes longer than the ttl of its key is enqueued a second time."""
    return owner not in keys.jobs or has_ended(keys, owner)


@mutant((KeyTable, "has_ended"), by="test_I2_with_the_end_of_its_job_a_key_past_its_ttl_is_free[ack]")
def key_never_dies(has_ended: Any, keys: KeyTable, owner: str) -> bool:
    """A key lives as long as its record, whatever its ttl."""
    return False


@mutant((KeyTable, "living"), by="test_I2_the_key_of_an_ended_job_is_alive_before_its_expiry_and_free_at_it[ack]")
def key_alive_at_its_expiry(living: Any, keys: KeyTable, key: str, now: datetime) -> Known:
    """A key still stands at the very moment of its end."""
    known = keys.get(key)
    return known if known is not None and (known.expires_at is None or known.expires_at >= now) else None


@mutant((KeyTable, "living"), by="test_I2_a_key_without_end_still_counts_after_years[done]")
def key_without_end_lasts_a_day(living: Any, keys: KeyTable, key: str, now: datetime) -> Known:
    """A key that should live as long as its job is forgotten after a day."""
    known = keys.get(key)
    owner = None if known is None else keys.jobs.get(known.owner)
    if known is not None and known.expires_at is None and owner is not None and (now - owner.created_at).days:
        del keys[key]
    found: Known = living(keys, key, now)
    return found


@mutant((Store, "settle"), by="test_I2_the_key_survives_ack_dlq_and_retry[ack]")
def key_freed_on_ack(settle: Any, store: Store, to: Transition, now: datetime) -> Any:
    """A finished job no longer answers for its key."""
    verdict = settle(store, to, now)
    if verdict == "ok" and isinstance(to, Ack):
        store.keys.free(store.jobs[to.id])
    return verdict


@mutant((KeyTable, "free"), by="test_I2_entering_cancelled_frees_the_key[ready]")
def key_not_freed_on_cancel(free: Any, keys: KeyTable, job: JobRecord) -> None:
    """A cancelled job keeps its key."""
    if job.id not in keys.jobs or keys.jobs[job.id].state is not State.CANCELLED:
        free(keys, job)


@mutant((KeyTable, "owns"), by="test_I2_an_old_owner_cannot_free_the_key_of_a_new_one")
def key_freed_by_an_old_owner(owns: Any, keys: KeyTable, owner: str, key: str) -> bool:
    """A former owner of a key frees it although another job has it now."""
    return key in keys


@mutant((Store, "_key_of"), by="test_I2_the_scope_of_a_key_is_the_whole_harbor")
def key_per_queue(key_of: Any, store: Store, job: NewJob, now: datetime) -> Known:
    """Every queue has keys of its own."""
    known: Known = key_of(store, job, now)
    owner = None if known is None else store.jobs.get(known.owner)
    return known if owner is not None and owner.queue == job.queue else None


@mutant((KeyTable, "living"), by="test_I1_other_keys_and_no_keys_do_not_collide")
def keys_without_case(living: Any, keys: KeyTable, key: str, now: datetime) -> Known:
    """KeyTable that differ in case only are taken for one."""
    same = [known for known in keys.values() if known.key.lower() == key.lower() and known.alive(now, False)]
    return same[0] if same else None


@mutant((Store, "enqueue"), by="test_I3_the_same_key_for_something_else_is_flagged[payload]")
def other_payload_not_flagged(enqueue: Enqueue, store: Store, group: Group, now: datetime) -> GroupResult:
    """The same key with another payload goes unnoticed."""
    result = enqueue(store, group, now)
    return tuple(replace(each, same_payload=True) for each in result) if isinstance(result, tuple) else result


@mutant((Store, "_store"), by="test_I1_duplicates_inside_one_call_are_one_job[1]")
def duplicates_in_a_batch_stored(store_all: Any, store: Store, jobs: Sequence[NewJob], now: datetime) -> Any:
    """A batch is checked against the store and not against itself."""
    fresh = [job.idempotency_key for job in jobs if store._key_of(job, now) is None]
    stored: list[Enqueued] = []
    for job in jobs:
        if job.idempotency_key in fresh:
            store.keys.pop(job.idempotency_key or "", None)
        stored += store_all(store, [job], now)
    return tuple(stored)


@mutant((Store, "enqueue"), by="test_D1_a_known_group_key_stores_nothing_and_names_the_workflow")
def group_key_ignored(enqueue: Enqueue, store: Store, group: Group, now: datetime) -> GroupResult:
    """The second flow of a key is stored beside the first."""
    if group.key is not None:
        store.keys.pop(group.key, None)
    return enqueue(store, group, now)


@mutant((Store, "_key_of"), by="test_D1_a_known_key_wins_over_JobExists[job]")
def repeated_keyed_job_refused(key_of: Any, store: Store, job: NewJob, now: datetime) -> Known:
    """Repeating a keyed enqueue whose reply was lost gives JobExists."""
    known: Known = key_of(store, job, now)
    return None if known is not None and known.owner == job.id else known
