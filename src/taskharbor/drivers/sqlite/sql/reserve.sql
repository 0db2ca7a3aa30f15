-- The best due jobs of one queue and priority: what a claim of a plain job needs, and whether there is more to it.
-- ?1 now ?2 queue ?3 priority ?4 limit
SELECT
    seq, id, type, queue, payload, priority, max_attempts, max_crashes, created_at, due_at, run_at, workflow_id,
    version > 0 OR kept OR coalesce(expires_at, timeout, idempotency_key, key_expires_at, headers, tags, original_id,
        started_at, progress, last_error, failed_at, failures, settled_token) IS NOT NULL
FROM job
WHERE lined > 0 AND queue = ?2 AND priority = ?3 AND place <= ?1
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
    AND (expires_at IS NULL OR expires_at > ?1) AND stop_requested_at IS NULL
ORDER BY place, seq LIMIT ?4
