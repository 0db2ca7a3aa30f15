"""Broken SQLite drivers: statements with a condition left out."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.sqlite import (
    dependants,
    drafts,
    enqueue,
    inspection,
    manage,
    records,
    reserve,
    settle,
)

from .mutant import MutantRegistry, instead

SQLITE = MutantRegistry("sqlite")
mutant = SQLITE.mutant


@mutant((settle, "ACK"), by="test_L5_a_late_settle_never_overwrites_a_newer_claim")
def sql_ack_without_token(sql: str) -> str:
    """Any token can ack."""
    return instead(sql, " AND token || seq || ' ' || id = ?2")


@mutant((settle, "ACK"), by="test_D7_at_the_expiry_a_settle_is_refused[ack]")
def sql_ack_without_expiry(sql: str) -> str:
    """An Ack counts however late it comes."""
    return instead(sql, " AND lease_expires_at > ?3")


@mutant((settle, "FAIL"), by="test_D7_at_the_expiry_a_settle_is_refused[fail]")
def sql_fail_at_the_very_expiry(sql: str) -> str:
    """A lease still counts at the very moment of its end."""
    return instead(sql, "lease_expires_at > ?3", "lease_expires_at >= ?3")


@mutant((settle, "PUT_BACK"), by="test_D8_repeating_a_settle_is_replayed[put_back]")
def sql_settled_token_forgotten(sql: str) -> str:
    """The token of a put-back is not stored."""
    return instead(sql, "settled_token = token", "settled_token = NULL")


@mutant((settle, "PUT_BACK"), by="test_D3_a_retry_is_not_handed_out_before_its_time")
def sql_retry_drops_its_place(sql: str) -> str:
    """A retry carries its delay, and stands in line as if it had none."""
    return instead(sql, "place = iif(stop_requested_at IS NULL, ?13, place)", "place = place")


@mutant((settle, "PUT_BACK"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[cancel-put_back]")
def sql_put_back_ignores_the_cancel_request(sql: str) -> str:
    """A cancelled job that is put back runs again."""
    return sql.replace("stop_requested_at IS NULL", "1")


@mutant((settle, "PUT_BACK"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[dead_letter-put_back]")
def sql_put_back_ignores_the_dead_letter_request(sql: str) -> str:
    """A job that was to be dead-lettered ends cancelled, and frees its key."""
    return sql.replace("stop_reason", "NULL").replace("stop_fingerprint", "NULL")


@mutant((settle, "CANCEL"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[cancel]")
def sql_cancel_ignores_kept(sql: str) -> str:
    """A kept task that ends by a cancel request is pruned."""
    return sql.replace("kept", "0")


@mutant((settle, "PUT_BACK"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[put_back]")
def sql_put_back_ignores_kept(sql: str) -> str:
    """A task that is put back after a cancel is forgotten."""
    return sql.replace("kept", "0")


@mutant((settle, "PUT_BACK"), by="test_D8_repeating_a_settle_is_replayed[put_back]")
def sql_settled_kind_not_stored(sql: str) -> str:
    """The kind of the last settle is not stored."""
    return instead(sql, "settled_kind = 'put_back'", "settled_kind = NULL")


@mutant((settle, "settle_verdict"), by="test_D8_another_kind_under_the_settled_token_is_refused[ack]")
def sql_settled_kind_not_compared(verdict: Any, job: Any, to: Any, now: Any) -> Any:
    """A Fail of a done job is `replayed`."""
    return "replayed" if job is not None and job.settled_token == to.token else verdict(job, to, now)


@mutant((settle, "DONE_RANGE"), by="test_R1_plain_successes_of_one_claim_have_each_its_own_start[False]")
def sql_start_not_stored(sql: str) -> str:
    """The start of a short run is not stored."""
    return instead(sql, "started_at = ?5", "started_at = nullif(?5, ?5)")


@mutant((settle, "DONE"), by="test_R1_plain_successes_of_one_claim_keep_their_own_starts")
def sql_start_not_stored_beside_others(sql: str) -> str:
    """Nor of one that others were stored between."""
    return instead(sql, "started_at = ?5", "started_at = nullif(?5, ?5)")


@mutant((settle, "DONE_RANGE"), by="test_D7_plain_successes_of_one_claim_are_fenced_each[LeaseExpired-False]")
def sql_done_without_expiry(sql: str) -> str:
    """Of a whole claim, a lapsed lease is as good as any."""
    return instead(sql, " AND lease_expires_at > ?3")


@mutant((settle, "DONE_RANGE"), by="test_D7_plain_successes_of_one_claim_are_fenced_each[LeaseMismatch-False]")
def sql_done_without_token(sql: str) -> str:
    """A whole claim settles what another worker holds by now."""
    return instead(sql, " AND token = ?2")


@mutant((settle, "DONE"), by="test_D7_plain_successes_of_one_claim_are_fenced_each[LeaseExpired-True]")
def sql_done_beside_others_without_expiry(sql: str) -> str:
    """The same, with others stored between."""
    return instead(sql, " AND lease_expires_at > ?3")


@mutant((reserve, "span"), by="test_D2_with_ids_exactly_those_are_claimed")
def sql_gaps_claimed_too(span: Any, numbers: Any) -> Any:
    """Jobs between two that were claimed are claimed as well."""
    return min(numbers), max(numbers)


@mutant((settle, "FAIL"), by="test_R1_every_settle_leaves_the_trace_of_its_run[True-fail]")
def sql_failed_without_its_worker(sql: str) -> str:
    """A dead job does not show its last worker."""
    return instead(sql, "token = NULL,", "token = NULL, worker = NULL,")


@mutant((inspection, "COUNTS"), by="test_T2_lapsed_jobs_are_counted_as_due[False]")
def sql_lapsed_not_counted(sql: str) -> str:
    """Jobs of a dead worker are counted as running for ever."""
    return sql.replace("lease_expires_at <= ?1", "0")


@mutant((inspection.QUERIES, "query"), by="test_T2_a_lapsed_lease_shows_as_lapsed")
def sql_lapsed_not_shown(sql: str) -> str:
    """Jobs of a dead worker are listed as running for ever."""
    return instead(sql, "lease_expires_at <= ?12", "0")


@mutant((inspection.QUERIES, "query_held"), by="test_D13_query_chooses_what_the_filter_says[held by another worker]")
def sql_held_by_anyone(sql: str) -> str:
    """A supervisor finds the leases of living workers."""
    return instead(sql, "AND (?11 IS NULL OR worker GLOB ?11)")


@mutant((reserve, "EXTEND"), by="test_D6_an_expired_lease_is_not_revived")
def sql_extend_without_expiry(sql: str) -> str:
    """An expired lease can be renewed."""
    return instead(sql, " AND lease_expires_at > ?3")


@mutant((reserve, "EXTEND"), by="test_D8_why_an_extension_is_refused[held, foreign token]")
def sql_extend_without_token(sql: str) -> str:
    """Any token can renew any lease."""
    return instead(sql, " AND token || seq || ' ' || id = ?2")


@mutant((reserve, "EXTEND"), by="test_D6_a_lease_never_shrinks")
def sql_extend_shrinks(sql: str) -> str:
    """A short renewal cuts a long lease."""
    return instead(sql, "max(lease_expires_at, ?4)", "?4")


@mutant((reserve, "PAUSED"), by="test_D3_never_from_a_paused_queue")
def sql_reserve_ignores_the_pause(sql: str) -> str:
    """A paused queue goes on."""
    return f"{sql} WHERE 0"


@mutant((reserve, "CLAIM_RANGE"), by="test_D2_a_claim_moves_the_job_to_inflight_under_a_lease")
def sql_version_not_bumped(sql: str) -> str:
    """Claims are answered with the next version, and not counted."""
    return instead(sql, "version = version + 1", "version = version")


@mutant((reserve, "CLAIM_RANGE"), by="test_D5_a_reclaim_is_stored")
def sql_crash_not_counted(sql: str) -> str:
    """A lapse is returned and not stored."""
    return instead(sql, "crashes = crashes + (state = 'inflight')", "crashes = crashes")


@mutant((reserve, "LINE_UP"), by="test_D11_a_first_reclaim_goes_to_the_front[0]")
def sql_reclaimed_job_never_in_front(sql: str) -> str:
    """A job whose worker died queues by its expiry the first time too."""
    return instead(sql, "iif(crashes = 0, ?2, lease_expires_at)", "iif(?2 = 0, 0, lease_expires_at)")


@mutant((reserve, "LAPSED"), (reserve, "LINE_UP"), by="test_D5_reserve_itself_reclaims_at_the_expiry")
def sql_no_reclaim(sql: str) -> str:
    """Jobs of a dead worker are never reclaimed."""
    return instead(sql, "WHERE state = 'inflight'", "WHERE state = 'nowhere'")


@mutant((reserve, "NEXT_PRIORITY"), by="test_D11_higher_priority_first[1]")
def sql_lowest_priority_first(sql: str) -> str:
    """The order of ranks is upside down."""
    return instead(sql, "max(priority)", "min(priority)")


@mutant((reserve, "_pick"), by="test_D11_earlier_due_first")
def sql_enqueue_order_before_due_time(pick: Any, db: Any, queue: str, now: int, limit: int, sql: str) -> Any:
    """Jobs are ordered by enqueue, not by due time."""
    return pick(db, queue, now, limit, instead(sql, "ORDER BY place, seq", "ORDER BY seq"))


@mutant((reserve, "_pick"), by="test_D11_a_future_or_expired_job_of_high_priority_blocks_no_other[expired]")
def sql_reserve_ignores_expires_at(pick: Any, db: Any, queue: str, now: int, limit: int, sql: str) -> Any:
    """A job is handed out although its time is over."""
    return pick(db, queue, now, limit, instead(sql, " AND (expires_at IS NULL OR expires_at > ?1)"))


@mutant((enqueue, "LIVING_KEY"), by="test_I2_a_key_lives_until_its_job_has_ended[scheduled]")
def sql_key_freed_by_its_ttl_alone(sql: str) -> str:
    """A job that waits for longer than its ttl is enqueued a second time."""
    return instead(sql, "id = keys.owner AND completed_at IS NULL", "id = keys.owner AND 0")


@mutant((enqueue, "LIVING_KEY"), by="test_I2_the_key_of_a_flow_lives_until_its_last_job_has_ended")
def sql_key_of_a_flow_freed_by_its_ttl_alone(sql: str) -> str:
    """A flow that runs for longer than its ttl is enqueued a second time."""
    return instead(sql, "workflow_id = keys.owner AND keep_until IS NULL", "workflow_id = keys.owner AND 0")


@mutant((enqueue, "LIVING_KEY"), by="test_I2_the_key_of_an_ended_job_is_alive_before_its_expiry_and_free_at_it[ack]")
def sql_key_for_ever(sql: str) -> str:
    """A key never runs out."""
    return instead(sql, "expires_at > ?2", "?2 = ?2")


@mutant((enqueue, "UNDO"), by="test_D1_a_refused_group_leaves_its_neighbours_alone")
def sql_half_stored_group(sql: str) -> str:
    """A refused group leaves the members before the refused one behind."""
    return instead(sql, "seq > ?1", "seq > ?1 AND 0")


@mutant((dependants, "SATISFY_ALL"), by="test_K2_a_second_end_counts_only_where_the_first_did_not")
def sql_edge_satisfied_twice(sql: str) -> str:
    """A parent that was replayed counts a second time."""
    return instead(sql, "satisfied = 0 AND ")


@mutant((dependants, "DEPENDANTS"), by="test_K2_a_collected_parent_that_dies_again_counts_nothing")
def sql_edge_collected_twice(sql: str) -> str:
    """A parent that was replayed and failed again counts a second time."""
    return instead(sql, "satisfied = 0 AND ")


@mutant((dependants, "RELEASE"), by="test_K1_a_waiting_job_counts_its_unmet_dependencies")
def sql_child_released_by_its_first_parent(sql: str) -> str:
    """A join waits for one arm only."""
    return sql.replace("unmet = ?2 AND state", "unmet > 0 AND state")


@mutant((manage, "PRUNE_KEY"), by="test_X8_pruning_an_old_owner_leaves_the_key_of_a_new_one")
def sql_key_freed_by_an_old_owner(sql: str) -> str:
    """A former owner of a key frees it although another job has it now."""
    return instead(sql, "owner = ?2", "?2 = ?2")


@mutant((inspection, "PARENTS"), by="test_K3_results_are_given_up_to_so_many_bytes_in_all[7]")
def sql_results_without_a_limit(sql: str) -> str:
    """A group of large results fills the memory of the reader."""
    return instead(sql, "<= ?2", "<= ?2 + 1000000000")


@mutant((inspection, "PARENTS"), by="test_K3_parents_come_in_the_order_given_with_their_results")
def sql_parents_by_id(sql: str) -> str:
    """A chord's results come in another order than asked for."""
    return instead(sql, "ORDER BY edge.position", "ORDER BY job.id")


