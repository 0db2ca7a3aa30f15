"""Broken statements of PostgreSQL: what operators do, sweep and prune."""

from __future__ import annotations

from .statements import REGISTRY, SQL, broken

mutant = REGISTRY.mutant


@mutant((SQL, "cancel_request"), by="test_T3_if_both_were_asked_for_cancelled_wins[put_back-dead_letter]")
def pg_cancel_after_a_dead_letter_ignored(sql: str) -> str:
    """A cancel does not override a requested dead letter."""
    return broken(
        sql, "(live.stop_requested_at IS NULL OR live.stop_reason IS NOT NULL)", "live.stop_requested_at IS NULL"
    )


@mutant((SQL, "dead_letter_request"), by="test_T3_if_both_were_asked_for_cancelled_wins[put_back-cancel]")
def pg_dead_letter_after_a_cancel_counts(sql: str) -> str:
    """A dead letter overrides a requested cancel."""
    return broken(sql, "AND live.stop_requested_at IS NULL")


@mutant((SQL, "dead_letter"), by="test_Q4_a_kept_job_is_kept")
def pg_dead_letter_ignores_kept(sql: str) -> str:
    """A kept job that is dead-lettered is forgotten."""
    return broken(sql, "CASE WHEN job.kept THEN $6 ELSE given.until END", "least($6, given.until)")


@mutant((SQL, "delete_below"), by="test_K3_needed_parents_can_be_neither_deleted_nor_pruned[ready]")
def pg_delete_takes_needed_parents(sql: str) -> str:
    """A parent can be deleted while a dependant waits for it."""
    return broken(sql, "edge.satisfied, ended.state", "true, coalesce(ended.state, 'done')")


@mutant((SQL, "delete_below"), by="test_K3_a_parent_of_a_dead_child_is_deleted_after_it[fail]")
def pg_delete_takes_parents_of_the_dead(sql: str) -> str:
    """A parent can be deleted that a replay would need."""
    return broken(sql, "edge.satisfied, ended.state", "edge.satisfied, 'done'::text")


@mutant((SQL, "delete_edges"), by="test_two_that_delete_never_wait_for_each_other")
def pg_edges_deleted_in_no_order(sql: str) -> str:
    """Two deletes wait for each other's edges."""
    return broken(
        sql, "ORDER BY child, position FOR UPDATE OF edge", "ORDER BY child DESC, position FOR UPDATE OF edge"
    )


@mutant((SQL, "replay"), by="test_Q3_replaying_a_cancelled_child_waits_for_its_parent")
def pg_replayed_child_runs_before_its_parent(sql: str) -> str:
    """A replayed job does not wait for its parents."""
    return broken(sql, "CASE WHEN gone.unmet > 0 THEN 'waiting' ELSE 'ready' END", "'ready'")


@mutant((SQL, "replay"), by="test_K4_hold_waits_for_a_replay[fail]")
def pg_replayed_parent_not_awaited(sql: str) -> str:
    """A replayed parent does not release its dependants."""
    return broken(sql, "(SELECT true FROM harbor.edge WHERE edge.parent = gone.id LIMIT 1) IS NOT NULL", "false")


