-- The best due jobs of one queue and priority. ?1 now ?2 queue ?3 priority ?4 limit
SELECT
    id, type, queue, payload, priority, max_attempts, max_crashes, state, created_at, due_at, version, token,
    lease_expires_at, worker, claimed_at, run_at, expires_at, timeout, idempotency_key, key_expires_at, headers, tags,
    workflow_id, attempts, crashes, unknown_put_backs, last_error, failed_at, failures, started_at, progress,
    cancel_requested_at, completed_at, result, dlq_reason, unmet, original_id, replays, settled_token, keep_until, seq
FROM job
WHERE lined > 0 AND queue = ?2 AND priority = ?3 AND place <= ?1
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
    AND (expires_at IS NULL OR expires_at > ?1) AND cancel_requested_at IS NULL
ORDER BY place, seq LIMIT ?4
