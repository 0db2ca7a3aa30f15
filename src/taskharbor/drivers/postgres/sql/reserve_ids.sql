-- Claim exactly these, as far as they can be (D2). $1 ids $2 limit $3 now $4 expiry $5 worker $6 what their tokens begin with
WITH found AS (
    SELECT live.seq, given.position FROM unnest($1::text[]) WITH ORDINALITY AS given (id, position)
    JOIN harbor.job USING (id) JOIN harbor.live USING (seq)
    WHERE (live.state = 'ready' AND live.due_at <= $3 OR live.state = 'inflight' AND live.lease_expires_at <= $3)
        AND live.cancel_requested_at IS NULL AND (live.expires_at IS NULL OR live.expires_at > $3)
        AND live.queue NOT IN (SELECT queue FROM harbor.paused)
    ORDER BY given.position LIMIT $2
    FOR UPDATE OF live SKIP LOCKED
)
UPDATE harbor.live SET state = 'inflight', version = live.version + 1, token = $6, lease_expires_at = $4, worker = $5,
    claimed_at = $3, started_at = NULL, progress = NULL, crashes = live.crashes + (live.state = 'inflight')::integer,
    run_at = CASE WHEN live.state = 'inflight' THEN NULL ELSE live.run_at END
FROM found JOIN harbor.job USING (seq)
WHERE live.seq = found.seq
RETURNING found.position, live.seq, job.id, job.type, job.queue, job.payload, job.priority, job.max_attempts,
    job.max_crashes, job.created_at, live.due_at, live.run_at,
    CASE WHEN live.version > 1 OR num_nonnulls(live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at,
        job.headers, job.tags, job.workflow_id, job.original_id, live.last_error, live.failed_at, live.failures,
        live.settled_token, live.cancel_requested_at) > 0
    THEN ROW (live.version, live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at, job.headers, job.tags,
        job.workflow_id, live.attempts, live.crashes, live.unknown_put_backs, live.last_error, live.failed_at,
        live.failures, live.cancel_requested_at, job.original_id, job.replays, live.settled_token) END
