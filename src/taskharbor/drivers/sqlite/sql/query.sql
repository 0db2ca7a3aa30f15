-- Matching jobs, the newest first.
-- ?1 now ?2 limit ?3 before this seq ?4 states ?5 queue ?6 task ?7 error ?8 reason ?9 tag ?10 workflow ?11 since ?12 until
-- ?13 fingerprint
SELECT
    id, type, queue, payload, priority, max_attempts, max_crashes, state, created_at, due_at, version, token || seq || ' ' || id,
    lease_expires_at, worker, claimed_at, run_at, expires_at, timeout, idempotency_key, key_expires_at, headers, tags,
    workflow_id, attempts, crashes, unknown_put_backs, last_error, failed_at, failures, started_at, progress,
    stop_requested_at, completed_at, result, dlq_reason, fingerprint, unmet, original_id, replays,
    settled_token || seq || ' ' || id, keep_until, kept, stop_reason, stop_fingerprint, stop_keep_until, settled_kind,
    settled_at
FROM job
WHERE seq < ?3
    AND (?10 IS NULL OR workflow_id = ?10)
    AND (?4 IS NULL OR CASE state
        WHEN 'ready' THEN iif(due_at > ?1, 'scheduled', 'ready')
        WHEN 'inflight' THEN iif(lease_expires_at <= ?1, 'lapsed', iif(started_at IS NULL, 'claimed', 'running'))
        ELSE state END IN (SELECT value FROM json_each(?4)))
    AND (?5 IS NULL OR queue GLOB ?5)
    AND (?6 IS NULL OR type GLOB ?6)
    AND (?7 IS NULL OR instr(coalesce(last_error, ''), ?7) > 0)
    AND (?8 IS NULL OR dlq_reason GLOB ?8)
    AND (?13 IS NULL OR fingerprint = ?13)
    AND (?9 IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?9))
    AND (?11 IS NULL OR created_at >= ?11)
    AND (?12 IS NULL OR created_at < ?12)
ORDER BY seq DESC LIMIT ?2
