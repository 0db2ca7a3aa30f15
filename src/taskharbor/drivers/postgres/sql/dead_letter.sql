-- Jobs in line die by hand (Q4); those that did, and until when each is kept. $1 ids $2 reasons $3 fingerprints
-- $4 keep_until $5 now $6 until when those are kept that stay until they are deleted
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS given (id, reason, cause, until)
        JOIN harbor.job USING (id)
    WHERE live.seq = job.seq AND live.token IS NULL
    RETURNING live.*, job.id, given.reason, given.cause, CASE WHEN job.kept THEN $6 ELSE given.until END AS until
),
dead AS (
    INSERT INTO harbor.ended (
        seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        claimed_at, started_at, failed_at, settled_at, state, queue, worker, settled_token, settled_kind, dlq_reason,
        fingerprint, progress, last_error, failures
    )
    SELECT seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, $5, until, run_at, expires_at, claimed_at,
        started_at, failed_at, settled_at, 'dlq', queue, worker, settled_token, settled_kind, reason, cause, progress,
        last_error, failures
    FROM gone
)
SELECT id, 'dlq', until FROM gone
