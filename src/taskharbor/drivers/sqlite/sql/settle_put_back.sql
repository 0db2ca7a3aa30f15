-- Back in line, or cancelled if that was asked for (T3).
-- ?1 id ?2 token ?3 now ?4 attempts ?5 crashes ?6 put-backs ?7 error ?8 failed_at ?9 failures ?10 keep_until ?11 run_at
UPDATE job SET state = iif(cancel_requested_at IS NULL, 'ready', 'cancelled'),
    lined = cancel_requested_at IS NULL, token = NULL, lease_expires_at = NULL, worker = NULL, claimed_at = NULL, settled_token = token,
    attempts = ?4, crashes = ?5, unknown_put_backs = ?6, last_error = ?7, failed_at = ?8, failures = ?9,
    run_at = iif(cancel_requested_at IS NULL, ?11, run_at),
    due_at = iif(cancel_requested_at IS NULL, ?11, due_at),
    place = iif(cancel_requested_at IS NULL, ?11, place),
    started_at = iif(cancel_requested_at IS NULL, NULL, started_at),
    progress = iif(cancel_requested_at IS NULL, NULL, progress),
    completed_at = iif(cancel_requested_at IS NULL, NULL, ?3),
    keep_until = iif(cancel_requested_at IS NULL, NULL, ?10),
    key_expires_at = iif(cancel_requested_at IS NULL, key_expires_at, NULL)
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3
RETURNING state, idempotency_key
