-- Cancel jobs that nobody runs; those that were. $1 ids $2 states they may be in $3 now $4 keep_until
WITH gone AS (
    DELETE FROM harbor.live USING harbor.job
    WHERE job.id = ANY ($1::text[]) AND live.seq = job.seq AND live.state = ANY ($2::text[])
    RETURNING live.*, job.id
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
