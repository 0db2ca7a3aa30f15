-- ?1 id ?2 payload ?3 key ?4 key_expires_at ?5 run_at ?6 due_at
UPDATE job SET state = iif(unmet > 0, 'waiting', 'ready'), lined = (unmet = 0), payload = coalesce(?2, payload),
    idempotency_key = ?3, key_expires_at = ?4, run_at = ?5, due_at = ?6, place = ?6, expires_at = NULL,
    attempts = 0, crashes = 0, unknown_put_backs = 0, progress = NULL, stop_requested_at = NULL, stop_reason = NULL,
    stop_fingerprint = NULL, stop_keep_until = NULL, completed_at = NULL, result = NULL,
    dlq_reason = NULL, fingerprint = NULL, keep_until = NULL,
    original_id = coalesce(original_id, id), replays = replays + 1
WHERE id = ?1
