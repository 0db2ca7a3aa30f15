-- ?1 id ?2 token ?3 now ?4 attempts ?5 crashes ?6 put-backs ?7 error ?8 failed_at ?9 failures ?10 keep_until ?11 started_at
-- ?12 for ever
UPDATE job SET state = 'cancelled', lined = 0, settled_token = token, settled_kind = 'cancel', settled_at = ?3,
    token = NULL, lease_expires_at = NULL, started_at = ?11,
    attempts = ?4, crashes = ?5, unknown_put_backs = ?6, last_error = ?7, failed_at = ?8, failures = ?9,
    completed_at = ?3, keep_until = iif(kept, ?12, ?10), key_expires_at = iif(kept, key_expires_at, NULL)
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3
RETURNING state, keep_until, iif(kept, NULL, idempotency_key)
