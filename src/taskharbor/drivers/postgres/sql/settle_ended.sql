-- Outcomes that end their jobs. $1 numbers $2 what the tokens begin with $3 states $4 attempts $5 crashes $6 put-backs
-- $7 errors $8 failed_at $9 failures $10 keep_until $11 results $12 reasons $13 whether only if a cancel was asked for
-- $14 now $15 fingerprints
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::text[],
        $8::timestamptz[], $9::text[], $10::timestamptz[], $11::bytea[], $12::text[], $13::boolean[], $15::text[])
        AS given (seq, token, state, attempts, crashes, put_backs, error, failed_at, failures, keep_until, result, reason,
        if_asked, fingerprint)
    WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $14
        AND (NOT given.if_asked OR live.cancel_requested_at IS NOT NULL)
    RETURNING live.seq, live.version, live.unmet, given.attempts, given.crashes, given.put_backs, live.due_at,
        given.keep_until, live.run_at, live.expires_at, live.started_at, live.cancel_requested_at, given.failed_at,
        given.state, live.queue, live.token, given.reason, live.progress, given.error, given.failures, given.result,
        given.fingerprint
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    started_at, cancel_requested_at, failed_at, state, queue, settled_token, dlq_reason, progress, last_error, failures,
    result, fingerprint
)
SELECT seq, version, unmet, attempts, crashes, put_backs, due_at, $14, keep_until, run_at, expires_at, started_at,
    cancel_requested_at, failed_at, state, queue, token, reason, progress, error, failures, result, fingerprint
FROM gone
RETURNING seq
