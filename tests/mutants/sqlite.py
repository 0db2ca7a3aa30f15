"""Broken SQLite drivers: statements with a condition left out."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.sqlite import dependants, enqueue, inspection, manage, overview, records, reserve, settle

from .mutant import MutantRegistry, instead

SQLITE = MutantRegistry("sqlite")
mutant = SQLITE.mutant


@mutant((settle, "ACK"), by="test_L5_a_late_settle_never_overwrites_a_newer_claim")
def sql_ack_without_token(sql: str) -> str:
    """An Ack is taken from anybody."""
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
    """Nobody remembers who put a job back."""
    return instead(sql, "settled_token = token", "settled_token = NULL")


@mutant((settle, "PUT_BACK"), by="test_D3_a_retry_is_not_handed_out_before_its_time")
def sql_retry_drops_its_place(sql: str) -> str:
    """A retry carries its delay, and stands in line as if it had none."""
    return instead(sql, "place = iif(stop_requested_at IS NULL, ?13, place)", "place = place")


@mutant((settle, "PUT_BACK"), by="test_T3_a_put_back_after_the_request_lands_in_cancelled[put_back]")
def sql_put_back_ignores_the_cancel_request(sql: str) -> str:
    """A cancelled job that is put back runs again."""
    return sql.replace("stop_requested_at IS NULL", "1")


@mutant((settle, "PUT_BACK"), by="test_Q4_a_put_back_after_the_request_is_dead")
def sql_put_back_ignores_the_dead_letter_request(sql: str) -> str:
    """A job that was to be dead-lettered ends cancelled, and frees its key."""
    return sql.replace("stop_reason", "NULL").replace("stop_fingerprint", "NULL")


@mutant((dependants, "WITHDRAW"), by="test_Q4_left_behind_after_the_request_it_is_dead")
def sql_sweep_ignores_the_dead_letter_request(sql: str) -> str:
    """A job that was to be dead-lettered and whose worker died ends cancelled."""
    return sql.replace("stop_reason", "NULL").replace("stop_fingerprint", "NULL")


@mutant((manage, "REQUEST_CANCEL"), by="test_T3_if_both_were_asked_for_cancelled_wins[put_back-dead_letter]")
def sql_cancel_after_a_dead_letter_ignored(sql: str) -> str:
    """Whoever asked first gets what he wants, also if somebody wants the job cancelled."""
    return instead(sql, "(stop_requested_at IS NULL OR stop_reason IS NOT NULL)", "stop_requested_at IS NULL")


@mutant((manage, "REQUEST_DEAD_LETTER"), by="test_T3_if_both_were_asked_for_cancelled_wins[put_back-cancel]")
def sql_dead_letter_after_a_cancel_counts(sql: str) -> str:
    """Whoever asked last gets what he wants."""
    return instead(sql, " AND stop_requested_at IS NULL")


@mutant((manage, "DEAD_LETTER"), by="test_Q4_a_kept_job_is_kept")
def sql_dead_letter_ignores_kept(sql: str) -> str:
    """A task that was to stay until it is deleted is forgotten after a while."""
    return instead(sql, "iif(kept, ?6, ?5)", "iif(?6, ?5, ?5)")


@mutant((dependants, "WITHDRAW"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[ready]")
def sql_withdraw_ignores_kept(sql: str) -> str:
    """A cancelled task is forgotten, and its key is free for another."""
    return sql.replace("kept", "0")


@mutant((settle, "CANCEL"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[cancel]")
def sql_cancel_ignores_kept(sql: str) -> str:
    """A task whose holder heard of the cancel is forgotten."""
    return sql.replace("kept", "0")


@mutant((settle, "PUT_BACK"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[put_back]")
def sql_put_back_ignores_kept(sql: str) -> str:
    """A task that is put back after a cancel is forgotten."""
    return sql.replace("kept", "0")


@mutant((settle, "PUT_BACK"), by="test_D8_repeating_a_settle_is_replayed[put_back]")
def sql_settled_kind_not_stored(sql: str) -> str:
    """Nobody remembers how a job was settled."""
    return instead(sql, "settled_kind = 'put_back'", "settled_kind = NULL")


@mutant((settle, "settle_verdict"), by="test_D8_another_kind_under_the_settled_token_is_refused[ack]")
def sql_settled_kind_not_compared(verdict: Any, job: Any, to: Any, now: Any) -> Any:
    """Whoever fails what is done is told that it has failed."""
    return "replayed" if job is not None and job.settled_token == to.token else verdict(job, to, now)


@mutant((settle, "DONE"), by="test_R1_plain_successes_of_one_claim_have_each_its_own_start")
def sql_start_not_stored(sql: str) -> str:
    """Nobody knows how long a short run took."""
    return instead(sql, "started_at = run_started(seq)", "started_at = started_at")


@mutant((settle, "FAIL"), by="test_R1_every_settle_leaves_the_trace_of_its_run[True-fail]")
def sql_failed_by_nobody(sql: str) -> str:
    """Of a dead job nobody knows who ran it."""
    return instead(sql, "token = NULL,", "token = NULL, worker = NULL,")


@mutant((inspection, "COUNTS"), by="test_T2_lapsed_jobs_are_counted_as_due[False]")
def sql_lapsed_not_counted(sql: str) -> str:
    """Jobs of a dead worker are counted as running for ever."""
    return sql.replace("lease_expires_at <= ?1", "0")


@mutant((inspection.QUERIES, "query"), by="test_T2_a_lapsed_lease_shows_as_lapsed")
def sql_lapsed_not_shown(sql: str) -> str:
    """Jobs of a dead worker are listed as running for ever."""
    return instead(sql, "lease_expires_at <= ?1", "0")


@mutant((reserve, "EXTEND"), by="test_D6_an_expired_lease_is_not_revived")
def sql_extend_without_expiry(sql: str) -> str:
    """An expired lease can be renewed."""
    return instead(sql, " AND lease_expires_at > ?3")


@mutant((reserve, "EXTEND"), by="test_D8_why_an_extension_is_refused[held, foreign token]")
def sql_extend_without_token(sql: str) -> str:
    """Anybody can renew anybody's lease."""
    return instead(sql, " AND token || seq || ' ' || id = ?2")


