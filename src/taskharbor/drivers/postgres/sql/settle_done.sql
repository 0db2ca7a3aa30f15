-- Plain successes, those of jobs that somebody may wait for only if asked to. $1 numbers $2 what their tokens begin with
-- $3 keep_until $4 started_at $5 now $6 whether all
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::timestamptz[]) AS given (seq, token, keep_until, started_at)
    WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $5 AND ($6 OR NOT live.awaited)
    RETURNING live.*, given.keep_until, given.started_at AS began_at
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    claimed_at, started_at, stop_requested_at, stop_keep_until, state, queue, worker, settled_token, stop_reason,
    stop_fingerprint, progress
)
SELECT seq, version, 0, 0, 0, 0, due_at, $5, keep_until, run_at, expires_at, claimed_at, began_at, stop_requested_at,
    stop_keep_until, 'done', queue, worker, token, stop_reason, stop_fingerprint, progress
FROM gone
RETURNING seq
