UPDATE harbor.live SET state = 'inflight', version = live.version + 1, token = $4, lease_expires_at = $2, worker = $3,
    claimed_at = $1, started_at = NULL, progress = NULL, crashes = live.crashes + (live.state = 'inflight')::integer,
    run_at = CASE WHEN live.state = 'inflight' THEN NULL ELSE live.run_at END
FROM chosen JOIN harbor.job USING (seq)
WHERE live.seq = chosen.seq
RETURNING chosen.place, live.seq, job.id, job.type, job.queue, job.payload, job.priority, job.max_attempts,
    job.max_crashes, job.created_at, live.due_at, live.run_at, job.workflow_id,
    CASE WHEN live.version > 1 OR num_nonnulls(live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at,
        job.headers, job.tags, job.kept, job.original_id, live.last_error, live.failed_at, live.failures,
        live.settled_token) > 0
    THEN ROW (live.version, live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at, job.headers, job.tags,
        job.kept, live.attempts, live.crashes, live.unknown_put_backs, live.last_error, live.failed_at, live.failures,
        job.original_id, job.replays, live.settled_kind, live.settled_at, live.settled_token) END
