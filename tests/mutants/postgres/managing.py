"""Broken statements of PostgreSQL: what operators do, sweep and prune."""

from __future__ import annotations

from .statements import REGISTRY, SQL, broken

mutant = REGISTRY.mutant


@mutant((SQL, "step_remove_edges"), by="test_two_that_delete_never_wait_for_each_other")
def pg_edges_deleted_in_no_order(sql: str) -> str:
    """Two deletes wait for each other's edges."""
    return broken(sql, "ORDER BY child, position", "ORDER BY child DESC, position")


@mutant((SQL, "step_hold_parents"), by="test_a_replay_locks_the_parents_of_a_job_first")
def pg_parents_of_a_replay_not_locked(sql: str) -> str:
    """A replayed job misses the end of its parent."""
    return broken(sql, "ORDER BY seq FOR UPDATE", "ORDER BY seq")


@mutant((SQL, "prune"), by="test_X8_a_prune_is_limited")
def pg_prune_skips_equal_times(sql: str) -> str:
    """Of records with one time, those of the next page are passed over."""
    return broken(sql, "(ended.keep_until, ended.seq + 0) > ($2, $3)", "ended.keep_until > $2 AND $3::bigint >= 0")


@mutant((SQL, "step_keep"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def pg_keep_until_not_moved(sql: str) -> str:
    """Records of a workflow that stays are looked at again and again."""
    return broken(sql, "SET keep_until = held.until", "SET keep_until = ended.keep_until")


@mutant((SQL, "prune_delete"), by="test_X8_pruning_an_old_owner_leaves_the_key_of_a_new_one")
def pg_prune_frees_the_key_of_a_new_owner(sql: str) -> str:
    """Forgetting a former owner frees the key of the new one."""
    return broken(
        sql, "(held.key, held.owner) IN (SELECT idempotency_key, id FROM", "held.key IN (SELECT idempotency_key FROM"
    )


@mutant((SQL, "prune_delete"), by="test_a_record_that_got_a_dependant_is_not_pruned")
def pg_prune_overlooks_a_new_dependant(sql: str) -> str:
    """A parent is forgotten that got a dependant during the search."""
    return broken(sql, "AND NOT coalesce(needed.found, false)")


@mutant((SQL, "prune"), by="test_a_record_that_is_being_pruned_is_not_replayed")
def pg_prune_locks_nothing(sql: str) -> str:
    """A record is put back while it is being forgotten."""
    return broken(sql, " FOR UPDATE OF ended SKIP LOCKED")


@mutant((SQL, "step_below"), by="test_Q4_dependants_are_affected_as_by_any_failure")
def pg_step_does_not_see_open_edges(sql: str) -> str:
    """Dependants of a job that was dead-lettered by hand wait for ever."""
    return broken(sql, "WHERE edge.parent", "WHERE satisfied AND edge.parent")


@mutant((SQL, "step_below"), by="test_K3_a_parent_of_a_dead_child_is_deleted_after_it[fail]")
def pg_delete_takes_parents_of_the_dead(sql: str) -> str:
    """A parent can be deleted that a replay would need."""
    return broken(sql, "WHERE edge.parent", "WHERE NOT satisfied AND edge.parent")


@mutant((SQL, "step_above"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def pg_replayed_collector_runs_at_once(sql: str) -> str:
    """A replayed collector runs beside its parents."""
    return broken(sql, "WHERE edge.child", "WHERE NOT satisfied AND edge.child")


@mutant((SQL, "step_edge"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def pg_step_reopens_no_edge(sql: str) -> str:
    """A replayed collector waits for parents, and none of them releases it."""
    return broken(sql, "SET satisfied = found.satisfied", "SET satisfied = edge.satisfied OR found.satisfied")


@mutant((SQL, "step_put"), by="test_K4_hold_waits_for_a_replay[fail]")
def pg_replayed_parent_not_awaited(sql: str) -> str:
    """A replayed parent does not release its dependants."""
    return broken(sql, "(SELECT true FROM harbor.edge WHERE edge.parent = revived.id LIMIT 1) IS NOT NULL", "false")


@mutant((SQL, "step_put"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[dead_letter]")
def pg_step_forgets_the_reason(sql: str) -> str:
    """A job that was to be dead-lettered ends cancelled."""
    return broken(
        sql, " stop_reason = given.stop_reason", " stop_reason = nullif(given.stop_reason, given.stop_reason)"
    )


@mutant((SQL, "step_put"), by="test_Q4_dependants_are_affected_as_by_any_failure")
def pg_step_releases_no_dependant(sql: str) -> str:
    """A dependant that collects failures waits for a job that was cancelled."""
    return broken(sql, "state = given.state", "state = live.state")


@mutant((SQL, "step_put"), by="test_I2_entering_cancelled_frees_the_key[ready]")
def pg_cancelled_job_names_its_key(sql: str) -> str:
    """A cancelled job shows the key that it gave up."""
    return broken(
        sql,
        "idempotency_key = given.idempotency_key, key",
        "idempotency_key = coalesce(given.idempotency_key, job.idempotency_key), key",
    )


@mutant((SQL, "step_put"), by="test_Q2_the_payload_may_be_edited")
def pg_replay_keeps_the_payload(sql: str) -> str:
    """A replay ignores the edited payload."""
    return broken(sql, "coalesce(given.payload, job.payload)", "coalesce(job.payload, given.payload)")


@mutant((SQL, "step_put"), by="test_Q2_lineage_is_kept")
def pg_replay_ignores_its_time(sql: str) -> str:
    """A replayed job is due since its first enqueue."""
    return broken(sql, "original_id = given.original_id", "original_id = coalesce(job.original_id, job.original_id)")


@mutant((SQL, "step_hold_live"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[ready]")
def pg_step_does_not_see_kept(sql: str) -> str:
    """A cancelled kept job is forgotten."""
    return broken(sql, "live.priority, coalesce(job.kept, false)", "live.priority, false")


@mutant((SQL, "step_unfinished"), by="test_Q2_I2_an_expired_key_stays_with_an_owner_that_has_not_ended[job]")
def pg_replay_steals_the_key_of_a_job(sql: str) -> str:
    """A replay takes a key whose owner has not ended."""
    return broken(sql, "WHERE job.id = given.id", "WHERE job.id = given.id AND false")


@mutant((SQL, "step_unfinished"), by="test_Q2_I2_an_expired_key_stays_with_an_owner_that_has_not_ended[workflow]")
def pg_replay_steals_the_key_of_a_flow(sql: str) -> str:
    """A replay takes the key of a workflow that has not ended."""
    return broken(sql, "WHERE job.workflow_id = given.id", "WHERE job.workflow_id = given.id AND false")


@mutant((SQL, "step_keys"), by="test_Q2_a_key_meanwhile_taken_is_dropped_and_the_answer_says_so")
def pg_replay_does_not_see_the_other_owner(sql: str) -> str:
    """Two jobs own one key."""
    return broken(sql, "WHERE key", "WHERE false AND key")


@mutant((SQL, "key_put"), by="test_Q2_a_new_key_can_be_given")
def pg_replayed_job_has_no_key(sql: str) -> str:
    """A key that a replay takes stays without an owner."""
    return broken(sql, "owner = excluded.owner", "owner = keys.owner")


@mutant((SQL, "key_remove"), by="test_I2_the_key_of_a_workflow_can_be_freed")
def pg_step_frees_no_key(sql: str) -> str:
    """The key of a workflow cannot be freed."""
    return broken(sql, "WHERE key", "WHERE false AND key")


@mutant((SQL, "sweep_expired"), by="test_N1_an_expired_job_ends_cancelled")
def pg_sweep_overlooks_expired_jobs(sql: str) -> str:
    """A job that no worker may start stays in line."""
    return broken(sql, "live.expires_at <= $1 AND (", "live.expires_at <= $1::timestamptz - interval '100 years' AND (")


@mutant((SQL, "sweep_stopping"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[cancel]")
def pg_sweep_overlooks_stopped_jobs(sql: str) -> str:
    """A job whose worker died after a cancel request never ends."""
    return broken(sql, "live.stop_requested_at IS NOT NULL", "live.stop_requested_at IS NULL")


@mutant((SQL, "step_kept"), by="test_X8_members_of_an_unfinished_workflow_are_kept")
def pg_prune_breaks_up_workflows(sql: str) -> str:
    """Members are forgotten while others still run."""
    return broken(sql, "bool_and(ended.seq IS NOT NULL)", "true")


@mutant((SQL, "step_kept"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def pg_members_kept_by_their_own_time(sql: str) -> str:
    """The first results of a workflow are forgotten before its last."""
    return broken(sql, "max(ended.keep_until)", "min(ended.keep_until)")


@mutant((SQL, "step_owned"), by="test_I3_the_records_of_a_workflow_stay_while_its_key_lives")
def pg_workflow_goes_before_its_key(sql: str) -> str:
    """A key belongs to a workflow that is forgotten."""
    return broken(sql, "WHERE owner", "WHERE false AND owner")


@mutant((SQL, "step_members"), by="test_X8_a_cancelled_chain_is_pruned_at_once")
def pg_first_members_pruned(sql: str) -> str:
    """Of a large workflow the first members are forgotten first."""
    return broken(sql, "workflow_id DESC, seq DESC", "workflow_id, seq")


@mutant((SQL, "hold_free"), by="test_a_workflow_is_pruned_after_one_of_it_came_and_went")
def pg_members_not_locked(sql: str) -> str:
    """A member of a workflow is put back while the others are forgotten."""
    return broken(sql, " FOR UPDATE OF ended SKIP LOCKED")


@mutant((SQL, "hold_free"), by="test_a_prune_waits_for_no_other_transaction")
def pg_prune_waits_for_members(sql: str) -> str:
    """Two prunes wait for each other's workflows."""
    return broken(sql, " SKIP LOCKED")


@mutant((SQL, "step_put"), by="test_D11_rescheduling_moves_a_job_in_line")
def pg_reschedule_keeps_the_rank(sql: str) -> str:
    """A job that was given another priority keeps its place."""
    return broken(sql, "SET priority = given.priority, unmet", "SET priority = live.priority, unmet")


@mutant((SQL, "step_put"), by="test_Q3_replaying_a_cancelled_child_waits_for_its_parent")
def pg_replayed_child_runs_before_its_parent(sql: str) -> str:
    """A replayed job does not wait for its parents."""
    return broken(sql, "IS NOT NULL, version, unmet, attempts", "IS NOT NULL, version, 0, attempts")


@mutant((SQL, "step_hold_live"), by="test_a_stop_and_a_heartbeat_never_wait_for_each_other[cancel]")
def pg_step_locks_from_the_last(sql: str) -> str:
    """A cancel and a heartbeat wait for each other."""
    return broken(sql, "ORDER BY live.seq FOR", "ORDER BY live.seq DESC FOR")


@mutant((SQL, "step_hold_ended"), by="test_two_deletes_take_jobs_in_one_order")
def pg_deleted_in_no_order(sql: str) -> str:
    """Two deletes wait for each other's jobs."""
    return broken(sql, "ORDER BY ended.seq FOR", "ORDER BY ended.seq DESC FOR")


@mutant((SQL, "step_hold"), by="test_a_collector_that_is_cancelled_meanwhile_is_counted_off")
def pg_dependants_not_locked(sql: str) -> str:
    """A dependant that moves while its parent is dead-lettered waits for ever."""
    return broken(sql, "FOR UPDATE OF live")
