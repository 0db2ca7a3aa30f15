-- Plain successes at one time, or none of them if anybody waits for one. $1 numbers $2 what their tokens begin with
-- $3 now $4 keep_until $5 ids
WITH gone AS (
    DELETE FROM harbor.live USING unnest($1::bigint[], $2::text[]) AS given (seq, token)
    WHERE live.seq = given.seq AND live.token = given.token AND live.state = 'inflight' AND live.lease_expires_at > $3
        AND NOT EXISTS (SELECT FROM harbor.edge WHERE NOT satisfied AND parent = ANY ($5::text[]))
    RETURNING live.*
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    started_at, cancel_requested_at, state, queue, settled_token, progress
)
SELECT seq, version, 0, 0, 0, 0, due_at, $3, $4, run_at, expires_at, started_at, cancel_requested_at, 'done', queue, token,
    progress
FROM gone
RETURNING seq
