-- One dependency less; the last one releases a waiting job. ?1 id ?2 now
UPDATE job SET unmet = unmet - 1,
    state = iif(unmet = 1 AND state = 'waiting', 'ready', state),
    lined = iif(unmet = 1 AND state = 'waiting', 1, lined),
    due_at = iif(unmet = 1 AND state = 'waiting', max(?2, coalesce(run_at, ?2)), due_at),
    place = iif(unmet = 1 AND state = 'waiting', max(?2, coalesce(run_at, ?2)), place)
WHERE id = ?1
