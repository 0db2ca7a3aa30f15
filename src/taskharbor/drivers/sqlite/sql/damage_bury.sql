-- Dead-letter a job that cannot be decoded, with what can be kept of it. ?1 seq ?2 now ?3 keep_until ?4 error
-- ?5 reason ?6 fingerprint ?7 for ever, ?8 onwards the columns in the order of damage.sql
UPDATE job SET state = 'dlq', lined = 0, unmet = 0, dlq_reason = ?5, last_error = ?4, failed_at = ?2,
    completed_at = ?2, keep_until = iif(kept, ?7, ?3), token = NULL, lease_expires_at = NULL,
    settled_token = NULL, settled_kind = NULL, settled_at = NULL, stop_reason = NULL, stop_fingerprint = NULL,
    stop_keep_until = NULL, result = NULL, place = ?2, fingerprint = ?6,
    id = ?8, type = ?9, queue = ?10, idempotency_key = ?11, workflow_id = ?12, original_id = ?13, worker = ?14,
    headers = ?15, tags = ?16, failures = ?17, progress = ?18, created_at = ?19, due_at = ?20, run_at = ?21,
    expires_at = ?22, key_expires_at = ?23, claimed_at = ?24, started_at = ?25, stop_requested_at = ?26
WHERE seq = ?1
RETURNING keep_until
