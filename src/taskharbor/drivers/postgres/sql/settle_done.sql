-- Plain successes, those of jobs that somebody may wait for only if asked to. $1 numbers $2 what their tokens begin with
-- $3 keep_until $4 now $5 whether all
WITH gone AS (
    DELETE FROM harbor.live USING unnest($1::bigint[], $2::text[], $3::timestamptz[]) AS given (seq, token, keep_until)
    WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $4 AND ($5 OR NOT live.awaited)
    RETURNING live.*, given.keep_until
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    started_at, cancel_requested_at, state, queue, settled_token, progress
)
SELECT seq, version, 0, 0, 0, 0, due_at, $4, keep_until, run_at, expires_at, started_at, cancel_requested_at, 'done', queue,
    token, progress
FROM gone
RETURNING seq
