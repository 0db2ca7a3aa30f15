-- Outcomes that end their jobs; a put-back only where a stop was asked for, which says how (T3). $1 numbers $2 what the
-- tokens begin with $3 states $4 attempts $5 crashes $6 put-backs $7 errors $8 failed_at $9 failures $10 started_at
-- $11 keep_until $12 results $13 reasons $14 fingerprints $15 kinds, but for successes $16 now $17 until when those are
-- kept that stay until they are deleted
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::text[],
        $8::timestamptz[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::bytea[], $13::text[], $14::text[],
        $15::text[])
        AS given (seq, token, state, attempts, crashes, put_backs, error, failed_at, failures, began_at, until, result,
        reason, cause, kind)
    WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $16
        AND (given.kind IS DISTINCT FROM 'put_back' OR live.stop_requested_at IS NOT NULL)
    RETURNING live.seq, live.version, live.unmet, given.attempts, given.crashes, given.put_backs, live.due_at,
        given.until, live.run_at, live.expires_at, live.claimed_at, given.began_at, live.stop_requested_at,
        live.stop_keep_until, given.failed_at, given.state, live.queue, live.worker, live.token, given.kind,
        live.stop_reason, live.stop_fingerprint, given.reason, given.cause, live.progress, given.error, given.failures,
        given.result, coalesce(given.kind = 'put_back', false) AS stopped
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    claimed_at, started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, state, queue, worker,
    settled_token, settled_kind, stop_reason, stop_fingerprint, dlq_reason, fingerprint, progress, last_error, failures,
    result
)
SELECT seq, version, unmet, attempts, crashes, put_backs, due_at, $16,
    CASE WHEN (stopped OR state = 'cancelled') AND (SELECT job.kept FROM harbor.job WHERE job.seq = gone.seq) THEN $17
        WHEN stopped THEN coalesce(stop_keep_until, until) ELSE until END,
    run_at, expires_at, claimed_at, began_at, stop_requested_at, stop_keep_until, failed_at,
    CASE WHEN kind IS NOT NULL THEN $16 END, CASE WHEN stopped AND stop_reason IS NOT NULL THEN 'dlq' ELSE state END,
    queue, worker, token, kind, stop_reason, stop_fingerprint, CASE WHEN stopped THEN stop_reason ELSE reason END,
    CASE WHEN stopped THEN stop_fingerprint ELSE cause END, progress, error, failures, result
FROM gone
RETURNING seq, state, keep_until
