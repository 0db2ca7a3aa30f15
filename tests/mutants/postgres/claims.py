"""Broken statements of PostgreSQL: claims, bookmarks and leases."""

from __future__ import annotations

from .statements import REGISTRY, SQL, broken

mutant = REGISTRY.mutant


@mutant((SQL, "reserve"), by="test_a_claim_passes_over_what_another_transaction_holds[ready]")
def pg_ready_job_locked_by_another_is_waited_for(sql: str) -> str:
    """A claim waits for another transaction that holds a ready job."""
    return broken(
        sql, "LIMIT $5 FOR UPDATE SKIP LOCKED ) AS found WHERE rank", "LIMIT $5 FOR UPDATE ) AS found WHERE rank"
    )


@mutant((SQL, "reserve"), by="test_a_claim_passes_over_what_another_transaction_holds[lapsed]")
def pg_lapsed_job_locked_by_another_is_waited_for(sql: str) -> str:
    """A claim waits for another transaction that holds a lapsed job."""
    return broken(
        sql, "live.seq LIMIT $5 FOR UPDATE SKIP LOCKED ) AS found ),", "live.seq LIMIT $5 FOR UPDATE ) AS found ),"
    )


@mutant((SQL, "reserve_by_id"), by="test_a_claim_passes_over_what_another_transaction_holds[ready by id]")
def pg_claim_by_id_waits_for_another(sql: str) -> str:
    """A claim by id waits for another transaction."""
    return broken(sql, "FOR UPDATE SKIP LOCKED", "FOR UPDATE")


@mutant((SQL, "reserve_on"), by="test_a_claim_passes_over_what_another_transaction_holds[behind a bookmark]")
def pg_claim_behind_a_bookmark_waits_for_another(sql: str) -> str:
    """A claim behind a bookmark waits for another transaction."""
    return broken(sql, "FOR UPDATE SKIP LOCKED", "FOR UPDATE")


@mutant((SQL, "reserve"), by="test_a_claim_passes_over_what_another_transaction_holds[ready]")
def pg_claim_without_row_locks(sql: str) -> str:
    """Two transactions claim one job."""
    return broken(sql, "LIMIT $5 FOR UPDATE SKIP LOCKED ) AS found WHERE rank", "LIMIT $5 ) AS found WHERE rank")


@mutant((SQL, "reserve"), by="test_D3_never_an_expired_job")
def pg_reserve_ignores_expires_at(sql: str) -> str:
    """An expired job is handed out."""
    return broken(
        sql, "AND (live.expires_at IS NULL OR live.expires_at > $1) ORDER BY live.due_at", "ORDER BY live.due_at"
    )


@mutant((SQL, "reserve"), by="test_D3_never_a_job_that_is_not_due")
def pg_reserve_ignores_due_at(sql: str) -> str:
    """A future job is handed out at once."""
    return broken(sql, "live.priority = rank.priority AND live.due_at <= $1", "live.priority = rank.priority")


@mutant((SQL, "reserve"), by="test_D3_never_a_job_under_a_valid_lease")
def pg_reserve_takes_live_leases(sql: str) -> str:
    """A job is taken away from a worker that holds it."""
    return broken(sql, "AND lease_expires_at <= $1 AND stop", "AND stop")


@mutant((SQL, "reserve"), by="test_T3_Q4_left_behind_after_the_request_the_job_ends[cancel]")
def pg_reserve_takes_jobs_that_shall_stop(sql: str) -> str:
    """A job whose holder died after a cancel runs again."""
    return broken(sql, "AND stop_requested_at IS NULL ")


@mutant((SQL, "reserve"), by="test_D11_higher_priority_first[1]")
def pg_reserve_by_number(sql: str) -> str:
    """Jobs are handed out by number, not by due time."""
    return broken(sql, "ORDER BY live.due_at, live.seq LIMIT $5", "ORDER BY live.seq LIMIT $5")


@mutant((SQL, "reserve"), by="test_D11_higher_priority_first[1]")
def pg_reserve_ignores_priority(sql: str) -> str:
    """All priorities are one."""
    return broken(sql, "ORDER BY priority DESC, due, seq", "ORDER BY due, seq")


@mutant((SQL, "reserve"), by="test_D11_order_holds_within_each_of_several_queues")
def pg_reserve_skips_priorities(sql: str) -> str:
    """Of the priorities only the highest is looked at."""
    return broken(sql, "live.priority < rank.priority ORDER", "live.priority < -32767 ORDER")


@mutant((SQL, "reserve"), by="test_D11_a_first_reclaim_goes_to_the_front[0]")
def pg_first_reclaim_not_in_front(sql: str) -> str:
    """A job whose worker died queues up by its expiry the first time too."""
    return broken(sql, "CASE WHEN crashes = 0 THEN '-infinity' ELSE lease_expires_at END", "lease_expires_at")


@mutant((SQL, "reserve"), by="test_D3_never_from_a_paused_queue")
def pg_reserve_ignores_the_pause(sql: str) -> str:
    """A paused queue goes on."""
    return broken(sql, "WHERE queue NOT IN (SELECT queue FROM harbor.paused)")


@mutant((SQL, "reserve"), by="test_D11_a_queue_named_more_often_has_more_shares")
def pg_reserve_ignores_shares(sql: str) -> str:
    """A queue that is named twice has no larger share."""
    return broken(sql, "ordered.place > open.share, ordered.place", "ordered.place")