@mutant((SQL, "replay_reopen"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def pg_replayed_collector_runs_at_once(sql: str) -> str:
    """A replayed collector runs beside its parents."""
    return broken(sql, "AND edge.satisfied OFFSET 0", "AND edge.satisfied AND false OFFSET 0")


@mutant((SQL, "replay_reopen"), by="test_a_collector_waits_for_no_parent_that_is_just_ending[ack]")
def pg_reopened_parent_not_locked(sql: str) -> str:
    """A collector waits for a parent that is just ending."""
    return broken(sql, "ORDER BY seq FOR UPDATE", "ORDER BY seq")


@mutant((SQL, "replay_parents"), by="test_a_replay_locks_the_parents_of_a_job_first")
def pg_parents_of_a_replay_not_locked(sql: str) -> str:
    """A replayed job misses the end of its parent."""
    return broken(sql, "ORDER BY seq FOR UPDATE", "ORDER BY seq")


@mutant((SQL, "reschedule"), by="test_T1_the_table_of_moves[reschedule-inflight]")
def pg_reschedule_moves_held_jobs(sql: str) -> str:
    """A job that a worker holds can be rescheduled."""
    return broken(sql, "AND live.token IS NULL ")


@mutant((SQL, "reschedule"), by="test_T1_the_table_of_moves[reschedule-waiting]")
def pg_reschedule_moves_waiting_jobs(sql: str) -> str:
    """A waiting job can be rescheduled."""
    return broken(sql, "AND live.unmet = 0 ")


@mutant((SQL, "sweep_expired"), by="test_N1_an_expired_job_ends_cancelled")
def pg_sweep_ignores_the_time(sql: str) -> str:
    """Every job with an expiry is cancelled at once."""
    return broken(sql, "live.expires_at <= $1 AND (", "live.expires_at IS NOT NULL AND (")


@mutant((SQL, "sweep_expired"), by="test_N1_a_running_job_may_finish_after_its_expiry")
def pg_sweep_ends_running_jobs(sql: str) -> str:
    """An expired job is cancelled while its handler runs."""
    return broken(sql, "AND (live.lease_expires_at IS NULL OR live.lease_expires_at <= $1) ")


@mutant((SQL, "sweep_stopping"), by="test_Q4_left_behind_after_the_request_it_is_dead")
def pg_sweep_ends_held_jobs(sql: str) -> str:
    """A job that shall stop is taken away from its holder."""
    return broken(sql, "AND live.lease_expires_at <= $1 ", "AND $1::timestamptz IS NOT NULL ")


@mutant((SQL, "prune"), by="test_K3_needed_parents_can_be_neither_deleted_nor_pruned[ready]")
def pg_prune_takes_needed_parents(sql: str) -> str:
    """A parent is forgotten that a dependant needs."""
    return broken(sql, "AND NOT coalesce(needed.found, false)")


@mutant((SQL, "prune"), by="test_X8_a_prune_is_limited")
def pg_prune_skips_equal_times(sql: str) -> str:
    """Of records with one time, those of the next page are passed over."""
    return broken(sql, "(ended.keep_until, ended.seq) > ($2, $3)", "ended.keep_until > $2 AND $3::bigint >= 0")


@mutant((SQL, "prune_kept"), by="test_X8_members_of_an_unfinished_workflow_are_kept")
def pg_prune_breaks_up_workflows(sql: str) -> str:
    """Members are forgotten while others still run."""
    return broken(sql, "bool_or(ended.seq IS NULL)", "$3::timestamptz IS NULL")


@mutant((SQL, "prune_kept"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def pg_members_kept_by_their_own_time(sql: str) -> str:
    """The first results of a workflow are forgotten before its last."""
    return broken(sql, "max(ended.keep_until)", "min(ended.keep_until)")


@mutant((SQL, "prune_kept"), by="test_I3_the_records_of_a_workflow_stay_while_its_key_lives")
def pg_workflow_goes_before_its_key(sql: str) -> str:
    """A key belongs to a workflow that is forgotten."""
    return broken(sql, "SELECT max(expires_at)", "SELECT min(expires_at) - interval '100 years'")


@mutant((SQL, "prune_keep"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def pg_keep_until_not_moved(sql: str) -> str:
    """Records of a workflow that stays are looked at again and again."""
    return broken(sql, "SET keep_until = early.until", "SET keep_until = ended.keep_until")


@mutant((SQL, "prune_members"), by="test_members_of_a_workflow_come_with_dependants_first")
def pg_parents_pruned_before_children(sql: str) -> str:
    """A workflow is forgotten from its first member on."""
    return broken(sql, "ORDER BY given.id, member.seq DESC", "ORDER BY given.id, member.seq")


@mutant((SQL, "prune_members"), by="test_X8_a_cancelled_chain_is_pruned_at_once")
def pg_first_members_pruned(sql: str) -> str:
    """Of a large workflow the first members are forgotten first."""
    return broken(sql, "ORDER BY job.seq DESC LIMIT", "ORDER BY job.seq LIMIT")


@mutant((SQL, "prune_delete"), by="test_X8_pruning_an_old_owner_leaves_the_key_of_a_new_one")
def pg_prune_frees_the_key_of_a_new_owner(sql: str) -> str:
    """Forgetting a former owner frees the key of the new one."""
    return broken(sql, "AND keys.owner = gone.id ")


@mutant((SQL, "prune_delete"), by="test_a_record_that_was_kept_for_longer_meanwhile_stays")
def pg_prune_deletes_what_was_kept_meanwhile(sql: str) -> str:
    """A record is forgotten although its time was moved meanwhile."""
    return broken(sql, "AND ended.keep_until <= $2 ", "AND $2::timestamptz IS NOT NULL ")
