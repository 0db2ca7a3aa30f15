-- Storing new jobs and their edges.

-- name: states
-- ?1 id
SELECT state FROM job WHERE id = ?1

-- part: new_job
-- ?1-?17 the columns ?18 unmet ?19 kept
INSERT INTO job (
    id, type, queue, payload, priority, max_attempts, max_crashes, state, lined, created_at, due_at, place, run_at,
    expires_at, timeout, idempotency_key, key_expires_at, headers, tags, workflow_id, unmet, kept
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, iif(?18 > 0, 'waiting', 'ready'), ?18 = 0, ?8, ?9, ?9, ?10,
    ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
)

-- name: enqueue_one
-- Store a job; an id that is taken is an error.
-- include: new_job

-- name: enqueue
-- Store a job, unless its id is taken.
-- include: new_job
ON CONFLICT (id) DO NOTHING

-- name: enqueue_last
-- The greatest number in use; a group that is refused is undone from here.
SELECT coalesce(max(seq), 0) FROM job

-- name: enqueue_undo
-- Remove the rows that a refused group has inserted in this transaction. ?1 number
DELETE FROM job WHERE seq > ?1

-- name: enqueue_edges
-- ?1 child ?2 position ?3 parent ?4 policy ?5 satisfied
INSERT INTO edge (child, position, parent, policy, satisfied) VALUES (?1, ?2, ?3, ?4, ?5)
