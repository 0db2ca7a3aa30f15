-- Cancel a job whose parent failed, if it still waits. ?1 id ?2 now ?3 keep_until
UPDATE job SET state = 'cancelled', lined = 0, token = NULL, lease_expires_at = NULL, worker = NULL, claimed_at = NULL,
    completed_at = ?2, keep_until = ?3, key_expires_at = NULL
WHERE id = ?1 AND state = 'waiting'
RETURNING idempotency_key
