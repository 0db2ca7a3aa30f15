"""Broken statements of PostgreSQL: enqueues, wake-ups and keys."""

from __future__ import annotations

from .statements import REGISTRY, SQL, broken

mutant = REGISTRY.mutant


@mutant((SQL, "enqueue"), by="test_R3_a_microsecond_decides_whether_a_job_is_due")
def pg_enqueue_ignores_run_at(sql: str) -> str:
    """A future job is in line at once."""
    return broken(sql, "coalesce(run_at, $17)", "$17")


@mutant((SQL, "enqueue_one"), by="test_an_enqueue_notifies_with_its_commit[one]")
def pg_enqueue_one_not_notified(sql: str) -> str:
    """Workers of other processes are not woken by a job."""
    return broken(sql, "pg_notify($9, '')", "pg_notify('other ' || $9, '')")


@mutant((SQL, "enqueue"), by="test_an_enqueue_notifies_with_its_commit[several]")
def pg_enqueue_not_notified(sql: str) -> str:
    """Workers of other processes are not woken by several jobs."""
    return broken(sql, "pg_notify($18, '')", "pg_notify('other ' || $18, '')")


@mutant((SQL, "enqueue_keyed"), by="test_an_enqueue_notifies_with_its_commit[keyed]")
def pg_enqueue_keyed_not_notified(sql: str) -> str:
    """Workers of other processes are not woken by a job with a key."""
    return broken(sql, "pg_notify($18, '')", "pg_notify('other ' || $18, '')")


@mutant((SQL, "notify"), by="test_an_enqueue_notifies_with_its_commit[a group]")
def pg_group_not_notified(sql: str) -> str:
    """Workers of other processes are not woken by a group."""
    return broken(sql, "pg_notify($1, '')", "pg_notify('other ' || $1, '')")


@mutant((SQL, "enqueue_keyed"), by="test_I2_a_key_lives_until_its_job_has_ended[ready]")
def pg_key_of_a_living_job_taken_over(sql: str) -> str:
    """A job that waits longer than its key lives is enqueued a second time."""
    return broken(sql, "AND NOT ( (SELECT live.seq", "AND NOT ( false AND (SELECT live.seq")


@mutant((SQL, "key_living"), by="test_I2_the_key_of_a_flow_lives_until_its_last_job_has_ended")
def pg_key_of_a_running_flow_free(sql: str) -> str:
    """A flow that runs longer than its key lives is enqueued a second time."""
    return broken(sql, "IS NOT NULL OR (SELECT job.seq", "IS NOT NULL OR false AND (SELECT job.seq")


@mutant((SQL, "enqueue_keyed"), by="test_a_key_past_its_time_is_held_while_its_owner_is_replayed[by_enqueue]")
def pg_key_taken_while_its_owner_is_replayed(sql: str) -> str:
    """A key is taken over from an owner that is being replayed."""
    return broken(sql, "keys.xmin = (", "EXISTS (")


@mutant((SQL, "key_take"), by="test_a_key_past_its_time_is_held_while_its_owner_is_replayed[by_group]")
def pg_key_of_a_group_taken_while_its_owner_is_replayed(sql: str) -> str:
    """A group takes a key over from an owner that is being replayed."""
    return broken(sql, "keys.xmin = (", "EXISTS (")


@mutant((SQL, "key_living"), by="test_I2_the_key_of_an_ended_job_is_alive_before_its_expiry_and_free_at_it[ack]")
def pg_key_for_ever(sql: str) -> str:
    """A key never expires."""
    return broken(sql, "expires_at > $2", "$2::timestamptz IS NOT NULL")


@mutant((SQL, "key_hold"), by="test_a_replay_takes_keys_in_their_order")
def pg_keys_held_in_no_order(sql: str) -> str:
    """Two replays wait for each other's keys."""
    return broken(sql, "ORDER BY key", "ORDER BY key DESC")


@mutant((SQL, "key_leave"), by="test_a_replay_leaves_no_key_that_it_does_not_take")
def pg_placeholder_left(sql: str) -> str:
    """A key that no job took stays taken."""
    return broken(sql, "AND owner = ''", "AND owner = '?'")


@mutant((SQL, "key_free"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[cancel]")
def pg_kept_job_gives_up_its_key(sql: str) -> str:
    """A kept job whose run ends cancelled loses its key."""
    return broken(sql, "AND kept IS NULL ")


@mutant((SQL, "key_free"), by="test_I2_entering_cancelled_frees_the_key[cancel]")
def pg_key_outlives_a_cancelled_run(sql: str) -> str:
    """A job whose run ends cancelled keeps its key."""
    return broken(sql, "(held.key, held.owner) IN", "(held.key, NULL) IN")


@mutant((SQL, "step_members"), by="test_X8_the_key_of_a_workflow_is_freed_with_its_last_record")
def pg_workflow_key_freed_early(sql: str) -> str:
    """The key of a workflow goes with its first record."""
    return broken(sql, "DESC LIMIT $2", "DESC LIMIT least($2, 0)")


@mutant((SQL, "step_owned"), by="test_the_key_of_a_workflow_goes_with_the_last_of_two_deletes")
def pg_workflow_key_not_locked(sql: str) -> str:
    """Of two that remove a record each, both leave the key behind."""
    return broken(sql, "FOR UPDATE")


@mutant((SQL, "key_hold"), by="test_a_key_past_its_time_is_held_while_its_owner_is_replayed[by_enqueue]")
def pg_key_not_touched(sql: str) -> str:
    """A replayed owner leaves its key to a statement that saw it dead."""
    return broken(sql, "SET owner = keys.owner", "SET owner = keys.owner WHERE false")