@mutant((reserve, "EXTEND"), by="test_D6_a_lease_never_shrinks")
def sql_extend_shrinks(sql: str) -> str:
    """A short renewal cuts a long lease."""
    return instead(sql, "max(lease_expires_at, ?4)", "?4")


@mutant((reserve, "PAUSED"), by="test_D3_never_from_a_paused_queue")
def sql_reserve_ignores_the_pause(sql: str) -> str:
    """A paused queue goes on."""
    return f"{sql} WHERE 0"


@mutant((reserve, "CLAIM"), by="test_D2_a_claim_moves_the_job_to_inflight_under_a_lease")
def sql_version_not_bumped(sql: str) -> str:
    """Claims are answered with the next version, and not counted."""
    return instead(sql, "version = version + 1", "version = version")


@mutant((reserve, "CLAIM"), by="test_D5_a_reclaim_is_stored")
def sql_crash_not_counted(sql: str) -> str:
    """A lapse is told and not stored."""
    return instead(sql, "crashes = crashes + (state = 'inflight')", "crashes = crashes")


@mutant((reserve, "LINE_UP"), by="test_D11_a_first_reclaim_goes_to_the_front")
def sql_reclaimed_job_never_in_front(sql: str) -> str:
    """A job whose worker died queues by its expiry the first time too."""
    return instead(sql, "iif(crashes = 0, ?2, lease_expires_at)", "iif(?2 = 0, 0, lease_expires_at)")


@mutant((reserve, "LAPSED"), (reserve, "LINE_UP"), by="test_D5_reserve_itself_reclaims_at_the_expiry")
def sql_no_reclaim(sql: str) -> str:
    """Nobody takes the jobs of a dead worker over."""
    return instead(sql, "WHERE state = 'inflight'", "WHERE state = 'nowhere'")


