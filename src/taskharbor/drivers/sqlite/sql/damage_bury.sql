-- Dead-letter a job that cannot be decoded, with what can be kept of it. ?1 seq ?2 now ?3 keep_until ?4 error
-- ?5 reason ?6 fingerprint, ?7 onwards the columns in the order of damage.sql
UPDATE job SET state = 'dlq', lined = 0, unmet = 0, dlq_reason = ?5, last_error = ?4, failed_at = ?2,
    completed_at = ?2, keep_until = ?3, token = NULL, lease_expires_at = NULL, worker = NULL, claimed_at = NULL,
    settled_token = NULL, result = NULL, place = ?2, fingerprint = ?6,
    id = ?7, type = ?8, queue = ?9, idempotency_key = ?10, workflow_id = ?11, original_id = ?12, headers = ?13,
    tags = ?14, failures = ?15, progress = ?16, created_at = ?17, due_at = ?18, run_at = ?19, expires_at = ?20,
    key_expires_at = ?21, started_at = ?22, cancel_requested_at = ?23
WHERE seq = ?1
