-- Outcomes that end their jobs. $1 numbers $2 what the tokens begin with $3 states $4 attempts $5 crashes $6 put-backs
-- $7 errors $8 failed_at $9 failures $10 keep_until $11 results $12 reasons $13 now
WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::text[],
        $8::timestamptz[], $9::text[], $10::timestamptz[], $11::bytea[], $12::text[])
    AS given (seq, token, state, attempts, crashes, put_backs, error, failed_at, failures, keep_until, result, reason)
),
gone AS (
    DELETE FROM harbor.live USING given
    WHERE live.seq = given.seq AND live.token = given.token AND live.state = 'inflight' AND live.lease_expires_at > $13
    RETURNING live.*
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    started_at, cancel_requested_at, failed_at, state, queue, settled_token, dlq_reason, progress, last_error, failures,
    result
)
SELECT gone.seq, gone.version, gone.unmet, given.attempts, given.crashes, given.put_backs, gone.due_at, $13, given.keep_until,
    gone.run_at, gone.expires_at, gone.started_at, gone.cancel_requested_at, given.failed_at, given.state, gone.queue,
    gone.token, given.reason, gone.progress, given.error, given.failures, given.result
FROM gone JOIN given USING (seq)
RETURNING seq
