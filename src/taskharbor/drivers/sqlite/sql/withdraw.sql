-- End a job that nobody runs: cancelled, or dead if that was asked for. ?1 id ?2 now ?3 keep_until ?4 for ever
UPDATE job SET state = iif(stop_reason IS NULL, 'cancelled', 'dlq'), lined = 0, token = NULL, lease_expires_at = NULL,
    completed_at = ?2, keep_until = iif(kept, ?4, coalesce(stop_keep_until, ?3)),
    dlq_reason = stop_reason, fingerprint = stop_fingerprint,
    key_expires_at = iif(stop_reason IS NOT NULL OR kept, key_expires_at, NULL)
WHERE id = ?1 AND completed_at IS NULL
RETURNING state, keep_until, iif(state = 'cancelled' AND NOT kept, idempotency_key, NULL)
