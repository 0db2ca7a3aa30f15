-- What operators and upkeep do: the reads and writes of steps of the core (decision 19), and pause.

-- name: step_jobs
-- ?1 ids
SELECT id, type, due_at, state, lease_expires_at, run_at, expires_at, completed_at, keep_until, key_expires_at,
    stop_requested_at, stop_keep_until, idempotency_key, stop_reason, stop_fingerprint, dlq_reason, fingerprint,
    original_id, workflow_id, attempts, crashes, unknown_put_backs, unmet, replays, priority, kept
FROM job WHERE id IN (SELECT value FROM json_each(?1))

-- name: step_damaged
-- As step_jobs, with texts as bytes: for rows whose bytes are not text. ?1 ids
SELECT id, CAST(type AS BLOB), due_at, state, lease_expires_at, run_at, expires_at, completed_at, keep_until,
    key_expires_at, stop_requested_at, stop_keep_until, CAST(idempotency_key AS BLOB), CAST(stop_reason AS BLOB),
    CAST(stop_fingerprint AS BLOB), CAST(dlq_reason AS BLOB), CAST(fingerprint AS BLOB), CAST(original_id AS BLOB),
    CAST(workflow_id AS BLOB), attempts, crashes, unknown_put_backs, unmet, replays, priority, kept
FROM job WHERE id IN (SELECT value FROM json_each(?1))

-- name: step_above
-- ?1 ids
SELECT child, position, parent, policy, satisfied FROM edge WHERE child IN (SELECT value FROM json_each(?1))

-- name: step_below
-- ?1 ids
SELECT child, position, parent, policy, satisfied FROM edge WHERE parent IN (SELECT value FROM json_each(?1))

-- name: step_keys
-- ?1 keys
SELECT key, CAST(owner AS BLOB), digest, expires_at FROM keys WHERE key IN (SELECT value FROM json_each(?1))

-- name: step_owned
-- ?1 workflows
SELECT key, CAST(owner AS BLOB), digest, expires_at FROM keys WHERE owner IN (SELECT value FROM json_each(?1))

-- name: step_unfinished
-- The number of unfinished jobs of each owner of a key, a job or a workflow. ?1 owners
SELECT value, (SELECT count(*) FROM job WHERE id = value AND completed_at IS NULL)
    + (SELECT count(*) FROM job WHERE workflow_id = value AND keep_until IS NULL)
FROM json_each(?1)

-- name: step_payloads
-- ?1 ids
SELECT id, payload FROM job WHERE id IN (SELECT value FROM json_each(?1))

-- name: step_kept
-- ?1 workflow
SELECT CASE WHEN EXISTS (SELECT 1 FROM job WHERE workflow_id = ?1 AND keep_until IS NULL) THEN NULL
    ELSE (SELECT max(keep_until) FROM job WHERE workflow_id = ?1) END

-- name: step_members
-- The last members first: dependants before their parents. ?1 workflow ?2 limit
SELECT id FROM job WHERE workflow_id = ?1 ORDER BY seq DESC LIMIT ?2

-- name: step_put
-- Write a job. Only a job in line has a position there, and a replay forgets the progress. ?1 due_at ?2 run_at
-- ?3 expires_at ?4 completed_at ?5 to ?21 further columns, in this order ?22 payload, if it is a new one ?23 id
UPDATE job SET due_at = ?1, run_at = ?2, expires_at = ?3, completed_at = ?4, keep_until = ?5, key_expires_at = ?6,
    stop_requested_at = ?7, stop_keep_until = ?8, state = ?9, idempotency_key = ?10, stop_reason = ?11,
    stop_fingerprint = ?12, dlq_reason = ?13, fingerprint = ?14, original_id = ?15, attempts = ?16, crashes = ?17,
    unknown_put_backs = ?18, unmet = ?19, replays = ?20, priority = ?21, payload = coalesce(?22, payload),
    place = iif(?9 = 'ready', ?1, place),
    lined = CASE ?9 WHEN 'ready' THEN 1 WHEN 'inflight' THEN iif(?7 IS NULL, lined, 0) ELSE 0 END,
    token = iif(?9 = 'inflight', token, NULL), lease_expires_at = iif(?9 = 'inflight', lease_expires_at, NULL),
    progress = iif(?4 IS NULL AND completed_at IS NOT NULL, NULL, progress)
WHERE id = ?23

-- name: step_edge
-- ?1 child ?2 position ?3 satisfied
UPDATE edge SET satisfied = ?3 WHERE child = ?1 AND position = ?2

-- name: step_remove
-- ?1 ids
DELETE FROM job WHERE id IN (SELECT value FROM json_each(?1))

-- name: step_remove_edges
-- ?1 ids
DELETE FROM edge WHERE child IN (SELECT value FROM json_each(?1)) OR parent IN (SELECT value FROM json_each(?1))

-- name: step_keep
-- ?1 workflow ?2 until
UPDATE job SET keep_until = ?2 WHERE workflow_id = ?1 AND keep_until < ?2

-- name: pause
-- ?1 queue
INSERT INTO paused (queue) VALUES (?1) ON CONFLICT DO NOTHING

-- name: pause_end
-- ?1 queue
DELETE FROM paused WHERE queue = ?1
