-- Plain successes, those of jobs that somebody waits for only if asked to. $1 numbers $2 what their tokens begin with
-- $3 keep_until $4 ids $5 now $6 whether all
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::text[]) AS given (seq, token, keep_until, id)
    WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $5
        AND ($6 OR given.id <> ALL (ARRAY (
            SELECT asked.id FROM unnest($4::text[]) AS asked (id)
            CROSS JOIN LATERAL (SELECT FROM harbor.edge WHERE edge.parent = asked.id AND NOT satisfied LIMIT 1) AS open)))
    RETURNING live.*, given.keep_until
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    started_at, cancel_requested_at, state, queue, settled_token, progress
)
SELECT seq, version, 0, 0, 0, 0, due_at, $5, keep_until, run_at, expires_at, started_at, cancel_requested_at, 'done', queue,
    token, progress
FROM gone
RETURNING seq
