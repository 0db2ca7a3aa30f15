-- ?1 id ?2 run_at ?3 priority
UPDATE job SET run_at = coalesce(?2, run_at), due_at = coalesce(?2, due_at), place = coalesce(?2, place),
    priority = coalesce(?3, priority)
WHERE id = ?1 AND state = 'ready'
RETURNING 1
