-- Dependencies less; the last one releases a waiting job. ?1 id ?2 how many ?3 now
UPDATE job SET unmet = unmet - ?2,
    state = iif(unmet = ?2 AND state = 'waiting', 'ready', state),
    lined = iif(unmet = ?2 AND state = 'waiting', 1, lined),
    due_at = iif(unmet = ?2 AND state = 'waiting', max(?3, coalesce(run_at, ?3)), due_at),
    place = iif(unmet = ?2 AND state = 'waiting', max(?3, coalesce(run_at, ?3)), place)
WHERE id = ?1
