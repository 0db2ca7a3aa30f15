"""Broken statements of PostgreSQL: settles, and what an end does to dependants."""

from __future__ import annotations

from .statements import REGISTRY, SQL, broken

mutant = REGISTRY.mutant


@mutant((SQL, "settle_done"), by="test_D8_another_kind_is_refused_while_another_worker_holds_the_job")
def pg_done_without_token(sql: str) -> str:
    """A success is accepted from any worker."""
    return broken(sql, "AND live.token = coalesce(given.token, ($2::text[])[1]) ")


@mutant((SQL, "settle_done"), by="test_D8_a_refused_token_never_becomes_the_settled_one")
def pg_done_without_expiry(sql: str) -> str:
    """A success counts however late it comes."""
    return broken(sql, "AND live.lease_expires_at > $5 ")


@mutant((SQL, "settle_done"), by="test_D8_a_refused_token_never_becomes_the_settled_one")
def pg_done_at_the_very_expiry(sql: str) -> str:
    """A lease still counts at the moment it expires."""
    return broken(sql, "live.lease_expires_at > $5", "live.lease_expires_at >= $5")


@mutant((SQL, "settle_done"), by="test_K1_a_chain_runs_one_after_the_other")
def pg_awaited_job_settled_alone(sql: str) -> str:
    """A success is written without its dependants."""
    return broken(sql, "($6 OR NOT live.awaited)", "($6 OR true)")


@mutant((SQL, "settle_done"), by="test_X8_a_record_is_kept_until_its_time_and_then_forgotten[ack]")
def pg_keep_until_not_written(sql: str) -> str:
    """A record is not kept for its time."""
    return broken(sql, "due_at, $5, keep_until,", "due_at, $5, $5,")


@mutant((SQL, "settle_done"), by="test_R1_plain_successes_of_one_claim_have_each_its_own_start[False]")
def pg_start_not_written(sql: str) -> str:
    """The start of a short run is not stored."""
    return broken(sql, "claimed_at, began_at,", "claimed_at, started_at,")


@mutant((SQL, "settle_done"), by="test_D13_settles_at_once_lose_no_count")
def pg_successes_overwrite_their_total(sql: str) -> str:
    """A total of successes holds the last batch of each connection only."""
    return broken(sql, "tally.count + excluded.count", "excluded.count")


@mutant((SQL, "settle_done"), by="test_D9_a_start_before_its_time_has_waited_nothing")
def pg_waits_below_zero(sql: str) -> str:
    """A clock that is behind takes waits of others away."""
    return broken(sql, "FILTER (WHERE began_at > due_at)", "")


@mutant((SQL, "settle_ended"), by="test_D8_why_a_settle_is_refused[held, token of an earlier claim-fail]")
def pg_end_without_token(sql: str) -> str:
    """A failure is accepted from any worker."""
    return broken(sql, "AND live.token = given.token ")


@mutant((SQL, "settle_ended"), by="test_D7_at_the_expiry_a_settle_is_refused[fail]")
def pg_end_without_expiry(sql: str) -> str:
    """A failure counts however late it comes."""
    return broken(sql, "AND live.lease_expires_at > $16 ", "AND $16::timestamptz IS NOT NULL ")


@mutant((SQL, "settle_ended"), by="test_a_settle_that_a_heartbeat_overtakes_is_written[put back]")
def pg_overtaken_put_back_ends_the_job(sql: str) -> str:
    """A put-back that a heartbeat overtakes cancels its job."""
    return broken(sql, "AND (given.kind IS DISTINCT FROM 'put_back' OR live.stop_requested_at IS NOT NULL) ")


