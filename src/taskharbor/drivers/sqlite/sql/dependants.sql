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
