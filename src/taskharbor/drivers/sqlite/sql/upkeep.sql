-- Sweep and prune.

-- name: sweep_stopping
-- ?1 now ?2 limit
SELECT id FROM job
WHERE state = 'inflight' AND lined = 0 AND lease_expires_at <= ?1 AND stop_requested_at IS NOT NULL
ORDER BY stop_requested_at, seq LIMIT ?2

-- name: sweep_expired
-- ?1 now ?2 limit
SELECT id FROM job
WHERE expires_at IS NOT NULL AND completed_at IS NULL AND expires_at <= ?1
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
ORDER BY expires_at, id LIMIT ?2

-- name: prune
-- The next jobs, behind a position, that were kept long enough and that no dependant needs which is not done; a dead
-- one may be replayed, and reads the results again (K3, X8). A workflow goes as a whole with the first of its jobs
-- that is found. ?1 now ?2 ?3 the position, by time and number ?4 limit
SELECT id, workflow_id, keep_until, seq FROM job AS old
WHERE keep_until IS NOT NULL AND keep_until <= ?1 AND (keep_until, seq) > (?2, ?3)
    AND NOT EXISTS (
        SELECT 1 FROM edge JOIN job AS child ON child.id = edge.child
        WHERE edge.parent = old.id AND (edge.satisfied = 0 OR child.state <> 'done'))
ORDER BY keep_until, seq LIMIT ?4

-- name: prune_delete
-- ?1 numbers
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING id, idempotency_key

-- name: damage
-- Jobs as bytes and numbers, the newest first, so that damaged ones can be read. ?1 up to this seq ?2 limit
SELECT
    seq, CAST(id AS BLOB), CAST(type AS BLOB), CAST(queue AS BLOB), CAST(idempotency_key AS BLOB),
    CAST(workflow_id AS BLOB), CAST(original_id AS BLOB), CAST(worker AS BLOB), CAST(headers AS BLOB), CAST(tags AS BLOB),
    CAST(failures AS BLOB), CAST(progress AS BLOB), created_at, due_at, run_at, expires_at, key_expires_at, claimed_at,
    started_at, stop_requested_at, CAST(state AS BLOB), CAST(token AS BLOB), CAST(settled_token AS BLOB),
    CAST(settled_kind AS BLOB), CAST(stop_reason AS BLOB), CAST(stop_fingerprint AS BLOB), CAST(last_error AS BLOB),
    CAST(dlq_reason AS BLOB), CAST(fingerprint AS BLOB), lease_expires_at, settled_at, stop_keep_until, failed_at,
    completed_at, keep_until, place
FROM job WHERE seq <= ?1 ORDER BY seq DESC LIMIT ?2

-- name: damage_dead_letter
-- Dead-letter a job that cannot be decoded, with what can be kept of it. ?1 seq ?2 now ?3 keep_until ?4 error
-- ?5 reason ?6 fingerprint ?7 keep_until of kept jobs, ?8 onwards the columns in the order of damage
UPDATE job SET state = 'dlq', lined = 0, unmet = 0, dlq_reason = ?5, last_error = ?4, failed_at = ?2,
    completed_at = ?2, keep_until = iif(kept, ?7, ?3), token = NULL, lease_expires_at = NULL,
    settled_token = NULL, settled_kind = NULL, settled_at = NULL, stop_reason = NULL, stop_fingerprint = NULL,
    stop_keep_until = NULL, result = NULL, place = ?2, fingerprint = ?6,
    id = ?8, type = ?9, queue = ?10, idempotency_key = ?11, workflow_id = ?12, original_id = ?13, worker = ?14,
    headers = ?15, tags = ?16, failures = ?17, progress = ?18, created_at = ?19, due_at = ?20, run_at = ?21,
    expires_at = ?22, key_expires_at = ?23, claimed_at = ?24, started_at = ?25, stop_requested_at = ?26
WHERE seq = ?1
