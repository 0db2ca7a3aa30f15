-- End jobs that nobody runs: as their stop request wants it, without one cancelled (T1, T3). Those that ended, how, and
-- until when each is kept. $1 ids $2 states they may be in $3 now $4 keep_until $5 until when those are kept that stay
-- until they are deleted
WITH given AS MATERIALIZED (
    SELECT seq, id, kept FROM harbor.job WHERE id = ANY ($1::text[])
),
gone AS (
    DELETE FROM harbor.live USING given WHERE live.seq = given.seq AND $2::text[] @> ARRAY[live.state]
    RETURNING live.*, given.id, CASE WHEN live.stop_reason IS NULL THEN 'cancelled' ELSE 'dlq' END AS came_to,
        CASE WHEN given.kept THEN $5 ELSE coalesce(live.stop_keep_until, $4) END AS until
),
ended AS (
    INSERT INTO harbor.ended (
        seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        claimed_at, started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, state, queue, worker,
        settled_token, settled_kind, stop_reason, stop_fingerprint, dlq_reason, fingerprint, progress, last_error, failures
    )
    SELECT seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, $3, until, run_at, expires_at, claimed_at,
        started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, came_to, queue, worker, settled_token,
        settled_kind, stop_reason, stop_fingerprint, stop_reason, stop_fingerprint, progress, last_error, failures
    FROM gone
)
SELECT id, came_to, until FROM gone
