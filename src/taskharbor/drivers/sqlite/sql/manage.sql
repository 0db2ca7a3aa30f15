-- What operators do: cancel, dead-letter, delete, replay, reschedule, pause.

-- name: cancel_request
-- Ask the holder to stop; a cancel overrides a requested dead letter (T3). ?1 id ?2 now
UPDATE job SET lined = 0, stop_requested_at = ?2, stop_reason = NULL, stop_fingerprint = NULL, stop_keep_until = NULL
WHERE id = ?1 AND state = 'inflight' AND (stop_requested_at IS NULL OR stop_reason IS NOT NULL)

-- name: dead_letter
-- Dead-letter a job in line by hand (Q4). ?1 id ?2 now ?3 reason ?4 fingerprint ?5 keep_until ?6 keep_until of kept
-- jobs
UPDATE job SET state = 'dlq', lined = 0, dlq_reason = ?3, fingerprint = ?4, completed_at = ?2,
    keep_until = iif(kept, ?6, ?5)
WHERE id = ?1 AND (state = 'ready' OR state = 'waiting')
RETURNING keep_until

-- name: dead_letter_request
-- Ask the holder to stop; the first request counts (T3, Q4). ?1 id ?2 now ?3 reason ?4 fingerprint ?5 keep_until
UPDATE job SET lined = 0, stop_requested_at = ?2, stop_reason = ?3, stop_fingerprint = ?4, stop_keep_until = ?5
WHERE id = ?1 AND state = 'inflight' AND stop_requested_at IS NULL

-- name: delete_needed
-- Whether a dependant is not done; a dead one may be replayed, and reads the results again (K3). ?1 id
SELECT EXISTS (
    SELECT 1 FROM edge JOIN job ON job.id = edge.child WHERE edge.parent = ?1 AND (edge.satisfied = 0 OR job.state <> 'done')
)

-- name: delete
-- ?1 id
DELETE FROM job WHERE id = ?1 RETURNING id, idempotency_key, workflow_id

-- name: delete_edges
-- ?1 ids
DELETE FROM edge WHERE child IN (SELECT value FROM json_each(?1)) OR parent IN (SELECT value FROM json_each(?1))

-- name: replay
-- ?1 id ?2 payload ?3 key ?4 key_expires_at ?5 run_at ?6 due_at
UPDATE job SET state = iif(unmet > 0, 'waiting', 'ready'), lined = (unmet = 0), payload = coalesce(?2, payload),
    idempotency_key = ?3, key_expires_at = ?4, run_at = ?5, due_at = ?6, place = ?6, expires_at = NULL,
    attempts = 0, crashes = 0, unknown_put_backs = 0, progress = NULL, stop_requested_at = NULL, stop_reason = NULL,
    stop_fingerprint = NULL, stop_keep_until = NULL, completed_at = NULL, result = NULL,
    dlq_reason = NULL, fingerprint = NULL, keep_until = NULL,
    original_id = coalesce(original_id, id), replays = replays + 1
WHERE id = ?1

-- name: replay_reopen
-- Replayed jobs wait again for parents whose failure they had collected and that run again. ?1 ids
UPDATE edge SET satisfied = 0
WHERE child IN (SELECT value FROM json_each(?1)) AND satisfied = 1
    AND parent IN (SELECT job.id FROM job WHERE job.id = edge.parent AND job.completed_at IS NULL)
RETURNING child

-- name: replay_wait
-- ?1 id ?2 how many more
UPDATE job SET unmet = unmet + ?2, state = 'waiting', lined = 0 WHERE id = ?1

-- name: reschedule
-- ?1 id ?2 run_at ?3 priority
UPDATE job SET run_at = coalesce(?2, run_at), due_at = coalesce(?2, due_at), place = coalesce(?2, place),
    priority = coalesce(?3, priority)
WHERE id = ?1 AND state = 'ready'
RETURNING 1

-- name: pause
-- ?1 queue
INSERT INTO paused (queue) VALUES (?1) ON CONFLICT DO NOTHING

-- name: pause_end
-- ?1 queue
DELETE FROM paused WHERE queue = ?1
