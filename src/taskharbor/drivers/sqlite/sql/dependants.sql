-- What the end of a job does to the jobs that depend on it.

-- name: dependants_any
SELECT 1 FROM edge WHERE satisfied = 0 LIMIT 1

-- name: dependants
-- Dependants that still wait for these jobs. ?1 ids
SELECT parent, child, position, policy FROM edge WHERE satisfied = 0 AND parent IN (SELECT value FROM json_each(?1))

-- name: dependants_satisfy
-- ?1 child ?2 position
UPDATE edge SET satisfied = 1 WHERE child = ?1 AND position = ?2

-- name: dependants_satisfy_all
-- Satisfy all edges of parents that succeeded; returns their children. ?1 ids
UPDATE edge SET satisfied = 1 WHERE satisfied = 0 AND parent IN (SELECT value FROM json_each(?1)) RETURNING child

-- name: dependants_release
-- Lower unmet; the last dependency releases a waiting job. ?1 id ?2 how many ?3 now
UPDATE job SET unmet = unmet - ?2,
    state = iif(unmet = ?2 AND state = 'waiting', 'ready', state),
    lined = iif(unmet = ?2 AND state = 'waiting', 1, lined),
    due_at = iif(unmet = ?2 AND state = 'waiting', max(?3, coalesce(run_at, ?3)), due_at),
    place = iif(unmet = ?2 AND state = 'waiting', max(?3, coalesce(run_at, ?3)), place)
WHERE id = ?1

-- name: withdraw
-- End a job without a holder: cancelled, or dead if that was requested. ?1 id ?2 now ?3 keep_until ?4 keep_until of
-- kept jobs
UPDATE job SET state = iif(stop_reason IS NULL, 'cancelled', 'dlq'), lined = 0, token = NULL, lease_expires_at = NULL,
    completed_at = ?2, keep_until = iif(kept, ?4, coalesce(stop_keep_until, ?3)),
    dlq_reason = stop_reason, fingerprint = stop_fingerprint,
    key_expires_at = iif(stop_reason IS NOT NULL OR kept, key_expires_at, NULL)
WHERE id = ?1 AND completed_at IS NULL
RETURNING state, keep_until, iif(state = 'cancelled' AND NOT kept, idempotency_key, NULL)

-- name: withdraw_waiting
-- Cancel a job whose parent failed, if it still waits. ?1 id ?2 now ?3 keep_until ?4 keep_until of kept jobs
UPDATE job SET state = 'cancelled', lined = 0, completed_at = ?2, keep_until = iif(kept, ?4, ?3),
    key_expires_at = iif(kept, key_expires_at, NULL)
WHERE id = ?1 AND state = 'waiting'
RETURNING state, keep_until, iif(kept, NULL, idempotency_key)