@mutant((reserve, "NEXT_PRIORITY"), by="test_D11_higher_priority_first[1]")
def sql_lowest_priority_first(sql: str) -> str:
    """The order of ranks is upside down."""
    return instead(sql, "max(priority)", "min(priority)")


@mutant((reserve, "_pick"), by="test_D11_earlier_due_first")
def sql_enqueue_order_before_due_time(pick: Any, db: Any, queue: str, now: int, limit: int, sql: str) -> Any:
    """Whoever was enqueued first goes first, whoever has been due longest."""
    return pick(db, queue, now, limit, instead(sql, "ORDER BY place, seq", "ORDER BY seq"))


@mutant((reserve, "_pick"), by="test_D11_an_expired_job_at_the_front_blocks_nobody")
def sql_reserve_ignores_expires_at(pick: Any, db: Any, queue: str, now: int, limit: int, sql: str) -> Any:
    """A job is handed out although its time is over."""
    return pick(db, queue, now, limit, instead(sql, " AND (expires_at IS NULL OR expires_at > ?1)"))


@mutant((manage, "EXPIRED"), by="test_N1_an_expired_job_ends_cancelled")
def sql_sweep_ignores_the_time(sql: str) -> str:
    """Whatever may expire is cancelled at once."""
    return instead(sql, " AND expires_at <= ?1")


@mutant((manage, "EXPIRED"), by="test_N1_a_running_job_may_finish_after_its_expiry")
def sql_sweep_ends_running_jobs(sql: str) -> str:
    """A job is cancelled while its handler runs."""
    return instead(sql, " AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)")


@mutant((enqueue, "LIVING_KEY"), by="test_I2_a_key_lives_until_its_job_has_ended[scheduled]")
def sql_key_freed_by_its_ttl_alone(sql: str) -> str:
    """A job that waits for longer than its ttl is enqueued a second time."""
    return instead(sql, "id = keys.owner AND completed_at IS NULL", "id = keys.owner AND 0")


@mutant((enqueue, "LIVING_KEY"), by="test_I2_the_key_of_a_flow_lives_until_its_last_job_has_ended")
def sql_key_of_a_flow_freed_by_its_ttl_alone(sql: str) -> str:
    """A flow that runs for longer than its ttl is enqueued a second time."""
    return instead(sql, "workflow_id = keys.owner AND keep_until IS NULL", "workflow_id = keys.owner AND 0")


@mutant((manage, "OWNS_KEY"), by="test_Q2_a_key_meanwhile_taken_is_dropped_and_the_answer_says_so")
def sql_replay_believes_in_its_key(sql: str) -> str:
    """Two jobs believe that they own one key."""
    return instead(sql, "owner = ?2", "?2 = ?2")


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


@mutant((manage, "NEEDED"), by="test_K3_needed_parents_can_be_neither_deleted_nor_pruned[ready]")
def sql_delete_takes_needed_parents(sql: str) -> str:
    """A parent can be deleted while a child needs it."""
    return instead(sql, "edge.parent = ?1 AND", "edge.parent = ?1 AND 0 AND")


@mutant((manage, "NEEDED"), by="test_K3_a_parent_of_a_dead_child_goes_after_it[fail]")
def sql_delete_takes_parents_of_the_dead(sql: str) -> str:
    """A parent can be deleted that a replay of its child would need."""
    return instead(sql, "job.state <> 'done'", "job.completed_at IS NULL")


@mutant((manage, "PRUNE_KEPT"), by="test_X8_members_of_an_unfinished_workflow_are_kept")
def sql_prune_breaks_workflows_up(sql: str) -> str:
    """Members of a flow are forgotten while others still run."""
    return instead(sql, "keep_until IS NULL)", "keep_until IS NULL AND 0)")


@mutant((manage, "PRUNE_KEPT"), by="test_X8_members_of_a_workflow_are_kept_as_long_as_its_last")
def sql_members_are_kept_by_their_own_end(sql: str) -> str:
    """The first results of a long workflow are gone before anybody could ask for all of them."""
    return instead(sql, "SELECT max(keep_until)", "SELECT min(keep_until)")


