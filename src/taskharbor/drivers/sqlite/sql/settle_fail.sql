-- ?1 id ?2 token ?3 now ?4 attempts ?5 crashes ?6 put-backs ?7 error ?8 failed_at ?9 failures ?10 keep_until ?11 started_at
-- ?12 reason ?13 fingerprint
UPDATE job SET state = 'dlq', lined = 0, settled_token = token, settled_kind = 'fail', settled_at = ?3,
    token = NULL, lease_expires_at = NULL, started_at = ?11,
    attempts = ?4, crashes = ?5, unknown_put_backs = ?6, last_error = ?7, failed_at = ?8, failures = ?9,
    completed_at = ?3, keep_until = ?10, dlq_reason = ?12, fingerprint = ?13
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3
