-- Cancel a job whose parent failed, if it still waits. ?1 id ?2 now ?3 keep_until ?4 for ever
UPDATE job SET state = 'cancelled', lined = 0, completed_at = ?2, keep_until = iif(kept, ?4, ?3),
    key_expires_at = iif(kept, key_expires_at, NULL)
WHERE id = ?1 AND state = 'waiting'
RETURNING state, keep_until, iif(kept, NULL, idempotency_key)