@mutant((manage, "PRUNE_KEPT"), by="test_I3_the_records_of_a_workflow_stay_while_its_key_lives")
def sql_workflow_goes_before_its_key(sql: str) -> str:
    """A key stands for a workflow that is forgotten."""
    return instead(sql, "SELECT max(expires_at)", "SELECT min(0)")


@mutant((manage, "PRUNE_MEMBERS"), by="test_X8_a_cancelled_chain_goes_at_once")
def sql_workflows_go_first_ones_first(sql: str) -> str:
    """Whoever is replayed while his workflow is being forgotten waits for somebody who is gone."""
    return instead(sql, "DESC", "")


@mutant((manage, "REOPEN"), by="test_Q3_a_collector_waits_for_parents_that_are_replayed_with_it[abz]")
def sql_replayed_collector_runs_at_once(sql: str) -> str:
    """After a replay the finalizer runs beside its members, and is told that they failed."""
    return instead(sql, "satisfied = 1", "satisfied = 1 AND 0")


@mutant((manage, "REOPEN"), by="test_Q3_a_collector_waits_for_a_parent_that_runs_again[fail]")
def sql_replayed_collector_waits_for_the_dead(sql: str) -> str:
    """After a replay the finalizer waits for members that stay dead."""
    return instead(sql, "AND job.completed_at IS NULL", "")


@mutant((manage, "FREE_OWNER"), by="test_I2_the_key_of_a_workflow_can_be_freed")
def sql_all_keys_are_freed(sql: str) -> str:
    """With the key of a workflow, those of others go."""
    return instead(sql, "owner = ?1", "?1 = ?1")


@mutant((manage, "REPLAY"), by="test_Q2_counters_go_back_to_zero_and_the_version_goes_on[fail]")
def sql_replay_keeps_attempts(sql: str) -> str:
    """A replayed job dies at its first failure."""
    return instead(sql, "attempts = 0", "attempts = attempts")


@mutant((manage, "FREE_KEY"), by="test_X8_pruning_an_old_owner_leaves_the_key_of_a_new_one")
def sql_key_freed_by_an_old_owner(sql: str) -> str:
    """Whoever had a key once frees it for whoever has it now."""
    return instead(sql, "owner = ?2", "?2 = ?2")


@mutant((inspection, "PARENTS"), by="test_K3_results_are_given_up_to_so_many_bytes_in_all[7]")
def sql_results_without_a_limit(sql: str) -> str:
    """A group of large results fills the memory of whoever asks."""
    return instead(sql, "<= ?2", "<= ?2 + 1000000000")


@mutant((inspection, "PARENTS"), by="test_K3_parents_come_in_the_order_given_with_their_results")
def sql_parents_by_id(sql: str) -> str:
    """A chord's results come in another order than asked for."""
    return instead(sql, "ORDER BY edge.position", "ORDER BY job.id")


@mutant((settle, "FAIL"), by="test_Q1_a_dead_job_keeps_its_fingerprint")
def sql_fingerprint_not_stored(sql: str) -> str:
    """Dead jobs cannot be told apart by what they died of."""
    return instead(sql, "fingerprint = ?13", "fingerprint = nullif(?13, ?13)")


@mutant((manage, "REPLAY"), by="test_Q1_only_the_dead_have_a_fingerprint")
def sql_replay_keeps_the_fingerprint(sql: str) -> str:
    """A job that is in line again is still found among the dead of its kind."""
    return instead(sql, ", fingerprint = NULL")


@mutant((overview, "WORKFLOWS"), by="test_K5_workflows_come_with_the_greatest_id_first")
def sql_workflows_in_the_order_of_ids(sql: str) -> str:
    """The latest workflow is the last one shown."""
    return instead(sql, "ORDER BY 1 DESC", "ORDER BY 1")


@mutant((overview, "DEAD_GROUPS"), by="test_Q1_the_last_death_is_by_its_time_not_by_its_age")
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