@mutant((settle, "FAIL"), by="test_Q1_a_dead_job_keeps_its_fingerprint")
def sql_fingerprint_not_stored(sql: str) -> str:
    """Dead jobs have no fingerprint."""
    return instead(sql, "fingerprint = ?13", "fingerprint = nullif(?13, ?13)")


@mutant((inspection, "WORKFLOWS"), by="test_K5_workflows_come_with_the_greatest_id_first")
def sql_workflows_in_the_order_of_ids(sql: str) -> str:
    """The latest workflow is the last one shown."""
    return instead(sql, "ORDER BY 1 DESC", "ORDER BY 1")


@mutant((inspection, "DEAD_GROUPS"), by="test_Q1_the_last_death_is_by_its_time_not_by_its_age")
def sql_last_death_is_the_youngest(sql: str) -> str:
    """A group shows the job that was enqueued last, whenever it died."""
    return instead(sql, "ORDER BY completed_at DESC, id DESC", "ORDER BY seq DESC")


@mutant((settle, "ADD"), by="test_D9_outcomes_of_every_kind_in_one_batch_add_up")
def sql_totals_do_not_add_up(sql: str) -> str:
    """A total shows the last settle only."""
    return instead(sql, "count = count + ?5", "count = ?5")


@mutant((records, "PUT"), by="test_N3_a_swap_creates_changes_and_removes")
def sql_swap_keeps_what_there_is(sql: str) -> str:
    """A schedule stays as it was first created."""
    return instead(sql, "OR REPLACE", "OR IGNORE")


