-- One job by its number. ?1 seq
SELECT
    id, type, queue, payload, priority, max_attempts, max_crashes, state, created_at, due_at, version, token || seq || ' ' || id,
    lease_expires_at, worker, claimed_at, run_at, expires_at, timeout, idempotency_key, key_expires_at, headers, tags,
    workflow_id, attempts, crashes, unknown_put_backs, last_error, failed_at, failures, started_at, progress,
    stop_requested_at, completed_at, result, dlq_reason, fingerprint, unmet, original_id, replays,
    settled_token || seq || ' ' || id, keep_until, kept, stop_reason, stop_fingerprint, stop_keep_until, settled_kind,
    settled_at, seq
FROM job
WHERE seq = ?1