@mutant((SQL, "reserve_on"), by="test_what_gets_in_behind_a_bookmark_is_seen_in_time[a_late_commit]")
def pg_bookmark_ignored(sql: str) -> str:
    """A claim behind a bookmark starts at the front."""
    return broken(sql, "AND (live.due_at, live.seq) > (line.due_at, line.seq) ")


@mutant((SQL, "reserve_on"), by="test_a_claim_behind_a_bookmark_hands_out_nothing_else[not due]")
def pg_bookmark_hands_out_future_jobs(sql: str) -> str:
    """Behind a bookmark a future job is handed out."""
    return broken(sql, "AND live.due_at <= $1 ")


@mutant((SQL, "reserve_on"), by="test_a_claim_behind_a_bookmark_hands_out_nothing_else[expired]")
def pg_bookmark_hands_out_expired_jobs(sql: str) -> str:
    """Behind a bookmark an expired job is handed out."""
    return broken(sql, "AND (live.expires_at IS NULL OR live.expires_at > $1) ")


@mutant((SQL, "reserve_on"), by="test_a_claim_behind_a_bookmark_hands_out_nothing_else[paused]")
def pg_bookmark_ignores_the_pause(sql: str) -> str:
    """Behind a bookmark a paused queue goes on."""
    return broken(sql, "WHERE line.queue NOT IN (SELECT queue FROM harbor.paused)")


@mutant((SQL, "reserve_on"), by="test_a_claim_behind_a_bookmark_takes_the_first_by_due_time")
def pg_bookmark_by_number(sql: str) -> str:
    """Behind a bookmark jobs are handed out by number."""
    return broken(sql, "ORDER BY live.due_at, live.seq", "ORDER BY live.seq")


@mutant((SQL, "reserve_on"), by="test_a_claim_behind_a_bookmark_hands_out_nothing_else[another priority]")
def pg_bookmark_crosses_priorities(sql: str) -> str:
    """A bookmark of one priority hands out jobs of others."""
    return broken(sql, "AND live.priority = line.priority ")


@mutant((SQL, "reserve_by_id"), by="test_T1_the_table_of_moves[reserve by id-inflight]")
def pg_ids_open_live_leases(sql: str) -> str:
    """A claim by id takes a job away from its holder."""
    return broken(sql, "live.state = 'inflight' AND live.lease_expires_at <= $1", "live.state = 'inflight'")


@mutant((SQL, "reserve_by_id"), by="test_D3_never_from_a_paused_queue")
def pg_ids_open_paused_queues(sql: str) -> str:
    """A claim by id ignores a pause."""
    return broken(sql, "AND live.queue NOT IN (SELECT queue FROM harbor.paused)")


@mutant(
    (SQL, "reserve"),
    (SQL, "reserve_on"),
    (SQL, "reserve_by_id"),
    by="test_D5_a_dead_job_replayed_is_claimed_with_the_next_version",
)
def pg_version_not_bumped(sql: str) -> str:
    """Claims share one version."""
    return broken(sql, "version = live.version + 1", "version = live.version")


@mutant(
    (SQL, "reserve"),
    (SQL, "reserve_on"),
    (SQL, "reserve_by_id"),
    by="test_D5_a_reclaim_has_a_new_token_the_next_version_and_one_more_crash",
)
def pg_crash_not_counted(sql: str) -> str:
    """A lapsed lease is not counted as a crash."""
    return broken(sql, "live.crashes + (live.state = 'inflight')::integer", "live.crashes")


@mutant((SQL, "reserve"), (SQL, "reserve_on"), (SQL, "reserve_by_id"), by="test_R1_the_next_claim_begins_a_new_trace")
def pg_start_of_the_last_run_kept(sql: str) -> str:
    """A job that is claimed again looks as if it had started."""
    return broken(sql, "started_at = NULL, ")


@mutant((SQL, "next_due"), by="test_D13_next_due_leaves_paused_queues_out")
def pg_next_due_ignores_the_pause(sql: str) -> str:
    """A worker wakes up for a paused queue."""
    return broken(sql, "WHERE queue NOT IN (SELECT queue FROM harbor.paused)")


@mutant((SQL, "next_due"), by="test_D13_next_due_sees_leases_run_out")
def pg_next_due_ignores_leases(sql: str) -> str:
    """No worker wakes up when a lease expires."""
    return broken(sql, "WHERE state = 'inflight' AND stop", "WHERE state = 'nowhere' AND stop")


@mutant((SQL, "extend_lease"), by="test_D8_why_an_extension_is_refused[held, token of an earlier claim]")
def pg_extend_without_token(sql: str) -> str:
    """Any worker can extend any lease."""
    return broken(sql, "AND live.token = given.token ")


@mutant((SQL, "extend_lease"), by="test_D6_an_expired_lease_is_not_revived")
def pg_extend_without_expiry(sql: str) -> str:
    """An expired lease can be extended."""
    return broken(sql, "AND live.lease_expires_at > $5 ", "AND $5::timestamptz IS NOT NULL ")


@mutant((SQL, "extend_lease"), by="test_D6_a_lease_never_shrinks")
def pg_extend_shrinks(sql: str) -> str:
    """A short extension cuts a long lease."""
    return broken(sql, "greatest(live.lease_expires_at, $6)", "$6")