@mutant((records, "REMOVE"), by="test_N3_only_one_of_many_swaps[remove]")
def sql_swap_removes_paused_ones_only(sql: str) -> str:
    """A schedule that is not paused cannot be removed."""
    return instead(sql, " = ?1", " = ?1 AND paused")


@mutant((manage, "EXPIRED"), by="test_N1_an_expired_job_ends_cancelled")
def sql_sweep_overlooks_expired_jobs(sql: str) -> str:
    """A job that no worker may start stays in line."""
    return instead(sql, " AND expires_at <= ?1", " AND expires_at < 0")


@mutant((manage, "STOPPING"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[cancel]")
def sql_sweep_overlooks_stopped_jobs(sql: str) -> str:
    """A job whose worker died after a cancel request never ends."""
    return instead(sql, "stop_requested_at IS NOT NULL", "stop_requested_at IS NULL")


# Steps of the core


@mutant((drafts, "PUT"), by="test_Q2_a_replay_may_be_scheduled")
def sql_step_keeps_its_place(sql: str) -> str:
    """A job that was moved in time is handed out in its old order."""
    return instead(sql, "place = iif(?9 = 'ready', ?1, place)", "place = place")


@mutant((drafts, "PUT"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[dead_letter]")
def sql_step_forgets_the_reason(sql: str) -> str:
    """A job that was to be dead-lettered ends cancelled."""
    return instead(sql, "stop_reason = ?11", "stop_reason = nullif(?11, ?11)")


@mutant((drafts, "PUT"), by="test_Q4_a_job_in_line_is_dead_at_once[ready]")
def sql_step_forgets_its_end(sql: str) -> str:
    """A dead job is kept for ever."""
    return instead(sql, "keep_until = ?5", "keep_until = ?5 + 1")


@mutant((drafts, "PUT"), by="test_I2_entering_cancelled_frees_the_key[ready]")
def sql_cancelled_job_names_its_key(sql: str) -> str:
    """A cancelled job shows the key that it gave up."""
    return instead(sql, "idempotency_key = ?10", "idempotency_key = coalesce(?10, idempotency_key)")


@mutant((drafts, "PUT"), by="test_Q2_counters_go_back_to_zero_and_the_version_goes_on[fail]")
def sql_replay_keeps_attempts(sql: str) -> str:
    """A replayed job dies at its first failure."""
    return instead(sql, "attempts = ?16", "attempts = max(attempts, ?16)")


@mutant((drafts, "PUT"), by="test_Q1_only_the_dead_have_a_fingerprint")
def sql_replay_keeps_the_fingerprint(sql: str) -> str:
    """A job in line is still found among the dead of its kind."""
    return instead(sql, " fingerprint = ?14", " fingerprint = coalesce(?14, fingerprint)")


@mutant((drafts, "PUT"), by="test_Q2_fields_of_the_end_are_cleared[fail]")
def sql_replay_keeps_the_progress(sql: str) -> str:
    """A replayed job shows the progress of its last run."""
    return instead(sql, "?4 IS NULL AND completed_at IS NOT NULL", "?4 IS NULL AND 0")


@mutant((drafts, "PUT"), by="test_Q2_the_payload_may_be_edited")
def sql_replay_keeps_the_payload(sql: str) -> str:
    """A replay ignores the edited payload."""
    return instead(sql, "coalesce(?22, payload)", "coalesce(payload, ?22)")


@mutant((drafts, "JOBS"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[ready]")
def sql_step_does_not_see_kept(sql: str) -> str:
    """A cancelled task is forgotten, and its key is free for another."""
    return instead(sql, "priority, kept FROM", "priority, 0 FROM")


@mutant((drafts, "JOBS"), by="test_X8_members_of_an_unfinished_workflow_are_kept")
def sql_step_does_not_see_the_workflow(sql: str) -> str:
    """Members of a workflow are pruned while others still run."""
    return instead(sql, "original_id, workflow_id", "original_id, NULL")


@mutant((drafts, "ABOVE"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def sql_replayed_collector_runs_at_once(sql: str) -> str:
    """After a replay the finalizer runs beside its members and receives their failures."""
    return instead(sql, "FROM edge WHERE", "FROM edge WHERE satisfied = 0 AND")


@mutant((drafts, "BELOW"), by="test_Q4_dependants_are_affected_as_by_any_failure")
def sql_step_does_not_see_open_edges(sql: str) -> str:
    """Dependants of a job that was dead-lettered by hand wait for ever."""
    return instead(sql, "FROM edge WHERE", "FROM edge WHERE satisfied = 1 AND")


@mutant((drafts, "BELOW"), by="test_K3_a_parent_of_a_dead_child_is_deleted_after_it[fail]")
def sql_delete_takes_parents_of_the_dead(sql: str) -> str:
    """A parent can be deleted that a replay of its child would need."""
    return instead(sql, "FROM edge WHERE", "FROM edge WHERE satisfied = 0 AND")


@mutant((drafts, "PUT_EDGE"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def sql_step_reopens_no_edge(sql: str) -> str:
    """A replayed finalizer waits for parents, and none of them releases it."""
    return instead(sql, "satisfied = ?3", "satisfied = max(satisfied, ?3)")


@mutant((drafts, "UNFINISHED"), by="test_Q2_I2_an_expired_key_stays_with_an_owner_that_has_not_ended[job]")
def sql_replay_steals_the_key_of_a_job(sql: str) -> str:
    """A replay takes a key whose owner has not ended."""
    return instead(sql, "completed_at IS NULL", "completed_at IS NOT NULL")


@mutant((drafts, "UNFINISHED"), by="test_Q2_I2_an_expired_key_stays_with_an_owner_that_has_not_ended[workflow]")
def sql_replay_steals_the_key_of_a_flow(sql: str) -> str:
    """A replay takes the key of a workflow that has not ended."""
    return instead(sql, "workflow_id = value AND keep_until IS NULL", "workflow_id = value AND 0")


@mutant((drafts, "KEYS"), by="test_Q2_a_key_meanwhile_taken_is_dropped_and_the_answer_says_so")
def sql_replay_does_not_see_the_other_owner(sql: str) -> str:
    """Two jobs believe that they own one key."""
    return instead(sql, "FROM keys WHERE", "FROM keys WHERE 0 AND")


@mutant((drafts, "KEPT"), by="test_X8_members_of_an_unfinished_workflow_are_kept")
def sql_prune_breaks_workflows_up(sql: str) -> str:
    """Members of a flow are forgotten while others still run."""
    return instead(sql, "WHEN EXISTS (SELECT 1 FROM job WHERE workflow_id = ?1 AND keep_until IS NULL)", "WHEN 0")


@mutant((drafts, "KEPT"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def sql_members_are_kept_by_their_own_end(sql: str) -> str:
    """The first results of a long workflow are gone before the whole result can be read."""
    return instead(sql, "max(keep_until)", "min(keep_until)")


@mutant((drafts, "OWNED"), by="test_I3_the_records_of_a_workflow_stay_while_its_key_lives")
def sql_workflow_goes_before_its_key(sql: str) -> str:
    """A key refers to a workflow that has been pruned."""
    return instead(sql, "FROM keys WHERE", "FROM keys WHERE 0 AND")


@mutant((drafts, "MEMBERS"), by="test_X8_a_cancelled_chain_is_pruned_at_once")
def sql_workflows_go_first_ones_first(sql: str) -> str:
    """A member that is replayed during the prune waits for a parent that is gone."""
    return instead(sql, " DESC", "")


@mutant((drafts, "KEEP"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def sql_prune_looks_again_at_once(sql: str) -> str:
    """A workflow that has to stay is looked at by every prune."""
    return instead(sql, "keep_until < ?2", "keep_until > ?2")


@mutant((drafts, "REMOVE_KEY"), by="test_I2_the_key_of_a_workflow_can_be_freed")
def sql_step_frees_no_key(sql: str) -> str:
    """The key of a workflow cannot be freed."""
    return instead(sql, "key = ?1", "key = ?1 AND 0")
