-- Dead-letter a job that cannot be decoded, with what can be kept of it. ?1 seq ?2 now ?3 keep_until ?4 error, ?5
-- onwards the columns in the order of damage.sql
UPDATE job SET state = 'dlq', lined = 0, unmet = 0, dlq_reason = 'undecodable', last_error = ?4, failed_at = ?2,
    completed_at = ?2, keep_until = ?3, token = NULL, lease_expires_at = NULL, worker = NULL, claimed_at = NULL,
    settled_token = NULL, result = NULL, place = ?2,
    id = ?5, type = ?6, queue = ?7, idempotency_key = ?8, workflow_id = ?9, original_id = ?10, headers = ?11,
    tags = ?12, failures = ?13, progress = ?14, created_at = ?15, due_at = ?16, run_at = ?17, expires_at = ?18,
    key_expires_at = ?19, started_at = ?20, cancel_requested_at = ?21
WHERE seq = ?1
