-- Cancel jobs that nobody runs; those that were. $1 ids $2 states they may be in $3 now $4 keep_until
WITH given AS MATERIALIZED (
    SELECT seq, id FROM harbor.job WHERE id = ANY ($1::text[])
),
gone AS (
    DELETE FROM harbor.live USING given WHERE live.seq = given.seq AND $2::text[] @> ARRAY[live.state]
    RETURNING live.*, given.id
),
kept AS (
    INSERT INTO harbor.ended (
        seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        started_at, cancel_requested_at, failed_at, state, queue, settled_token, progress, last_error, failures
    )
    SELECT seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, $3, $4, run_at, expires_at, started_at,
        cancel_requested_at, failed_at, 'cancelled', queue, settled_token, progress, last_error, failures
    FROM gone
)
SELECT id FROM gone
