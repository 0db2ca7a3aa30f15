-- Back in line, or to the end that was asked for: cancelled, or dead (T3).
-- ?1 id ?2 token ?3 now ?4 attempts ?5 crashes ?6 put-backs ?7 error ?8 failed_at ?9 failures ?10 keep_until ?11 started_at
-- ?12 for ever ?13 run_at
UPDATE job SET state = CASE WHEN stop_requested_at IS NULL THEN 'ready' WHEN stop_reason IS NULL THEN 'cancelled' ELSE 'dlq' END,
    lined = stop_requested_at IS NULL, settled_token = token, settled_kind = 'put_back', settled_at = ?3,
    token = NULL, lease_expires_at = NULL, started_at = ?11,
    attempts = ?4, crashes = ?5, unknown_put_backs = ?6, last_error = ?7, failed_at = ?8, failures = ?9,
    run_at = iif(stop_requested_at IS NULL, ?13, run_at),
    due_at = iif(stop_requested_at IS NULL, ?13, due_at),
    place = iif(stop_requested_at IS NULL, ?13, place),
    progress = iif(stop_requested_at IS NULL, NULL, progress),
    completed_at = iif(stop_requested_at IS NULL, NULL, ?3),
    keep_until = CASE WHEN stop_requested_at IS NULL THEN NULL WHEN kept THEN ?12 ELSE coalesce(stop_keep_until, ?10) END,
    dlq_reason = stop_reason, fingerprint = stop_fingerprint,
    key_expires_at = iif(stop_requested_at IS NULL OR stop_reason IS NOT NULL OR kept, key_expires_at, NULL)
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3
RETURNING state, coalesce(keep_until, ?10), iif(state = 'cancelled' AND NOT kept, idempotency_key, NULL)