@mutant((SQL, "settle_ended"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[dead_letter-put_back]")
def pg_end_ignores_the_dead_letter_request(sql: str) -> str:
    """A job that was to be dead-lettered ends cancelled."""
    return broken(sql, "CASE WHEN stopped AND stop_reason IS NOT NULL THEN 'dlq' ELSE state END", "state")


@mutant((SQL, "settle_ended"), by="test_T3_a_kept_job_keeps_its_key_and_its_record_when_cancelled[cancel]")
def pg_end_ignores_kept(sql: str) -> str:
    """A kept job is forgotten after its cancel."""
    return broken(sql, "THEN $17", "THEN least($17, until)")


@mutant((SQL, "settle_put_back"), by="test_D8_why_a_settle_is_refused[held, token of an earlier claim-put_back]")
def pg_put_back_without_token(sql: str) -> str:
    """A put-back is accepted from any worker."""
    return broken(sql, "AND live.token = given.token ")


@mutant((SQL, "settle_put_back"), by="test_D7_at_the_expiry_a_settle_is_refused[put_back]")
def pg_put_back_without_expiry(sql: str) -> str:
    """A put-back counts however late it comes."""
    return broken(sql, "AND live.lease_expires_at > $11 ")


@mutant((SQL, "settle_put_back"), by="test_T3_Q4_a_put_back_after_the_request_ends_the_job[cancel-put_back]")
def pg_put_back_ignores_the_cancel_request(sql: str) -> str:
    """A cancelled job that is put back runs again."""
    return broken(sql, "AND live.stop_requested_at IS NULL ")


@mutant((SQL, "settle_put_back"), by="test_D3_a_retry_is_not_handed_out_before_its_time")
def pg_put_back_at_its_old_place(sql: str) -> str:
    """A retry does not wait for its time."""
    return broken(sql, "due_at = given.run_at", "due_at = live.due_at")


@mutant((SQL, "settle_put_back"), by="test_D8_repeating_a_settle_is_replayed[put_back]")
def pg_put_back_forgets_its_token(sql: str) -> str:
    """A repeated put-back is refused."""
    return broken(sql, "settled_token = live.token", "settled_token = NULL")


@mutant((SQL, "hold"), by="test_a_settle_and_a_heartbeat_never_wait_for_each_other[settle_parent]")
def pg_hold_from_the_last(sql: str) -> str:
    """Rows are locked from the last to the first, heartbeats lock them from the first on."""
    return broken(sql, "ORDER BY live.seq FOR", "ORDER BY live.seq DESC FOR")


@mutant((SQL, "step_hold_live"), by="test_a_dead_letter_by_hand_takes_nothing_away_from_a_worker")
def pg_hold_without_locks(sql: str) -> str:
    """A job is claimed while it is being dead-lettered."""
    return broken(sql, "FOR UPDATE OF live")


@mutant((SQL, "step_hold_ended"), by="test_two_replays_are_one")
def pg_replays_without_locks(sql: str) -> str:
    """Two replays of one job both count."""
    return broken(sql, "FOR UPDATE OF ended")


@mutant((SQL, "hold_ended"), by="test_a_parent_is_not_deleted_under_a_new_child[ack]")
def pg_hold_ended_without_locks(sql: str) -> str:
    """A parent is deleted while its new dependant is stored."""
    return broken(sql, "FOR UPDATE OF ended")


@mutant((SQL, "enqueue_awaited"), by="test_a_new_job_sees_the_end_of_a_parent_that_settles_meanwhile")
def pg_awaited_not_marked(sql: str) -> str:
    """A parent that ends meanwhile does not release its new dependant."""
    return broken(sql, "SET awaited = true", "SET awaited = live.awaited")


@mutant((SQL, "enqueue_awaited"), by="test_a_settle_and_a_heartbeat_never_wait_for_each_other[settle_new_child]")
def pg_awaited_marked_from_the_last(sql: str) -> str:
    """Parents are locked from the last to the first."""
    return broken(sql, "ORDER BY live.seq FOR", "ORDER BY live.seq DESC FOR")


@mutant((SQL, "enqueue_group"), by="test_K1_a_chain_runs_one_after_the_other")
def pg_group_not_awaited(sql: str) -> str:
    """The parents of a new group do not release their dependants."""
    return broken(sql, "SELECT seq, priority, $19, queue", "SELECT seq, priority, $19 AND false, queue")


@mutant((SQL, "enqueue_line"), by="test_a_copied_group_releases_its_dependants")
def pg_copied_group_not_awaited(sql: str) -> str:
    """The members of a large group do not release their dependants."""
    return broken(sql, "SELECT seq, priority, $3, queue", "SELECT seq, priority, $3 AND false, queue")


@mutant((SQL, "dependants"), by="test_K2_a_collected_parent_that_dies_again_counts_nothing")
def pg_edge_counted_twice(sql: str) -> str:
    """A collected parent that fails again counts a second time."""
    return broken(sql, "AND NOT satisfied ")


@mutant((SQL, "dependants_satisfy"), by="test_K2_a_second_end_counts_only_where_the_first_did_not")
def pg_edge_not_satisfied(sql: str) -> str:
    """A parent that ends a second time counts a second time."""
    return broken(sql, "SET satisfied = true", "SET satisfied = false")


@mutant((SQL, "dependants_satisfy"), by="test_K1_a_waiting_job_counts_its_unmet_dependencies")
def pg_all_edges_of_a_child_satisfied(sql: str) -> str:
    """One parent satisfies the edges to the others."""
    return broken(sql, "AND edge.position = given.position")


@mutant((SQL, "dependants_release"), by="test_K1_a_waiting_job_counts_its_unmet_dependencies")
def pg_released_by_the_first_parent(sql: str) -> str:
    """A join waits for one parent only."""
    return broken(sql, "state = CASE WHEN unmet = given.met AND", "state = CASE WHEN unmet > 0 AND")


@mutant((SQL, "dependants_release"), by="test_K2_a_released_job_is_due_now_or_at_its_own_time")
def pg_released_at_its_old_time(sql: str) -> str:
    """A released job is due since it was enqueued."""
    return broken(sql, "THEN greatest($3, coalesce(live.run_at, $3))", "THEN least($3, due_at)")


@mutant((SQL, "dependants_release_ended"), by="test_K2_an_edge_is_met_while_the_child_is_cancelled")
def pg_ended_child_not_released(sql: str) -> str:
    """A parent that ends does not count for a cancelled child."""
    return broken(sql, "SET unmet = unmet - given.met", "SET unmet = unmet")
